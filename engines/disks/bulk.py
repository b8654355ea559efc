"""Large files around the page cache: O_DIRECT where the file system takes it, early write-back where not.

1. Direct I/O needs offset, length and memory aligned to the device's block (open(2), O_DIRECT). `BLOCK` is a
   multiple of every block size in common use; a device that wants more answers EINVAL, and the file goes on
   buffered.
2. A sink never seeks back: the first block that is not a whole number of `BLOCK`s turns O_DIRECT off for
   good. That is the tail of a file, so all but the tail goes direct.
3. Memory that is not aligned goes direct through a small aligned copy: one short write for each copy.
4. Direct reads are for bytes that are not cached: what the page cache holds is copied from there, and asking
   whether it does must not fill it (a read with RWF_NOWAIT would start a read-ahead).
5. O_DIRECT promises nothing about durability: the device's cache and the file's metadata still need the sync.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os

import numpy as np
from typing_extensions import Buffer

from milepost.engines.disks.descriptor import Descriptor

BLOCK = 4096
"""Bytes to which direct offsets, lengths and addresses are aligned."""

_COPY = 1 << 20
"""Bytes of the aligned copy that stands in for memory that is not aligned."""

_WRITE_BACK = 32 << 20
"""Bytes that a buffered sink lets pile up before it asks the kernel to start writing them."""

_SYNC_FILE_RANGE_WRITE = 2

_libc = ctypes.CDLL(None, use_errno=True)


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def _set_direct(fd: int, on: bool) -> bool:
    """Turn O_DIRECT of an open file on or off; False where its file system has no direct I/O."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


class BulkSink(Descriptor):
    """Appends to `fd`, which it owns; direct while blocks are aligned, then buffered with early write-back.

    O_DIRECT is turned on after the file was created: open(2) with both flags may create the file and still
    fail with EINVAL, and then nobody could tell whose the file is.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._at = 0
        self._written_back = 0
        self._copy: mmap.mmap | None = None
        try:
            self._direct = _set_direct(fd, on=True)
        except OSError:
            self.close()
            raise

    def write(self, data: Buffer) -> int:
        view = memoryview(data).cast("B")
        if self._direct and view:
            whole = len(view) // BLOCK * BLOCK
            written = self._write_direct(view[:whole]) if whole and self._at % BLOCK == 0 else 0
            if written:
                return written
            _set_direct(self.fd, on=False)
            self._direct = False
            self._written_back = self._at
        written = os.write(self.fd, view)
        self._at += written
        self._start_write_back()
        return written

    def _write_direct(self, view: memoryview) -> int:
        """Bytes written, at least one; 0 where the device wants a coarser alignment than `BLOCK`."""
        if _address(view) % BLOCK:
            self._copy = self._copy or mmap.mmap(-1, _COPY)
            copy = memoryview(self._copy)[: len(view)]
            copy[:] = view[:_COPY]
            view = copy
        try:
            written = os.write(self.fd, view)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return 0
        self._at += written
        return written

    def _start_write_back(self) -> None:
        if self._at - self._written_back < _WRITE_BACK:
            return
        # Advice only: what fails here is still dirty or recorded against the file, and `sync` reports it.
        _libc.sync_file_range(
            self.fd,
            ctypes.c_int64(self._written_back),
            ctypes.c_int64(self._at - self._written_back),
            ctypes.c_uint(_SYNC_FILE_RANGE_WRITE),
        )
        self._written_back = self._at

    def sync(self) -> None:
        os.fsync(self.fd)


class BulkSource(Descriptor):
    """Reads `fd`, which it owns: direct where that is aligned and most of it is not in the page cache."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._direct = -1
        self._cache: _Cache | None = None
        try:
            self.size = os.fstat(fd).st_size
            if self.size:
                self._cache = _Cache(fd, self.size)
            self._direct = self._open_direct()
        except OSError:
            self.close()
            raise

    def _open_direct(self) -> int:
        """A second descriptor of the same file, or -1; by /proc, for the name may mean another by now."""
        try:
            return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT):
                raise
            return -1

    def read_into(self, offset: int, buffer: Buffer) -> int:
        rest = memoryview(buffer).cast("B")
        asked = len(rest)
        while rest and (got := self._read(offset + asked - len(rest), rest)):
            rest = rest[got:]
        return asked - len(rest)

    def _read(self, at: int, rest: memoryview) -> int:
        whole = min(len(rest), max(self.size - at, 0)) // BLOCK * BLOCK
        aligned = self._direct >= 0 and whole > 0 and at % BLOCK == 0 and _address(rest) % BLOCK == 0
        if aligned and self._cache is not None and self._cache.share(at, whole) < 0.5:
            try:
                return os.preadv(self._direct, [rest[:whole]], at)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        return os.preadv(self.fd, [rest], at)

    def close(self) -> None:
        self._cache = None
        direct, self._direct = self._direct, -1
        if direct >= 0:
            os.close(direct)
        super().close()


class _Cache:
    """Tells how much of a file is in the page cache, by mincore(2): the file is mapped and never touched.

    Of a file that is neither owned nor writable the kernel says that all is cached; then reads go buffered.
    """

    def __init__(self, fd: int, size: int) -> None:
        self._pages = np.frombuffer(mmap.mmap(fd, size, prot=mmap.PROT_READ), np.uint8)

    def share(self, offset: int, length: int) -> float:
        """The part of `length` bytes from `offset` (whole blocks) that is cached, from 0 to 1."""
        resident = np.empty(-(-length // mmap.PAGESIZE), np.uint8)
        start = self._pages.ctypes.data + offset // mmap.PAGESIZE * mmap.PAGESIZE
        failed = _libc.mincore(
            ctypes.c_void_p(start), ctypes.c_size_t(length), resident.ctypes.data_as(ctypes.c_void_p)
        )
        return 1.0 if failed else float((resident & 1).mean())
