"""Any history of commands, crashes and answers folds legally, breaks no invariant and leaves nothing undone.

The machine is a trainer, an engine and a killer in one: it asks for things, performs what is due (well or badly), and
opens the run again at any moment. It holds `decide`, `evolve` and `due` to their contract: what a caller asks is
refused or legal; what an engine answers to a due effect is legal; performing what is due ends.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from milepost.transitions.emergency import CoverEmergency, ObserveTermination
from milepost.transitions.errors import Refused
from milepost.transitions.invariants import violations
from milepost.transitions.machine import Command, Effect, Record, State, decide, due, evolve, initial
from milepost.transitions.pointing import AdvancePointer, ReportPointed
from milepost.transitions.run import AdoptResume, EndRun, RotateSegment, RunStage
from milepost.transitions.saving import (
    ObserveSave,
    OpenSave,
    ReportAbsent,
    ReportFound,
    ReportGivenUp,
    ReportSealed,
    ReportStored,
    SealSave,
    StorePayload,
)
from milepost.transitions.sweeping import ReportCleared
from milepost.transitions.updates import AbortUpdate, ApplyUpdate, OpenUpdate, ReportStep, SkipUpdate
from milepost.transitions.values import FULL, Clocks, Component, Mode, Outcome, Plan, Reason, ResumeKind, SaveId
from tests.transitions.samples import MANIFEST, STORED, open_run_command

STEPS = st.integers(min_value=-1, max_value=6)
FILES = tuple(file for part in STORED for file in part.files)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state: State = initial()
        self.records: list[Record] = []
        self.published: set[SaveId] = set()
        self.acknowledged: set[SaveId] = set()

    def ask(self, command: Command) -> bool:
        """Decide and fold; False where the state refuses, which must leave nothing behind."""
        try:
            records = decide(self.state, command)
        except Refused:
            return False
        for record in records:
            after = evolve(self.state, record)
            assert violations(self.state, after) == ()
            self.state = after
            self.records.append(record)
        return True

    # --- the trainer ------------------------------------------------------------------------------------------

    @rule()
    def open_run(self) -> None:
        assert self.ask(open_run_command(segment=self.state.run.segment + 1))
        assert not self.state.run.resumed

    @rule()
    def adopt_what_is_newest(self) -> None:
        newest = self.state.saving.newest
        step = 0 if newest is None else newest.step
        self.ask(
            AdoptResume(
                resume=ResumeKind.FRESH if newest is None else ResumeKind.EXACT,
                step=step,
                source="" if newest is None else newest.directory,
                save=newest,
                clocks=Clocks(attempt_id=step, optimizer_step=step),
                passed_over=(),
            )
        )

    @rule(step=STEPS, emergency=st.booleans(), plan=st.sampled_from([FULL, FULL, FULL, (Component.MODEL,)]))
    def open_save(self, step: int, emergency: bool, plan: Plan) -> None:
        reason = Reason.EMERGENCY if emergency else Reason.CADENCE
        was_sealed = step in self.state.saving.sealed
        took = self.ask(OpenSave(step=step, plan=plan, reason=reason, mode=Mode.ASYNCHRONOUS))
        assert not (took and (was_sealed or plan != FULL or step < 0))

    @rule(
        command=st.sampled_from([OpenUpdate(step=3), ApplyUpdate(), SkipUpdate(why="inf"), AbortUpdate(why="left")])
    )
    def update(self, command: Command) -> None:
        self.ask(command)

    @rule(step=STEPS, which=st.integers(min_value=0, max_value=4))
    def ask_something_small(self, step: int, which: int) -> None:
        commands: tuple[Command, ...] = (
            ReportStep(step=step, metrics=()),
            RotateSegment(segment=self.state.run.segment + 1, closes=()),
            ObserveTermination(step=step, reason="signal", detail="SIGTERM"),
            CoverEmergency(step=step),
            EndRun(outcome=Outcome.STOPPED, step=step),
        )
        self.ask(commands[which])

    # --- the engine -------------------------------------------------------------------------------------------

    def perform(self, effect: Effect, *, fails: bool = False) -> None:
        """Answer the effect as an engine would; a seal that fails may have published before its writer died."""
        if isinstance(effect, AdvancePointer):
            answer: Command = ReportPointed(save=effect.save)
        elif isinstance(effect, StorePayload) and not fails:
            answer = ReportStored(save=effect.save, components=STORED)
        elif isinstance(effect, SealSave) and not fails:
            self.published.add(effect.save)
            answer = ReportSealed(save=effect.save, manifest=MANIFEST)
        elif isinstance(effect, StorePayload | SealSave):
            answer = ReportGivenUp(save=effect.save, code="no-space", detail="")
        elif isinstance(effect, ObserveSave) and effect.save in self.published:
            answer = ReportFound(save=effect.save, manifest=MANIFEST, files=FILES)
        elif isinstance(effect, ObserveSave):
            answer = ReportAbsent(save=effect.save)
        else:
            answer = ReportCleared(names=tuple(map(str, effect.abandoned)))
        assert self.ask(answer), f"the answer to {effect} was refused"

    @precondition(lambda self: bool(due(self.state)))
    @rule(data=st.data(), fails=st.booleans())
    def perform_one(self, data: st.DataObject, fails: bool) -> None:
        self.perform(data.draw(st.sampled_from(due(self.state))), fails=fails)

    @precondition(lambda self: any(isinstance(effect, SealSave) for effect in due(self.state)))
    @rule()
    def die_between_publishing_and_saying_so(self) -> None:
        self.published.update(effect.save for effect in due(self.state) if isinstance(effect, SealSave))
        self.open_run()

    @precondition(lambda self: self.state.run.stage is RunStage.OPEN)
    @rule()
    def drain(self) -> None:
        """Three passes settle anything: store, seal, then the pointer and the debris that follow."""
        for _ in range(3):
            for effect in due(self.state):
                self.perform(effect)
        assert due(self.state) == ()
        assert not self.state.saving.open
        assert self.state.pointer.at == self.state.saving.newest

    # --- what always holds ------------------------------------------------------------------------------------

    @invariant()
    def what_was_published_is_sealed_or_still_to_be_looked_at(self) -> None:
        sealed = {save.id for save in self.state.saving.sealed.values()}
        assert sealed <= self.published
        assert self.published - sealed <= {save.id for save in self.state.saving.open}
        assert self.acknowledged <= sealed
        self.acknowledged = sealed

    @invariant()
    def no_two_attempts_share_an_id(self) -> None:
        ids = [record.save for record in self.records if record.KIND == "save-opened"]  # type: ignore[union-attr]
        assert len(set(ids)) == len(ids)

    def teardown(self) -> None:
        """Replaying the records from nothing gives the state that the live run had."""
        again = initial()
        for record in self.records:
            again = evolve(again, record)
        assert again == self.state
        assert due(again) == due(self.state)


TestHistories = pytest.mark.filterwarnings("default")(Histories.TestCase)
