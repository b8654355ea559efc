"""The update clocks: one attempt at a time, each applied, skipped or taken back.

    stage          record          next           clocks
    QUIESCENT      UpdateOpened    ACCUMULATING   none moves
    ACCUMULATING   UpdateApplied   QUIESCENT      attempt and optimizer step advance; the row of skips ends
    ACCUMULATING   UpdateSkipped   QUIESCENT      attempt and both skip counters advance, nothing else
    ACCUMULATING   UpdateAborted   QUIESCENT      none moves: the next attempt has the same id
    any            StepReported    the same       evidence for people
    any            RunOpened       QUIESCENT      zero, until the resume brings the checkpoint's clocks
    QUIESCENT      RunResumed      QUIESCENT      those of what was restored

INV-12: nothing is saved inside an accumulation window, and attempts = applied + skipped.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve, frozen

from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.run import Run, RunOpened, RunResumed, require_open
from milepost.transitions.tables import Stage, Table, follow
from milepost.transitions.values import Clocks, Metric

# --- records -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class UpdateOpened:
    """An optimizer attempt began; gradients may be accumulating."""

    KIND: ClassVar[str] = "update-opened"
    VERSION: ClassVar[int] = 1
    attempt: int
    step: int


@frozen(kw_only=True)
class UpdateApplied:
    """The attempt's window was finite; the optimizer and the scheduler stepped."""

    KIND: ClassVar[str] = "update-applied"
    VERSION: ClassVar[int] = 1
    attempt: int


@frozen(kw_only=True)
class UpdateSkipped:
    """The attempt's window was thrown away; the optimizer, the scheduler and the weights did not move."""

    KIND: ClassVar[str] = "update-skipped"
    VERSION: ClassVar[int] = 1
    attempt: int
    why: str


@frozen(kw_only=True)
class UpdateAborted:
    """The attempt was taken back before it had an outcome; its id is free again."""

    KIND: ClassVar[str] = "update-aborted"
    VERSION: ClassVar[int] = 1
    attempt: int
    why: str


@frozen(kw_only=True)
class StepReported:
    """The training loop said this of its step."""

    KIND: ClassVar[str] = "step-reported"
    VERSION: ClassVar[int] = 1
    step: int
    metrics: tuple[Metric, ...]


# --- commands ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class OpenUpdate:
    """Begin an attempt for the loop's step."""

    step: int


@frozen(kw_only=True)
class ApplyUpdate:
    """The attempt's update was applied."""


@frozen(kw_only=True)
class SkipUpdate:
    """The attempt was not finite and was thrown away."""

    why: str


@frozen(kw_only=True)
class AbortUpdate:
    """Take the attempt back; without one this is a no-op."""

    why: str


@frozen(kw_only=True)
class ReportStep:
    """Note what the loop measured at a step."""

    step: int
    metrics: tuple[Metric, ...]


# --- state -------------------------------------------------------------------------------------


class UpdateStage(Stage):
    QUIESCENT = "quiescent"
    ACCUMULATING = "accumulating"


@frozen(kw_only=True)
class Updates:
    """The clocks, and whether an attempt is open. `step` is the loop's step of the newest attempt."""

    stage: UpdateStage = UpdateStage.QUIESCENT
    clocks: Clocks = Clocks()
    step: int = 0


TABLE: Table[UpdateStage] = {
    (UpdateStage.QUIESCENT, UpdateOpened): UpdateStage.ACCUMULATING,
    (UpdateStage.ACCUMULATING, UpdateApplied): UpdateStage.QUIESCENT,
    (UpdateStage.ACCUMULATING, UpdateSkipped): UpdateStage.QUIESCENT,
    (UpdateStage.ACCUMULATING, UpdateAborted): UpdateStage.QUIESCENT,
    (UpdateStage.QUIESCENT, StepReported): UpdateStage.QUIESCENT,
    (UpdateStage.ACCUMULATING, StepReported): UpdateStage.ACCUMULATING,
    (UpdateStage.QUIESCENT, RunOpened): UpdateStage.QUIESCENT,
    (UpdateStage.ACCUMULATING, RunOpened): UpdateStage.QUIESCENT,
    (UpdateStage.QUIESCENT, RunResumed): UpdateStage.QUIESCENT,
}


def on_opened_update(updates: Updates, record: UpdateOpened) -> Updates:
    stage = follow(TABLE, updates.stage, record, of="the update")
    _expect(record.attempt, updates.clocks.attempt_id + 1)
    return Updates(stage=stage, clocks=updates.clocks, step=record.step)


def on_applied(updates: Updates, record: UpdateApplied) -> Updates:
    stage = follow(TABLE, updates.stage, record, of="the update")
    clocks = updates.clocks
    _expect(record.attempt, clocks.attempt_id + 1)
    moved = Clocks(
        attempt_id=record.attempt,
        optimizer_step=clocks.optimizer_step + 1,
        skipped_total=clocks.skipped_total,
    )
    return Updates(stage=stage, clocks=moved, step=updates.step)


def on_skipped(updates: Updates, record: UpdateSkipped) -> Updates:
    stage = follow(TABLE, updates.stage, record, of="the update")
    clocks = updates.clocks
    _expect(record.attempt, clocks.attempt_id + 1)
    moved = Clocks(
        attempt_id=record.attempt,
        optimizer_step=clocks.optimizer_step,
        skipped_total=clocks.skipped_total + 1,
        skipped_consecutive=clocks.skipped_consecutive + 1,
    )
    return Updates(stage=stage, clocks=moved, step=updates.step)


def on_aborted(updates: Updates, record: UpdateAborted) -> Updates:
    stage = follow(TABLE, updates.stage, record, of="the update")
    _expect(record.attempt, updates.clocks.attempt_id + 1)
    return evolve(updates, stage=stage)


def on_reported(updates: Updates, record: StepReported) -> Updates:
    follow(TABLE, updates.stage, record, of="the update")
    return updates


def on_run_opened(updates: Updates, record: RunOpened) -> Updates:
    return Updates(stage=follow(TABLE, updates.stage, record, of="the update"))


def on_run_resumed(updates: Updates, record: RunResumed) -> Updates:
    stage = follow(TABLE, updates.stage, record, of="the update")
    return Updates(stage=stage, clocks=record.clocks, step=record.step)


def _expect(attempt: int, expected: int) -> None:
    if attempt != expected:
        raise IllegalTransition(f"attempt {attempt} where attempt {expected} comes next")


# --- decisions ---------------------------------------------------------------------------------


def open_update(updates: Updates, command: OpenUpdate, *, run: Run) -> tuple[UpdateOpened, ...]:
    require_open(run, f"begin step {command.step}")
    if updates.stage is UpdateStage.ACCUMULATING:
        raise Refused(
            f"the attempt of step {updates.step} is still open; apply, skip or abort it before step {command.step}"
        )
    return (UpdateOpened(attempt=updates.clocks.attempt_id + 1, step=command.step),)


def apply_update(updates: Updates, command: ApplyUpdate) -> tuple[UpdateApplied, ...]:
    return (UpdateApplied(attempt=_open_attempt(updates, "apply")),)


def skip_update(updates: Updates, command: SkipUpdate) -> tuple[UpdateSkipped, ...]:
    return (UpdateSkipped(attempt=_open_attempt(updates, "skip"), why=command.why),)


def abort_update(updates: Updates, command: AbortUpdate) -> tuple[UpdateAborted, ...]:
    if updates.stage is UpdateStage.QUIESCENT:
        return ()
    return (UpdateAborted(attempt=_open_attempt(updates, "abort"), why=command.why),)


def report_step(updates: Updates, command: ReportStep, *, run: Run) -> tuple[StepReported, ...]:
    require_open(run, f"report step {command.step}")
    return (StepReported(step=command.step, metrics=command.metrics),)


def _open_attempt(updates: Updates, verb: str) -> int:
    if updates.stage is UpdateStage.QUIESCENT:
        raise Refused(f"there is no open attempt to {verb}; open one first")
    return updates.clocks.attempt_id + 1
