"""Journal: what a trainer embeds.

    with Journal.open(config, trainer=trainer) as journal:
        for step in journal.steps(until=1000):
            train_one_step()

Everything here is a command to the driver, a capture of the trainer, or a question to the state; the rules are in
`milepost.transitions`. A failure of an asynchronous save surfaces at the next call, once.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

from milepost.engines.ambient import Ambient, SystemAmbient
from milepost.engines.attempts import Attempt, make_root, resolve
from milepost.engines.disks import Disk
from milepost.engines.disks.local import LocalDisk
from milepost.engines.ranks import Alone, World
from milepost.engines.slots import Slot, ThreadSlot
from milepost.engines.termination import TerminationWatch
from milepost.engines.trainers import Trainer
from milepost.journal.boundaries import Boundaries, Validate, Verdict
from milepost.journal.config import Config
from milepost.journal.log.entries import Entry
from milepost.journal.log.replay import replay
from milepost.journal.opening import Opened, open_attempt
from milepost.journal.progress import Progress
from milepost.journal.restoring import Restoring, Resumption
from milepost.journal.saves import KeepFn, Saves
from milepost.transitions.emergency import EmergencyStage
from milepost.transitions.errors import MilepostError, Misconfigured
from milepost.transitions.machine import State
from milepost.transitions.run import EndRun
from milepost.transitions.updates import AbortUpdate, ApplyUpdate, OpenUpdate, ReportStep, SkipUpdate, UpdateStage
from milepost.transitions.values import FULL, Metric, Outcome, Reason

log = logging.getLogger("milepost")


class Journal:
    """One run, with this process as its writer. Made by `open`; not shared between threads."""

    def __init__(
        self,
        *,
        config: Config,
        attempt: Attempt,
        disk: Disk,
        opened: Opened,
        trainer: Trainer,
        resumption: Resumption,
        slot: Slot,
        watch: TerminationWatch,
        ambient: Ambient,
        keep_fn: KeepFn | None,
    ) -> None:
        self.config = config
        self.resumption = resumption
        self.run_ts = attempt.run_ts
        self.run_dir = disk.where(attempt.path)
        self._opened = opened
        self._driver = opened.driver
        self._watch = watch
        self._progress = Progress(ambient=ambient)
        self._saves = Saves(
            config=config, opened=opened, trainer=trainer, slot=slot, progress=self._progress, keep_fn=keep_fn
        )
        self._boundaries = Boundaries(
            config=config, driver=opened.driver, saves=self._saves, watch=watch, progress=self._progress
        )
        self._step = resumption.step
        self._closed = False

    @classmethod
    def open(
        cls,
        config: Config,
        *,
        trainer: Trainer,
        keep_fn: KeepFn | None = None,
        disk: Disk | None = None,
        ambient: Ambient | None = None,
        world: World | None = None,
        slot: Slot | None = None,
        watch: TerminationWatch | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Find or mint the run attempt, become its one writer, recover, and restore `trainer`.

        `keep_fn` chooses the checkpoints that keep their optimizer state, in the place of `keep_optim_last`: it is
        given the directories that are there, oldest first. A plan that makes artifacts is a `UserWarning`.

        The keywords behind it are for tests and unusual homes: by default a local disk below
        `config.run.output_root`, the system's clock, one process and a writer thread. Raises `Busy`, `NotResumable`,
        `Corrupt`, `Unavailable`, and `Misconfigured` under a launcher of several processes.
        """
        for text in config.warnings():
            warnings.warn(text, UserWarning, stacklevel=2)
        world = world or Alone()
        ambient = ambient or SystemAmbient()
        _require_one_process(environ)
        if disk is None:
            disk = LocalDisk(make_root(config.run.output_root))
        home = f"{config.run.project}/{config.run.group}/{config.run.name}"
        attempt = resolve(disk, home, resume=config.resume, run_ts=config.run_ts, ambient=ambient)
        opened = open_attempt(config, attempt, disk=disk, ambient=ambient, world=world)
        try:
            resumption = Restoring(
                config=config,
                disk=disk,
                attempt=attempt,
                checkpoints=opened.checkpoints,
                trainer=trainer,
                world_size=world.size,
            ).resume(opened.driver)
            watch = watch or TerminationWatch(
                grace_s=config.emergency_grace_s, environ=environ, now=lambda: ambient.now().timestamp()
            )
        except BaseException:
            opened.close()
            raise
        _announce(resumption, disk.where(attempt.path), watch)
        journal = cls(
            config=config,
            attempt=attempt,
            disk=disk,
            opened=opened,
            trainer=trainer,
            resumption=resumption,
            slot=slot or ThreadSlot(),
            watch=watch,
            ambient=ambient,
            keep_fn=keep_fn,
        )
        if opened.completed is not None:
            journal._progress.published(journal.state.saving.sealed[opened.completed.step])
        try:
            journal._saves.warm()
            if resumption.promotes:
                evaluated = resumption.pending == "publication"
                journal._boundaries.promote(resumption.step, evaluated=evaluated)
        except BaseException as failure:
            journal._close_after(failure)
            raise
        return journal

    # --- the loop ---------------------------------------------------------------------------------------

    def steps(self, *, until: int, validate: Validate | None = None) -> Iterator[int]:
        """The numbers of the steps to run, up to and including `until`; the boundary of each runs behind its body.

        One step is one optimizer attempt: applied when the body ends, or skipped where it called `skip`. Ends early
        when the run is told to stop. Leaving a body with `break` takes its step back: nothing is saved of it.

        With `validate`, the evaluation that the resumed checkpoint still waits for comes first, then the pass before
        training where that is configured; a loop without a step to run makes its final validation all the same.
        """
        if self._boundaries.told_to_stop(self._step):
            return  # before the first step: what was resumed from covers it
        self.settle_validation(validate)
        if self._step >= until:
            self._boundaries.without_a_step(self._step, validate)
            return
        if validate is not None and self.config.validation.before_training and self.resumption.kind == "fresh":
            validate(self._step)
        while self._step < until:
            step = self._step + 1
            self._driver.submit(OpenUpdate(step=step))
            yield step
            if self.state.updates.stage is UpdateStage.ACCUMULATING:
                self._driver.submit(ApplyUpdate())
            if self.boundary(step, validate=validate, final=step == until).stop:
                return

    def boundary(self, step: int, *, validate: Validate | None = None, final: bool = False) -> Verdict:
        """What is due after `step`: an emergency save and the order to stop, or saves and validation in their order.

        `final` says that no step follows: then a validation is due by `validation.at_end`, and the normal-final save
        is made with it. The order of saves and evaluation is that of `milepost.transitions.planning`.
        """
        self._step = step
        return self._boundaries.at(step, validate=validate, final=final)

    def settle_validation(self, validate: Validate | None) -> None:
        """Evaluate what the resumed checkpoint waits for, before anything is trained; `steps` does so by itself.

        `Refused` without `validate` where there is something to evaluate.
        """
        self._boundaries.settle(validate)

    def skip(self, why: str) -> None:
        """Say that this step's update was not finite and was thrown away: the optimizer did not step."""
        self._driver.submit(SkipUpdate(why=why))

    def report(self, **metrics: float) -> None:
        """Note numbers of the step that is being run; they show in the progress line and in the timeline."""
        step = self.state.updates.step
        values = tuple(Metric(name=name, value=repr(float(value))) for name, value in metrics.items())
        self._driver.submit(ReportStep(step=step, metrics=values))
        self._progress.step(step, values)

    def should_stop(self) -> bool:
        """Whether the run was told to stop. `boundary` is what saves and records it."""
        return self.state.emergency.stage is not EmergencyStage.CALM or self._watch.observed() is not None

    # --- saving -----------------------------------------------------------------------------------------

    def save(self, step: int, *, reason: Reason | str = Reason.REQUESTED) -> None:
        """Save `checkpoint_components` after `step`, once: what is published of the step already is left as it is.

        Joins the save before it. With `save_async` a cadence or a requested save returns as soon as its snapshot is
        taken; every other one returns when it is published and durable. An emergency saves everything. `Refused`
        inside a step, behind the newest published step or beside an artifact of other components; `Unavailable` when
        it could not be written: what was published before is untouched.
        """
        reason = Reason(reason)
        self._saves.finalize()
        plan = FULL if reason is Reason.EMERGENCY else self.config.checkpoint_components
        if self.state.saving.holds(step, plan) is None:
            self._saves.save(step, plan=plan, reason=reason)

    def finalize(self) -> None:
        """Join the save in flight; raise what it ran into."""
        self._saves.finalize()

    def protect(self, *steps: int) -> None:
        """Keep the checkpoints of these steps from retention while this journal is open: somebody reads them."""
        self._saves.protect(steps)

    # --- looking ----------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The folded, frozen state after the newest record."""
        return self._driver.state

    @property
    def execution_id(self) -> str:
        """The id of this start, fresh each time."""
        opened = self.state.run.opened
        assert opened is not None
        return opened.execution_id

    def history(self) -> Iterator[tuple[Entry, State]]:
        """Every entry so far with the state after it, folded again from nothing."""
        return replay(self._opened.log)

    # --- leaving ----------------------------------------------------------------------------------------

    def close(self, *, outcome: Outcome = Outcome.COMPLETED, detail: str = "") -> None:
        """Join the writer, record the end, make it durable, give the run back. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        try:
            self.finalize()
            self._driver.submit(AbortUpdate(why="the run was closed inside the step"))
            self._driver.submit(EndRun(outcome=outcome, step=self._step, detail=detail))
            self._driver.barrier()
            self._opened.keep_fold(always=True)
        finally:
            self._watch.close()
            self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is not None:
            self._close_after(value)
            return
        left_early = self.state.updates.stage is UpdateStage.ACCUMULATING
        try:
            if left_early:
                log.warning("the loop was left inside step %d: it is not saved", self.state.updates.step)
            elif self.config.save_every > 0 and self._step > 0 and not self._closed:
                self._save_finally()
        except BaseException as failure:
            self._close_after(failure)
            raise
        stopped = left_early or self.state.emergency.stage is not EmergencyStage.CALM
        detail = "left inside a step" if left_early else self.state.emergency.reason
        self.close(outcome=Outcome.STOPPED if stopped else Outcome.COMPLETED, detail=detail)

    def _save_finally(self) -> None:
        """The normal-final save, made even where the save before it failed; that failure is raised behind it."""
        try:
            self.finalize()
        finally:
            self.save(self._step, reason=Reason.FINAL)

    def _close_after(self, failure: BaseException) -> None:
        """An exception left the body: what is in flight is finished, nothing new is saved, the exception stays."""
        try:
            self.close(outcome=Outcome.FAILED, detail=f"{type(failure).__name__}: {failure}"[:500])
        except MilepostError as second:  # the first failure is the one to report
            log.warning("closing the journal failed as well: %s", second)


def _require_one_process(environ: Mapping[str, str]) -> None:
    size = environ.get("WORLD_SIZE", "1")
    if size != "1":
        raise Misconfigured(
            (f"WORLD_SIZE={size}: this version trains in one process; start it without a launcher of several",)
        )


def _announce(resumption: Resumption, run_dir: str, watch: TerminationWatch) -> None:
    if resumption.kind == "fresh":
        log.info("a fresh run in %s", run_dir)
    else:
        log.info("resumed from %s (iter %d)", resumption.source, resumption.step)
    for note in (*resumption.notes, *watch.limits):
        log.info("%s", note)
