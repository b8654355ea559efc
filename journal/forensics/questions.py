"""What a person asks of a journal: what changed between two points, does it fold. Values in, values out.

Nothing here changes a run (`reading`); a live writer may go on beside it. What is there is `listing`, what a start
would take `foreseeing`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator

import orjson
from attrs import fields, frozen

from milepost.engines.shapes import shape_of
from milepost.journal.forensics.reading import Place
from milepost.journal.forensics.timeline import state_at
from milepost.journal.log.replay import replay
from milepost.transitions.invariants import violations
from milepost.transitions.machine import State, initial
from milepost.transitions.values import SaveId, iteration_name

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
    """What changed from one entry to another.

    Between them checkpoints were sealed (`added`) and `artifacts`, and some of either `archived`; of others the
    optimizer was `released`, and some were `removed`.
    """

    old: int
    new: int
    changes: tuple[Change, ...]
    added: tuple[str, ...]
    artifacts: tuple[str, ...]
    archived: tuple[str, ...]
    released: tuple[str, ...]
    removed: tuple[str, ...]


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
    return Difference(
        old=old_seq,
        new=new_seq,
        changes=_without_shells(changes),
        added=_joined(before.saving.sealed, after.saving.sealed),
        artifacts=_joined(before.saving.artifacts, after.saving.artifacts),
        archived=tuple(save.directory for save in sorted(set(after.archiving.marked) - set(before.archiving.marked))),
        released=_joined(before.retention.released, after.retention.released),
        removed=_joined(before.retention.removed, after.retention.removed),
    )


def _joined(before: Iterable[int], after: Iterable[int]) -> tuple[str, ...]:
    """The steps that are only in the later one, by the names of their directories."""
    return tuple(iteration_name(step) for step in sorted(set(after) - set(before)))


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
    """Every field of every part as ((part, path), JSON text), in the order of the classes.

    Left out is what grows with every save: the maps of steps, which `Difference` tells by name. Of the work that is
    outstanding there are the numbers; what is settled behind it follows from them.
    """
    document = shape_of(State).write(state)
    assert isinstance(document, dict)
    for part, content in document.items():
        for path, value in _leaves(content, ""):
            if (part, path.split("[")[0]) not in _MAPS:
                yield (part, path), value
    yield ("sampling", "outstanding"), orjson.dumps(sorted(state.sampling.outstanding)).decode()


_MAPS = {
    ("saving", "sealed"),
    ("saving", "artifacts"),
    ("archiving", "marked"),
    ("retention", "released"),
    ("retention", "removed"),
    ("sampling", "outstanding"),
    ("sampling", "partly"),
    ("sampling", "stretches"),
}


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
    artifacts: int
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
        artifacts=len(state.saving.artifacts),
        kinds=tuple(Count(kind=kind, records=number) for kind, number in sorted(kinds.items())),
        seconds=time.monotonic() - started,
        broken=broken,
    )
