"""The asynchronous slot: one write in flight.

The next save joins the one before it, and a failure surfaces at the next call, once and never silently. What the slot
runs is a lane: an iterator over the loop for one save. Tests step it; a live run drains it in a thread of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Protocol

from milepost.engines.niceness import be_nicer


class Slot(Protocol):
    """Room for one lane."""

    @property
    def busy(self) -> bool:
        """Whether a lane is under way."""
        ...

    def start(self, lane: Iterator[object]) -> None:
        """Take the lane; the slot is free."""
        ...

    def join(self) -> None:
        """Wait until the lane is done; what it raised is raised here, once."""
        ...


def finalize_units(units: Mapping[str, Slot]) -> None:
    """Join every unit, by the name of what it writes for; then raise the first failure, noting the names of all."""
    failures: dict[str, BaseException] = {}
    for name, slot in units.items():
        try:
            slot.join()
        except BaseException as failure:  # noqa: BLE001 - raised below, when the others are joined too
            failures[name] = failure
    if failures:
        first = next(iter(failures.values()))
        first.add_note(f"while writing for {', '.join(failures)}")
        raise first


class ThreadSlot:
    """Drains a lane in a thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, lane: Iterator[object]) -> None:
        assert self._thread is None, "one write in flight: join the slot first"
        self._thread = threading.Thread(target=self._drain, args=(lane,), name="milepost-writer")
        self._thread.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _drain(self, lane: Iterator[object]) -> None:
        be_nicer()
        try:
            deque(lane, maxlen=0)
        except BaseException as failure:  # noqa: BLE001 - it is raised where the slot is joined
            self._failure = failure


class SteppedSlot:
    """Moves a lane only when told to: the asynchronous save of a test, one operation at a time."""

    def __init__(self) -> None:
        self._lane: Iterator[object] | None = None

    @property
    def busy(self) -> bool:
        return self._lane is not None

    def start(self, lane: Iterator[object]) -> None:
        assert self._lane is None, "one write in flight: join the slot first"
        self._lane = lane

    def step(self) -> bool:
        """One more effect of the lane; False once there is none."""
        if self._lane is None:
            return False
        try:
            next(self._lane)
        except StopIteration:
            self._lane = None
            return False
        except BaseException:
            self._lane = None
            raise
        return True

    def join(self) -> None:
        while self.step():
            pass
