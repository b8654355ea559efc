"""The update clocks: what an applied, a skipped and an aborted attempt move."""

from __future__ import annotations

import pytest

from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.machine import Command, Record, State, decide, evolve
from milepost.transitions.updates import (
    AbortUpdate,
    ApplyUpdate,
    OpenUpdate,
    ReportStep,
    SkipUpdate,
    StepReported,
    UpdateAborted,
    UpdateApplied,
    UpdateOpened,
    Updates,
    UpdateSkipped,
    UpdateStage,
)
from milepost.transitions.values import Clocks, Metric, ResumeKind
from tests.transitions.samples import RESUMED_RUN, resumed, run_opened

CLOCKS = Clocks(attempt_id=9, optimizer_step=6, skipped_total=3, skipped_consecutive=2)
QUIET = State(run=RESUMED_RUN, updates=Updates(clocks=CLOCKS, step=20))
BUSY = State(run=RESUMED_RUN, updates=Updates(stage=UpdateStage.ACCUMULATING, clocks=CLOCKS, step=21))


def test_opening_an_attempt_moves_no_clock() -> None:
    (record,) = decide(QUIET, OpenUpdate(step=21))
    assert record == UpdateOpened(attempt=10, step=21)
    assert evolve(QUIET, record) == BUSY


@pytest.mark.parametrize(
    ("command", "record", "clocks"),
    [
        (ApplyUpdate(), UpdateApplied(attempt=10), Clocks(attempt_id=10, optimizer_step=7, skipped_total=3)),
        (
            SkipUpdate(why="inf"),
            UpdateSkipped(attempt=10, why="inf"),
            Clocks(attempt_id=10, optimizer_step=6, skipped_total=4, skipped_consecutive=3),
        ),
        (AbortUpdate(why="left"), UpdateAborted(attempt=10, why="left"), CLOCKS),
    ],
    ids=["applied", "skipped", "aborted"],
)
def test_an_outcome_moves_exactly_its_clocks(command: Command, record: Record, clocks: Clocks) -> None:
    assert decide(BUSY, command) == (record,)
    assert evolve(BUSY, record).updates == Updates(clocks=clocks, step=21)


def test_a_second_attempt_is_refused_while_one_is_open() -> None:
    with pytest.raises(Refused, match="attempt of step 21 is still open; apply, skip or abort it before step 22"):
        decide(BUSY, OpenUpdate(step=22))


@pytest.mark.parametrize(("command", "verb"), [(ApplyUpdate(), "apply"), (SkipUpdate(why=""), "skip")])
def test_an_outcome_without_an_attempt_is_refused(command: Command, verb: str) -> None:
    with pytest.raises(Refused, match=f"there is no open attempt to {verb}; open one first"):
        decide(QUIET, command)


def test_aborting_without_an_attempt_changes_nothing() -> None:
    assert decide(QUIET, AbortUpdate(why="left")) == ()


@pytest.mark.parametrize("state", [QUIET, BUSY], ids=["quiescent", "accumulating"])
def test_a_report_is_evidence_and_moves_nothing(state: State) -> None:
    metrics = (Metric(name="loss", value="0.25"),)
    (record,) = decide(state, ReportStep(step=20, metrics=metrics))
    assert record == StepReported(step=20, metrics=metrics)
    assert evolve(state, record) == state


@pytest.mark.parametrize(
    ("state", "record"),
    [
        (QUIET, UpdateOpened(attempt=11, step=21)),
        (BUSY, UpdateApplied(attempt=9)),
        (BUSY, UpdateSkipped(attempt=11, why="")),
        (BUSY, UpdateAborted(attempt=9, why="")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_attempt_out_of_order_is_illegal(state: State, record: UpdateApplied) -> None:
    with pytest.raises(IllegalTransition, match=f"attempt {record.attempt} where attempt 10 comes next"):
        evolve(state, record)


def test_a_new_writer_starts_from_zero_until_the_resume_brings_the_clocks() -> None:
    reopened = evolve(BUSY, run_opened(2))
    assert reopened.updates == Updates()
    restored = evolve(reopened, resumed(ResumeKind.EXACT, step=20, clocks=CLOCKS))
    assert restored.updates == QUIET.updates
