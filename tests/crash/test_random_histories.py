"""Histories that nobody thought of: what a run does, what goes wrong, and crashes in between, all drawn.

After each rule a few crashes behind its operations are looked at and recovered from; a `crash` goes on from one. What
was promised is carried over every crash. A run that nothing went wrong for acknowledges every save.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from milepost.engines.simulated import Fault, Killed, SimulatedDisk
from milepost.transitions.emergency import EmergencyStage
from milepost.transitions.errors import Busy, MilepostError, NotResumable, Refused, Unavailable
from milepost.transitions.updates import UpdateStage
from tests.crash import marks
from tests.crash.explore import Explorer, nothing_goes_back
from tests.crash.histories import but_one
from tests.crash.promises import keeps, look, need
from tests.crash.world import ROOT, Promises, Run, Saved, config, promises

CODES = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
PICK = st.integers(min_value=0, max_value=10_000)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk(renames="separate")
        self.told: Promises = ()
        self.run: Run | None = None
        self.lives = 0
        self.looked = 0
        self.faulty = False
        self.explorer = Explorer(renames=("separate",), goes_on=False)

    # --- what a run does ------------------------------------------------------------------------------------

    @precondition(lambda self: self.run is None)
    @rule(
        in_background=st.booleans(), every=st.integers(0, 2), resume=st.sampled_from(["auto", "auto", "off", "path"])
    )
    def start(self, in_background: bool, every: int, resume: str) -> None:
        if self.faulty:
            self.disk.drop_caches()  # what a sync lost reads well until then, and no later sync brings it back
        self.lives += 1
        asked = self._newest_path() if resume == "path" else resume
        knobs = config(save_async=in_background, save_every=every, resume=asked)
        try:
            self.run = Run(self.disk, f"life-{self.lives}", config=knobs)
        except NotResumable:
            need(resume == "path", "INV-17", "a start without a path was refused")
        except Unavailable:
            need(self.faulty, "INV-14", "a start failed, and nothing went wrong")
            self._lost()
        self._look()

    @precondition(lambda self: self._may_train())
    @rule(count=st.integers(1, 2), skip=st.booleans(), pick=PICK)
    def train(self, count: int, skip: bool, pick: int) -> None:
        self._do(lambda run: run.train(count, skip=skip), pick)

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
            need(step not in run.journal.state.saving.sealed, "INV-16", f"step {step} is published and was refused")
        need(len(self.disk.trace) == before, "INV-16", f"saving step {step} again touched the disk")

    @precondition(lambda self: self.run is not None)
    @rule(pick=PICK)
    def tick(self, pick: int) -> None:
        self._do(Run.tick, pick)

    @precondition(lambda self: self._may_train())
    @rule(pick=PICK)
    def terminate(self, pick: int) -> None:
        self._do(Run.terminate, pick)

    @precondition(lambda self: self._may_train())
    @rule()
    def leave_inside_a_step(self) -> None:
        self._do(Run.leave_inside_a_step, 0)

    @precondition(lambda self: self.run is not None)
    @rule(pick=PICK)
    def close(self, pick: int) -> None:
        self._do(Run.close, pick)
        self.run = None

    # --- what goes wrong ------------------------------------------------------------------------------------

    @precondition(lambda self: self.run is not None)
    @rule()
    def second_start(self) -> None:
        """Another process while this one lives: it is refused, or finds a newer attempt that nobody writes."""
        self.lives += 1
        try:
            second = Run(self.disk, f"life-{self.lives}", config=config())
        except Busy:
            marks.hit("a live run found busy")
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

    # --- tools ----------------------------------------------------------------------------------------------

    def _do(self, action: Callable[[Run], object], pick: int) -> None:
        """One thing a run does; where it fails, something went wrong before."""
        run = self._running()
        try:
            action(run)
        except Killed:
            self.run = None
        except MilepostError as failure:
            need(self.faulty, "promises", f"nothing went wrong, and yet: {failure!r}")
            expected = isinstance(failure, Refused | Unavailable)
            need(expected, "promises", f"a disk that fails is Unavailable, not {failure!r}")
            self._lost()
        else:
            saving = run.journal.state.saving
            if not run.slot.busy and saving.newest is not None and saving.newest.epoch == run.epoch:
                told = [p.save for p in promises(self.disk) if isinstance(p, Saved)]
                need(saving.newest in told, "promises", f"{saving.newest} was never acknowledged")
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

    def _newest_path(self) -> str:
        saved = [promise for promise in (*self.told, *promises(self.disk)) if isinstance(promise, Saved)]
        if not saved:
            return f"{ROOT}/nowhere/iter_000000001"
        return f"{ROOT}/{saved[-1].attempt}/checkpoints/{saved[-1].save.directory}"

    def teardown(self) -> None:
        nothing_goes_back(self.disk)
        seen = look(self.disk)
        keeps(seen, (*self.told, *promises(self.disk)))


TestRandomHistories = Histories.TestCase
if os.environ.get("HYPOTHESIS_PROFILE", "ci") == "ci":
    TestRandomHistories.settings = settings(max_examples=50, stateful_step_count=25)
