"""The table of steps in `saving`, line by line: what may be published of a step, and what is there of it already."""

from __future__ import annotations

import pytest
from attrs import evolve as replaced

from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.machine import Record, State, decide, evolve
from milepost.transitions.saving import (
    ArtifactSealed,
    OpenSave,
    ReportSealed,
    ReportStored,
    SaveSealed,
    SaveStage,
    Saving,
)
from milepost.transitions.values import FULL, Component, Mode, Plan, Reason, SaveId
from tests.transitions.samples import MANIFEST, PARTIAL, RESUMED_RUN, published, save_in, stored_of

FIVE, TEN = SaveId(5, 1, 1), SaveId(10, 1, 1)
MODEL: Plan = (Component.MODEL,)

CHECKPOINT = published(full=(TEN,))
ARTIFACT = published(artifacts=(TEN,))
NEWER_ARTIFACT = published(full=(FIVE,), artifacts=(TEN,))
NEWER_CHECKPOINT = published(full=(TEN,), artifacts=(FIVE,))

# Each line: what is published, the plan, the step, and the words of the refusal or None.
STEPS: dict[str, tuple[Saving, Plan, int, str | None]] = {
    "nothing is published: full": (Saving(), FULL, 0, None),
    "nothing is published: partial": (Saving(), PARTIAL, 0, None),
    "below a checkpoint: full": (CHECKPOINT, FULL, 9, r"step 10 is published, and neither .* \(INV-03\)"),
    "below a checkpoint: partial": (CHECKPOINT, PARTIAL, 9, r"step 10 is published, and neither .* \(INV-03\)"),
    "below an artifact: full": (ARTIFACT, FULL, 9, r"step 10 is published, and neither .* \(INV-03\)"),
    "below an artifact: partial": (ARTIFACT, PARTIAL, 9, r"step 10 is published, and neither .* \(INV-03\)"),
    "above a checkpoint and below an artifact": (NEWER_ARTIFACT, FULL, 7, "step 10 is published, and neither .*"),
    "above an artifact and below a checkpoint": (
        NEWER_CHECKPOINT,
        PARTIAL,
        7,
        "step 10 is published, and neither .*",
    ),
    "a published checkpoint: full": (CHECKPOINT, FULL, 10, r"published as iter_000000010 and never .* \(INV-02\)"),
    "a published checkpoint: partial": (CHECKPOINT, MODEL, 10, r"published as iter_000000010 and .* \(INV-02\)"),
    "a published artifact: full": (ARTIFACT, FULL, 10, None),
    "a published artifact: the same plan": (
        ARTIFACT,
        PARTIAL,
        10,
        r"the artifact of step 10 holds model, training_state and is never written again \(INV-16\)",
    ),
    "a published artifact: another plan": (
        ARTIFACT,
        (Component.OPTIMIZER,),
        10,
        r"the artifact of step 10 holds model, training_state and is never written again \(INV-16\)",
    ),
    "above both: full": (NEWER_ARTIFACT, FULL, 11, None),
    "above both: partial": (NEWER_CHECKPOINT, PARTIAL, 11, None),
}


def command(step: int, plan: Plan) -> OpenSave:
    return OpenSave(step=step, plan=plan, reason=Reason.CADENCE, mode=Mode.SYNCHRONOUS)


def saved(state: State, step: int, plan: Plan) -> State:
    """The state after a save that went well."""
    for record in decide(state, command(step, plan)):
        state = evolve(state, record)
    save = state.saving.open[0].id
    for report in (ReportStored(save=save, components=stored_of(plan)), ReportSealed(save=save, manifest=MANIFEST)):
        for record in decide(state, report):
            state = evolve(state, record)
    return state


@pytest.mark.parametrize("line", STEPS)
def test_a_step_may_be_saved_or_is_refused_as_its_line_says(line: str) -> None:
    saving, plan, step, refusal = STEPS[line]
    state = State(run=RESUMED_RUN, saving=saving)
    if refusal is None:
        after = saved(state, step, plan).saving
        assert after.newest_step == step
        assert (step in after.sealed, step in after.artifacts) == (plan == FULL, plan != FULL or saving is ARTIFACT)
    else:
        with pytest.raises(Refused, match=f"cannot save step {step}: .*{refusal}; start a new attempt"):
            decide(state, command(step, plan))


@pytest.mark.parametrize("line", [line for line in STEPS if STEPS[line][3] is not None])
def test_a_record_that_publishes_against_the_table_is_illegal(line: str) -> None:
    saving, plan, step, refusal = STEPS[line]
    save = save_in(SaveStage.WRITING, of=SaveId(step, 1, 2), plan=plan)
    sealed: Record = (SaveSealed if plan == FULL else ArtifactSealed)(save=save.id, manifest=MANIFEST)
    with pytest.raises(IllegalTransition, match=f"save {save.id} was sealed against the order of steps: .*{refusal}"):
        evolve(State(run=RESUMED_RUN, saving=replaced(saving, open=(save,))), sealed)


def test_a_checkpoint_beside_the_artifact_of_its_step_leaves_it_as_it_was() -> None:
    state = saved(State(run=RESUMED_RUN, saving=ARTIFACT), 10, FULL)
    assert state.saving.artifacts == ARTIFACT.artifacts
    assert state.saving.newest == SaveId(10, 1, 2)
    assert state.saving.newest_artifact == TEN
    assert state.pointer.target == SaveId(10, 1, 2)


HELD: dict[str, tuple[Saving, int, Plan, SaveId | None]] = {
    "nothing": (Saving(), 10, MODEL, None),
    "a checkpoint holds every plan": (CHECKPOINT, 10, PARTIAL, TEN),
    "a checkpoint of another step": (CHECKPOINT, 9, MODEL, None),
    "an artifact holds its own plan": (ARTIFACT, 10, PARTIAL, TEN),
    "an artifact holds less": (ARTIFACT, 10, MODEL, TEN),
    "an artifact lacks a component": (ARTIFACT, 10, (Component.MODEL, Component.OPTIMIZER), None),
    "an artifact is never full": (ARTIFACT, 10, FULL, None),
    "a checkpoint comes before the artifact of its step": (
        replaced(ARTIFACT, sealed=published(full=(SaveId(10, 2, 1),)).sealed, newest=SaveId(10, 2, 1)),
        10,
        MODEL,
        SaveId(10, 2, 1),
    ),
}


@pytest.mark.parametrize("case", HELD)
def test_what_is_published_of_a_step_is_found_by_what_it_has_to_hold(case: str) -> None:
    saving, step, plan, expected = HELD[case]
    found = saving.holds(step, plan)
    assert (None if found is None else found.id) == expected


@pytest.mark.parametrize(
    ("saving", "step"),
    [(Saving(), None), (CHECKPOINT, 10), (ARTIFACT, 10), (NEWER_ARTIFACT, 10), (NEWER_CHECKPOINT, 10)],
    ids=["nothing", "a checkpoint", "an artifact", "a newer artifact", "a newer checkpoint"],
)
def test_the_newest_step_is_of_either_kind(saving: Saving, step: int | None) -> None:
    assert saving.newest_step == step
