"""A run as a reader finds it. Nothing here, or built on it, writes, locks or claims: a live writer is not disturbed.

What may be named as RUN, and what is then meant:

    …/<RUN_TS>/                     that run (a flat `<name>/` with journal/ or checkpoints/ in it is one as well)
    …/<RUN_TS>/journal/             the run it lies in, and so for checkpoints/ and checkpoint_artifacts/
    …/<RUN_TS>/checkpoints/iter_…/  the run it lies in, and that checkpoint of it
    …/checkpoint_artifacts/iter_…/  the run it lies in, and that artifact of it
    …/<name>/                       its newest attempt; `notes` says which
    s3://<bucket>/…                 the same in a bucket; checkpoints may lie below another name than checkpoints/
    s3://<bucket>/<prefix>/         a folder with iter_* or a pointer in it: these checkpoints, and journal/ beside it

A local directory with `checkpoint_store.txt` is of a run whose checkpoints and journal are in a bucket: the address
in that file is followed, and `notes` says so. A bucket is reached only where one is named.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path

from attrs import evolve, frozen

from milepost.engines.ambient import SystemAmbient
from milepost.engines.attempts import ARTIFACTS, CHECKPOINTS, JOURNAL, attempts
from milepost.engines.buckets import Bucket
from milepost.engines.buckets.reading import BucketDisk
from milepost.engines.buckets.remote import SCHEME, OpenRemote, Remote, remotes
from milepost.engines.checkpoints.local import POINTER
from milepost.engines.checkpoints.manifest import ARTIFACT, MANIFEST
from milepost.engines.disks import Disk
from milepost.engines.disks.local import LocalDisk
from milepost.engines.logs import Log
from milepost.engines.logs.segments import SegmentLog
from milepost.engines.logs.slots import SlotLog
from milepost.engines.places import ADDRESS, below
from milepost.transitions.errors import Refused
from milepost.transitions.values import FULL, Plan, parse_iteration


class Kind(Enum):
    """What was published: a checkpoint, which a run resumes from, or an artifact, which none does (INV-05)."""

    CHECKPOINT = "checkpoint"
    ARTIFACT = "artifact"

    @classmethod
    def of(cls, plan: Plan) -> Kind:
        """What a save of this plan is published as."""
        return cls.CHECKPOINT if plan == FULL else cls.ARTIFACT


TREES: Mapping[Kind, str] = {Kind.CHECKPOINT: CHECKPOINTS, Kind.ARTIFACT: ARTIFACTS}
"""The folder of a run in which each kind lies, unless an explicit prefix in a bucket says otherwise."""


@frozen(kw_only=True)
class Place:
    """Where a run lies: `path` on `disk`. `checkpoint` is the one that was named, if one was, and `kind` its kind.

    `lock` is the lock file as the operating system names it; empty where none is known. `trees` names the folder of
    each kind. `slots` is the journal of a run in a bucket; a disk has segments.
    """

    disk: Disk
    path: str
    trees: Mapping[Kind, str] = TREES
    slots: SlotLog | None = None
    checkpoint: str = ""
    kind: Kind = Kind.CHECKPOINT
    lock: str = ""
    notes: tuple[str, ...] = ()

    @property
    def journal(self) -> str:
        return below(self.path, JOURNAL)

    @property
    def remote(self) -> bool:
        """Whether it lies in a bucket, where a save is written below its final name and counts by its manifest."""
        return self.slots is not None

    @property
    def checkpoints(self) -> str:
        return self.tree(Kind.CHECKPOINT)

    @property
    def artifacts(self) -> str:
        return self.tree(Kind.ARTIFACT)

    def tree(self, kind: Kind) -> str:
        """The folder of what is of this kind; a run without artifacts may have none for them."""
        return below(self.path, self.trees[kind])

    def means(self, kind: Kind, name: str) -> bool:
        """Whether this one was meant: it was named, or the whole run was."""
        return not self.checkpoint or (self.kind, self.checkpoint) == (kind, name)

    @property
    def log(self) -> Log:
        return self.slots or SegmentLog(self.disk, folder=self.journal)

    @property
    def where(self) -> str:
        """The run's directory as a person would open it."""
        return self.disk.where(self.path)

    def writer(self) -> int | None:
        """The process on this machine that holds the run's lock; None where none is seen.

        Read from the kernel's own table: to try the lock would make a start that happens meanwhile `Busy`. A writer
        on another machine is not seen.
        """
        return _holder(self.lock) if self.lock else None


def locate(run: str, *, credentials: Path | None = None, opener: OpenRemote | None = None) -> Place:
    """The run that `run` names; `Refused` where it names none.

    `credentials` are for a bucket; None is what its client finds by itself. `opener` is how one is opened, by a real
    client unless given. A bucket raises `Misconfigured` and `Unavailable` as it does.
    """
    opener = opener or remotes(SystemAmbient())
    if run.startswith(SCHEME):
        return _in_bucket(opener(run, credentials))
    place = _on_disk(run)
    if not (address := _stored_at(place.where)):
        return place
    there = _in_bucket(opener(address, credentials))
    notes = (*place.notes, f"{place.where} keeps its checkpoints and its journal at {there.where}")
    return evolve(there, checkpoint=place.checkpoint, kind=place.kind, lock=place.lock, notes=notes)


def _on_disk(run: str) -> Place:
    path = os.path.abspath(os.path.expanduser(run))
    if not os.path.isdir(path):
        found = "a file" if os.path.exists(path) else "nothing"
        raise Refused(f"{path}: expected a run directory, found {found}; name …/<name>/<RUN_TS>")
    above, name = os.path.split(path)
    kind = next((kind for kind, tree in TREES.items() if os.path.basename(above) == tree), None)
    if parse_iteration(name) is not None and kind is not None:
        return _place(os.path.dirname(above), checkpoint=name, kind=kind)
    if name in _PARTS and _is_run(above):
        return _place(above)
    if _is_run(path):
        return _place(path)
    existing = attempts(LocalDisk(path), "")
    if not existing:
        raise Refused(
            f"{path}: expected a run directory, found one without journal/, checkpoints/ or attempts; "
            "name …/<name>/<RUN_TS>, its journal/, or one of its checkpoints or artifacts"
        )
    return _place(
        os.path.join(path, existing[-1]),
        notes=(f"{existing[-1]} is the newest of {len(existing)} attempts in {path}",),
    )


_PARTS = (JOURNAL, *TREES.values())


def _is_run(path: str) -> bool:
    return any(os.path.exists(os.path.join(path, name)) for name in (*_PARTS, ADDRESS))


def _stored_at(path: str) -> str:
    """The address in the bucket that a local run directory names; empty where it names none."""
    try:
        with open(os.path.join(path, ADDRESS), encoding="utf-8", errors="replace") as file:
            address = file.read(4096).strip()
    except FileNotFoundError:
        return ""
    if not address.startswith(SCHEME):
        raise Refused(
            f"{path}/{ADDRESS}: expected an s3:// address, found {address[:80]!r}; name the run in its bucket"
        )
    return address


def _place(path: str, *, checkpoint: str = "", kind: Kind = Kind.CHECKPOINT, notes: tuple[str, ...] = ()) -> Place:
    above, name = os.path.split(path)
    return Place(
        disk=LocalDisk(above),
        path=name,
        checkpoint=checkpoint,
        kind=kind,
        lock=os.path.join(path, JOURNAL, "lock"),
        notes=notes,
    )


# --- in a bucket ----------------------------------------------------------------------------------------


def _in_bucket(remote: Remote) -> Place:
    bucket, prefix = remote.bucket, remote.destination.prefix
    disk = BucketDisk(bucket)
    stat = disk.stat(prefix)
    if stat is None or stat.kind != "dir":
        found = "nothing" if stat is None else "an object"
        raise Refused(f"{disk.where(prefix)}: expected a run, found {found}; name s3://<bucket>/…/<name>/<RUN_TS>")
    above, _, name = prefix.rpartition("/")
    if above and parse_iteration(name) is not None:
        return _one_in_bucket(bucket, disk, above, name)
    if name == TREES[Kind.CHECKPOINT]:
        return _run_in_bucket(bucket, disk, above, root=name)
    if name in _PARTS:
        return _run_in_bucket(bucket, disk, above)
    if any(disk.stat(below(prefix, part)) is not None for part in _PARTS):
        return _run_in_bucket(bucket, disk, prefix)
    if prefix and _is_root(bucket, prefix):
        return _run_in_bucket(bucket, disk, above, root=name)
    existing = attempts(disk, prefix)
    if not existing:
        raise Refused(
            f"{disk.where(prefix)}: expected a run, found no journal/, checkpoints/ or attempts below it; name "
            "s3://<bucket>/…/<name>/<RUN_TS>, or the prefix below which its iter_* lie"
        )
    note = f"{existing[-1]} is the newest of {len(existing)} attempts in {disk.where(prefix)}"
    return evolve(_run_in_bucket(bucket, disk, below(prefix, existing[-1])), notes=(note,))


def _one_in_bucket(bucket: Bucket, disk: BucketDisk, above: str, name: str) -> Place:
    """An `iter_*`: where the folder above it has a name of its own, it is what its manifest says."""
    base, _, tree = above.rpartition("/")
    if tree == TREES[Kind.ARTIFACT]:
        return evolve(_run_in_bucket(bucket, disk, base), checkpoint=name, kind=Kind.ARTIFACT)
    here = f"{above}/{name}"
    alone = disk.stat(f"{here}/{MANIFEST}") is None and disk.stat(f"{here}/{ARTIFACT}") is not None
    if alone and tree != TREES[Kind.CHECKPOINT]:
        place = _run_in_bucket(bucket, disk, base, root=TREES[Kind.CHECKPOINT])
        return evolve(place, checkpoint=name, kind=Kind.ARTIFACT, trees={**TREES, Kind.ARTIFACT: tree})
    return evolve(_run_in_bucket(bucket, disk, base, root=tree), checkpoint=name)


def _run_in_bucket(bucket: Bucket, disk: BucketDisk, base: str, *, root: str = "") -> Place:
    """The run at `base`; its checkpoints lie below `root`, which is looked for where nobody named it."""
    trees = {**TREES, Kind.CHECKPOINT: root or _root_in(bucket, disk, base)}
    slots = SlotLog(bucket, nonce=SystemAmbient().nonce, folder=below(base, JOURNAL))
    return Place(disk=disk, path=base, trees=trees, slots=slots)


def _root_in(bucket: Bucket, disk: BucketDisk, base: str) -> str:
    usual = TREES[Kind.CHECKPOINT]
    if disk.stat(below(base, usual)) is not None:
        return usual
    found = [name for name in disk.names(base) if name not in _PARTS and _is_root(bucket, below(base, name))]
    if len(found) > 1:
        raise Refused(f"{disk.where(base)}: its checkpoints may lie in {' or '.join(found)}; name one of these")
    return found[0] if found else usual


def _is_root(bucket: Bucket, path: str) -> bool:
    """Whether checkpoints lie here; one listed key says so."""
    keys = (*bucket.keys(f"{path}/iter_", limit=1), *bucket.keys(f"{path}/{POINTER}", limit=1))
    names = [key.removeprefix(f"{path}/").partition("/")[0] for key in keys]
    return any(name == POINTER or parse_iteration(name) is not None for name in names)


# --- who writes it --------------------------------------------------------------------------------------

_FLOCK = re.compile(r"^\d+: FLOCK +ADVISORY +WRITE +(\d+) +[0-9a-f]+:[0-9a-f]+:(\d+) ", re.MULTILINE)


def _holder(lock: str) -> int | None:
    """Who holds the flock, from proc_locks(5).

    The table names inodes, and the device numbers in it are not stat's on every file system: the process's own list
    of open files decides, where it may be read.
    """
    try:
        inode = os.stat(lock).st_ino
        with open("/proc/locks", encoding="ascii") as table:
            holders = [int(pid) for pid, number in _FLOCK.findall(table.read()) if int(number) == inode]
    except OSError:
        return None
    return next((pid for pid in holders if _has_open(pid, lock)), None)


def _has_open(pid: int, path: str) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        descriptors = os.listdir(folder)
    except PermissionError:
        return True  # another user's process: the inode has to do
    except OSError:
        return False
    for descriptor in descriptors:
        with suppress(OSError):
            if os.path.samefile(f"{folder}/{descriptor}", path):
                return True
    return False
