"""The tables of `planning`, line by line: which save a boundary makes, and where the evaluation stands to it."""

from __future__ import annotations

import pytest
from rpds import HashTrieMap

from milepost.transitions.planning import Evaluation, Policy, Work, at_boundary, at_stop
from milepost.transitions.saving import Save, SaveStage, Saving
from milepost.transitions.values import FULL, Component, Mode, Plan, Reason, SaveId

MODEL: Plan = (Component.MODEL,)
STATE: Plan = (Component.TRAINING_STATE,)
MODEL_AND_STATE: Plan = (Component.MODEL, Component.TRAINING_STATE)
NONE, BEFORE, AFTER, PENDING = Evaluation.NONE, Evaluation.BEFORE_SAVE, Evaluation.AFTER_SAVE, Evaluation.OF_PENDING


def published(plan: Plan, *, step: int = 10) -> Saving:
    """A saving with one published save of the step."""
    save = Save(
        id=SaveId(step, 1, 1), stage=SaveStage.SEALED, plan=plan, reason=Reason.REQUESTED, mode=Mode.SYNCHRONOUS
    )
    return (
        Saving(sealed=HashTrieMap({step: save}), newest=save.id)
        if plan == FULL
        else Saving(artifacts=HashTrieMap({step: save}), newest_artifact=save.id)
    )


EMPTY = Saving()


def work(policy: Policy, *, step: int = 10, final: bool = False, validating: bool, saving: Saving = EMPTY) -> Work:
    return at_boundary(policy, step=step, final=final, validating=validating, saving=saving)


@pytest.mark.parametrize(
    ("regular", "validation", "validating", "step", "plan", "evaluation", "reason"),
    [
        # validation is not due
        (FULL, None, False, 10, FULL, NONE, Reason.CADENCE),
        (MODEL, None, False, 10, MODEL, NONE, Reason.CADENCE),
        (FULL, FULL, False, 11, (), NONE, Reason.VALIDATION),
        # nobody asks for a save
        (FULL, None, True, 11, (), AFTER, Reason.VALIDATION),
        # together they are full: durable
        (FULL, None, True, 10, FULL, PENDING, Reason.CADENCE),
        (FULL, FULL, True, 11, FULL, PENDING, Reason.VALIDATION),
        (MODEL, FULL, True, 10, FULL, PENDING, Reason.CADENCE),
        (FULL, MODEL, True, 10, FULL, PENDING, Reason.CADENCE),
        ((Component.MODEL, Component.OPTIMIZER), STATE, True, 10, FULL, PENDING, Reason.CADENCE),
        # partial, and the cadence asks: first, so that it survives
        (MODEL, None, True, 10, MODEL, AFTER, Reason.CADENCE),
        (MODEL, STATE, True, 10, MODEL_AND_STATE, AFTER, Reason.CADENCE),
        # partial, and validation alone asks: behind the evaluation
        (FULL, MODEL, True, 11, MODEL, BEFORE, Reason.VALIDATION),
        # nothing is trained at step 0
        (FULL, None, False, 0, (), NONE, Reason.VALIDATION),
        (FULL, FULL, True, 0, FULL, PENDING, Reason.VALIDATION),
    ],
)
def test_a_boundary_makes_one_save_of_everything_that_is_asked_for(
    regular: Plan,
    validation: Plan | None,
    validating: bool,
    step: int,
    plan: Plan,
    evaluation: Evaluation,
    reason: Reason,
) -> None:
    policy = Policy(save_every=5, regular=regular, validation=validation)
    found = work(policy, step=step, validating=validating)
    assert (found.plan, found.evaluation, found.reason) == (plan, evaluation, reason)
    assert found.pending is (evaluation is PENDING)


@pytest.mark.parametrize(
    ("save_every", "step", "final", "plan", "reason"),
    [
        (5, 11, True, FULL, Reason.FINAL),
        (5, 10, True, FULL, Reason.CADENCE),
        (5, 11, False, (), Reason.VALIDATION),
        (0, 11, True, (), Reason.VALIDATION),
        (0, 10, False, (), Reason.VALIDATION),
        (5, 0, True, (), Reason.VALIDATION),
    ],
)
def test_the_final_boundary_saves_off_cadence_unless_regular_saves_are_off(
    save_every: int, step: int, final: bool, plan: Plan, reason: Reason
) -> None:
    found = work(Policy(save_every=save_every), step=step, final=final, validating=False)
    assert (found.plan, found.reason) == (plan, reason)


@pytest.mark.parametrize(
    ("there", "regular", "validation"), [(FULL, FULL, None), (FULL, MODEL, STATE), (MODEL_AND_STATE, MODEL, STATE)]
)
def test_what_is_published_of_a_step_is_not_saved_again_and_the_evaluation_is_ephemeral(
    there: Plan, regular: Plan, validation: Plan | None
) -> None:
    policy = Policy(save_every=5, regular=regular, validation=validation)
    found = work(policy, validating=True, saving=published(there))
    assert (found.plan, found.evaluation, found.pending) == ((), AFTER, False)


def test_a_full_save_is_made_beside_an_artifact_of_the_step() -> None:
    assert work(Policy(save_every=5), validating=True, saving=published(MODEL)).pending


@pytest.mark.parametrize(
    ("validating", "emergency_full", "regular", "there", "plan", "evaluation"),
    [
        (True, True, FULL, None, FULL, PENDING),
        (True, False, MODEL, None, FULL, PENDING),
        (True, False, MODEL, MODEL, FULL, PENDING),
        (False, True, MODEL, None, FULL, NONE),
        (False, True, MODEL, MODEL, FULL, NONE),
        (False, False, STATE, None, MODEL_AND_STATE, NONE),
        (False, False, FULL, None, FULL, NONE),
        (False, False, MODEL, MODEL, (), NONE),
        (False, False, STATE, MODEL_AND_STATE, (), NONE),
        (False, False, STATE, MODEL, FULL, NONE),
        (False, True, FULL, FULL, (), NONE),
        (True, True, FULL, FULL, (), NONE),
        (False, False, MODEL, FULL, (), NONE),
    ],
)
def test_an_emergency_saves_what_its_plan_lacks_of_the_step(
    validating: bool, emergency_full: bool, regular: Plan, there: Plan | None, plan: Plan, evaluation: Evaluation
) -> None:
    policy = Policy(save_every=5, regular=regular, emergency_full=emergency_full)
    saving = Saving() if there is None else published(there)
    found = at_stop(policy, step=10, validating=validating, saving=saving)
    assert (found.plan, found.evaluation, found.reason) == (plan, evaluation, Reason.EMERGENCY)


def test_an_artifact_of_another_step_stands_in_for_nothing() -> None:
    policy = Policy(save_every=5, regular=MODEL, emergency_full=False)
    assert at_stop(policy, step=10, validating=False, saving=published(MODEL, step=9)).plan == MODEL


def test_the_escalation_to_full_says_what_the_artifact_lacks() -> None:
    policy = Policy(save_every=5, regular=STATE, emergency_full=False)
    found = at_stop(policy, step=10, validating=False, saving=published(MODEL))
    assert "step 10 lacks training_state" in found.note
    assert at_stop(policy, step=10, validating=False, saving=Saving()).note == ""
