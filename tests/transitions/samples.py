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

from milepost.transitions import (
    archiving,
    boundary,
    emergency,
    pointing,
    retention,
    run,
    sampling,
    saving,
    sweeping,
    updates,
    validation,
)
from milepost.transitions.archiving import (
    Archive,
    ArchiveDeclared,
    ArchiveFailed,
    ArchiveMarked,
    ArchiveStage,
    Archiving,
)
from milepost.transitions.boundary import (
    Boundary,
    BoundaryOpened,
    BoundaryStage,
    Joined,
    RolesResumed,
    RoleStored,
    RoleUpdated,
)
from milepost.transitions.emergency import Emergency, EmergencyCovered, EmergencyStage, TerminationObserved
from milepost.transitions.machine import Record, State
from milepost.transitions.pointing import Pointer, PointerAdvanced, PointerStage
from milepost.transitions.retention import (
    Part,
    Prune,
    Pruned,
    PruneFailed,
    PruneOpened,
    PruneStage,
    Retention,
)
from milepost.transitions.run import (
    OpenRun,
    Run,
    RunEnded,
    RunOpened,
    RunResumed,
    RunStage,
    SegmentOpened,
    StoreProbed,
)
from milepost.transitions.sampling import Sampling, SamplingRestored, SamplingStage, WorkIssued, WorkSettled
from milepost.transitions.saving import (
    ArtifactSealed,
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
from milepost.transitions.validation import (
    EvaluationFailed,
    EvaluationPassed,
    EvaluationPended,
    PublicationCompleted,
    PublicationPended,
    Validation,
    ValidationStage,
)
from milepost.transitions.values import (
    FULL,
    Clocks,
    Component,
    FileDigest,
    LoopValue,
    Metric,
    Mode,
    Outcome,
    Plan,
    Promised,
    Reason,
    ResumeKind,
    RoleClocks,
    SamplingPoint,
    SaveId,
    StoredComponent,
)

RUN_TS = "20261129160904"
SAVE = SaveId(10, 1, 1)
OLDER = SaveId(5, 1, 1)
PARTIAL: Plan = (Component.MODEL, Component.TRAINING_STATE)
MANIFEST = FileDigest(path=".posttrain-manifest.json", size=300, digest="blake3:" + "0" * 64)
STORED = tuple(
    StoredComponent(component=part, files=(FileDigest(path=f"{part.value}.pt", size=7, digest="blake3:" + "1" * 64),))
    for part in FULL
)

ROOMS: Mapping[str, ModuleType] = {
    "run": run,
    "updates": updates,
    "saving": saving,
    "boundary": boundary,
    "validation": validation,
    "archiving": archiving,
    "retention": retention,
    "pointer": pointing,
    "debris": sweeping,
    "emergency": emergency,
    "sampling": sampling,
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


def resumed(
    kind: ResumeKind = ResumeKind.FRESH, *, step: int = 0, save: SaveId | None = None, clocks: Clocks | None = None
) -> RunResumed:
    return RunResumed(
        resume=kind, step=step, source="", save=save, clocks=clocks or Clocks(), passed_over=(), notes=()
    )


RESUMED_RUN = Run(stage=RunStage.OPEN, epoch=1, run_ts=RUN_TS, segment=1, opened=run_opened(1), resumed=resumed())


def stored_of(plan: Plan) -> tuple[StoredComponent, ...]:
    """Every component of the plan, stored."""
    return tuple(part for part in STORED if part.component in plan)


def save_in(stage: SaveStage, *, of: SaveId = SAVE, plan: Plan = FULL, stored: int = len(FULL)) -> Save:
    """A save in a stage, with the first `stored` of its components."""
    return Save(
        id=of,
        stage=stage,
        plan=plan,
        reason=Reason.CADENCE,
        mode=Mode.SYNCHRONOUS,
        components=stored_of(plan)[:stored],
        manifest=MANIFEST if stage is SaveStage.SEALED else None,
    )


def saving_in(stage: SaveStage, *, plan: Plan = FULL, stored: int = len(FULL)) -> Saving:
    """Saving whose newest attempt, `SAVE`, is in the stage; nothing was attempted for NONE."""
    if stage is SaveStage.NONE:
        return Saving()
    if stage is SaveStage.ABANDONED:
        return Saving(counter=1)
    if stage is SaveStage.SEALED:
        return published(full=(SAVE,)) if plan == FULL else published(artifacts=(SAVE,), plan=plan)
    return Saving(open=(save_in(stage, plan=plan, stored=stored),), counter=1)


def published(*, full: tuple[SaveId, ...] = (), artifacts: tuple[SaveId, ...] = (), plan: Plan = PARTIAL) -> Saving:
    """Saving with these checkpoints, and these artifacts of the plan."""
    return Saving(
        sealed=HashTrieMap({save.step: save_in(SaveStage.SEALED, of=save) for save in full}),
        newest=max(full, default=None),
        artifacts=HashTrieMap({save.step: save_in(SaveStage.SEALED, of=save, plan=plan) for save in artifacts}),
        newest_artifact=max(artifacts, default=None),
        counter=1,
    )


ROLES = (
    RoleClocks(role="critic", clocks=Clocks(attempt_id=9, optimizer_step=8, skipped_total=1, skipped_consecutive=1)),
    RoleClocks(role="policy", clocks=Clocks(attempt_id=4, optimizer_step=4)),
)
BOTH_ROLES = ("critic", "policy")
LOOP_STATE = (LoopValue(name="critic_warmup_iterations", value="5"),)


def boundary_in(stage: BoundaryStage, *, stored: tuple[str, ...] = BOTH_ROLES) -> Boundary:
    """The boundary of two roles in the stage; `SAVE` joins them, and these of them are stored."""
    if stage is BoundaryStage.APART:
        return Boundary(roles=ROLES)
    joined = Joined(save=SAVE, roles=ROLES, loop_state=LOOP_STATE, stored=stored)
    return Boundary(stage=stage, roles=ROLES, open=joined)


def prune_in(stage: PruneStage, *, of: SaveId = SAVE, part: Part = Part.OPTIMIZER) -> Prune:
    """A prune of the part, of the files that `save_in` has of it."""
    files = ("model.pt", "optimizer.pt", "training_state.pt")
    return Prune(save=of, part=part, files=files[1:2] if part is Part.OPTIMIZER else files, stage=stage)


def retention_in(stage: PruneStage, *, of: SaveId = SAVE, part: Part = Part.OPTIMIZER) -> Retention:
    """Retention whose one prune, of the part of `of`, is in the stage."""
    if stage is PruneStage.NONE:
        return Retention()
    if stage is not PruneStage.GONE:
        return Retention(open=(prune_in(stage, of=of, part=part),))
    gone = HashTrieMap({of.step: of})
    return Retention(removed=gone) if part is Part.CHECKPOINT else Retention(released=gone)


def validation_in(stage: ValidationStage) -> Validation:
    """The validation of `SAVE` in the stage."""
    return Validation(stage=stage, save=None if stage is ValidationStage.IDLE else SAVE)


DESTINATION = "s3://archive/project/group/run/checkpoints"
INTERRUPTED = "its writer ended before it was complete"
ARCHIVED = ArchiveMarked(save=SAVE, files=4, size=321, sent=2)


def archiving_in(stage: ArchiveStage, *, of: SaveId = SAVE, strict: bool = False) -> Archiving:
    """Archiving whose one archive, of the checkpoint `of`, is in the stage; a failed one was interrupted."""
    if stage is ArchiveStage.NONE:
        return Archiving()
    if stage is ArchiveStage.MARKED:
        return Archiving(marked=HashTrieMap({of: evolve(ARCHIVED, save=of)}))
    failed = stage is ArchiveStage.FAILED
    archive = Archive(
        save=of,
        plan=FULL,
        destination=DESTINATION,
        strict=strict,
        stage=stage,
        code="interrupted" if failed else "",
        detail=INTERRUPTED if failed else "",
    )
    return Archiving(open=(archive,))


START = SamplingPoint(epoch=1, remaining=100, sampler_state='{"offset":0}')
BEHIND = SamplingPoint(epoch=1, remaining=98, sampler_state='{"offset":2}')


def sampling_in(stage: SamplingStage) -> Sampling:
    """Sampling in the stage; where it has BEGUN, work of two completions is outstanding."""
    if stage is SamplingStage.UNBEGUN:
        return Sampling()
    begun = Sampling(stage=stage, boundary=START, tail=START)
    return sampling.on_issued(begun, WorkIssued(number=1, completions=2, after=BEHIND))


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
    "boundary": {stage: boundary_in(stage) for stage in BoundaryStage},
    "validation": {stage: validation_in(stage) for stage in ValidationStage},
    "archiving": {stage: archiving_in(stage) for stage in ArchiveStage},
    "retention": {stage: retention_in(stage) for stage in PruneStage},
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
    "sampling": {stage: sampling_in(stage) for stage in SamplingStage},
}


# Where a record needs more of a room than the calmest stage, so that nothing but the tested room is against it.
_NEEDS: Mapping[type, Mapping[str, Enum]] = {
    UpdateApplied: {"updates": UpdateStage.ACCUMULATING},
    UpdateSkipped: {"updates": UpdateStage.ACCUMULATING},
    UpdateAborted: {"updates": UpdateStage.ACCUMULATING},
    BoundaryOpened: {"boundary": BoundaryStage.APART},
    RoleStored: {"boundary": BoundaryStage.JOINED},
    RoleUpdated: {"boundary": BoundaryStage.APART},
    EvaluationFailed: {"validation": ValidationStage.EVALUATING},
    EvaluationPassed: {"validation": ValidationStage.EVALUATING},
    PublicationPended: {"validation": ValidationStage.PASSED},
    PublicationCompleted: {"validation": ValidationStage.PUBLISHING},
    ArchiveMarked: {"archiving": ArchiveStage.DECLARED},
    ArchiveFailed: {"archiving": ArchiveStage.DECLARED},
    Pruned: {"retention": PruneStage.OPEN},
    PruneFailed: {"retention": PruneStage.OPEN},
    EmergencyCovered: {"emergency": EmergencyStage.OBSERVED},
    WorkIssued: {"sampling": SamplingStage.BEGUN},
    WorkSettled: {"sampling": SamplingStage.BEGUN},
}


def state_in(room: str, stage: Enum, kind: type) -> State:
    """A state whose room is in the stage, and whose other rooms have nothing against a record of the kind."""
    plan = PARTIAL if kind is ArtifactSealed else FULL
    stored = len(FULL) - 1 if kind is ComponentStored else len(FULL)
    busy = kind in (ComponentStored, SaveSealed, ArtifactSealed, SaveAbandoned)
    calm = State(
        run=PARTS["run"][RunStage.OPEN],
        saving=saving_in(SaveStage.WRITING if busy else SaveStage.NONE, plan=plan, stored=stored),
        pointer=PARTS["pointer"][PointerStage.STALE],
        debris=PARTS["debris"][DebrisStage.DUE],
    )
    parts: dict[str, Any] = {name: PARTS[name][needed] for name, needed in _NEEDS.get(kind, {}).items()}
    parts[room] = saving_in(SaveStage(stage), plan=plan, stored=stored) if room == "saving" else PARTS[room][stage]
    if "boundary" in parts and kind is RoleStored and parts["boundary"].open is not None:
        parts["boundary"] = boundary_in(BoundaryStage.JOINED, stored=BOTH_ROLES[:1])
    if "boundary" in parts and kind is RolesResumed:
        parts["boundary"] = evolve(parts["boundary"], roles=())
    return evolve(calm, **parts)


_RECORDS: Mapping[type, Callable[[State], Record]] = {
    SegmentOpened: lambda state: SegmentOpened(number=state.run.segment + 1, closes=()),
    RunOpened: lambda state: run_opened(state.run.epoch + 1),
    StoreProbed: lambda state: StoreProbed(
        store="s3://b/ at store:1", promises=(Promised(name="create", seen="kept"),)
    ),
    RunResumed: lambda state: resumed(save=state.validation.save),
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
    ArtifactSealed: lambda state: ArtifactSealed(save=SAVE, manifest=MANIFEST),
    SaveAbandoned: lambda state: SaveAbandoned(save=SAVE, code="no-space", detail="7 bytes were left"),
    BoundaryOpened: lambda state: BoundaryOpened(save=SAVE, roles=ROLES, loop_state=LOOP_STATE),
    RoleStored: lambda state: RoleStored(save=SAVE, role=BOTH_ROLES[-1]),
    RoleUpdated: lambda state: RoleUpdated(role=BOTH_ROLES[-1], applied=1, skipped=0),
    RolesResumed: lambda state: RolesResumed(roles=ROLES, loop_state=LOOP_STATE),
    EvaluationPended: lambda state: EvaluationPended(save=SAVE),
    EvaluationFailed: lambda state: EvaluationFailed(save=SAVE, detail="ValueError: no held-out data"),
    EvaluationPassed: lambda state: EvaluationPassed(save=SAVE),
    PublicationPended: lambda state: PublicationPended(save=SAVE),
    PublicationCompleted: lambda state: PublicationCompleted(save=SAVE),
    ArchiveDeclared: lambda state: ArchiveDeclared(save=SAVE, plan=FULL, destination=DESTINATION, strict=False),
    ArchiveMarked: lambda state: ARCHIVED,
    ArchiveFailed: lambda state: ArchiveFailed(save=SAVE, code="interrupted", detail=INTERRUPTED),
    PruneOpened: lambda state: PruneOpened(
        save=SAVE, part=Part.OPTIMIZER, files=("optimizer.pt",), why="it is number 2 from the newest"
    ),
    Pruned: lambda state: Pruned(save=SAVE, part=Part.OPTIMIZER),
    PruneFailed: lambda state: PruneFailed(save=SAVE, part=Part.OPTIMIZER, detail="EIO"),
    PointerAdvanced: lambda state: PointerAdvanced(save=SAVE),
    DebrisCleared: lambda state: DebrisCleared(names=("9.1.1",)),
    TerminationObserved: lambda state: TerminationObserved(step=10, reason="signal", detail="SIGTERM"),
    EmergencyCovered: lambda state: EmergencyCovered(step=10, save=SAVE),
    WorkIssued: lambda state: WorkIssued(
        number=state.sampling.issued + 1, completions=1, after=evolve(BEHIND, remaining=BEHIND.remaining - 1)
    ),
    WorkSettled: lambda state: WorkSettled(number=1, index=1),
    SamplingRestored: lambda state: SamplingRestored(boundary=START),
}


def record_for(kind: type, state: State) -> Record:
    """A record of the kind that fits the state in everything but the stages of its rooms."""
    return _RECORDS[kind](state)
