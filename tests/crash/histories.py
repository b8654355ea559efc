"""Histories to crash in, and the tools to make them go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from milepost.engines.checkpoints.local import PRUNED
from milepost.engines.disks import write_all
from milepost.engines.logs.segments import SegmentLog
from milepost.engines.perform import Engines
from milepost.engines.simulated import Killed, SimulatedDisk, Site
from milepost.journal import Config
from milepost.transitions.errors import MilepostError
from milepost.transitions.machine import Command, Effect
from milepost.transitions.saving import StorePayload
from milepost.transitions.sweeping import ClearDebris
from milepost.transitions.values import FULL, Component, Witness, parse_iteration
from tests.crash.published import Violation
from tests.crash.world import BrokenEvaluation, Run, config

SMALL_SEGMENT_BYTES = 2_000
WEIGHTS = (Component.MODEL,)
STATE = (Component.TRAINING_STATE,)
VALIDATES = config(save_async=False, validate_every=1, validation=FULL, keep_optim=1)
RELEASES = config(save_async=False, keep_optim=1)
REMOVES = config(save_async=False, keep_model=1)
UNITES = config(save_async=False, save_every=1, plan=WEIGHTS, validate_every=1, validation=STATE)


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


def a_validation(disk: SimulatedDisk) -> None:
    """A checkpoint that was announced before, then one that is published first, evaluated next, announced last."""
    run = Run(disk, "a", config=VALIDATES)
    run.train(2, validate=True)


def a_death_in_an_evaluation(disk: SimulatedDisk) -> None:
    """A writer that is killed inside the evaluation of its pending checkpoint."""
    run = Run(disk, "a", config=VALIDATES)
    run.meanwhile = lambda _step: run.process.kill()
    with suppress(Killed):
        run.train(validate=True)


def a_validation_that_dies(disk: SimulatedDisk) -> None:
    """The same; the next writer evaluates, and trains on."""
    a_death_in_an_evaluation(disk)
    after = Run(disk, "b", config=VALIDATES)
    after.train(validate=True)


def a_stop_before_a_validation(disk: SimulatedDisk) -> None:
    """Told to stop where a validation is due: everything is saved, and the next start evaluates it first."""
    run = Run(disk, "a", config=config(save_async=False, plan=WEIGHTS, validate_every=1, emergency="run"))
    run.train(validate=True, stop=True)
    run.close()
    after = Run(disk, "b", config=config(save_async=False, plan=WEIGHTS, validate_every=2))
    after.train(validate=True)


def artifacts(disk: SimulatedDisk) -> None:
    """Weights at each step, a full checkpoint at the end, as the run is told to stop."""
    run = Run(disk, "a", config=config(save_async=False, save_every=1, plan=WEIGHTS))
    run.train(2)
    run.terminate()
    run.close()


def a_union(disk: SimulatedDisk) -> None:
    """Weights are due, and a validation asks for the training state: one artifact of both, before the evaluation."""
    run = Run(disk, "a", config=UNITES)
    run.meanwhile = _fails
    with suppress(BrokenEvaluation):
        run.train(validate=True)
    run.meanwhile = _passes
    run.train(validate=True)


def releases(disk: SimulatedDisk, saves: int = 2) -> None:
    """Saves, of which the last keeps its optimizer."""
    _saves(Run(disk, "a", config=RELEASES), saves)


def removes(disk: SimulatedDisk, saves: int = 2) -> None:
    """Saves, of which the last is kept."""
    _saves(Run(disk, "a", config=REMOVES), saves)


def _saves(run: Run, count: int) -> None:
    for _ in range(count):
        run.train()
        run.save()


def killed_inside_a_prune(disk: SimulatedDisk, knobs: Config, verb: str) -> None:
    """Killed before its last operation of this verb on the checkpoints."""
    whole = SimulatedDisk()
    _saves(Run(whole, "a", config=knobs), 2)
    run = Run(disk, "a", config=knobs)
    mine = [
        i for i, one in enumerate(whole.trace) if one.verb == verb and ("/iter_" in one.path or PRUNED in one.path)
    ]
    run.process.kill_at = mine[-1]
    with suppress(Killed):
        _saves(run, 2)


def publishing(disk: SimulatedDisk, number: int) -> int:
    """Where in the trace the operation is that publishes, counting from 1; by whichever verb."""
    verbs = ("publish", "rename")
    return [i for i, one in enumerate(disk.trace) if one.verb in verbs and _is_published(one.path)][number - 1]


def _is_published(path: str) -> bool:
    return parse_iteration(path.rpartition("/")[2]) is not None


def _fails(_step: int) -> None:
    raise BrokenEvaluation


def _passes(_step: int) -> None: ...


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
