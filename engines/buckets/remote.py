"""A directory in a bucket, by its address, and the name by which a receipt remembers it.

1. `s3://bucket/prefix` names a directory: whole names below the bucket, without a slash at the end.
2. A destination is the host and port of the store, the bucket and the prefix. It holds nothing secret.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from attrs import evolve, frozen

from milepost.engines.ambient import Ambient
from milepost.engines.buckets import Bucket
from milepost.engines.buckets.keys import check_key
from milepost.engines.buckets.opening import open_bucket
from milepost.transitions.errors import Refused

SCHEME = "s3://"


@frozen(kw_only=True)
class Destination:
    """Where an archive is: `endpoint` is host and port of the store, `prefix` the archive's own directory."""

    endpoint: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix} at {self.endpoint}"


@frozen(kw_only=True)
class Remote:
    """One directory of a bucket. `bucket` has no prefix of its own: keys are whole."""

    bucket: Bucket
    destination: Destination

    def key(self, path: str) -> str:
        """The key of what lies at this path below the directory."""
        return f"{self.start}{path}"

    @property
    def start(self) -> str:
        """What every key in the directory starts with."""
        return f"{self.destination.prefix}/" if self.destination.prefix else ""

    def where(self, path: str) -> str:
        """The address of what lies at this path, for people."""
        return self.bucket.where(self.key(path))

    def below(self, name: str) -> Remote:
        """The directory of this name in this one."""
        return self.at(self.key(name))

    def at(self, prefix: str) -> Remote:
        """Another directory of the same bucket."""
        return evolve(self, destination=evolve(self.destination, prefix=prefix))


OpenRemote: TypeAlias = Callable[[str, Path | None], Remote]
"""The directory at an `s3://` address, with the credentials at this path (None: the client's own chain)."""


def parse_address(uri: str) -> tuple[str, str]:
    """The bucket and the prefix of `s3://bucket/prefix`; `Refused` for anything else."""
    name, _, prefix = uri.removeprefix(SCHEME).partition("/")
    prefix = prefix.removesuffix("/")
    try:
        if not uri.startswith(SCHEME):
            raise ValueError("it does not start with s3://")
        check_key(name)
        if prefix:
            check_key(prefix)
    except ValueError as error:
        raise Refused(f"{uri!r} is no address: {error}; expected s3://<bucket>/<prefix>") from None
    return name, prefix


def open_remote(uri: str, *, credentials: Path | None, ambient: Ambient) -> Remote:
    """The directory at this address. Nothing is sent yet. `Misconfigured` as `open_bucket`, `Refused` as above."""
    name, prefix = parse_address(uri)
    return Remote(
        bucket=open_bucket(name, credentials=credentials, ambient=ambient),
        destination=Destination(endpoint=endpoint_of(credentials), bucket=name, prefix=prefix),
    )


def remotes(ambient: Ambient) -> OpenRemote:
    """`open_remote` by real clients."""
    return lambda uri, credentials: open_remote(uri, credentials=credentials, ambient=ambient)


def endpoint_of(credentials: Path | None) -> str:
    """Host and port of the store that these credentials address. `Misconfigured` where they cannot be used."""
    from milepost.engines.buckets.clients import connect, read_credentials  # boto3 is an extra

    return connect(read_credentials(credentials) if credentials is not None else None).endpoint
