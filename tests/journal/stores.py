"""Stores in memory by their addresses, as `Journal.open(remotes=…)` takes them; one may be down for a while."""

from __future__ import annotations

from pathlib import Path

from milepost.engines.buckets import Bucket
from milepost.engines.buckets.remote import Destination, Remote, parse_address
from milepost.engines.simulated.bucket import SimulatedBucket
from milepost.transitions.errors import Unavailable


class Stores:
    """Opens `s3://` addresses; a bucket is made when it is first asked for. `down` makes every store unreachable."""

    def __init__(self, buckets: dict[str, Bucket] | None = None) -> None:
        self.buckets = buckets if buckets is not None else {}
        self.down = False
        self.asked: list[tuple[str, Path | None]] = []

    def __call__(self, uri: str, credentials: Path | None) -> Remote:
        self.asked.append((uri, credentials))
        if self.down:
            raise Unavailable(f"{uri}: no answer")
        name, prefix = parse_address(uri)
        bucket = self.buckets.setdefault(name, SimulatedBucket())
        return Remote(bucket=bucket, destination=Destination(endpoint="store:1", bucket=name, prefix=prefix))

    def keys(self, name: str, prefix: str = "") -> tuple[str, ...]:
        """Every key in the bucket that starts with the prefix."""
        found: tuple[str, ...] = ()
        while page := self.buckets[name].keys(prefix, after=found[-1] if found else ""):
            found += page
        return found
