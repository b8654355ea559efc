"""What a start with resume=auto would do now, and how everything before it ended.

1. It is foreseen with the functions that will do it: `decide`, `evolve`, `due`, `choose`. Nothing is done.
2. Manifests are read before the log: a writer who seals meanwhile is then not mistaken for a log that lost its head.
3. A journal that a start would refuse is raised as the start would raise it.
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from milepost.engines.checkpoints import Checkpoints
from milepost.journal.forensics.questions import (
    candidates_at,
    checkpoints_at,
    events_of,
    names_at,
    unknown,
    witnesses_of,
)
from milepost.journal.forensics.reading import Place
from milepost.journal.forensics.timeline import Epoch, Event, chronicle
from milepost.transitions.errors import Corrupt, NotResumable, Refused
from milepost.transitions.machine import Command, State, decide, due, evolve
from milepost.transitions.resuming import Candidate, choose
from milepost.transitions.run import OpenRun
from milepost.transitions.saving import ObserveSave, ReportAbsent, ReportFound
from milepost.transitions.values import PassedOver, SaveId


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
    would do if the writer ended now. `foreseen` says how the next start settles what is open.
    """

    run: str
    start: Start
    taken: str | None
    reason: str
    passed_over: tuple[PassedOver, ...]
    foreseen: tuple[str, ...]
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
    checkpoints, there = checkpoints_at(place), names_at(place)
    witnesses = witnesses_of(place, checkpoints)
    story = chronicle(place.log, witnesses=witnesses)
    writer = place.writer()
    taken: Candidate | None = None
    passed_over: tuple[PassedOver, ...] = ()
    foreseen: tuple[str, ...] = ()
    try:
        state, foreseen = foresee(story.state, checkpoints)
        choice = choose(candidates_at(place, state, there=there))
        taken, passed_over = choice.taken, choice.passed_over
        start = Start.EXACT if taken is not None else Start.FRESH
        reason = "the newest checkpoint that the journal sealed, and sound at a quick look"
        if taken is None:
            reason = "the journal sealed no checkpoint"
    except (Corrupt, Refused, NotResumable) as refusal:
        start, reason = Start.REFUSED, str(refusal)
    if writer is not None:
        start = Start.BUSY
        reason = f"process {writer} holds the run; once it has ended: {reason}"
    return Why(
        run=place.where,
        start=start,
        taken=taken.name if taken is not None else None,
        reason=reason,
        passed_over=passed_over,
        foreseen=foreseen,
        epochs=story.epochs,
    )


def why_one(place: Place, name: str) -> WhyOne:
    """The same for one checkpoint; `Refused` where nothing is known of it."""
    whole = why(place)
    events = events_of(chronicle(place.log), name)
    passed = next((one for one in whole.passed_over if one.name == name), None)
    if whole.taken == name:
        reason = whole.reason
    elif passed is not None:
        reason = f"{passed.reason}: {passed.detail}"
    elif whole.start is Start.REFUSED:
        reason = f"a start is refused: {whole.reason}"
    elif events:
        reason = f"it is not there: {events[-1].text}"
    else:
        raise unknown(place, name, events)
    return WhyOne(run=place.where, name=name, taken=whole.taken == name, reason=reason, events=events)


def foresee(state: State, checkpoints: Checkpoints) -> tuple[State, tuple[str, ...]]:
    """The state once the next opening has settled what is open, and how it will, in words. Nothing is done.

    `Refused` where the opening would refuse.
    """
    if not state.saving.open:
        return state, ()
    state = _after(state, _opening(state))
    told = []
    for effect in due(state):
        if isinstance(effect, ObserveSave):
            report, words = _observation(effect.save, checkpoints)
            state = _after(state, report)
            told.append(words)
    return state, tuple(told)


def _observation(save: SaveId, checkpoints: Checkpoints) -> tuple[Command, str]:
    published = (one.found for one in checkpoints.published() if one.name == save.directory)
    found = next((one for one in published if one is not None and one.manifest.save == save), None)
    if found is None:
        return ReportAbsent(save=save), f"save {save} is open and not published: the next start gives it up"
    report = ReportFound(save=save, manifest=found.file, files=found.manifest.files)
    return report, f"save {save} is open and {save.directory} is published under this id: the next start seals it"


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
