"""Which checkpoint a start continues from, and why not each other one (INV-17).

The journal is the truth, a listing never is: candidates are the sealed saves of the state; what a look at the disk
found enters as their standing. Names that lie there without a record are candidates too, and never taken.

    standing     resume=auto                       a path that names it
    SOUND        the newest is taken               taken, unless a newer one is sealed in the run it would extend
    DAMAGED      the newest refuses the start      refused
    RELEASED     passed over, it is never newest   refused: it has no optimizer any more
    UNSEEN       passed over, it is never newest   looked at before anything else
    UNRECORDED   passed over                       refused inside the run's own tree; elsewhere its manifest decides

`auto` never steps back past damage in silence: the newest checkpoint is what was promised. The way out is a path.

    the request          what is there                                     the start is
    off                  anything                                          fresh, in a new attempt
    auto                 no candidate                                      fresh
    auto                 the newest sealed is sound                        exact, from it
    auto                 the newest sealed is damaged                      refused
    path                 missing, incomplete or damaged                    refused, never fresh
    path                 sound, not behind the adopted attempt's newest    exact (warm, for a file without state)
    path                 sound, behind the adopted attempt's newest        refused: later saves would collide

Artifacts are no candidates (INV-05), but their steps are taken for ever (INV-16): where the adopted attempt's newest
artifact is newer than what would be resumed, or there is nothing to resume, the start is refused, `auto` and path
alike.
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from milepost.transitions.errors import Corrupt, NotResumable
from milepost.transitions.saving import Saving
from milepost.transitions.values import PassedOver, SaveId, iteration_name


class Standing(Enum):
    """What a look at a candidate found. A start does not look behind the newest sound one."""

    SOUND = "sound"
    DAMAGED = "damaged"
    RELEASED = "released"
    UNSEEN = "unseen"
    UNRECORDED = "unrecorded"


@frozen(kw_only=True)
class Candidate:
    """A checkpoint of the run as the journal and a look at the disk know it."""

    name: str
    step: int
    standing: Standing
    save: SaveId | None = None
    detail: str = ""


@frozen(kw_only=True)
class Choice:
    """What `resume=auto` takes (None: start fresh), and every other candidate with its reason."""

    taken: Candidate | None
    passed_over: tuple[PassedOver, ...]


def choose(candidates: tuple[Candidate, ...], *, artifact: SaveId | None) -> Choice:
    """The choice of `resume=auto`, beside the newest artifact of the attempt.

    `Corrupt` where the newest sealed checkpoint is damaged, `NotResumable` where the artifact is newer than it.
    """
    sealed = sorted((c for c in candidates if c.save is not None), key=lambda c: c.step, reverse=True)
    taken = sealed[0] if sealed else None
    if taken is not None and taken.standing is not Standing.SOUND:
        older = next((c.name for c in sealed[1:] if c.standing is Standing.SOUND), None)
        way_out = (
            f"or resume from {older} by its path under another run.name" if older else "or start over with resume=off"
        )
        raise Corrupt(
            f"the newest checkpoint, {taken.name}, was published whole and no longer is: {taken.detail}. Nothing was "
            f"changed. Restore its files from a copy, {way_out}"
        )
    if artifact is not None and (taken is None or taken.step < artifact.step):
        found = f"the newest checkpoint is {taken.name}" if taken is not None else "there is no checkpoint"
        raise NotResumable(
            f"this attempt holds the artifact {artifact.directory}, and {found}: going on would come to steps that "
            "are written for ever. Nothing was changed. Start a new attempt with resume=off, or give the run another "
            "name; the artifact's weights can be loaded as those of any model"
        )
    return Choice(taken=taken, passed_over=tuple(_reason(c, taken) for c in candidates if c is not taken))


def _reason(candidate: Candidate, taken: Candidate | None) -> PassedOver:
    if candidate.standing is Standing.UNRECORDED:
        return PassedOver(name=candidate.name, reason="unrecorded", detail=candidate.detail)
    if candidate.standing is Standing.RELEASED:
        return PassedOver(name=candidate.name, reason="released", detail=candidate.detail)
    newer = taken.name if taken is not None else "nothing"
    return PassedOver(name=candidate.name, reason="older", detail=f"{newer} is newer")


def passed_for(candidates: tuple[Candidate, ...], *, path: str, name: str) -> tuple[PassedOver, ...]:
    """The reasons when a path was asked for: everything else was passed over because of the request."""
    return tuple(
        PassedOver(name=c.name, reason="not-asked-for", detail=f"resume={path}") for c in candidates if c.name != name
    )


def require_not_behind(saving: Saving, *, step: int, path: str) -> None:
    """`NotResumable` where `step` lies behind the newest published step of the attempt that it would extend."""
    newest = saving.newest_step
    if newest is not None and step < newest:
        held = "checkpoint" if newest in saving.sealed else "artifact"
        raise NotResumable(
            f"resume={path} is step {step}, but this attempt already holds the {held} {iteration_name(newest)}: "
            "going on from here would save steps that are published. Use resume=auto to continue the attempt, or "
            "give the run another name (run.name=…) to branch from the older step"
        )
