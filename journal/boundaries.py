"""What happens between two steps: saves, validation and the order to stop, each in its place.

Which save falls due is decided by `milepost.transitions.planning`; this room carries the plan out. A validation that
is durable goes save, evaluation, publication, and each of them is a record before the next one begins.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from attrs import frozen

from milepost.engines.crew import Arrival, Crew
from milepost.engines.termination import Termination
from milepost.journal.config import Config
from milepost.journal.driver import Driver
from milepost.journal.opening import unpublished
from milepost.journal.progress import Progress
from milepost.journal.saves import Saves
from milepost.transitions.emergency import CoverEmergency, EmergencyStage, ObserveTermination
from milepost.transitions.errors import MilepostError, Refused, Unavailable
from milepost.transitions.machine import State, obligations
from milepost.transitions.planning import Evaluation, Policy, at_boundary, at_stop
from milepost.transitions.validation import ReportFailed, ReportPassed, ValidationStage
from milepost.transitions.values import FULL, Reason

log = logging.getLogger("milepost")

Validate = Callable[[int], object]
"""Evaluates the model after the step it is given. An exception ends the run; a save due beside it survives."""


class Told:
    """What the watches of all ranks observed, as far as calls brought it here; the first stays the answer."""

    def __init__(self) -> None:
        self._told: Termination | None = None

    def hear(self, arrivals: tuple[Arrival, ...], crew: Crew) -> None:
        """Take note of who was told to stop."""
        for index, arrival in enumerate(arrivals):
            if arrival.told is not None and self._told is None:
                seen = arrival.told
                where = f"{crew.called(index)}: " if crew.size > 1 else ""
                self._told = Termination(reason=seen.reason, detail=f"{where}{seen.detail}")

    def observed(self) -> Termination | None:
        """Why the run has to stop, if it has."""
        return self._told


@frozen(kw_only=True)
class Verdict:
    """What a boundary did. `stop` says that the run has to end, `reason` why."""

    step: int
    saved: bool
    validated: bool
    stop: bool
    reason: str


class Boundaries:
    """The boundaries of one journal's loop."""

    def __init__(self, *, config: Config, driver: Driver, saves: Saves, told: Told, progress: Progress) -> None:
        self._validation = config.validation
        self._policy = _policy(config)
        self._driver = driver
        self._saves = saves
        self._told = told
        self._progress = progress
        self._stepped = False

    @property
    def _state(self) -> State:
        return self._driver.state

    def at(self, step: int, *, validate: Validate | None, final: bool) -> Verdict:
        """See `Journal.boundary`."""
        due = validate is not None and self._validation_due(step, final)
        if self.told_to_stop(step):
            return self._stop(step, validating=due)
        self._saves.surface()
        if not self._stepped:  # the first step is what gives most optimizers their state
            self._stepped = True
            self._saves.warm()
        work = at_boundary(self._policy, step=step, final=final and due, validating=due, saving=self._state.saving)
        if work.plan and work.evaluation is not Evaluation.BEFORE_SAVE:
            self._saves.save(step, plan=work.plan, reason=work.reason, pending=work.pending)
        if validate is not None and due:
            if not work.pending:
                self._saves.finalize()  # a save that was due survives whatever the evaluation does
            self._evaluate(step, validate, pending=work.pending)
        if work.plan and work.evaluation is Evaluation.BEFORE_SAVE:
            self._saves.save(step, plan=work.plan, reason=work.reason)
        return Verdict(step=step, saved=bool(work.plan), validated=due, stop=False, reason="")

    def settle(self, validate: Validate | None) -> None:
        """See `Journal.settle_validation`."""
        owed = self._state.validation.pending
        if owed is not None and self._state.archiving.owes(owed):
            self._saves.try_archives()
            self._complete(owed.step)
        for pending in obligations(self._state):
            if validate is None:
                raise Refused(
                    f"{pending.directory} was published before its evaluation, which is still pending: give "
                    "validate=, or start a new attempt with resume=off"
                )
            self._evaluate(pending.step, validate, pending=True)

    def promote(self, step: int, *, evaluated: bool) -> None:
        """Make a pending checkpoint from elsewhere one of this run: the run's own journal tells how it goes on."""
        self._saves.save(step, plan=FULL, reason=Reason.VALIDATION, pending=True)
        if evaluated:
            self._publish(step)

    def without_a_step(self, step: int, validate: Validate | None) -> None:
        """The final validation of a loop that has no step to run, unless this very step was validated before."""
        done = self._state.validation.completed
        if validate is not None and (done is None or done.step != step):
            self.at(step, validate=validate, final=True)

    def told_to_stop(self, step: int) -> bool:
        if (seen := self._told.observed()) is not None:
            self._driver.submit(ObserveTermination(step=step, reason=seen.reason, detail=seen.detail))
        return self._state.emergency.stage is not EmergencyStage.CALM

    def _validation_due(self, step: int, final: bool) -> bool:
        validation = self._validation
        if validation.every_steps == 0:
            return False
        return (step > 0 and step % validation.every_steps == 0) or (final and validation.at_end)

    def _evaluate(self, step: int, validate: Validate, *, pending: bool) -> None:
        """Run the evaluation; of a pending checkpoint with what follows from it: its publication and retention."""
        if not pending:
            validate(step)
            return
        try:
            validate(step)
        except BaseException as failure:
            with suppress(MilepostError):  # the failure of the evaluation is the one to raise
                self._driver.submit(ReportFailed(step=step, detail=f"{type(failure).__name__}: {failure}"[:500]))
            raise
        self._publish(step)

    def _publish(self, step: int) -> None:
        """The evaluation passed: what follows from it, with the archive where there is one."""
        self._driver.submit(ReportPassed(step=step, archive=self._saves.destination))
        self._driver.drain()
        self._complete(step)

    def _complete(self, step: int) -> None:
        """Tell that it is published, and let retention have what is not needed; `Unavailable` where it is not."""
        published = self._state.saving.sealed[step]
        if self._state.archiving.owes(published.id):
            raise unpublished(self._state, published.id)
        self._progress.published(published)
        self._saves.retain()

    def _stop(self, step: int, *, validating: bool) -> Verdict:
        """The emergency: one save of the step, however an earlier save went, then the order to end."""
        try:
            self._saves.finalize()
        except Unavailable as failure:
            log.warning("the save before the emergency failed: %s", failure)
        free = self._state.validation.stage is ValidationStage.IDLE
        work = at_stop(self._policy, step=step, validating=validating and free, saving=self._state.saving)
        if work.note:
            log.warning("%s", work.note)
        if work.plan:
            self._saves.save(step, plan=work.plan, reason=work.reason, pending=work.pending)
        self._driver.submit(CoverEmergency(step=step, plan=work.plan or self._policy.emergency))
        self._driver.barrier()
        reason = self._state.emergency.reason
        log.warning("stopping after step %d: %s; everything up to it is saved", step, reason)
        return Verdict(step=step, saved=bool(work.plan), validated=False, stop=True, reason=reason)


def _policy(config: Config) -> Policy:
    validation = config.validation
    return Policy(
        save_every=config.save_every,
        regular=config.checkpoint_components,
        validation=validation.checkpoint_components if validation.save_checkpoint else None,
        emergency_full=config.emergency_checkpoint_components == "full",
    )
