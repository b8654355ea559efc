"""Where the payload of a run lies, as plain text: on a disk, or in a bucket that every member opens by itself.

    <base>/checkpoints/             the checkpoint root
    <base>/checkpoint_artifacts/    the artifacts beside it
    <base>/journal/                 the journal, beside both

1. In a bucket the base mirrors the local layout, `<project>/<group>/<name>/<RUN_TS>`, unless a prefix was configured.
   A prefix is the checkpoint root itself, whatever its last name is, and the base is what lies above it.
2. Of credentials only the path travels, as it was configured: every rank reads that file on its own machine, and
   nothing of what is in it is sent.

Source: the checkpointing contract, "Primary checkpoint store versus archive upload".
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attrs import frozen

from milepost.engines.attempts import CHECKPOINTS
from milepost.engines.buckets import Bucket
from milepost.engines.buckets.reading import BucketDisk
from milepost.engines.buckets.remote import SCHEME, OpenRemote
from milepost.engines.checkpoints import Checkpoints
from milepost.engines.checkpoints.direct import DirectCheckpoints
from milepost.engines.checkpoints.local import LocalCheckpoints
from milepost.engines.digests import Algorithm
from milepost.engines.disks import Disk
from milepost.engines.disks.local import LocalDisk

ADDRESS = "checkpoint_store.txt"
"""In the local directory of an attempt whose primary is a bucket: one line, the address of the run there."""

ADDRESS_BYTES = 4096


@frozen(kw_only=True)
class Folder:
    """On the disk of `root`, an absolute path."""

    root: str


@frozen(kw_only=True)
class Store:
    """In the bucket at `uri` (`s3://bucket`), with the credentials at this path; empty: the client's own chain."""

    uri: str
    credentials: str

    def open(self, remotes: OpenRemote) -> Bucket:
        """The bucket, by this process. `Misconfigured` for credentials that cannot be used."""
        return remotes(self.uri, Path(self.credentials).expanduser() if self.credentials else None).bucket


@frozen(kw_only=True)
class Place:
    """Where a run's checkpoints and its artifacts lie: paths on the disk, or keys in the bucket, of `within`."""

    within: Folder | Store
    checkpoints: str
    artifacts: str
    algorithm: Algorithm
    crc32: bool

    @property
    def direct(self) -> bool:
        """Whether the primary is a bucket."""
        return isinstance(self.within, Store)


def below(base: str, name: str) -> str:
    """The key of what is called so in `base`, which is empty for the bucket itself."""
    return f"{base}/{name}" if base else name


def base_and_root(mirrored: str, *, prefix: str) -> tuple[str, str]:
    """The keys of the run's base and of its checkpoint root; `mirrored` is the local layout's path (rule 1)."""
    if prefix:
        return prefix.rpartition("/")[0], prefix
    return mirrored, below(mirrored, CHECKPOINTS)


def open_place(
    place: Place, *, disk: Disk | None, remotes: OpenRemote, fence: Callable[[], None]
) -> tuple[Disk, Checkpoints]:
    """What reads at the place and what writes there; `disk` stands in for the local disk of a folder."""
    if isinstance(place.within, Store):
        bucket = place.within.open(remotes)
        return BucketDisk(bucket), checkpoints_in(bucket, place, fence=fence)
    disk = disk or LocalDisk(place.within.root)
    return disk, local_checkpoints(place, disk=disk, fence=fence)


def local_checkpoints(place: Place, *, disk: Disk, fence: Callable[[], None]) -> LocalCheckpoints:
    """The checkpoints of the place on this disk, which is the place's."""
    return LocalCheckpoints(
        disk=disk,
        root=place.checkpoints,
        artifacts=place.artifacts,
        fence=fence,
        algorithm=place.algorithm,
        crc32=place.crc32,
    )


def checkpoints_in(bucket: Bucket, place: Place, *, fence: Callable[[], None]) -> DirectCheckpoints:
    """The checkpoints of the place in this bucket, which is the place's."""
    return DirectCheckpoints(
        bucket=bucket,
        root=place.checkpoints,
        artifacts=place.artifacts,
        fence=fence,
        algorithm=place.algorithm,
        crc32=place.crc32,
    )


def disk_of(root: str, *, credentials: str, remotes: OpenRemote) -> Disk:
    """What reads below a folder or in a bucket, by the absolute path or the address of it."""
    if root.startswith(SCHEME):
        return BucketDisk(Store(uri=root, credentials=credentials).open(remotes))
    return LocalDisk(root)
