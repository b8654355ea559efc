"""A bucket as a disk that is only read: checkpoints and journals in it are looked at by the same code.

1. A path is a whole key, and a directory is what keys have in common up to a slash: it is there as long as something
   lies in it. Nothing is a symlink.
2. Every verb that changes something is `OSError` EROFS. What is written to a bucket is written by its own verbs.
3. What is opened is one version of an object: bytes of two versions are never mixed.
4. A listing may be late. It is asked for names only; whether an object is there is asked of the object.
5. What a store raises (`Unavailable`, `Misconfigured`, `Corrupt`) passes through.
"""

from __future__ import annotations

import errno
from types import TracebackType
from typing import NoReturn, Self

from attrs import frozen
from typing_extensions import Buffer

from milepost.engines.buckets import Bucket, Version
from milepost.engines.disks import Lock, Sink, Stat

_LAST = "\U0010fffd"
"""Behind every other character: what is listed after a directory with this in it is behind the whole directory."""


@frozen(kw_only=True)
class _Object:
    """A `Source` over one version of an object."""

    bucket: Bucket
    key: str
    size: int
    version: Version

    def read_into(self, offset: int, buffer: Buffer) -> int:
        return self.bucket.read_into(self.key, offset, buffer, version=self.version) if offset < self.size else 0

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held."""


@frozen
class BucketDisk:
    """A read-only `Disk` over a bucket that has no prefix of its own. Used from any thread."""

    _bucket: Bucket

    def open(self, path: str, *, bulk: bool = False) -> _Object:
        stat = self._bucket.stat(path)
        if stat is None:
            raise self._missing(path)
        return _Object(bucket=self._bucket, key=path, size=stat.size, version=stat.version)

    def read(self, path: str, *, limit: int) -> bytes:
        with self.open(path) as source:
            if source.size > limit:
                raise OSError(errno.EFBIG, f"{source.size} bytes, at most {limit} are read", self.where(path))
        data, _ = self._bucket.read(path, limit=limit)
        return data

    def stat(self, path: str) -> Stat | None:
        """Size and kind; the time is 0, as stores have no time that means the writer's, and so is the inode."""
        if path:
            found = self._bucket.stat(path)
            if found is not None:
                return Stat(kind="file", size=found.size, mtime_s=0.0, inode=0)
            if not self._bucket.keys(f"{path}/", limit=1):
                return None
        return Stat(kind="dir", size=0, mtime_s=0.0, inode=0)

    def names(self, path: str, *, since: str = "") -> tuple[str, ...]:
        """The names in a directory, from `since` on; a request for each directory in it and each page of files."""
        start = f"{path}/" if path else ""
        found: set[str] = set()
        after = f"{start}{since}" if since else ""
        while page := self._bucket.keys(start, after=after):
            for key in page:
                name, _, below = key.removeprefix(start).partition("/")
                found.add(name)
            after = f"{start}{name}/{_LAST}" if below else page[-1]  # the rest of that directory is skipped
        if not found and path:
            raise self._missing(path)
        return tuple(sorted(found))

    def where(self, path: str) -> str:
        return self._bucket.where(path)

    # --- what a reader does not do ------------------------------------------------------------------

    def create(self, path: str, *, bulk: bool = False) -> Sink:
        self._refuse(path)

    def mkdir(self, path: str) -> None:
        self._refuse(path)

    def rename(self, source: str, target: str) -> None:
        self._refuse(target)

    def publish(self, source: str, target: str) -> None:
        self._refuse(target)

    def link(self, source: str, target: str) -> None:
        self._refuse(target)

    def rewrite(self, path: str, *, offset: int, data: Buffer) -> None:
        self._refuse(path)

    def unlink(self, path: str) -> None:
        self._refuse(path)

    def rmdir(self, path: str) -> None:
        self._refuse(path)

    def sync_file(self, path: str) -> None:
        self._refuse(path)

    def sync_dir(self, path: str) -> None:
        self._refuse(path)

    def free(self, path: str) -> int:
        self._refuse(path)

    def lock(self, path: str) -> Lock:
        self._refuse(path)

    def _missing(self, path: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, "nothing is there", self.where(path))

    def _refuse(self, path: str) -> NoReturn:
        raise OSError(errno.EROFS, "a bucket is only read this way", self.where(path))
