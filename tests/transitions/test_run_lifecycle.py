"""Epochs, one writer, and what a run that is not open refuses."""

from __future__ import annotations

import pytest
from attrs import evolve as replaced

from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.machine import Command, State, decide, due, evolve
from milepost.transitions.run import (
    AdoptResume,
    ClosedSegment,
    EndRun,
    ReportProbe,
    RotateSegment,
    Run,
    RunEnded,
    RunOpened,
    RunResumed,
    RunStage,
    SegmentOpened,
    StoreProbed,
)
from milepost.transitions.saving import OpenSave, SaveStage
from milepost.transitions.updates import OpenUpdate, ReportStep
from milepost.transitions.values import FULL, Clocks, Mode, Outcome, PassedOver, Promised, Reason, ResumeKind
from tests.transitions.samples import (
    PARTS,
    RESUMED_RUN,
    SAVE,
    open_run_command,
    resumed,
    run_opened,
    saving_in,
)

CLOSED = ClosedSegment(number=1, length=900, seq=4, sum="ab", left=17)
ADOPT = AdoptResume(
    resume=ResumeKind.EXACT,
    step=10,
    source="iter_000000010",
    save=SAVE,
    clocks=Clocks(attempt_id=10, optimizer_step=9, skipped_total=1),
    passed_over=(PassedOver(name="iter_000000005", reason="older"),),
    notes=("a note",),
)
END = EndRun(outcome=Outcome.COMPLETED, step=10, detail="done")


def opened_run(*, decided: bool) -> State:
    return State(run=RESUMED_RUN if decided else PARTS["run"][RunStage.OPEN])


def test_opening_a_run_heads_the_segment_and_begins_the_next_epoch() -> None:
    segment, opened = decide(opened_run(decided=True), replaced(open_run_command(segment=2), closes=(CLOSED,)))
    assert segment == SegmentOpened(number=2, closes=(CLOSED,))
    assert opened == run_opened(2)


def test_an_opened_run_forgets_how_the_last_epoch_began_and_ended() -> None:
    ended = State(run=replaced(PARTS["run"][RunStage.ENDED], segment=3))
    run = evolve(ended, run_opened(2)).run
    assert (run.stage, run.epoch, run.resumed, run.ended, run.segment) == (RunStage.OPEN, 2, None, None, 3)


@pytest.mark.parametrize("epoch", [1, 3])
def test_an_epoch_that_does_not_follow_is_illegal(epoch: int) -> None:
    with pytest.raises(IllegalTransition, match=f"epoch {epoch} opened after epoch 1; epochs grow by one"):
        evolve(opened_run(decided=True), run_opened(epoch))


def test_the_journal_of_one_run_never_continues_another() -> None:
    with pytest.raises(IllegalTransition, match="run 20270101000000 opened in the journal of run 20261129160904"):
        evolve(opened_run(decided=True), run_opened(2, run_ts="20270101000000"))


def test_rotating_goes_on_in_the_next_segment_of_the_same_epoch() -> None:
    state = opened_run(decided=True)
    (record,) = decide(state, RotateSegment(segment=2, closes=(CLOSED,)))
    run = evolve(state, record).run
    assert run == replaced(state.run, segment=2)


@pytest.mark.parametrize("number", [0, 1])
def test_a_segment_that_is_not_a_later_one_is_illegal(number: int) -> None:
    with pytest.raises(IllegalTransition, match=f"segment {number} opened after segment 1"):
        evolve(opened_run(decided=True), SegmentOpened(number=number, closes=()))


REPORT = ReportProbe(store="s3://b/run at store:1", promises=(Promised(name="create", seen="committed, conflict"),))


def test_what_a_store_was_seen_to_keep_is_known_until_the_next_epoch() -> None:
    state = opened_run(decided=False)
    (record,) = decide(state, REPORT)
    after = evolve(state, record)
    assert record == StoreProbed(store=REPORT.store, promises=REPORT.promises)
    assert after == replaced(state, run=replaced(state.run, probed=record))
    assert evolve(after, run_opened(2)).run.probed is None


@pytest.mark.parametrize("stage", [RunStage.UNOPENED, RunStage.ENDED])
def test_a_store_is_probed_by_the_writer_that_opened_the_run(stage: RunStage) -> None:
    with pytest.raises(Refused, match=f"the run is {stage.value}"):
        decide(State(run=PARTS["run"][stage]), REPORT)


def test_the_resume_is_recorded_whole_and_sets_the_clocks() -> None:
    state = opened_run(decided=False)
    (record,) = decide(state, ADOPT)
    after = evolve(state, record)
    assert isinstance(record, RunResumed)
    assert after.run.resumed == record
    assert (record.source, record.save, record.passed_over) == (ADOPT.source, ADOPT.save, ADOPT.passed_over)
    assert (record.resume, record.notes) == (ResumeKind.EXACT, ("a note",))
    assert (after.updates.clocks, after.updates.step) == (ADOPT.clocks, 10)


@pytest.mark.parametrize("run", [Run(), RESUMED_RUN, PARTS["run"][RunStage.ENDED]], ids=lambda run: run.stage.name)
def test_a_resume_is_decided_once_when_an_epoch_opens(run: Run) -> None:
    with pytest.raises(Refused, match=f"decided once.*epoch {run.epoch} is {run.stage.value}"):
        decide(State(run=run), ADOPT)


def test_a_second_resume_in_one_epoch_is_illegal() -> None:
    with pytest.raises(IllegalTransition, match="epoch 1 decided its resume twice"):
        evolve(opened_run(decided=True), resumed())


def test_a_run_ends_with_its_outcome() -> None:
    state = opened_run(decided=True)
    (record,) = decide(state, END)
    run = evolve(state, record).run
    assert run.stage is RunStage.ENDED
    assert run.ended == record
    assert record == RunEnded(outcome=Outcome.COMPLETED, step=10, detail="done")


def test_a_run_with_an_open_save_does_not_end() -> None:
    with pytest.raises(Refused, match=r"cannot end while save 10\.1\.1 is open; join it first"):
        decide(State(run=RESUMED_RUN, saving=saving_in(SaveStage.WRITING)), END)


NEED_AN_OPEN_RUN: tuple[tuple[Command, str], ...] = (
    (END, "end the run"),
    (OpenUpdate(step=3), "begin step 3"),
    (ReportStep(step=3, metrics=()), "report step 3"),
    (OpenSave(step=3, plan=FULL, reason=Reason.CADENCE, mode=Mode.SYNCHRONOUS), "save step 3"),
)


@pytest.mark.parametrize(("command", "what"), NEED_AN_OPEN_RUN, ids=lambda value: type(value).__name__)
def test_a_run_that_is_not_open_refuses_and_says_to_open_it(command: Command, what: str) -> None:
    for stage in (RunStage.UNOPENED, RunStage.ENDED):
        with pytest.raises(Refused, match=f"cannot {what}: the run is {stage.value}; open it again to go on"):
            decide(State(run=PARTS["run"][stage]), command)


@pytest.mark.parametrize(("command", "what"), NEED_AN_OPEN_RUN, ids=lambda value: type(value).__name__)
def test_an_epoch_refuses_work_before_its_resume_is_decided(command: Command, what: str) -> None:
    with pytest.raises(Refused, match=f"cannot {what}: epoch 1 has not decided what it continues from"):
        decide(opened_run(decided=False), command)


@pytest.mark.parametrize("stage", [RunStage.UNOPENED, RunStage.ENDED], ids=lambda stage: stage.name)
def test_a_run_that_is_not_open_has_nothing_due(stage: RunStage) -> None:
    state = replaced(evolve(opened_run(decided=True), run_opened(2)), saving=saving_in(SaveStage.UNSETTLED))
    assert len(due(state)) == 2
    assert due(replaced(state, run=PARTS["run"][stage])) == ()


def test_opening_a_run_leaves_the_identity_of_its_writer() -> None:
    opened = decide(State(), open_run_command())[1]
    assert isinstance(opened, RunOpened)
    assert opened == run_opened(1)
    run = evolve(State(), opened).run
    assert (run.run_ts, run.opened) == (opened.run_ts, opened)
