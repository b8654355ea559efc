"""The machine under all processes: the medium, the trace of what was done to it, and what is planned to go wrong.

1. Every operation goes through `perform`, which asks in this order: is the process alive, does the test want to stop
   here (`before`), does the process die here, does the operation make sense, does it fail on purpose.
2. Every operation and every mark is one entry of the trace, reads and failures included. Folding the effects of a
   prefix over the first medium gives the medium after that prefix.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from attrs import evolve, frozen

from milepost.engines.simulated.faults import (
    FaultRule,
    Killed,
    ShortRule,
    Site,
    no_fault,
    whole,
)
from milepost.engines.simulated.medium import (
    CachesDropped,
    Closed,
    Died,
    Effect,
    FolderSynced,
    FolderSyncFailed,
    Medium,
    Renames,
    Synced,
    SyncFailed,
    step,
)

T = TypeVar("T")

Plan: TypeAlias = Callable[[Medium], tuple[Effect | None, T]]
"""What an operation does to the medium and what it returns; raises the `OSError` that the kernel would."""

Before: TypeAlias = Callable[[str, str, str], None]
"""Called with process, verb and path before each operation; may wait, kill, or raise to stop."""


@frozen(kw_only=True)
class Operation:
    """One entry of the trace. `error` is the errno that was reported, None where the operation succeeded.

    A mark has the verb `mark` and its values as `note`.
    """

    process: str
    verb: str
    path: str
    effect: Effect | None = None
    error: int | None = None
    note: tuple[object, ...] = ()
    at_s: float


class Hardware:
    """Settable at any time: `faults`, `short_writes`, `before`, `free_bytes`, and the clock `now_s`."""

    def __init__(self, medium: Medium) -> None:
        self.first = medium
        self.medium = medium
        self.trace: list[Operation] = []
        self.faults: FaultRule = no_fault
        self.short_writes: ShortRule = whole
        self.before: Before | None = None
        self.free_bytes = 1 << 40
        self.now_s = 0.0
        self._mutex = threading.Lock()
        self._processes = 0
        self._reached: dict[Renames, tuple[int, Medium]] = {}

    def new_holder(self) -> int:
        """A number for a process, by which its locks are known."""
        self._processes += 1
        return self._processes

    def perform(self, process: Life, verb: str, path: str, plan: Plan[T]) -> T:
        """Do one operation of `process`: its result, its `OSError`, or `Killed`."""
        process.check_alive()
        if self.before is not None:
            self.before(process.name, verb, path)
        with self._mutex:
            process.check_alive()
            site = self._site(process, verb, path)
            if process.kill_at is not None and site.index >= process.kill_at:
                self._die(process)
                raise Killed(f"{process.name} was killed before operation {site.index}: {verb} {path}")
            return self._act(site, plan)

    def taken(self, process: Life, path: str, size: int) -> int:
        """How many of `size` bytes the write that is being performed takes."""
        return self.short_writes(self._site(process, "write", path), size) if size else 0

    def _site(self, process: Life, verb: str, path: str) -> Site:
        return Site(index=len(self.trace), process=process.name, verb=verb, path=path)

    def _act(self, site: Site, plan: Plan[T]) -> T:
        try:
            effect, result = plan(self.medium)
        except OSError as error:
            self._record(site, None, error.errno)
            raise
        fault = self.faults(site)
        if fault is None:
            self._record(site, effect, None)
            return result
        self._record(site, effect if fault.done else _failure_of(effect), fault.error)
        raise OSError(fault.error, os.strerror(fault.error), site.path)

    def _record(self, site: Site, effect: Effect | None, error: int | None) -> None:
        self._append(
            Operation(
                process=site.process,
                verb=site.verb,
                path=site.path,
                effect=effect,
                error=error,
                at_s=self.now_s,
            )
        )

    def _append(self, operation: Operation) -> None:
        self.trace.append(operation)
        if operation.effect is not None:
            self.medium = step(self.medium, operation.effect, operation.at_s)

    def kill(self, process: Life) -> None:
        with self._mutex:
            self._die(process)

    def _die(self, process: Life) -> None:
        if process.alive:
            process.alive = False
            died = Died(holder=process.holder)
            self._append(Operation(process=process.name, verb="killed", path="", effect=died, at_s=self.now_s))

    def mark(self, *note: object) -> None:
        with self._mutex:
            self._append(Operation(process="", verb="mark", path="", note=note, at_s=self.now_s))

    def drop_caches(self) -> None:
        with self._mutex:
            self._append(Operation(process="", verb="drop_caches", path="", effect=CachesDropped(), at_s=self.now_s))

    def medium_after(self, length: int, renames: Renames) -> Medium:
        """The medium after the first `length` entries of the trace. Asking in rising order is cheapest."""
        if not 0 <= length <= len(self.trace):
            raise ValueError(f"the trace has {len(self.trace)} entries; it has no prefix of {length}")
        start = (0, evolve(self.first, renames=renames))
        done, medium = self._reached.get(renames, start)
        if done > length:
            done, medium = start
        for operation in self.trace[done:length]:
            if operation.effect is not None:
                medium = step(medium, operation.effect, operation.at_s)
        self._reached[renames] = (length, medium)
        return medium


class Life:
    """A process as the hardware knows it: its `name`, the number `holder` of its locks, whether it is `alive`.

    It dies instead of its first operation with the index `kill_at` or a later one.
    """

    def __init__(self, hardware: Hardware, name: str) -> None:
        self.hardware = hardware
        self.name = name
        self.holder = hardware.new_holder()
        self.alive = True
        self.kill_at: int | None = None

    def kill(self) -> None:
        """Die now."""
        self.hardware.kill(self)

    def check_alive(self) -> None:
        if not self.alive:
            raise Killed(f"{self.name} is dead")


def _failure_of(effect: Effect | None) -> Effect | None:
    """What an operation that fails leaves behind: only what should have become durable is lost."""
    match effect:
        case Synced(inode=inode) | Closed(inode=inode):
            return SyncFailed(inode=inode)
        case FolderSynced(folder=folder):
            return FolderSyncFailed(folder=folder)
        case _:
            return None
