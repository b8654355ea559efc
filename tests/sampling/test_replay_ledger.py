"""The replay ledger by itself: every promise of `SamplingReplayLedger`, by name."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import attrs
import pytest

from milepost.journal import Refused, SamplingBoundary, SamplingReplayLedger, SamplingToken

START = SamplingBoundary(1, 10, {"offset": 0})


def at(remaining: int, epoch: int = 1, state: object = None) -> SamplingBoundary:
    return SamplingBoundary(epoch, remaining, state if state is not None else {"offset": 10 - remaining})


class TestBoundaries:
    def test_a_boundary_is_frozen_and_made_by_place_or_by_name(self) -> None:
        boundary = SamplingBoundary(epoch=2, remaining_completions=0, sampler_state=None)
        assert boundary == SamplingBoundary(2, 0, None)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            boundary.epoch = 3  # type: ignore[misc]

    @pytest.mark.parametrize("epoch", [0, -1, True, 1.0, "1", None])
    def test_an_epoch_is_an_integer_from_one(self, epoch: Any) -> None:
        with pytest.raises(Refused, match="epoch of a sampling boundary: expected an integer of at least 1"):
            SamplingBoundary(epoch, 1, None)

    @pytest.mark.parametrize("remaining", [-1, True, False, 1.0, "1", None])
    def test_what_remains_is_an_integer_from_zero(self, remaining: Any) -> None:
        with pytest.raises(Refused, match="remaining_completions of a sampling boundary: expected an integer"):
            SamplingBoundary(1, remaining, None)


class TestIssuing:
    def test_a_ledger_begins_at_its_initial_boundary_with_nothing_outstanding(self) -> None:
        ledger = SamplingReplayLedger(START)
        assert ledger.boundary == START
        assert ledger.outstanding == 0

    def test_each_ledger_is_an_execution_of_its_own_unless_it_is_told_which(self) -> None:
        one, other = SamplingReplayLedger(START), SamplingReplayLedger(START)
        assert one.execution_id != other.execution_id
        assert SamplingReplayLedger(START, execution_id="mine").execution_id == "mine"

    def test_tokens_are_distinct_hashable_frozen_and_name_their_execution(self) -> None:
        ledger = SamplingReplayLedger(START, execution_id="mine")
        tokens = [ledger.issue(at(9)), ledger.issue(at(7), 2)]
        assert len(set(tokens)) == 2
        assert {token.execution_id for token in tokens} == {"mine"}
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            tokens[0].number = 2  # type: ignore[misc]

    @pytest.mark.parametrize("completions", [0, -1, True, False, 1.0, "1", None])
    def test_completions_are_integers_from_one(self, completions: Any) -> None:
        ledger = SamplingReplayLedger(START)
        with pytest.raises(Refused, match="expected an integer of at least 1"):
            ledger.issue(at(9), completions)
        assert ledger.outstanding == 0

    @pytest.mark.parametrize(("remaining", "completions", "epoch"), [(9, 2, 1), (10, 1, 1), (8, 1, 2), (100, 1, 2)])
    def test_the_budget_loses_exactly_the_completions_in_the_same_epoch_and_in_a_later_one(
        self, remaining: int, completions: int, epoch: int
    ) -> None:
        ledger = SamplingReplayLedger(START)
        with pytest.raises(Refused, match="lower the remaining budget from 10"):
            ledger.issue(at(remaining, epoch), completions)
        assert ledger.issue(at(8, 2), 2)
        assert ledger.outstanding == 1

    def test_an_epoch_never_falls_behind_what_was_issued_last(self) -> None:
        ledger = SamplingReplayLedger(START)
        ledger.issue(at(9, 3))
        with pytest.raises(Refused, match="its epoch is 2, behind epoch 3"):
            ledger.issue(at(8, 2))

    @pytest.mark.parametrize("bound", [0, -1, True, 1.5])
    def test_a_bound_is_an_integer_from_one(self, bound: Any) -> None:
        with pytest.raises(Refused, match="max_outstanding: expected an integer of at least 1 or None"):
            SamplingReplayLedger(START, max_outstanding=bound)

    def test_a_bound_refuses_one_more_and_names_who_stalls_the_head(self) -> None:
        ledger = SamplingReplayLedger(START, max_outstanding=2)
        head, other = ledger.issue(at(7), 3), ledger.issue(at(6))
        ledger.settle(head, 1)
        with pytest.raises(Refused, match=r"2 pieces .* are outstanding.*work 1 with 1 of 3 completions settled"):
            ledger.issue(at(5))
        ledger.settle(other)
        assert ledger.issue(at(5)).number == 3
        assert ledger.outstanding == 2

    def test_a_number_is_not_used_up_by_what_is_refused(self) -> None:
        ledger = SamplingReplayLedger(START)
        with pytest.raises(Refused):
            ledger.issue(at(3))
        assert ledger.issue(at(9)).number == 1


class TestSettling:
    def test_the_boundary_moves_over_the_settled_head_and_never_over_a_gap(self) -> None:
        ledger = SamplingReplayLedger(START)
        first, second, third = ledger.issue(at(9)), ledger.issue(at(8)), ledger.issue(at(7))
        assert ledger.settle(third)
        assert ledger.boundary == START
        assert ledger.settle(first)
        assert ledger.boundary == at(9)
        assert ledger.settle(second)
        assert ledger.boundary == at(7)
        assert ledger.outstanding == 0

    def test_a_new_settlement_is_true_even_where_the_boundary_stays_and_a_duplicate_is_false(self) -> None:
        ledger = SamplingReplayLedger(START)
        ledger.issue(at(9))
        group = ledger.issue(at(6), 3)
        assert [ledger.settle(group, 2), ledger.settle(group, 2), ledger.settle(group, 0)] == [True, False, True]
        assert ledger.boundary == START
        assert ledger.outstanding == 2

    def test_what_is_wholly_settled_and_waits_for_the_head_is_a_duplicate(self) -> None:
        ledger = SamplingReplayLedger(START)
        ledger.issue(at(9))
        behind = ledger.issue(at(7), 2)
        assert ledger.settle(behind, 0) and ledger.settle(behind, 1)
        assert not ledger.settle(behind, 0)
        with pytest.raises(Refused, match="expected an integer from 0 to 1"):
            ledger.settle(behind, 2)

    @pytest.mark.parametrize("index", [0, 5, -1, True, "0"])
    def test_a_token_that_is_unknown_old_or_retired_is_false_whatever_its_index_is(self, index: Any) -> None:
        ledger = SamplingReplayLedger(START)
        retired, waiting = ledger.issue(at(9)), ledger.issue(at(8))
        ledger.settle(retired)
        before = SamplingReplayLedger(START)
        old = [before.issue(at(9)), before.issue(at(8))][-1]
        assert old.number == waiting.number
        unknown = SamplingToken(ledger.execution_id, 7, 1)
        forged = SamplingToken(ledger.execution_id, waiting.number, 9)
        for token in (retired, old, unknown, forged):
            assert ledger.settle(token, index) is False
        assert ledger.outstanding == 1

    @pytest.mark.parametrize("index", [3, -1, True, False, 0.0, "0", None])
    def test_an_index_out_of_range_is_refused_and_a_bool_is_no_index(self, index: Any) -> None:
        ledger = SamplingReplayLedger(START)
        token = ledger.issue(at(7), 3)
        with pytest.raises(Refused, match="of work 1: expected an integer from 0 to 2; nothing was settled"):
            ledger.settle(token, index)
        assert all(ledger.settle(token, one) for one in range(3))

    @pytest.mark.parametrize("wrong", ["x", 1, None])
    def test_what_is_no_token_settles_nothing_whatever_the_index_is(self, wrong: Any) -> None:
        ledger = SamplingReplayLedger(START)
        token = ledger.issue(at(9))
        assert ledger.settle(wrong, -1) is False
        assert ledger.outstanding == 1
        assert ledger.settle(token)

    def test_an_equal_token_made_elsewhere_settles_the_work(self) -> None:
        ledger = SamplingReplayLedger(START)
        token = ledger.issue(at(9))
        assert ledger.settle(SamplingToken(token.execution_id, token.number, token.completions))


class TestCopies:
    def test_changing_what_was_passed_changes_nothing(self) -> None:
        initial, state = {"offset": 0}, {"offset": 1, "order": [1, 2]}
        ledger = SamplingReplayLedger(SamplingBoundary(1, 10, initial))
        initial["offset"] = 99
        assert ledger.boundary == START
        token = ledger.issue(at(9, state=state))
        state["order"].append(3)  # type: ignore[attr-defined]
        ledger.settle(token)
        assert ledger.boundary.sampler_state == {"offset": 1, "order": [1, 2]}

    def test_changing_what_was_returned_changes_nothing(self) -> None:
        ledger = SamplingReplayLedger(SamplingBoundary(1, 10, {"order": [1]}))
        ledger.boundary.sampler_state["order"].append(2)  # type: ignore[index]
        assert ledger.boundary.sampler_state == {"order": [1]}

    def test_any_value_that_can_be_copied_is_a_sampler_state(self) -> None:
        class Sampler:
            def __init__(self) -> None:
                self.drawn = {3, 4}

        ledger = SamplingReplayLedger(START)
        sampler = Sampler()
        ledger.settle(ledger.issue(at(9, state=sampler)))
        found = ledger.boundary.sampler_state
        assert isinstance(found, Sampler)
        assert found is not sampler
        assert found.drawn == {3, 4}


class State:
    """A sampler state that can be counted."""


class TestMemory:
    def test_the_states_of_what_is_settled_are_forgotten_behind_a_head_that_stalls(self) -> None:
        made: list[weakref.ref[State]] = []

        class Noted(State):
            def __deepcopy__(self, memo: object) -> State:
                copied = State()
                made.append(weakref.ref(copied))
                return copied

        ledger = SamplingReplayLedger(SamplingBoundary(1, 5_000, None))
        head = ledger.issue(SamplingBoundary(1, 4_999, Noted()))
        for remaining in range(4_998, 1_000, -1):
            ledger.settle(ledger.issue(SamplingBoundary(1, remaining, Noted())))
        gc.collect()
        assert ledger.outstanding == 1
        assert len(made) > 3_900
        assert sum(one() is not None for one in made) <= 32
        ledger.settle(head)
        assert ledger.boundary.remaining_completions == 1_001


class TestThreads:
    def test_threads_that_settle_the_same_completions_are_told_so_once_each(self) -> None:
        ledger = SamplingReplayLedger(SamplingBoundary(1, 400, None))
        tokens = [ledger.issue(SamplingBoundary(1, 400 - 4 * (n + 1), n), 4) for n in range(100)]
        won: list[tuple[SamplingToken, int]] = []

        def settle(order: int) -> None:
            for token in tokens[::order]:
                for index in range(4)[::order]:
                    if ledger.settle(token, index):
                        won.append((token, index))

        threads = [threading.Thread(target=settle, args=(order,)) for order in (1, -1, 1, -1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won, key=repr) == sorted(((token, index) for token in tokens for index in range(4)), key=repr)
        assert ledger.boundary == SamplingBoundary(1, 0, 99)
