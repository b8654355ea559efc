"""A small real world on the simulated disk: the real journal, a tiny trainer, and a note of everything promised.

1. Nothing of the product is replaced: facade, driver, log, checkpoints and formats are the shipped ones. Only the
   clock, the ids, the watch and the trainer's tensors are ours.
2. What the world outside was told is marked in the disk's trace, by watching the facade: a promise is made where a
   call returned, and carries the exact bytes that were promised.
3. Everything is determined by the history and the names of the processes, so that equal states are found equal.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from hashlib import blake2b
from typing import cast

import torch
from attrs import frozen

from milepost.engines.disks import Disk
from milepost.engines.simulated import Process, SimulatedDisk
from milepost.engines.slots import SteppedSlot
from milepost.engines.termination import Termination, TerminationWatch
from milepost.engines.trainers import Restored, RestoreSource, Snapshot
from milepost.engines.trainers.protocols import CursorResume
from milepost.journal import Config, Journal
from milepost.transitions.values import Clocks, Plan, SaveId

ROOT = "/simulated"
HOME = "milepost/default/run"

Values = tuple[float, ...]
View = Callable[[Process], Disk]
"""How a process sees the disk."""


def as_it_is(process: Process) -> Disk:
    """The plain view."""
    return process


# --- promises -----------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Opened:
    """`Journal.open` returned: this epoch and what it continues from are durable."""

    attempt: str
    epoch: int
    execution: str
    step: int


@frozen(kw_only=True)
class Offered:
    """A save was begun with these values. Nothing is promised; whatever becomes of it must hold them."""

    attempt: str
    save: SaveId
    values: Values


@frozen(kw_only=True)
class Saved:
    """A save was acknowledged: published, durable, and latest names it or a later one."""

    attempt: str
    save: SaveId
    manifest: str
    values: Values


@frozen(kw_only=True)
class Covered:
    """The order to stop came with the word that everything up to this step is saved."""

    attempt: str
    epoch: int
    step: int


@frozen(kw_only=True)
class Ended:
    """`close` returned: the end of the epoch is durable."""

    attempt: str
    epoch: int


Promise = Opened | Offered | Saved | Covered | Ended
Promises = tuple[Promise, ...]


def promises(disk: SimulatedDisk, length: int | None = None) -> Promises:
    """What was promised in the first `length` entries of the trace."""
    return cast(Promises, tuple(note[0] for note in disk.marks(length)))


# --- what a run is given ------------------------------------------------------------------------------------


class TinyTrainer:
    """Two small tensors and a counter. `life` is in what it saves: no two processes save the same bytes."""

    def __init__(self, life: int) -> None:
        self.weight = torch.zeros(3, dtype=torch.float64)
        self.trained = 0
        self.life = life

    def train(self, step: int) -> None:
        """Depends on every step before it."""
        self.weight.mul_(0.5).add_(torch.tensor([step, 1.0, -step], dtype=torch.float64))
        self.trained += 1

    def values(self) -> Values:
        """Everything that a checkpoint of the present state has to bring back."""
        return (*self.weight.tolist(), float(self.trained))

    def capture(self, components: Plan, *, clocks: Clocks, cursor_resume: CursorResume = "auto") -> Snapshot:
        state = [clocks.attempt_id, clocks.optimizer_step, clocks.skipped_total, clocks.skipped_consecutive]
        trees: dict[str, dict[str, object]] = {
            "model": {"weight": self.weight},
            "trainer": {"clocks": state, "trained": self.trained, "life": self.life},
        }
        return Snapshot(components=components, trees=trees)

    def restore(self, source: RestoreSource, *, cursor_resume: CursorResume = "auto") -> Restored:
        trainer = cast("dict[str, object]", source.load("trainer"))
        model = cast("dict[str, torch.Tensor]", source.load("model", into={"weight": self.weight}))
        self.weight.copy_(model["weight"])
        self.trained = cast(int, trainer["trained"])
        attempt, applied, skipped, row = cast("list[int]", trainer["clocks"])
        clocks = Clocks(attempt_id=attempt, optimizer_step=applied, skipped_total=skipped, skipped_consecutive=row)
        return Restored(clocks=clocks, exact=("model", "trained"))


class NamedAmbient:
    """A clock that stands still and ids that follow from the process's name."""

    def __init__(self, name: str) -> None:
        self._digest = blake2b(name.encode(), digest_size=16).hexdigest()

    def now(self) -> datetime:
        return datetime(2026, 11, 29, 16, 9, 4, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return 0.0

    def nonce(self) -> str:
        return self._digest

    def execution_id(self) -> str:
        return self._digest[:8]

    def host(self) -> str:
        return "host"

    def pid(self) -> int:
        return 1


class ToldWatch:
    """Says what the test told it."""

    limits: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.told: Termination | None = None

    def observed(self) -> Termination | None:
        return self.told

    def close(self) -> None: ...


@cache
def config(*, save_async: bool = True, save_every: int = 0, resume: str = "auto") -> Config:
    return Config.load(
        {
            "run": {"output_root": ROOT},
            "rl": {"save_every": save_every, "save_async": save_async, "resume": resume},
        }
    )


# --- a run --------------------------------------------------------------------------------------------------


class Run:
    """One process that trains with an open journal; each of its methods is one thing a trainer does."""

    def __init__(self, disk: SimulatedDisk, name: str, *, config: Config, view: View = as_it_is) -> None:
        self.disk = disk
        self.name = name
        self.process = disk.process(name)
        self.trainer = TinyTrainer(life=len(name))
        self.slot = SteppedSlot()
        self.watch = ToldWatch()
        self._offered: dict[SaveId, Values] = {}
        self.journal = Journal.open(
            config,
            trainer=self.trainer,
            disk=view(self.process),
            ambient=NamedAmbient(name),
            slot=self.slot,
            watch=cast(TerminationWatch, self.watch),
            environ={},
        )
        self.attempt = f"{HOME}/{self.journal.run_ts}"
        self.step = self.journal.resumption.step
        self._promise(
            Opened(
                attempt=self.attempt,
                epoch=self.epoch,
                execution=self.journal.execution_id,
                step=self.step,
            )
        )

    @property
    def epoch(self) -> int:
        return self.journal.state.run.epoch

    def train(self, count: int = 1, *, skip: bool = False) -> None:
        """Some steps; their boundaries may save and may tell to stop."""
        for step in self.journal.steps(until=self.step + count):
            if skip:
                self.journal.skip("not finite")
            else:
                self.trainer.train(step)
            self.step = step
            if self._saves_at(step):
                self._offer(step)
        self._acknowledge()

    def leave_inside_a_step(self) -> None:
        """Take the next step up and break out of it."""
        steps = self.journal.steps(until=self.step + 1)
        next(steps)

    def save(self, step: int | None = None) -> None:
        """Ask for a save: acknowledged here where the slot is free again, else when its lane is done."""
        step = self.step if step is None else step
        self.finish()
        self._offer(step)
        self.journal.save(step)
        self._acknowledge()

    def tick(self) -> None:
        """One more effect of the save that is under way."""
        if not self.slot.step():
            self._acknowledge()

    def finish(self) -> None:
        """Wait for the save that is under way."""
        self.journal.finalize()
        self._acknowledge()

    def terminate(self) -> None:
        """Be told to stop, and stop at the next boundary."""
        self.watch.told = Termination(reason="signal SIGTERM", detail="told")
        step = self.step
        self._offer(step)
        verdict = self.journal.boundary(step)
        assert verdict.stop, "a run that is told to stop stops"
        self._acknowledge()
        self._promise(Covered(attempt=self.attempt, epoch=self.epoch, step=step))

    def close(self) -> None:
        """End the run."""
        epoch = self.epoch
        self.finish()
        self.journal.close()
        self._promise(Ended(attempt=self.attempt, epoch=epoch))

    def _saves_at(self, step: int) -> bool:
        every = self.journal.config.save_every
        return self.watch.told is not None or (every > 0 and step % every == 0)

    def _offer(self, step: int) -> None:
        """Whatever is saved next holds the present values."""
        save = SaveId(step, self.epoch, self.journal.state.saving.counter + 1)
        values = self.trainer.values()
        if self._offered.get(save) != values:
            self._offered[save] = values
            self._promise(Offered(attempt=self.attempt, save=save, values=values))

    def _acknowledge(self) -> None:
        """Promise what is sealed while no lane is under way: whoever saved it has been told, or could be."""
        newest = self.journal.state.saving.newest
        if self.slot.busy or newest is None or newest not in self._offered:
            return
        values = self._offered.pop(newest)
        manifest = self.journal.state.saving.sealed[newest.step].manifest
        assert manifest is not None
        self._promise(Saved(attempt=self.attempt, save=newest, manifest=manifest.digest, values=values))

    def _promise(self, promise: Promise) -> None:
        self.disk.mark(promise)
