"""How long an asynchronous save holds the training loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.bounds import MappedCopy
from benchmarks.measuring import Bar, Case, Figure, Options, Sample, timed
from benchmarks.savers import DcpAsync, Milepost, Saver, once
from benchmarks.state import State

OURS = "milepost save"
FIRST = "milepost save, the first of a process"
COLD = "milepost save, the first, before any step"
COPY = "copy into mapped memory, two threads"
DEFAULT = "DCP async_save"
REUSING = "DCP async_save, reusing stager"

_WARM_UP_STEPS = 50
_S_PER_GIB = 1.5
"""How long the steps before a first save take in all. A run takes far longer until its first save is due."""


@contextmanager
def stall(options: Options) -> Iterator[Figure]:
    """See the bars."""
    state = State(options.mib)
    scratch = options.scratch
    copying = MappedCopy(list(state.flat().values()))
    with ExitStack() as undo:
        savers: dict[str, Saver] = {
            OURS: Milepost(state, scratch / "milepost"),
            DEFAULT: DcpAsync(state, scratch / "dcp", reusing=False),
            REUSING: DcpAsync(state, scratch / "dcp-reusing", reusing=True),
        }
        for saver in savers.values():
            undo.callback(saver.close)
            once(saver)
        training_s = state.size / (1 << 30) * _S_PER_GIB
        yield Figure(
            name="stall",
            title="How long an asynchronous save holds the training loop",
            facts={
                "state_bytes": state.size,
                "tensors": len(state.flat()),
                FIRST: f"after {_WARM_UP_STEPS} steps of {training_s / _WARM_UP_STEPS * 1e3:.0f} ms each",
            },
            cases=[
                Case(name=COPY, run=lambda: _copied(copying)),
                *(_case(name, saver) for name, saver in savers.items()),
                Case(name=FIRST, run=lambda: _first(state, scratch / "first", training_s)),
                Case(name=COLD, run=lambda: _first(state, scratch / "cold", 0.0)),
            ],
            bars=[
                Bar(
                    says="a save holds the loop for at most 1.3 x a copy into mapped memory",
                    case=OURS,
                    measure="stall_s",
                    against=(COPY,),
                    at_most=1.3,
                ),
                Bar(
                    says="and for less than DCP async_save with its reusing stager",
                    case=OURS,
                    measure="stall_s",
                    against=(REUSING,),
                    at_most=1.0,
                ),
                Bar(
                    says="the first save of a process stays within 3 x of the later ones",
                    case=FIRST,
                    measure="stall_s",
                    against=(OURS,),
                    at_most=3.0,
                ),
            ],
            warm_bytes=3 * state.size,
        )


def _copied(copying: MappedCopy) -> Sample:
    stall_s, _ = timed(copying.run)
    return {"stall_s": stall_s}


def _case(name: str, saver: Saver) -> Case:
    def run() -> Sample:
        stall_s, _ = timed(saver.start)
        saver.join()
        return {"stall_s": stall_s}

    return Case(name=name, run=run, after=saver.clear)


def _first(state: State, folder: Path, training_s: float) -> Sample:
    """A save of a run that was only just opened, behind a few steps or none."""
    saver = Milepost(state, folder)
    try:
        if training_s:
            saver.train(lambda: time.sleep(training_s / _WARM_UP_STEPS), steps=_WARM_UP_STEPS)
        stall_s, _ = timed(saver.start)
        saver.join()
    finally:
        saver.close()
    return {"stall_s": stall_s}
