"""Every predicate finds the bad state that it is there for, and nothing else does."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve as replaced
from rpds import HashTrieMap

from milepost.transitions.archiving import ArchiveStage
from milepost.transitions.boundary import Boundary, BoundaryStage
from milepost.transitions.invariants import ON_SEALED, ON_STATE, ON_STEP, Violation, violations
from milepost.transitions.machine import State, initial
from milepost.transitions.pointing import Pointer, PointerStage
from milepost.transitions.retention import Part, PruneStage
from milepost.transitions.run import RunStage
from milepost.transitions.sampling import Carried, Sampling, SamplingStage, WorkIssued
from milepost.transitions.saving import Save, SaveStage, Saving
from milepost.transitions.updates import Updates, UpdateStage
from milepost.transitions.validation import Validation, ValidationStage
from milepost.transitions.values import FULL, Clocks, RoleClocks, SaveId
from tests.transitions.samples import (
    BEHIND,
    MANIFEST,
    OLDER,
    PARTIAL,
    PARTS,
    RESUMED_RUN,
    ROLES,
    SAVE,
    START,
    archiving_in,
    boundary_in,
    published,
    resumed,
    retention_in,
    sampling_in,
    save_in,
    saving_in,
    validation_in,
)

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


JOINED = boundary_in(BoundaryStage.JOINED)


def joined(**changes: Any) -> Boundary:
    """The boundary under way, with something wrong about what it joins."""
    assert JOINED.open is not None
    return replaced(JOINED, open=replaced(JOINED.open, **changes))


def with_sampling(**changes: Any) -> State:
    return replaced(GOOD, sampling=replaced(Sampling(), **changes))


LATER = replaced(BEHIND, epoch=2)
SECOND = HashTrieMap({2: WorkIssued(number=2, completions=2, after=BEHIND)})
BOTH = published(full=(OLDER, SAVE))
BESIDE = published(full=(SAVE,), artifacts=(OLDER, SAVE))
ARTIFACT = BESIDE.artifacts[OLDER.step]


def with_artifact(save: Save) -> State:
    return replaced(GOOD, saving=replaced(BESIDE, artifacts=BESIDE.artifacts.insert(OLDER.step, save)))


def with_prune(stage: PruneStage, *, of: SaveId, part: Part = Part.OPTIMIZER, state: State = GOOD) -> State:
    return replaced(state, retention=retention_in(stage, of=of, part=part))


PENDING = replaced(GOOD, saving=BOTH, validation=Validation(stage=ValidationStage.EVALUATING, save=OLDER))
INTENDED = State(run=RESUMED_RUN, saving=WRITING, validation=validation_in(ValidationStage.INTENDED))
FROM_OLDER = replaced(GOOD, saving=BOTH, run=replaced(RESUMED_RUN, resumed=resumed(step=5, save=OLDER)))

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
    "an artifact has no manifest": (
        with_artifact(replaced(ARTIFACT, manifest=None)),
        "INV-01",
        "5.1.1 is sealed without a manifest or without a component",
    ),
    "an artifact lacks a component": (
        with_artifact(replaced(ARTIFACT, components=ARTIFACT.components[:1])),
        "INV-01",
        "5.1.1 is sealed without a manifest or without a component",
    ),
    "the pointer names an artifact": (
        replaced(GOOD, saving=BESIDE, pointer=Pointer(stage=PointerStage.STALE, at=OLDER, target=SAVE)),
        "INV-03",
        "at 5.1.1, which is no sealed full checkpoint",
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
        "the newest checkpoint is 5.1.1, the highest step is 10",
    ),
    "the newest is not sealed at all": (
        State(saving=Saving(newest=SAVE), pointer=Pointer(stage=PointerStage.STALE, target=SAVE)),
        "INV-03",
        "the newest checkpoint is 10.1.1, the highest step is None",
    ),
    "the newest artifact is not the highest": (
        replaced(GOOD, saving=replaced(BESIDE, newest_artifact=OLDER)),
        "INV-03",
        "the newest artifact is 5.1.1, the highest step is 10",
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
    "a partial save among the checkpoints": (
        replaced(GOOD, saving=replaced(BOTH, sealed=BOTH.sealed.insert(OLDER.step, ARTIFACT))),
        "INV-05",
        "save 5.1.1 of 2 components is on the wrong side",
    ),
    "a full save among the artifacts": (
        with_artifact(save_in(SaveStage.SEALED, of=OLDER)),
        "INV-05",
        "save 5.1.1 of 3 components is on the wrong side",
    ),
    "a part of an artifact is being pruned": (
        with_prune(PruneStage.OPEN, of=OLDER, state=replaced(GOOD, saving=BESIDE)),
        "INV-05",
        "retention took part of 5.1.1, which is no checkpoint",
    ),
    "a part of an artifact was released": (
        with_prune(PruneStage.GONE, of=OLDER, state=replaced(GOOD, saving=BESIDE)),
        "INV-05",
        "retention took part of 5.1.1, which is no checkpoint",
    ),
    "an artifact was removed": (
        with_prune(PruneStage.GONE, of=OLDER, part=Part.CHECKPOINT, state=replaced(GOOD, saving=BESIDE)),
        "INV-05",
        "retention took part of 5.1.1, which is no checkpoint",
    ),
    "another attempt of a checkpoint's step was pruned": (
        with_prune(PruneStage.GONE, of=SaveId(5, 2, 1), state=replaced(GOOD, saving=BOTH)),
        "INV-05",
        "retention took part of 5.2.1, which is no checkpoint",
    ),
    "a validation is intended and no save is open": (
        replaced(GOOD, validation=validation_in(ValidationStage.INTENDED)),
        "INV-07",
        "the validation of 10.1.1 is intended, and no full save of that id is open",
    ),
    "a validation is intended of another save": (
        replaced(INTENDED, validation=Validation(stage=ValidationStage.INTENDED, save=SaveId(10, 1, 2))),
        "INV-07",
        "the validation of 10.1.2 is intended, and no full save of that id is open",
    ),
    "a validation is intended of a partial save": (
        replaced(INTENDED, saving=saving_in(SaveStage.WRITING, plan=PARTIAL)),
        "INV-07",
        "the validation of 10.1.1 is intended, and no full save of that id is open",
    ),
    "what is evaluated is not published": (
        replaced(INTENDED, validation=validation_in(ValidationStage.EVALUATING)),
        "INV-07",
        "the validation of 10.1.1 is pending, and it is no checkpoint",
    ),
    "what is evaluated is another attempt": (
        replaced(GOOD, validation=Validation(stage=ValidationStage.PASSED, save=SaveId(10, 2, 1))),
        "INV-07",
        "the validation of 10.2.1 is pending, and it is no checkpoint",
    ),
    "the optimizer of what is pending is pruned": (
        with_prune(PruneStage.OPEN, of=OLDER, state=PENDING),
        "INV-07",
        "the optimizer of 5.1.1 was pruned while its validation is pending",
    ),
    "what is pending was removed": (
        with_prune(PruneStage.GONE, of=OLDER, part=Part.CHECKPOINT, state=PENDING),
        "INV-07",
        "the checkpoint of 5.1.1 was pruned while its validation is pending",
    ),
    "the optimizer of the newest checkpoint was released": (
        with_prune(PruneStage.GONE, of=SAVE),
        "INV-08",
        "the optimizer of 10.1.1, the newest checkpoint, was pruned",
    ),
    "the newest checkpoint is being removed": (
        with_prune(PruneStage.FAILED, of=SAVE, part=Part.CHECKPOINT),
        "INV-08",
        "the checkpoint of 10.1.1, the newest checkpoint, was pruned",
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
    "a role's attempt has no outcome": (
        replaced(GOOD, boundary=Boundary(roles=(RoleClocks(role="policy", clocks=Clocks(attempt_id=1)),))),
        "INV-12",
        "1 attempts, 0 applied + 0 skipped",
    ),
    "an archive of nothing": (
        replaced(GOOD, archiving=archiving_in(ArchiveStage.DECLARED, of=OLDER)),
        "INV-07",
        "save 5.1.1 is archived, and it is not published",
    ),
    "an archive of another attempt at the step": (
        replaced(GOOD, archiving=archiving_in(ArchiveStage.MARKED, of=SaveId(10, 1, 2))),
        "INV-07",
        "save 10.1.2 is archived, and it is not published",
    ),
    "a pending checkpoint is archived": (
        replaced(PENDING, archiving=archiving_in(ArchiveStage.MARKED, of=OLDER)),
        "INV-07",
        "5.1.1 was archived while its validation is evaluating",
    ),
    "sampling that has begun has no boundary": (
        with_sampling(stage=SamplingStage.BEGUN),
        "INV-11",
        "sampling is begun, and its boundary is None",
    ),
    "sampling that has not begun has a boundary": (
        with_sampling(boundary=START, tail=START),
        "INV-11",
        "sampling is unbegun, and its boundary is SamplingPoint(epoch=1, remaining=100",
    ),
    "the head is not outstanding": (
        replaced(GOOD, sampling=replaced(sampling_in(SamplingStage.BEGUN), head=2)),
        "INV-11",
        "work 2 is the head of 1 outstanding, and is none of them",
    ),
    "the head is behind what was issued, and nothing is outstanding": (
        with_sampling(issued=3),
        "INV-11",
        "work 1 is the head of 0 outstanding, and is none of them",
    ),
    "everything is settled and the boundary stays": (
        with_sampling(stage=SamplingStage.BEGUN, boundary=START, tail=BEHIND),
        "INV-11",
        "everything is settled up to SamplingPoint(epoch=1, remaining=98",
    ),
    "the boundary passed work that is not settled": (
        replaced(GOOD, sampling=replaced(sampling_in(SamplingStage.BEGUN), boundary=BEHIND)),
        "INV-11",
        "and work 1 begins with 100 remaining",
    ),
    "a boundary is carried by no save": (
        with_sampling(carried=Carried(save=SAVE, boundary=START)),
        "INV-11",
        "a boundary is carried by 10.1.1, and no full save of that id is open",
    ),
    "a boundary is carried by a partial save": (
        State(
            run=RESUMED_RUN,
            saving=saving_in(SaveStage.WRITING, plan=PARTIAL),
            sampling=Sampling(carried=Carried(save=SAVE, boundary=START)),
        ),
        "INV-11",
        "a boundary is carried by 10.1.1, and no full save of that id is open",
    ),
    "a run ended with a save open": (
        State(run=PARTS["run"][RunStage.ENDED], saving=WRITING),
        "INV-14",
        "ended with save 10.1.1 open",
    ),
    "a save of no role in a run of several": (
        State(run=RESUMED_RUN, saving=WRITING, boundary=Boundary(roles=ROLES)),
        "INV-15",
        "save 10.1.1 is of no role, and the run has several",
    ),
    "a boundary without its save": (
        replaced(GOOD, boundary=JOINED),
        "INV-15",
        "the boundary of 10.1.1 is under way, and no full save of that id is open",
    ),
    "a boundary of another save": (
        State(run=RESUMED_RUN, saving=saving_in(SaveStage.WRITING), boundary=joined(save=SaveId(10, 1, 2))),
        "INV-15",
        "the boundary of 10.1.2 is under way, and no full save of that id is open",
    ),
    "a boundary of a partial save": (
        State(run=RESUMED_RUN, saving=saving_in(SaveStage.WRITING, plan=PARTIAL), boundary=JOINED),
        "INV-15",
        "the boundary of 10.1.1 is under way, and no full save of that id is open",
    ),
    "a boundary that joins a role twice": (
        State(run=RESUMED_RUN, saving=WRITING, boundary=joined(roles=ROLES[:1] * 2, stored=())),
        "INV-15",
        "the boundary of 10.1.1 joins ['critic', 'critic'] and stored ()",
    ),
    "a role stored twice": (
        State(run=RESUMED_RUN, saving=WRITING, boundary=joined(stored=("critic", "critic"))),
        "INV-15",
        "joins ['critic', 'policy'] and stored ('critic', 'critic')",
    ),
    "a stranger stored": (
        State(run=RESUMED_RUN, saving=WRITING, boundary=joined(stored=("reward",))),
        "INV-15",
        "joins ['critic', 'policy'] and stored ('reward',)",
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
    "an artifact changed": (
        replaced(GOOD, saving=BESIDE),
        with_artifact(replaced(ARTIFACT, manifest=replaced(MANIFEST, size=301))),
        "INV-16",
        "artifact 5.1.1 was sealed and changed",
    ),
    "an artifact disappeared": (
        replaced(GOOD, saving=published(full=(SAVE,), artifacts=(OLDER,))),
        GOOD,
        "INV-16",
        "artifact 5.1.1 was sealed and changed",
    ),
    "what was never pending is completed": (
        GOOD,
        replaced(GOOD, validation=Validation(completed=SAVE)),
        "INV-07",
        "the validation of 10.1.1 was completed; pending was None",
    ),
    "another checkpoint is completed than was pending": (
        PENDING,
        replaced(PENDING, validation=Validation(completed=SAVE)),
        "INV-07",
        "the validation of 10.1.1 was completed; pending was 5.1.1",
    ),
    "a completed validation is forgotten": (
        replaced(GOOD, validation=Validation(completed=SAVE)),
        GOOD,
        "INV-07",
        "the validation of None was completed; pending was None",
    ),
    "what its archive is owed is completed": (
        replaced(PENDING, archiving=archiving_in(ArchiveStage.FAILED, of=OLDER, strict=True)),
        replaced(
            PENDING,
            validation=Validation(completed=OLDER),
            archiving=archiving_in(ArchiveStage.FAILED, of=OLDER, strict=True),
        ),
        "INV-07",
        "the validation of 5.1.1 was completed before its archive was",
    ),
    "what the run was resumed from is pruned": (
        FROM_OLDER,
        with_prune(PruneStage.OPEN, of=OLDER, state=FROM_OLDER),
        "INV-08",
        "the optimizer of 5.1.1, which this run was resumed from, was pruned",
    ),
    "more of what the run was resumed from is pruned": (
        with_prune(PruneStage.GONE, of=OLDER, state=FROM_OLDER),
        with_prune(PruneStage.OPEN, of=OLDER, part=Part.CHECKPOINT, state=FROM_OLDER),
        "INV-08",
        "the checkpoint of 5.1.1, which this run was resumed from, was pruned",
    ),
    "a save inside an accumulation window": (
        State(run=RESUMED_RUN),
        State(run=RESUMED_RUN, saving=WRITING, updates=Updates(stage=UpdateStage.ACCUMULATING)),
        "INV-12",
        "save 10.1.1 was opened inside an accumulation window",
    ),
    "the boundary moved back": (
        with_sampling(stage=SamplingStage.BEGUN, boundary=BEHIND, tail=BEHIND),
        with_sampling(stage=SamplingStage.BEGUN, boundary=START, tail=START),
        "INV-11",
        "the boundary moved back from SamplingPoint(epoch=1, remaining=98",
    ),
    "the boundary moved back to an earlier epoch": (
        with_sampling(stage=SamplingStage.BEGUN, boundary=LATER, tail=LATER),
        with_sampling(stage=SamplingStage.BEGUN, boundary=BEHIND, tail=BEHIND),
        "INV-11",
        "the boundary moved back from SamplingPoint(epoch=2, remaining=98",
    ),
    "the boundary of an execution is gone": (
        with_sampling(stage=SamplingStage.BEGUN, boundary=BEHIND, tail=BEHIND),
        GOOD,
        "INV-11",
        "to None",
    ),
    "a number is used again": (
        with_sampling(issued=2, head=3),
        with_sampling(issued=1, head=2),
        "INV-11",
        "work 2 was issued and the head was 3; now they are 1 and 2",
    ),
    "the head goes back": (
        replaced(GOOD, sampling=replaced(sampling_in(SamplingStage.BEGUN), issued=2, head=2, outstanding=SECOND)),
        replaced(GOOD, sampling=replaced(sampling_in(SamplingStage.BEGUN), issued=2)),
        "INV-11",
        "work 2 was issued and the head was 2; now they are 2 and 1",
    ),
    "what an open save carries changed": (
        State(run=RESUMED_RUN, saving=WRITING, sampling=Sampling(carried=Carried(save=SAVE, boundary=START))),
        State(run=RESUMED_RUN, saving=WRITING, sampling=Sampling(carried=Carried(save=SAVE, boundary=BEHIND))),
        "INV-11",
        "save 10.1.1 carries SamplingPoint(epoch=1, remaining=98",
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
    gone = with_prune(PruneStage.GONE, of=OLDER, part=Part.CHECKPOINT, state=replaced(GOOD, saving=BOTH))
    writing = State(run=RESUMED_RUN, saving=WRITING)
    for state in (initial(), GOOD, UNDECIDED, writing, INTENDED, PENDING, FROM_OLDER, gone, with_artifact(ARTIFACT)):
        assert violations(state, state) == ()


def test_a_save_that_has_stored_nothing_may_come_before_its_boundary() -> None:
    opened = State(run=RESUMED_RUN, saving=saving_in(SaveStage.WRITING, stored=0), boundary=Boundary(roles=ROLES))
    under_way = replaced(opened, saving=WRITING, boundary=JOINED)
    left = State(run=RESUMED_RUN, saving=saving_in(SaveStage.UNSETTLED), boundary=Boundary(roles=ROLES))
    for state in (opened, under_way, left, replaced(left, boundary=replaced(JOINED, roles=()))):
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


def test_a_prune_that_ends_beside_a_resume_is_as_it_should_be() -> None:
    before = with_prune(PruneStage.OPEN, of=OLDER, state=replaced(GOOD, saving=published(full=(OLDER, SAVE))))
    assert violations(before, with_prune(PruneStage.GONE, of=OLDER, state=before)) == ()
    late = with_prune(PruneStage.FAILED, of=OLDER, state=FROM_OLDER)
    assert violations(late, with_prune(PruneStage.OPEN, of=OLDER, state=FROM_OLDER)) == ()


def test_a_validation_that_is_completed_was_pending() -> None:
    before = replaced(PENDING, validation=replaced(PENDING.validation, stage=ValidationStage.PUBLISHING))
    assert violations(before, replaced(before, validation=Validation(completed=OLDER))) == ()


def test_a_newer_artifact_beside_the_older_ones_is_as_it_should_be() -> None:
    before = replaced(GOOD, saving=published(full=(SAVE,), artifacts=(OLDER,)))
    assert violations(before, replaced(GOOD, saving=BESIDE)) == ()


def test_every_predicate_was_violated_above() -> None:
    tried = [number for _, number, _ in BAD_STATES.values()]
    assert set(tried) == {number for number, _ in (*ON_SEALED, *ON_STATE)}
    assert {number for _, _, number, _ in BAD_STEPS.values()} == {number for number, _ in ON_STEP}


def test_a_step_that_prunes_or_publishes_is_held_against_all_that_is_published() -> None:
    """Each of these breaks a predicate that walks everything; a step that moves nothing published is spared it."""
    bad = replaced(BOTH, sealed=BOTH.sealed.insert(OLDER.step, replaced(ARTIFACT, plan=FULL)), newest=SAVE)
    before = replaced(GOOD, saving=bad)
    moved = (
        replaced(before, saving=replaced(bad, sealed=bad.sealed.insert(OLDER.step, bad.sealed[OLDER.step]))),
        replaced(before, saving=replaced(bad, artifacts=HashTrieMap())),
        replaced(before, retention=replaced(before.retention, open=())),
    )
    for after in moved:
        assert [violation.number for violation in violations(before, after)] == ["INV-01"]
    assert violations(before, replaced(before, saving=replaced(bad, counter=2))) == ()


def test_a_pointer_at_a_partial_save_breaks_its_own_invariant_as_well() -> None:
    state = with_sealed(save_in(SaveStage.SEALED, plan=PARTIAL))
    assert [violation.number for violation in violations(state, state)] == ["INV-05", "INV-03"]


def test_every_violation_is_reported_not_only_the_first() -> None:
    worst = replaced(with_sealed(replaced(SEALED, manifest=None)), updates=Updates(clocks=Clocks(attempt_id=1)))
    found = violations(worst, worst)
    assert [violation.number for violation in found] == ["INV-01", "INV-12"]
    assert found[1] == Violation("INV-12", "1 attempts, 0 applied + 0 skipped")
