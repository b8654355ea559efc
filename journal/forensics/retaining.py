"""What retention makes of each part of each checkpoint, foreseen with the function that decides it. Nothing is done.

A prune that was begun and not completed goes on at every start, whatever the policy then is.
"""

from __future__ import annotations

from enum import Enum

from attrs import evolve, frozen

from milepost.journal.forensics.foreseeing import foresee
from milepost.journal.forensics.listing import candidates_at, checkpoints_at, names_at, witnesses_of
from milepost.journal.forensics.reading import Kind, Place
from milepost.journal.log.replay import fold
from milepost.transitions.errors import Corrupt
from milepost.transitions.machine import State
from milepost.transitions.resuming import choose
from milepost.transitions.retention import ApplyRetention, Part, Prune, judge
from milepost.transitions.values import Component, SaveId


class Fate(Enum):
    """What becomes of a part: it stays; it would go; it went; it was to go and could not be deleted."""

    STAYS = "stays"
    GOES = "goes"
    GONE = "gone"
    FAILED = "failed"


@frozen(kw_only=True)
class Judged:
    """One part of one checkpoint, `size` bytes of payload. The part `checkpoint` is all of it that is there."""

    name: str
    part: Part
    fate: Fate
    why: str
    size: int


@frozen(kw_only=True)
class Retained:
    """What retention says of the run, newest first. `freed` are the bytes that would go or went.

    `foreseen` is how the next start settles what an earlier writer left. `blocked` says why nothing is pruned at all;
    it is empty where that is not so.
    """

    run: str
    planned: bool
    keep_optim_last: int
    keep_model_last: int
    foreseen: tuple[str, ...]
    blocked: str
    parts: tuple[Judged, ...]
    freed: int


def plan(place: Place, policy: ApplyRetention) -> Retained:
    """What would go now and what would stay, each with its reason. Artifacts are not spoken of (INV-05)."""
    checkpoints, there = checkpoints_at(place), names_at(place, Kind.CHECKPOINT)
    before = state = fold(place.log, witnesses=witnesses_of(place, checkpoints)).state
    foreseen: tuple[str, ...] = ()
    blocked = ""
    if place.writer() is None:
        state, foreseen = foresee(before, checkpoints)
    try:
        choose(candidates_at(place, state, there=there), artifact=None)
    except Corrupt as damage:
        blocked = str(damage)
    parts = () if blocked else judged(state, policy, begun=before.retention.open)
    return Retained(
        run=place.where,
        planned=True,
        keep_optim_last=policy.keep_optim_last,
        keep_model_last=policy.keep_model_last,
        foreseen=foreseen,
        blocked=blocked,
        parts=parts,
        freed=freed(parts),
    )


def judged(state: State, policy: ApplyRetention, *, begun: tuple[Prune, ...]) -> tuple[Judged, ...]:
    """Every part that is there, and those whose prune was `begun` before: newest first."""
    known = {(prune.save, prune.part) for prune in begun}
    rows = [
        (prune.save, _judged(state, prune.save, prune.part, stays=False, why="retention began to remove it before"))
        for prune in begun
    ]
    for one in judge(state.retention, policy, saving=state.saving, validation=state.validation, run=state.run):
        if not known & {(one.save, one.part), (one.save, Part.CHECKPOINT)}:
            rows.append((one.save, _judged(state, one.save, one.part, stays=one.stays, why=one.why)))
    return tuple(row for _, row in sorted(rows, key=lambda row: row[0], reverse=True))


def settled(parts: tuple[Judged, ...], state: State) -> tuple[Judged, ...]:
    """The same parts once retention was applied: what was to go is gone, or failed."""
    gone = {
        *((step, Part.CHECKPOINT) for step in state.retention.removed),
        *((step, Part.OPTIMIZER) for step in state.retention.released),
    }
    steps = {save.id.directory: step for step, save in state.saving.sealed.items()}
    return tuple(
        one
        if one.fate is not Fate.GOES
        else evolve(one, fate=Fate.GONE if (steps[one.name], one.part) in gone else Fate.FAILED)
        for one in parts
    )


def freed(parts: tuple[Judged, ...]) -> int:
    """The bytes of what goes or went."""
    return sum(one.size for one in parts if one.fate in (Fate.GOES, Fate.GONE))


def _judged(state: State, save: SaveId, part: Part, *, stays: bool, why: str) -> Judged:
    fate = Fate.STAYS if stays else Fate.GOES
    return Judged(name=save.directory, part=part, fate=fate, why=why, size=_size(state, save, part))


def _size(state: State, save: SaveId, part: Part) -> int:
    """Bytes of payload of the part; a released optimizer is no part of the checkpoint any more."""
    sizes = {
        stored.component: sum(file.size for file in stored.files)
        for stored in state.saving.sealed[save.step].components
    }
    optimizer = sizes[Component.OPTIMIZER]
    if part is Part.OPTIMIZER:
        return optimizer
    return sum(sizes.values()) - (optimizer if save.step in state.retention.released else 0)
