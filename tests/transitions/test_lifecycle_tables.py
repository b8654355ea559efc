"""Each room's table against the room: every pair of a stage and a record, legal or not."""

from __future__ import annotations

from enum import Enum
from typing import get_args

import pytest
from attrs import evolve as replaced

from milepost.transitions import saving
from milepost.transitions.archiving import ArchiveStage
from milepost.transitions.boundary import BoundaryStage
from milepost.transitions.errors import IllegalTransition
from milepost.transitions.machine import DECIDE, EVOLVE, RECORDS, Command, Record, State, evolve
from milepost.transitions.retention import PruneStage
from milepost.transitions.run import RunOpened
from milepost.transitions.saving import SaveAbandoned, SaveSealed, SaveStage
from milepost.transitions.tables import follow
from milepost.transitions.validation import ValidationStage
from spec.generate import promises, stages
from tests.transitions.samples import PARTS, ROOMS, SAVE, record_for, saving_in, state_in

EVERY_PAIR = [(room, stage, kind) for room, parts in PARTS.items() for stage in parts for kind in RECORDS]

NOT_INTENDED = frozenset(ValidationStage) - {ValidationStage.INTENDED}

# What concerns a room only in some of its stages, and passes by in these: an epoch is about what is open, and a save
# about the validation that it is the first half of, and about the roles that it joins.
PASSES_BY: dict[tuple[str, type], frozenset[Enum]] = {
    ("saving", RunOpened): frozenset({SaveStage.NONE, SaveStage.SEALED, SaveStage.ABANDONED}),
    ("retention", RunOpened): frozenset({PruneStage.NONE, PruneStage.GONE}),
    ("archiving", RunOpened): frozenset({ArchiveStage.NONE, ArchiveStage.MARKED}),
    ("boundary", SaveSealed): frozenset({BoundaryStage.APART}),
    ("boundary", SaveAbandoned): frozenset({BoundaryStage.APART}),
    ("validation", SaveSealed): NOT_INTENDED,
    ("validation", SaveAbandoned): NOT_INTENDED,
}


def name(value: object) -> str:
    return value.name if isinstance(value, Enum) else getattr(value, "__name__", str(value))


def stage_of(state: State, room: str) -> Enum:
    """The room's stage; for saves, prunes and archives the stage of `SAVE`, wherever the state keeps it."""
    if room == "saving":
        published = state.saving.sealed.get(SAVE.step) or state.saving.artifacts.get(SAVE.step)
        if state.saving.open or published:
            return (published or state.saving.open[0]).stage
        return SaveStage.ABANDONED if state.saving.counter else SaveStage.NONE
    if room == "retention":
        if state.retention.open:
            return state.retention.open[0].stage
        return PruneStage.GONE if SAVE.step in state.retention.released else PruneStage.NONE
    if room == "archiving":
        if (archive := state.archiving.of(SAVE)) is not None:
            return archive.stage
        return ArchiveStage.MARKED if SAVE in state.archiving.marked else ArchiveStage.NONE
    found = getattr(state, room).stage
    assert isinstance(found, Enum)
    return found


@pytest.mark.parametrize(("room", "stage", "kind"), EVERY_PAIR, ids=name)
def test_a_record_moves_a_room_as_its_table_says_or_is_refused(room: str, stage: Enum, kind: type) -> None:
    table = ROOMS[room].TABLE
    state = state_in(room, stage, kind)
    record = record_for(kind, state)
    assert stage_of(state, room) is stage
    if room not in dict(EVOLVE[kind]):
        assert not any(has is kind for _, has in table), "the table has a record that never reaches the room"
        assert getattr(evolve(state, record), room) is getattr(state, room)
    elif (stage, kind) in table:
        assert stage_of(evolve(state, record), room) is table[stage, kind]
    elif stage in PASSES_BY.get((room, kind), ()):
        was, now = getattr(state, room), getattr(evolve(state, record), room)
        assert now == (replaced(was, counter=0) if room == "saving" else was)
    else:
        before = repr(state)
        with pytest.raises(IllegalTransition, match=kind.__name__ if room != "saving" else "save"):
            evolve(state, record)
        assert repr(state) == before


@pytest.mark.parametrize("room", ROOMS)
def test_the_prose_of_a_room_has_exactly_the_rows_of_its_table(room: str) -> None:
    table = ROOMS[room].TABLE
    rows = promises(ROOMS[room])
    assert {pair: then for pair, (then, _) in rows.items()} == {
        (stage.name, kind.__name__): then.name for (stage, kind), then in table.items()
    }
    assert all(promise for _, promise in rows.values())


@pytest.mark.parametrize("room", ROOMS)
def test_every_stage_of_a_room_is_reached_or_left_by_its_table(room: str) -> None:
    table = ROOMS[room].TABLE
    mentioned = {stage for stage, _ in table} | set(table.values())
    assert mentioned == set(PARTS[room]) == set(stages(ROOMS[room]))


def test_the_dispatch_tables_cover_the_unions() -> None:
    assert set(EVOLVE) == set(get_args(Record))
    assert set(DECIDE) == set(get_args(Command))
    assert len(RECORDS) == len(set(RECORDS)) == len(EVOLVE)


def test_every_record_that_moves_a_room_is_in_that_rooms_table() -> None:
    for kind, moves in EVOLVE.items():
        for room, _ in moves:
            assert any(has is kind for _, has in ROOMS[room].TABLE), f"{kind.__name__} moves {room}"


def test_tags_are_stable_distinct_and_versioned() -> None:
    tags = [kind.KIND for kind in RECORDS]  # type: ignore[attr-defined]
    assert len(set(tags)) == len(tags)
    for kind in RECORDS:
        words = kind.KIND.split("-")  # type: ignore[attr-defined]
        assert "".join(word.capitalize() for word in words) == kind.__name__
        assert kind.VERSION >= 1  # type: ignore[attr-defined]


def test_what_is_no_record_is_refused_by_name() -> None:
    with pytest.raises(IllegalTransition, match="str is not a record of this version"):
        evolve(State(), "save-opened")  # type: ignore[arg-type]


def test_a_refusal_says_what_was_found_and_what_the_table_allows() -> None:
    with pytest.raises(IllegalTransition) as refused:
        follow(saving.TABLE, SaveStage.UNSETTLED, record_for(saving.ComponentStored, State()), of="save 10.1.1")
    assert str(refused.value) == (
        "save 10.1.1 in stage UNSETTLED has no ComponentStored; the table allows ArtifactSealed, RunOpened, "
        "SaveAbandoned, SaveSealed"
    )


def test_a_stage_without_a_way_out_says_so() -> None:
    with pytest.raises(IllegalTransition, match="in stage SEALED has no SaveSealed; the table allows nothing more"):
        follow(saving.TABLE, SaveStage.SEALED, record_for(saving.SaveSealed, State()), of="save 10.1.1")


def test_an_id_that_was_used_in_this_epoch_opens_no_other_save() -> None:
    for stage in (SaveStage.SEALED, SaveStage.ABANDONED):
        state = State(saving=saving_in(stage))
        with pytest.raises(IllegalTransition, match=r"save 10\.1\.1 opened after counter 1: its id is used up"):
            evolve(state, record_for(saving.SaveOpened, state))
