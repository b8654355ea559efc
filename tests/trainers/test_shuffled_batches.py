"""The data source for plain loops."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.engines.trainers import ShuffledBatches
from milepost.transitions.errors import Corrupt


def make(**changes: Any) -> ShuffledBatches[int]:
    return ShuffledBatches(**{"examples": 10, "batch_size": 3, "seed": 5, **changes})


@given(
    length=st.integers(1, 30),
    batch_size=st.integers(1, 8),
    seed=st.integers(0, 2**40),
    drop_last=st.booleans(),
    taken=st.integers(0, 40),
)
def test_a_restored_source_gives_what_the_interrupted_one_would_have(
    length: int, batch_size: int, seed: int, drop_last: bool, taken: int
) -> None:
    def fresh() -> ShuffledBatches[int]:
        return ShuffledBatches(length, batch_size=batch_size, seed=seed, drop_last=drop_last)

    if drop_last and length < batch_size:
        with pytest.raises(ValueError, match="make no batch"):
            fresh()
        return
    interrupted, resumed = fresh(), fresh()
    for _ in range(taken):
        next(interrupted)
    resumed.load_state_dict(interrupted.state_dict())
    assert [next(resumed) for _ in range(12)] == [next(interrupted) for _ in range(12)]


def test_an_epoch_gives_every_example_once_and_each_epoch_has_its_own_order() -> None:
    source = make(drop_last=False)
    epochs = [[next(source) for _ in range(4)] for _ in range(3)]
    assert [len(batch) for batch in epochs[0]] == [3, 3, 3, 1]
    flat = [tuple(at for batch in epoch for at in batch) for epoch in epochs]
    assert all(sorted(order) == list(range(10)) for order in flat)
    assert len(set(flat)) == 3


def test_the_last_short_batch_is_dropped_unless_it_is_kept() -> None:
    source = make()
    for _ in range(3):
        next(source)
    assert (source.epoch, source.batch) == (1, 0)


def test_a_sequence_gives_its_examples() -> None:
    words = ["a", "b", "c", "d"]
    assert sorted(next(ShuffledBatches(words, batch_size=4, seed=0))) == words


def test_the_order_is_pinned() -> None:
    """A cursor saved today has to mean the same batch tomorrow."""
    source = make()
    assert [next(source) for _ in range(4)] == [[5, 9, 3], [0, 4, 1], [7, 2, 6], [3, 0, 1]]


def test_the_global_streams_are_not_moved() -> None:
    before = random.getstate()
    next(make())
    assert random.getstate() == before


@pytest.mark.parametrize(
    "change", [{"examples": 11}, {"batch_size": 2}, {"seed": 6}, {"drop_last": False}], ids=lambda c: next(iter(c))
)
def test_the_fingerprint_changes_with_everything_that_changes_the_batches(change: dict[str, Any]) -> None:
    assert make(**change).fingerprint() != make().fingerprint() == make().fingerprint()


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": 1},
        {"epoch": 1, "batch": 3},
        {"epoch": -1, "batch": 0},
        {"epoch": 1.0, "batch": 0},
        {"epoch": True, "batch": 0},
        {"epoch": "1", "batch": 0},
        [1, 0],
    ],
    ids=repr,
)
def test_a_state_that_it_cannot_have_is_refused_with_nothing_changed(state: Any) -> None:
    source = make()
    next(source)
    with pytest.raises(Corrupt, match="the cursor of ShuffledBatches"):
        source.load_state_dict(state)
    assert source.state_dict() == {"epoch": 0, "batch": 1}
