"""What a start with resume=auto would do now, and how everything before it ended.

1. It is foreseen with the functions that will do it: `decide`, `evolve`, `due`, `choose`. Nothing is done: an effect
   that a start performs is taken to succeed.
2. Manifests are read before the log: a writer who seals meanwhile is then not mistaken for a log that lost its head.
3. A journal that a start would refuse is raised as the start would raise it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from attrs import frozen

from milepost.engines.checkpoints import Checkpoints
from milepost.journal.forensics.listing import (
    Stage,
    candidates_at,
    checkpoints_at,
    events_of,
    names_at,
    stage_of,
    unknown,
    witnesses_of,
)
from milepost.journal.forensics.reading import Kind, Place
from milepost.journal.forensics.timeline import Chronicle, Epoch, Event, chronicle
from milepost.transitions.archiving import ArchiveSave, ReportArchived
from milepost.transitions.errors import Corrupt, NotResumable, Refused
from milepost.transitions.machine import Command, Effect, State, decide, due, evolve
from milepost.transitions.pointing import AdvancePointer, ReportPointed
from milepost.transitions.resuming import Candidate, choose
from milepost.transitions.retention import Part, PrunePart, ReportPruned
from milepost.transitions.run import OpenRun
from milepost.transitions.saving import ObserveSave, ReportAbsent, ReportFound
from milepost.transitions.sweeping import ClearDebris, ReportCleared
from milepost.transitions.validation import Generation, MarkGeneration, ReportMarked
from milepost.transitions.values import FULL, PassedOver


class Start(Enum):
    """What a start with resume=auto would be."""

    FRESH = "fresh"
    EXACT = "exact"
    REFUSED = "refused"
    BUSY = "busy"


@frozen(kw_only=True)
class Why:
    """What resume=auto takes now, why not each other candidate, and what came before.

    `start` is BUSY while a writer of this machine holds the run; `taken` and `passed_over` are then what a start
    would do if the writer ended now. `foreseen` says how the next start settles what is open, and `evaluates` names
    the checkpoint that the resumed run evaluates before its first step. `exit_code` is 5 where a checkpoint is not
    what was sealed, 1 where a start is refused for another reason.
    """

    run: str
    start: Start
    taken: str | None
    reason: str
    passed_over: tuple[PassedOver, ...]
    foreseen: tuple[str, ...]
    evaluates: str | None
    exit_code: int
    epochs: tuple[Epoch, ...]


@frozen(kw_only=True)
class WhyOne:
    """Whether resume=auto takes one checkpoint, why, and everything that the journal recorded of its step."""

    run: str
    name: str
    taken: bool
    reason: str
    events: tuple[Event, ...]


def why(place: Place) -> Why:
    """What a start with resume=auto would do now. A journal that it would refuse is raised as it would be."""
    return _told(place)[1]


def _told(place: Place) -> tuple[Chronicle, Why]:
    """What the journal tells, read once, and what a start would make of it."""
    checkpoints, there = checkpoints_at(place), names_at(place, Kind.CHECKPOINT)
    witnesses = witnesses_of(place, checkpoints)
    story = chronicle(place.log, witnesses=witnesses)
    writer = place.writer()
    taken: Candidate | None = None
    passed_over: tuple[PassedOver, ...] = ()
    foreseen: tuple[str, ...] = ()
    evaluates: str | None = None
    code = 0
    try:
        state, foreseen = foresee(story.state, checkpoints)
        choice = choose(candidates_at(place, state, there=there), artifact=state.saving.newest_artifact)
        taken, passed_over = choice.taken, choice.passed_over
        start = Start.EXACT if taken is not None else Start.FRESH
        reason = "the journal sealed no checkpoint"
        if taken is not None:
            reason = "the newest checkpoint that the journal sealed, and sound at a quick look"
            evaluates, words = _evaluation(state, taken)
            foreseen += words
    except (Corrupt, Refused, NotResumable) as refusal:
        start, reason = Start.REFUSED, str(refusal)
        code = 5 if isinstance(refusal, Corrupt) else 1
    if writer is not None:
        start, code = Start.BUSY, 0
        reason = f"process {writer} holds the run; once it has ended: {reason}"
    return story, Why(
        run=place.where,
        start=start,
        taken=taken.name if taken is not None else None,
        reason=reason,
        passed_over=passed_over,
        foreseen=foreseen,
        evaluates=evaluates,
        exit_code=code,
        epochs=story.epochs,
    )


def _evaluation(state: State, taken: Candidate) -> tuple[str | None, tuple[str, ...]]:
    """What becomes of a pending evaluation where `taken` is resumed from: the name, and words for it."""
    pending = state.validation.pending
    if pending is None or stage_of(state, pending) is not Stage.EVALUATION_PENDING:
        return None, ()
    name = pending.directory
    if pending != taken.save:
        return None, (f"{name} is evaluation-pending, and {taken.name} supersedes it: it stays unpublished",)
    return name, (f"{name} is evaluation-pending: the resumed run evaluates it again before its first step",)


def why_one(place: Place, name: str) -> WhyOne:
    """The same for one checkpoint; `Refused` where nothing is known of it."""
    story, whole = _told(place)
    events = events_of(story, name)
    passed = next((one for one in whole.passed_over if one.name == name), None)
    artifact = any(save.id.directory == name for save in story.state.saving.artifacts.values())
    checkpoint = place.kind is Kind.CHECKPOINT
    taken = checkpoint and whole.taken == name
    if taken:
        reason = whole.reason
    elif checkpoint and passed is not None:
        reason = f"{passed.reason}: {passed.detail}"
    elif artifact:
        reason = "artifact: a partial save is never resumed from"
    elif whole.start is Start.REFUSED:
        reason = f"a start is refused: {whole.reason}"
    elif events:
        reason = f"it is not there: {events[-1].text}"
    else:
        raise unknown(place, name, events)
    return WhyOne(run=place.where, name=name, taken=taken, reason=reason, events=events)


# --- the next opening ---------------------------------------------------------------------------------


def foresee(state: State, checkpoints: Checkpoints) -> tuple[State, tuple[str, ...]]:
    """The state once the next opening has settled what is due, and how it will, in words. Nothing is done.

    `Refused` where the opening would refuse.
    """
    state = _after(state, _opening(state))
    told = []
    while effects := due(state):
        report, words = _FORESEEN[type(effects[0])](effects[0], checkpoints)
        state = _after(state, report)
        told.append(words)
    return state, tuple(filter(None, told))


def _observed(effect: ObserveSave, checkpoints: Checkpoints) -> tuple[Command, str]:
    save = effect.save
    published = checkpoints.published() if effect.plan == FULL else checkpoints.artifacts()
    seen = (one.found for one in published if one.name == save.directory)
    found = next((one for one in seen if one is not None and one.manifest.save == save), None)
    if found is None:
        return ReportAbsent(save=save), f"save {save} is open and not published: the next start gives it up"
    report = ReportFound(save=save, manifest=found.file, files=found.manifest.files)
    return report, f"save {save} is open and {save.directory} is published under this id: the next start seals it"


def _marked(effect: MarkGeneration, checkpoints: Checkpoints) -> tuple[Command, str]:
    report = ReportMarked(save=effect.save, generation=effect.generation)
    if effect.generation is not Generation.PUBLISHED:
        return report, ""
    return report, f"{effect.save.directory} was evaluated and is not published: the next start only publishes it"


def _pruned(effect: PrunePart, checkpoints: Checkpoints) -> tuple[Command, str]:
    what = "" if effect.part is Part.CHECKPOINT else "the optimizer of "
    words = f"retention began to remove {what}{effect.save.directory}: the next start goes on with it"
    return ReportPruned(save=effect.save, part=effect.part), words


def _archived(effect: ArchiveSave, checkpoints: Checkpoints) -> tuple[Command, str]:
    words = f"the publication of {effect.save.directory} waits for its archive: the next start completes that first"
    return ReportArchived(save=effect.save, files=0, size=0, sent=0), words


_FORESEEN: Mapping[type[Effect], Callable[[Any, Checkpoints], tuple[Command, str]]] = {
    ObserveSave: _observed,
    MarkGeneration: _marked,
    ArchiveSave: _archived,
    PrunePart: _pruned,
    AdvancePointer: lambda effect, _: (ReportPointed(save=effect.save), ""),
    ClearDebris: lambda effect, _: (ReportCleared(names=()), ""),
}
"""What an opening performs, as a report that it succeeded and words for it; empty where nobody asks."""


def _opening(state: State) -> OpenRun:
    run = state.run
    return OpenRun(
        segment=run.segment + 1,
        closes=(),
        execution_id="",
        run_ts=run.run_ts,
        nonce="",
        host="",
        pid=0,
        milepost="",
        world_size=1,
    )


def _after(state: State, command: Command) -> State:
    for record in decide(state, command):
        state = evolve(state, record)
    return state
