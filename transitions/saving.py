"""The life of a save: one attempt for one step, at most one of them open (INV-04).

    stage       record            next        promise
    (none)      SaveOpened        WRITING     nothing is on disk yet; its id is used up
    WRITING     ComponentStored   WRITING     these files are durable in the save's private staging
    WRITING     SaveSealed        SEALED      the checkpoint is published, whole and durable (INV-01)
    WRITING     SaveAbandoned     ABANDONED   it was not published and never will be
    WRITING     RunOpened         UNSETTLED   its writer is gone: look before saying anything
    UNSETTLED   SaveSealed        SEALED      found published under this very id: rolled forward
    UNSETTLED   SaveAbandoned     ABANDONED   its staging was revoked and it is not published
    UNSETTLED   RunOpened         UNSETTLED   the writer that was to look is gone as well

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
from milepost.transitions.values import FULL, Component, FileDigest, Mode, Plan, Reason, SaveId, StoredComponent

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
    """Begin a save of `plan` for `step`. `why` says what made it synchronous, where something did."""

    step: int
    plan: Plan
    reason: Reason
    mode: Mode
    why: str = ""


@frozen(kw_only=True)
class ReportStored:
    """The payload of the save is durable in its staging."""

    save: SaveId
    components: tuple[StoredComponent, ...]


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
    """Write the snapshot held under the save's id into its private staging."""

    save: SaveId
    plan: Plan


@frozen(kw_only=True)
class SealSave:
    """Write the manifest, last, and publish."""

    save: SaveId
    plan: Plan
    components: tuple[StoredComponent, ...]


@frozen(kw_only=True)
class ObserveSave:
    """Revoke the staging of a save whose writer is gone, then look whether it was published."""

    save: SaveId


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
    def size(self) -> int:
        """Bytes of payload."""
        return sum(file.size for part in self.components for file in part.files)


@frozen(kw_only=True)
class Saving:
    """Open saves apart from sealed ones; `sealed` maps a step to its checkpoint, at most one and for ever (INV-02).

    `given_up` is the newest abandoned save: what a caller who waited for it is told.
    """

    open: tuple[Save, ...] = ()
    sealed: HashTrieMap[int, Save] = field(factory=HashTrieMap)
    newest: SaveId | None = None
    counter: int = 0
    given_up: SaveAbandoned | None = None


TABLE: Table[SaveStage] = {
    (SaveStage.NONE, SaveOpened): SaveStage.WRITING,
    (SaveStage.WRITING, ComponentStored): SaveStage.WRITING,
    (SaveStage.WRITING, SaveSealed): SaveStage.SEALED,
    (SaveStage.WRITING, SaveAbandoned): SaveStage.ABANDONED,
    (SaveStage.WRITING, RunOpened): SaveStage.UNSETTLED,
    (SaveStage.UNSETTLED, SaveSealed): SaveStage.SEALED,
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
    save = _open(saving, record.save, record)
    stage = follow(TABLE, save.stage, record, of=f"save {save.id}")
    if not _complete(save):
        raise IllegalTransition(f"save {save.id} was sealed before every component of its plan was stored")
    if saving.newest is not None and save.id.step <= saving.newest.step:
        raise IllegalTransition(f"step {save.id.step} was sealed behind step {saving.newest.step} (INV-02)")
    done = evolve(save, stage=stage, manifest=record.manifest)
    return evolve(
        saving,
        open=(),
        sealed=saving.sealed.insert(save.id.step, done),
        newest=save.id,
    )


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


# --- decisions ---------------------------------------------------------------------------------


def open_save(saving: Saving, command: OpenSave, *, run: Run, updates: Updates) -> tuple[SaveOpened, ...]:
    step = command.step
    require_open(run, f"save step {step}")
    if step < 0:
        raise Refused(f"cannot save step {step}: steps count from 0")
    if command.plan != FULL:
        raise Refused("a checkpoint holds every component; partial plans make artifacts, not checkpoints")
    if updates.stage is UpdateStage.ACCUMULATING:
        raise Refused(
            f"cannot save step {step}: attempt {updates.clocks.attempt_id + 1} is still accumulating, and "
            "gradients are not saved; apply, skip or abort it first (INV-12)"
        )
    if saving.open:
        raise Refused(f"cannot save step {step}: save {saving.open[0].id} is open; join it first (INV-04)")
    if step in saving.sealed:
        raise Refused(f"step {step} is published as {saving.sealed[step].id.directory} and never changes (INV-02)")
    if saving.newest is not None and step < saving.newest.step:
        raise Refused(
            f"cannot save step {step}: the newest checkpoint is step {saving.newest.step}, and latest never moves "
            "back (INV-03); start a new attempt with resume=off to train from an earlier step"
        )
    save = SaveId(step, run.epoch, saving.counter + 1)
    return (SaveOpened(save=save, plan=command.plan, reason=command.reason, mode=command.mode, why=command.why),)


def report_stored(saving: Saving, command: ReportStored) -> tuple[ComponentStored, ...]:
    save = _reported(saving, command.save, SaveStage.WRITING)
    return tuple(
        ComponentStored(save=save.id, component=part.component, files=part.files) for part in command.components
    )


def report_sealed(saving: Saving, command: ReportSealed) -> tuple[SaveSealed, ...]:
    save = _reported(saving, command.save, SaveStage.WRITING)
    return (SaveSealed(save=save.id, manifest=command.manifest),)


def report_given_up(saving: Saving, command: ReportGivenUp) -> tuple[SaveAbandoned, ...]:
    save = _reported(saving, command.save, SaveStage.WRITING)
    return (SaveAbandoned(save=save.id, code=command.code, detail=command.detail),)


def report_found(saving: Saving, command: ReportFound) -> tuple[SaveSealed, ...]:
    save = _reported(saving, command.save, SaveStage.UNSETTLED)
    known = {file for part in save.components for file in part.files}
    if not _complete(save) or known != set(command.files):
        raise Refused(
            f"{save.id.directory} carries the id of save {save.id} but lists other files than the journal recorded "
            "before it was published; run `milepost verify`"
        )
    return (SaveSealed(save=save.id, manifest=command.manifest),)


def report_absent(saving: Saving, command: ReportAbsent) -> tuple[SaveAbandoned, ...]:
    save = _reported(saving, command.save, SaveStage.UNSETTLED)
    return (SaveAbandoned(save=save.id, code="interrupted", detail="its writer ended before it was published"),)


def _reported(saving: Saving, wanted: SaveId, stage: SaveStage) -> Save:
    if saving.open and saving.open[0].id == wanted and saving.open[0].stage is stage:
        return saving.open[0]
    raise Refused(f"a report on save {wanted}, which is not {stage.value}")


def due(saving: Saving) -> tuple[SavingEffect, ...]:
    """What is outstanding, in the order in which it has to be done."""
    effects: list[SavingEffect] = []
    for save in saving.open:
        if save.stage is SaveStage.UNSETTLED:
            effects.append(ObserveSave(save=save.id))
        elif _complete(save):
            effects.append(SealSave(save=save.id, plan=save.plan, components=save.components))
        else:
            effects.append(StorePayload(save=save.id, plan=save.plan))
    return tuple(effects)
