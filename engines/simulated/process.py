"""The verbs of a disk as one process sees them: what `LocalDisk` does, on simulated hardware.

A process that was killed, by `kill` or at the operation `kill_at`, raises `Killed` from every further call, and so do
its sinks, sources and locks. What it wrote stays in the page cache, its locks are free.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self, TypeVar

from typing_extensions import Buffer

from milepost.engines.disks import Kind, Lock, Sink, Source, Stat
from milepost.engines.disks.paths import split, split_last
from milepost.engines.simulated import lookup
from milepost.engines.simulated.hardware import Life, Plan
from milepost.engines.simulated.lookup import Parts, refusal
from milepost.engines.simulated.medium import (
    Born,
    Change,
    Closed,
    Effect,
    FolderSynced,
    Locked,
    Medium,
    Moved,
    Node,
    Symlink,
    Synced,
    Unlocked,
    Wrote,
    contents,
    folder_of,
)

T = TypeVar("T")

_FOLDER_SIZE = 4096


class Process(Life):
    """A `Disk`: one process's view of the hardware."""

    def _do(self, verb: str, path: str, plan: Plan[T], *, source: str | None = None) -> T:
        try:
            return self.hardware.perform(self, verb, path, plan)
        except OSError as error:
            error.filename = self.where(path if source is None else source)
            if source is not None:
                error.filename2 = self.where(path)
            raise

    def create(self, path: str, *, bulk: bool = False) -> Sink:
        return _Sink(self, path, self._birth("create", path, b""))

    def mkdir(self, path: str) -> None:
        self._birth("mkdir", path, {})

    def _birth(self, verb: str, path: str, node: Node) -> int:
        parts = _named(path)

        def plan(medium: Medium) -> tuple[Born, int]:
            born = lookup.birth(medium, parts, node)
            return born, born.inode

        return self._do(verb, path, plan)

    def open(self, path: str, *, bulk: bool = False) -> Source:
        parts = _named(path)

        def plan(medium: Medium) -> tuple[None, tuple[int, int]]:
            inode = lookup.file_at(medium.seen, parts)
            return None, (inode, len(contents(medium.seen, inode)))

        return _Source(self, path, *self._do("open", path, plan))

    def read(self, path: str, *, limit: int) -> bytes:
        parts = _named(path)

        def plan(medium: Medium) -> tuple[None, bytes]:
            data = contents(medium.seen, lookup.file_at(medium.seen, parts))
            if len(data) > limit:
                raise OSError(errno.EFBIG, f"{len(data)} bytes where at most {limit} were expected")
            return None, data

        return self._do("read", path, plan)

    def stat(self, path: str) -> Stat | None:
        parts = split(path)
        try:
            return self._do("stat", path, lambda medium: (None, _stat_of(medium, parts)))
        except FileNotFoundError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        parts = split(path)

        def plan(medium: Medium) -> tuple[None, tuple[str, ...]]:
            return None, tuple(sorted(folder_of(medium.seen, lookup.folder_at(medium.seen, parts))))

        return self._do("names", path, plan)

    def rename(self, source: str, target: str) -> None:
        self._move("rename", source, target, replace=True)

    def publish(self, source: str, target: str) -> None:
        self._move("publish", source, target, replace=False)

    def _move(self, verb: str, source: str, target: str, *, replace: bool) -> None:
        old, new = _named(source), _named(target)
        self._do(verb, target, lambda medium: (lookup.move(medium, old, new, replace=replace), None), source=source)

    def link(self, source: str, target: str) -> None:
        old, new = _named(source), _named(target)

        def plan(medium: Medium) -> tuple[Effect, None]:
            inode = lookup.at(medium.seen, old)
            folder = lookup.folder_at(medium.seen, new[:-1])
            if lookup.entry(medium.seen, folder, new[-1]) is not None:
                raise refusal(errno.EEXIST)
            if isinstance(medium.seen[inode], dict):
                raise refusal(errno.EPERM)
            return Moved(changes=(Change(folder=folder, name=new[-1], inode=inode),)), None

        self._do("link", target, plan, source=source)

    def unlink(self, path: str) -> None:
        parts = _named(path)

        def plan(medium: Medium) -> tuple[Effect, None]:
            lookup.file_at(medium.seen, parts)
            return lookup.removal(medium, parts), None

        self._do("unlink", path, plan)

    def rmdir(self, path: str) -> None:
        parts = _named(path)

        def plan(medium: Medium) -> tuple[Effect, None]:
            if folder_of(medium.seen, lookup.folder_at(medium.seen, parts)):
                raise refusal(errno.ENOTEMPTY)
            return lookup.removal(medium, parts), None

        self._do("rmdir", path, plan)

    def rewrite(self, path: str, *, offset: int, data: Buffer) -> None:
        parts, given = _named(path), bytes(memoryview(data).cast("B"))

        def plan(medium: Medium) -> tuple[Effect, None]:
            return Wrote(inode=lookup.file_at(medium.seen, parts), offset=offset, data=given), None

        self._do("rewrite", path, plan)

    def sync_file(self, path: str) -> None:
        parts = _named(path)
        self._do("sync_file", path, lambda medium: (Synced(inode=lookup.file_at(medium.seen, parts)), None))

    def sync_dir(self, path: str) -> None:
        parts = split(path)
        self._do(
            "sync_dir",
            path,
            lambda medium: (FolderSynced(folder=lookup.folder_at(medium.seen, parts)), None),
        )

    def free(self, path: str) -> int:
        parts = split(path)

        def plan(medium: Medium) -> tuple[None, int]:
            lookup.at(medium.seen, parts)
            return None, self.hardware.free_bytes

        return self._do("free", path, plan)

    def lock(self, path: str) -> Lock:
        parts = _named(path)

        def plan(medium: Medium) -> tuple[Effect, int]:
            folder = lookup.folder_at(medium.seen, parts[:-1])
            missing = lookup.entry(medium.seen, folder, parts[-1]) is None
            born = lookup.birth(medium, parts, b"") if missing else None
            inode = born.inode if born else lookup.file_at(medium.seen, parts)
            if inode in medium.locks:
                raise refusal(errno.EAGAIN)
            return Locked(inode=inode, holder=self.holder, born=born), inode

        return _Lock(self, path, self._do("lock", path, plan))

    def where(self, path: str) -> str:
        return f"simulated:/{path}"


def _named(path: str) -> Parts:
    above, name = split_last(path)
    return (*above, name)


def _stat_of(medium: Medium, parts: Parts) -> Stat:
    if parts:
        inode = lookup.entry(medium.seen, lookup.folder_at(medium.seen, parts[:-1]), parts[-1])
        if inode is None:
            raise refusal(errno.ENOENT)
    else:
        inode = lookup.at(medium.seen, ())
    node = medium.seen[inode]
    kind: Kind = "dir" if isinstance(node, dict) else "symlink" if isinstance(node, Symlink) else "file"
    size = len(node) if isinstance(node, bytes) else _FOLDER_SIZE
    return Stat(kind=kind, size=size, mtime_s=medium.times.get(inode, 0.0), inode=inode)


class _Handle(ABC):
    """What sinks and sources share: they belong to a process, and are closed once."""

    def __init__(self, process: Process, path: str, inode: int) -> None:
        self._process = process
        self._path = path
        self._inode = inode
        self._open = True

    def _do(self, verb: str, plan: Plan[T]) -> T:
        if not self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._process.where(self._path))
        return self._process._do(verb, self._path, plan)

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Sink(_Handle):
    def __init__(self, process: Process, path: str, inode: int) -> None:
        super().__init__(process, path, inode)
        self._at = 0

    def write(self, data: Buffer) -> int:
        given = bytes(memoryview(data).cast("B"))

        def plan(_medium: Medium) -> tuple[Effect, int]:
            taken = given[: self._process.hardware.taken(self._process, self._path, len(given))]
            return Wrote(inode=self._inode, offset=self._at, data=taken), len(taken)

        written = self._do("write", plan)
        self._at += written
        return written

    def sync(self) -> None:
        self._do("sync", lambda _medium: (Synced(inode=self._inode), None))

    def close(self) -> None:
        if self._open:
            try:
                self._do("close", lambda _medium: (Closed(inode=self._inode), None))
            finally:
                self._open = False


class _Source(_Handle):
    def __init__(self, process: Process, path: str, inode: int, size: int) -> None:
        super().__init__(process, path, inode)
        self.size = size

    def read_into(self, offset: int, buffer: Buffer) -> int:
        view = memoryview(buffer).cast("B")
        part = self._do(
            "read_into",
            lambda medium: (None, contents(medium.seen, self._inode)[offset : offset + len(view)]),
        )
        view[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._open = False


class _Lock:
    def __init__(self, process: Process, path: str, inode: int) -> None:
        self._process = process
        self._path = path
        self._inode = inode
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._process._do("release", self._path, lambda _medium: (Unlocked(inode=self._inode), None))
