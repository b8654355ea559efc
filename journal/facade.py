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
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Self

from attrs import frozen

from milepost.engines.ambient import Ambient, SystemAmbient
from milepost.engines.attempts import Attempt, make_root, resolve
from milepost.engines.disks import Disk
from milepost.engines.disks.local import LocalDisk
from milepost.engines.formats import Proven, Stager, stream
from milepost.engines.perform import Held
from milepost.engines.ranks import Alone, World
from milepost.engines.slots import Slot, ThreadSlot
from milepost.engines.termination import TerminationWatch
from milepost.engines.trainers import Snapshot, Trainer
from milepost.journal.config import Config
from milepost.journal.log.entries import Entry
from milepost.journal.log.replay import replay
from milepost.journal.opening import Opened, open_attempt
from milepost.journal.progress import Progress
from milepost.journal.restoring import Restoring, Resumption
from milepost.transitions.emergency import CoverEmergency, EmergencyStage, ObserveTermination
from milepost.transitions.errors import MilepostError, Misconfigured, Unavailable
from milepost.transitions.machine import State
from milepost.transitions.run import EndRun
from milepost.transitions.saving import OpenSave, SaveOpened
from milepost.transitions.updates import AbortUpdate, ApplyUpdate, OpenUpdate, ReportStep, SkipUpdate, UpdateStage
from milepost.transitions.values import FULL, Metric, Mode, Outcome, Reason, SaveId

log = logging.getLogger("milepost")

Validate = Callable[[int], object]
"""Evaluates the model after the step it is given. An exception ends the run; a save due beside it survives."""


@frozen(kw_only=True)
class Verdict:
    """What a boundary did. `stop` says that the run has to end, `reason` why."""

    step: int
    saved: bool
    validated: bool
    stop: bool
    reason: str


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
    ) -> None:
        self.config = config
        self.resumption = resumption
        self.run_ts = attempt.run_ts
        self.run_dir = disk.where(attempt.path)
        self._opened = opened
        self._driver = opened.driver
        self._trainer = trainer
        self._slot = slot
        self._watch = watch
        self._stager = Stager()
        self._progress = Progress(ambient=ambient)
        self._step = resumption.step
        self._stepped = False
        self._closed = False

    @classmethod
    def open(
        cls,
        config: Config,
        *,
        trainer: Trainer,
        disk: Disk | None = None,
        ambient: Ambient | None = None,
        world: World | None = None,
        slot: Slot | None = None,
        watch: TerminationWatch | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Find or mint the run attempt, become its one writer, recover, and restore `trainer`.

        The keywords after `trainer` are for tests and unusual homes: by default a local disk below
        `config.run.output_root`, the system's clock, one process and a writer thread. Raises `Busy`, `NotResumable`,
        `Corrupt`, `Unavailable`, and `Misconfigured` under a launcher of several processes.
        """
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
        )
        try:
            journal._warm()
        except BaseException:
            journal.close(outcome=Outcome.FAILED, detail="the state cannot be captured")
            raise
        return journal

    # --- the loop ---------------------------------------------------------------------------------------

    def steps(self, *, until: int, validate: Validate | None = None) -> Iterator[int]:
        """The numbers of the steps to run, up to and including `until`; the boundary of each runs behind its body.

        One step is one optimizer attempt: applied when the body ends, or skipped where it called `skip`. Ends early
        when the run is told to stop. Leaving a body with `break` takes its step back: nothing is saved of it.
        """
        if self._told_to_stop(self._step):
            return  # before the first step: what was resumed from covers it
        while self._step < until:
            step = self._step + 1
            self._driver.submit(OpenUpdate(step=step))
            yield step
            if self.state.updates.stage is UpdateStage.ACCUMULATING:
                self._driver.submit(ApplyUpdate())
            if self.boundary(step, validate=validate).stop:
                return

    def boundary(self, step: int, *, validate: Validate | None = None) -> Verdict:
        """What is due after `step`: an emergency save and the order to stop, the cadence save, validation."""
        self._step = step
        if self._told_to_stop(step):
            return self._stop(step)
        self._surface()
        if not self._stepped:  # the first step is what gives most optimizers their state
            self._stepped = True
            self._warm()
        saved = self.config.save_every > 0 and step % self.config.save_every == 0
        if saved:
            self.save(step, reason=Reason.CADENCE)
        every = self.config.validation.every_steps
        validated = validate is not None and every > 0 and step % every == 0
        if validate is not None and validated:
            validate(step)
        return Verdict(step=step, saved=saved, validated=validated, stop=False, reason="")

    def _told_to_stop(self, step: int) -> bool:
        if (seen := self._watch.observed()) is not None:
            self._driver.submit(ObserveTermination(step=step, reason=seen.reason, detail=seen.detail))
        return self.state.emergency.stage is not EmergencyStage.CALM

    def _stop(self, step: int) -> Verdict:
        """The emergency: one full save of the step, however an earlier save went, then the order to end."""
        try:
            self.finalize()
        except Unavailable as failure:
            log.warning("the save before the emergency failed: %s", failure)
        self.save(step, reason=Reason.EMERGENCY)
        self._driver.submit(CoverEmergency(step=step))
        self._driver.barrier()
        reason = self.state.emergency.reason
        log.warning("stopping after step %d: %s; everything up to it is saved", step, reason)
        return Verdict(step=step, saved=True, validated=False, stop=True, reason=reason)

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
        """Save everything after `step`, once: a step that is published already is left as it is.

        Joins the save before it. With `save_async` a cadence or a requested save returns as soon as its snapshot is
        taken; every other one returns when it is published and durable. `Refused` inside a step or behind the newest
        checkpoint, `Unavailable` when it could not be written: what was published before is untouched.
        """
        self.finalize()
        if step in self.state.saving.sealed:
            return
        reason = Reason(reason)
        background = self.config.save_async and reason in (Reason.CADENCE, Reason.REQUESTED)
        self._driver.check(OpenSave(step=step, plan=FULL, reason=reason, mode=Mode.SYNCHRONOUS))
        held, mode, why = self._snapshot(background)
        try:
            opened = self._driver.submit(OpenSave(step=step, plan=FULL, reason=reason, mode=mode, why=why))
        except BaseException:
            held.release()
            raise
        assert isinstance(opened[0], SaveOpened)
        save = opened[0].save
        self._opened.engines.held[save] = held
        if mode is Mode.SYNCHRONOUS:
            deque(self._save_lane(save), maxlen=0)
            return
        try:
            self._slot.start(self._save_lane(save))
            held.fill()  # the writer follows close behind
        except BaseException:
            held.release()  # so that it does not wait for what will not come
            raise

    def finalize(self) -> None:
        """Join the save in flight; raise what it ran into."""
        self._slot.join()

    def _snapshot(self, background: bool) -> tuple[Held, Mode, str]:
        """The live state, copied into the arena where the loop may go on, else streamed while it waits."""
        snapshot = self._capture()
        why = "it was asked to wait"
        if background:
            staged = self._stager.begin(snapshot.trees)
            if isinstance(staged.proof, Proven):
                held = Held(images=staged.images, fill=staged.fill, release=staged.release)
                return held, Mode.ASYNCHRONOUS, ""
            staged.release()
            why = f"the snapshot is not proven to be apart from live state: {staged.proof.reason}"
        return Held(images=stream(snapshot.trees), fill=_nothing, release=_nothing), Mode.SYNCHRONOUS, why

    def _warm(self) -> None:
        """Have the arena faulted in beside the first steps. A state that cannot be saved is refused here and now."""
        if self.config.save_async and self.config.save_every > 0 and not self._slot.busy:
            self._stager.prepare(self._capture().trees)

    def _capture(self) -> Snapshot:
        return self._trainer.capture(
            FULL, clocks=self.state.updates.clocks, cursor_resume=self.config.data.cursor_resume
        )

    def _save_lane(self, save: SaveId) -> Iterator[object]:
        """The loop for one save, then what its caller has to know."""
        started = self._progress.save_started(save)
        yield from self._driver.lane()
        done = self.state.saving.sealed.get(save.step)
        if done is None:
            raise self._given_up(save)
        self._opened.keep_fold(always=False)
        self._progress.save_done(done, started)

    def _given_up(self, save: SaveId) -> Unavailable:
        given_up, latest = self.state.saving.given_up, self.state.pointer.at
        assert given_up is not None and given_up.save == save, f"save {save} is neither sealed nor given up"
        return Unavailable(
            f"save {save} was given up ({given_up.code}: {given_up.detail}). Training can go on: latest is "
            f"{latest.directory if latest else 'nothing yet'}, and the next save is a new attempt"
        )

    def _surface(self) -> None:
        """Raise now what a finished asynchronous save ran into."""
        if not self._slot.busy:
            self._slot.join()

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


def _nothing() -> None:
    """What there is to do for a snapshot that is read while the loop waits."""


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
