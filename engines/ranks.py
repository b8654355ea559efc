"""The world of ranks: one decision, taken on rank 0, and every rank sees any rank's failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class World(Protocol):
    """The processes that train together."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def decide(self, take: Callable[[], T]) -> T:
        """What `take` returned on rank 0, on every rank; what it raised there is raised on every rank."""
        ...


class Alone:
    """One process."""

    rank = 0
    size = 1

    def decide(self, take: Callable[[], T]) -> T:
        return take()
