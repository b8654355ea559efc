"""A bucket by its name: the one place that asks for boto3, which is an extra."""

from __future__ import annotations

from pathlib import Path

from milepost.engines.ambient import Ambient
from milepost.engines.buckets import Bucket
from milepost.engines.buckets.keys import check_prefix
from milepost.engines.buckets.object import PATIENCE_S, ObjectBucket
from milepost.engines.buckets.patience import SystemClock
from milepost.engines.buckets.uploading import LANES, PART_BYTES
from milepost.transitions.errors import Misconfigured


def open_bucket(
    name: str,
    *,
    prefix: str = "",
    credentials: Path | None = None,
    ambient: Ambient,
    patience_s: float = PATIENCE_S,
    part_bytes: int = PART_BYTES,
    lanes: int = LANES,
) -> Bucket:
    """The bucket `name`, below `prefix` (empty, or names with a slash after each). Nothing is sent yet.

    `credentials` is the path of a JSON file (`clients.py`); None takes what boto3 finds by itself. `Misconfigured`
    for credentials that cannot be used, and where boto3 is not installed.
    """
    check_prefix(prefix)
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"the prefix {prefix!r} of a bucket ends in the middle of a name; end it with a slash")
    try:
        from milepost.engines.buckets.boto import BotoWire
        from milepost.engines.buckets.clients import connect, read_credentials
    except ModuleNotFoundError as error:
        if error.name not in ("boto3", "botocore"):
            raise
        raise Misconfigured(("an object store needs boto3: pip install 'milepost[s3]'",)) from None
    clients = connect(read_credentials(credentials) if credentials is not None else None)
    wire = BotoWire(clients, name=name, prefix=prefix)
    return ObjectBucket(wire, clock=SystemClock(ambient), patience_s=patience_s, part_bytes=part_bytes, lanes=lanes)
