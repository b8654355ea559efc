"""Several writers of one run, of which one moves at a time and any can be paused before any operation.

Locks are off (`without_locks`): on a network file system flock may not hold, and what keeps two writers apart then is
the claim of a segment, the look for a successor, and taking away the names that an overtaken writer was to rename.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from attrs import frozen

from milepost.engines.disks import Disk, Lock
from milepost.engines.simulated import Killed, Process, SimulatedDisk
from milepost.journal import Config
from milepost.transitions.errors import Fenced, NotResumable, Unavailable
from tests.crash import marks
from tests.crash.promised import promises
from tests.crash.promises import keeps, look
from tests.crash.published import Violation
from tests.crash.puppets import Cast
from tests.crash.traces import nothing_goes_back
from tests.crash.world import Run, View, config

Program = Callable[[Run], object]

PATIENCE_S = 60.0

_PLAIN = config(save_async=False)


class _NoLock:
    def release(self) -> None: ...


class _WithoutLocks:
    """The disk of a process, where a lock excludes nobody."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def lock(self, path: str) -> Lock:
        return _NoLock()

    def __getattr__(self, verb: str) -> object:
        return getattr(self._process, verb)


def without_locks(process: Process) -> Disk:
    return cast(Disk, _WithoutLocks(process))


@frozen(kw_only=True)
class Point:
    """The operation that a writer is about to do: its number among the writer's own, its verb and path."""

    number: int
    verb: str
    path: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def shared(self) -> bool:
        """Whether another writer of the run may care: the log, the staging, what is published, the pointer."""
        payload = self.name.endswith(".pt")
        shared = "/checkpoints" in self.path or "/checkpoint_artifacts" in self.path
        return not payload and (shared or self.path.endswith((".jsonl", "/journal")))

    @property
    def acts(self) -> bool:
        """Whether it is shared, and more than a look whether something is there."""
        return self.shared and self.verb != "stat"


When = Callable[[Point], bool]


class Writer:
    """A process with a program, in a thread that moves only while `go` is being called."""

    def __init__(
        self, stage: Stage, name: str, program: Program, *, knobs: Config, view: View, cast: Cast | None
    ) -> None:
        self.name = name
        self._knobs = knobs
        self.failure: BaseException | None = None
        self.ended = False
        self.at: Point | None = None
        self._stage = stage
        self._program = program
        self._view = view
        self._cast = cast
        self._done = 0
        self._when: When | None = None
        self._may_move, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._live, name=f"writer-{name}", daemon=True)
        self._thread.start()

    def go(self, when: When | None = None) -> bool:
        """Move until the next operation for which `when` holds (True) or to the end (False)."""
        if self.ended:
            return False
        self._when = when
        self._may_move.release()
        assert self._has_stopped.acquire(timeout=PATIENCE_S), f"writer {self.name} neither pauses nor ends"
        return not self.ended

    def leave(self) -> None:
        """Move to the end."""
        self.go()
        self._thread.join()

    def before(self, verb: str, path: str) -> None:
        """Called by the writer's own thread in front of each of its operations."""
        point = Point(number=self._done, verb=verb, path=path)
        self._done += 1
        if self._when is not None and self._when(point):
            self.at = point
            self._has_stopped.release()
            self._may_move.acquire()
            self.at = None

    def _live(self) -> None:
        self._may_move.acquire()
        try:
            run = Run(self._stage.disk, self.name, config=self._knobs, view=self._view, cast=self._cast)
            self._program(run)
        except BaseException as failure:  # noqa: BLE001 - whoever directs the stage judges it
            self.failure = failure
        finally:
            self.ended = True
            self._has_stopped.release()


class Stage:
    """The disk and its writers; the newest is the one that started last."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.writers: list[Writer] = []

    def enter(
        self,
        name: str,
        program: Program,
        *,
        knobs: Config = _PLAIN,
        view: View = without_locks,
        cast: Cast | None = None,
    ) -> Writer:
        """A writer that has not moved yet; all members of its cast move and pause with it."""
        writer = Writer(self, name, program, knobs=knobs, view=view, cast=cast)
        self.writers.append(writer)
        return writer

    def before(self, process: str, verb: str, path: str) -> None:
        for writer in self.writers:
            if writer.name == process.partition(".")[0]:
                writer.before(verb, path)


@contextmanager
def stage(disk: SimulatedDisk | None = None) -> Iterator[Stage]:
    """A stage whose writers are all gone afterwards."""
    setting = Stage(disk if disk is not None else SimulatedDisk())
    setting.disk.hardware.before = setting.before
    try:
        yield setting
    finally:
        setting.disk.hardware.before = _stop
        for writer in setting.writers:
            writer.leave()
        setting.disk.hardware.before = None


def _stop(process: str, verb: str, path: str) -> None:
    raise Killed(f"{process} is stopped: the play is over")


def judge(setting: Stage, *, newest: Writer) -> None:
    """What holds when all have moved: nobody lied, the newest is well, and who was overtaken knows it."""
    for writer in setting.writers:
        failure = writer.failure
        if failure is None or isinstance(failure, Killed):
            continue
        if writer is newest and isinstance(failure, NotResumable):
            continue  # kept out by an artifact, or a recovery from here would say otherwise
        if writer is newest:
            raise Violation(f"INV-10: the newest writer failed: {failure!r}") from failure
        if not isinstance(failure, Fenced | Unavailable):
            raise Violation(f"INV-10: an overtaken writer ended with {failure!r}") from failure
        fenced = isinstance(failure, Fenced)
        marks.hit("an overtaken writer fenced" if fenced else "an overtaken writer without its staging")
    disk = setting.disk
    nothing_goes_back(disk)
    keeps(look(disk), promises(disk))


def idles(run: Run) -> None:
    """Take the run over, and no more."""


def saves_once(run: Run) -> None:
    """One step, one save."""
    run.train()
    run.save()


def saves_twice(run: Run) -> None:
    """Two steps, a save of each."""
    saves_once(run)
    saves_once(run)


def validates(run: Run) -> None:
    """What is pending, then one step with its validation."""
    run.train(validate=True)


def settles(run: Run) -> None:
    """What is pending, and no more."""
    run.settle()
