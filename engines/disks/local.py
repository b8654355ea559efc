"""The local disk: every verb is the system call of that name, below one root that it never leaves.

1. A path is entered by openat2(2) with RESOLVE_NO_SYMLINKS and RESOLVE_BENEATH; where the kernel lacks it, it is
   walked part by part, each opened relative to the one before with O_NOFOLLOW. So a symlink below the root is
   refused wherever it lies and however late it was planted. The root may be reached through some.
2. The last part is checked too, also by the verbs that would act on the link itself (rename, unlink): nothing
   here makes symlinks, so one below the root is somebody else's and a person should look at it.
3. Errors carry the path as a person would open it.
4. An open sink knows only its descriptor: appending costs one system call.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from typing_extensions import Buffer

from milepost.engines.disks import Kind, Lock, Sink, Source, Stat
from milepost.engines.disks.beneath import open_beneath
from milepost.engines.disks.bulk import BulkSink, BulkSource
from milepost.engines.disks.descriptor import Descriptor
from milepost.engines.disks.paths import split, split_last

_RENAME_NOREPLACE = 1

_libc = ctypes.CDLL(None, use_errno=True)


class LocalDisk:
    """A `Disk` below the directory `root`, which has to exist."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(root)

    def create(self, path: str, *, bulk: bool = False) -> Sink:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._parent(path) as (parent, name):
            fd = os.open(name, flags, 0o644, dir_fd=parent)
        return BulkSink(fd) if bulk else _FileSink(fd)

    def open(self, path: str, *, bulk: bool = False) -> Source:
        fd = self._open_file(path)
        return BulkSource(fd) if bulk else _FileSource(fd)

    def read(self, path: str, *, limit: int) -> bytes:
        with _FileSource(self._open_file(path)) as source:
            if source.size > limit:
                raise OSError(
                    errno.EFBIG, f"{source.size} bytes where at most {limit} were expected", self.where(path)
                )
            data = bytearray(source.size)
            return bytes(data[: source.read_into(0, data)])

    def stat(self, path: str) -> Stat | None:
        # Written out: a writer looks for its successor behind every sync of the journal.
        above, name = split_last(path) if path else ((), "")
        try:
            if not path:
                return _stat_of(os.stat(self._root))
            parent = self._descend(above)
            try:
                return _stat_of(os.stat(name, dir_fd=parent, follow_symlinks=False))
            finally:
                os.close(parent)
        except FileNotFoundError:
            return None
        except OSError as error:
            error.filename = self.where(path)
            raise

    def names(self, path: str) -> tuple[str, ...]:
        with self._directory(path, os.O_RDONLY) as fd:
            return tuple(sorted(os.listdir(fd)))

    def mkdir(self, path: str) -> None:
        with self._parent(path) as (parent, name):
            os.mkdir(name, dir_fd=parent)

    def rename(self, source: str, target: str) -> None:
        with self._pair(source, target) as (old_parent, old, new_parent, new):
            _refuse_symlink(old_parent, old)
            _refuse_symlink(new_parent, new)
            os.rename(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent)

    def publish(self, source: str, target: str) -> None:
        with self._pair(source, target) as (old_parent, old, new_parent, new):
            _refuse_symlink(old_parent, old)
            code = _rename_noreplace(old_parent, old, new_parent, new)
            if code in (errno.EINVAL, errno.ENOSYS):
                _publish_by_rename(old_parent, old, new_parent, new)
            elif code:
                raise OSError(code, os.strerror(code))

    def link(self, source: str, target: str) -> None:
        with self._pair(source, target) as (old_parent, old, new_parent, new):
            _refuse_symlink(old_parent, old)
            os.link(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent, follow_symlinks=False)

    def unlink(self, path: str) -> None:
        with self._parent(path) as (parent, name):
            _refuse_symlink(parent, name)
            os.unlink(name, dir_fd=parent)

    def rmdir(self, path: str) -> None:
        with self._parent(path) as (parent, name):
            _refuse_symlink(parent, name)
            os.rmdir(name, dir_fd=parent)

    def rewrite(self, path: str, *, offset: int, data: Buffer) -> None:
        with self._parent(path) as (parent, name):
            fd = os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
            try:
                _require_regular(fd)
                rest = memoryview(data).cast("B")
                while rest:
                    written = os.pwrite(fd, rest, offset)
                    rest, offset = rest[written:], offset + written
            finally:
                os.close(fd)

    def sync_file(self, path: str) -> None:
        fd = self._open_file(path)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_dir(self, path: str) -> None:
        with self._directory(path, os.O_RDONLY) as fd:
            os.fsync(fd)

    def free(self, path: str) -> int:
        with self._naming(path):
            if not path:
                figures = os.statvfs(self._root)
            else:
                fd = self._open_place(path)
                try:
                    figures = os.fstatvfs(fd)
                finally:
                    os.close(fd)
        return figures.f_bavail * figures.f_frsize

    def lock(self, path: str) -> Lock:
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._parent(path) as (parent, name):
            fd = os.open(name, flags, 0o644, dir_fd=parent)
            try:
                _require_regular(fd)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(fd)
                raise
        return _FileLock(fd)

    def where(self, path: str) -> str:
        return os.path.join(self._root, path) if path else self._root

    # Walking. Descriptors of directories on the way are O_PATH: passing through needs no permission to list.

    @contextmanager
    def _naming(self, path: str, other: str | None = None) -> Iterator[None]:
        """Put the whole path into an error, where the system call knew only the last name."""
        try:
            yield
        except OSError as error:
            error.filename = self.where(path)
            if other is not None:
                error.filename2 = self.where(other)
            raise

    def _descend(self, parts: tuple[str, ...]) -> int:
        fd = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if not parts:
            return fd
        try:
            below = open_beneath(fd, "/".join(parts))
        except OSError:
            os.close(fd)
            raise
        if below is not None:
            os.close(fd)
            return below
        for part in parts:
            above = fd
            try:
                fd = _enter(above, part, os.O_PATH)
            finally:
                os.close(above)
        return fd

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The directory that holds `path`, open for the length of the `with`, and the last name."""
        above, name = split_last(path)
        with self._naming(path):
            fd = self._descend(above)
            try:
                yield fd, name
            finally:
                os.close(fd)

    @contextmanager
    def _pair(self, source: str, target: str) -> Iterator[tuple[int, str, int, str]]:
        split_last(target)  # a wrong path is refused before anything is opened
        with (
            self._naming(source, target),
            self._parent(source) as (old_parent, old),
            self._parent(target) as (new_parent, new),
        ):
            yield old_parent, old, new_parent, new

    @contextmanager
    def _directory(self, path: str, flags: int) -> Iterator[int]:
        parts = split(path)
        with self._naming(path):
            if parts:
                above = self._descend(parts[:-1])
                try:
                    fd = _enter(above, parts[-1], flags)
                finally:
                    os.close(above)
            else:
                fd = os.open(self._root, flags | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                yield fd
            finally:
                os.close(fd)

    def _open_file(self, path: str) -> int:
        """A regular file, open for reading. O_NONBLOCK: a planted FIFO is refused and not waited for."""
        with self._parent(path) as (parent, name):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
            try:
                _require_regular(fd)
            except OSError:
                os.close(fd)
                raise
        return fd

    def _open_place(self, path: str) -> int:
        """Whatever `path` is, by its place alone (O_PATH), but no symlink."""
        with self._parent(path) as (parent, name):
            _refuse_symlink(parent, name)
            return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)


def _enter(above: int, part: str, flags: int) -> int:
    try:
        return os.open(part, flags | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    except NotADirectoryError:
        _refuse_symlink(above, part)  # with O_DIRECTORY the kernel answers ENOTDIR for a symlink as well
        raise


def _refuse_symlink(parent: int, name: str) -> None:
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "a symlink lies in the way; remove it")


def _require_regular(fd: int) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file")


def _rename_noreplace(old_parent: int, old: str, new_parent: int, new: str) -> int:
    """0, or the errno. ENOSYS also where the C library has no such function."""
    try:
        renameat2 = _libc.renameat2
    except AttributeError:
        return errno.ENOSYS
    failed = renameat2(old_parent, os.fsencode(old), new_parent, os.fsencode(new), _RENAME_NOREPLACE)
    return ctypes.get_errno() if failed else 0


def _publish_by_rename(old_parent: int, old: str, new_parent: int, new: str) -> None:
    """A directory by rename(2), which refuses a target that holds anything; a file not at all.

    The look at the target is a courtesy (one clear error for every kind of target); what protects a published
    directory from a racing writer is the kernel's ENOTEMPTY.
    """
    if not stat.S_ISDIR(os.stat(old, dir_fd=old_parent, follow_symlinks=False).st_mode):
        raise OSError(errno.EOPNOTSUPP, "this file system cannot rename a file without replacing")
    try:
        os.stat(new, dir_fd=new_parent, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(old, new, src_dir_fd=old_parent, dst_dir_fd=new_parent)
    else:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink"}


def _stat_of(found: os.stat_result) -> Stat:
    return Stat(
        kind=_KINDS.get(stat.S_IFMT(found.st_mode), "other"),
        size=found.st_size,
        mtime_s=found.st_mtime,
        inode=found.st_ino,
    )


class _FileSink(Descriptor):
    def write(self, data: Buffer) -> int:
        return os.write(self.fd, data)

    def sync(self) -> None:
        os.fdatasync(self.fd)


class _FileSource(Descriptor):
    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.size = os.fstat(fd).st_size

    def read_into(self, offset: int, buffer: Buffer) -> int:
        rest = memoryview(buffer).cast("B")
        asked = len(rest)
        while rest and (got := os.preadv(self.fd, [rest], offset + asked - len(rest))):
            rest = rest[got:]
        return asked - len(rest)


class _FileLock(Descriptor):
    """flock(2) belongs to the open file, which a forked child shares: the child gives its share up at once.

    Otherwise a data loader's worker that outlives a killed trainer would keep the run locked.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        _held.add(self)

    def release(self) -> None:
        _held.discard(self)
        self.close()


_held: set[_FileLock] = set()


def _let_go_in_child() -> None:
    for lock in tuple(_held):
        lock.release()


os.register_at_fork(after_in_child=_let_go_in_child)
