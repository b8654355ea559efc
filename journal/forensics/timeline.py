"""What happened, from the log alone: entries as they lie on the disk, the life of each save, how each epoch ended.

Every pass folds from the first byte and uses no cache. Damage ends a pass with the error that says where.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import Enum

from attrs import evolve, frozen

from milepost.engines.logs import Log
from milepost.journal.forensics.sentences import sentence, step_of
from milepost.journal.log.entries import Entry, unpack
from milepost.journal.log.replay import replay
from milepost.journal.log.scan import NO_WITNESSES, Mark, Scan, survey
from milepost.transitions.boundary import BoundaryOpened
from milepost.transitions.errors import Refused
from milepost.transitions.machine import Record, State, initial
from milepost.transitions.run import RunEnded, RunOpened, RunResumed
from milepost.transitions.saving import ArtifactSealed, SaveAbandoned, SaveOpened, SaveSealed
from milepost.transitions.updates import UpdateOpened
from milepost.transitions.validation import (
    EvaluationPended,
    PublicationCompleted,
    PublicationPended,
)
from milepost.transitions.values import Clocks, SaveId, Witness, parse_iteration

_SEALED = (SaveSealed, ArtifactSealed)

# --- entries ------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Wanted:
    """Which records a reader asks for. `since` is a seq, or the beginning of a time in UTC as entries write it."""

    kinds: tuple[str, ...] = ()
    since: int | str = 0
    step: int | None = None

    def takes(self, entry: Entry, record: Record) -> bool:
        behind = entry.seq >= self.since if isinstance(self.since, int) else entry.at >= self.since
        return (
            behind
            and (not self.kinds or record.KIND in self.kinds)
            and (self.step is None or step_of(record) == self.step)
        )


def parse_since(text: str) -> int | str:
    """A seq, or a time as `2026-11-29`, `2026-11-29T16:09` and so on; `Refused` for anything else."""
    if text.isascii() and text.isdigit():
        return int(text)
    if re.fullmatch(r"\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\d(\.\d{1,6})?)?)?)?)?)?Z?", text, re.ASCII) and "-" in text:
        return text.removesuffix("Z")
    raise Refused(f"--since {text}: expected a seq as 120, or a time in UTC as 2026-11-29T16:09")


def records(log: Log, wanted: Wanted) -> Iterator[tuple[Entry, Record]]:
    """The wanted records, oldest first."""
    return _wanted(Scan(log, survey(log)), wanted)


def follow(log: Log, wanted: Wanted, *, wait: Callable[[], None]) -> Iterator[tuple[Entry, Record]]:
    """As `records`, and then for ever what is appended; `wait` is called between two looks."""
    mark: Mark | None = None
    while True:
        scan = Scan(log, survey(log), start=mark)
        yield from _wanted(scan, wanted)
        mark = scan.result.end
        wait()


def _wanted(scan: Scan, wanted: Wanted) -> Iterator[tuple[Entry, Record]]:
    for entry in scan:
        for record in entry.records:
            if wanted.takes(entry, record):
                yield entry, record


@frozen(kw_only=True)
class Located:
    """An entry and its line: `offset` bytes into the segment of this number, verified by its sum and its chain."""

    entry: Entry
    segment: int
    offset: int
    line: bytes


def entry_at(log: Log, seq: int) -> Located:
    """One entry of the log as far as it is whole; `Refused` where there is none of this seq."""
    head = 0
    for entry in Scan(log, survey(log)):
        head = entry.seq
        if head == seq:
            return _find(log, seq)
    raise Refused(f"entry {seq} is not in this journal: it goes from 1 to {head}")


def _find(log: Log, seq: int) -> Located:
    """The line of an entry that is known to count."""
    beginning = b'{"seq":%d,' % seq
    for span in survey(log).spans:
        offset = 0
        with log.open(span.number, stop=span.stop) as stream:
            for line in stream:
                if line.startswith(beginning):
                    return Located(entry=unpack(line), segment=span.number, offset=offset, line=line)
                offset += len(line)
    raise AssertionError(f"entry {seq} was read and is gone")


# --- points -------------------------------------------------------------------------------------------


def state_at(log: Log, point: str) -> tuple[int, State]:
    """The state behind an entry, and its seq. `point` is a seq, `head`, or `iter_…`: the entry that sealed it.

    Where a step was published twice, as an artifact and as a checkpoint, the first of the two is meant.
    """
    wanted = parse_iteration(point)
    if wanted is None and point != "head" and not (point.isascii() and point.isdigit()):
        raise Refused(f"{point!r} is no point of a journal: expected a seq as 120, iter_000000100 or head")
    seq, state = 0, initial()
    if point == "0":
        return seq, state
    for entry, state in replay(log):
        seq = entry.seq
        if point == str(seq):
            return seq, state
        if wanted is not None and any(isinstance(r, _SEALED) and r.save.step == wanted for r in entry.records):
            return seq, state
    if point == "head":
        return seq, state
    what = f"{point} was never sealed" if wanted is not None else f"entry {point} is not there"
    raise Refused(f"{what}: the journal goes from entry 1 to {seq}")


def clocks_at(log: Log, save: SaveId) -> Clocks:
    """The update clocks when the save was opened: those that its checkpoint carries."""
    for entry, state in replay(log):
        if any(isinstance(record, SaveOpened) and record.save == save for record in entry.records):
            return state.updates.clocks
    raise AssertionError(f"save {save} is sealed and was never opened")


@frozen(kw_only=True)
class Beside:
    """What the journal says of the small files beside a manifest, by save.

    `generations` counts those that a checkpoint with a validation, once it is sealed, durably carries; `boundaries`
    are the roles that a save joined.
    """

    generations: Mapping[SaveId, int]
    boundaries: Mapping[SaveId, BoundaryOpened]


def beside_manifests(log: Log) -> Beside:
    """One pass over the log."""
    order, reached = list(_GENERATIONS), Counter[SaveId]()
    joined: dict[SaveId, BoundaryOpened] = {}
    for _, record in records(log, Wanted(kinds=(BoundaryOpened.KIND, *(kind.KIND for kind in order)))):
        if isinstance(record, EvaluationPended | PublicationPended | PublicationCompleted):
            reached[record.save] = order.index(type(record)) + 1
        elif isinstance(record, BoundaryOpened):
            joined[record.save] = record
    return Beside(generations=reached, boundaries=joined)


_GENERATIONS: tuple[type[EvaluationPended | PublicationPended | PublicationCompleted], ...] = (
    EvaluationPended,
    PublicationPended,
    PublicationCompleted,
)

# --- the whole story ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class Event:
    """One record of a save's life."""

    seq: int
    epoch: int
    at: str
    kind: str
    text: str


class Ending(Enum):
    """How an epoch came to its end, as far as the journal says."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"
    KILLED = "killed"
    UNENDED = "unended"


@frozen(kw_only=True)
class Epoch:
    """One writer's time. `open_save` was under way when it ended, `settled` is what the next writer found of it.

    `ending` is KILLED where a later epoch began without an end, UNENDED for the newest one: running, or killed.
    """

    epoch: int
    host: str
    pid: int
    opened_at: str
    first_seq: int
    last_seq: int
    last_at: str
    step: int
    resumed: str
    ending: Ending
    detail: str
    open_save: str | None
    settled: str


@frozen(kw_only=True)
class Chronicle:
    """The log, told: the state that it comes to, what was recorded of each save, and every writer's time.

    `boundaries` are the roles that a save joined, where it did.
    """

    state: State
    entries: int
    events: Mapping[SaveId, tuple[Event, ...]]
    boundaries: Mapping[SaveId, BoundaryOpened]
    epochs: tuple[Epoch, ...]

    def sealed(self, save: SaveId) -> Event:
        """The event that sealed the save, as a checkpoint or as an artifact."""
        kinds = [record.KIND for record in _SEALED]
        return next(event for event in self.events[save] if event.kind in kinds)


def chronicle(log: Log, *, witnesses: Mapping[str, Witness] = NO_WITNESSES) -> Chronicle:
    """One pass over the log. Raises as `replay` does."""
    state, count = initial(), 0
    events: dict[SaveId, tuple[Event, ...]] = {}
    boundaries: dict[SaveId, BoundaryOpened] = {}
    epochs: list[Epoch] = []
    for entry, after in replay(log, witnesses=witnesses):
        for record in entry.records:
            save = getattr(record, "save", None)
            if save is not None:
                events[save] = (*events.get(save, ()), event_of(entry, record))
            if isinstance(record, BoundaryOpened):
                boundaries[record.save] = record
            _note(epochs, entry, record, state)
        if epochs:
            epochs[-1] = evolve(epochs[-1], last_seq=entry.seq, last_at=entry.at)
        state, count = after, count + 1
    if epochs and state.saving.open:
        epochs[-1] = evolve(epochs[-1], open_save=str(state.saving.open[0].id))
    return Chronicle(state=state, entries=count, events=events, boundaries=boundaries, epochs=tuple(epochs))


def event_of(entry: Entry, record: Record) -> Event:
    """The record with its place in the log, told."""
    return Event(seq=entry.seq, epoch=entry.epoch, at=entry.at, kind=record.KIND, text=sentence(record))


def _note(epochs: list[Epoch], entry: Entry, record: Record, before: State) -> None:
    """What a record adds to the story of the epochs; `before` is the state before its entry."""
    if isinstance(record, RunOpened):
        if epochs:
            epochs[-1] = _left(epochs[-1], before)
        epochs.append(_begun(entry, record))
    elif isinstance(record, RunResumed):
        epochs[-1] = evolve(epochs[-1], resumed=sentence(record), step=record.step)
    elif isinstance(record, UpdateOpened):
        epochs[-1] = evolve(epochs[-1], step=record.step)
    elif isinstance(record, RunEnded):
        epochs[-1] = evolve(epochs[-1], ending=Ending(record.outcome.value), detail=record.detail, step=record.step)
    elif len(epochs) > 1 and isinstance(record, (*_SEALED, SaveAbandoned)):
        earlier = epochs[-2]
        if not earlier.settled and earlier.open_save == str(record.save):
            epochs[-2] = evolve(earlier, settled=f"{sentence(record)}, recorded by epoch {entry.epoch}")


def _begun(entry: Entry, record: RunOpened) -> Epoch:
    return Epoch(
        epoch=record.epoch,
        host=record.host,
        pid=record.pid,
        opened_at=entry.at,
        first_seq=entry.seq,
        last_seq=entry.seq,
        last_at=entry.at,
        step=0,
        resumed="",
        ending=Ending.UNENDED,
        detail="",
        open_save=None,
        settled="",
    )


def _left(epoch: Epoch, before: State) -> Epoch:
    """The epoch once another one has begun."""
    ending = Ending.KILLED if epoch.ending is Ending.UNENDED else epoch.ending
    saves = before.saving.open
    return evolve(epoch, ending=ending, open_save=str(saves[0].id) if saves else None)
