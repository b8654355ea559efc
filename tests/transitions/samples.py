"""States in every stage and one legal record of every kind, built by hand.

`PARTS` gives each room's part of the state in each of its stages; `record_for` gives a record of a kind that fits a
state in everything but the stages, so that only a table decides whether it is legal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import ModuleType
from typing import Any

from attrs import evolve
from rpds import HashTrieMap

from milepost.transitions import emergency, pointing, run, saving, sweeping, updates
from milepost.transitions.emergency import Emergency, EmergencyCovered, EmergencyStage, TerminationObserved
from milepost.transitions.machine import Record, State
from milepost.transitions.pointing import Pointer, PointerAdvanced, PointerStage
from milepost.transitions.run import OpenRun, Run, RunEnded, RunOpened, RunResumed, RunStage, SegmentOpened
from milepost.transitions.saving import (
    ComponentStored,
    Save,
    SaveAbandoned,
    SaveOpened,
    SaveSealed,
    SaveStage,
    Saving,
)
from milepost.transitions.sweeping import Debris, DebrisCleared, DebrisStage
from milepost.transitions.updates import (
    StepReported,
    UpdateAborted,
    UpdateApplied,
    UpdateOpened,
    Updates,
    UpdateSkipped,
    UpdateStage,
)
from milepost.transitions.values import (
    FULL,
    Clocks,
    Component,
    FileDigest,
    Metric,
    Mode,
    Outcome,
    Reason,
    ResumeKind,
    SaveId,
    StoredComponent,
)

RUN_TS = "20261129160904"
SAVE = SaveId(10, 1, 1)
OLDER = SaveId(5, 1, 1)
MANIFEST = FileDigest(path=".posttrain-manifest.json", size=300, digest="blake3:" + "0" * 64)
STORED = tuple(
    StoredComponent(component=part, files=(FileDigest(path=f"{part.value}.pt", size=7, digest="blake3:" + "1" * 64),))
    for part in FULL
)

ROOMS: Mapping[str, ModuleType] = {
    "run": run,
    "updates": updates,
    "saving": saving,
    "pointer": pointing,
    "debris": sweeping,
    "emergency": emergency,
}


def open_run_command(*, segment: int = 1, run_ts: str = RUN_TS) -> OpenRun:
    return OpenRun(
        segment=segment,
        closes=(),
        execution_id="execution",
        run_ts=run_ts,
        nonce="nonce",
        host="host",
        pid=1,
        milepost="0.1.0",
        world_size=1,
    )


def run_opened(epoch: int, *, run_ts: str = RUN_TS) -> RunOpened:
    return RunOpened(
        epoch=epoch,
        execution_id="execution",
        run_ts=run_ts,
        nonce="nonce",
        host="host",
        pid=1,
        milepost="0.1.0",
        world_size=1,
    )


def resumed(kind: ResumeKind = ResumeKind.FRESH, *, step: int = 0, clocks: Clocks | None = None) -> RunResumed:
    return RunResumed(
        resume=kind, step=step, source="", save=None, clocks=clocks or Clocks(), passed_over=(), notes=()
    )


RESUMED_RUN = Run(stage=RunStage.OPEN, epoch=1, run_ts=RUN_TS, segment=1, opened=run_opened(1), resumed=resumed())


def save_in(stage: SaveStage, *, of: SaveId = SAVE, stored: int = len(FULL)) -> Save:
    """A full save in a stage, with the first `stored` of its components."""
    return Save(
        id=of,
        stage=stage,
        plan=FULL,
        reason=Reason.CADENCE,
        mode=Mode.SYNCHRONOUS,
        components=STORED[:stored],
        manifest=MANIFEST if stage is SaveStage.SEALED else None,
    )


def saving_in(stage: SaveStage, *, stored: int = len(FULL)) -> Saving:
    """Saving whose newest attempt, `SAVE`, is in the stage; nothing was attempted for NONE."""
    if stage is SaveStage.NONE:
        return Saving()
    if stage is SaveStage.ABANDONED:
        return Saving(counter=1)
    save = save_in(stage, stored=stored)
    if stage is SaveStage.SEALED:
        return Saving(sealed=HashTrieMap({SAVE.step: save}), newest=SAVE, counter=1)
    return Saving(open=(save,), counter=1)


PARTS: Mapping[str, Mapping[Any, Any]] = {
    "run": {
        RunStage.UNOPENED: Run(),
        RunStage.OPEN: evolve(RESUMED_RUN, resumed=None),
        RunStage.ENDED: evolve(
            RESUMED_RUN, stage=RunStage.ENDED, ended=RunEnded(outcome=Outcome.STOPPED, step=1, detail="")
        ),
    },
    "updates": {stage: Updates(stage=stage) for stage in UpdateStage},
    "saving": {stage: saving_in(stage) for stage in SaveStage},
    "pointer": {
        PointerStage.NOWHERE: Pointer(),
        PointerStage.STALE: Pointer(stage=PointerStage.STALE, target=SAVE),
        PointerStage.AT: Pointer(stage=PointerStage.AT, at=SAVE, target=SAVE),
    },
    "debris": {stage: Debris(stage=stage) for stage in DebrisStage},
    "emergency": {
        EmergencyStage.CALM: Emergency(),
        EmergencyStage.OBSERVED: Emergency(stage=EmergencyStage.OBSERVED, reason="signal", step=10),
        EmergencyStage.COVERED: Emergency(stage=EmergencyStage.COVERED, reason="signal", step=10, save=SAVE),
    },
}


def state_in(room: str, stage: Enum, kind: type) -> State:
    """A state whose room is in the stage, and whose other rooms have nothing against a record of the kind."""
    stored = len(FULL) - 1 if kind is ComponentStored else len(FULL)
    busy = kind in (ComponentStored, SaveSealed, SaveAbandoned)
    state = State(
        run=PARTS["run"][RunStage.OPEN],
        saving=saving_in(SaveStage.WRITING if busy else SaveStage.NONE, stored=stored),
        pointer=PARTS["pointer"][PointerStage.STALE],
        debris=PARTS["debris"][DebrisStage.DUE],
        emergency=PARTS["emergency"][EmergencyStage.OBSERVED if kind is EmergencyCovered else EmergencyStage.CALM],
        updates=PARTS["updates"][
            UpdateStage.ACCUMULATING
            if kind in (UpdateApplied, UpdateSkipped, UpdateAborted)
            else UpdateStage.QUIESCENT
        ],
    )
    part: Any = saving_in(SaveStage(stage), stored=stored) if room == "saving" else PARTS[room][stage]
    changed: dict[str, Any] = {room: part}
    return evolve(state, **changed)


_RECORDS: Mapping[type, Callable[[State], Record]] = {
    SegmentOpened: lambda state: SegmentOpened(number=state.run.segment + 1, closes=()),
    RunOpened: lambda state: run_opened(state.run.epoch + 1),
    RunResumed: lambda state: resumed(),
    RunEnded: lambda state: RunEnded(outcome=Outcome.COMPLETED, step=10, detail=""),
    UpdateOpened: lambda state: UpdateOpened(attempt=state.updates.clocks.attempt_id + 1, step=10),
    UpdateApplied: lambda state: UpdateApplied(attempt=state.updates.clocks.attempt_id + 1),
    UpdateSkipped: lambda state: UpdateSkipped(attempt=state.updates.clocks.attempt_id + 1, why="inf"),
    UpdateAborted: lambda state: UpdateAborted(attempt=state.updates.clocks.attempt_id + 1, why="left"),
    StepReported: lambda state: StepReported(step=10, metrics=(Metric(name="loss", value="0.5"),)),
    SaveOpened: lambda state: SaveOpened(save=SAVE, plan=FULL, reason=Reason.CADENCE, mode=Mode.SYNCHRONOUS, why=""),
    ComponentStored: lambda state: ComponentStored(
        save=SAVE, component=Component.TRAINING_STATE, files=STORED[-1].files
    ),
    SaveSealed: lambda state: SaveSealed(save=SAVE, manifest=MANIFEST),
    SaveAbandoned: lambda state: SaveAbandoned(save=SAVE, code="no-space", detail="7 bytes were left"),
    PointerAdvanced: lambda state: PointerAdvanced(save=SAVE),
    DebrisCleared: lambda state: DebrisCleared(names=("9.1.1",)),
    TerminationObserved: lambda state: TerminationObserved(step=10, reason="signal", detail="SIGTERM"),
    EmergencyCovered: lambda state: EmergencyCovered(step=10, save=SAVE),
}


def record_for(kind: type, state: State) -> Record:
    """A record of the kind that fits the state in everything but the stages of its rooms."""
    return _RECORDS[kind](state)
