"""A crew whose members live in other processes, behind futures: one driver leads actors.

1. Member 0 is this process, with the roles that live here, possibly none. Every other member has one role, and is
   reached by handing its orders in (`Submit`).
2. There is one caller, so a call of the facade is the driver's alone; and a member may be given orders at any time,
   by any thread. What it is given at once it may do one by one.
3. A member that is gone, or does not answer within `timeout_s` of the driver's own part being done, is `Lost`. The
   crew is broken then: every later order to another process raises the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor
from typing import Protocol, TypeVar

from milepost.engines.crew import Arrival, Crew
from milepost.engines.crew.failures import Failure, Lost
from milepost.engines.crew.links import Gone
from milepost.engines.crew.orders import Answer, Order
from milepost.engines.crew.rounds import Round

T = TypeVar("T")


class Pending(Protocol):
    """An answer that is coming: `concurrent.futures.Future` is one."""

    def result(self, timeout: float | None = None) -> Answer | Failure:
        """The answer, or a failure as a value or as an exception; `TimeoutError` after `timeout` seconds.

        `Gone` or `BrokenExecutor` where the member will never answer.
        """
        ...


Submit = Callable[[Order], Pending]
"""Hands an order to a member, which performs its orders one after the other, and does not wait for it."""


class Remote(Crew):
    """The driver's crew: `perform` is this process's own member, `roles` reach the others by their role's name."""

    def __init__(self, perform: Callable[[Order], Answer], *, roles: Mapping[str, Submit], timeout_s: float) -> None:
        self._perform = perform
        self._names = ("", *sorted(roles))
        self._roles = roles
        self._timeout_s = timeout_s
        self._broken = ""

    @property
    def index(self) -> int:
        return 0

    @property
    def size(self) -> int:
        return len(self._names)

    def called(self, index: int) -> str:
        return f"role {self._names[index]}" if index else "this process"

    def hears(self, index: int) -> bool:
        return True

    def call(self, arrival: Arrival, work: Callable[[tuple[Arrival, ...]], T]) -> T:
        if self._broken:
            raise Lost(self._broken)
        return work((arrival,))

    def each(self, orders: Mapping[int, Order]) -> dict[int, Answer]:
        others = [index for index in sorted(orders) if index]
        if others and self._broken:
            raise Lost(self._broken)
        asked = Round(self.called)
        pending: dict[int, Pending] = {}
        for index in others:
            try:
                pending[index] = self._roles[self._names[index]](orders[index])
            except Exception as error:  # noqa: BLE001 -- it joins the others' failures
                _take(asked, index, error)
        if 0 in orders:
            asked.perform(0, self._perform, orders[0])
        until_s = time.monotonic() + self._timeout_s
        for index, answer in pending.items():
            try:
                asked.hear(index, answer.result(max(until_s - time.monotonic(), 0.0)))
            except TimeoutError:
                asked.lose(index, f"did not answer within {self._timeout_s:g} s")
            except Exception as error:  # noqa: BLE001 -- it joins the others' failures
                _take(asked, index, error)
        if asked.lost:
            self._broken = asked.why()
        return asked.result()

    def lost(self, *, within_s: float) -> str:
        return self._broken

    def leave(self, failure: BaseException | None) -> None:
        """The members hear of nothing: their processes are the driver's, who ends or uses them again."""


def _take(asked: Round, index: int, error: Exception) -> None:
    if isinstance(error, Gone | BrokenExecutor):
        asked.lose(index, str(error) if isinstance(error, Gone) else "is gone: its process has ended")
    else:
        asked.fail(index, error)
