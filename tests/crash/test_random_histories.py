"""Histories that nobody thought of: what a run does, what goes wrong, and crashes in between, all drawn.

After each rule a few crashes behind its operations are looked at and recovered from; a `crash` goes on from one. What
was promised is carried over every crash. A run that nothing went wrong for acknowledges every save.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from milepost.engines.simulated import Fault, Killed, SimulatedDisk
from milepost.journal import SamplingToken
from milepost.transitions.emergency import EmergencyStage
from milepost.transitions.errors import Busy, MilepostError, NotResumable, Refused, Unavailable
from milepost.transitions.machine import obligations
from milepost.transitions.updates import UpdateStage
from milepost.transitions.values import FULL, union
from tests.crash import marks
from tests.crash.explore import Explorer
from tests.crash.histories import STATE, WEIGHTS, but_one
from tests.crash.promised import Made, Promises, Saved, promises
from tests.crash.promises import keeps, look
from tests.crash.published import need
from tests.crash.puppets import Cast
from tests.crash.sampled import Sampler
from tests.crash.traces import nothing_goes_back
from tests.crash.world import ROOT, BrokenEvaluation, Form, Run, config

CODES = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
PICK = st.integers(min_value=0, max_value=10_000)

BOTH = union(WEIGHTS, STATE)
KNOBS: tuple[Mapping[str, Any], ...] = (
    {},
    {"save_every": 1, "keep_optim": 1},
    {"save_every": 2, "keep_model": 1},
    {"save_every": 1, "keep_optim": 1, "keep_model": 2, "validate_every": 2},
    {"save_every": 2, "validate_every": 1, "validation": FULL, "keep_optim": 1},
    {"validate_every": 1, "validation": FULL, "keep_model": 1},
    {"save_every": 2, "plan": WEIGHTS, "validate_every": 1, "validation": BOTH},
    {"save_every": 1, "plan": WEIGHTS, "validate_every": 2, "validation": FULL, "keep_optim": 1},
    {"save_every": 1, "plan": BOTH, "emergency": "run", "keep_model": 1},
    {"validate_every": 2, "validation": WEIGHTS},
)
"""What a life may be configured with: each kind of save, of validation and of retention, and mixtures of them."""


def _behind_an_artifact(disk: SimulatedDisk) -> bool:
    """Whether the newest attempt has an artifact that is newer than each checkpoint of it."""
    seen = look(disk)
    saving = seen[max(seen)].state.saving
    step = saving.newest.step if saving.newest is not None else -1
    return saving.newest_artifact is not None and saving.newest_artifact.step > step


@contextmanager
def _broken_inside() -> Iterator[None]:
    """An evaluation that raised; of several members as the failure of the one that did."""
    try:
        yield
    except BrokenEvaluation:
        pass
    except Unavailable as failure:
        if BrokenEvaluation.__name__ not in str(failure):
            raise


class Histories(RuleBasedStateMachine):
    """Who takes part, in which format, and what a life may be configured with, its subclasses may say."""

    cast: ClassVar[Cast | None] = None
    form: ClassVar[Form] = "consolidated"

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk(renames="separate")
        self.told: Promises = ()
        self.tokens: tuple[SamplingToken, ...] = ()
        self.run: Run | None = None
        self.lives = 0
        self.looked = 0
        self.faulty = False
        self.explorer = Explorer(renames=("separate",), goes_on=False, cast=self.cast, form=self.form)

    # --- what a run does ------------------------------------------------------------------------------------

    @precondition(lambda self: self.run is None)
    @rule(
        in_background=st.booleans(),
        knobs=st.sampled_from(KNOBS),
        resume=st.sampled_from(["auto", "auto", "off", "path"]),
    )
    def start(self, in_background: bool, knobs: Mapping[str, Any], resume: str) -> None:
        if self.faulty:
            self.disk.drop_caches()  # what a sync lost reads well until then, and no later sync brings it back
        self.lives += 1
        asked = self._newest_path() if resume == "path" else resume
        settings = config(save_async=in_background, resume=asked, form=self.form, **self.allowed(knobs))
        try:
            self.run = Run(self.disk, f"life-{self.lives}", config=settings, cast=self.cast)
        except NotResumable as refusal:
            need(resume != "off", "INV-17", "a fresh start was refused")
            need(resume == "path" or _behind_an_artifact(self.disk), "INV-17", f"a start was refused: {refusal}")
        except Unavailable:
            need(self.faulty, "INV-14", "a start failed, and nothing went wrong")
            self._lost()
        self._look()

    @precondition(lambda self: self._may_train())
    @rule(count=st.integers(1, 2), skip=st.booleans(), validate=st.booleans(), pick=PICK)
    def train(self, count: int, skip: bool, validate: bool, pick: int) -> None:
        validate = validate or self._waits()
        self._do(lambda run: run.train(count, skip=skip, validate=validate), pick)

    @precondition(lambda self: self._may_train())
    @rule(kill=st.booleans(), goes_on=st.booleans(), pick=PICK)
    def train_into_a_broken_evaluation(self, kill: bool, goes_on: bool, pick: int) -> None:
        """It raises, and the trainer gives up or goes on; or the process is killed inside it."""
        run = self._running()

        def broken(_step: int) -> None:
            if kill:
                run.process.kill()
            raise BrokenEvaluation

        def action(run: Run) -> None:
            run.meanwhile = broken
            with _broken_inside():
                run.train(validate=True)
            run.meanwhile = lambda _step: None
            run.process.check_alive()
            run.finish()

        self._do(action, pick)
        if self.run is not None and not goes_on:
            self.close(pick)

    @precondition(lambda self: self._may_train())
    @rule(validate=st.booleans(), pick=PICK)
    def stop(self, validate: bool, pick: int) -> None:
        """Told to stop inside a step."""
        validate = validate or self._waits()
        self._do(lambda run: run.train(validate=validate, stop=True), pick)

    @precondition(lambda self: self._may_train())
    @rule(pick=PICK)
    def save(self, pick: int) -> None:
        self._do(lambda run: run.save(), pick)

    @precondition(lambda self: self._may_train())
    @rule(back=st.integers(1, 3))
    def save_behind(self, back: int) -> None:
        """A step behind the newest checkpoint: published already, or refused."""
        run = self._running()
        self._do(Run.finish, 0)
        newest = run.journal.state.saving.newest
        if self.run is None or newest is None or newest.step - back < 0:
            return
        step, before = newest.step - back, len(self.disk.trace)
        try:
            run.journal.save(step)
        except Refused:
            held = run.journal.state.saving.holds(step, run.journal.config.checkpoint_components)
            need(held is None, "INV-16", f"step {step} is published and was refused")
        need(len(self.disk.trace) == before, "INV-16", f"saving step {step} again touched the disk")

    @precondition(lambda self: self.run is not None)
    @rule(pick=PICK)
    def tick(self, pick: int) -> None:
        self._do(Run.tick, pick)

    @precondition(lambda self: self._may_train())
    @rule(validate=st.booleans(), pick=PICK)
    def terminate(self, validate: bool, pick: int) -> None:
        self._do(lambda run: run.terminate(validate=validate), pick)

    @precondition(lambda self: self._may_train() and not self._waits())
    @rule()
    def leave_inside_a_step(self) -> None:
        self._do(Run.leave_inside_a_step, 0)

    @precondition(lambda self: self.run is not None)
    @rule(pick=PICK)
    def close(self, pick: int) -> None:
        self._do(Run.close, pick)
        self.run = None

    @precondition(lambda self: self._may_train())
    @rule(completions=st.integers(1, 3), epochs=st.sampled_from([0, 0, 1]))
    def issue_work(self, completions: int, epochs: int) -> None:
        self._do(lambda run: self._sampler(run).issue(completions, epochs=epochs), 0)

    @precondition(lambda self: self._may_train() and bool(self.tokens))
    @rule(pick=PICK, newest=st.booleans(), index=st.integers(0, 2))
    def settle_work(self, pick: int, newest: bool, index: int) -> None:
        """Of this execution, or of one that a crash may have undone."""
        tokens = self.tokens[-4:] if newest else self.tokens
        token = tokens[pick % len(tokens)]
        self._do(lambda run: self._sampler(run).settle(token, index % token.completions), 0)

    def _sampler(self, run: Run) -> Sampler:
        sampler = run.sampler or run.begin_sampling(outdated=self.tokens)
        self.tokens = tuple(dict.fromkeys((*self.tokens, *sampler.tokens)))
        return sampler

    # --- what goes wrong ------------------------------------------------------------------------------------

    @precondition(lambda self: self.run is not None)
    @rule()
    def second_start(self) -> None:
        """Another process while this one lives: it is refused, or finds a newer attempt that nobody writes."""
        self.lives += 1
        try:
            second = Run(self.disk, f"life-{self.lives}", config=config(form=self.form), cast=self.cast)
        except Busy:
            marks.hit("a live run found busy")
        except NotResumable:
            need(_behind_an_artifact(self.disk), "INV-10", "a second start was refused otherwise")
        except Unavailable:
            need(self.faulty, "INV-10", "a second start failed otherwise")
        else:
            need(second.attempt != self._running().attempt, "INV-10", "a second writer was let in")
            second.process.kill()

    @rule(code=st.sampled_from(CODES), ahead=st.integers(0, 40), short=st.booleans())
    def fault(self, code: int, ahead: int, short: bool) -> None:
        at = len(self.disk.trace) + ahead
        self.faulty = True
        self.disk.hardware.faults = lambda site: Fault(error=code) if site.index == at else None
        if short:
            self.disk.hardware.short_writes = but_one

    @precondition(lambda self: self.run is not None)
    @rule(ahead=st.integers(0, 60))
    def kill_later(self, ahead: int) -> None:
        self._running().process.kill_at = len(self.disk.trace) + ahead

    @rule(pick=PICK, back=st.integers(0, 25), kill=st.booleans())
    def crash(self, pick: int, back: int, kill: bool) -> None:
        """Go on from a crash at one of the last operations. A disk that failed is read afresh."""
        length = max(0, len(self.disk.trace) - back)
        images = list(self.disk.crash_images(length))
        image = self.disk.killed(length) if kill and not self.faulty else images[pick % len(images)]
        self.told = (*self.told, *promises(self.disk, length))
        self.disk, self.run, self.looked, self.faulty = image, None, 0, False
        keeps(look(self.disk), self.told)

    def allowed(self, knobs: Mapping[str, Any]) -> Mapping[str, Any]:
        """What of these a life of this machine may be configured with."""
        return knobs

    # --- tools ----------------------------------------------------------------------------------------------

    def _do(self, action: Callable[[Run], object], pick: int) -> None:
        """One thing a run does; where it fails, something went wrong before."""
        run = self._running()
        try:
            action(run)
        except Killed:
            self.run = None
        except MilepostError as failure:
            hurt = self.faulty or not all(process.alive for process in run.others)
            need(hurt, "promises", f"nothing went wrong, and yet: {failure!r}")
            expected = isinstance(failure, Refused | Unavailable)
            need(expected, "promises", f"a disk that fails is Unavailable, not {failure!r}")
            self._lost()
        else:
            told = [promise.save for promise in promises(self.disk) if isinstance(promise, Saved | Made)]
            saving = run.journal.state.saving
            for newest in (saving.newest, saving.newest_artifact):
                mine = newest is not None and newest.epoch == run.epoch and not run.slot.busy
                need(not mine or newest in told, "promises", f"{newest} was never acknowledged")
        self._look(pick)

    def _lost(self) -> None:
        """The process ends after an error that its trainer does not handle."""
        if self.run is not None:
            self.run.process.kill()
        self.run = None

    def _look(self, pick: int = 0) -> None:
        """A few crashes behind the operations since the last look."""
        length = len(self.disk.trace)
        span = length - self.looked
        if span > 0:
            lengths = sorted({length, self.looked + pick % span})
            self.explorer.some_crashes(self.disk, lengths, told=self.told, depth=0, at_most=2)
        self.looked = length

    def _running(self) -> Run:
        assert self.run is not None
        return self.run

    def _may_train(self) -> bool:
        if self.run is None or self.run.watch.told is not None:
            return False
        state = self.run.journal.state
        return state.updates.stage is not UpdateStage.ACCUMULATING and state.emergency.stage is EmergencyStage.CALM

    def _waits(self) -> bool:
        """Whether nothing can be trained without an evaluation first."""
        return bool(obligations(self._running().journal.state))

    def _newest_path(self) -> str:
        saved = [promise for promise in (*self.told, *promises(self.disk)) if isinstance(promise, Saved)]
        if not saved:
            return f"{ROOT}/nowhere/iter_000000001"
        return f"{ROOT}/{saved[-1].attempt}/checkpoints/{saved[-1].save.directory}"

    def teardown(self) -> None:
        nothing_goes_back(self.disk)
        seen = look(self.disk)
        keeps(seen, (*self.told, *promises(self.disk)))


TestRandomHistories = pytest.mark.slow(Histories.TestCase)
if os.environ.get("HYPOTHESIS_PROFILE", "ci") == "ci":
    TestRandomHistories.settings = settings(max_examples=50, stateful_step_count=25)
