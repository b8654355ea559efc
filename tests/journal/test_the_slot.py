"""One write in flight, and a failure that surfaces once."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from milepost.engines.niceness import NICENESS
from milepost.engines.slots import Slot, SteppedSlot, ThreadSlot


@pytest.fixture(params=[ThreadSlot, SteppedSlot])
def slot(request: pytest.FixtureRequest) -> Slot:
    made: Slot = request.param()
    return made


def counting(done: list[int], fail_at: int = -1) -> Iterator[int]:
    for i in range(3):
        if i == fail_at:
            raise RuntimeError(f"step {i}")
        done.append(i)
        yield i


def test_a_joined_lane_is_done(slot: Slot) -> None:
    done: list[int] = []
    slot.start(counting(done))
    slot.join()
    assert done == [0, 1, 2]
    assert not slot.busy


def test_a_failure_is_raised_where_the_slot_is_joined_and_only_once(slot: Slot) -> None:
    done: list[int] = []
    slot.start(counting(done, fail_at=1))
    with pytest.raises(RuntimeError, match="step 1"):
        slot.join()
    slot.join()
    assert done == [0]


def test_a_second_lane_before_the_join_is_our_own_bug(slot: Slot) -> None:
    slot.start(counting([]))
    with pytest.raises(AssertionError, match="one write in flight"):
        slot.start(counting([]))
    slot.join()


def test_joining_an_empty_slot_is_nothing(slot: Slot) -> None:
    slot.join()
    assert not slot.busy


def test_the_thread_is_named_nicer_and_gone_after_the_join() -> None:
    seen: list[tuple[str, int]] = []

    def lane() -> Iterator[None]:
        seen.append((threading.current_thread().name, os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
        yield

    slot = ThreadSlot()
    slot.start(lane())
    slot.join()
    assert seen == [("milepost-writer", min(os.getpriority(os.PRIO_PROCESS, 0) + NICENESS, 19))]
    assert "milepost-writer" not in {thread.name for thread in threading.enumerate()}
