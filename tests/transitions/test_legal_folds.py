"""Any history of commands, crashes and answers folds legally, breaks no invariant and leaves nothing undone.

The machine is a trainer, an engine and a killer in one: it asks for things, performs what is due (well or badly), and
opens the run again at any moment. It holds `decide`, `evolve` and `due` to their contract: what a caller asks is
refused or legal; what an engine answers to a due effect is legal; performing what is due ends. What the engine put on
its disk is kept beside the state, and the state never says more than the disk has.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
from attrs import evolve as replaced
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from milepost.transitions.archiving import (
    ArchiveSave,
    ArchiveStage,
    DeclareArchive,
    ReportArchived,
    ReportArchiveFailed,
    RetryArchives,
)
from milepost.transitions.boundary import BoundaryOpened, ReportRole
from milepost.transitions.emergency import CoverEmergency, ObserveTermination
from milepost.transitions.errors import Refused
from milepost.transitions.invariants import violations
from milepost.transitions.machine import (
    RECORDS,
    Command,
    Effect,
    Record,
    State,
    decide,
    due,
    evolve,
    initial,
    obligations,
)
from milepost.transitions.pointing import AdvancePointer, ReportPointed
from milepost.transitions.retention import (
    ApplyRetention,
    Part,
    PruneOpened,
    PrunePart,
    ReportPruned,
    ReportPruneFailed,
)
from milepost.transitions.run import AdoptResume, EndRun, ReportProbe, RotateSegment, RunStage
from milepost.transitions.sampling import (
    BeginSampling,
    IssueWork,
    SamplingRestored,
    SamplingToken,
    SettleWork,
    WorkIssued,
)
from milepost.transitions.saving import (
    ObserveSave,
    OpenSave,
    ReportAbsent,
    ReportFound,
    ReportGivenUp,
    ReportSealed,
    ReportStored,
    SaveOpened,
    SealSave,
    StorePayload,
)
from milepost.transitions.sweeping import ClearDebris, ReportCleared
from milepost.transitions.updates import AbortUpdate, ApplyUpdate, OpenUpdate, ReportStep, SkipUpdate
from milepost.transitions.validation import (
    EvaluationPassed,
    Generation,
    MarkGeneration,
    ReportFailed,
    ReportMarked,
    ReportPassed,
    ValidationStage,
)
from milepost.transitions.values import (
    FULL,
    Clocks,
    Component,
    LoopValue,
    Mode,
    Outcome,
    Plan,
    Promised,
    Reason,
    ResumeKind,
    RoleClocks,
    SamplingPoint,
    SaveId,
)
from tests.transitions.samples import BOTH_ROLES, DESTINATION, MANIFEST, PARTIAL, open_run_command, stored_of

STEPS = st.integers(min_value=-1, max_value=8)
PLANS = st.sampled_from([FULL, FULL, FULL, PARTIAL, (Component.MODEL,)])
SOME_STEPS = st.lists(st.integers(min_value=0, max_value=8), max_size=3).map(tuple)
ARCHIVE_ENDS = st.sampled_from(["failed", "marked", "declared"])
PRUNE_ENDS = st.sampled_from(["failed", "pruned", "opened"])
ENDS = st.sampled_from(["failed", "passed", "marked", "sealed", "opened"])
EVALUATED = ("failed", "passed", "marked")

# What a checkpoint says of itself in each stage, at least.
SAID = {
    ValidationStage.EVALUATING: Generation.EVALUATION_PENDING,
    ValidationStage.PASSED: Generation.EVALUATION_PENDING,
    ValidationStage.PUBLISHING: Generation.PUBLICATION_PENDING,
}


class Histories(RuleBasedStateMachine):
    seen: ClassVar[set[type]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.state: State = initial()
        self.records: list[Record] = []
        self.acknowledged: set[SaveId] = set()
        # The disk: what is published, what each checkpoint says of its validation, and what was deleted.
        self.published: set[SaveId] = set()
        self.marks: set[tuple[SaveId, Generation]] = set()
        self.deleted: set[tuple[SaveId, Part]] = set()
        # The markers of the boundaries that are published, and whether this run has several roles.
        self.boundaries: dict[SaveId, tuple[tuple[RoleClocks, ...], tuple[LoopValue, ...]]] = {}
        self.several = False
        self.in_parts = False
        # Sampled work: what each checkpoint carries, what it has to carry, where this execution began, all tokens,
        # and this execution's works with the completions of each that are settled.
        self.sampled: dict[SaveId, SamplingPoint | None] = {}
        self.to_carry: dict[SaveId, SamplingPoint | None] = {}
        self.began: SamplingPoint | None = None
        self.tokens: list[SamplingToken] = []
        self.works: dict[SamplingToken, tuple[SamplingPoint, set[int]]] = {}

    def ask(self, command: Command) -> tuple[Record, ...] | None:
        """Decide and fold; None where the state refuses, which must leave nothing behind."""
        try:
            records = decide(self.state, command)
        except Refused:
            return None
        for record in records:
            after = evolve(self.state, record)
            assert violations(self.state, after) == ()
            self.state = after
            self.records.append(record)
            if isinstance(record, SamplingRestored):
                self.began = record.boundary
            if isinstance(record, SaveOpened):
                self.to_carry[record.save] = self.settled_prefix() if record.plan == FULL else None
            self.seen.add(type(record))
        return records

    # --- the trainer ------------------------------------------------------------------------------------------

    @initialize(
        ends=st.lists(ENDS, max_size=4),
        several=st.booleans(),
        in_parts=st.booleans(),
        artifact=st.booleans(),
        archives=st.none() | ARCHIVE_ENDS,
        prunes=st.none() | PRUNE_ENDS,
        works=st.none() | st.booleans(),
    )
    def begin(
        self,
        ends: list[str],
        several: bool,
        in_parts: bool,
        artifact: bool,
        archives: str | None,
        prunes: str | None,
        works: bool | None,
    ) -> None:
        """Nothing at all, or a run with some checkpoints: retention needs several before it does anything."""
        self.several, self.in_parts = several, in_parts
        for end in ends:
            self.start_again()
            self.boundary(plan=FULL, pending=end in EVALUATED, end=end)
            if archives is not None and self.state.saving.newest is not None:
                self.archive(step=self.state.saving.newest.step, plan=FULL, end=archives)
        if prunes is not None:
            self.apply_retention(
                keep_optim_last=1, keep_model_last=0, keep_fn=None, archived=None, in_use=(), end=prunes
            )
        if works is not None:
            self.start_again()
            self.train_a_role(role=BOTH_ROLES[0], applied=1, skipped=0)
            self.issue(epochs=0, completions=1, off=0)
            if works:
                self.ask(SettleWork(token=self.tokens[-1], index=0))
                self.works[self.tokens[-1]][1].add(0)
        if artifact:
            self.start_again()
            self.boundary(plan=PARTIAL, pending=False, end="sealed")

    @rule()
    def open_run(self) -> None:
        command = open_run_command(segment=self.state.run.segment + 1)
        assert self.ask(replaced(command, execution_id=f"execution {self.state.run.epoch + 1}"))
        assert not self.state.run.resumed
        self.began, self.works = None, {}

    @rule()
    def start_again(self) -> None:
        """An opening that nothing interrupts."""
        self.open_run()
        self.drain()
        self.adopt_what_is_newest_or_a_copy_of_it(elsewhere=False)
        assert self.state.run.resumed

    @rule(elsewhere=st.booleans())
    def adopt_what_is_newest_or_a_copy_of_it(self, elsewhere: bool) -> None:
        newest = self.state.saving.newest
        step = 0 if newest is None else newest.step
        zero = tuple(RoleClocks(role=role, clocks=Clocks()) for role in BOTH_ROLES)
        roles, loop_state = (zero, None) if newest is None else self.boundaries.get(newest, (zero, None))
        took = self.ask(
            AdoptResume(
                resume=ResumeKind.FRESH if newest is None else ResumeKind.EXACT,
                step=step,
                source="" if newest is None else newest.directory,
                save=None if elsewhere else newest,
                clocks=Clocks(attempt_id=step, optimizer_step=step),
                passed_over=(),
                roles=roles if self.several else (),
                loop_state=loop_state if self.several else None,
                sampling=None if newest is None else self.sampled[newest],
            )
        )
        if took is not None:
            assert self.began == (None if newest is None else self.to_carry[newest])
        if took is not None and self.several:
            assert (self.state.boundary.roles, self.state.boundary.committed) == (roles, loop_state)

    @rule(step=STEPS, reason=st.sampled_from(Reason), plan=PLANS, pending=st.booleans())
    def open_save(self, step: int, reason: Reason, plan: Plan, pending: bool) -> None:
        before = self.state.saving
        said = (LoopValue(name="warmup", value=str(step)),) if self.several else ()
        took = self.ask(
            OpenSave(step=step, plan=plan, reason=reason, mode=Mode.ASYNCHRONOUS, pending=pending, loop_state=said)
        )
        if took is not None:
            assert plan == FULL or not self.several
            assert step >= 0
            assert step not in before.sealed
            assert plan == FULL or (step not in before.artifacts and not pending)
            assert before.newest_step is None or step >= before.newest_step

    @precondition(lambda self: self.state.run.stage is RunStage.OPEN)
    @rule(plan=PLANS, pending=st.booleans(), end=ENDS)
    def boundary(self, plan: Plan, pending: bool, end: str) -> None:
        """Settle what is open and save the next step, if nothing is against it; it gets as far as `end`."""
        self.drain()
        newest = self.state.saving.newest_step
        step = 0 if newest is None else newest + 1
        self.open_save(step=step, reason=Reason.CADENCE, plan=plan, pending=pending)
        if end != "opened":
            self.drain()
        if end in EVALUATED:
            self.evaluate(step=None, passes=end != "failed")
        if end == "marked":
            self.drain()

    @rule(step=st.none() | STEPS, passes=st.booleans(), strict=st.booleans())
    def evaluate(self, step: int | None, passes: bool, strict: bool = False) -> None:
        """The step that has to be evaluated, or any other."""
        asked = [save.step for save in obligations(self.state)]
        step = step if step is not None else next(iter(asked), 0)
        report = ReportPassed(step=step, archive=DESTINATION if strict else "")
        took = self.ask(report if passes else ReportFailed(step=step, detail="ValueError"))
        assert took is None or asked == [step]

    @rule(
        keep_optim_last=st.sampled_from([1, 2, 0]),
        keep_model_last=st.sampled_from([1, 2, 0]),
        keep_fn=st.none() | st.just(()),
        archived=st.none() | SOME_STEPS,
        in_use=st.just(()) | SOME_STEPS,
        end=PRUNE_ENDS,
    )
    def apply_retention(
        self,
        keep_optim_last: int,
        keep_model_last: int,
        keep_fn: tuple[str, ...] | None,
        archived: tuple[int, ...] | None,
        in_use: tuple[int, ...],
        end: str,
    ) -> None:
        before = self.state
        records = self.ask(
            ApplyRetention(
                keep_optim_last=keep_optim_last,
                keep_model_last=keep_model_last,
                keep_optim=keep_fn,
                archived=archived,
                in_use=in_use,
            )
        )
        for record in records or ():
            assert isinstance(record, PruneOpened)
            assert before.run.resumed is not None
            assert record.save not in (before.saving.newest, before.validation.pending, before.run.resumed.save)
            assert record.save.step not in in_use
            assert archived is None or record.save.step in archived
        for effect in due(self.state):
            if isinstance(effect, PrunePart) and end != "opened":
                self.perform(effect, fails=end == "failed")

    @rule(step=STEPS, plan=PLANS, end=ARCHIVE_ENDS)
    def archive(self, step: int, plan: Plan, end: str) -> None:
        before = self.state
        took = self.ask(DeclareArchive(step=step, plan=plan, destination=DESTINATION))
        if took is not None:
            save = before.saving.holds(step, plan)
            assert save is not None
            assert save.id != before.validation.pending
            known = before.archiving.of(save.id)
            wanted = save.id not in before.archiving.marked and (known is None or known.stage is ArchiveStage.FAILED)
            assert bool(took) is wanted
        for effect in due(self.state):
            if isinstance(effect, ArchiveSave) and end != "declared":
                self.perform(effect, fails=end == "failed")

    @rule()
    def try_what_failed_again(self) -> None:
        if self.ask(RetryArchives(destination=DESTINATION)) is not None:
            assert all(one.stage is ArchiveStage.DECLARED for one in self.state.archiving.open)

    @rule(outcome=st.sampled_from([None, ApplyUpdate(), SkipUpdate(why="inf"), AbortUpdate(why="left")]))
    def update(self, outcome: Command | None) -> None:
        """A window that opens, unless one is open, and has its outcome or none yet."""
        self.ask(OpenUpdate(step=3))
        if outcome is not None:
            self.ask(outcome)

    @rule(role=st.sampled_from((*BOTH_ROLES, "reward")), applied=st.integers(0, 2), skipped=st.integers(0, 2))
    def train_a_role(self, role: str, applied: int, skipped: int) -> None:
        before = self.state.boundary.clocks
        took = self.ask(ReportRole(role=role, applied=applied, skipped=skipped))
        if took is not None:
            assert (applied == 0) is not (skipped == 0)
            moved = self.state.boundary.clocks
            assert moved[role].attempt_id == before[role].attempt_id + applied + skipped
            assert {**moved, role: before[role]} == before

    @rule(data=st.data(), remaining=st.none() | st.integers(0, 9), count=st.integers(0, 3))
    def sample(self, data: st.DataObject, remaining: int | None, count: int) -> None:
        """Work that is issued, well or badly, and settlements of any work that ever was, in one rule of many."""
        if remaining is not None:
            self.begin_sampling(remaining)
        few = st.sampled_from([0, 0, 0, 1, -1])
        for _ in range(count):
            self.issue(data.draw(few), data.draw(st.integers(0, 3)), data.draw(few))
        for _ in range(count + 1 if self.tokens else 0):
            recent = self.tokens[-4:] if data.draw(st.booleans()) else self.tokens
            self.settle(data.draw(st.sampled_from(recent)), data.draw(st.integers(-1, 3)))

    def begin_sampling(self, remaining: int) -> None:
        before, began = self.state.sampling.boundary, self.began
        took = self.ask(BeginSampling(initial=SamplingPoint(epoch=1, remaining=remaining, sampler_state="1")))
        assert took is None or bool(took) is (before is None)
        assert before is None or self.began == began

    def issue(self, epochs: int, completions: int, off: int) -> None:
        tail = self.state.sampling.tail or SamplingPoint(epoch=1, remaining=9, sampler_state="0")
        after = SamplingPoint(
            epoch=tail.epoch + epochs,
            remaining=tail.remaining - completions + off,
            sampler_state=str(len(self.tokens)),
        )
        first = self.state.sampling.boundary is None
        took = self.ask(IssueWork(after=after, completions=completions))
        follows = (epochs >= 0 and off == 0) or (first and after.epoch >= 1)
        ready = self.state.run.stage is RunStage.OPEN and self.state.run.resumed is not None
        assert (took is not None) is (ready and completions > 0 and after.remaining >= 0 and follows)
        if took is not None:
            assert isinstance(took[-1], WorkIssued)
            assert self.state.run.opened is not None
            token = SamplingToken(self.state.run.opened.execution_id, took[-1].number, completions)
            self.tokens.append(token)
            self.works[token] = (after, set())

    def settle(self, token: SamplingToken, index: int) -> None:
        _, settled = self.works.get(token, (None, set()))
        known, in_range = self.waits(token), 0 <= index < token.completions
        took = self.ask(SettleWork(token=token, index=index))
        ready = self.state.run.stage is RunStage.OPEN and self.state.run.resumed is not None
        assert (took is not None) is (ready and (in_range or not known))
        assert not took or (known and index not in settled)
        if took is not None and known and index not in settled:
            assert took
            settled.add(index)

    def settled_prefix(self) -> SamplingPoint | None:
        """Where this execution began, or the end of the works from there on that are wholly settled."""
        boundary = self.began
        for token, (after, settled) in self.works.items():
            if len(settled) < token.completions:
                break
            boundary = after
        return boundary

    def waits(self, token: SamplingToken) -> bool:
        """Whether the work is of this execution, and it or work in front of it is not wholly settled."""
        works = list(self.works)
        if token not in works:
            return False
        return any(len(self.works[one][1]) < one.completions for one in works[: works.index(token) + 1])

    @rule(step=STEPS, which=st.integers(min_value=0, max_value=3))
    def ask_something_small(self, step: int, which: int) -> None:
        commands: tuple[Command, ...] = (
            ReportStep(step=step, metrics=()),
            RotateSegment(segment=self.state.run.segment + 1, closes=()),
            EndRun(outcome=Outcome.STOPPED, step=step),
            ReportProbe(store="s3://b/ at store:1", promises=(Promised(name="create", seen="kept"),)),
        )
        self.ask(commands[which])

    @rule(step=st.none() | STEPS, plan=PLANS)
    def be_told_to_stop(self, step: int | None, plan: Plan) -> None:
        """At the step of the newest save, or at any later one."""
        newest = self.state.saving.newest_step
        step = max(-1 if step is None else step, -1 if newest is None else newest)
        self.ask(ObserveTermination(step=step, reason="signal", detail="SIGTERM"))
        took = self.ask(CoverEmergency(step=step, plan=plan))
        assert not took or self.state.emergency.save in self.published

    # --- the engine -------------------------------------------------------------------------------------------

    def touch(self, effect: Effect) -> None:
        """What performing the effect leaves on the disk, whether or not its writer lives to say so."""
        if isinstance(effect, StorePayload):
            self.sampled[effect.save] = effect.sampling
        elif isinstance(effect, SealSave):
            self.published.add(effect.save)
            if effect.roles:
                self.boundaries[effect.save] = (effect.roles, effect.loop_state)
            if effect.pending:
                self.marks.add((effect.save, Generation.EVALUATION_PENDING))
        elif isinstance(effect, MarkGeneration):
            self.marks.add((effect.save, effect.generation))
        elif isinstance(effect, PrunePart):
            self.deleted.add((effect.save, effect.part))

    def perform(self, effect: Effect, *, fails: bool = False) -> None:
        """Answer the effect as an engine would. A prune that fails may have deleted something."""
        if not fails or isinstance(effect, PrunePart | MarkGeneration):
            self.touch(effect)
        assert self.ask(self.answer(effect, fails=fails)), f"the answer to {effect} was refused"

    def answer(self, effect: Effect, *, fails: bool) -> Command:
        if isinstance(effect, StorePayload | SealSave) and fails:
            return ReportGivenUp(save=effect.save, code="no-space", detail="")
        if isinstance(effect, StorePayload):
            now = effect.plan[:1] if self.in_parts else effect.plan
            roles = BOTH_ROLES if self.state.boundary.open is not None and now == effect.plan else ()
            return ReportStored(save=effect.save, components=stored_of(now), roles=roles)
        if isinstance(effect, SealSave):
            return ReportSealed(save=effect.save, manifest=MANIFEST)
        if isinstance(effect, ObserveSave) and effect.save in self.published:
            files = tuple(file for part in stored_of(effect.plan) for file in part.files)
            return ReportFound(save=effect.save, manifest=MANIFEST, files=files)
        if isinstance(effect, ObserveSave):
            return ReportAbsent(save=effect.save)
        if isinstance(effect, AdvancePointer):
            return ReportPointed(save=effect.save)
        if isinstance(effect, MarkGeneration):
            return ReportMarked(save=effect.save, generation=effect.generation)
        if isinstance(effect, ArchiveSave):
            pending = self.state.validation.pending == effect.save
            assert not pending or (effect.save, Generation.PUBLICATION_PENDING) in self.marks
            if fails:
                return ReportArchiveFailed(save=effect.save, code="Unavailable", detail="")
            return ReportArchived(save=effect.save, files=4, size=321, sent=2)
        if isinstance(effect, PrunePart) and fails:
            return ReportPruneFailed(save=effect.save, part=effect.part, detail="EIO")
        if isinstance(effect, PrunePart):
            return ReportPruned(save=effect.save, part=effect.part)
        assert isinstance(effect, ClearDebris)
        return ReportCleared(names=tuple(map(str, effect.abandoned)))

    @precondition(lambda self: bool(due(self.state)))
    @rule(data=st.data(), fails=st.booleans())
    def perform_one(self, data: st.DataObject, fails: bool) -> None:
        self.perform(data.draw(st.sampled_from(due(self.state))), fails=fails)

    @precondition(lambda self: bool(due(self.state)))
    @rule(data=st.data())
    def die_between_doing_and_saying_so(self, data: st.DataObject) -> None:
        self.touch(data.draw(st.sampled_from(due(self.state))))
        self.open_run()

    @precondition(lambda self: self.state.run.stage is RunStage.OPEN)
    @rule()
    def drain(self) -> None:
        """A lane as the driver runs it: doing each thing once, the first that is due, settles everything."""
        tried: set[Effect] = set()
        while (effect := next((one for one in due(self.state) if one not in tried), None)) is not None:
            tried.add(effect)
            self.perform(effect)
        assert due(self.state) == ()
        assert not self.state.saving.open
        assert self.state.pointer.at == self.state.saving.newest
        if not self.state.archiving.owes(self.state.validation.pending):
            assert self.state.validation.stage in (ValidationStage.IDLE, ValidationStage.EVALUATING)

    # --- what always holds ------------------------------------------------------------------------------------

    @invariant()
    def what_was_published_is_sealed_or_still_to_be_looked_at(self) -> None:
        saving = self.state.saving
        sealed = {save.id for save in (*saving.sealed.values(), *saving.artifacts.values())}
        assert sealed <= self.published
        assert self.published - sealed <= {save.id for save in saving.open}
        assert self.acknowledged <= sealed
        self.acknowledged = sealed

    @invariant()
    def what_is_sealed_in_a_run_of_several_roles_has_all_of_them(self) -> None:
        joined = {record.save: record.roles for record in self.records if isinstance(record, BoundaryOpened)}
        for save in self.state.saving.sealed.values():
            assert (save.id in joined) is self.several
            if self.several:
                assert self.boundaries[save.id][0] == joined[save.id]
                assert tuple(one.role for one in joined[save.id]) == BOTH_ROLES

    @invariant()
    def a_checkpoint_says_of_itself_what_the_state_says_of_its_validation(self) -> None:
        validation = self.state.validation
        if validation.pending is not None:
            assert (validation.pending, SAID[validation.stage]) in self.marks
        if validation.completed is not None:
            assert (validation.completed, Generation.PUBLISHED) in self.marks

    @invariant()
    def what_was_deleted_is_lost_to_the_state_and_was_not_needed(self) -> None:
        for save, part in self.deleted:
            assert self.state.retention.lost(save.step) in (part, Part.CHECKPOINT)
            assert save not in (self.state.saving.newest, self.state.validation.pending)

    @invariant()
    def the_boundary_is_the_end_of_what_is_wholly_settled(self) -> None:
        assert self.state.sampling.boundary == self.settled_prefix()
        outstanding = sum(len(settled) < token.completions for token, (_, settled) in self.works.items())
        assert len(self.state.sampling.outstanding) == outstanding
        assert len(self.state.sampling.stretches) <= 2 * outstanding

    @invariant()
    def what_passed_is_never_evaluated_again(self) -> None:
        passed = {record.save for record in self.records if isinstance(record, EvaluationPassed)}
        assert passed.isdisjoint(obligations(self.state))

    @invariant()
    def no_two_attempts_share_an_id(self) -> None:
        ids = [record.save for record in self.records if isinstance(record, SaveOpened)]
        assert len(set(ids)) == len(ids)

    def teardown(self) -> None:
        """Replaying the records from nothing gives the state that the live run had."""
        again = initial()
        for record in self.records:
            again = evolve(again, record)
        assert again == self.state
        assert due(again) == due(self.state)


@pytest.mark.filterwarnings("default")
def test_any_history_is_legal_and_the_histories_hold_every_kind_of_record() -> None:
    Histories.seen.clear()
    run_state_machine_as_test(Histories)
    assert Histories.seen == set(RECORDS)
