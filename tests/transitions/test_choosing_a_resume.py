"""Which checkpoint a start continues from, and the reason for each other one (INV-17)."""

from __future__ import annotations

import pytest

from milepost.transitions.errors import Corrupt, NotResumable
from milepost.transitions.resuming import Candidate, Choice, Standing, choose, passed_for, require_not_behind
from milepost.transitions.saving import SaveStage, Saving
from milepost.transitions.values import PassedOver, SaveId, iteration_name
from tests.transitions.samples import saving_in


def sealed(step: int, standing: Standing = Standing.SOUND, *, detail: str = "") -> Candidate:
    return Candidate(name=iteration_name(step), step=step, standing=standing, save=SaveId(step, 1, 1), detail=detail)


def unrecorded(step: int) -> Candidate:
    return Candidate(name=iteration_name(step), step=step, standing=Standing.UNRECORDED, detail="no record of it")


def older(step: int, *, than: int) -> PassedOver:
    return PassedOver(name=iteration_name(step), reason="older", detail=f"iter_{than:09d} is newer")


def passed(step: int) -> PassedOver:
    return PassedOver(name=iteration_name(step), reason="unrecorded", detail="no record of it")


TEN, TWENTY, TORN_TEN = sealed(10), sealed(20), sealed(10, Standing.DAMAGED, detail="model.pt is short")

CHOICES: dict[str, tuple[tuple[Candidate, ...], Choice]] = {
    "nothing is there": ((), Choice(taken=None, passed_over=())),
    "only a stranger": ((unrecorded(30),), Choice(taken=None, passed_over=(passed(30),))),
    "one is sound": ((TEN,), Choice(taken=TEN, passed_over=())),
    "the newest of two": ((TEN, TWENTY), Choice(taken=TWENTY, passed_over=(older(10, than=20),))),
    "the order of a listing is nothing": ((TWENTY, TEN), Choice(taken=TWENTY, passed_over=(older(10, than=20),))),
    "an older one is damaged": ((TORN_TEN, TWENTY), Choice(taken=TWENTY, passed_over=(older(10, than=20),))),
    "a newer stranger": ((TEN, unrecorded(30)), Choice(taken=TEN, passed_over=(passed(30),))),
    "step zero counts": ((sealed(0),), Choice(taken=sealed(0), passed_over=())),
}


@pytest.mark.parametrize("case", CHOICES)
def test_auto_takes_the_newest_recorded_one_and_explains_every_other(case: str) -> None:
    candidates, expected = CHOICES[case]
    assert choose(candidates) == expected


@pytest.mark.parametrize("case", CHOICES)
def test_every_candidate_is_taken_or_explained_exactly_once(case: str) -> None:
    candidates, _ = CHOICES[case]
    choice = choose(candidates)
    named = [choice.taken.name] if choice.taken else []
    assert sorted(named + [other.name for other in choice.passed_over]) == sorted(c.name for c in candidates)


def test_a_damaged_newest_refuses_the_start_and_names_the_older_one() -> None:
    damaged = sealed(20, Standing.DAMAGED, detail="model.pt is short")
    with pytest.raises(Corrupt) as refused:
        choose((sealed(5), TEN, damaged))
    assert "iter_000000020, was published whole and no longer is: model.pt is short" in str(refused.value)
    assert "Nothing was changed" in str(refused.value)
    assert "or resume from iter_000000010 by its path under another run.name" in str(refused.value)


def test_a_damaged_newest_never_points_at_another_damaged_one() -> None:
    with pytest.raises(Corrupt, match="by its path") as refused:
        choose((sealed(5), TORN_TEN, sealed(20, Standing.DAMAGED)))
    assert "iter_000000005" in str(refused.value)


def test_a_damaged_newest_without_a_sound_one_says_to_start_over() -> None:
    with pytest.raises(Corrupt, match="or start over with resume=off"):
        choose((TORN_TEN, unrecorded(30)))


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
    assert "resume=/x/iter_000000009 is step 9, but this attempt already holds iter_000000010" in message
    assert "resume=auto" in message
    assert "run.name=" in message


@pytest.mark.parametrize(("saving", "step"), [(Saving(), 0), (saving_in(SaveStage.SEALED), 10)])
def test_a_path_that_is_not_behind_may_be_extended(saving: Saving, step: int) -> None:
    require_not_behind(saving, step=step, path="/x")
