"""A stale report is told from one of this start, and two sides that resumed from different things are told apart."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.transitions.errors import Refused
from milepost.transitions.fencing import SHOWN, Stale, admit, disagreement

HERE = "7d0f5a4e-8a57-4f0c-9f9e-0d2f6f1f2a11"

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
METADATA = st.dictionaries(st.text(max_size=3), JSON, max_size=4)
RESUMED: Mapping[str, object] = {
    "epoch": 2,
    "optimizer_updates": 1,
    "sampler_state": {"position": 4, "generator": [1, 2]},
    "checkpoint_identity": "sha256:aa",
}


def test_a_report_of_this_start_is_admitted() -> None:
    assert admit(HERE, execution_id=HERE) is None


def test_a_report_without_an_id_is_stale() -> None:
    assert admit(None, execution_id=HERE) == Stale(reported=None)


@pytest.mark.parametrize("reported", ["", "7", HERE[:-1], HERE + "0", HERE.upper(), f" {HERE}"])
def test_a_report_with_another_id_is_stale(reported: str) -> None:
    assert admit(reported, execution_id=HERE) == Stale(reported=reported)


@pytest.mark.parametrize("reported", [True, 1, [HERE], {"id": HERE}, HERE.encode()])
def test_what_is_no_text_is_no_id(reported: object) -> None:
    assert admit(reported, execution_id=HERE) == Stale(reported=str(reported)[:SHOWN])


def test_a_text_of_another_class_is_no_id() -> None:
    class Alike(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = str.__hash__

    assert admit(Alike("other"), execution_id=HERE) == Stale(reported="other")


def test_a_fence_without_an_id_of_its_own_admits_nobody() -> None:
    with pytest.raises(Refused, match="needs the execution id of this start"):
        admit("", execution_id="")


def test_a_stale_report_is_told_what_it_carried_and_never_what_runs() -> None:
    other = admit("x" * 1_000, execution_id=HERE)
    none = admit(None, execution_id=HERE)
    assert str(other) == (
        f"the report is of execution '{'x' * SHOWN}', and another one runs now; nothing was changed: end this worker"
    )
    assert (
        str(none) == "the report carries no execution id, which it needs here; nothing was changed: end this worker"
    )
    assert HERE not in f"{other!r}{none!r}{other}{none}"


@given(metadata=METADATA)
def test_the_same_metadata_agree(metadata: dict[str, object]) -> None:
    assert disagreement(metadata, dict(reversed(metadata.items()))) == ()


@given(metadata=METADATA, names=st.sets(st.text(max_size=3)))
def test_each_key_that_one_side_lacks_differs_on_either_side(metadata: dict[str, object], names: set[str]) -> None:
    rest = {name: value for name, value in metadata.items() if name not in names}
    lacking = tuple(sorted(names & metadata.keys()))
    assert disagreement(metadata, rest) == lacking
    assert disagreement(rest, metadata) == lacking


@given(one=METADATA, other=METADATA)
def test_who_asks_does_not_matter(one: dict[str, object], other: dict[str, object]) -> None:
    assert disagreement(one, other) == disagreement(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (1, 1.0),
        (1, "1"),
        (None, 0),
        (None, ""),
        ([], {}),
        ([1], (1,)),
        ([1], [1, 2]),
        ([1, 2], [2, 1]),
        ([1, [2]], [1, [2.0]]),
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": None}),
        ({"a": {"b": [0]}}, {"a": {"b": [False]}}),
        ((1, 2), (1, 2.0)),
        (float("nan"), float("nan")),
    ],
    ids=repr,
)
def test_values_that_are_not_exactly_equal_differ(one: object, other: object) -> None:
    assert disagreement({"same": 1, "other": one}, {"same": 1, "other": other}) == ("other",)
    assert disagreement({"other": other}, {"other": one}) == ("other",)


def test_a_key_without_a_value_is_not_a_key_that_is_missing() -> None:
    assert disagreement({"epoch": None}, {}) == ("epoch",)


def test_two_checkpoints_with_equal_counters_are_two_checkpoints() -> None:
    assert disagreement(RESUMED, {**RESUMED, "checkpoint_identity": "sha256:ab"}) == ("checkpoint_identity",)


def test_names_come_back_sorted_and_no_value_does() -> None:
    worker = {"sampler_state": {"position": 5}, "epoch": 3, "extra": "hidden", "optimizer_updates": 1}
    told = disagreement(RESUMED, worker)
    assert told == ("checkpoint_identity", "epoch", "extra", "sampler_state")


def test_what_arrives_nested_without_end_is_compared_no_deeper_than_what_is_known() -> None:
    deep: object = 0
    for _ in range(100_000):
        deep = [deep]
    assert disagreement({"sampler_state": [[1]]}, {"sampler_state": deep}) == ("sampler_state",)
