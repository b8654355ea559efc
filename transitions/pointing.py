"""The life of the pointer, latest_checkpoint.txt: the one file that is ever replaced (INV-03).

stage     record            next      promise
NOWHERE   SaveSealed        STALE     there is something to point at
AT        SaveSealed        STALE     there is something newer to point at
STALE     SaveSealed        STALE     the same, once more
STALE     PointerAdvanced   AT        the pointer durably names the newest sealed checkpoint
AT        RunOpened         STALE     what an earlier process saw may have been a cache: write it again
STALE     RunOpened         STALE     the pointer is still to be written
NOWHERE   RunOpened         NOWHERE   there is nothing to point at
"""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve, frozen

from milepost.transitions.errors import IllegalTransition
from milepost.transitions.run import RunOpened
from milepost.transitions.saving import SaveSealed
from milepost.transitions.tables import Stage, Table, follow
from milepost.transitions.values import SaveId

# --- record, command, effect ------------------------------------------------------------------------------


@frozen(kw_only=True)
class PointerAdvanced:
    """latest_checkpoint.txt durably names this save's checkpoint."""

    KIND: ClassVar[str] = "pointer-advanced"
    VERSION: ClassVar[int] = 1
    save: SaveId


@frozen(kw_only=True)
class ReportPointed:
    """The pointer durably names the save."""

    save: SaveId


@frozen(kw_only=True)
class AdvancePointer:
    """Make the pointer name the save's checkpoint, as the writer of `epoch`."""

    save: SaveId
    epoch: int


# --- state ------------------------------------------------------------------------------------------------


class PointerStage(Stage):
    NOWHERE = "nowhere"
    STALE = "stale"
    AT = "at"


@frozen(kw_only=True)
class Pointer:
    """Where the pointer durably is (`at`), and where it belongs (`target`)."""

    stage: PointerStage = PointerStage.NOWHERE
    at: SaveId | None = None
    target: SaveId | None = None


TABLE: Table[PointerStage] = {
    (PointerStage.NOWHERE, SaveSealed): PointerStage.STALE,
    (PointerStage.AT, SaveSealed): PointerStage.STALE,
    (PointerStage.STALE, SaveSealed): PointerStage.STALE,
    (PointerStage.STALE, PointerAdvanced): PointerStage.AT,
    (PointerStage.AT, RunOpened): PointerStage.STALE,
    (PointerStage.STALE, RunOpened): PointerStage.STALE,
    (PointerStage.NOWHERE, RunOpened): PointerStage.NOWHERE,
}


def on_save_sealed(pointer: Pointer, record: SaveSealed) -> Pointer:
    stage = follow(TABLE, pointer.stage, record, of="the pointer")
    return evolve(pointer, stage=stage, target=record.save)


def on_pointer_advanced(pointer: Pointer, record: PointerAdvanced) -> Pointer:
    stage = follow(TABLE, pointer.stage, record, of="the pointer")
    if record.save != pointer.target:
        raise IllegalTransition(f"the pointer went to {record.save}; the newest is {pointer.target} (INV-03)")
    return evolve(pointer, stage=stage, at=record.save)


def on_run_opened(pointer: Pointer, record: RunOpened) -> Pointer:
    return evolve(pointer, stage=follow(TABLE, pointer.stage, record, of="the pointer"))


# --- decisions --------------------------------------------------------------------------------------------


def report_pointed(pointer: Pointer, command: ReportPointed) -> tuple[PointerAdvanced, ...]:
    return (PointerAdvanced(save=command.save),)


def due(pointer: Pointer, *, epoch: int) -> tuple[AdvancePointer, ...]:
    if pointer.stage is PointerStage.STALE and pointer.target is not None:
        return (AdvancePointer(save=pointer.target, epoch=epoch),)
    return ()
