"""What a writer needs to know of a file that is not there yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Image(Protocol):
    """A whole file, ready to be written in one pass from front to back."""

    @property
    def name(self) -> str:
        """The file's name, such as `model.pt`."""
        ...

    @property
    def room(self) -> int:
        """Bytes to have free before it is written: those of its tensors, and an estimate of what names them."""
        ...

    @property
    def depth(self) -> int:
        """A block stays as it is until this many more were asked for."""
        ...

    def blocks(self, *, crc32: bool = False) -> Iterator[memoryview]:
        """The file in order: blocks of `BLOCK` bytes, page-aligned in memory and in the file; the last may be odd.

        `crc32` computes the zip's checksums, which torch never looks at; without it they are 0 for storages.
        """
        ...
