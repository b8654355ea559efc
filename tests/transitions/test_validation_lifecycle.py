"""A durable validation: published first, evaluated next, announced last, and nobody else's meanwhile."""

from __future__ import annotations

import pytest
from attrs import evolve as replaced

from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.machine import Command, Record, State, decide, due, evolve, obligations
from milepost.transitions.pointing import AdvancePointer, ReportPointed
from milepost.transitions.retention import ApplyRetention
from milepost.transitions.run import AdoptResume, RunStage
from milepost.transitions.saving import (
    ObserveSave,
    OpenSave,
    ReportAbsent,
    ReportFound,
    ReportGivenUp,
    ReportSealed,
    ReportStored,
    SaveOpened,
    SaveStage,
    SealSave,
)
from milepost.transitions.validation import (
    EvaluationFailed,
    EvaluationPassed,
    EvaluationPended,
    Generation,
    MarkGeneration,
    PublicationCompleted,
    PublicationPended,
    ReportFailed,
    ReportMarked,
    ReportPassed,
    Validation,
    ValidationStage,
)
from milepost.transitions.values import FULL, Clocks, Mode, Plan, Reason, ResumeKind, SaveId
from tests.transitions.samples import (
    MANIFEST,
    OLDER,
    PARTIAL,
    PARTS,
    RESUMED_RUN,
    SAVE,
    STORED,
    published,
    resumed,
    run_opened,
    saving_in,
    validation_in,
)

OPEN = State(run=RESUMED_RUN)
FILES = tuple(file for part in STORED for file in part.files)
STAGES = tuple(ValidationStage)
SEALED = ReportSealed(save=SAVE, manifest=MANIFEST)


def pending(step: int = 10, plan: Plan = FULL) -> OpenSave:
    return OpenSave(step=step, plan=plan, reason=Reason.VALIDATION, mode=Mode.SYNCHRONOUS, pending=True)


def after(state: State, *commands: Command) -> State:
    for command in commands:
        for record in decide(state, command):
            state = evolve(state, record)
    return state


def state_at(stage: ValidationStage) -> State:
    """The state whose validation of `SAVE` is in the stage, with the saves that belong to it."""
    intended = saving_in(SaveStage.WRITING)
    saving = intended if stage is ValidationStage.INTENDED else saving_in(SaveStage.SEALED)
    return replaced(OPEN, saving=saving, validation=validation_in(stage))


# --- the whole way ----------------------------------------------------------------------------------------


def test_a_pending_save_is_published_first_then_evaluated_then_announced() -> None:
    state = after(OPEN, pending(), ReportStored(save=SAVE, components=STORED))
    assert due(state) == (SealSave(save=SAVE, plan=FULL, components=STORED, pending=True),)
    assert obligations(state) == ()

    state = after(state, SEALED)
    assert due(state) == (AdvancePointer(save=SAVE, epoch=1),)  # auto-resume takes what is pending
    assert obligations(state) == (SAVE,)
    assert (state.validation.intended, state.validation.pending) == (None, SAVE)

    state = after(state, ReportPointed(save=SAVE), ReportPassed(step=10))
    assert obligations(state) == ()
    assert due(state) == (MarkGeneration(save=SAVE, generation=Generation.PUBLICATION_PENDING),)

    state = after(state, ReportMarked(save=SAVE, generation=Generation.PUBLICATION_PENDING))
    assert due(state) == (MarkGeneration(save=SAVE, generation=Generation.PUBLISHED),)
    assert state.validation.pending == SAVE

    state = after(state, ReportMarked(save=SAVE, generation=Generation.PUBLISHED))
    assert due(state) == ()
    assert state.validation == Validation(completed=SAVE)


def test_a_pending_save_is_opened_and_pended_in_one_entry() -> None:
    opened, pended = decide(OPEN, pending())
    assert isinstance(opened, SaveOpened)
    assert pended == EvaluationPended(save=opened.save)
    state = evolve(evolve(OPEN, opened), pended)
    assert (state.validation.intended, state.validation.pending) == (SAVE, None)


def test_a_save_that_is_not_pending_starts_no_validation() -> None:
    records = decide(OPEN, replaced(pending(), pending=False))
    assert [type(record) for record in records] == [SaveOpened]
    state = after(OPEN, replaced(pending(), pending=False), ReportStored(save=SAVE, components=STORED))
    assert due(state) == (SealSave(save=SAVE, plan=FULL, components=STORED, pending=False),)
    assert after(state, SEALED).validation == Validation()


def test_only_a_full_checkpoint_carries_a_validation() -> None:
    with pytest.raises(Refused, match="step 10 cannot be pending: only a full checkpoint carries a validation"):
        decide(OPEN, pending(plan=PARTIAL))


@pytest.mark.parametrize("stage", [ValidationStage.EVALUATING, ValidationStage.PASSED, ValidationStage.PUBLISHING])
def test_the_next_validation_waits_for_the_one_that_is_under_way(stage: ValidationStage) -> None:
    message = f"the validation of iter_000000010 is {stage.value}; complete it before the next one"
    with pytest.raises(Refused, match=message):
        decide(state_at(stage), pending(step=20))


def test_a_save_that_is_refused_pends_nothing() -> None:
    with pytest.raises(Refused, match="is published as iter_000000010"):
        decide(replaced(OPEN, saving=saving_in(SaveStage.SEALED)), pending())


def test_a_save_beside_a_pending_checkpoint_leaves_its_validation_alone() -> None:
    for stage in (ValidationStage.EVALUATING, ValidationStage.PASSED, ValidationStage.PUBLISHING):
        state = state_at(stage)
        later = SaveId(20, 1, 2)
        state = after(state, replaced(pending(step=20), pending=False), ReportStored(save=later, components=STORED))
        assert SealSave(save=later, plan=FULL, components=STORED, pending=False) in due(state)
        for end in (ReportSealed(save=later, manifest=MANIFEST), ReportGivenUp(save=later, code="", detail="")):
            assert after(state, end).validation == validation_in(stage)


# --- failures and crashes ---------------------------------------------------------------------------------


def test_a_pending_save_that_is_given_up_leaves_nothing_pending() -> None:
    state = after(OPEN, pending(), ReportGivenUp(save=SAVE, code="no-space", detail="full"))
    assert state.validation == Validation()
    assert obligations(state) == ()
    assert len(decide(state, pending(step=20))) == 2


def test_a_failed_evaluation_is_evidence_and_is_evaluated_again() -> None:
    state = state_at(ValidationStage.EVALUATING)
    (record,) = decide(state, ReportFailed(step=10, detail="no held-out data"))
    assert record == EvaluationFailed(save=SAVE, detail="no held-out data")
    assert evolve(state, record) == state


def test_a_failed_evaluation_leaves_every_save_beside_it() -> None:
    saving = published(full=(OLDER, SAVE), artifacts=(OLDER,))
    state = replaced(state_at(ValidationStage.EVALUATING), saving=saving)
    assert after(state, ReportFailed(step=10, detail="")).saving == saving


def test_an_evaluation_that_passed_is_never_asked_for_again() -> None:
    state = after(state_at(ValidationStage.EVALUATING), ReportPassed(step=10))
    for again in (ReportPassed(step=10), ReportFailed(step=10, detail="")):
        with pytest.raises(Refused, match="no evaluation of step 10 is pending; iter_000000010 is passed"):
            decide(state, again)


@pytest.mark.parametrize("command", [ReportPassed(step=11), ReportFailed(step=11, detail="")], ids=["pass", "fail"])
def test_an_evaluation_of_another_step_is_refused(command: Command) -> None:
    with pytest.raises(Refused, match="no evaluation of step 11 is pending; iter_000000010 is evaluating"):
        decide(state_at(ValidationStage.EVALUATING), command)
    with pytest.raises(Refused, match="no evaluation of step 11 is pending; nothing is idle"):
        decide(OPEN, command)


@pytest.mark.parametrize("command", [ReportPassed(step=10), ReportFailed(step=10, detail="")], ids=["pass", "fail"])
def test_an_evaluation_needs_an_open_run_that_decided_its_resume(command: Command) -> None:
    for run in PARTS["run"].values():
        with pytest.raises(Refused, match="cannot evaluate step 10"):
            decide(replaced(state_at(ValidationStage.EVALUATING), run=run), command)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_what_is_pending_outlives_its_writer(stage: ValidationStage) -> None:
    state = evolve(state_at(stage), run_opened(2))
    assert state.validation == validation_in(stage)
    marks = {
        ValidationStage.PASSED: (MarkGeneration(save=SAVE, generation=Generation.PUBLICATION_PENDING),),
        ValidationStage.PUBLISHING: (MarkGeneration(save=SAVE, generation=Generation.PUBLISHED),),
    }
    found = tuple(effect for effect in due(state) if isinstance(effect, MarkGeneration))
    assert found == marks.get(stage, ())
    assert obligations(state) == ((SAVE,) if stage is ValidationStage.EVALUATING else ())


@pytest.mark.parametrize("was_published", [True, False], ids=["published", "absent"])
def test_a_pending_save_whose_writer_died_is_settled_by_looking(was_published: bool) -> None:
    state = evolve(after(OPEN, pending(), ReportStored(save=SAVE, components=STORED)), run_opened(2))
    assert due(state)[0] == ObserveSave(save=SAVE, plan=FULL)
    assert state.validation.intended == SAVE
    found = ReportFound(save=SAVE, manifest=MANIFEST, files=FILES)
    state = after(state, found if was_published else ReportAbsent(save=SAVE))
    assert obligations(state) == ((SAVE,) if was_published else ())
    assert state.validation == (validation_in(ValidationStage.EVALUATING) if was_published else Validation())


def test_a_run_that_is_not_open_obliges_nobody() -> None:
    for stage, run in PARTS["run"].items():
        state = replaced(state_at(ValidationStage.EVALUATING), run=run)
        assert obligations(state) == ((SAVE,) if stage is RunStage.OPEN else ())


# --- the resume -------------------------------------------------------------------------------------------


def adopt(save: SaveId | None) -> AdoptResume:
    return AdoptResume(resume=ResumeKind.EXACT, step=10, source="", save=save, clocks=Clocks(), passed_over=())


def reopened(stage: ValidationStage) -> State:
    return replaced(state_at(stage), run=PARTS["run"][RunStage.OPEN])


def test_a_resume_from_the_pending_checkpoint_evaluates_it() -> None:
    state = after(reopened(ValidationStage.EVALUATING), adopt(SAVE))
    assert state.validation == validation_in(ValidationStage.EVALUATING)
    assert obligations(state) == (SAVE,)


@pytest.mark.parametrize("save", [None, SaveId(10, 2, 1), SaveId(20, 1, 1)], ids=str)
def test_a_resume_from_anything_else_supersedes_what_was_pending(save: SaveId | None) -> None:
    state = reopened(ValidationStage.EVALUATING)
    state = after(replaced(state, validation=replaced(state.validation, completed=OLDER)), adopt(save))
    assert state.validation == Validation(completed=OLDER)
    assert obligations(state) == ()


def test_a_resume_with_nothing_pending_keeps_what_was_completed() -> None:
    state = replaced(reopened(ValidationStage.IDLE), validation=Validation(completed=OLDER))
    assert after(state, adopt(SAVE)).validation == Validation(completed=OLDER)


@pytest.mark.parametrize("stage", [ValidationStage.INTENDED, ValidationStage.PASSED, ValidationStage.PUBLISHING])
def test_a_resume_waits_for_what_is_due(stage: ValidationStage) -> None:
    state = reopened(stage)
    message = f"cannot resume: the validation of iter_000000010 is {stage.value}; do what is due first"
    with pytest.raises(Refused, match=message):
        decide(state, adopt(SAVE))
    with pytest.raises(IllegalTransition, match=f"the validation in stage {stage.name} has no RunResumed"):
        evolve(state, resumed(save=SAVE))


# --- reports and records ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
@pytest.mark.parametrize("generation", Generation, ids=lambda generation: generation.name)
@pytest.mark.parametrize("save", [SAVE, OLDER], ids=str)
def test_a_mark_is_taken_only_where_it_is_due(stage: ValidationStage, generation: Generation, save: SaveId) -> None:
    legal: dict[tuple[ValidationStage, Generation, SaveId], Record] = {
        (ValidationStage.PASSED, Generation.PUBLICATION_PENDING, SAVE): PublicationPended(save=SAVE),
        (ValidationStage.PUBLISHING, Generation.PUBLISHED, SAVE): PublicationCompleted(save=SAVE),
    }
    report = ReportMarked(save=save, generation=generation)
    if (stage, generation, save) in legal:
        assert decide(state_at(stage), report) == (legal[stage, generation, save],)
    else:
        message = (
            rf"a report that {save.directory} is marked {generation.value}, which is not due; .* is {stage.value}"
        )
        with pytest.raises(Refused, match=message):
            decide(state_at(stage), report)


ILLEGAL: tuple[tuple[ValidationStage, Record], ...] = (
    (ValidationStage.EVALUATING, EvaluationFailed(save=OLDER, detail="")),
    (ValidationStage.EVALUATING, EvaluationPassed(save=OLDER)),
    (ValidationStage.PASSED, PublicationPended(save=OLDER)),
    (ValidationStage.PUBLISHING, PublicationCompleted(save=OLDER)),
)


@pytest.mark.parametrize(("stage", "record"), ILLEGAL, ids=lambda value: type(value).__name__)
def test_a_record_of_another_save_is_illegal(stage: ValidationStage, record: Record) -> None:
    name = type(record).__name__
    with pytest.raises(IllegalTransition, match=rf"{name} for save 5\.1\.1; the validation is of 10\.1\.1"):
        evolve(state_at(stage), record)


def test_what_is_pending_is_not_pruned_and_what_is_completed_may_be() -> None:
    newest = SaveId(20, 1, 2)
    saving = published(full=(SAVE, newest))
    policy = ApplyRetention(keep_optim_last=1, keep_model_last=1)
    for stage in (ValidationStage.EVALUATING, ValidationStage.PASSED, ValidationStage.PUBLISHING):
        assert decide(replaced(state_at(stage), saving=saving), policy) == ()
    completed = replaced(OPEN, saving=saving, validation=Validation(completed=SAVE))
    assert len(decide(completed, policy)) == 1
