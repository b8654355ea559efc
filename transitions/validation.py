"""The life of a durable validation: a full checkpoint that is published first, evaluated next, announced last.

    stage        record                 next         promise
    IDLE         EvaluationPended       INTENDED     the save that opens beside it will carry the pending evaluation
    INTENDED     SaveSealed             EVALUATING   the checkpoint is published and says so of itself
    INTENDED     SaveAbandoned          IDLE         nothing was published, so nothing is pending
    EVALUATING   EvaluationFailed       EVALUATING   evidence: it is evaluated again
    EVALUATING   EvaluationPassed       PASSED       this checkpoint is never evaluated again
    PASSED       PublicationPended      PUBLISHING   the checkpoint itself says that only its publication is pending
    PUBLISHING   PublicationCompleted   IDLE         it is announced, and archived where that was asked for (INV-07)
    any          RunOpened              the same     what is pending outlives the writer
    IDLE         RunResumed             IDLE         there is nothing to continue
    EVALUATING   RunResumed             EVALUATING   from the pending checkpoint; from another one: IDLE, superseded

A resume is decided in IDLE or EVALUATING alone: in every other stage something is due, and is done first.

A publication that has to be archived (`archiving.py`) is completed behind its archive.

An ephemeral validation is no lifecycle: it leaves no record. A pending checkpoint is what a resume takes, and nothing
else may have it: it is not announced, archived or pruned. What the trainer has to do is `obligations`; marking the
checkpoint is an effect, so that a copy of the directory carries its pending state with it.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from attrs import evolve, frozen

from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.run import Run, RunOpened, RunResumed, require_open
from milepost.transitions.saving import SaveAbandoned, SaveOpened, SaveSealed
from milepost.transitions.tables import Stage, Table, follow
from milepost.transitions.values import FULL, SaveId


class Generation(Enum):
    """What a checkpoint says of its own validation, in order. A later one is written beside an earlier one."""

    EVALUATION_PENDING = "evaluation-pending"
    PUBLICATION_PENDING = "publication-pending"
    PUBLISHED = "published"


# --- records -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class EvaluationPended:
    """The checkpoint of this save, once it is published, waits for its evaluation."""

    KIND: ClassVar[str] = "evaluation-pended"
    VERSION: ClassVar[int] = 1
    save: SaveId


@frozen(kw_only=True)
class EvaluationFailed:
    """The evaluation of the checkpoint raised; it is still pending."""

    KIND: ClassVar[str] = "evaluation-failed"
    VERSION: ClassVar[int] = 1
    save: SaveId
    detail: str


@frozen(kw_only=True)
class EvaluationPassed:
    """The evaluation of the checkpoint returned; it is never run again."""

    KIND: ClassVar[str] = "evaluation-passed"
    VERSION: ClassVar[int] = 1
    save: SaveId


@frozen(kw_only=True)
class PublicationPended:
    """The checkpoint says durably that it was evaluated and that its publication is pending."""

    KIND: ClassVar[str] = "publication-pended"
    VERSION: ClassVar[int] = 1
    save: SaveId


@frozen(kw_only=True)
class PublicationCompleted:
    """The checkpoint says durably that it is published, and everything that publication asks for was done."""

    KIND: ClassVar[str] = "publication-completed"
    VERSION: ClassVar[int] = 1
    save: SaveId


# --- commands ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class ReportFailed:
    """The evaluation of the pending checkpoint raised."""

    step: int
    detail: str


@frozen(kw_only=True)
class ReportPassed:
    """The evaluation of the pending checkpoint returned.

    Where `archive` names a destination, its publication waits for an archive there.
    """

    step: int
    archive: str = ""


@frozen(kw_only=True)
class ReportMarked:
    """The checkpoint durably carries this generation."""

    save: SaveId
    generation: Generation


# --- effect ------------------------------------------------------------------------------------


@frozen(kw_only=True)
class MarkGeneration:
    """Write this generation beside the manifest of the save's checkpoint: created, never replaced."""

    save: SaveId
    generation: Generation


# --- state -------------------------------------------------------------------------------------


class ValidationStage(Stage):
    IDLE = "idle"
    INTENDED = "intended"
    EVALUATING = "evaluating"
    PASSED = "passed"
    PUBLISHING = "publishing"


@frozen(kw_only=True)
class Validation:
    """The one validation that is under way, and the newest save whose validation was completed."""

    stage: ValidationStage = ValidationStage.IDLE
    save: SaveId | None = None
    completed: SaveId | None = None

    @property
    def intended(self) -> SaveId | None:
        """The open save that will be evaluation-pending once it is sealed."""
        return self.save if self.stage is ValidationStage.INTENDED else None

    @property
    def pending(self) -> SaveId | None:
        """The published checkpoint that is private until its validation is completed (INV-07)."""
        return None if self.stage is ValidationStage.INTENDED else self.save


TABLE: Table[ValidationStage] = {
    (ValidationStage.IDLE, EvaluationPended): ValidationStage.INTENDED,
    (ValidationStage.INTENDED, SaveSealed): ValidationStage.EVALUATING,
    (ValidationStage.INTENDED, SaveAbandoned): ValidationStage.IDLE,
    (ValidationStage.EVALUATING, EvaluationFailed): ValidationStage.EVALUATING,
    (ValidationStage.EVALUATING, EvaluationPassed): ValidationStage.PASSED,
    (ValidationStage.PASSED, PublicationPended): ValidationStage.PUBLISHING,
    (ValidationStage.PUBLISHING, PublicationCompleted): ValidationStage.IDLE,
    **{(stage, RunOpened): stage for stage in ValidationStage},
    (ValidationStage.IDLE, RunResumed): ValidationStage.IDLE,
    (ValidationStage.EVALUATING, RunResumed): ValidationStage.EVALUATING,
}
"""Saves beside a validation are another matter: a `SaveSealed` or `SaveAbandoned` of any other stage passes by."""


def on_evaluation_pended(validation: Validation, record: EvaluationPended) -> Validation:
    return evolve(validation, stage=follow(TABLE, validation.stage, record, of="the validation"), save=record.save)


def on_save_sealed(validation: Validation, record: SaveSealed) -> Validation:
    if validation.intended is None:
        return validation
    return evolve(validation, stage=follow(TABLE, validation.stage, record, of="the validation"))


def on_save_abandoned(validation: Validation, record: SaveAbandoned) -> Validation:
    if validation.intended is None:
        return validation
    return evolve(validation, stage=follow(TABLE, validation.stage, record, of="the validation"), save=None)


def on_step(validation: Validation, record: EvaluationFailed | EvaluationPassed | PublicationPended) -> Validation:
    return evolve(validation, stage=_follow(validation, record, record.save))


def on_publication_completed(validation: Validation, record: PublicationCompleted) -> Validation:
    return Validation(stage=_follow(validation, record, record.save), completed=record.save)


def on_run_opened(validation: Validation, record: RunOpened) -> Validation:
    return evolve(validation, stage=follow(TABLE, validation.stage, record, of="the validation"))


def on_run_resumed(validation: Validation, record: RunResumed) -> Validation:
    stage = follow(TABLE, validation.stage, record, of="the validation")
    if stage is ValidationStage.EVALUATING and record.save != validation.save:
        return Validation(completed=validation.completed)
    return evolve(validation, stage=stage)


def _follow(validation: Validation, record: object, save: SaveId) -> ValidationStage:
    stage = follow(TABLE, validation.stage, record, of="the validation")
    if save != validation.save:
        raise IllegalTransition(f"{type(record).__name__} for save {save}; the validation is of {validation.save}")
    return stage


# --- decisions ---------------------------------------------------------------------------------


def pend(validation: Validation, opened: SaveOpened) -> tuple[EvaluationPended, ...]:
    """The record that makes the save which is being opened the first half of a validation."""
    if opened.plan != FULL:
        raise Refused(f"step {opened.save.step} cannot be pending: only a full checkpoint carries a validation")
    if validation.stage is not ValidationStage.IDLE:
        raise Refused(
            f"the validation of {_directory(validation)} is {validation.stage.value}; complete it before the next one"
        )
    return (EvaluationPended(save=opened.save),)


def report_failed(validation: Validation, command: ReportFailed, *, run: Run) -> tuple[EvaluationFailed, ...]:
    return (EvaluationFailed(save=_evaluating(validation, run, command.step), detail=command.detail),)


def report_passed(validation: Validation, command: ReportPassed, *, run: Run) -> tuple[EvaluationPassed, ...]:
    return (EvaluationPassed(save=_evaluating(validation, run, command.step)),)


def report_marked(
    validation: Validation, command: ReportMarked, *, owed: bool
) -> tuple[PublicationPended | PublicationCompleted, ...]:
    if MarkGeneration(save=command.save, generation=command.generation) not in due(validation, owed=owed):
        raise Refused(
            f"a report that {command.save.directory} is marked {command.generation.value}, which is not due; the "
            f"validation of {_directory(validation)} is {validation.stage.value}"
        )
    if command.generation is Generation.PUBLICATION_PENDING:
        return (PublicationPended(save=command.save),)
    return (PublicationCompleted(save=command.save),)


def require_at_rest(validation: Validation) -> None:
    """`Refused` where an epoch cannot decide yet what it continues from: the table at the top has no such resume."""
    if (validation.stage, RunResumed) not in TABLE:
        raise Refused(
            f"cannot resume: the validation of {_directory(validation)} is {validation.stage.value}; do what is due "
            "first"
        )


def _evaluating(validation: Validation, run: Run, step: int) -> SaveId:
    require_open(run, f"evaluate step {step}")
    save = validation.save
    if validation.stage is not ValidationStage.EVALUATING or save is None or save.step != step:
        raise Refused(
            f"no evaluation of step {step} is pending; {_directory(validation)} is {validation.stage.value}"
        )
    return save


def _directory(validation: Validation) -> str:
    return "nothing" if validation.save is None else validation.save.directory


def due(validation: Validation, *, owed: bool) -> tuple[MarkGeneration, ...]:
    """What the engines have to do: say on the checkpoint itself how far its validation is.

    `owed` says that its publication still waits for its archive.
    """
    if validation.save is not None and validation.stage is ValidationStage.PASSED:
        return (MarkGeneration(save=validation.save, generation=Generation.PUBLICATION_PENDING),)
    if validation.save is not None and validation.stage is ValidationStage.PUBLISHING and not owed:
        return (MarkGeneration(save=validation.save, generation=Generation.PUBLISHED),)
    return ()


def obligation(validation: Validation) -> SaveId | None:
    """What the trainer has to do: evaluate the checkpoint of this save."""
    return validation.save if validation.stage is ValidationStage.EVALUATING else None
