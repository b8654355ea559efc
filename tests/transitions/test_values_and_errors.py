"""Save ids and directory names have one spelling each; errors say every problem."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.transitions.errors import Busy, Corrupt, Fenced, MilepostError, Misconfigured, NewerVersion
from milepost.transitions.values import FULL, Component, SaveId, iteration_name, parse_iteration

COUNTS = st.integers(min_value=0, max_value=10**12)


@given(step=COUNTS, epoch=COUNTS, counter=COUNTS)
def test_a_save_id_reads_back(step: int, epoch: int, counter: int) -> None:
    made = SaveId(step, epoch, counter)
    assert SaveId.parse(str(made)) == made
    assert made.directory == iteration_name(step)


@given(text=st.text(alphabet="0123456789.-+ _x٣", max_size=8))
def test_a_save_id_is_read_only_as_it_is_written(text: str) -> None:
    try:
        made = SaveId.parse(text)
    except ValueError:
        return
    assert str(made) == text


@pytest.mark.parametrize(
    "text", ["", "1.2", "1.2.3.4", "1..3", "-1.2.3", "01.2.3", "1.2.٣", "1.2.²", "a.b.c", "1.2.3\n"]
)
def test_what_is_no_save_id_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(ValueError, match="not a save id") as refused:
        SaveId.parse(text)
    assert repr(text) in str(refused.value)


def test_save_ids_sort_by_step_then_epoch_then_counter() -> None:
    assert SaveId(9, 2, 1) < SaveId(10, 1, 1) < SaveId(10, 1, 2) < SaveId(10, 2, 1)


@given(step=COUNTS)
def test_a_checkpoint_name_reads_back(step: int) -> None:
    assert parse_iteration(iteration_name(step)) == step


@pytest.mark.parametrize(
    "name",
    [
        "000000100",
        "iter_",
        "iter_100",
        "iter_0000000100",
        "iter_00000010x",
        "iter_٣00000100",
        "iter_²00000100",
        "ITER_000000100",
        "",
    ],
)
def test_what_is_no_checkpoint_name_has_no_step(name: str) -> None:
    assert parse_iteration(name) is None


def test_a_full_plan_is_every_component_in_order() -> None:
    assert FULL == (Component.MODEL, Component.OPTIMIZER, Component.TRAINING_STATE)


def test_one_problem_is_one_line_and_several_are_a_list() -> None:
    assert str(Misconfigured(("save_every=-1: at least 0",))) == "save_every=-1: at least 0"
    several = Misconfigured(("a=1: wrong", "b=2: wrong"))
    assert str(several) == "\na=1: wrong\nb=2: wrong"
    assert several.problems == ("a=1: wrong", "b=2: wrong")


def test_a_caller_can_catch_by_what_it_would_do() -> None:
    assert issubclass(Fenced, Busy)
    assert issubclass(NewerVersion, Corrupt)
    assert issubclass(Busy, MilepostError)
    assert not issubclass(MilepostError, ValueError)
