"""A termination that was observed, until what the run needs to survive it is published.

stage      record                next       promise
CALM       TerminationObserved   OBSERVED   the run was told to stop, and by what
OBSERVED   EmergencyCovered      COVERED    what has to be kept of the step is published: the run may stop
any        RunOpened             CALM       a new writer was not told anything yet
"""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from milepost.transitions.errors import Refused
from milepost.transitions.run import Run, RunOpened, require_open
from milepost.transitions.saving import Saving
from milepost.transitions.tables import Stage, Table, follow
from milepost.transitions.values import FULL, Plan, SaveId

# --- records -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class TerminationObserved:
    """At the boundary of this step the run learned that it has to stop."""

    KIND: ClassVar[str] = "termination-observed"
    VERSION: ClassVar[int] = 1
    step: int
    reason: str
    detail: str


@frozen(kw_only=True)
class EmergencyCovered:
    """What was published by this save carries what the run has to keep of the step at which it stops."""

    KIND: ClassVar[str] = "emergency-covered"
    VERSION: ClassVar[int] = 1
    step: int
    save: SaveId


# --- commands ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class ObserveTermination:
    """The watch saw a signal, the sentinel or the deadline; a second observation is a no-op."""

    step: int
    reason: str
    detail: str


@frozen(kw_only=True)
class CoverEmergency:
    """What is published of the step carries every component of `plan`."""

    step: int
    plan: Plan = FULL


# --- state -------------------------------------------------------------------------------------


class EmergencyStage(Stage):
    CALM = "calm"
    OBSERVED = "observed"
    COVERED = "covered"


@frozen(kw_only=True)
class Emergency:
    """Whether the run has to stop, why, and what covers it."""

    stage: EmergencyStage = EmergencyStage.CALM
    reason: str = ""
    step: int = 0
    save: SaveId | None = None


TABLE: Table[EmergencyStage] = {
    (EmergencyStage.CALM, TerminationObserved): EmergencyStage.OBSERVED,
    (EmergencyStage.OBSERVED, EmergencyCovered): EmergencyStage.COVERED,
    (EmergencyStage.CALM, RunOpened): EmergencyStage.CALM,
    (EmergencyStage.OBSERVED, RunOpened): EmergencyStage.CALM,
    (EmergencyStage.COVERED, RunOpened): EmergencyStage.CALM,
}


def on_observed(emergency: Emergency, record: TerminationObserved) -> Emergency:
    stage = follow(TABLE, emergency.stage, record, of="the emergency")
    return Emergency(stage=stage, reason=record.reason, step=record.step)


def on_covered(emergency: Emergency, record: EmergencyCovered) -> Emergency:
    stage = follow(TABLE, emergency.stage, record, of="the emergency")
    return Emergency(stage=stage, reason=emergency.reason, step=record.step, save=record.save)


def on_run_opened(emergency: Emergency, record: RunOpened) -> Emergency:
    return Emergency(stage=follow(TABLE, emergency.stage, record, of="the emergency"))


# --- decisions ---------------------------------------------------------------------------------


def observe(emergency: Emergency, command: ObserveTermination, *, run: Run) -> tuple[TerminationObserved, ...]:
    require_open(run, "observe a termination")
    if emergency.stage is not EmergencyStage.CALM:
        return ()
    return (TerminationObserved(step=command.step, reason=command.reason, detail=command.detail),)


def cover(emergency: Emergency, command: CoverEmergency, *, saving: Saving) -> tuple[EmergencyCovered, ...]:
    if emergency.stage is EmergencyStage.COVERED:
        return ()
    if emergency.stage is EmergencyStage.CALM:
        raise Refused("no termination was observed; there is nothing to cover")
    save = saving.holds(command.step, command.plan) if command.step >= emergency.step else None
    if save is None:
        raise Refused(
            f"nothing that is published of step {command.step} covers the stop at step {emergency.step}; save that "
            "step before the run stops"
        )
    return (EmergencyCovered(step=command.step, save=save.id),)
