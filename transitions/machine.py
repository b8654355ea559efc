"""The rooms joined: one state, one record type, one command type, one effect type.

`decide` says yes with records or raises `Refused`; `evolve` is total over legal pairs and raises
`IllegalTransition` for the others; `due` is what is outstanding. Dispatch goes by a table from type to room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve as replaced
from attrs import frozen

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
    ArchiveDeclared,
    ArchiveFailed,
    ArchiveMarked,
    ArchiveSave,
    Archiving,
    DeclareArchive,
    ReportArchived,
    ReportArchiveFailed,
    RetryArchives,
)
from milepost.transitions.boundary import (
    Boundary,
    BoundaryOpened,
    ReportRole,
    RolesResumed,
    RoleStored,
    RoleUpdated,
)
from milepost.transitions.emergency import (
    CoverEmergency,
    Emergency,
    EmergencyCovered,
    ObserveTermination,
    TerminationObserved,
)
from milepost.transitions.errors import IllegalTransition
from milepost.transitions.pointing import AdvancePointer, Pointer, PointerAdvanced, ReportPointed
from milepost.transitions.retention import (
    ApplyRetention,
    Pruned,
    PruneFailed,
    PruneOpened,
    PrunePart,
    ReportPruned,
    ReportPruneFailed,
    Retention,
)
from milepost.transitions.run import (
    AdoptResume,
    EndRun,
    OpenRun,
    ReportProbe,
    RotateSegment,
    Run,
    RunEnded,
    RunOpened,
    RunResumed,
    SegmentOpened,
    StoreProbed,
)
from milepost.transitions.sampling import (
    BeginSampling,
    IssueWork,
    Sampling,
    SamplingRestored,
    SettleWork,
    WorkIssued,
    WorkSettled,
)
from milepost.transitions.saving import (
    ArtifactSealed,
    ComponentStored,
    OpenSave,
    ReportAbsent,
    ReportFound,
    ReportGivenUp,
    ReportSealed,
    ReportStored,
    SaveAbandoned,
    SaveOpened,
    SaveSealed,
    Saving,
    SavingEffect,
)
from milepost.transitions.sweeping import ClearDebris, Debris, DebrisCleared, ReportCleared
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
)
from milepost.transitions.validation import (
    EvaluationFailed,
    EvaluationPassed,
    EvaluationPended,
    MarkGeneration,
    PublicationCompleted,
    PublicationPended,
    ReportFailed,
    ReportMarked,
    ReportPassed,
    Validation,
)
from milepost.transitions.values import SaveId

Record = (
    SegmentOpened
    | RunOpened
    | StoreProbed
    | RunResumed
    | RunEnded
    | UpdateOpened
    | UpdateApplied
    | UpdateSkipped
    | UpdateAborted
    | StepReported
    | SaveOpened
    | ComponentStored
    | SaveSealed
    | ArtifactSealed
    | SaveAbandoned
    | BoundaryOpened
    | RoleStored
    | RoleUpdated
    | RolesResumed
    | EvaluationPended
    | EvaluationFailed
    | EvaluationPassed
    | PublicationPended
    | PublicationCompleted
    | ArchiveDeclared
    | ArchiveMarked
    | ArchiveFailed
    | PruneOpened
    | Pruned
    | PruneFailed
    | PointerAdvanced
    | DebrisCleared
    | TerminationObserved
    | EmergencyCovered
    | WorkIssued
    | WorkSettled
    | SamplingRestored
)

Command = (
    OpenRun
    | RotateSegment
    | ReportProbe
    | AdoptResume
    | EndRun
    | OpenUpdate
    | ApplyUpdate
    | SkipUpdate
    | AbortUpdate
    | ReportStep
    | OpenSave
    | ReportStored
    | ReportSealed
    | ReportGivenUp
    | ReportFound
    | ReportAbsent
    | ReportRole
    | ReportFailed
    | ReportPassed
    | ReportMarked
    | DeclareArchive
    | RetryArchives
    | ReportArchived
    | ReportArchiveFailed
    | ApplyRetention
    | ReportPruned
    | ReportPruneFailed
    | ReportPointed
    | ReportCleared
    | ObserveTermination
    | CoverEmergency
    | BeginSampling
    | IssueWork
    | SettleWork
)

Effect = SavingEffect | AdvancePointer | MarkGeneration | ArchiveSave | PrunePart | ClearDebris


@frozen(kw_only=True)
class State:
    """Everything that replaying a journal tells, one part per room."""

    run: Run = Run()
    updates: Updates = Updates()
    saving: Saving = Saving()
    boundary: Boundary = Boundary()
    validation: Validation = Validation()
    archiving: Archiving = Archiving()
    retention: Retention = Retention()
    pointer: Pointer = Pointer()
    debris: Debris = Debris()
    emergency: Emergency = Emergency()
    sampling: Sampling = Sampling()


def initial() -> State:
    """The state before the first record."""
    return State()


# Each record, and the parts of the state that it moves with the function that moves each.
EVOLVE: Mapping[type, tuple[tuple[str, Callable[[Any, Any], Any]], ...]] = {
    SegmentOpened: (("run", run.on_segment),),
    RunOpened: (
        ("run", run.on_opened),
        ("updates", updates.on_run_opened),
        ("saving", saving.on_run_opened),
        ("boundary", boundary.on_run_opened),
        ("validation", validation.on_run_opened),
        ("archiving", archiving.on_run_opened),
        ("retention", retention.on_run_opened),
        ("pointer", pointing.on_run_opened),
        ("debris", sweeping.on_run_opened),
        ("emergency", emergency.on_run_opened),
        ("sampling", sampling.on_run_opened),
    ),
    StoreProbed: (("run", run.on_probed),),
    RunResumed: (
        ("run", run.on_resumed),
        ("updates", updates.on_run_resumed),
        ("validation", validation.on_run_resumed),
    ),
    RunEnded: (("run", run.on_ended),),
    UpdateOpened: (("updates", updates.on_opened_update),),
    UpdateApplied: (("updates", updates.on_applied),),
    UpdateSkipped: (("updates", updates.on_skipped),),
    UpdateAborted: (("updates", updates.on_aborted),),
    StepReported: (("updates", updates.on_reported),),
    SaveOpened: (("saving", saving.on_save_opened), ("sampling", sampling.on_save_opened)),
    ComponentStored: (("saving", saving.on_component_stored),),
    SaveSealed: (
        ("saving", saving.on_save_sealed),
        ("boundary", boundary.on_save_sealed),
        ("validation", validation.on_save_sealed),
        ("pointer", pointing.on_save_sealed),
        ("sampling", sampling.on_save_settled),
    ),
    ArtifactSealed: (("saving", saving.on_artifact_sealed),),
    SaveAbandoned: (
        ("saving", saving.on_save_abandoned),
        ("boundary", boundary.on_save_abandoned),
        ("validation", validation.on_save_abandoned),
        ("debris", sweeping.on_save_abandoned),
        ("sampling", sampling.on_save_settled),
    ),
    BoundaryOpened: (("boundary", boundary.on_boundary_opened),),
    RoleStored: (("boundary", boundary.on_role_stored),),
    RoleUpdated: (("boundary", boundary.on_role_updated),),
    RolesResumed: (("boundary", boundary.on_roles_resumed),),
    EvaluationPended: (("validation", validation.on_evaluation_pended),),
    EvaluationFailed: (("validation", validation.on_step),),
    EvaluationPassed: (("validation", validation.on_step),),
    PublicationPended: (("validation", validation.on_step),),
    PublicationCompleted: (("validation", validation.on_publication_completed),),
    ArchiveDeclared: (("archiving", archiving.on_archive_declared),),
    ArchiveMarked: (("archiving", archiving.on_archive_marked),),
    ArchiveFailed: (("archiving", archiving.on_archive_failed),),
    PruneOpened: (("retention", retention.on_prune_opened),),
    Pruned: (("retention", retention.on_pruned),),
    PruneFailed: (("retention", retention.on_prune_failed),),
    PointerAdvanced: (("pointer", pointing.on_pointer_advanced),),
    DebrisCleared: (("debris", sweeping.on_debris_cleared),),
    TerminationObserved: (("emergency", emergency.on_observed),),
    EmergencyCovered: (("emergency", emergency.on_covered),),
    WorkIssued: (("sampling", sampling.on_issued),),
    WorkSettled: (("sampling", sampling.on_settled),),
    SamplingRestored: (("sampling", sampling.on_restored),),
}

RECORDS: tuple[type, ...] = tuple(EVOLVE)
"""Every record class, in the order of the rooms."""

DECIDE: Mapping[type, Callable[[State, Any], tuple[Record, ...]]] = {
    OpenRun: lambda s, c: run.open_run(s.run, c),
    RotateSegment: lambda s, c: run.rotate(s.run, c),
    ReportProbe: lambda s, c: run.report_probe(s.run, c),
    AdoptResume: lambda s, c: _adopt(s, c),
    EndRun: lambda s, c: run.end(s.run, c, open_saves=tuple(save.id for save in s.saving.open)),
    OpenUpdate: lambda s, c: updates.open_update(s.updates, c, run=s.run),
    ApplyUpdate: lambda s, c: updates.apply_update(s.updates, c),
    SkipUpdate: lambda s, c: updates.skip_update(s.updates, c),
    AbortUpdate: lambda s, c: updates.abort_update(s.updates, c),
    ReportStep: lambda s, c: updates.report_step(s.updates, c, run=s.run),
    OpenSave: lambda s, c: _open_save(s, c),
    ReportStored: lambda s, c: _stored(s, c),
    ReportSealed: lambda s, c: saving.report_sealed(s.saving, c),
    ReportGivenUp: lambda s, c: saving.report_given_up(s.saving, c),
    ReportFound: lambda s, c: saving.report_found(s.saving, c),
    ReportAbsent: lambda s, c: saving.report_absent(s.saving, c),
    ReportRole: lambda s, c: boundary.report_role(s.boundary, c, run=s.run),
    ReportFailed: lambda s, c: validation.report_failed(s.validation, c, run=s.run),
    ReportPassed: lambda s, c: _passed(s, c),
    ReportMarked: lambda s, c: validation.report_marked(s.validation, c, owed=s.archiving.owes(s.validation.save)),
    DeclareArchive: lambda s, c: archiving.declare(
        s.archiving, c, saving=s.saving, validation=s.validation, run=s.run
    ),
    RetryArchives: lambda s, c: archiving.retry(s.archiving, c, run=s.run),
    ReportArchived: lambda s, c: archiving.report_archived(s.archiving, c),
    ReportArchiveFailed: lambda s, c: archiving.report_failed(s.archiving, c),
    ApplyRetention: lambda s, c: retention.apply(s.retention, c, saving=s.saving, validation=s.validation, run=s.run),
    ReportPruned: lambda s, c: retention.report_pruned(s.retention, c),
    ReportPruneFailed: lambda s, c: retention.report_failed(s.retention, c),
    ReportPointed: lambda s, c: pointing.report_pointed(s.pointer, c),
    ReportCleared: lambda s, c: sweeping.report_cleared(s.debris, c),
    ObserveTermination: lambda s, c: emergency.observe(s.emergency, c, run=s.run),
    CoverEmergency: lambda s, c: emergency.cover(s.emergency, c, saving=s.saving),
    BeginSampling: lambda s, c: sampling.begin(s.sampling, c, run=s.run),
    IssueWork: lambda s, c: sampling.issue(s.sampling, c, run=s.run),
    SettleWork: lambda s, c: sampling.settle(s.sampling, c, run=s.run),
}


def decide(state: State, command: Command) -> tuple[Record, ...]:
    """The records that make the command so (none, where it already is), or `Refused`."""
    return DECIDE[type(command)](state, command)


def evolve(state: State, record: Record) -> State:
    """The state after the record, or `IllegalTransition`."""
    moves = EVOLVE.get(type(record))
    if moves is None:
        raise IllegalTransition(f"{type(record).__name__} is not a record of this version")
    if len(moves) == 1:
        ((part, move),) = moves
        if part == "updates":  # nearly every entry of a long run: spare the general path
            return _moved(state, updates=move(state.updates, record), sampled=state.sampling)
        if part == "sampling":  # or this, in a run that samples
            return with_sampling(state, move(state.sampling, record))
    return replaced(state, **{part: move(getattr(state, part), record) for part, move in moves})


def with_sampling(state: State, sampled: Sampling) -> State:
    """The state with this part in the place of its own."""
    return _moved(state, updates=state.updates, sampled=sampled)


def _moved(state: State, *, updates: Updates, sampled: Sampling) -> State:
    """The state with these parts, which nearly every record moves; several times cheaper than the general path."""
    return State(
        run=state.run,
        updates=updates,
        saving=state.saving,
        boundary=state.boundary,
        validation=state.validation,
        archiving=state.archiving,
        retention=state.retention,
        pointer=state.pointer,
        debris=state.debris,
        emergency=state.emergency,
        sampling=sampled,
    )


def _adopt(state: State, command: AdoptResume) -> tuple[Record, ...]:
    """What the epoch continues from, once what an earlier writer's validation left due is done."""
    adopted = run.adopt(state.run, command)
    validation.require_at_rest(state.validation)
    return (*adopted, *boundary.resume(state.boundary, command), *sampling.restore(command.sampling))


def _open_save(state: State, command: OpenSave) -> tuple[Record, ...]:
    """A save, the boundary that joins its roles, and with `pending` the validation that it is the first half of.

    One entry, so that none of them is alone.
    """
    opened = saving.open_save(state.saving, command, run=state.run, updates=state.updates)
    joined = boundary.join(state.boundary, opened[0], loop_state=command.loop_state)
    return (*opened, *joined, *(validation.pend(state.validation, opened[0]) if command.pending else ()))


def _stored(state: State, command: ReportStored) -> tuple[Record, ...]:
    """What is durable in the staging, by component, and with the last of them by role."""
    components = saving.report_stored(state.saving, command)
    (save,) = state.saving.open
    stored = {part.component for part in (*save.components, *command.components)}
    return (*components, *boundary.stored(state.boundary, command, whole=stored == set(save.plan)))


def _passed(state: State, command: ReportPassed) -> tuple[Record, ...]:
    """The end of an evaluation and the archive that its publication waits for, in one entry: neither is alone."""
    passed = validation.report_passed(state.validation, command, run=state.run)
    owed = archiving.owe(state.archiving, passed[0].save, destination=command.archive) if command.archive else ()
    return (*passed, *owed)


def due(state: State) -> tuple[Effect, ...]:
    """The outstanding work, in order, from the state alone."""
    if state.run.stage is not run.RunStage.OPEN:
        return ()
    epoch, joined = state.run.epoch, state.boundary.open
    return (
        *saving.due(
            state.saving,
            pending=state.validation.intended,
            roles=joined.roles if joined is not None else (),
            loop_state=joined.loop_state if joined is not None else (),
            sampling=state.sampling.carried.boundary if state.sampling.carried is not None else None,
        ),
        *pointing.due(state.pointer, epoch=epoch),
        *archiving.due(state.archiving, validation=state.validation),
        *validation.due(state.validation, owed=state.archiving.owes(state.validation.save)),
        *retention.due(state.retention),
        *sweeping.due(state.debris, epoch=epoch),
    )


def obligations(state: State) -> tuple[SaveId, ...]:
    """What only the trainer can do: evaluate the checkpoints of these saves."""
    pending = validation.obligation(state.validation)
    return () if pending is None or state.run.stage is not run.RunStage.OPEN else (pending,)
