"""The life of debris: what dead attempts leave in the staging area.

    stage   record          next    promise
    any     RunOpened       DUE     an earlier writer may have left some
    any     SaveAbandoned   DUE     this save left some
    DUE     DebrisCleared   CLEAN   none is left

Only ids of an epoch before the writer's own are swept, and its own abandoned ones; never one that is published.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from milepost.transitions.run import RunOpened
from milepost.transitions.saving import SaveAbandoned
from milepost.transitions.tables import Stage, Table, follow
from milepost.transitions.values import SaveId

# --- record, command, effect ------------------------------------------------------------------------------


@frozen(kw_only=True)
class DebrisCleared:
    """The staging area holds nothing of earlier epochs or of abandoned saves; these names were removed."""

    KIND: ClassVar[str] = "debris-cleared"
    VERSION: ClassVar[int] = 1
    names: tuple[str, ...]


@frozen(kw_only=True)
class ReportCleared:
    """The debris is gone."""

    names: tuple[str, ...]


@frozen(kw_only=True)
class ClearDebris:
    """Remove the staging of epochs before `epoch` and of these abandoned saves."""

    epoch: int
    abandoned: tuple[SaveId, ...]


# --- state ------------------------------------------------------------------------------------------------


class DebrisStage(Stage):
    CLEAN = "clean"
    DUE = "due"


@frozen(kw_only=True)
class Debris:
    """Whether there is something to clear, and which of this epoch's saves were abandoned since the last time."""

    stage: DebrisStage = DebrisStage.CLEAN
    abandoned: tuple[SaveId, ...] = ()


TABLE: Table[DebrisStage] = {
    (DebrisStage.CLEAN, RunOpened): DebrisStage.DUE,
    (DebrisStage.DUE, RunOpened): DebrisStage.DUE,
    (DebrisStage.CLEAN, SaveAbandoned): DebrisStage.DUE,
    (DebrisStage.DUE, SaveAbandoned): DebrisStage.DUE,
    (DebrisStage.DUE, DebrisCleared): DebrisStage.CLEAN,
}


def on_run_opened(debris: Debris, record: RunOpened) -> Debris:
    return Debris(stage=follow(TABLE, debris.stage, record, of="the debris"))


def on_save_abandoned(debris: Debris, record: SaveAbandoned) -> Debris:
    stage = follow(TABLE, debris.stage, record, of="the debris")
    return Debris(stage=stage, abandoned=(*debris.abandoned, record.save))


def on_debris_cleared(debris: Debris, record: DebrisCleared) -> Debris:
    return Debris(stage=follow(TABLE, debris.stage, record, of="the debris"))


# --- decisions --------------------------------------------------------------------------------------------


def report_cleared(debris: Debris, command: ReportCleared) -> tuple[DebrisCleared, ...]:
    return (DebrisCleared(names=command.names),)


def due(debris: Debris, *, epoch: int) -> tuple[ClearDebris, ...]:
    if debris.stage is DebrisStage.DUE:
        return (ClearDebris(epoch=epoch, abandoned=debris.abandoned),)
    return ()
