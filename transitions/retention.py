"""What of a published checkpoint may be deleted, and why everything else stays (INV-08).

A prune is of one part of one checkpoint: its `optimizer`, which leaves a model that is no resume source any more, or
all of it.

    stage    record        next     promise
    (none)   PruneOpened   OPEN     from here on the part may be gone, and nobody relies on it
    OPEN     Pruned        GONE     it is gone, durably, and never looked complete meanwhile
    OPEN     PruneFailed   FAILED   it is there, or partly: not tried again until retention is applied next
    FAILED   PruneOpened   OPEN     tried again
    OPEN     RunOpened     OPEN     a later writer finishes it
    FAILED   RunOpened     OPEN     the same

Whether a checkpoint stays, newest first; the first line that fits decides, for each part by itself:

    it is                                                       it stays because
    the newest                                                  a resume needs it
    waiting for its validation                                  nothing touches what is pending (INV-07)
    what this writer resumed from                               the run rests on it
    in use                                                      somebody reads it
    not in the archive, where there is one                      it may be the only copy
    one of the newest N that are not pending, or N is 0         keep_optim_last, keep_model_last
    (the optimizer) in what keep_fn returned                    in the place of keep_optim_last

With the checkpoint goes its optimizer: a checkpoint has at most one prune under way. Artifacts are never counted and
never pruned (INV-05).
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

from attrs import evolve, field, frozen
from rpds import HashTrieMap

from milepost.transitions.errors import Refused
from milepost.transitions.run import Run, RunOpened, require_open
from milepost.transitions.saving import Save, Saving
from milepost.transitions.tables import Stage, Table, follow
from milepost.transitions.validation import Validation
from milepost.transitions.values import Component, SaveId


class Part(Enum):
    """What a prune takes away."""

    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"


# --- records -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class PruneOpened:
    """The part of this checkpoint, these files of it, is about to be deleted."""

    KIND: ClassVar[str] = "prune-opened"
    VERSION: ClassVar[int] = 1
    save: SaveId
    part: Part
    files: tuple[str, ...]
    why: str


@frozen(kw_only=True)
class Pruned:
    """The part of this checkpoint is gone, durably."""

    KIND: ClassVar[str] = "pruned"
    VERSION: ClassVar[int] = 1
    save: SaveId
    part: Part


@frozen(kw_only=True)
class PruneFailed:
    """Deleting the part failed; what is left of it is not relied on."""

    KIND: ClassVar[str] = "prune-failed"
    VERSION: ClassVar[int] = 1
    save: SaveId
    part: Part
    detail: str


# --- commands ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class ApplyRetention:
    """Open every prune that this policy asks for and no rule forbids.

    Counts of 0 keep all. `keep_optim` are the directories that `keep_fn` chose (None: there is no `keep_fn`),
    `archived` the steps that are proven to be in the archive (None: there is none), `in_use` the steps that somebody
    reads.
    """

    keep_optim_last: int
    keep_model_last: int
    keep_optim: tuple[str, ...] | None = None
    archived: tuple[int, ...] | None = None
    in_use: tuple[int, ...] = ()


@frozen(kw_only=True)
class ReportPruned:
    """The part is gone."""

    save: SaveId
    part: Part


@frozen(kw_only=True)
class ReportPruneFailed:
    """Deleting the part failed."""

    save: SaveId
    part: Part
    detail: str


# --- effect ------------------------------------------------------------------------------------


@frozen(kw_only=True)
class PrunePart:
    """Delete the part: `files` of the checkpoint, or with its directory all of it."""

    save: SaveId
    part: Part
    files: tuple[str, ...]


# --- state -------------------------------------------------------------------------------------


class PruneStage(Stage):
    NONE = "none"
    OPEN = "open"
    FAILED = "failed"
    GONE = "gone"


@frozen(kw_only=True)
class Prune:
    """A prune that was begun; `files` are those that it takes away."""

    save: SaveId
    part: Part
    files: tuple[str, ...]
    stage: PruneStage


@frozen(kw_only=True)
class Retention:
    """Prunes under way apart from what is gone: steps whose optimizer was released, steps that were removed."""

    open: tuple[Prune, ...] = ()
    released: HashTrieMap[int, SaveId] = field(factory=HashTrieMap)
    removed: HashTrieMap[int, SaveId] = field(factory=HashTrieMap)

    def lost(self, step: int) -> Part | None:
        """The larger part of this step's checkpoint that is gone, or may be: nobody relies on it."""
        parts = {prune.part for prune in self.open if prune.save.step == step}
        if Part.CHECKPOINT in parts or step in self.removed:
            return Part.CHECKPOINT
        return Part.OPTIMIZER if parts or step in self.released else None


TABLE: Table[PruneStage] = {
    (PruneStage.NONE, PruneOpened): PruneStage.OPEN,
    (PruneStage.OPEN, Pruned): PruneStage.GONE,
    (PruneStage.OPEN, PruneFailed): PruneStage.FAILED,
    (PruneStage.FAILED, PruneOpened): PruneStage.OPEN,
    (PruneStage.OPEN, RunOpened): PruneStage.OPEN,
    (PruneStage.FAILED, RunOpened): PruneStage.OPEN,
}


def on_prune_opened(retention: Retention, record: PruneOpened) -> Retention:
    prune = _find(retention, record.save, record.part)
    stage = follow(TABLE, prune.stage, record, of=_called(prune))
    return _with(retention, evolve(prune, stage=stage, files=record.files))


def on_pruned(retention: Retention, record: Pruned) -> Retention:
    prune = _find(retention, record.save, record.part)
    follow(TABLE, prune.stage, record, of=_called(prune))
    rest = tuple(one for one in retention.open if one is not prune)
    if record.part is Part.OPTIMIZER:
        return evolve(retention, open=rest, released=retention.released.insert(record.save.step, record.save))
    return evolve(retention, open=rest, removed=retention.removed.insert(record.save.step, record.save))


def on_prune_failed(retention: Retention, record: PruneFailed) -> Retention:
    prune = _find(retention, record.save, record.part)
    return _with(retention, evolve(prune, stage=follow(TABLE, prune.stage, record, of=_called(prune))))


def on_run_opened(retention: Retention, record: RunOpened) -> Retention:
    if not retention.open:
        return retention
    again = tuple(
        evolve(prune, stage=follow(TABLE, prune.stage, record, of=_called(prune))) for prune in retention.open
    )
    return evolve(retention, open=again)


def _find(retention: Retention, save: SaveId, part: Part) -> Prune:
    for prune in retention.open:
        if prune.save == save and prune.part is part:
            return prune
    if part is Part.CHECKPOINT:
        gone = save.step in retention.removed
    else:
        gone = save.step in retention.released or retention.lost(save.step) is Part.CHECKPOINT
    return Prune(save=save, part=part, files=(), stage=PruneStage.GONE if gone else PruneStage.NONE)


def _with(retention: Retention, prune: Prune) -> Retention:
    rest = tuple(one for one in retention.open if one.save != prune.save)
    return evolve(retention, open=(*rest, prune))


def _called(prune: Prune) -> str:
    return f"the prune of {prune.part.value} of {prune.save.directory}"


def _files(save: Save, part: Part) -> tuple[str, ...]:
    wanted = set(Component) if part is Part.CHECKPOINT else {Component.OPTIMIZER}
    return tuple(file.path for stored in save.components if stored.component in wanted for file in stored.files)


# --- decisions ---------------------------------------------------------------------------------


@frozen(kw_only=True)
class Judgement:
    """What retention says of one part of one checkpoint, and the reason."""

    save: SaveId
    part: Part
    stays: bool
    why: str


def kept(retention: Retention, *, saving: Saving) -> tuple[Save, ...]:
    """The checkpoints that are not removed, by step; of some the optimizer may be released."""
    return tuple(save for step, save in sorted(saving.sealed.items()) if step not in retention.removed)


def judge(
    retention: Retention, policy: ApplyRetention, *, saving: Saving, validation: Validation, run: Run
) -> tuple[Judgement, ...]:
    """Each part of each checkpoint that is there, newest first: whether it stays, and why."""
    resumed = run.resumed.save if run.resumed is not None else None
    judged, rank = [], 0
    for save in reversed(kept(retention, saving=saving)):
        rank += save.id != validation.pending
        for part in (Part.CHECKPOINT, Part.OPTIMIZER):
            if part is Part.OPTIMIZER and (save.id.step in retention.released or not _files(save, part)):
                continue
            why = _protected(save.id, policy, newest=saving.newest, pending=validation.pending, resumed=resumed)
            stays, why = (True, why) if why else _counted(save.id, part, rank, policy)
            judged.append(Judgement(save=save.id, part=part, stays=stays, why=why))
            if not stays:
                break  # with the checkpoint goes its optimizer
    return tuple(judged)


def _protected(
    save: SaveId, policy: ApplyRetention, *, newest: SaveId | None, pending: SaveId | None, resumed: SaveId | None
) -> str:
    """Why no policy may touch the checkpoint, or an empty string."""
    if save == newest:
        return "it is the newest: a resume needs it"
    if save == pending:
        return "its validation is pending"
    if save == resumed:
        return "this run was resumed from it"
    if save.step in policy.in_use:
        return "it is in use"
    if policy.archived is not None and save.step not in policy.archived:
        return "it is not in the archive: it may be the only copy"
    return ""


def _counted(save: SaveId, part: Part, rank: int, policy: ApplyRetention) -> tuple[bool, str]:
    """Whether the policy keeps the part of the checkpoint that is `rank`-th, and its words for it."""
    if part is Part.OPTIMIZER and policy.keep_optim is not None:
        stays = save.directory in policy.keep_optim
        return stays, f"keep_fn {'keeps' if stays else 'does not keep'} it"
    knob, keep = ("keep_optim_last", policy.keep_optim_last)
    if part is Part.CHECKPOINT:
        knob, keep = ("keep_model_last", policy.keep_model_last)
    if keep == 0:
        return True, f"{knob}=0 keeps all"
    return rank <= keep, f"it is number {rank} from the newest, and {knob}={keep}"


def apply(
    retention: Retention, command: ApplyRetention, *, saving: Saving, validation: Validation, run: Run
) -> tuple[PruneOpened, ...]:
    require_open(run, "apply retention")
    judged = judge(retention, command, saving=saving, validation=validation, run=run)
    under_way = {prune.save for prune in retention.open if prune.stage is PruneStage.OPEN}
    return tuple(
        PruneOpened(save=one.save, part=one.part, files=_files(saving.sealed[one.save.step], one.part), why=one.why)
        for one in reversed(judged)
        if not one.stays
        and one.save not in under_way
        and (_find(retention, one.save, one.part).stage, PruneOpened) in TABLE
    )


def report_pruned(retention: Retention, command: ReportPruned) -> tuple[Pruned, ...]:
    _require_under_way(retention, command.save, command.part)
    return (Pruned(save=command.save, part=command.part),)


def report_failed(retention: Retention, command: ReportPruneFailed) -> tuple[PruneFailed, ...]:
    _require_under_way(retention, command.save, command.part)
    return (PruneFailed(save=command.save, part=command.part, detail=command.detail),)


def _require_under_way(retention: Retention, save: SaveId, part: Part) -> None:
    prune = _find(retention, save, part)
    if prune.stage is not PruneStage.OPEN:
        raise Refused(f"a report on {_called(prune)}, which is not open but {prune.stage.value}")


def due(retention: Retention) -> tuple[PrunePart, ...]:
    """The prunes that are open, oldest step first."""
    return tuple(
        PrunePart(save=prune.save, part=prune.part, files=prune.files)
        for prune in sorted(retention.open, key=lambda prune: prune.save)
        if prune.stage is PruneStage.OPEN
    )
