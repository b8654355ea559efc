"""What rank 0 does in each call of the facade: the commands, the questions to the state, and the work behind them.

Every other rank waits in the same call and performs the orders that come out of this (`milepost.engines.crew`). A run
of one process does nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from milepost.engines.ambient import Ambient
from milepost.engines.crew import Arrival
from milepost.engines.crew.company import Company
from milepost.engines.slots import Slot
from milepost.journal.boundaries import Boundaries, Told, Validate, Verdict
from milepost.journal.config import Config
from milepost.journal.log.entries import Entry
from milepost.journal.log.replay import replay
from milepost.journal.opening import Opened
from milepost.journal.progress import Progress
from milepost.journal.restoring import Resumption
from milepost.journal.sampling.recorded import RecordedLedger
from milepost.journal.saves import KeepFn, LoopState, Saves
from milepost.transitions.boundary import ReportRole
from milepost.transitions.emergency import EmergencyStage
from milepost.transitions.errors import MilepostError
from milepost.transitions.machine import State
from milepost.transitions.run import EndRun
from milepost.transitions.updates import AbortUpdate, ApplyUpdate, OpenUpdate, ReportStep, SkipUpdate, UpdateStage
from milepost.transitions.values import FULL, Metric, Outcome, Reason

log = logging.getLogger("milepost")


class Leading:
    """The work of one opened run. Not shared between threads."""

    def __init__(
        self,
        *,
        config: Config,
        opened: Opened,
        company: Company,
        resumption: Resumption,
        slot: Slot,
        ambient: Ambient,
        keep_fn: KeepFn | None,
        loop_state: LoopState,
    ) -> None:
        self._config = config
        self._opened = opened
        self._driver = opened.driver
        self._company = company
        self._resumption = resumption
        self._told = Told()
        self._progress = Progress(ambient=ambient)
        self._saves = Saves(
            config=config,
            opened=opened,
            company=company,
            slot=slot,
            progress=self._progress,
            keep_fn=keep_fn,
            loop_state=loop_state,
        )
        self._boundaries = Boundaries(
            config=config, driver=opened.driver, saves=self._saves, told=self._told, progress=self._progress
        )
        self._sampling = RecordedLedger(opened.driver, limit=config.sampling.max_outstanding)
        self._step = resumption.step
        self._closed = False

    @property
    def state(self) -> State:
        """The folded, frozen state after the newest record."""
        return self._driver.state

    @property
    def sampling(self) -> RecordedLedger:
        """See `Journal.sampling`."""
        return self._sampling

    @property
    def progress(self) -> Progress:
        """What people are told with."""
        return self._progress

    def history(self) -> Iterator[tuple[Entry, State]]:
        """Every entry so far with the state after it, folded again from nothing."""
        self._driver.flush()
        return replay(self._opened.log)

    def hear(self, arrivals: tuple[Arrival, ...]) -> None:
        """Everybody arrived at a call: take note of who was told to stop."""
        self._told.hear(arrivals, self._company.crew)

    def start(self) -> None:
        """What an opened run does first: tell of what recovery completed, get memory ready, promote what it must."""
        if self._opened.completed is not None:
            self._progress.published(self.state.saving.sealed[self._opened.completed.step])
        self._saves.make_up()
        self._saves.warm()
        if self._resumption.promotes:
            evaluated = self._resumption.pending == "publication"
            self._boundaries.promote(self._resumption.step, evaluated=evaluated)

    # --- the loop ---------------------------------------------------------------------------------------

    def begin(self, *, until: int, validating: bool) -> int | None:
        """The first step to run, its attempt open; None where there is none."""
        validate = self._validate(validating)
        if self._boundaries.told_to_stop(self._step):
            return None  # before the first step: what was resumed from covers it
        self._boundaries.settle(validate)
        if self._step >= until:
            self._boundaries.without_a_step(self._step, validate)
            return None
        if validate is not None and self._config.validation.before_training and self._resumption.kind == "fresh":
            validate(self._step)
        return self._open(self._step + 1)

    def advance(self, step: int, *, until: int, validating: bool) -> int | None:
        """The body of `step` is done: its boundary, and the next step to run, its attempt open."""
        if self.state.updates.stage is UpdateStage.ACCUMULATING:
            self._driver.submit(ApplyUpdate())
        if self.boundary(step, validating=validating, final=step == until).stop or step >= until:
            return None
        return self._open(step + 1)

    def _open(self, step: int) -> int:
        self._driver.submit(OpenUpdate(step=step))
        return step

    def boundary(self, step: int, *, validating: bool, final: bool) -> Verdict:
        """See `Journal.boundary`."""
        self._step = step
        return self._boundaries.at(step, validate=self._validate(validating), final=final)

    def settle_validation(self, *, validating: bool) -> None:
        """See `Journal.settle_validation`."""
        self._boundaries.settle(self._validate(validating))

    def skip(self, why: str) -> None:
        """See `Journal.skip`."""
        self._driver.submit(SkipUpdate(why=why))

    def updated(self, role: str, *, applied: int, skipped: int) -> None:
        """See `Journal.updated`."""
        self._driver.submit(ReportRole(role=role, applied=applied, skipped=skipped))

    def report(self, metrics: dict[str, float]) -> None:
        """See `Journal.report`."""
        step = self.state.updates.step
        values = tuple(Metric(name=name, value=repr(float(value))) for name, value in metrics.items())
        self._driver.submit(ReportStep(step=step, metrics=values))
        self._progress.step(step, values)

    def should_stop(self) -> bool:
        """See `Journal.should_stop`."""
        return self.state.emergency.stage is not EmergencyStage.CALM or self._told.observed() is not None

    def _validate(self, validating: bool) -> Validate | None:
        """The evaluation of every rank, as one."""
        return self._company.evaluate if validating else None

    # --- saving -----------------------------------------------------------------------------------------

    def save(self, step: int, *, reason: Reason) -> None:
        """See `Journal.save`."""
        self._saves.finalize()
        plan = FULL if reason is Reason.EMERGENCY else self._config.checkpoint_components
        if self.state.saving.holds(step, plan) is None:
            self._saves.save(step, plan=plan, reason=reason)

    def finalize(self) -> None:
        """See `Journal.finalize`."""
        self._saves.finalize()

    def protect(self, steps: tuple[int, ...]) -> None:
        """See `Journal.protect`."""
        self._saves.protect(steps)

    # --- leaving ----------------------------------------------------------------------------------------

    def leave(self) -> None:
        """The `with` block was left without an exception: the normal-final save, and the end of the run."""
        left_early = self.state.updates.stage is UpdateStage.ACCUMULATING
        if left_early:
            log.warning("the loop was left inside step %d: it is not saved", self.state.updates.step)
        elif self._config.save_every > 0 and self._step > 0:
            self._save_finally()
        stopped = left_early or self.state.emergency.stage is not EmergencyStage.CALM
        detail = "left inside a step" if left_early else self.state.emergency.reason
        self.close(outcome=Outcome.STOPPED if stopped else Outcome.COMPLETED, detail=detail)

    def close(self, *, outcome: Outcome, detail: str) -> None:
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
            self._opened.close()

    def close_after(self, failure: BaseException) -> None:
        """An exception left the body: what is in flight is finished, nothing new is saved, the exception stays."""
        try:
            self.close(outcome=Outcome.FAILED, detail=f"{type(failure).__name__}: {failure}"[:500])
        except MilepostError as second:  # the first failure is the one to report
            log.warning("closing the journal failed as well: %s", second)

    def _save_finally(self) -> None:
        """The normal-final save, made even where the save before it failed; that failure is raised behind it."""
        try:
            self.finalize()
        finally:
            self.save(self._step, reason=Reason.FINAL)
