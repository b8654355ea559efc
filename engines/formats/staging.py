"""The asynchronous side: one copy of the state, laid out as the files themselves.

1. The arena is the file: each storage is copied to its final offset, and the arena is written as it is.
2. One arena, allocated and faulted in once and reused. It holds one snapshot at a time; a new shape releases
   the old arena before the next is allocated.
3. Copying is the caller's stall: 8 MiB pieces from one queue, taken by two threads. torch's own parallel
   `copy_` waits at a barrier for each tensor and collapses when a core is busy.
4. Who writes the files may begin before the copy is done: pieces are taken in the order of the files, and a block
   is given out once all of it is there.
5. A snapshot says whether it is proven: the arena is private memory of ours, so it shares nothing with live
   state unless a source lies in the arena, or in memory that somebody else can change while it is copied.
   What is proven are address ranges, never the identity of tensors or storages.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

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
_DEPTH = 64
"""How many blocks the digest may fall behind the disk: it competes with the loop, the disk does not."""


@frozen
class _Plan:
    """Where each tree's file lies in the arena: `(name, offset, layout)`, and the bytes of all of them."""

    files: tuple[tuple[str, int, Layout], ...]
    size: int

    @property
    def shape(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple((name, layout.sizes) for name, _, layout in self.files)


class _Filling:
    """The copy of a snapshot into the arena, and how far it has come.

    Pieces are `(offset in the arena, address of the source, bytes)` by rising offset; devices are copied last. The
    sources are kept alive until then: part of a snapshot may be made for it and belong to nobody else.
    """

    def __init__(self, arena: Arena, sources: Sequence[Live], offsets: Sequence[int]) -> None:
        self._arena = arena
        self._sources = sources
        self._pieces, self._devices = _pieces(sources, offsets)
        self._queue = iter(enumerate(self._pieces))  # its next() is atomic
        self._copied = bytearray(len(self._pieces))
        self._first_missing = 0
        self._error: BaseException | None = None
        self._unwanted = False
        self._changed = threading.Condition()
        self._ready = 0

    def run(self) -> None:
        """Copy everything, by two threads of which the caller is one, then from devices."""
        helper = threading.Thread(target=self._help, name="milepost-stage")
        helper.start()
        try:
            self._drain()
            helper.join()
            if self._error is not None:
                raise self._error
            assert self._first_missing == len(self._pieces), "a piece was taken and not copied"
            for live, offset in self._devices:
                target = torch.frombuffer(self._arena.view[offset : offset + live.size], dtype=torch.uint8)
                target.copy_(storage_bytes(live.storage, live.start, live.size))
        except BaseException as error:
            self.fail(error)
            raise
        self._sources = ()
        with self._changed:
            self._ready = self._arena.size
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """There will be no snapshot: whoever waits for it is told so."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def give_up(self) -> None:
        """Nobody wants the snapshot any more; who is still taking it need not know."""
        with self._changed:
            self._unwanted = True
            self._changed.notify_all()

    def wait(self, end: int) -> None:
        """Until every byte of the arena before `end` is the snapshot's."""
        if self._ready >= end:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._ready >= end or self._unwanted or self._error is not None)
            if self._unwanted or self._error is not None:
                why = "it was released before" if self._unwanted else repr(self._error)
                raise Refused(f"this snapshot was not taken: {why}") from self._error

    def _help(self) -> None:
        try:
            self._drain()
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self.fail(error)

    def _drain(self) -> None:
        for index, (offset, source, size) in self._queue:
            copy(self._arena.address + offset, source, size)
            self._done(index)

    def _done(self, index: int) -> None:
        with self._changed:
            self._copied[index] = True
            while self._first_missing < len(self._pieces) and self._copied[self._first_missing]:
                self._first_missing += 1
            if self._devices or self._first_missing == len(self._pieces):
                return  # `run` says when everything is there
            self._ready = self._pieces[self._first_missing][0]
            self._changed.notify_all()


@frozen(eq=False)
class StagedImage:
    """One file of a staged snapshot, in the arena. Pickling the skeleton is left to whoever writes it."""

    name: str
    _skeleton: Skeleton
    _layout: Layout
    _arena: Arena
    _at: int
    _filling: _Filling
    _release: threading.Event

    @property
    def room(self) -> int:
        return self._layout.room

    @property
    def depth(self) -> int:
        return _DEPTH  # and longer: every block stays until the release

    def blocks(self, *, crc32: bool = False) -> Iterator[memoryview]:
        """See `Image`. `Refused` once the snapshot was released: the arena may hold another by then."""
        if self._release.is_set():
            raise Refused(f"{self.name}: this snapshot was released; stage the state again")
        memory = self._arena.view[self._at : self._at + self._layout.end]
        done, crcs = 0, []
        for slot in self._layout.slots:
            crcs.append(self._crc32(memory[slot.start : slot.start + slot.size], slot.end) if crc32 else 0)
            memory[slot.start + slot.size : slot.end] = slot.descriptor(crcs[-1])
            while slot.end - done >= BLOCK:
                self._filling.wait(self._at + done + BLOCK)
                yield memory[done : done + BLOCK]
                done += BLOCK
        self._filling.wait(self._at + self._layout.end)
        rest = self._layout.end - done
        last = tail(self._layout, pickled=self._skeleton.pickled(), crcs=crcs)
        closing = Arena(rest + len(last)).view[: rest + len(last)]
        closing[:rest] = memory[done:]
        closing[rest:] = last
        for start in range(0, len(closing), BLOCK):
            yield closing[start : start + BLOCK]

    def _crc32(self, payload: memoryview, end: int) -> int:
        self._filling.wait(self._at + end)
        return zlib.crc32(payload)


@frozen(eq=False)
class Staged:
    """A snapshot in the arena: its files, and whether it is proven to share nothing with live state."""

    images: tuple[StagedImage, ...]
    proof: Proof
    _filling: _Filling
    _release: threading.Event

    def fill(self) -> None:
        """Copy the state, once. When this returns, nothing that happens to the state reaches the snapshot."""
        self._filling.run()

    def release(self) -> None:
        """Give the arena back to the stager, from any thread. Releasing twice is harmless."""
        self._filling.give_up()
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
        """A snapshot of the trees, taken: `begin`, then `Staged.fill`."""
        staged = self.begin(trees)
        staged.fill()
        return staged

    def begin(self, trees: Mapping[str, object]) -> Staged:
        """Lay out a snapshot of the trees and prove it. All but tensors is frozen here; `fill` copies those.

        `trees` maps physical names to state trees; `{"model": …}` becomes the image `model.pt`. Raises
        `Refused` for a leaf that cannot be saved, or while an earlier snapshot is not released.
        """
        self._join()
        self._check_free()
        taken = freeze_all(trees)
        arena = self._fit({name: skeleton for name, (skeleton, _) in taken.items()})
        sources = [live for _, lives in taken.values() for live in lives]
        offsets = [at + slot.start for _, at, layout in self._plan.files for slot in layout.slots]
        filling = _Filling(arena, sources, offsets)
        self._released = threading.Event()
        images = tuple(
            StagedImage(
                name=f"{name}.pt",
                skeleton=taken[name][0],
                layout=layout,
                arena=arena,
                at=at,
                filling=filling,
                release=self._released,
            )
            for name, at, layout in self._plan.files
        )
        return Staged(images=images, proof=prove(sources, arena=arena), filling=filling, release=self._released)

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


def _pieces(
    sources: Sequence[Live], offsets: Sequence[int]
) -> tuple[list[tuple[int, int, int]], list[tuple[Live, int]]]:
    """What is copied where: host memory in pieces, and what lies on devices."""
    pieces, devices = [], []
    for live, offset in zip(sources, offsets, strict=True):
        if live.address is None:
            devices.append((live, offset))
            continue
        for done in range(0, live.size, PIECE):
            pieces.append((offset + done, live.address + done, min(PIECE, live.size - done)))
    return pieces, devices
