"""Histories to crash in, and the tools to make them go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from milepost.engines.disks import write_all
from milepost.engines.logs.segments import SegmentLog
from milepost.engines.perform import Engines
from milepost.engines.simulated import SimulatedDisk, Site
from milepost.transitions.errors import MilepostError
from milepost.transitions.machine import Command, Effect
from milepost.transitions.saving import StorePayload
from milepost.transitions.sweeping import ClearDebris
from milepost.transitions.values import Witness
from tests.crash.promises import Violation
from tests.crash.world import Run, config

SMALL_SEGMENT_BYTES = 2_000


@contextmanager
def small_segments() -> Iterator[None]:
    """Segments so small that a run of a few steps rotates."""
    defaults = SegmentLog.__init__.__kwdefaults__ or {}
    before = defaults["segment_bytes"]
    defaults["segment_bytes"] = SMALL_SEGMENT_BYTES
    try:
        yield
    finally:
        defaults["segment_bytes"] = before


def one_save(disk: SimulatedDisk) -> None:
    """A run that saves once, in the background, and goes on."""
    run = Run(disk, "a", config=config())
    run.train()
    run.save()
    run.finish()
    run.train()


def a_day(disk: SimulatedDisk) -> None:
    """Everything that a run does that nothing goes wrong for: it is promised what it asked for."""
    run = Run(disk, "a", config=config())
    run.train(2)
    run.save()
    run.tick()
    run.train(skip=True)
    run.tick()
    run.finish()
    run.save()
    run.leave_inside_a_step()
    run.close()
    again = Run(disk, "b", config=config(save_async=False, save_every=2))
    again.train(2)
    again.terminate()
    again.close()


def killed_inside_a_save(disk: SimulatedDisk) -> None:
    """A run that was killed inside its second save."""
    run = Run(disk, "a", config=config())
    run.train()
    run.save()
    run.finish()
    run.train()
    run.save()
    run.tick()
    run.process.kill()


def a_killed_save(disk: SimulatedDisk) -> None:
    """The same, and the run that follows it."""
    killed_inside_a_save(disk)
    after = Run(disk, "b", config=config(save_async=False))
    after.train()
    after.save()


# --- tools ------------------------------------------------------------------------------------------------------


def but_one(_site: Site, size: int) -> int:
    """Every write leaves a byte for the next."""
    return max(1, size - 1)


@contextmanager
def refused(expected: type[MilepostError], number: str) -> Iterator[None]:
    """What is done inside has to be refused so."""
    try:
        yield
    except expected:
        return
    raise Violation(f"{number}: {expected.__name__} was expected, and nothing was refused")


@contextmanager
def performing_twice() -> Iterator[None]:
    """Every effect is performed twice, but for the one whose snapshot is gone after the first time."""
    once = Engines.perform

    def twice(self: Engines, effect: Effect, *, witness: Witness) -> Command:
        first = once(self, effect, witness=witness)
        if isinstance(effect, StorePayload):
            return first
        again = once(self, effect, witness=witness)
        return first if isinstance(effect, ClearDebris) else again

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engines, "perform", twice)
        yield


def flipped(lines: list[bytes], at: int) -> list[bytes]:
    """With one bit of one line changed."""
    line = lines[at]
    changed = list(lines)
    changed[at] = line[:40] + bytes([line[40] ^ 1]) + line[41:]
    return changed


def write(disk: SimulatedDisk, path: str, data: bytes) -> None:
    """A durable file, as somebody else puts it there."""
    with disk.create(path) as sink:
        write_all(sink, data)
        sink.sync()
    disk.sync_dir(path.rpartition("/")[0])
