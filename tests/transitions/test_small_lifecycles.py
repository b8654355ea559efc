"""The pointer, the debris and the emergency: small lifecycles beside the saves."""

from __future__ import annotations

import pytest
from attrs import evolve as replaced

from milepost.transitions.emergency import (
    CoverEmergency,
    Emergency,
    EmergencyCovered,
    EmergencyStage,
    ObserveTermination,
    TerminationObserved,
)
from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.machine import State, decide, due, evolve
from milepost.transitions.pointing import AdvancePointer, Pointer, PointerAdvanced, PointerStage, ReportPointed
from milepost.transitions.retention import PruneStage
from milepost.transitions.run import Run, RunStage
from milepost.transitions.saving import SaveAbandoned, SaveSealed, SaveStage, Saving
from milepost.transitions.sweeping import ClearDebris, Debris, DebrisCleared, DebrisStage, ReportCleared
from milepost.transitions.validation import ValidationStage
from milepost.transitions.values import FULL, Component, Plan
from tests.transitions.samples import (
    MANIFEST,
    OLDER,
    PARTIAL,
    PARTS,
    RESUMED_RUN,
    SAVE,
    published,
    run_opened,
    saving_in,
)

OPEN = State(run=RESUMED_RUN)
OBSERVE = ObserveTermination(step=10, reason="signal", detail="SIGTERM")


# --- the pointer ------------------------------------------------------------------------------------------


def test_a_sealed_save_makes_the_pointer_due_and_its_report_settles_it() -> None:
    sealed = evolve(replaced(OPEN, saving=saving_in(SaveStage.WRITING)), SaveSealed(save=SAVE, manifest=MANIFEST))
    assert sealed.pointer == Pointer(stage=PointerStage.STALE, target=SAVE)
    assert due(sealed) == (AdvancePointer(save=SAVE, epoch=1),)
    (record,) = decide(sealed, ReportPointed(save=SAVE))
    assert record == PointerAdvanced(save=SAVE)
    pointed = evolve(sealed, record)
    assert pointed.pointer == Pointer(stage=PointerStage.AT, at=SAVE, target=SAVE)
    assert due(pointed) == ()


def test_the_pointer_never_goes_to_anything_but_the_newest() -> None:
    state = replaced(OPEN, pointer=Pointer(stage=PointerStage.STALE, at=OLDER, target=SAVE))
    with pytest.raises(IllegalTransition, match=r"the pointer went to 5\.1\.1; the newest is 10\.1\.1 \(INV-03\)"):
        evolve(state, PointerAdvanced(save=OLDER))


def test_a_new_writer_writes_the_pointer_again_and_remembers_where_it_was() -> None:
    state = evolve(replaced(OPEN, pointer=PARTS["pointer"][PointerStage.AT]), run_opened(2))
    assert state.pointer == Pointer(stage=PointerStage.STALE, at=SAVE, target=SAVE)
    assert due(state)[0] == AdvancePointer(save=SAVE, epoch=2)


# --- debris -----------------------------------------------------------------------------------------------


def test_debris_lists_the_saves_of_this_epoch_that_were_abandoned() -> None:
    writing = replaced(OPEN, saving=saving_in(SaveStage.WRITING))
    state = evolve(writing, SaveAbandoned(save=SAVE, code="", detail=""))
    assert due(state) == (ClearDebris(epoch=1, abandoned=(SAVE,)),)
    (record,) = decide(state, ReportCleared(names=("10.1.1",)))
    assert record == DebrisCleared(names=("10.1.1",))
    assert evolve(state, record).debris == Debris()


def test_abandoned_saves_add_up_until_they_are_cleared() -> None:
    known = Debris(stage=DebrisStage.DUE, abandoned=(OLDER,))
    state = replaced(OPEN, saving=saving_in(SaveStage.WRITING), debris=known)
    assert evolve(state, SaveAbandoned(save=SAVE, code="", detail="")).debris.abandoned == (OLDER, SAVE)


def test_what_an_earlier_epoch_left_is_swept_by_its_epoch_alone() -> None:
    state = evolve(replaced(OPEN, debris=Debris(stage=DebrisStage.DUE, abandoned=(SAVE,))), run_opened(2))
    assert due(state) == (ClearDebris(epoch=2, abandoned=()),)


def test_work_is_due_in_the_order_save_pointer_mark_prune_debris() -> None:
    state = replaced(
        OPEN,
        saving=saving_in(SaveStage.UNSETTLED),
        pointer=PARTS["pointer"][PointerStage.STALE],
        validation=PARTS["validation"][ValidationStage.PASSED],
        retention=PARTS["retention"][PruneStage.OPEN],
        debris=PARTS["debris"][DebrisStage.DUE],
    )
    assert [type(effect).__name__ for effect in due(state)] == [
        "ObserveSave",
        "AdvancePointer",
        "MarkGeneration",
        "PrunePart",
        "ClearDebris",
    ]


# --- the emergency ----------------------------------------------------------------------------------------


def test_the_first_observation_is_recorded_and_later_ones_change_nothing() -> None:
    (record,) = decide(OPEN, OBSERVE)
    assert record == TerminationObserved(step=10, reason="signal", detail="SIGTERM")
    observed = evolve(OPEN, record)
    assert observed.emergency == Emergency(stage=EmergencyStage.OBSERVED, reason="signal", step=10)
    assert decide(observed, replaced(OBSERVE, reason="sentinel")) == ()


def test_a_termination_of_a_run_that_is_not_open_is_refused() -> None:
    for run in (Run(), PARTS["run"][RunStage.OPEN], PARTS["run"][RunStage.ENDED]):
        with pytest.raises(Refused, match="cannot observe a termination"):
            decide(State(run=run), OBSERVE)


def test_a_published_checkpoint_covers_the_emergency_once() -> None:
    observed = replaced(
        OPEN, saving=saving_in(SaveStage.SEALED), emergency=PARTS["emergency"][EmergencyStage.OBSERVED]
    )
    (record,) = decide(observed, CoverEmergency(step=10))
    assert record == EmergencyCovered(step=10, save=SAVE)
    covered = evolve(observed, record)
    assert covered.emergency == PARTS["emergency"][EmergencyStage.COVERED]
    assert decide(covered, CoverEmergency(step=10)) == ()


def test_an_emergency_is_not_covered_by_a_checkpoint_that_is_not_published() -> None:
    observed = replaced(
        OPEN, saving=saving_in(SaveStage.WRITING), emergency=PARTS["emergency"][EmergencyStage.OBSERVED]
    )
    with pytest.raises(Refused, match="is published of step 10 covers the stop at step 10; save that step"):
        decide(observed, CoverEmergency(step=10))


def test_an_emergency_is_not_covered_by_a_checkpoint_from_before_the_stop() -> None:
    observed = replaced(
        OPEN, saving=saving_in(SaveStage.SEALED), emergency=Emergency(stage=EmergencyStage.OBSERVED, step=11)
    )
    with pytest.raises(Refused, match="nothing that is published of step 10 covers the stop at step 11"):
        decide(observed, CoverEmergency(step=10))


@pytest.mark.parametrize(
    ("saving", "plan", "covered"),
    [
        (published(full=(SAVE,)), FULL, True),
        (published(full=(SAVE,)), PARTIAL, True),
        (published(artifacts=(SAVE,)), PARTIAL, True),
        (published(artifacts=(SAVE,)), (Component.MODEL,), True),
        (published(artifacts=(SAVE,)), (Component.MODEL, Component.OPTIMIZER), False),
        (published(artifacts=(SAVE,)), FULL, False),
    ],
    ids=[
        "full",
        "full for less",
        "an artifact",
        "an artifact for less",
        "an artifact that lacks some",
        "full needed",
    ],
)
def test_what_is_published_covers_an_emergency_by_its_components(saving: Saving, plan: Plan, covered: bool) -> None:
    observed = replaced(OPEN, saving=saving, emergency=PARTS["emergency"][EmergencyStage.OBSERVED])
    if covered:
        assert decide(observed, CoverEmergency(step=10, plan=plan)) == (EmergencyCovered(step=10, save=SAVE),)
    else:
        with pytest.raises(Refused, match="nothing that is published of step 10 covers the stop at step 10"):
            decide(observed, CoverEmergency(step=10, plan=plan))


def test_an_emergency_needs_a_full_checkpoint_unless_it_says_otherwise() -> None:
    assert CoverEmergency(step=10) == CoverEmergency(step=10, plan=FULL)


def test_without_a_termination_there_is_nothing_to_cover() -> None:
    with pytest.raises(Refused, match="no termination was observed; there is nothing to cover"):
        decide(OPEN, CoverEmergency(step=10))


def test_a_new_writer_was_not_told_to_stop() -> None:
    observed = replaced(OPEN, emergency=PARTS["emergency"][EmergencyStage.OBSERVED])
    assert evolve(observed, run_opened(2)).emergency == Emergency()
