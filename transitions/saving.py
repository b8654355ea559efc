"""The life of a save: one attempt for one step, at most one of them open (INV-04).

    stage       record            next        promise
    (none)      SaveOpened        WRITING     nothing is on disk yet; its id is used up
    WRITING     ComponentStored   WRITING     these files are durable in the save's private staging
    WRITING     SaveSealed        SEALED      the checkpoint is published, whole and durable (INV-01)
    WRITING     ArtifactSealed    SEALED      the same of a partial plan: an artifact, apart from checkpoints (INV-05)
    WRITING     SaveAbandoned     ABANDONED   it was not published and never will be
    WRITING     RunOpened         UNSETTLED   its writer is gone: look before saying anything
    UNSETTLED   SaveSealed        SEALED      found published under this very id: rolled forward
    UNSETTLED   ArtifactSealed    SEALED      the same of an artifact
    UNSETTLED   SaveAbandoned     ABANDONED   its staging was revoked and it is not published
    UNSETTLED   RunOpened         UNSETTLED   the writer that was to look is gone as well

Which steps may be saved, with N the newest published step of either kind:

    the plan   the step                                       answer
    any        below N                                        refused: steps never go back (INV-02, INV-03)
    full       N, published as a checkpoint                   refused: it never changes (INV-02)
    full       N, published as an artifact only               saved beside it, in the other tree
    partial    N, published as a checkpoint                   refused: everything is on disk already
    partial    N, published as an artifact                    refused: an artifact is never written again (INV-16)
    any        above N                                        saved

`due` derives the outstanding work from this state alone.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve, field, frozen
from rpds import HashTrieMap

from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.run import Run, RunOpened, require_open
from milepost.transitions.tables import Stage, Table, follow
from milepost.transitions.updates import Updates, UpdateStage
from milepost.transitions.values import (
    FULL,
    Component,
    FileDigest,
    LoopValue,
    Mode,
    Plan,
    Reason,
    RoleClocks,
    SamplingPoint,
    SaveId,
    StoredComponent,
    covers,
    union,
)

# --- records -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class SaveOpened:
    """A save of this plan was begun under an id that no other attempt has."""

    KIND: ClassVar[str] = "save-opened"
    VERSION: ClassVar[int] = 1
    save: SaveId
    plan: Plan
    reason: Reason
    mode: Mode
    why: str


@frozen(kw_only=True)
class ComponentStored:
    """These files of the component are durable in the save's private staging, whole, with these digests."""

    KIND: ClassVar[str] = "component-stored"
    VERSION: ClassVar[int] = 1
    save: SaveId
    component: Component
    files: tuple[FileDigest, ...]


@frozen(kw_only=True)
class SaveSealed:
    """The checkpoint is visible under its final name, durable, and carries the manifest with this digest."""

    KIND: ClassVar[str] = "save-sealed"
    VERSION: ClassVar[int] = 1
    save: SaveId
    manifest: FileDigest


@frozen(kw_only=True)
class ArtifactSealed:
    """The partial save is visible among the artifacts, durable, and carries the manifest with this digest."""

    KIND: ClassVar[str] = "artifact-sealed"
    VERSION: ClassVar[int] = 1
    save: SaveId
    manifest: FileDigest


@frozen(kw_only=True)
class SaveAbandoned:
    """The save was given up; nothing of it is visible as a checkpoint and nothing of it ever will be."""

    KIND: ClassVar[str] = "save-abandoned"
    VERSION: ClassVar[int] = 1
    save: SaveId
    code: str
    detail: str


# --- commands ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class OpenSave:
    """Begin a save of `plan` for `step`. `why` says what made it synchronous, where something did.

    `pending` makes a full save the first half of a validation: published, and not announced. `loop_state` is what the
    loop of several roles has recorded with their boundary.
    """

    step: int
    plan: Plan
    reason: Reason
    mode: Mode
    why: str = ""
    pending: bool = False
    loop_state: tuple[LoopValue, ...] = ()


@frozen(kw_only=True)
class ReportStored:
    """Payload of the save is durable in its staging: these components, and with the last of them every role."""

    save: SaveId
    components: tuple[StoredComponent, ...]
    roles: tuple[str, ...] = ()


@frozen(kw_only=True)
class ReportSealed:
    """The checkpoint was published."""

    save: SaveId
    manifest: FileDigest


@frozen(kw_only=True)
class ReportGivenUp:
    """The save failed before its publishing step and was given up."""

    save: SaveId
    code: str
    detail: str


@frozen(kw_only=True)
class ReportFound:
    """Looking for an unsettled save found its own manifest, published."""

    save: SaveId
    manifest: FileDigest
    files: tuple[FileDigest, ...]


@frozen(kw_only=True)
class ReportAbsent:
    """An unsettled save's staging is revoked and no manifest of it is published."""

    save: SaveId


# --- effects -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class StorePayload:
    """Write the snapshot that is held into the save's private staging: these components, which are not there yet.

    The report may be of some of them; the effect is then due again, for the rest. `sampling` is the boundary that the
    save carries, a file of its training state.
    """

    save: SaveId
    plan: Plan
    sampling: SamplingPoint | None = None


@frozen(kw_only=True)
class SealSave:
    """Write the manifest, last, and publish: among the checkpoints, or among the artifacts for a partial plan.

    With `pending` the checkpoint says by itself that its evaluation is pending; with `roles` it carries the marker of
    their boundary, which is written behind the manifest.
    """

    save: SaveId
    plan: Plan
    components: tuple[StoredComponent, ...]
    pending: bool
    roles: tuple[RoleClocks, ...] = ()
    loop_state: tuple[LoopValue, ...] = ()


@frozen(kw_only=True)
class ObserveSave:
    """Revoke the staging of a save whose writer is gone, then look whether it was published."""

    save: SaveId
    plan: Plan


SavingEffect = StorePayload | SealSave | ObserveSave

# --- state -------------------------------------------------------------------------------------


class SaveStage(Stage):
    NONE = "none"
    WRITING = "writing"
    UNSETTLED = "unsettled"
    SEALED = "sealed"
    ABANDONED = "abandoned"


@frozen(kw_only=True)
class Save:
    """One attempt as far as it got."""

    id: SaveId
    stage: SaveStage
    plan: Plan
    reason: Reason
    mode: Mode
    components: tuple[StoredComponent, ...] = ()
    manifest: FileDigest | None = None

    @property
    def files(self) -> tuple[FileDigest, ...]:
        """The payload, component by component."""
        return tuple(file for part in self.components for file in part.files)

    @property
    def size(self) -> int:
        """Bytes of payload."""
        return sum(file.size for file in self.files)


@frozen(kw_only=True)
class Saving:
    """Open saves apart from sealed ones; `sealed` maps a step to its checkpoint, at most one and for ever (INV-02).

    `artifacts` does so for partial saves, which nothing resumes from. `given_up` is the newest abandoned save: what a
    caller who waited for it is told.
    """

    open: tuple[Save, ...] = ()
    sealed: HashTrieMap[int, Save] = field(factory=HashTrieMap)
    newest: SaveId | None = None
    artifacts: HashTrieMap[int, Save] = field(factory=HashTrieMap)
    newest_artifact: SaveId | None = None
    counter: int = 0
    given_up: SaveAbandoned | None = None

    @property
    def newest_step(self) -> int | None:
        """The newest published step, whatever was published of it."""
        return max((save.step for save in (self.newest, self.newest_artifact) if save is not None), default=None)

    def holds(self, step: int, plan: Plan) -> Save | None:
        """What is published of this step and carries every component of the plan."""
        for save in (self.sealed.get(step), self.artifacts.get(step)):
            if save is not None and covers(save.plan, plan):
                return save
        return None


TABLE: Table[SaveStage] = {
    (SaveStage.NONE, SaveOpened): SaveStage.WRITING,
    (SaveStage.WRITING, ComponentStored): SaveStage.WRITING,
    (SaveStage.WRITING, SaveSealed): SaveStage.SEALED,
    (SaveStage.WRITING, ArtifactSealed): SaveStage.SEALED,
    (SaveStage.WRITING, SaveAbandoned): SaveStage.ABANDONED,
    (SaveStage.WRITING, RunOpened): SaveStage.UNSETTLED,
    (SaveStage.UNSETTLED, SaveSealed): SaveStage.SEALED,
    (SaveStage.UNSETTLED, ArtifactSealed): SaveStage.SEALED,
    (SaveStage.UNSETTLED, SaveAbandoned): SaveStage.ABANDONED,
    (SaveStage.UNSETTLED, RunOpened): SaveStage.UNSETTLED,
}


def on_save_opened(saving: Saving, record: SaveOpened) -> Saving:
    if saving.open:
        raise IllegalTransition(f"save {record.save} opened while save {saving.open[0].id} is open (INV-04)")
    if record.save.counter <= saving.counter:
        raise IllegalTransition(f"save {record.save} opened after counter {saving.counter}: its id is used up")
    stage = follow(TABLE, SaveStage.NONE, record, of=f"save {record.save}")
    save = Save(id=record.save, stage=stage, plan=record.plan, reason=record.reason, mode=record.mode)
    return evolve(saving, open=(save,), counter=record.save.counter)


def on_component_stored(saving: Saving, record: ComponentStored) -> Saving:
    save = _open(saving, record.save, record)
    stage = follow(TABLE, save.stage, record, of=f"save {save.id}")
    if record.component not in save.plan or any(record.component is has.component for has in save.components):
        raise IllegalTransition(f"save {save.id} stored {record.component.value} twice or against its plan")
    part = StoredComponent(component=record.component, files=record.files)
    return evolve(saving, open=(evolve(save, stage=stage, components=(*save.components, part)),))


def on_save_sealed(saving: Saving, record: SaveSealed) -> Saving:
    done = _sealed(saving, record)
    return evolve(saving, open=(), sealed=saving.sealed.insert(done.id.step, done), newest=done.id)


def on_artifact_sealed(saving: Saving, record: ArtifactSealed) -> Saving:
    done = _sealed(saving, record)
    return evolve(saving, open=(), artifacts=saving.artifacts.insert(done.id.step, done), newest_artifact=done.id)


def _sealed(saving: Saving, record: SaveSealed | ArtifactSealed) -> Save:
    save = _open(saving, record.save, record)
    stage = follow(TABLE, save.stage, record, of=f"save {save.id}")
    if not _complete(save):
        raise IllegalTransition(f"save {save.id} was sealed before every component of its plan was stored")
    if (save.plan == FULL) is not isinstance(record, SaveSealed):
        raise IllegalTransition(
            f"save {save.id} of {_names(save.plan)} was sealed by {type(record).__name__} (INV-05)"
        )
    if (problem := _misplaced(saving, save.id.step, save.plan)) is not None:
        raise IllegalTransition(f"save {save.id} was sealed against the order of steps: {problem}")
    return evolve(save, stage=stage, manifest=record.manifest)


def on_save_abandoned(saving: Saving, record: SaveAbandoned) -> Saving:
    save = _open(saving, record.save, record)
    follow(TABLE, save.stage, record, of=f"save {save.id}")
    return evolve(saving, open=(), given_up=record)


def on_run_opened(saving: Saving, record: RunOpened) -> Saving:
    return evolve(
        saving,
        open=tuple(
            evolve(save, stage=follow(TABLE, save.stage, record, of=f"save {save.id}")) for save in saving.open
        ),
        counter=0,
    )


def _open(saving: Saving, wanted: SaveId, record: object) -> Save:
    if saving.open and saving.open[0].id == wanted:
        return saving.open[0]
    raise IllegalTransition(f"{type(record).__name__} for save {wanted}, which is not open")


def _complete(save: Save) -> bool:
    return {part.component for part in save.components} == set(save.plan)


def _misplaced(saving: Saving, step: int, plan: Plan) -> str | None:
    """Why nothing of this plan can be published at this step any more; the table at the top."""
    newest = saving.newest_step
    if newest is not None and step < newest:
        return f"step {newest} is published, and neither latest nor the steps ever move back (INV-03)"
    if step in saving.sealed:
        return f"step {step} is published as {saving.sealed[step].id.directory} and never changes (INV-02)"
    if plan != FULL and step in saving.artifacts:
        held = _names(saving.artifacts[step].plan)
        return f"the artifact of step {step} holds {held} and is never written again (INV-16)"
    return None


def _names(plan: Plan) -> str:
    return ", ".join(component.value for component in plan)


# --- decisions ---------------------------------------------------------------------------------


def open_save(saving: Saving, command: OpenSave, *, run: Run, updates: Updates) -> tuple[SaveOpened, ...]:
    step = command.step
    require_open(run, f"save step {step}")
    if step < 0:
        raise Refused(f"cannot save step {step}: steps count from 0")
    if not command.plan or command.plan != union(command.plan):
        raise Refused(
            f"cannot save step {step}: a plan names components once and in order, not "
            f"{_names(command.plan) or 'nothing'}"
        )
    if updates.stage is UpdateStage.ACCUMULATING:
        raise Refused(
            f"cannot save step {step}: attempt {updates.clocks.attempt_id + 1} is still accumulating, and "
            "gradients are not saved; apply, skip or abort it first (INV-12)"
        )
    if saving.open:
        raise Refused(f"cannot save step {step}: save {saving.open[0].id} is open; join it first (INV-04)")
    if (problem := _misplaced(saving, step, command.plan)) is not None:
        raise Refused(
            f"cannot save step {step}: {problem}; start a new attempt with resume=off to train from an earlier step"
        )
    save = SaveId(step, run.epoch, saving.counter + 1)
    return (SaveOpened(save=save, plan=command.plan, reason=command.reason, mode=command.mode, why=command.why),)


def report_stored(saving: Saving, command: ReportStored) -> tuple[ComponentStored, ...]:
    save = _reported(saving, command.save, SaveStage.WRITING)
    return tuple(
        ComponentStored(save=save.id, component=part.component, files=part.files) for part in command.components
    )


def report_sealed(saving: Saving, command: ReportSealed) -> tuple[SaveSealed | ArtifactSealed, ...]:
    return _seal(_reported(saving, command.save, SaveStage.WRITING), command.manifest)


def _seal(save: Save, manifest: FileDigest) -> tuple[SaveSealed | ArtifactSealed, ...]:
    kind = SaveSealed if save.plan == FULL else ArtifactSealed
    return (kind(save=save.id, manifest=manifest),)


def report_given_up(saving: Saving, command: ReportGivenUp) -> tuple[SaveAbandoned, ...]:
    save = _reported(saving, command.save, SaveStage.WRITING)
    return (SaveAbandoned(save=save.id, code=command.code, detail=command.detail),)


def report_found(saving: Saving, command: ReportFound) -> tuple[SaveSealed | ArtifactSealed, ...]:
    save = _reported(saving, command.save, SaveStage.UNSETTLED)
    if not _complete(save) or set(save.files) != set(command.files):
        raise Refused(
            f"{save.id.directory} carries the id of save {save.id} but lists other files than the journal recorded "
            "before it was published; run `milepost verify`"
        )
    return _seal(save, command.manifest)


def report_absent(saving: Saving, command: ReportAbsent) -> tuple[SaveAbandoned, ...]:
    save = _reported(saving, command.save, SaveStage.UNSETTLED)
    return (SaveAbandoned(save=save.id, code="interrupted", detail="its writer ended before it was published"),)


def _reported(saving: Saving, wanted: SaveId, stage: SaveStage) -> Save:
    if saving.open and saving.open[0].id == wanted and saving.open[0].stage is stage:
        return saving.open[0]
    raise Refused(f"a report on save {wanted}, which is not {stage.value}")


def due(
    saving: Saving,
    *,
    pending: SaveId | None,
    roles: tuple[RoleClocks, ...] = (),
    loop_state: tuple[LoopValue, ...] = (),
    sampling: SamplingPoint | None = None,
) -> tuple[SavingEffect, ...]:
    """What is outstanding, in the order in which it has to be done. `pending` is the save that will be evaluated.

    `roles` and `loop_state` are those of the boundary that the open save is one of; `sampling` is the point that it
    carries.
    """
    effects: list[SavingEffect] = []
    for save in saving.open:
        if save.stage is SaveStage.UNSETTLED:
            effects.append(ObserveSave(save=save.id, plan=save.plan))
        elif _complete(save):
            effects.append(
                SealSave(
                    save=save.id,
                    plan=save.plan,
                    components=save.components,
                    pending=save.id == pending,
                    roles=roles,
                    loop_state=loop_state,
                )
            )
        else:
            stored = {part.component for part in save.components}
            missing = tuple(component for component in save.plan if component not in stored)
            effects.append(StorePayload(save=save.id, plan=missing, sampling=sampling))
    return tuple(effects)
