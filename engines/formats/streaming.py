"""The synchronous side: the same bytes, through a few bounce buffers and without a copy of the state.

The skeleton is frozen when the stream is made; storages are read while it is written. So the caller waits, and
does not change the state, until the file is there. Memory: one ring of `DEPTH + 1` blocks for each image that is
being written.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from functools import cached_property

import torch
from attrs import frozen

from milepost.engines.formats.layout import Layout, lay_out, tail
from milepost.engines.formats.skeleton import Live, Skeleton, freeze_all
from milepost.engines.formats.tensors import storage_bytes
from milepost.engines.memory import BLOCK, Arena, copy
from milepost.engines.relay import DEPTH


@frozen(eq=False)
class StreamedImage:
    """One file of a snapshot, composed while it is written."""

    name: str
    _skeleton: Skeleton
    _lives: tuple[Live, ...]

    @cached_property
    def _layout(self) -> Layout:
        return lay_out(self._skeleton.sizes)

    @property
    def room(self) -> int:
        return self._layout.room

    @property
    def depth(self) -> int:
        return DEPTH

    def blocks(self, *, crc32: bool = False) -> Iterator[memoryview]:
        """See `Image`."""
        ring = Ring(self.room)
        yield from put_pt(ring, self._layout, self._skeleton, self._lives, crc32=crc32)
        yield from ring.rest()


class Ring:
    """Blocks in turn: one is being filled, the others are under way."""

    def __init__(self, size: int) -> None:
        self._arena = Arena(min((DEPTH + 1) * BLOCK, size))
        self._block = 0
        self._filled = 0
        self._taken = 0

    @property
    def at(self) -> int:
        """How many bytes were put until now."""
        return self._taken + self._filled

    def put(self, data: bytes) -> Iterator[memoryview]:
        """Append bytes, yielding each block that they fill."""
        rest = memoryview(data)
        while rest:
            at, size = self._room(len(rest))
            self._arena.view[at : at + size] = rest[:size]
            rest = rest[size:]
            if self._filled == BLOCK:
                yield self._take()

    def put_live(self, live: Live, *, crc32: bool) -> Generator[memoryview, None, int]:
        """Append live bytes, yielding each block that they fill; returns their crc32, or 0."""
        done = crc = 0
        while done < live.size:
            at, size = self._room(live.size - done)
            if live.address is not None:
                copy(self._arena.address + at, live.address + done, size)
            else:
                target = torch.frombuffer(self._arena.view[at : at + size], dtype=torch.uint8)
                target.copy_(storage_bytes(live.storage, live.start + done, size))
            if crc32:
                crc = zlib.crc32(self._arena.view[at : at + size], crc)
            done += size
            if self._filled == BLOCK:
                yield self._take()
        return crc

    def rest(self) -> Iterator[memoryview]:
        """The last block, which is not full; none where the bytes ended with a block."""
        if self._filled:
            yield self._take()

    def _take(self) -> memoryview:
        """The block that was being filled; the next one is begun."""
        start = self._block * BLOCK
        block = self._arena.view[start : start + self._filled]
        self._block = (self._block + 1) % (DEPTH + 1)
        self._taken += self._filled
        self._filled = 0
        return block

    def _room(self, wanted: int) -> tuple[int, int]:
        """Claim up to `wanted` bytes of the present block: their place in the arena and how many there are."""
        size = min(wanted, BLOCK - self._filled)
        at = self._block * BLOCK + self._filled
        self._filled += size
        return at, size


def put_pt(
    ring: Ring, layout: Layout, skeleton: Skeleton, lives: Sequence[Live], *, crc32: bool
) -> Iterator[memoryview]:
    """Append one whole `.pt` file, yielding each block that it fills."""
    crcs = []
    for slot, live in zip(layout.slots, lives, strict=True):
        yield from ring.put(slot.header)
        crcs.append((yield from ring.put_live(live, crc32=crc32)))
        yield from ring.put(slot.descriptor(crcs[-1]))
    yield from ring.put(tail(layout, pickled=skeleton.pickled(), crcs=crcs))


def stream(trees: Mapping[str, object]) -> tuple[StreamedImage, ...]:
    """Images of the trees as they are now; `{"model": …}` becomes `model.pt`. Copies no storage.

    Raises `Refused` for a leaf that cannot be saved. The state must not change until the images are written.
    """
    return tuple(
        StreamedImage(name=f"{name}.pt", skeleton=skeleton, lives=lives)
        for name, (skeleton, lives) in freeze_all(trees).items()
    )
