"""Buckets under test, whichever store they are in."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, Self

from attrs import frozen

from milepost.engines.ambient import SystemAmbient
from milepost.engines.buckets import Bucket, Upload
from milepost.engines.buckets.boto import BotoWire
from milepost.engines.buckets.clients import Clients
from milepost.engines.buckets.object import ObjectBucket
from milepost.engines.buckets.patience import SystemClock

AMBIENT = SystemAmbient()


@frozen(kw_only=True)
class Bench:
    """A bucket with nothing in it, a second writer's view of it, and the smallest part that its store takes."""

    bucket: Bucket
    other: Bucket
    part_bytes: int


class Store(Protocol):
    """A server that can be started here or not."""

    bucket: str

    def __init__(self, folder: Path) -> None: ...
    @classmethod
    def unavailable(cls) -> str | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def credentials(self, name: str = ..., **other: str) -> Path: ...


def connected(
    clients: Clients, *, name: str, prefix: str, part_bytes: int, patience_s: float = 30.0, lanes: int = 2
) -> ObjectBucket:
    """A bucket over clients that exist: making one costs a third of a second."""
    wire = BotoWire(clients, name=name, prefix=prefix)
    return ObjectBucket(wire, clock=SystemClock(AMBIENT), patience_s=patience_s, part_bytes=part_bytes, lanes=lanes)


def put(bucket: Bucket, key: str, data: bytes, *, size_hint: int = 0) -> Upload:
    """Upload and commit."""
    with bucket.upload(key, size_hint=size_hint) as upload:
        upload.write(data)
        upload.commit()
    return upload


def get(bucket: Bucket, key: str) -> bytes:
    return bucket.read(key, limit=1 << 28)[0]
