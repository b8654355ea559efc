"""Blocks handed to a few named threads, in order, without copies.

1. Every follower sees every block, in the order of `put`.
2. At most `depth` blocks are under way at once: a block's memory may be used again once `depth` later blocks
   were put.
3. A follower that fails takes no further block; its error is raised by the next `put` or on leaving `with`.
   No error is swallowed, and no thread outlives the `with`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from queue import Queue
from types import TracebackType
from typing import Self

DEPTH = 4
"""As many as keep a disk busy."""

Follow = Callable[[memoryview], object]


class Relay:
    """`followers` maps a thread's name to what it does with each block. Threads are as nice as who starts them."""

    def __init__(self, followers: Mapping[str, Follow], *, depth: int = DEPTH) -> None:
        self._followers = [_Follower(name, follow, depth) for name, follow in followers.items()]

    def put(self, block: memoryview) -> None:
        """Hand a block to every follower, waiting while too many are under way."""
        for follower in self._followers:
            follower.blocks.put(block)
        self._raise()

    def __enter__(self) -> Self:
        for follower in self._followers:
            follower.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for follower in self._followers:
            follower.blocks.put(None)
        for follower in self._followers:
            follower.join()
        if value is None:
            self._raise()

    def _raise(self) -> None:
        for follower in self._followers:
            if follower.error is not None:
                raise follower.error


class _Follower(threading.Thread):
    def __init__(self, name: str, follow: Follow, depth: int) -> None:
        super().__init__(name=name, daemon=True)
        self.blocks: Queue[memoryview | None] = Queue(depth - 1)  # and one more in hand
        self.error: BaseException | None = None
        self._follow = follow

    def run(self) -> None:
        try:
            while (block := self.blocks.get()) is not None:
                self._follow(block)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that put the block
            self.error = error
            while self.blocks.get() is not None:
                pass
