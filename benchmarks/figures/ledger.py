"""What an issue and its settlement cost: recorded, by themselves, and in the simplest ledger that nothing resumes."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from attrs import define, field

from benchmarks.figures.append import BareRun
from benchmarks.machine import remove
from benchmarks.measuring import Bar, Case, Figure, Options, Sample
from milepost.journal.sampling.boundaries import SamplingBoundary
from milepost.journal.sampling.ledger import SamplingReplayLedger
from milepost.journal.sampling.recorded import RecordedLedger
from milepost.transitions.sampling import SamplingToken

RECORDED = "milepost, recorded"
DEEP = "milepost, recorded, 64 outstanding"
ALONE = "milepost, stand-alone"
PEER = "dict and heapq"
WRITE = "write of the same bytes"

_BUDGET = 1 << 40
_PAIRS = 128
"""An issue and a settlement each, as many records as are held back at most: a batch pays for one entry."""

_BATCHES = 80


@contextmanager
def ledger(options: Options) -> Iterator[Figure]:
    """See the bars. Recorded is decided, folded, encoded, chained and written; a pair has its part of the entry."""
    run = BareRun.begin(options.scratch / "run")
    recorded = RecordedLedger(run.driver, limit=0)
    start = SamplingBoundary(1, _BUDGET, None)
    recorded.begin(start)
    shallow = _Sampling(recorded)
    before = run.size()
    _timed(shallow.pair, 10)
    bytes_of_a_batch = (run.size() - before) // 10
    path = options.scratch / "peer"
    yield Figure(
        name="ledger",
        title="What an issue and its settlement cost",
        facts={"bytes_of_a_pair": bytes_of_a_batch / _PAIRS},
        cases=[
            Case(name=RECORDED, run=lambda: _timed(shallow.pair, _BATCHES)),
            Case(name=DEEP, run=lambda: _deep(shallow)),
            Case(name=ALONE, run=partial(_timed, _Sampling(SamplingReplayLedger(start)).pair, _BATCHES)),
            Case(name=PEER, run=partial(_timed, _Plain().pair, _BATCHES)),
            Case(name=WRITE, run=partial(_written, path, bytes(bytes_of_a_batch)), after=partial(remove, path)),
        ],
        bars=[
            Bar(says="recorded, without a sync: under 20 us", case=RECORDED, measure="pair_us", at_most=20.0),
            Bar(says="the same with 64 outstanding: under 20 us", case=DEEP, measure="pair_us", at_most=20.0),
        ],
    )
    run.opened.close()


@define
class _Sampling:
    """A sampler with a ledger: `depth` pieces of work stay outstanding, and what is settled is in their middle."""

    ledger: RecordedLedger | SamplingReplayLedger
    depth: int = 0
    remaining: int = _BUDGET
    waiting: list[SamplingToken] = field(factory=list)

    def pair(self) -> None:
        self.remaining -= 1
        state = {"epoch_seed": 7, "offset": self.remaining}
        self.waiting.append(self.ledger.issue(SamplingBoundary(1, self.remaining, state)))
        if len(self.waiting) > self.depth:
            self.ledger.settle(self.waiting.pop(self.depth // 2))

    def drain(self) -> None:
        while self.waiting:
            self.ledger.settle(self.waiting.pop(0))


def _deep(sampling: _Sampling) -> Sample:
    sampling.depth = 64
    for _ in range(sampling.depth):
        sampling.pair()
    measured = _timed(sampling.pair, _BATCHES)
    sampling.depth = 0
    sampling.drain()
    return measured


@define
class _Plain:
    """The same boundary by a dict and a heap, in memory: nothing is copied, checked or kept."""

    number: int = 0
    settled: list[int] = field(factory=list)
    after: dict[int, object] = field(factory=dict)
    head: int = 1
    boundary: object = None

    def pair(self) -> None:
        self.number += 1
        self.after[self.number] = {"epoch_seed": 7, "offset": self.number}
        heapq.heappush(self.settled, self.number)
        while self.settled and self.settled[0] == self.head:
            self.boundary = self.after.pop(heapq.heappop(self.settled))
            self.head += 1


def _timed(pair: Callable[[], object], batches: int) -> Sample:
    """The median over batches of what a pair costs in its batch, in microseconds."""
    taken = []
    for _ in range(batches):
        begun = time.perf_counter()
        for _ in range(_PAIRS):
            pair()
        taken.append((time.perf_counter() - begun) / _PAIRS)
    taken.sort()
    return {"pair_us": taken[batches // 2] * 1e6}


def _written(path: Path, batch: bytes) -> Sample:
    """What the file system alone takes for the bytes of a pair, in the writes of whole entries."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    try:
        begun = time.perf_counter()
        for _ in range(_BATCHES):
            os.write(descriptor, batch)
        return {"pair_us": (time.perf_counter() - begun) / _BATCHES / _PAIRS * 1e6}
    finally:
        os.close(descriptor)
