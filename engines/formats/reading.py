"""A `.pt` file into live tensors.

1. The directory and the pickle are read first; both are checked before anything is allocated or overwritten.
2. Where a storage belongs to one place in the live tree (same dtype, shape and strides, all of its bytes, no overlap
   with another target), its bytes are read straight into the live memory. A sharded tensor takes this rank's chunk
   and no more. Everything else gets fresh memory, never more in all than the file holds.
3. Two threads read, in file order, a few jobs ahead of the caller's thread, which hashes behind them, over the memory
   that was filled, and hands on what was read into temporary memory. The file is read once; without a digest, only
   the bytes that somebody wants.
4. A digest that differs, or a file that ends early, is `Corrupt`; by then live tensors may hold bytes of the damaged
   file, so a caller that catches it restores from somewhere else before going on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from attrs import define, field, frozen

from milepost.engines.digests import Digester
from milepost.engines.disks import Source
from milepost.engines.formats.archive import Record, corrupt, find_records, read_exactly
from milepost.engines.formats.chunks import Target
from milepost.engines.formats.placing import Placing
from milepost.engines.formats.unpickling import TensorRef, unpickle
from milepost.engines.memory import BLOCK, Arena
from milepost.transitions.errors import Corrupt

_THREADS = 2
_SMALL_THREADS = 8
_AHEAD = 4
"""Jobs under way before the oldest is waited for."""
_JOB = 32 << 20
_TEMPORARY_COSTS = 4
"""A byte of temporary memory counts as this many: what is under way holds tens of megabytes, not hundreds."""
_SMALL = 64 << 10


def read_pt(source: Source, *, into: object | None = None, digest: str | None = None, where: str) -> object:
    """The tree in a `.pt` file, with every tensor of `into` that could be filled in place.

    `into` is a live tree of the same form; a tensor at the same path of the file's tree is filled and
    returned where the file's storage fits it exactly, otherwise the returned tree holds a fresh CPU tensor
    there. Of a DTensor in `into` the part that this rank holds is filled, read by its offset in the file.
    `digest` is that of the whole file (`blake3:…` or `sha256:…`). `where` names the file in messages.

    Raises `Corrupt` for anything but a whole `.pt` file of dense tensors and plain containers with that digest,
    `NotResumable` for a DTensor of another dtype or shape than the file's tensor, and `OSError` where the disk fails.
    """
    digester = digester_of(digest, where=where)
    records, tree = open_pt(source, where=where)
    try:
        placing = Placing(tree, into=into, where=where)
        fill(source, _targets(placing, records, where), digester, where=where)
        result = placing.build()
    except RecursionError:
        corrupt(where, "a tree of moderate depth", "one nested too deeply")
    check_digest(digester, digest, where=where)
    return result


def forms_of_pt(source: Source, *, where: str) -> object:
    """The tree of a `.pt` file with tensors of torch's `meta` device for its own. Reads no storage.

    Raises `Corrupt` and `OSError` as `read_pt` does.
    """
    return _formed(open_pt(source, where=where)[1])


def _formed(node: object) -> object:
    if type(node) is TensorRef:
        return torch.empty(node.size, dtype=node.dtype, device="meta")
    if isinstance(node, dict):
        return {key: _formed(child) for key, child in node.items()}
    return [_formed(child) for child in node] if isinstance(node, list | tuple) else node


def open_pt(source: Source, *, where: str) -> tuple[dict[str, Record], object]:
    """The records of a `.pt` file and its tree, with a `TensorRef` in each tensor's place."""
    records = find_records(source, where=where)
    pickled = record_of(records, "data.pkl", where=where)
    order = records.get("byteorder")
    if order and read_exactly(source, order.start, min(order.size, 8), where=where) != b"little":
        corrupt(where, "a file written on a little-endian machine", "another byte order")
    try:
        return records, unpickle(read_exactly(source, pickled.start, pickled.size, where=where), where=where)
    except RecursionError:
        corrupt(where, "a tree of moderate depth", "one nested too deeply")


def digester_of(digest: str | None, *, where: str) -> Digester | None:
    """What computes a digest to compare with this one; None where there is none. `Corrupt` for one not known."""
    return None if digest is None else _digester(digest, where)


def check_digest(digester: Digester | None, digest: str | None, *, where: str) -> None:
    """`Corrupt` where what was hashed is not what was expected."""
    if digester is not None and digester.digest != digest:
        corrupt(where, f"digest {digest}", digester.digest)


def _digester(digest: str, where: str) -> Digester:
    try:
        return Digester(digest.partition(":")[0])
    except ValueError as error:
        raise Corrupt(f"{where}: {error}; a newer milepost may know it") from error


def record_of(records: dict[str, Record], name: str, *, where: str) -> Record:
    """The record of that name; `Corrupt` where the file has none."""
    if name not in records:
        corrupt(where, f"a record {name}", f"{len(records)} others")
    return records[name]


def _targets(placing: Placing, records: dict[str, Record], where: str) -> list[Target]:
    """What to fill, in file order."""
    references = placing.storages()
    if len({reference.key for reference in references}) < len(references):
        corrupt(where, "each storage under one dtype and size", "one under two")
    starts = {}
    for reference in references:
        record = record_of(records, f"data/{reference.key}", where=where)
        if record.size != reference.size:
            corrupt(where, f"{reference.size} bytes in data/{reference.key}", f"{record.size}")
        starts[reference] = record.start
    return sorted(placing.targets(starts), key=lambda target: target.start)


@frozen(eq=False)
class _Piece:
    """Memory to fill from byte `at`; the first `known` bytes were hashed before. A target's last piece has it."""

    at: int
    memory: memoryview
    known: int
    last_of: Target | None


def fill(source: Source, targets: Iterable[Target], digester: Digester | None, *, where: str) -> None:
    """Read every target's bytes; with a digester read and hash the whole file. Targets by rising start."""
    under_way: deque[tuple[list[_Piece], Future[None]]] = deque()
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="milepost-read")
    try:
        for job in _jobs(_pieces(targets, upto=None if digester is None else source.size)):
            under_way.append((job, pool.submit(_read, source, job, where)))
            if len(under_way) > _AHEAD:
                _finish(*under_way.popleft(), digester)
        while under_way:
            _finish(*under_way.popleft(), digester)
    finally:
        pool.shutdown(cancel_futures=True)


def beside(reads: Iterable[Callable[[], object]]) -> None:
    """Make many small reads, several at a time: each of them waits for the disk and for little else."""
    pool = ThreadPoolExecutor(_SMALL_THREADS, thread_name_prefix="milepost-look")
    try:
        for read in [pool.submit(read) for read in reads]:
            read.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _finish(job: list[_Piece], reading: Future[None], digester: Digester | None) -> None:
    reading.result()
    for piece in job:
        if digester is not None:
            digester.update(piece.memory[piece.known :])
        if piece.last_of is not None:
            piece.last_of.finish()


def _jobs(pieces: Iterable[_Piece]) -> Iterator[list[_Piece]]:
    """The pieces gathered into jobs of up to 32 MiB, less where they are temporary memory."""
    job: list[_Piece] = []
    held = 0
    for piece in pieces:
        if job and held + len(piece.memory) > _JOB:
            yield job
            job, held = [], 0
        job.append(piece)
        temporary = piece.last_of is not None and piece.last_of.temporary
        held += len(piece.memory) * (_TEMPORARY_COSTS if temporary else 1)
    if job:
        yield job


def _pieces(targets: Iterable[Target], *, upto: int | None) -> Iterator[_Piece]:
    """The targets in pieces; with `upto`, every byte before it, also those between targets."""
    done = 0
    spare: list[memoryview] = []
    for target in targets:
        if upto is not None:
            yield from _between(done, target.start, spare)
        memory = target.memory()
        for cut in range(0, len(memory), _JOB):
            piece, at = memory[cut : cut + _JOB], target.start + cut
            last_of = target if cut + len(piece) == len(memory) else None
            yield _Piece(at, piece, min(max(done - at, 0), len(piece)), last_of)
        done = max(done, target.start + target.size)
    if upto is not None:
        yield from _between(done, upto, spare)


def _between(start: int, end: int, spare: list[memoryview]) -> Iterator[_Piece]:
    """What only the digest wants: headers, padding, other ranks' chunks. Large blocks are aligned in the file."""
    while start < end:
        stop = min(end, (start // BLOCK + 1) * BLOCK)
        passed = _Passed(start, stop - start, spare)
        yield _Piece(start, passed.memory(), 0, passed)
        start = stop


@define(eq=False)
class _Passed:
    """Bytes that are only hashed. Large ones share a few blocks of memory that was touched before."""

    start: int
    size: int
    _spare: list[memoryview]
    _block: memoryview | None = field(default=None, init=False)
    temporary = True

    def memory(self) -> memoryview:
        if self.size <= _SMALL:
            return memoryview(bytearray(self.size))
        self._block = self._spare.pop() if self._spare else Arena(BLOCK).view
        return self._block[: self.size]

    def finish(self) -> None:
        if self._block is not None:
            self._spare.append(self._block)


def _read(source: Source, job: list[_Piece], where: str) -> None:
    for piece in job:
        found = source.read_into(piece.at, piece.memory)
        if found != len(piece.memory):
            expected = f"{len(piece.memory)} bytes at offset {piece.at}"
            corrupt(where, expected, f"{found}: the file was cut while it was read")
