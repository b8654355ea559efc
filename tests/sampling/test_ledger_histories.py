"""Any history of a ledger against the simple reference: out of order, in part, over epochs, restarted anywhere."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from milepost.journal import Refused, SamplingBoundary, SamplingReplayLedger, SamplingToken
from milepost.journal.sampling.live import FoldingLine
from milepost.transitions.sampling import (
    Sampling,
    SamplingRestored,
    issued,
    on_issued,
    on_restored,
    on_run_opened,
    on_save_opened,
    on_settled,
    settled,
)
from milepost.transitions.saving import SaveOpened
from milepost.transitions.values import FULL, Mode, Reason, SamplingPoint, SaveId
from tests.sampling.reference import Issued, Reference
from tests.transitions.samples import run_opened

FEW = st.sampled_from([0, 0, 0, 1, -1])


class Histories(RuleBasedStateMachine):
    """Executions of one run, each from the boundary of the one before; every token ever issued may come back."""

    def __init__(self) -> None:
        super().__init__()
        self.execution = 0
        self.tokens: list[SamplingToken] = []
        self.begin(SamplingBoundary(1, 60, {"offset": 0}))

    def begin(self, initial: SamplingBoundary) -> None:
        self.execution += 1
        self.ledger = SamplingReplayLedger(initial, execution_id=f"execution {self.execution}", max_outstanding=6)
        self.reference = Reference(initial)

    @rule(completions=st.integers(0, 3), epochs=FEW, off=FEW)
    def issue(self, completions: int, epochs: int, off: int) -> None:
        tail = self.reference.tail
        remaining, epoch = tail.remaining_completions - completions + off, tail.epoch + epochs
        if remaining < 0 or epoch < 1:
            return
        after = SamplingBoundary(epoch, remaining, {"offset": len(self.tokens) + 1})
        may = self.reference.may_issue(after, completions) and self.reference.outstanding < 6
        try:
            token = self.ledger.issue(after, completions)
        except Refused:
            assert not may
            return
        assert may
        assert token not in self.tokens
        self.tokens.append(token)
        self.reference.works.append(Issued(token, after))

    @precondition(lambda self: bool(self.tokens))
    @rule(data=st.data(), recent=st.booleans(), index=st.integers(-1, 3))
    def settle(self, data: st.DataObject, recent: bool, index: int) -> None:
        token = data.draw(st.sampled_from(self.tokens[-5:] if recent else self.tokens))
        expected = self.reference.settle(token, index)
        if expected is None:
            with pytest.raises(Refused, match="expected an integer from 0"):
                self.ledger.settle(token, index)
        else:
            assert self.ledger.settle(token, index) is expected

    @precondition(lambda self: bool(self.reference.works))
    @rule(data=st.data())
    def settle_the_rest_of_one(self, data: st.DataObject) -> None:
        """A discard or a filter: what is left of a group at once."""
        work = data.draw(st.sampled_from(self.reference.works))
        for index in range(work.token.completions):
            assert self.ledger.settle(work.token, index) is self.reference.settle(work.token, index)

    @rule()
    def restart(self) -> None:
        """A snapshot taken at any moment is where the next execution begins."""
        self.begin(self.ledger.boundary)

    @rule()
    def change_what_was_returned(self) -> None:
        state = self.ledger.boundary.sampler_state
        assert isinstance(state, dict)
        state["offset"] = -1

    @invariant()
    def the_ledger_says_what_the_reference_says(self) -> None:
        assert self.ledger.boundary == self.reference.boundary
        assert self.ledger.outstanding == self.reference.outstanding

    @invariant()
    def nothing_that_is_not_settled_is_in_front_of_the_boundary(self) -> None:
        """INV-11: what is replayed from the boundary has every completion that is not settled."""
        replayed = self.ledger.boundary.remaining_completions - self.reference.tail.remaining_completions
        unsettled = sum(work.token.completions - len(work.settled) for work in self.reference.works)
        assert replayed >= unsettled


class Folds(RuleBasedStateMachine):
    """The line of a live writer against the state that the records fold to, looked at now and then."""

    def __init__(self) -> None:
        super().__init__()
        start = SamplingPoint(epoch=1, remaining=1_000, sampler_state="0")
        self.state = on_restored(Sampling(), SamplingRestored(boundary=start))
        self.line = FoldingLine(self.state)

    @rule(completions=st.integers(1, 3), count=st.integers(1, 4))
    def issue(self, completions: int, count: int) -> None:
        for _ in range(count):
            tail = self.line.tail
            assert tail is not None
            after = SamplingPoint(
                epoch=tail.epoch, remaining=tail.remaining - completions, sampler_state=str(self.line.issued)
            )
            record = issued(self.line, after, completions=completions, limit=0)
            assert record == issued(self.state, after, completions=completions, limit=0)
            self.line.issue(record)
            self.state = on_issued(self.state, record)

    @precondition(lambda self: bool(self.line.outstanding))
    @rule(data=st.data(), whole=st.booleans())
    def settle(self, data: st.DataObject, whole: bool) -> None:
        work = self.line.outstanding[data.draw(st.sampled_from(sorted(self.line.outstanding)))]
        token = SamplingToken("execution", work.number, work.completions)
        for index in range(work.completions if whole else data.draw(st.integers(1, work.completions))):
            record = settled(self.line, token, index, execution_id="execution")
            assert record == settled(self.state, token, index, execution_id="execution")
            if record is not None:
                self.line.settle(record)
                self.state = on_settled(self.state, record)

    @rule()
    def look(self) -> None:
        assert self.line.fold() == self.state
        assert not self.line.moved
        assert self.line.fold() is self.line.fold()

    @rule()
    def a_save_is_opened(self) -> None:
        """It moves the state and nothing that was issued: the line stays, and says so at the next look."""
        opened = SaveOpened(save=SaveId(1, 1, 1), plan=FULL, reason=Reason.CADENCE, mode=Mode.SYNCHRONOUS, why="")
        line, self.state = self.line, on_save_opened(self.line.fold(), opened)
        self.line = line.behind(self.state)
        assert self.line is line

    @rule()
    def a_run_is_opened(self) -> None:
        self.state = on_run_opened(self.line.fold(), run_opened(2))
        start = SamplingPoint(epoch=1, remaining=1_000, sampler_state="0")
        self.state = on_restored(self.state, SamplingRestored(boundary=start))
        self.line = self.line.behind(self.state)

    def teardown(self) -> None:
        assert self.line.fold() == self.state


def test_a_fold_forgets_the_stretches_that_were_joined_or_passed_since_the_one_before() -> None:
    state = on_restored(Sampling(), SamplingRestored(boundary=SamplingPoint(epoch=1, remaining=9, sampler_state="0")))
    line = FoldingLine(state)
    for number in range(1, 7):
        after = SamplingPoint(epoch=1, remaining=9 - number, sampler_state=str(number))
        record = issued(line, after, completions=1, limit=0)
        line.issue(record)
        state = on_issued(state, record)
    for number, stretches in ((3, [3]), (5, [3, 5]), (4, [3, 5]), (2, [2, 5]), (1, [])):
        found = settled(line, SamplingToken("execution", number, 1), 0, execution_id="execution")
        assert found is not None
        line.settle(found)
        state = on_settled(state, found)
        assert sorted(line.stretches) == stretches
        assert line.fold() == state


def test_the_line_of_a_live_writer_folds_to_the_state_of_its_records() -> None:
    run_state_machine_as_test(Folds, settings=settings(stateful_step_count=40))


def test_any_history_of_a_ledger_is_that_of_the_reference() -> None:
    run_state_machine_as_test(Histories, settings=settings(stateful_step_count=40))
