"""The verbs of a POSIX disk, one each, and nothing clever.

Everything above a disk (checkpoints, log, formats) is written against `Disk` and runs unchanged on the
local disk (`local.py`) and on the crashing one (`milepost.engines.simulated`). Rules that both keep:

1. Paths are relative, `/`-separated and below the disk's root; an empty part, `.`, `..` or a NUL is a
   `ValueError`. A symlink anywhere below the root is refused (`OSError` with `ELOOP`), never followed.
2. A verb does one thing and reports what the kernel reports: `OSError` with its errno, typed as Python types
   it (`FileExistsError`, `FileNotFoundError`, …). No verb retries, falls back or syncs by itself.
3. Nothing is durable until it is synced: bytes by `Sink.sync` or `sync_file`, names by `sync_dir` of the
   directory that holds them (both directories, for a rename between two).
4. A write may be short. Callers loop (`write_all`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Literal, Protocol, Self

from attrs import frozen
from typing_extensions import Buffer

Kind = Literal["file", "dir", "symlink", "other"]


@frozen(kw_only=True)
class Stat:
    """What `lstat` says of a name. `size` is in bytes, `mtime_s` in seconds since 1970, UTC."""

    kind: Kind
    size: int
    mtime_s: float
    inode: int


class Sink(Protocol):
    """A file that was just created, open for appending; closed by `close` or by leaving `with`."""

    def write(self, data: Buffer) -> int:
        """Append some of `data` and say how many bytes that was: at least one, perhaps fewer than given."""
        ...

    def sync(self) -> None:
        """Make every byte written so far durable (fdatasync; the size is durable too)."""
        ...

    def close(self) -> None:
        """Close; an error that close reports is raised. Closing twice is harmless."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Source(Protocol):
    """A file open for reading at offsets, from any thread."""

    @property
    def size(self) -> int: ...

    def read_into(self, offset: int, buffer: Buffer) -> int:
        """Fill `buffer` from `offset`: the bytes read, fewer than asked only at the end of the file."""
        ...

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Lock(Protocol):
    """An exclusive lock that ends with its process."""

    def release(self) -> None: ...


class Disk(Protocol):
    """The verbs. See the rules at the top of this module."""

    def create(self, path: str, *, bulk: bool = False) -> Sink:
        """Create a file that does not exist (O_CREAT|O_EXCL|O_NOFOLLOW|O_CLOEXEC), mode 0644.

        `bulk` says that large aligned blocks follow: a local disk opens O_DIRECT where the file system takes
        it and otherwise writes buffered with early write-back.
        """
        ...

    def open(self, path: str, *, bulk: bool = False) -> Source:
        """Open a regular file for reading; `bulk` allows reads around the page cache."""
        ...

    def read(self, path: str, *, limit: int) -> bytes:
        """A small file, whole. A file above `limit` bytes is an `OSError` with `EFBIG`, before it is read."""
        ...

    def stat(self, path: str) -> Stat | None:
        """`lstat`, or None where there is nothing of that name. The root itself is the empty path."""
        ...

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a directory, sorted."""
        ...

    def mkdir(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """rename(2): replaces a file: the pointer, or a small file beside a manifest by one of equal bytes."""
        ...

    def publish(self, source: str, target: str) -> None:
        """Rename without replacing (RENAME_NOREPLACE): `FileExistsError` where `target` exists.

        Where the kernel or file system has no such flag, a directory is renamed with rename(2), which
        refuses a non-empty target; a file is refused with `OSError` `EOPNOTSUPP`.
        """
        ...

    def link(self, source: str, target: str) -> None:
        """A second name for a regular file; `FileExistsError` where `target` exists. Follows no symlink."""
        ...

    def rewrite(self, path: str, *, offset: int, data: Buffer) -> None:
        """Write bytes that the file has at `offset` once more, all of them, so that a sync has to take them.

        After an fsync that failed the pages count as clean: the next one succeeds and writes nothing.
        """
        ...

    def unlink(self, path: str) -> None: ...
    def rmdir(self, path: str) -> None: ...
    def sync_file(self, path: str) -> None: ...
    def sync_dir(self, path: str) -> None: ...

    def free(self, path: str) -> int:
        """Bytes that an unprivileged writer may still use on the file system that holds `path`."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the exclusive lock on `path` (created if missing) or raise `BlockingIOError` at once."""
        ...

    def where(self, path: str) -> str:
        """The path as a person would open it; for messages only."""
        ...


def write_all(sink: Sink, data: Buffer) -> None:
    """Append all of `data`, however short the single writes are."""
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[sink.write(rest) :]
