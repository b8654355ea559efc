"""Any history of a ledger against the simple reference: out of order, in part, over epochs, restarted anywhere."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from milepost.journal import Refused, SamplingBoundary, SamplingReplayLedger, SamplingToken
from tests.sampling.reference import Issued, Reference

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


def test_any_history_of_a_ledger_is_that_of_the_reference() -> None:
    run_state_machine_as_test(Histories, settings=settings(stateful_step_count=40))
