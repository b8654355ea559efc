"""Whether a run can save itself inside its grace, measured in its own journal.

The run looks for the order to stop at step boundaries only. An order that comes right after a look waits for the next
one; then one save is made. So the grace has to hold the longest time between two looks and one save.

    measured                what it is
    a step                  from the outcome of one attempt to that of the next, in one epoch: with the saves and the
                            evaluations of the boundary between them
    a save                  from its opening to its sealing, in one epoch

An emergency save makes the loop wait and holds everything: where such saves were made, they are what counts; else all
full ones; else all.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from statistics import median

from attrs import frozen

from milepost.engines.logs import Log
from milepost.journal.forensics.timeline import Wanted, records
from milepost.transitions.run import RunOpened
from milepost.transitions.saving import ArtifactSealed, SaveOpened, SaveSealed
from milepost.transitions.updates import UpdateApplied, UpdateOpened, UpdateSkipped
from milepost.transitions.values import FULL, Mode, SaveId

MINIMUM_STEPS = 5
"""Fewer say nothing of the slowest."""


@frozen(kw_only=True)
class Timing:
    """How long something took, in seconds; zeros where it never happened."""

    count: int
    median_s: float
    slowest_s: float


@frozen(kw_only=True)
class SaveTiming:
    """The saves of one mode, of every component (`full`) or of some."""

    mode: Mode
    full: bool
    took: Timing


@frozen(kw_only=True)
class Budget:
    """One step and one save against the grace. `fits` is None where the journal cannot tell; `words` say it all."""

    run: str
    grace_s: int
    step: Timing
    saves: tuple[SaveTiming, ...]
    needed_s: float | None
    fits: bool | None
    words: str


def budget(log: Log, *, run: str, grace_s: int) -> Budget:
    """What the journal of `run` measured, against `grace_s` seconds. Raises as reading a log does."""
    steps, saves = _measured(log)
    counted = _as_an_emergency(saves)
    step, saved = _timing(steps), _timing(counted)
    enough = step.count >= MINIMUM_STEPS and saved.count > 0
    needed = step.slowest_s + saved.slowest_s if enough else None
    return Budget(
        run=run,
        grace_s=grace_s,
        step=step,
        saves=tuple(
            SaveTiming(mode=mode, full=full, took=_timing(took))
            for (mode, full), took in sorted(saves.items(), key=lambda kind: (kind[0][0].value, not kind[0][1]))
        ),
        needed_s=needed,
        fits=None if needed is None else needed <= grace_s,
        words=_words(step, saved, needed, grace_s),
    )


Saves = dict[tuple[Mode, bool], list[float]]
"""Seconds by mode and by whether everything was saved."""


def _measured(log: Log) -> tuple[list[float], Saves]:
    """Every step and every save that one writer both began and completed."""
    steps: list[float] = []
    saves: Saves = {}
    last: datetime | None = None
    opened: dict[SaveId, tuple[datetime, tuple[Mode, bool]]] = {}
    for at, record in _timed(log):
        if isinstance(record, RunOpened):
            last = None
            opened.clear()
        elif isinstance(record, UpdateOpened):
            last = last or at
        elif isinstance(record, UpdateApplied | UpdateSkipped):
            assert last is not None, "an attempt has an outcome once it is open"
            steps.append((at - last).total_seconds())
            last = at
        elif isinstance(record, SaveOpened):
            opened[record.save] = at, (record.mode, record.plan == FULL)
        elif isinstance(record, SaveSealed | ArtifactSealed) and record.save in opened:
            began, kind = opened.pop(record.save)
            saves.setdefault(kind, []).append((at - began).total_seconds())
    return steps, saves


_KINDS = (RunOpened, UpdateOpened, UpdateApplied, UpdateSkipped, SaveOpened, SaveSealed, ArtifactSealed)


def _timed(log: Log) -> Iterator[tuple[datetime, object]]:
    for entry, record in records(log, Wanted(kinds=tuple(kind.KIND for kind in _KINDS))):
        yield datetime.fromisoformat(entry.at), record


def _as_an_emergency(saves: Saves) -> list[float]:
    """The saves that tell most of an emergency's: synchronous and full, else full, else any."""
    if alike := saves.get((Mode.SYNCHRONOUS, True)):
        return alike
    full = [took for (_, everything), kind in saves.items() if everything for took in kind]
    return full or [took for kind in saves.values() for took in kind]


def _timing(took: list[float]) -> Timing:
    if not took:
        return Timing(count=0, median_s=0.0, slowest_s=0.0)
    return Timing(count=len(took), median_s=median(took), slowest_s=max(took))


def _words(step: Timing, saved: Timing, needed_s: float | None, grace_s: int) -> str:
    if needed_s is None:
        return (
            f"too little to tell whether the grace of {grace_s} s is enough: the journal has {step.count} steps and "
            f"{saved.count} saves, at least {MINIMUM_STEPS} and 1 are needed. It has to hold one step and one save"
        )
    sum_of = (
        f"the slowest step of {step.count} took {step.slowest_s:.2f} s (median {step.median_s:.2f} s), the slowest "
        f"save of {saved.count} {saved.slowest_s:.2f} s: {needed_s:.2f} s of the {grace_s} s of grace"
    )
    if needed_s <= grace_s:
        return f"{sum_of}. It fits"
    return (
        f"{sum_of}. IT DOES NOT FIT: a run that is preempted right after a step boundary is killed before its save. "
        "Ask for a longer --grace (and GraceTime of the cluster), make the step shorter, or save less in an "
        "emergency with rl.emergency_checkpoint_components=run"
    )
