"""The asynchronous side: one copy of the state, laid out as the files themselves.

1. The arena is the file: each storage is copied to its final offset, and the arena is written as it is.
2. One arena, allocated and faulted in once and reused. It holds one snapshot at a time; a new shape releases
   the old arena before the next is allocated.
3. Copying is the caller's stall: 8 MiB pieces from one queue, taken by two threads. torch's own parallel
   `copy_` waits at a barrier for each tensor and collapses when a core is busy.
4. A snapshot says whether it is proven: the arena is private memory of ours, so it shares nothing with live
   state unless a source lies in the arena, or in memory that somebody else can change while it is copied.
   What is proven are address ranges, never the identity of tensors or storages.
"""

from __future__ import annotations

import threading
import zlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

import torch
from attrs import frozen

from milepost.engines.formats.layout import Layout, lay_out, tail
from milepost.engines.formats.proof import Proof, prove
from milepost.engines.formats.skeleton import Live, Skeleton, freeze_all
from milepost.engines.formats.tensors import storage_bytes
from milepost.engines.memory import BLOCK, PAGE, Arena, copy, round_up
from milepost.engines.niceness import be_nicer
from milepost.transitions.errors import Refused

PIECE = 8 << 20


@frozen
class _Plan:
    """Where each tree's file lies in the arena: `(name, offset, layout)`, and the bytes of all of them."""

    files: tuple[tuple[str, int, Layout], ...]
    size: int

    @property
    def shape(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple((name, layout.sizes) for name, _, layout in self.files)


@frozen(eq=False)
class StagedImage:
    """One file of a staged snapshot, in the arena. Pickling the skeleton is left to whoever writes it."""

    name: str
    _skeleton: Skeleton
    _layout: Layout
    _memory: memoryview
    _release: threading.Event

    @cached_property
    def _pickled(self) -> bytes:
        return self._skeleton.pickled()

    @cached_property
    def size(self) -> int:
        return self._layout.end + len(self._tail([0] * len(self._layout.slots)))

    def blocks(self, *, crc32: bool = False) -> Iterator[memoryview]:
        """See `Image`. `Refused` once the snapshot was released: the arena may hold another by then."""
        if self._release.is_set():
            raise Refused(f"{self.name}: this snapshot was released; stage the state again")
        done, crcs = 0, []
        for slot in self._layout.slots:
            payload = self._memory[slot.start : slot.start + slot.size]
            crcs.append(zlib.crc32(payload) if crc32 else 0)
            self._memory[slot.start + slot.size : slot.end] = slot.descriptor(crcs[-1])
            while slot.end - done >= BLOCK:
                yield self._memory[done : done + BLOCK]
                done += BLOCK
        rest = self._layout.end - done
        last = self._tail(crcs)
        closing = Arena(rest + len(last)).view[: rest + len(last)]
        closing[:rest] = self._memory[done : self._layout.end]
        closing[rest:] = last
        for start in range(0, len(closing), BLOCK):
            yield closing[start : start + BLOCK]

    def _tail(self, crcs: Sequence[int]) -> bytes:
        return tail(self._layout, pickled=self._pickled, crcs=crcs)


@frozen(eq=False)
class Staged:
    """A snapshot in the arena: its files, and whether it is proven to share nothing with live state."""

    images: tuple[StagedImage, ...]
    proof: Proof
    _release: threading.Event

    def release(self) -> None:
        """Give the arena back to the stager, from any thread. Releasing twice is harmless."""
        self._release.set()


class Stager:
    """Owns the arena. One caller at a time; `Staged.release` may come from another thread."""

    def __init__(self) -> None:
        self._arena: Arena | None = None
        self._plan = _Plan((), 0)
        self._released = threading.Event()
        self._released.set()
        self._preparing: threading.Thread | None = None

    def prepare(self, trees: Mapping[str, object]) -> None:
        """Allocate and fault in the arena for trees of this shape, so that the first `stage` is a mere copy.

        Done in a thread of its own, which `stage` waits for. Raises `Refused` as `stage` does.
        """
        self._join()
        self._check_free()
        skeletons = {name: skeleton for name, (skeleton, _) in freeze_all(trees).items()}
        self._preparing = threading.Thread(target=self._fit_aside, args=(skeletons,), name="milepost-arena")
        self._preparing.start()

    def stage(self, trees: Mapping[str, object]) -> Staged:
        """Copy the trees into the arena; nothing that happens to them afterwards reaches the snapshot.

        `trees` maps physical names to state trees; `{"model": …}` becomes the image `model.pt`. Raises
        `Refused` for a leaf that cannot be saved, or while an earlier snapshot is not released.
        """
        self._join()
        self._check_free()
        taken = freeze_all(trees)
        arena = self._fit({name: skeleton for name, (skeleton, _) in taken.items()})
        sources = [live for _, lives in taken.values() for live in lives]
        offsets = [at + slot.start for _, at, layout in self._plan.files for slot in layout.slots]
        _copy_all(sources, offsets, arena)
        self._released = threading.Event()
        images = tuple(
            StagedImage(
                name=f"{name}.pt",
                skeleton=taken[name][0],
                layout=layout,
                memory=arena.view[at : at + layout.end],
                release=self._released,
            )
            for name, at, layout in self._plan.files
        )
        return Staged(images=images, proof=prove(sources, arena=arena), release=self._released)

    def _join(self) -> None:
        if self._preparing is not None:
            self._preparing.join()
            self._preparing = None

    def _fit_aside(self, skeletons: Mapping[str, Skeleton]) -> None:
        be_nicer()
        with suppress(MemoryError, OSError):  # `stage` tries again, and raises it to somebody who listens
            self._fit(skeletons)

    def _check_free(self) -> None:
        if not self._released.is_set():
            raise Refused("the arena still holds the snapshot staged before; release it first")

    def _fit(self, skeletons: Mapping[str, Skeleton]) -> Arena:
        """The arena for these skeletons: the present one while names and sizes are the same."""
        shape = tuple((name, skeleton.sizes) for name, skeleton in skeletons.items())
        if self._arena is None or shape != self._plan.shape:
            self._arena = None  # before its successor is there: two would be two copies of the state
            self._plan = _planned(skeletons)
            self._arena = Arena(self._plan.size)
            for _, at, layout in self._plan.files:
                for slot in layout.slots:
                    self._arena.view[at + slot.at : at + slot.start] = slot.header
        return self._arena


def _planned(skeletons: Mapping[str, Skeleton]) -> _Plan:
    files, at = [], 0
    for name, skeleton in skeletons.items():
        layout = lay_out(skeleton.sizes)
        files.append((name, at, layout))
        at = round_up(at + layout.end, PAGE)
    return _Plan(tuple(files), at)


def _copy_all(sources: Sequence[Live], offsets: Sequence[int], arena: Arena) -> None:
    """Copy each source to its offset: host memory by two threads of which the caller is one, then devices."""
    pieces: deque[tuple[int, int, int]] = deque()
    devices = []
    for live, offset in zip(sources, offsets, strict=True):
        if live.address is None:
            devices.append((live, offset))
            continue
        for done in range(0, live.size, PIECE):
            size = min(PIECE, live.size - done)
            pieces.append((arena.address + offset + done, live.address + done, size))
    helper = threading.Thread(target=_drain, args=(pieces,), name="milepost-stage")
    helper.start()
    _drain(pieces)
    helper.join()
    for live, offset in devices:
        target = torch.frombuffer(arena.view[offset : offset + live.size], dtype=torch.uint8)
        target.copy_(storage_bytes(live.storage, live.start, live.size))


def _drain(pieces: deque[tuple[int, int, int]]) -> None:
    while True:
        try:
            target, source, size = pieces.popleft()
        except IndexError:
            return
        copy(target, source, size)
