"""Every predicate finds the bad state that it is there for, and nothing else does."""

from __future__ import annotations

import pytest
from attrs import evolve as replaced
from rpds import HashTrieMap

from milepost.transitions.invariants import ON_SEALED, ON_STATE, ON_STEP, Violation, violations
from milepost.transitions.machine import State, initial
from milepost.transitions.pointing import Pointer, PointerStage
from milepost.transitions.run import RunStage
from milepost.transitions.saving import Save, SaveStage, Saving
from milepost.transitions.updates import Updates, UpdateStage
from milepost.transitions.values import Clocks, Component, SaveId
from tests.transitions.samples import MANIFEST, OLDER, PARTS, RESUMED_RUN, SAVE, save_in, saving_in

GOOD = State(
    run=RESUMED_RUN,
    saving=saving_in(SaveStage.SEALED),
    pointer=PARTS["pointer"][PointerStage.AT],
    updates=Updates(clocks=Clocks(attempt_id=3, optimizer_step=2, skipped_total=1, skipped_consecutive=1)),
)
SEALED = GOOD.saving.sealed[SAVE.step]
WRITING = saving_in(SaveStage.WRITING)
UNDECIDED = State(run=replaced(RESUMED_RUN, resumed=None))


def with_sealed(save: Save) -> State:
    return replaced(GOOD, saving=replaced(GOOD.saving, sealed=HashTrieMap({SAVE.step: save})))


def with_clocks(clocks: Clocks) -> State:
    return replaced(GOOD, updates=Updates(clocks=clocks))


def with_pointer(pointer: Pointer) -> State:
    return replaced(GOOD, pointer=pointer)


BOTH = replaced(
    GOOD.saving,
    sealed=GOOD.saving.sealed.insert(OLDER.step, save_in(SaveStage.SEALED, of=OLDER)),
)

BAD_STATES: dict[str, tuple[State, str, str]] = {
    "no manifest": (
        with_sealed(replaced(SEALED, manifest=None)),
        "INV-01",
        "10.1.1 is sealed without a manifest or without a component",
    ),
    "a component is missing": (
        with_sealed(replaced(SEALED, components=SEALED.components[:2])),
        "INV-01",
        "10.1.1 is sealed without a manifest or without a component",
    ),
    "the pointer names nothing": (
        with_pointer(Pointer(stage=PointerStage.STALE, at=SaveId(99, 1, 1), target=SAVE)),
        "INV-03",
        "at 99.1.1, which is no sealed full checkpoint",
    ),
    "the pointer names another attempt": (
        with_pointer(Pointer(stage=PointerStage.STALE, at=SaveId(10, 2, 1), target=SAVE)),
        "INV-03",
        "at 10.2.1, which is no sealed full checkpoint",
    ),
    "the pointer names a partial save": (
        with_sealed(replaced(SEALED, plan=(Component.MODEL,), components=SEALED.components[:1])),
        "INV-03",
        "at 10.1.1, which is no sealed full checkpoint",
    ),
    "the pointer rests behind the newest": (
        replaced(GOOD, saving=BOTH, pointer=Pointer(stage=PointerStage.AT, at=OLDER, target=SAVE)),
        "INV-03",
        "at 5.1.1; the newest is 10.1.1",
    ),
    "the pointer is sent elsewhere": (
        with_pointer(Pointer(stage=PointerStage.STALE, at=SAVE, target=OLDER)),
        "INV-03",
        "belongs at 5.1.1; the newest is 10.1.1",
    ),
    "the newest is not the highest": (
        replaced(
            GOOD, saving=replaced(BOTH, newest=OLDER), pointer=Pointer(stage=PointerStage.AT, at=OLDER, target=OLDER)
        ),
        "INV-03",
        "newest is 5.1.1, sealed goes up to 10",
    ),
    "the newest is not sealed at all": (
        State(saving=Saving(newest=SAVE), pointer=Pointer(stage=PointerStage.STALE, target=SAVE)),
        "INV-03",
        "newest is 10.1.1, sealed goes up to None",
    ),
    "two saves are open": (
        replaced(GOOD, saving=replaced(GOOD.saving, open=(*WRITING.open, *WRITING.open))),
        "INV-04",
        "2 saves are open",
    ),
    "an earlier epoch's save is being written": (
        State(run=replaced(RESUMED_RUN, epoch=2), saving=WRITING),
        "INV-04",
        "save 10.1.1 is being written in epoch 2",
    ),
    "an attempt has no outcome": (
        with_clocks(Clocks(attempt_id=3, optimizer_step=1, skipped_total=1)),
        "INV-12",
        "3 attempts, 1 applied + 1 skipped",
    ),
    "more skips in a row than in all": (
        with_clocks(Clocks(attempt_id=1, skipped_total=1, skipped_consecutive=2)),
        "INV-12",
        "2 skips in a row of 1 in all",
    ),
    "a row of skips below zero": (
        with_clocks(Clocks(skipped_consecutive=-1)),
        "INV-12",
        "-1 skips in a row of 0 in all",
    ),
    "a run ended with a save open": (
        State(run=PARTS["run"][RunStage.ENDED], saving=WRITING),
        "INV-14",
        "ended with save 10.1.1 open",
    ),
    "an update before the resume": (
        replaced(UNDECIDED, updates=Updates(stage=UpdateStage.ACCUMULATING)),
        "INV-17",
        "an update was opened before the resume",
    ),
    "a save before the resume": (
        replaced(UNDECIDED, saving=WRITING),
        "INV-17",
        "a save was opened before the resume",
    ),
}

BAD_STEPS: dict[str, tuple[State, State, str, str]] = {
    "a sealed save changed": (
        GOOD,
        with_sealed(replaced(SEALED, manifest=replaced(MANIFEST, size=301))),
        "INV-02",
        "save 10.1.1 was sealed and changed",
    ),
    "a sealed save disappeared": (
        replaced(GOOD, saving=BOTH),
        GOOD,
        "INV-02",
        "save 5.1.1 was sealed and changed",
    ),
    "the pointer moved back": (
        replaced(GOOD, saving=BOTH),
        replaced(GOOD, saving=BOTH, pointer=Pointer(stage=PointerStage.STALE, at=OLDER, target=SAVE)),
        "INV-03",
        "moved from 10.1.1 to 5.1.1",
    ),
    "the pointer was forgotten": (
        GOOD,
        with_pointer(Pointer(stage=PointerStage.STALE, target=SAVE)),
        "INV-03",
        "moved from 10.1.1 to None",
    ),
    "a save inside an accumulation window": (
        State(run=RESUMED_RUN),
        State(run=RESUMED_RUN, saving=WRITING, updates=Updates(stage=UpdateStage.ACCUMULATING)),
        "INV-12",
        "save 10.1.1 was opened inside an accumulation window",
    ),
}


@pytest.mark.parametrize("case", BAD_STATES)
def test_a_bad_state_breaks_exactly_its_invariant(case: str) -> None:
    state, number, what = BAD_STATES[case]
    assert [violation.number for violation in violations(state, state)] == [number]
    assert what in violations(state, state)[0].what


@pytest.mark.parametrize("case", BAD_STEPS)
def test_a_bad_step_between_two_good_states_breaks_exactly_its_invariant(case: str) -> None:
    before, after, number, what = BAD_STEPS[case]
    assert violations(before, before) == ()
    assert violations(after, after) == ()
    assert [violation.number for violation in violations(before, after)] == [number]
    assert what in violations(before, after)[0].what


def test_good_states_break_nothing() -> None:
    for state in (initial(), GOOD, UNDECIDED, State(run=RESUMED_RUN, saving=WRITING)):
        assert violations(state, state) == ()


def test_a_run_that_is_not_open_has_no_resume_to_explain() -> None:
    state = State(updates=Updates(stage=UpdateStage.ACCUMULATING))
    assert violations(state, state) == ()


def test_an_unsettled_save_of_an_earlier_epoch_is_as_it_should_be() -> None:
    state = State(run=replaced(UNDECIDED.run, epoch=2), saving=saving_in(SaveStage.UNSETTLED))
    assert violations(state, state) == ()


def test_an_open_save_beside_an_open_update_of_later_steps_is_as_it_should_be() -> None:
    busy = Updates(stage=UpdateStage.ACCUMULATING)
    before, after = State(run=RESUMED_RUN, saving=WRITING), State(run=RESUMED_RUN, saving=WRITING, updates=busy)
    assert violations(before, after) == ()


def test_a_newer_checkpoint_beside_the_older_ones_is_as_it_should_be() -> None:
    before = replaced(
        GOOD,
        saving=Saving(sealed=BOTH.sealed.remove(SAVE.step), newest=OLDER),
        pointer=Pointer(stage=PointerStage.AT, at=OLDER, target=OLDER),
    )
    assert violations(before, replaced(GOOD, saving=BOTH)) == ()


def test_every_predicate_was_violated_above() -> None:
    tried = [number for _, number, _ in BAD_STATES.values()]
    assert set(tried) == {number for number, _ in (*ON_SEALED, *ON_STATE)}
    assert {number for _, _, number, _ in BAD_STEPS.values()} == {number for number, _ in ON_STEP}


def test_every_violation_is_reported_not_only_the_first() -> None:
    worst = replaced(with_sealed(replaced(SEALED, manifest=None)), updates=Updates(clocks=Clocks(attempt_id=1)))
    found = violations(worst, worst)
    assert [violation.number for violation in found] == ["INV-01", "INV-12"]
    assert found[1] == Violation("INV-12", "1 attempts, 0 applied + 0 skipped")
