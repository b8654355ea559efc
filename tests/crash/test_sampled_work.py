"""Sampled work survives every crash: what is restored is what the checkpoint was offered, and passes nothing."""

from __future__ import annotations

import pytest

from tests.crash import sampled


def test_what_a_save_carries_is_what_was_settled_when_it_was_opened() -> None:
    sampled.what_a_save_carries_is_what_was_settled_when_it_was_opened()


def test_a_barrier_takes_along_what_was_held_back() -> None:
    sampled.a_barrier_takes_along_what_was_held_back()


@pytest.mark.slow
def test_every_crash_of_sampling_is_survived() -> None:
    sampled.every_crash_of_sampling_is_survived()


@pytest.mark.slow
def test_every_crash_of_much_sampling_is_survived() -> None:
    sampled.every_crash_of_much_sampling_is_survived()
