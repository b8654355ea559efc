"""Cases, measured in turn, and the bars that they are held against."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from attrs import frozen

from benchmarks.machine import warm_memory

T = TypeVar("T")

Sample = Mapping[str, float]
"""What one run of a case measured. A name ends in its unit: `_s`, `_us`, `_bytes`, `_per_s`."""

Measured = Mapping[str, Sequence[Sample]]
"""The samples of each case, one a round."""


@frozen(kw_only=True)
class Options:
    """How much is measured. `mib` is the size of the training state, `entries` are the sizes of the journals."""

    rounds: int
    mib: int
    entries: tuple[int, ...]
    scratch: Path


def nothing() -> None: ...


@frozen(kw_only=True)
class Case:
    """One contestant. `before` and `after` are outside of the measurement."""

    name: str
    run: Callable[[], Sample]
    before: Callable[[], None] = nothing
    after: Callable[[], None] = nothing


@frozen(kw_only=True)
class Bar:
    """A promise: `measure` of `case`, over that of the best of `against` where there are some, keeps a limit."""

    says: str
    case: str
    measure: str
    against: tuple[str, ...] = ()
    at_most: float | None = None
    at_least: float | None = None


@frozen(kw_only=True)
class Judged:
    """A bar and what came of it. `value` is a ratio where `against` names the peer that was best."""

    bar: Bar
    value: float
    against: str
    met: bool


@frozen(kw_only=True)
class Figure:
    """Cases that are compared with each other.

    `facts` say what was measured. `warm_bytes` of free memory are touched before each run. `profiled` says whether a
    profile of time can tell why a bar was missed.
    """

    name: str
    title: str
    facts: Mapping[str, float | str]
    cases: Sequence[Case]
    bars: Sequence[Bar]
    warm_bytes: int = 0
    profiled: bool = True


Prepare = Callable[[Options], AbstractContextManager[Figure]]
"""Builds what a figure needs below `scratch`, and takes it down."""


def measure(figure: Figure, *, rounds: int) -> dict[str, list[Sample]]:
    """Run every case once a round, in turn."""
    measured: dict[str, list[Sample]] = {case.name: [] for case in figure.cases}
    for index in range(rounds):
        for case in figure.cases if index % 2 == 0 else reversed(figure.cases):
            with ready(case, figure):
                measured[case.name].append(case.run())
    return measured


@contextmanager
def ready(case: Case, figure: Figure) -> Iterator[None]:
    """Everything that belongs around one run of a case."""
    gc.collect()
    warm_memory(figure.warm_bytes)
    case.before()
    try:
        yield
    finally:
        case.after()


def judge(bar: Bar, measured: Measured) -> Judged:
    """Hold a bar against what was measured; peers that are not installed are left out."""
    own = [sample[bar.measure] for sample in measured[bar.case]]
    peers = {name: [sample[bar.measure] for sample in measured[name]] for name in bar.against if name in measured}
    best = min(peers, key=lambda name: statistics.median(peers[name]), default="")
    values = [mine / theirs for mine, theirs in zip(own, peers[best], strict=True)] if best else own
    value = statistics.median(values)
    met = (bar.at_most is None or value <= bar.at_most) and (bar.at_least is None or value >= bar.at_least)
    return Judged(bar=bar, value=value, against=best, met=met)


def timed(run: Callable[[], T]) -> tuple[float, T]:
    """The seconds that a call took, and what it returned."""
    begun = time.perf_counter()
    returned = run()
    return time.perf_counter() - begun, returned
