"""Which checkpoint a start continues from, and the reason for each other one (INV-17)."""

from __future__ import annotations

import pytest

from milepost.transitions.errors import Corrupt, NotResumable
from milepost.transitions.resuming import Candidate, Choice, Standing, choose, passed_for, require_not_behind
from milepost.transitions.saving import SaveStage, Saving
from milepost.transitions.values import PassedOver, SaveId, iteration_name
from tests.transitions.samples import published, saving_in


def sealed(step: int, standing: Standing = Standing.SOUND, *, detail: str = "") -> Candidate:
    return Candidate(name=iteration_name(step), step=step, standing=standing, save=SaveId(step, 1, 1), detail=detail)


def released(step: int) -> Candidate:
    return sealed(step, Standing.RELEASED, detail="its optimizer was pruned")


def unrecorded(step: int) -> Candidate:
    return Candidate(name=iteration_name(step), step=step, standing=Standing.UNRECORDED, detail="no record of it")


def older(step: int, *, than: int) -> PassedOver:
    return PassedOver(name=iteration_name(step), reason="older", detail=f"iter_{than:09d} is newer")


def passed(step: int) -> PassedOver:
    return PassedOver(name=iteration_name(step), reason="unrecorded", detail="no record of it")


def without_optimizer(step: int) -> PassedOver:
    return PassedOver(name=iteration_name(step), reason="released", detail="its optimizer was pruned")


def artifact(step: int) -> SaveId:
    return SaveId(step, 1, 9)


TEN, TWENTY, TORN_TEN = sealed(10), sealed(20), sealed(10, Standing.DAMAGED, detail="model.pt is short")

CHOICES: dict[str, tuple[tuple[Candidate, ...], Choice]] = {
    "nothing is there": ((), Choice(taken=None, passed_over=())),
    "only a stranger": ((unrecorded(30),), Choice(taken=None, passed_over=(passed(30),))),
    "one is sound": ((TEN,), Choice(taken=TEN, passed_over=())),
    "the newest of two": ((TEN, TWENTY), Choice(taken=TWENTY, passed_over=(older(10, than=20),))),
    "the order of a listing is nothing": ((TWENTY, TEN), Choice(taken=TWENTY, passed_over=(older(10, than=20),))),
    "an older one is damaged": ((TORN_TEN, TWENTY), Choice(taken=TWENTY, passed_over=(older(10, than=20),))),
    "a newer stranger": ((TEN, unrecorded(30)), Choice(taken=TEN, passed_over=(passed(30),))),
    "an older one has no optimizer": (
        (released(10), TWENTY),
        Choice(taken=TWENTY, passed_over=(without_optimizer(10),)),
    ),
    "an older one was not looked at": (
        (sealed(10, Standing.UNSEEN), TWENTY),
        Choice(taken=TWENTY, passed_over=(older(10, than=20),)),
    ),
    "older ones of every standing": (
        (released(5), TORN_TEN, TWENTY, unrecorded(30)),
        Choice(taken=TWENTY, passed_over=(without_optimizer(5), older(10, than=20), passed(30))),
    ),
    "step zero counts": ((sealed(0),), Choice(taken=sealed(0), passed_over=())),
}


@pytest.mark.parametrize("case", CHOICES)
def test_auto_takes_the_newest_recorded_one_and_explains_every_other(case: str) -> None:
    candidates, expected = CHOICES[case]
    assert choose(candidates, artifact=None) == expected


@pytest.mark.parametrize("case", CHOICES)
def test_every_candidate_is_taken_or_explained_exactly_once(case: str) -> None:
    candidates, _ = CHOICES[case]
    choice = choose(candidates, artifact=None)
    named = [choice.taken.name] if choice.taken else []
    assert sorted(named + [other.name for other in choice.passed_over]) == sorted(c.name for c in candidates)


def test_a_damaged_newest_refuses_the_start_and_names_the_older_one() -> None:
    damaged = sealed(20, Standing.DAMAGED, detail="model.pt is short")
    with pytest.raises(Corrupt) as refused:
        choose((sealed(5), TEN, damaged), artifact=None)
    assert "iter_000000020, was published whole and no longer is: model.pt is short" in str(refused.value)
    assert "Nothing was changed" in str(refused.value)
    assert "or resume from iter_000000010 by its path under another run.name" in str(refused.value)


def test_a_damaged_newest_never_points_at_another_damaged_one() -> None:
    with pytest.raises(Corrupt, match="by its path") as refused:
        choose((sealed(5), TORN_TEN, released(15), sealed(20, Standing.DAMAGED)), artifact=None)
    assert "iter_000000005" in str(refused.value)


def test_a_damaged_newest_without_a_sound_one_says_to_start_over() -> None:
    for others in ((), (released(5),), (unrecorded(30),)):
        with pytest.raises(Corrupt, match="or start over with resume=off"):
            choose((*others, TORN_TEN), artifact=None)


# --- artifacts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidates", "found"),
    [
        ((), "there is no checkpoint"),
        ((unrecorded(30),), "there is no checkpoint"),
        ((TEN,), "the newest checkpoint is iter_000000010"),
        ((released(5), TEN, unrecorded(30)), "the newest checkpoint is iter_000000010"),
    ],
    ids=["no checkpoint", "a stranger", "an older checkpoint", "older ones"],
)
def test_an_artifact_that_is_newer_than_every_checkpoint_refuses_the_start(
    candidates: tuple[Candidate, ...], found: str
) -> None:
    with pytest.raises(NotResumable) as refused:
        choose(candidates, artifact=artifact(20))
    message = str(refused.value)
    assert f"this attempt holds the artifact iter_000000020, and {found}" in message
    assert "Nothing was changed" in message
    assert "resume=off" in message


@pytest.mark.parametrize("step", [0, 10, 20])
def test_an_artifact_that_is_not_newer_changes_nothing_and_is_no_candidate(step: int) -> None:
    assert choose((TEN, TWENTY), artifact=artifact(step)) == choose((TEN, TWENTY), artifact=None)


def test_damage_of_the_newest_is_said_before_a_newer_artifact() -> None:
    with pytest.raises(Corrupt, match="the newest checkpoint, iter_000000010"):
        choose((TORN_TEN,), artifact=artifact(20))


# --- a path -----------------------------------------------------------------------------------------------


def test_a_start_from_a_path_passes_over_everything_else_because_of_it() -> None:
    path = "/elsewhere/iter_000000010"
    assert passed_for((TEN, TWENTY, unrecorded(30)), path=path, name="iter_000000010") == (
        PassedOver(name="iter_000000020", reason="not-asked-for", detail=f"resume={path}"),
        PassedOver(name="iter_000000030", reason="not-asked-for", detail=f"resume={path}"),
    )


def test_a_path_behind_the_newest_of_the_attempt_is_refused_with_both_ways_out() -> None:
    with pytest.raises(NotResumable) as refused:
        require_not_behind(saving_in(SaveStage.SEALED), step=9, path="/x/iter_000000009")
    message = str(refused.value)
    assert "is step 9, but this attempt already holds the checkpoint iter_000000010" in message
    assert message.startswith("resume=/x/iter_000000009 ")
    assert "resume=auto" in message
    assert "run.name=" in message


@pytest.mark.parametrize(
    ("saving", "held"),
    [
        (published(artifacts=(artifact(10),)), "artifact"),
        (published(full=(SaveId(5, 1, 1),), artifacts=(artifact(10),)), "artifact"),
        (published(full=(SaveId(10, 1, 1),), artifacts=(artifact(5),)), "checkpoint"),
        (published(full=(SaveId(10, 1, 1),), artifacts=(artifact(10),)), "checkpoint"),
    ],
    ids=["only an artifact", "a newer artifact", "a newer checkpoint", "both of one step"],
)
def test_a_path_behind_either_kind_is_refused_and_the_kind_is_named(saving: Saving, held: str) -> None:
    with pytest.raises(NotResumable, match=f"already holds the {held} iter_000000010"):
        require_not_behind(saving, step=9, path="/x")


@pytest.mark.parametrize(
    ("saving", "step"),
    [(Saving(), 0), (saving_in(SaveStage.SEALED), 10), (published(artifacts=(artifact(10),)), 10)],
    ids=["nothing is there", "at a checkpoint", "at an artifact"],
)
def test_a_path_that_is_not_behind_may_be_extended(saving: Saving, step: int) -> None:
    require_not_behind(saving, step=step, path="/x")
