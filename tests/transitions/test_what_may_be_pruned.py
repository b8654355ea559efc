"""The table of `retention`, line by line: why each part of a checkpoint stays or goes (INV-08)."""

from __future__ import annotations

import pytest
from attrs import evolve as replaced
from rpds import HashTrieMap

from milepost.transitions.errors import Refused
from milepost.transitions.machine import State, decide, evolve
from milepost.transitions.retention import (
    ApplyRetention,
    Judgement,
    Part,
    Prune,
    PruneOpened,
    PruneStage,
    Retention,
    judge,
)
from milepost.transitions.saving import Save, SaveStage
from milepost.transitions.validation import Validation, ValidationStage
from milepost.transitions.values import Component, SaveId
from tests.transitions.samples import (
    PARTS,
    RESUMED_RUN,
    STORED,
    prune_in,
    published,
    resumed,
    retention_in,
    run_opened,
    save_in,
)

ONE, TWO, THREE, FOUR = SAVES = tuple(SaveId(step, 1, step) for step in (1, 2, 3, 4))
CHECKPOINTS = State(run=RESUMED_RUN, saving=published(full=SAVES))
STRICT = ApplyRetention(keep_optim_last=1, keep_model_last=1)
"""Of a checkpoint that nothing protects, everything goes but of the newest."""

OPTIMIZERS = replaced(STRICT, keep_model_last=0)
BOTH = (Part.CHECKPOINT, Part.OPTIMIZER)


def judged(state: State, policy: ApplyRetention) -> tuple[Judgement, ...]:
    return judge(state.retention, policy, saving=state.saving, validation=state.validation, run=state.run)


def of(save: SaveId, state: State, policy: ApplyRetention) -> list[tuple[Part, bool, str]]:
    """What is said of one checkpoint, part by part."""
    return [(one.part, one.stays, one.why) for one in judged(state, policy) if one.save == save]


def pending(save: SaveId) -> State:
    return replaced(CHECKPOINTS, validation=Validation(stage=ValidationStage.EVALUATING, save=save))


def resumed_from(save: SaveId) -> State:
    return replaced(CHECKPOINTS, run=replaced(RESUMED_RUN, resumed=resumed(step=save.step, save=save)))


# --- the lines --------------------------------------------------------------------------------------------

STAYS: dict[str, tuple[SaveId, State, ApplyRetention, str]] = {
    "the newest": (FOUR, CHECKPOINTS, STRICT, "it is the newest: a resume needs it"),
    "the newest, though keep_fn does not keep it": (
        FOUR,
        CHECKPOINTS,
        replaced(STRICT, keep_optim=()),
        "it is the newest: a resume needs it",
    ),
    "waiting for its validation": (ONE, pending(ONE), STRICT, "its validation is pending"),
    "what this writer resumed from": (ONE, resumed_from(ONE), STRICT, "this run was resumed from it"),
    "in use": (ONE, CHECKPOINTS, replaced(STRICT, in_use=(1,)), "it is in use"),
    "not in the archive": (
        ONE,
        CHECKPOINTS,
        replaced(STRICT, archived=(2, 3, 4)),
        "it is not in the archive: it may be the only copy",
    ),
}


@pytest.mark.parametrize("line", STAYS)
def test_what_no_policy_may_touch_stays_whole(line: str) -> None:
    save, state, policy, why = STAYS[line]
    assert of(save, state, policy) == [(part, True, why) for part in BOTH]


@pytest.mark.parametrize("part", BOTH, ids=lambda part: part.value)
def test_what_nothing_protects_goes_and_says_by_which_count(part: Part) -> None:
    policy = STRICT if part is Part.CHECKPOINT else OPTIMIZERS
    knob = "keep_model_last" if part is Part.CHECKPOINT else "keep_optim_last"
    expected = (part, False, f"it is number 4 from the newest, and {knob}=1")
    assert of(ONE, CHECKPOINTS, policy)[-1] == expected
    assert of(ONE, CHECKPOINTS, replaced(policy, archived=(1,)))[-1] == expected
    assert of(ONE, CHECKPOINTS, replaced(policy, in_use=(2, 3)))[-1] == expected


@pytest.mark.parametrize("keep", [1, 2, 3, 4, 5])
def test_each_count_keeps_its_part_of_the_newest(keep: int) -> None:
    for number, save in enumerate(reversed(SAVES[:3]), start=2):
        why = f"it is number {number} from the newest, and keep_model_last={keep}"
        policy = ApplyRetention(keep_optim_last=0, keep_model_last=keep)
        assert of(save, CHECKPOINTS, policy)[0] == (Part.CHECKPOINT, number <= keep, why)

        why = f"it is number {number} from the newest, and keep_optim_last={keep}"
        policy = ApplyRetention(keep_optim_last=keep, keep_model_last=0)
        assert of(save, CHECKPOINTS, policy)[1] == (Part.OPTIMIZER, number <= keep, why)


def test_a_count_of_nothing_keeps_all() -> None:
    policy = ApplyRetention(keep_optim_last=0, keep_model_last=0)
    for save in SAVES[:3]:
        assert of(save, CHECKPOINTS, policy) == [
            (Part.CHECKPOINT, True, "keep_model_last=0 keeps all"),
            (Part.OPTIMIZER, True, "keep_optim_last=0 keeps all"),
        ]
    assert decide(CHECKPOINTS, policy) == ()


@pytest.mark.parametrize("keep_optim_last", [0, 1, 9])
def test_keep_fn_decides_for_optimizers_in_the_place_of_the_count(keep_optim_last: int) -> None:
    policy = ApplyRetention(keep_optim_last=keep_optim_last, keep_model_last=3, keep_optim=("iter_000000002",))
    assert of(TWO, CHECKPOINTS, policy)[1] == (Part.OPTIMIZER, True, "keep_fn keeps it")
    assert of(THREE, CHECKPOINTS, policy)[1] == (Part.OPTIMIZER, False, "keep_fn does not keep it")
    assert of(ONE, CHECKPOINTS, replaced(policy, keep_optim=("iter_000000001",))) == [
        (Part.CHECKPOINT, False, "it is number 4 from the newest, and keep_model_last=3")
    ]


def test_the_first_line_that_fits_is_the_reason() -> None:
    """Each of these checkpoints fits a line and all those behind it."""
    policy = replaced(STRICT, in_use=(1, 2, 3, 4), archived=())
    state = replaced(resumed_from(ONE), validation=Validation(stage=ValidationStage.PASSED, save=ONE))
    reasons = [of(FOUR, resumed_from(FOUR), policy), of(ONE, state, policy), of(ONE, resumed_from(ONE), policy)]
    reasons += [of(ONE, CHECKPOINTS, policy), of(ONE, CHECKPOINTS, replaced(policy, in_use=()))]
    assert [why.split(":")[0] for ((_, _, why), _) in reasons] == [
        "it is the newest",
        "its validation is pending",
        "this run was resumed from it",
        "it is in use",
        "it is not in the archive",
    ]


def test_a_pending_checkpoint_is_none_of_the_newest_that_are_counted() -> None:
    assert of(THREE, CHECKPOINTS, STRICT)[0][1] is False
    assert of(THREE, pending(FOUR), STRICT) == [
        (Part.CHECKPOINT, True, "it is number 1 from the newest, and keep_model_last=1"),
        (Part.OPTIMIZER, True, "it is number 1 from the newest, and keep_optim_last=1"),
    ]
    assert of(TWO, pending(FOUR), STRICT)[0][1] is False


def test_what_is_only_intended_to_be_evaluated_protects_nothing_published() -> None:
    state = replaced(CHECKPOINTS, validation=Validation(stage=ValidationStage.INTENDED, save=SaveId(5, 1, 5)))
    assert judged(state, STRICT) == judged(CHECKPOINTS, STRICT)


# --- what is judged ---------------------------------------------------------------------------------------


def test_every_part_is_judged_once_newest_first_and_goes_with_its_checkpoint() -> None:
    policy = ApplyRetention(keep_optim_last=1, keep_model_last=3)
    assert [(one.save, one.part, one.stays) for one in judged(CHECKPOINTS, policy)] == [
        (FOUR, Part.CHECKPOINT, True),
        (FOUR, Part.OPTIMIZER, True),
        (THREE, Part.CHECKPOINT, True),
        (THREE, Part.OPTIMIZER, False),
        (TWO, Part.CHECKPOINT, True),
        (TWO, Part.OPTIMIZER, False),
        (ONE, Part.CHECKPOINT, False),
    ]


def test_what_is_gone_is_judged_no_more() -> None:
    gone = Retention(released=HashTrieMap({1: ONE, 2: TWO}), removed=HashTrieMap({1: ONE}))
    state = replaced(CHECKPOINTS, retention=gone)
    assert [(one.save, one.part) for one in judged(state, OPTIMIZERS)] == [
        (FOUR, Part.CHECKPOINT),
        (FOUR, Part.OPTIMIZER),
        (THREE, Part.CHECKPOINT),
        (THREE, Part.OPTIMIZER),
        (TWO, Part.CHECKPOINT),
    ]


def test_what_is_removed_is_none_of_the_newest_that_are_counted() -> None:
    state = replaced(CHECKPOINTS, retention=retention_in(PruneStage.GONE, of=THREE, part=Part.CHECKPOINT))
    assert of(TWO, state, STRICT)[0][2] == "it is number 2 from the newest, and keep_model_last=1"


def test_a_checkpoint_without_optimizer_files_has_no_optimizer_to_prune() -> None:
    bare: Save = save_in(SaveStage.SEALED, of=ONE)
    stored = tuple(replaced(part, files=()) if part.component is Component.OPTIMIZER else part for part in STORED)
    saving = replaced(
        CHECKPOINTS.saving, sealed=CHECKPOINTS.saving.sealed.insert(1, replaced(bare, components=stored))
    )
    state = replaced(CHECKPOINTS, saving=saving)
    assert [part for part, _, _ in of(ONE, state, OPTIMIZERS)] == [Part.CHECKPOINT]


def test_artifacts_are_neither_counted_nor_pruned() -> None:
    """INV-05: artifacts of the same steps and of later ones change no word of what is said of checkpoints."""
    artifacts = published(full=SAVES, artifacts=(ONE, SaveId(5, 1, 5), SaveId(6, 1, 6)))
    assert judged(replaced(CHECKPOINTS, saving=artifacts), STRICT) == judged(CHECKPOINTS, STRICT)
    alone = State(run=RESUMED_RUN, saving=published(artifacts=SAVES))
    assert judged(alone, STRICT) == ()
    assert decide(alone, STRICT) == ()


# --- what is opened ---------------------------------------------------------------------------------------


def test_applying_opens_a_prune_for_each_part_that_goes_oldest_first() -> None:
    policy = ApplyRetention(keep_optim_last=1, keep_model_last=2)
    assert decide(CHECKPOINTS, policy) == (
        PruneOpened(
            save=ONE,
            part=Part.CHECKPOINT,
            files=("model.pt", "optimizer.pt", "training_state.pt"),
            why="it is number 4 from the newest, and keep_model_last=2",
        ),
        PruneOpened(
            save=TWO,
            part=Part.CHECKPOINT,
            files=("model.pt", "optimizer.pt", "training_state.pt"),
            why="it is number 3 from the newest, and keep_model_last=2",
        ),
        PruneOpened(
            save=THREE,
            part=Part.OPTIMIZER,
            files=("optimizer.pt",),
            why="it is number 2 from the newest, and keep_optim_last=1",
        ),
    )


def test_applying_twice_opens_nothing_twice() -> None:
    state = CHECKPOINTS
    for record in decide(state, STRICT):
        state = evolve(state, record)
    assert len(state.retention.open) == 3
    assert decide(state, STRICT) == ()


def prunes(*open_prunes: Prune) -> State:
    return replaced(CHECKPOINTS, retention=Retention(open=open_prunes))


REOPENED: dict[str, tuple[Prune, ApplyRetention, tuple[Part, ...]]] = {
    "an optimizer that failed": (prune_in(PruneStage.FAILED, of=ONE), OPTIMIZERS, (Part.OPTIMIZER,)),
    "an optimizer under way": (prune_in(PruneStage.OPEN, of=ONE), OPTIMIZERS, ()),
    "the checkpoint of an optimizer that failed": (
        prune_in(PruneStage.FAILED, of=ONE),
        STRICT,
        (Part.CHECKPOINT,),
    ),
    "the checkpoint of an optimizer under way": (prune_in(PruneStage.OPEN, of=ONE), STRICT, ()),
    "a checkpoint that failed": (
        prune_in(PruneStage.FAILED, of=ONE, part=Part.CHECKPOINT),
        STRICT,
        (Part.CHECKPOINT,),
    ),
    "a checkpoint under way": (prune_in(PruneStage.OPEN, of=ONE, part=Part.CHECKPOINT), STRICT, ()),
    "the optimizer of a checkpoint that failed": (
        prune_in(PruneStage.FAILED, of=ONE, part=Part.CHECKPOINT),
        OPTIMIZERS,
        (),
    ),
    "the optimizer of a checkpoint under way": (
        prune_in(PruneStage.OPEN, of=ONE, part=Part.CHECKPOINT),
        OPTIMIZERS,
        (),
    ),
}


@pytest.mark.parametrize("case", REOPENED)
def test_a_part_that_is_under_way_is_not_opened_again_and_one_that_failed_is(case: str) -> None:
    prune, policy, expected = REOPENED[case]
    state = prunes(prune)
    opened = [record for record in decide(state, policy) if isinstance(record, PruneOpened) and record.save == ONE]
    assert tuple(record.part for record in opened) == expected
    for record in opened:
        state = evolve(state, record)
    assert [one.part for one in state.retention.open] == list(expected or (prune.part,))


def test_retention_is_applied_by_an_open_run_that_decided_its_resume() -> None:
    for run in PARTS["run"].values():
        with pytest.raises(Refused, match="cannot apply retention"):
            decide(replaced(CHECKPOINTS, run=run), STRICT)


def test_a_new_writer_judges_by_what_it_resumed_from_itself() -> None:
    state = evolve(resumed_from(ONE), run_opened(2))
    state = evolve(state, resumed(step=4, save=FOUR))
    assert of(ONE, state, STRICT)[0][1] is False
    assert of(FOUR, state, STRICT)[0][1] is True
