"""The life of an archive: the copy of one published save in another store.

    stage      record            next       promise
    (none)     ArchiveDeclared   DECLARED   this save is to be archived at this destination
    DECLARED   ArchiveMarked     MARKED     all of it is there, proven, and its receipt lies beside the local copy
    DECLARED   ArchiveFailed     FAILED     not all of it is there; the local copy is untouched
    FAILED     ArchiveDeclared   DECLARED   tried again; what is there already is not sent again
    DECLARED   RunOpened         FAILED     its writer is gone; a strict one stays DECLARED
    FAILED     RunOpened         FAILED     the same; a strict one is DECLARED again

An ordinary archive is best effort: its failure is recorded and the run goes on. A strict one is part of a
publication, which stays pending until the archive is marked, in this run and in the next. Of a checkpoint whose
validation is pending nothing is archived before it says of itself that only its publication is pending (INV-07).

A save that failed is released to retention by its own receipt alone: the success of another says nothing of it
(INV-08).
"""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve, field, frozen
from rpds import HashTrieMap

from milepost.transitions.errors import Refused
from milepost.transitions.run import Run, RunOpened, require_open
from milepost.transitions.saving import Saving
from milepost.transitions.tables import Stage, Table, follow
from milepost.transitions.validation import Validation, ValidationStage
from milepost.transitions.values import FULL, Plan, SaveId

# --- records -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class ArchiveDeclared:
    """This published save is to be archived at the destination; `strict` where its publication waits for that."""

    KIND: ClassVar[str] = "archive-declared"
    VERSION: ClassVar[int] = 1
    save: SaveId
    plan: Plan
    destination: str
    strict: bool


@frozen(kw_only=True)
class ArchiveMarked:
    """All of the save is at the destination, proven there, and its receipt is durable beside the local copy.

    `files` and `size` (in bytes) are what the archive holds, `sent` the files that this attempt had to send.
    """

    KIND: ClassVar[str] = "archive-marked"
    VERSION: ClassVar[int] = 1
    save: SaveId
    files: int
    size: int
    sent: int


@frozen(kw_only=True)
class ArchiveFailed:
    """The attempt failed; the local copy is untouched."""

    KIND: ClassVar[str] = "archive-failed"
    VERSION: ClassVar[int] = 1
    save: SaveId
    code: str
    detail: str


# --- commands ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class DeclareArchive:
    """Have the published save of this step and plan archived. Nothing, where it is or is about to be."""

    step: int
    plan: Plan
    destination: str


@frozen(kw_only=True)
class RetryArchives:
    """Have every archive that failed tried once more."""

    destination: str


@frozen(kw_only=True)
class ReportArchived:
    """The archive is complete, proven, and has its receipt."""

    save: SaveId
    files: int
    size: int
    sent: int


@frozen(kw_only=True)
class ReportArchiveFailed:
    """The archive could not be completed."""

    save: SaveId
    code: str
    detail: str


# --- effect ------------------------------------------------------------------------------------


@frozen(kw_only=True)
class ArchiveSave:
    """Archive the published save at the destination, and put the receipt beside it."""

    save: SaveId
    plan: Plan
    destination: str
    strict: bool


# --- state -------------------------------------------------------------------------------------


class ArchiveStage(Stage):
    NONE = "none"
    DECLARED = "declared"
    FAILED = "failed"
    MARKED = "marked"


@frozen(kw_only=True)
class Archive:
    """One archive that is not complete. `code` and `detail` say why the last attempt failed."""

    save: SaveId
    plan: Plan
    destination: str
    strict: bool
    stage: ArchiveStage
    code: str = ""
    detail: str = ""


@frozen(kw_only=True)
class Archiving:
    """Archives that are wanted and not complete, oldest first, apart from the saves that have one."""

    open: tuple[Archive, ...] = ()
    marked: HashTrieMap[SaveId, ArchiveMarked] = field(factory=HashTrieMap)

    def of(self, save: SaveId) -> Archive | None:
        """The archive of this save, where it is not complete."""
        return next((one for one in self.open if one.save == save), None)

    def owes(self, save: SaveId | None) -> bool:
        """Whether the publication of this save has to wait for its archive."""
        return save is not None and any(one.save == save and one.strict for one in self.open)


TABLE: Table[ArchiveStage] = {
    (ArchiveStage.NONE, ArchiveDeclared): ArchiveStage.DECLARED,
    (ArchiveStage.DECLARED, ArchiveMarked): ArchiveStage.MARKED,
    (ArchiveStage.DECLARED, ArchiveFailed): ArchiveStage.FAILED,
    (ArchiveStage.FAILED, ArchiveDeclared): ArchiveStage.DECLARED,
    (ArchiveStage.DECLARED, RunOpened): ArchiveStage.FAILED,
    (ArchiveStage.FAILED, RunOpened): ArchiveStage.FAILED,
}


def on_archive_declared(archiving: Archiving, record: ArchiveDeclared) -> Archiving:
    stage = follow(TABLE, _find(archiving, record.save).stage, record, of=_called(record.save))
    declared = Archive(
        save=record.save, plan=record.plan, destination=record.destination, strict=record.strict, stage=stage
    )
    return _with(archiving, declared)


def on_archive_marked(archiving: Archiving, record: ArchiveMarked) -> Archiving:
    follow(TABLE, _find(archiving, record.save).stage, record, of=_called(record.save))
    rest = tuple(one for one in archiving.open if one.save != record.save)
    return Archiving(open=rest, marked=archiving.marked.insert(record.save, record))


def on_archive_failed(archiving: Archiving, record: ArchiveFailed) -> Archiving:
    archive = _find(archiving, record.save)
    stage = follow(TABLE, archive.stage, record, of=_called(record.save))
    return _with(archiving, evolve(archive, stage=stage, code=record.code, detail=record.detail))


def on_run_opened(archiving: Archiving, record: RunOpened) -> Archiving:
    if not archiving.open:
        return archiving
    return evolve(archiving, open=tuple(_reopened(archive, record) for archive in archiving.open))


def _reopened(archive: Archive, record: RunOpened) -> Archive:
    before, stage = archive.stage, follow(TABLE, archive.stage, record, of=_called(archive.save))
    if archive.strict:
        return evolve(archive, stage=ArchiveStage.DECLARED, code="", detail="")
    if before is stage:
        return archive
    return evolve(archive, stage=stage, code="interrupted", detail="its writer ended before it was complete")


def _find(archiving: Archiving, save: SaveId) -> Archive:
    found = archiving.of(save)
    if found is not None:
        return found
    stage = ArchiveStage.MARKED if save in archiving.marked else ArchiveStage.NONE
    return Archive(save=save, plan=(), destination="", strict=False, stage=stage)


def _with(archiving: Archiving, archive: Archive) -> Archiving:
    if archiving.of(archive.save) is None:
        return evolve(archiving, open=(*archiving.open, archive))
    return evolve(archiving, open=tuple(archive if one.save == archive.save else one for one in archiving.open))


def _called(save: SaveId) -> str:
    return f"the archive of save {save}"


# --- decisions ---------------------------------------------------------------------------------


def declare(
    archiving: Archiving, command: DeclareArchive, *, saving: Saving, validation: Validation, run: Run
) -> tuple[ArchiveDeclared, ...]:
    require_open(run, f"archive step {command.step}")
    published = saving.sealed if command.plan == FULL else saving.artifacts
    save = published.get(command.step)
    if save is None or save.plan != command.plan:
        raise Refused(f"cannot archive step {command.step}: nothing of this plan is published of it")
    if save.id == validation.pending:
        raise Refused(
            f"cannot archive {save.id.directory}: its validation is pending, and its publication archives it (INV-07)"
        )
    return _declared(archiving, save.id, command.plan, destination=command.destination, strict=False)


def retry(archiving: Archiving, command: RetryArchives, *, run: Run) -> tuple[ArchiveDeclared, ...]:
    require_open(run, "archive what failed")
    return tuple(
        record
        for archive in archiving.open
        for record in _declared(
            archiving, archive.save, archive.plan, destination=command.destination, strict=archive.strict
        )
    )


def owe(archiving: Archiving, save: SaveId, *, destination: str) -> tuple[ArchiveDeclared, ...]:
    """The record that makes the publication of this save wait for its archive."""
    return _declared(archiving, save, FULL, destination=destination, strict=True)


def _declared(
    archiving: Archiving, save: SaveId, plan: Plan, *, destination: str, strict: bool
) -> tuple[ArchiveDeclared, ...]:
    record = ArchiveDeclared(save=save, plan=plan, destination=destination, strict=strict)
    return (record,) if (_find(archiving, save).stage, ArchiveDeclared) in TABLE else ()


def report_archived(archiving: Archiving, command: ReportArchived) -> tuple[ArchiveMarked, ...]:
    _require_under_way(archiving, command.save)
    return (ArchiveMarked(save=command.save, files=command.files, size=command.size, sent=command.sent),)


def report_failed(archiving: Archiving, command: ReportArchiveFailed) -> tuple[ArchiveFailed, ...]:
    _require_under_way(archiving, command.save)
    return (ArchiveFailed(save=command.save, code=command.code, detail=command.detail),)


def _require_under_way(archiving: Archiving, save: SaveId) -> None:
    stage = _find(archiving, save).stage
    if stage is not ArchiveStage.DECLARED:
        raise Refused(f"a report on {_called(save)}, which is not declared but {stage.value}")


def due(archiving: Archiving, *, validation: Validation) -> tuple[ArchiveSave, ...]:
    """The archives that are declared, oldest first, without what is still private."""
    private = None if validation.stage is ValidationStage.PUBLISHING else validation.pending
    return tuple(
        ArchiveSave(save=one.save, plan=one.plan, destination=one.destination, strict=one.strict)
        for one in archiving.open
        if one.stage is ArchiveStage.DECLARED and one.save != private
    )
