"""What the machine can do at best, written by hand for one purpose each."""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_PIECE = 8 << 20
_BLOCK = 16 << 20
_ALIGNMENT = 4096


class MappedCopy:
    """The tensors, copied by two threads into memory that is mapped already: what an asynchronous save has to cost.

    `memory` holds the bytes afterwards, page-aligned and padded to whole blocks of the disk.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        sources = [_bytes_of(tensor) for tensor in tensors]
        self.size = sum(len(source) for source in sources)
        self.memory = _mapped(-(-self.size // _ALIGNMENT) * _ALIGNMENT)
        self._pieces: list[tuple[Bytes, Bytes]] = []
        at = 0
        for source in sources:
            for start in range(0, len(source), _PIECE):
                piece = source[start : start + _PIECE]
                self._pieces.append((self.memory[at : at + len(piece)], piece))
                at += len(piece)

    def run(self) -> None:
        todo = deque(self._pieces)
        helper = threading.Thread(target=_copy_all, args=(todo,))
        helper.start()
        _copy_all(todo)
        helper.join()


def _copy_all(todo: deque[tuple[Bytes, Bytes]]) -> None:
    while todo:
        try:
            target, source = todo.popleft()
        except IndexError:  # the other thread was faster
            return
        np.copyto(target, source)


def _bytes_of(tensor: torch.Tensor) -> Bytes:
    view: Bytes = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return view


def _mapped(size: int) -> Bytes:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    mapped = np.frombuffer(memory, np.uint8)
    mapped[::_ALIGNMENT] = 0
    return mapped


def write_and_sync(path: Path, data: Bytes) -> None:
    """`write` and `fdatasync`, through the page cache."""
    _write(path, data, os.O_WRONLY)


def write_direct_with_digest(path: Path, data: Bytes) -> str:
    """O_DIRECT in large blocks with blake3 in a thread beside it: the least that a durable, proven save costs."""
    hashed = blake3(max_threads=1)
    hashing = threading.Thread(target=hashed.update, args=(data,))
    hashing.start()
    _write(path, data, os.O_WRONLY | os.O_DIRECT)
    hashing.join()
    return hashed.hexdigest()


def _write(path: Path, data: Bytes, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
    view = data.data
    while view:
        view = view[os.write(descriptor, view[:_BLOCK]) :]
    os.fdatasync(descriptor)
    os.close(descriptor)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
