"""Aligned memory that stays, and raw copies into it.

1. An `Arena` is private and anonymous: no file and no other process can reach it, and only what this package
   copies there is in it. It is page-aligned, on huge pages where the kernel has them, and faulted in when
   made: first touch costs two to six times the copy.
2. Copies go by address. Large ones release the GIL; small ones keep it, because handing the GIL over costs
   more than copying a few kilobytes.
3. Whoever passes an address keeps its memory alive until the call returns.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

PAGE = mmap.PAGESIZE
BLOCK = 4 << 20
"""Bytes in one block of an image. Larger blocks write a little faster and hold up a journal's sync longer."""

_SMALL = 64 << 10


class Arena:
    """Zeroed, page-aligned memory of at least `size` bytes, rounded up to whole pages."""

    def __init__(self, size: int) -> None:
        self.size = round_up(max(size, 1), PAGE)
        memory = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        touched = np.frombuffer(memory, dtype=np.uint8)
        touched[::PAGE] = 0
        self.address = int(touched.ctypes.data)
        self.view = memoryview(memory)


def round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _memmove(library: ctypes.CDLL) -> ctypes._NamedFuncPointer:
    function = library.memmove
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    function.restype = None
    return function


_copy_released = _memmove(ctypes.CDLL(None))
_copy_held = _memmove(ctypes.PyDLL(None))


def copy(target: int, source: int, size: int) -> None:
    """Copy `size` bytes between two addresses of this process."""
    (_copy_held if size <= _SMALL else _copy_released)(target, source, size)
