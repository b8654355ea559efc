"""What a person asks of a run: what is there, what changed between two points, does it fold. Values in, values out.

Nothing here changes a run (`reading`); a live writer may go on beside it. What a start would take is `foreseeing`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum

import orjson
from attrs import fields, frozen

from milepost.engines.checkpoints import Checkpoints
from milepost.engines.checkpoints.local import LocalCheckpoints
from milepost.engines.shapes import shape_of
from milepost.journal.candidates import candidates_of
from milepost.journal.forensics.reading import Place
from milepost.journal.forensics.timeline import Chronicle, Event, chronicle, state_at
from milepost.journal.log.replay import replay
from milepost.transitions.errors import Refused
from milepost.transitions.invariants import violations
from milepost.transitions.machine import State, initial
from milepost.transitions.resuming import Candidate, Standing
from milepost.transitions.saving import Save, SaveStage
from milepost.transitions.values import FileDigest, SaveId, Witness, parse_iteration

# --- checkpoints --------------------------------------------------------------------------------------


class Stage(Enum):
    """What a checkpoint is, by the journal and a quick look (manifest and sizes)."""

    SEALED = "sealed"
    DAMAGED = "damaged"
    OPEN = "open"
    UNSETTLED = "unsettled"
    UNRECORDED = "unrecorded"


@frozen(kw_only=True)
class Listed:
    """A row of `ls`. `size` is payload in bytes as far as it is stored; `at` is when that was recorded, or empty."""

    name: str
    step: int
    save: str | None
    stage: Stage
    reason: str
    size: int
    at: str
    latest: bool
    resumable: bool
    detail: str


@frozen(kw_only=True)
class Listing:
    """What `ls` says. `pointer` is the checkpoint that latest_checkpoint.txt names, as it was read."""

    run: str
    pointer: str | None
    checkpoints: tuple[Listed, ...]


def checkpoints_at(place: Place) -> Checkpoints:
    """The run's checkpoints, to be looked at only."""
    return LocalCheckpoints(disk=place.disk, root=place.checkpoints, fence=lambda: None)


def witnesses_of(place: Place, checkpoints: Checkpoints) -> Mapping[str, Witness]:
    """What the manifests knew of the journal."""
    return dict(checkpoints.witnesses()) if place.disk.stat(place.checkpoints) is not None else {}


def listing(place: Place) -> Listing:
    """Every checkpoint of the run, by step: sealed, under way, or lying there without a record."""
    there = names_at(place)
    story = chronicle(place.log)
    pointer = pointer_of(place)
    candidates = candidates_at(place, story.state, there=there)
    listed = [_listed(candidate, story, pointer) for candidate in candidates if not _is_open(candidate, story.state)]
    listed += [_under_way(save, story) for save in story.state.saving.open]
    return Listing(run=place.where, pointer=pointer, checkpoints=tuple(sorted(listed, key=lambda one: one.step)))


def names_at(place: Place) -> frozenset[str]:
    """The names in checkpoints/, to be taken before the log is read."""
    return frozenset(place.disk.names(place.checkpoints) if place.disk.stat(place.checkpoints) is not None else ())


def candidates_at(place: Place, state: State, *, there: frozenset[str]) -> tuple[Candidate, ...]:
    """What the journal sealed and what lay beside it before the log was read, each with its standing.

    What came later is a live writer's next checkpoint, which the log that was read cannot know.
    """
    if place.disk.stat(place.checkpoints) is None:
        return tuple(
            Candidate(
                name=save.id.directory,
                step=save.id.step,
                standing=Standing.DAMAGED,
                save=save.id,
                detail="checkpoints/ is gone",
            )
            for save in _by_step(state)
        )
    found = candidates_of(state, checkpoints_at(place))
    return tuple(one for one in found if one.save is not None or one.name in there)


def pointer_of(place: Place) -> str | None:
    """What latest_checkpoint.txt says; None where it does not say anything readable."""
    try:
        raw = place.disk.read(f"{place.checkpoints}/latest_checkpoint.txt", limit=4096)
    except OSError:
        return None
    return raw.decode("utf-8", "replace").strip()


def _listed(candidate: Candidate, story: Chronicle, pointer: str | None) -> Listed:
    latest = candidate.name == pointer
    if candidate.save is None:
        return Listed(
            name=candidate.name,
            step=candidate.step,
            save=None,
            stage=Stage.UNRECORDED,
            reason="",
            size=0,
            at="",
            latest=latest,
            resumable=False,
            detail=candidate.detail,
        )
    save = story.state.saving.sealed[candidate.step]
    sound = candidate.standing is Standing.SOUND
    return Listed(
        name=candidate.name,
        step=candidate.step,
        save=str(save.id),
        stage=Stage.SEALED if sound else Stage.DAMAGED,
        reason=save.reason.value,
        size=save.size,
        at=story.sealed(save.id).at,
        latest=latest,
        resumable=sound,
        detail=candidate.detail,
    )


def _under_way(save: Save, story: Chronicle) -> Listed:
    return Listed(
        name=save.id.directory,
        step=save.id.step,
        save=str(save.id),
        stage=Stage.OPEN if save.stage is SaveStage.WRITING else Stage.UNSETTLED,
        reason=save.reason.value,
        size=save.size,
        at=story.events[save.id][-1].at,
        latest=False,
        resumable=False,
        detail=story.events[save.id][-1].text,
    )


def _is_open(candidate: Candidate, state: State) -> bool:
    return any(save.id.directory == candidate.name for save in state.saving.open)


def _by_step(state: State) -> list[Save]:
    return sorted(state.saving.sealed.values(), key=lambda save: save.id.step)


@frozen(kw_only=True)
class Shown:
    """One checkpoint, whole: its row, what its manifest lists and saw, and the entries that made it."""

    listed: Listed
    where: str
    run_ts: str
    milepost: str
    checkpoint_format: str
    world_size: int
    witness: Witness | None
    manifest: FileDigest | None
    files: tuple[FileDigest, ...]
    events: tuple[Event, ...]


def shown(place: Place, name: str) -> Shown:
    """Everything that journal and manifest say of one checkpoint; `Refused` where neither knows it."""
    story = chronicle(place.log)
    row = next((one for one in listing(place).checkpoints if one.name == name), None)
    events = events_of(story, name)
    if row is None:
        raise unknown(place, name, events)
    found = next((one.found for one in checkpoints_at(place).published() if one.name == name), None)
    manifest = found.manifest if found is not None else None
    return Shown(
        listed=row,
        where=place.disk.where(f"{place.checkpoints}/{name}"),
        run_ts=manifest.run_ts if manifest else "",
        milepost=manifest.milepost if manifest else "",
        checkpoint_format=manifest.checkpoint_format if manifest else "",
        world_size=manifest.world_size if manifest else 0,
        witness=manifest.witness if manifest else None,
        manifest=found.file if found is not None else None,
        files=manifest.files if manifest else (),
        events=events,
    )


def events_of(story: Chronicle, name: str) -> tuple[Event, ...]:
    """Everything recorded of every attempt to save the step of this checkpoint, oldest first."""
    of_step = (events for save, events in story.events.items() if save.directory == name)
    return tuple(sorted((event for events in of_step for event in events), key=lambda event: event.seq))


def unknown(place: Place, name: str, events: tuple[Event, ...]) -> Refused:
    """What to say of a checkpoint that is nowhere."""
    if parse_iteration(name) is None:
        return Refused(f"{name!r} is no checkpoint: expected a name as iter_000000100")
    last = f"; the last that was recorded of it: {events[-1].text} (entry {events[-1].seq})" if events else ""
    return Refused(f"{name} is neither in the journal of {place.where} nor in its checkpoints/{last}")


# --- the difference between two points -----------------------------------------------------------------


@frozen(kw_only=True)
class Change:
    """A field of a part of the state. Values are JSON texts; empty where the field was not there."""

    part: str
    field: str
    old: str
    new: str


@frozen(kw_only=True)
class Difference:
    """What changed from one entry to another. A checkpoint is `added` when it was sealed between them."""

    old: int
    new: int
    changes: tuple[Change, ...]
    added: tuple[str, ...]


def difference(place: Place, old: str, new: str) -> Difference:
    """The two points are seqs, `head` or checkpoints."""
    old_seq, before = state_at(place.log, old)
    new_seq, after = state_at(place.log, new)
    was, now = dict(fields_of(before)), dict(fields_of(after))
    parts = [part.name for part in fields(State)]
    changes = tuple(
        Change(part=part, field=field, old=was.get((part, field), ""), new=now.get((part, field), ""))
        for part, field in sorted(was | now, key=lambda place: parts.index(place[0]))
        if was.get((part, field)) != now.get((part, field))
    )
    added = [save.id.directory for save in _by_step(after) if save.id.step not in before.saving.sealed]
    return Difference(old=old_seq, new=new_seq, changes=_without_shells(changes), added=tuple(added))


def _without_shells(changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """Leaves out a null or an empty list where what it became is told field by field."""
    return tuple(
        one
        for one in changes
        if not any(
            other.part == one.part and other.field.startswith((f"{one.field}.", f"{one.field}[")) for other in changes
        )
    )


def fields_of(state: State) -> Iterator[tuple[tuple[str, str], str]]:
    """Every field of every part but the sealed saves, as ((part, path), JSON text), in the order of the classes."""
    document = shape_of(State).write(state)
    assert isinstance(document, dict)
    for part, content in document.items():
        for path, value in _leaves(content, ""):
            if (part, path.split("[")[0]) != ("saving", "sealed"):
                yield (part, path), value


def _leaves(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value.keys() == _SAVE_ID:
        yield path, f'"{SaveId(**value)}"'
    elif isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and value:
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
    else:
        yield path, orjson.dumps(value).decode()


_SAVE_ID = {one.name for one in fields(SaveId)}


# --- folding again -------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Broken:
    """An invariant that does not hold behind an entry."""

    invariant: str
    what: str
    seq: int
    epoch: int
    at: str


@frozen(kw_only=True)
class Count:
    """How many records of a kind there are."""

    kind: str
    records: int


@frozen(kw_only=True)
class Replayed:
    """A fold from nothing. `broken` is the first violation; the fold ends there."""

    run: str
    entries: int
    records: int
    epochs: int
    checkpoints: int
    kinds: tuple[Count, ...]
    seconds: float
    broken: Broken | None


def replayed(place: Place) -> Replayed:
    """Fold again and check every invariant at every entry. Raises as `replay` does."""
    started = time.monotonic()
    state, entries, broken = initial(), 0, None
    kinds: Counter[str] = Counter()
    for entry, after in replay(place.log):
        entries += 1
        kinds.update(record.KIND for record in entry.records)
        if found := violations(state, after):
            first = found[0]
            broken = Broken(invariant=first.number, what=first.what, seq=entry.seq, epoch=entry.epoch, at=entry.at)
        state = after
        if broken is not None:
            break
    return Replayed(
        run=place.where,
        entries=entries,
        records=kinds.total(),
        epochs=state.run.epoch,
        checkpoints=len(state.saving.sealed),
        kinds=tuple(Count(kind=kind, records=number) for kind, number in sorted(kinds.items())),
        seconds=time.monotonic() - started,
        broken=broken,
    )
