"""A small real world on the simulated disk: the real journal, a tiny trainer, and a note of everything promised.

1. Nothing of the product is replaced: facade, driver, log, checkpoints and formats are the shipped ones. Only the
   clock, the ids, the watch and the trainer's tensors are ours.
2. What the world outside was told is marked in the disk's trace, by watching the facade: a promise is made where a
   call returned, and carries the exact bytes that were promised.
3. Everything is determined by the history and the names of the processes, so that equal states are found equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import blake2b
from typing import Literal, cast

import torch
from attrs import frozen

from milepost.engines.disks import Disk
from milepost.engines.simulated import Process, SimulatedDisk
from milepost.engines.slots import SteppedSlot
from milepost.engines.termination import Termination, TerminationWatch
from milepost.engines.trainers import Restored, RestoreSource, Snapshot
from milepost.engines.trainers.protocols import CursorResume
from milepost.journal import Config, Journal
from milepost.journal.saves import KeepFn
from milepost.transitions.emergency import EmergencyStage
from milepost.transitions.saving import Save
from milepost.transitions.values import FULL, Clocks, Component, Plan, SaveId, union

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
    """A checkpoint was acknowledged: published, durable, and latest names it or a later one."""

    attempt: str
    save: SaveId
    manifest: str
    values: Values


@frozen(kw_only=True)
class Made:
    """An artifact was acknowledged: published and durable beside the checkpoints, for ever (INV-16)."""

    attempt: str
    save: SaveId
    manifest: str


@frozen(kw_only=True)
class Evaluating:
    """The evaluation of a step began, with these values. What was due of the step, `due`, is published (INV-06)."""

    attempt: str
    epoch: int
    step: int
    due: Plan
    values: Values


@frozen(kw_only=True)
class Announced:
    """People were told that this checkpoint is validated and published."""

    attempt: str
    save: SaveId


@frozen(kw_only=True)
class Covered:
    """The order to stop came with the word that `plan` of everything up to this step is saved."""

    attempt: str
    epoch: int
    step: int
    plan: Plan


@frozen(kw_only=True)
class Ended:
    """`close` returned: the end of the epoch is durable."""

    attempt: str
    epoch: int


Promise = Opened | Offered | Saved | Made | Evaluating | Announced | Covered | Ended
Promises = tuple[Promise, ...]


def promises(disk: SimulatedDisk, length: int | None = None) -> Promises:
    """What was promised in the first `length` entries of the trace."""
    return cast(Promises, tuple(note[0] for note in disk.marks(length)))


# --- what a run is given ------------------------------------------------------------------------------------


class TinyTrainer:
    """Three small tensors and a counter. `life` is in what it saves: no two processes save the same bytes."""

    def __init__(self, life: int) -> None:
        self.weight = torch.zeros(3, dtype=torch.float64)
        self.momentum = torch.zeros(1, dtype=torch.float64)
        self.trained = 0
        self.life = life

    def train(self, step: int) -> None:
        """Depends on every step before it."""
        self.momentum.mul_(0.25).add_(step)
        self.weight.mul_(0.5).add_(torch.tensor([step, 1.0, -step], dtype=torch.float64)).sub_(self.momentum)
        self.trained += 1

    def values(self) -> Values:
        """Everything that a checkpoint of the present state has to bring back."""
        return (*self.weight.tolist(), *self.momentum.tolist(), float(self.trained))

    def capture(
        self,
        components: Plan,
        *,
        clocks: Clocks,
        cursor_resume: CursorResume = "auto",
        validation: Mapping[str, object] | None = None,
    ) -> Snapshot:
        state = [clocks.attempt_id, clocks.optimizer_step, clocks.skipped_total, clocks.skipped_consecutive]
        trees: dict[Component, tuple[str, dict[str, object]]] = {
            Component.MODEL: ("model", {"weight": self.weight}),
            Component.OPTIMIZER: ("optim", {"momentum": self.momentum}),
            Component.TRAINING_STATE: ("trainer", {"clocks": state, "trained": self.trained, "life": self.life}),
        }
        return Snapshot(components=components, trees=dict(trees[component] for component in components))

    def restore(
        self,
        source: RestoreSource,
        *,
        cursor_resume: CursorResume = "auto",
        validation: Mapping[str, object] | None = None,
    ) -> Restored:
        trainer = cast("dict[str, object]", source.load("trainer"))
        model = cast("dict[str, torch.Tensor]", source.load("model", into={"weight": self.weight}))
        optimizer = cast("dict[str, torch.Tensor]", source.load("optim", into={"momentum": self.momentum}))
        self.weight.copy_(model["weight"])
        self.momentum.copy_(optimizer["momentum"])
        self.trained = cast(int, trainer["trained"])
        attempt, applied, skipped, row = cast("list[int]", trainer["clocks"])
        clocks = Clocks(attempt_id=attempt, optimizer_step=applied, skipped_total=skipped, skipped_consecutive=row)
        return Restored(clocks=clocks, exact=("model", "optim", "trained"))


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
def config(
    *,
    save_async: bool = True,
    save_every: int = 0,
    resume: str = "auto",
    plan: Plan = FULL,
    validate_every: int = 0,
    validation: Plan = (),
    emergency: Literal["full", "run"] = "full",
    keep_optim: int = 0,
    keep_model: int = 0,
) -> Config:
    """`plan` is that of regular saves, `validation` that of validations (empty: they save nothing).

    Retention is off unless it is asked for: most histories are of something else.
    """
    validating: dict[str, object] = {"every_steps": validate_every, "at_end": False}
    if validation:
        validating |= {"save_checkpoint": True, "checkpoint_components": _names(validation)}
    return Config.load(
        {
            "run": {"output_root": ROOT},
            "rl": {
                "save_every": save_every,
                "save_async": save_async,
                "resume": resume,
                "checkpoint_components": _names(plan),
                "emergency_checkpoint_components": emergency,
                "keep_optim_last": keep_optim,
                "keep_model_last": keep_model,
                "validation": validating,
            },
        }
    )


def _names(plan: Plan) -> list[str]:
    return [component.value for component in plan]


# --- a run --------------------------------------------------------------------------------------------------


class BrokenEvaluation(Exception):
    """The evaluation of a test that asked for one that fails."""


class Run:
    """One process that trains with an open journal; each of its methods is one thing a trainer does.

    `meanwhile` happens inside each evaluation, with its step: it may raise, kill, or tell the run to stop.
    `evaluated` are the steps whose evaluation began, in order, each with the number of steps trained until then.
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        name: str,
        *,
        config: Config,
        keep_fn: KeepFn | None = None,
        view: View = as_it_is,
    ) -> None:
        self.disk = disk
        self.name = name
        self.process = disk.process(name)
        self.trainer = TinyTrainer(life=len(name))
        self.slot = SteppedSlot()
        self.watch = ToldWatch()
        self.meanwhile: Callable[[int], object] = _nothing
        self.evaluated: list[tuple[int, int]] = []
        self._offered: dict[SaveId, Values] = {}
        self._until = 0
        self._emergency: Plan = ()
        self.journal = Journal.open(
            config,
            trainer=self.trainer,
            keep_fn=keep_fn,
            disk=view(self.process),
            ambient=NamedAmbient(name),
            slot=self.slot,
            watch=cast(TerminationWatch, self.watch),
            environ={},
        )
        self.attempt = f"{HOME}/{self.journal.run_ts}"
        self.step = self.journal.resumption.step
        setattr(self.journal._progress, "published", self._announce)  # noqa: B010 - what people are told
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

    def train(self, count: int = 1, *, skip: bool = False, validate: bool = False, stop: bool = False) -> None:
        """Some steps; their boundaries may save and validate. With `stop` the run is told to in the last one."""
        self._until = self.step + count
        for step in self.journal.steps(until=self._until, validate=self._evaluate if validate else None):
            self._acknowledge()  # the boundary before
            if skip:
                self.journal.skip("not finite")
            else:
                self.trainer.train(step)
            self.step = step
            self._offer(step)
            if stop and step == self._until:
                self._tell(validate)
        self._acknowledge()

    def settle(self) -> None:
        """Evaluate what the resumed checkpoint waits for."""
        self.journal.settle_validation(self._evaluate)
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

    def terminate(self, *, validate: bool = False) -> None:
        """Be told to stop behind a step whose boundary is over; a validation may be due at it."""
        self._offer(self.step)
        self._tell(validate)
        verdict = self.journal.boundary(self.step, validate=self._evaluate if validate else None)
        assert verdict.stop, "a run that is told to stop stops"
        self._acknowledge()

    def _tell(self, validate: bool) -> None:
        """Tell the run to stop, and note what has to be covered then."""
        self.watch.told = Termination(reason="signal SIGTERM", detail="told")
        knobs = self.journal.config
        pending = validate and self._validates_at(self.step) and self.journal.state.validation.pending is None
        full = pending or knobs.emergency_checkpoint_components == "full"
        self._emergency = FULL if full else union(knobs.checkpoint_components, (Component.MODEL,))

    def close(self) -> None:
        """End the run."""
        epoch = self.epoch
        self.finish()
        self.journal.close()
        self._promise(Ended(attempt=self.attempt, epoch=epoch))

    def _evaluate(self, step: int) -> None:
        """What is given to the journal as `validate`."""
        self._acknowledge()
        values = self.trainer.values()
        self._promise(
            Evaluating(attempt=self.attempt, epoch=self.epoch, step=step, due=self._due(step), values=values)
        )
        self.evaluated.append((step, self.trainer.trained))
        self.meanwhile(step)
        self.process.check_alive()

    def _due(self, step: int) -> Plan:
        """What has to be published before a validation of this step begins: a save due on its own account, or all."""
        knobs = self.journal.config
        if step != self.step or not self._validates_at(step):
            return ()
        cadence = knobs.save_every > 0 and (step % knobs.save_every == 0 or step == self._until)
        regular = knobs.checkpoint_components if cadence else ()
        asked = knobs.validation.checkpoint_components if knobs.validation.save_checkpoint else ()
        joined = union(regular, asked)
        return joined if regular or joined == FULL else ()

    def _validates_at(self, step: int) -> bool:
        every = self.journal.config.validation.every_steps
        return every > 0 and step > 0 and step % every == 0

    def _offer(self, step: int) -> None:
        """Whatever is saved next holds the present values."""
        save = SaveId(step, self.epoch, self.journal.state.saving.counter + 1)
        values = self.trainer.values()
        if self._offered.get(save) != values:
            self._offered[save] = values
            self._promise(Offered(attempt=self.attempt, save=save, values=values))

    def _acknowledge(self) -> None:
        """Promise what is published while no lane is under way: whoever saved it has been told, or could be."""
        if self.slot.busy:
            return
        state = self.journal.state
        for published, newest in (
            (state.saving.sealed, state.saving.newest),
            (state.saving.artifacts, state.saving.newest_artifact),
        ):
            if newest is None or newest not in self._offered:
                continue
            values = self._offered.pop(newest)
            manifest = published[newest.step].manifest
            assert manifest is not None
            if published is state.saving.sealed:
                self._promise(Saved(attempt=self.attempt, save=newest, manifest=manifest.digest, values=values))
            else:
                self._promise(Made(attempt=self.attempt, save=newest, manifest=manifest.digest))
        if self._emergency and state.emergency.stage is EmergencyStage.COVERED:
            plan, self._emergency = self._emergency, ()
            self._promise(Covered(attempt=self.attempt, epoch=self.epoch, step=self.step, plan=plan))

    def _announce(self, save: Save) -> None:
        """What is given to the journal to tell people with."""
        self._promise(Announced(attempt=self.attempt, save=save.id))

    def _promise(self, promise: Promise) -> None:
        self.disk.mark(promise)


def _nothing(_step: int) -> None:
    """What happens in an evaluation that nothing happens in."""
