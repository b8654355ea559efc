"""A run as a reader finds it. Nothing here, or built on it, writes, locks or claims: a live writer is not disturbed.

What may be named as RUN, and what is then meant:

    …/<RUN_TS>/                     that run (a flat `<name>/` with journal/ or checkpoints/ in it is one as well)
    …/<RUN_TS>/journal/             the run it lies in, and so for checkpoints/ and checkpoint_artifacts/
    …/<RUN_TS>/checkpoints/iter_…/  the run it lies in, and that checkpoint of it
    …/checkpoint_artifacts/iter_…/  the run it lies in, and that artifact of it
    …/<name>/                       its newest attempt; `notes` says which
    s3://…                          refused: object stores are not in this version
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum

from attrs import frozen

from milepost.engines.attempts import attempts
from milepost.engines.disks import Disk
from milepost.engines.disks.local import LocalDisk
from milepost.engines.logs import Log
from milepost.engines.logs.segments import SegmentLog
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


TREES: Mapping[Kind, str] = {Kind.CHECKPOINT: "checkpoints", Kind.ARTIFACT: "checkpoint_artifacts"}
"""The folder of a run in which each kind lies."""


@frozen(kw_only=True)
class Place:
    """Where a run lies: `path` on `disk`. `checkpoint` is the one that was named, if one was, and `kind` its kind.

    `lock` is the lock file as the operating system names it; empty on a disk that is not the system's own.
    """

    disk: Disk
    path: str
    checkpoint: str = ""
    kind: Kind = Kind.CHECKPOINT
    lock: str = ""
    notes: tuple[str, ...] = ()

    @property
    def journal(self) -> str:
        return f"{self.path}/journal"

    @property
    def checkpoints(self) -> str:
        return self.tree(Kind.CHECKPOINT)

    @property
    def artifacts(self) -> str:
        return self.tree(Kind.ARTIFACT)

    def tree(self, kind: Kind) -> str:
        """The folder of what is of this kind; a run without artifacts may have none for them."""
        return f"{self.path}/{TREES[kind]}"

    def means(self, kind: Kind, name: str) -> bool:
        """Whether this one was meant: it was named, or the whole run was."""
        return not self.checkpoint or (self.kind, self.checkpoint) == (kind, name)

    @property
    def log(self) -> Log:
        return SegmentLog(self.disk, folder=self.journal)

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


def locate(run: str) -> Place:
    """The run that `run` names; `Refused` where it names none."""
    if run.startswith("s3://"):
        raise Refused(f"{run}: object stores are not in this version; name a run directory on a disk")
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


_PARTS = ("journal", *TREES.values())


def _is_run(path: str) -> bool:
    return any(os.path.isdir(os.path.join(path, name)) for name in _PARTS)


def _place(path: str, *, checkpoint: str = "", kind: Kind = Kind.CHECKPOINT, notes: tuple[str, ...] = ()) -> Place:
    above, name = os.path.split(path)
    return Place(
        disk=LocalDisk(above),
        path=name,
        checkpoint=checkpoint,
        kind=kind,
        lock=os.path.join(path, "journal", "lock"),
        notes=notes,
    )


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
