"""A `.pt` file into live tensors.

1. The directory and the pickle are read first; both are checked before anything is allocated or overwritten.
2. Where a storage belongs to one place in the live tree (same dtype, shape and strides, all of its bytes, no overlap
   with another target), its bytes are read straight into the live memory. Everything else gets fresh memory, never
   more in all than the file holds.
3. Two threads read, in file order. With a digest, the caller's thread hashes behind them, over the memory that was
   filled: the file is read once.
4. A digest that differs, or a file that ends early, is `Corrupt`; by then live tensors may hold bytes of the damaged
   file, so a caller that catches it restores from somewhere else before going on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from milepost.engines.digests import Digester
from milepost.engines.disks import Source
from milepost.engines.formats.archive import Record, corrupt, find_records, read_exactly
from milepost.engines.formats.placing import Placing
from milepost.engines.formats.unpickling import unpickle
from milepost.engines.memory import BLOCK
from milepost.transitions.errors import Corrupt

_THREADS = 2
_JOB = 32 << 20

_Piece = tuple[int, memoryview]
"""Where in the file, and the memory to fill from there."""


def read_pt(source: Source, *, into: object | None = None, digest: str | None = None, where: str) -> object:
    """The tree in a `.pt` file, with every tensor of `into` that could be filled in place.

    `into` is a live tree of the same form; a tensor at the same path of the file's tree is filled and
    returned where the file's storage fits it exactly, otherwise the returned tree holds a fresh CPU tensor
    there. `digest` is that of the whole file (`blake3:…` or `sha256:…`). `where` names the file in messages.

    Raises `Corrupt` for anything but a whole `.pt` file of dense tensors and plain containers with that digest, and
    `OSError` where the disk fails.
    """
    digester = _digester(digest, where)
    records = find_records(source, where=where)
    pickled = _record(records, "data.pkl", where)
    order = records.get("byteorder")
    if order and read_exactly(source, order.start, min(order.size, 8), where=where) != b"little":
        corrupt(where, "a file written on a little-endian machine", "another byte order")
    try:
        tree = unpickle(read_exactly(source, pickled.start, pickled.size, where=where), where=where)
        placing = Placing(tree, into=into, where=where)
        _fill(source, _targets(placing, records, where), digester, where=where)
        result = placing.build()
    except RecursionError:
        corrupt(where, "a tree of moderate depth", "one nested too deeply")
    if digester is not None and digester.digest != digest:
        corrupt(where, f"digest {digest}", digester.digest)
    return result


def _digester(digest: str | None, where: str) -> Digester | None:
    if digest is None:
        return None
    try:
        return Digester(digest.partition(":")[0])
    except ValueError as error:
        raise Corrupt(f"{where}: {error}; a newer milepost may know it") from error


def _record(records: dict[str, Record], name: str, where: str) -> Record:
    if name not in records:
        corrupt(where, f"a record {name}", f"{len(records)} others")
    return records[name]


def _targets(placing: Placing, records: dict[str, Record], where: str) -> list[tuple[int, torch.Tensor]]:
    """For each storage its place in the file and the bytes that it fills, in file order."""
    references = placing.storages()
    if len({reference.key for reference in references}) < len(references):
        corrupt(where, "each storage under one dtype and size", "one under two")
    targets = []
    for reference in references:
        record = _record(records, f"data/{reference.key}", where)
        if record.size != reference.size:
            corrupt(where, f"{reference.size} bytes in data/{reference.key}", f"{record.size}")
        targets.append((record.start, placing.bytes_of(reference)))
    return sorted(targets, key=lambda target: target[0])


def _fill(
    source: Source, targets: Sequence[tuple[int, torch.Tensor]], digester: Digester | None, *, where: str
) -> None:
    """Read every target's bytes, and hash the whole file behind the reading."""
    jobs = list(_jobs(targets))
    done = 0
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="milepost-read")
    try:
        for job, reading in [(job, pool.submit(_read, source, job, where)) for job in jobs]:
            reading.result()
            if digester is not None:
                for at, memory in job:
                    _hash_between(source, digester, done, at, where)
                    digester.update(memory)
                    done = at + len(memory)
        if digester is not None:
            _hash_between(source, digester, done, source.size, where)
    finally:
        pool.shutdown(cancel_futures=True)


def _jobs(targets: Sequence[tuple[int, torch.Tensor]]) -> Iterator[list[_Piece]]:
    """The targets in file order, cut and gathered into jobs of up to 32 MiB."""
    job: list[_Piece] = []
    held = 0
    for start, target in targets:
        memory = memoryview(target.numpy())  # type: ignore[arg-type]
        for done in range(0, len(memory), _JOB):
            piece = memory[done : done + _JOB]
            if held + len(piece) > _JOB:
                yield job
                job, held = [], 0
            job.append((start + done, piece))
            held += len(piece)
    if job:
        yield job


def _read(source: Source, job: list[_Piece], where: str) -> None:
    for at, memory in job:
        found = source.read_into(at, memory)
        if found != len(memory):
            corrupt(where, f"{len(memory)} bytes at offset {at}", f"{found}: the file was cut while it was read")


def _hash_between(source: Source, digester: Digester, start: int, end: int, where: str) -> None:
    """Hash what lies between storages: headers, padding, the pickle, the directory."""
    for at in range(start, end, BLOCK):
        digester.update(read_exactly(source, at, min(BLOCK, end - at), where=where))
