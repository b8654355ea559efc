"""How long and how often a request is repeated: by a deadline, never by a count."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from milepost.engines.ambient import Ambient
from milepost.engines.buckets.wire import Setback
from milepost.transitions.errors import Unavailable

T = TypeVar("T")

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class Clock(Protocol):
    """Time as the loops here know it."""

    def now_s(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def pause(self, attempt: int, *, until_s: float) -> None:
        """Wait after the failed `attempt` (counted from one), longer each time, and never beyond `until_s`."""
        ...


class SystemClock:
    """The machine's clock. Pauses double from 50 ms to 2 s; each is cut by chance, so that racers drift apart."""

    def __init__(self, ambient: Ambient) -> None:
        self._ambient = ambient

    def now_s(self) -> float:
        return self._ambient.monotonic_s()

    def pause(self, attempt: int, *, until_s: float) -> None:
        longest = min(_FIRST_PAUSE_S * 2 ** min(attempt - 1, 10), _LONGEST_PAUSE_S)
        chance = int(self._ambient.nonce()[:8], 16) / 2**32
        time.sleep(max(0.0, min(longest * (1 + chance) / 2, until_s - self.now_s())))


def patiently(request: Callable[[], T], *, clock: Clock, patience_s: float) -> T:
    """What `request` returns, asked again while its setbacks are passing ones and `patience_s` is not over."""
    start_s = clock.now_s()
    for attempt in itertools.count(1):
        try:
            return request()
        except Setback as setback:
            waited_s = clock.now_s() - start_s
            if setback.kind != "passing":
                raise
            if waited_s >= patience_s:
                told = Unavailable(f"{setback.error}; tried {attempt} times in {waited_s:.0f} s")
                raise Setback("passing", why=setback.why, error=told) from None
        clock.pause(attempt, until_s=start_s + patience_s)
    raise AssertionError("unreachable")


@contextmanager
def told() -> Iterator[None]:
    """Whoever calls a verb is told the error of a setback; the setback itself stays inside."""
    try:
        yield
    except Setback as setback:
        raise setback.error from None
