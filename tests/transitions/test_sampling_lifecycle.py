"""What is issued, what is settled, and the boundary behind which nothing is lost: clause by clause."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve as replaced

from milepost.transitions import sampling
from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.machine import Command, Record, State, decide, due, evolve
from milepost.transitions.run import AdoptResume, EndRun, RunResumed
from milepost.transitions.sampling import (
    BeginSampling,
    Carried,
    IssueWork,
    Sampling,
    SamplingRestored,
    SamplingStage,
    SamplingToken,
    SettleWork,
    Stretch,
    WorkIssued,
    WorkSettled,
)
from milepost.transitions.saving import (
    OpenSave,
    ReportGivenUp,
    ReportSealed,
    ReportStored,
    SaveAbandoned,
    SaveOpened,
    SaveSealed,
    StorePayload,
)
from milepost.transitions.values import FULL, Clocks, Mode, Outcome, Plan, Reason, ResumeKind, SamplingPoint, SaveId
from tests.transitions.samples import MANIFEST, PARTIAL, RESUMED_RUN, open_run_command, stored_of

RUN = State(run=RESUMED_RUN)
EXECUTION = "execution"
START = SamplingPoint(epoch=1, remaining=10, sampler_state='"start"')


def after(state: State, *commands: Command) -> State:
    for command in commands:
        for record in decide(state, command):
            state = evolve(state, record)
    return state


def point(remaining: int, *, epoch: int = 1) -> SamplingPoint:
    return SamplingPoint(epoch=epoch, remaining=remaining, sampler_state=f'"{epoch}:{remaining}"')


def issue(remaining: int, completions: int = 1, *, epoch: int = 1, limit: int = 0) -> IssueWork:
    return IssueWork(after=point(remaining, epoch=epoch), completions=completions, limit=limit)


def settle(number: int, index: int = 0, *, completions: int = 1, execution_id: str = EXECUTION) -> SettleWork:
    return SettleWork(token=SamplingToken(execution_id, number, completions), index=index)


BEGUN = after(RUN, BeginSampling(initial=START))
THREE = after(BEGUN, issue(9), issue(7, 2), issue(6))
"""Works 1, 2 of two completions, and 3, none of them settled."""


class TestBeginning:
    def test_an_execution_begins_once_and_keeps_its_boundary(self) -> None:
        assert decide(RUN, BeginSampling(initial=START)) == (SamplingRestored(boundary=START),)
        assert decide(BEGUN, BeginSampling(initial=point(3))) == ()
        assert BEGUN.sampling == Sampling(stage=SamplingStage.BEGUN, boundary=START, tail=START)

    def test_the_first_issue_of_all_implies_epoch_one_and_the_whole_budget(self) -> None:
        implied = SamplingPoint(epoch=1, remaining=10, sampler_state="null")
        assert decide(RUN, issue(7, 3)) == (
            SamplingRestored(boundary=implied),
            WorkIssued(number=1, completions=3, after=point(7)),
        )

    @pytest.mark.parametrize("completions", [0, -4, True])
    def test_no_beginning_is_implied_by_what_is_refused(self, completions: int) -> None:
        with pytest.raises(Refused, match=f"work of {completions!r} completions: expected an integer of at least 1"):
            decide(RUN, issue(7, completions))

    def test_a_resume_and_what_its_checkpoint_carried_are_one_decision(self) -> None:
        opened = after(State(), open_run_command())
        adopted = AdoptResume(
            resume=ResumeKind.FRESH, step=0, source="", save=None, clocks=Clocks(), passed_over=(), sampling=START
        )
        records = decide(opened, adopted)
        assert [type(record) for record in records] == [RunResumed, SamplingRestored]
        assert after(opened, adopted).sampling.boundary == START
        assert [type(record) for record in decide(opened, replaced(adopted, sampling=None))] == [RunResumed]

    @pytest.mark.parametrize("wrong", [point(1, epoch=0), point(-1)])
    def test_a_boundary_out_of_range_is_illegal(self, wrong: SamplingPoint) -> None:
        with pytest.raises(IllegalTransition, match="expected an epoch of at least 1 and a budget"):
            evolve(RUN, SamplingRestored(boundary=wrong))


class TestIssuing:
    def test_work_gets_the_next_number_and_moves_the_tail_alone(self) -> None:
        state = after(BEGUN, issue(9), issue(7, 2))
        assert state.sampling.boundary == START
        assert state.sampling.tail == point(7)
        assert (state.sampling.issued, state.sampling.head) == (2, 1)
        assert sorted(state.sampling.outstanding) == [1, 2]

    @pytest.mark.parametrize("completions", [0, -1, 1 << 63, True, 1.0, "1", None])
    def test_completions_are_integers_from_one(self, completions: Any) -> None:
        with pytest.raises(Refused, match="expected an integer of at least 1, in 64 bits; nothing was issued"):
            decide(BEGUN, IssueWork(after=point(9), completions=completions))

    @pytest.mark.parametrize(("remaining", "completions"), [(8, 1), (10, 1), (9, 2), (11, 1)])
    def test_the_budget_loses_exactly_the_completions(self, remaining: int, completions: int) -> None:
        lowered = f"from 10 to {10 - completions}, found {remaining}"
        with pytest.raises(Refused, match=f"{completions} completions lower the remaining budget {lowered}"):
            decide(BEGUN, issue(remaining, completions))

    def test_the_budget_goes_on_through_a_change_of_epoch(self) -> None:
        state = after(BEGUN, issue(9), issue(8, epoch=2), issue(7, epoch=5))
        assert state.sampling.tail == point(7, epoch=5)
        for remaining in (100, 8, 5):
            with pytest.raises(Refused, match="the budget goes on through a change of epoch"):
                decide(state, issue(remaining, epoch=6))

    def test_an_epoch_never_falls(self) -> None:
        state = after(BEGUN, issue(9, epoch=3))
        with pytest.raises(Refused, match="its epoch is 2, behind epoch 3: an epoch never falls"):
            decide(state, issue(8, epoch=2))

    def test_a_budget_is_used_up_and_no_further(self) -> None:
        state = after(BEGUN, issue(0, 10))
        with pytest.raises(Refused, match="1 completions that leave -1"):
            decide(state, issue(-1))

    def test_a_bound_refuses_one_more_and_names_what_stalls_the_head(self) -> None:
        state = after(THREE, settle(1), settle(3), settle(2, 1, completions=2))
        assert len(state.sampling.outstanding) == 1
        assert decide(state, issue(5, limit=2)) == (WorkIssued(number=4, completions=1, after=point(5)),)
        with pytest.raises(Refused) as refused:
            decide(state, issue(5, limit=1))
        assert str(refused.value).startswith(
            "1 pieces of work are outstanding, and at most 1 may be: work 2 with 1 of 2 completions settled stalls "
            "the head"
        )

    @pytest.mark.parametrize(
        ("record", "says"),
        [
            (WorkIssued(number=5, completions=1, after=point(5)), "work 5 where work 4 comes next"),
            (WorkIssued(number=4, completions=2, after=point(5)), "lower the remaining budget from 6 to 4, found 5"),
            (WorkIssued(number=4, completions=1, after=point(5, epoch=0)), "its epoch is 0, behind epoch 1"),
            (WorkSettled(number=4, index=0), "completion 0 of work 4 was settled, and it is not outstanding"),
            (WorkSettled(number=2, index=2), "completion 2 of work 2 was settled, and it is not outstanding"),
            (WorkSettled(number=2, index=-1), "completion -1 of work 2 was settled, and it is not outstanding"),
        ],
    )
    def test_a_record_that_contradicts_the_ledger_is_illegal(self, record: Record, says: str) -> None:
        with pytest.raises(IllegalTransition, match=says):
            evolve(THREE, record)

    def test_a_completion_is_settled_once_in_the_records_too(self) -> None:
        state = after(THREE, settle(2, 1, completions=2))
        with pytest.raises(IllegalTransition, match="completion 1 of work 2 was settled"):
            evolve(state, WorkSettled(number=2, index=1))


class TestSettling:
    def test_the_boundary_never_passes_a_gap(self) -> None:
        state = after(THREE, settle(3), settle(2, completions=2))
        assert state.sampling.boundary == START
        state = after(state, settle(1))
        assert state.sampling.boundary == point(9)
        state = after(state, settle(2, 1, completions=2))
        assert state.sampling.boundary == state.sampling.tail == point(6)
        assert not state.sampling.outstanding
        assert not state.sampling.stretches

    def test_a_group_counts_when_the_last_of_it_is_settled_in_any_order(self) -> None:
        state = after(BEGUN, issue(7, 3), settle(1, 2, completions=3), settle(1, 0, completions=3))
        assert state.sampling.boundary == START
        assert after(state, settle(1, 1, completions=3)).sampling.boundary == point(7)

    def test_a_settlement_is_new_even_where_the_boundary_stays(self) -> None:
        assert decide(THREE, settle(3)) == (WorkSettled(number=3, index=0),)

    @pytest.mark.parametrize("index", [0, 99, -1, True, None])
    @pytest.mark.parametrize(
        "token",
        [
            SamplingToken(EXECUTION, 9, 1),
            SamplingToken(EXECUTION, 0, 1),
            SamplingToken(EXECUTION, 1, 1),
            SamplingToken(EXECUTION, 2, 1),
            SamplingToken(EXECUTION, True, 1),
            SamplingToken("another", 3, 1),
        ],
        ids=["unknown", "no number", "retired", "another size", "bool", "another execution"],
    )
    def test_what_is_not_known_settles_nothing_whatever_its_index_is(self, token: SamplingToken, index: Any) -> None:
        state = after(THREE, settle(1))
        assert decide(state, SettleWork(token=token, index=index)) == ()

    def test_everything_is_retired_where_all_is_settled(self) -> None:
        state = after(BEGUN, issue(9), settle(1))
        assert decide(state, settle(1, 7)) == ()
        assert decide(state, settle(2, 7)) == ()

    @pytest.mark.parametrize("index", [2, -1, True, False, 0.0, "0", None])
    def test_an_index_out_of_range_is_refused(self, index: Any) -> None:
        with pytest.raises(Refused, match="of work 2: expected an integer from 0 to 1; nothing was settled"):
            decide(THREE, settle(2, index, completions=2))

    def test_a_duplicate_settles_nothing(self) -> None:
        state = after(THREE, settle(2, 1, completions=2), settle(3))
        assert decide(state, settle(2, 1, completions=2)) == ()
        assert decide(state, settle(3)) == ()
        with pytest.raises(Refused, match="completion 1 of work 3: expected an integer from 0 to 0"):
            decide(state, settle(3, 1))

    def test_what_is_settled_joins_what_is_settled_around_it(self) -> None:
        state = after(BEGUN, *(issue(9 - number) for number in range(7)))
        state = after(state, settle(3), settle(5), settle(4))
        whole = Stretch(first=3, last=5, after=point(5))
        assert dict(state.sampling.stretches) == {3: whole, 5: whole}
        state = after(state, settle(7), settle(6))
        whole = Stretch(first=3, last=7, after=point(3))
        assert dict(state.sampling.stretches) == {3: whole, 7: whole}
        state = after(state, settle(2))
        whole = Stretch(first=2, last=7, after=point(3))
        assert dict(state.sampling.stretches) == {2: whole, 7: whole}
        state = after(state, settle(1))
        assert state.sampling == Sampling(
            stage=SamplingStage.BEGUN, boundary=point(3), tail=point(3), issued=7, head=8
        )

    def test_what_is_held_depends_on_what_is_outstanding_alone(self) -> None:
        state = after(BEGUN, IssueWork(after=point(9), completions=1))
        state = replaced(state, sampling=replaced(state.sampling, tail=point(1000)))
        for number in range(2, 300):
            state = after(state, issue(1001 - number), settle(number))
        assert sorted(state.sampling.outstanding) == [1]
        assert len(state.sampling.stretches) == 2


class TestExecutions:
    def test_an_opening_empties_what_is_outstanding_and_numbers_go_on(self) -> None:
        state = after(THREE, settle(3), replaced(open_run_command(segment=2), execution_id="second"))
        assert state.sampling == Sampling(issued=3, head=4)
        state = replaced(state, run=replaced(state.run, resumed=RESUMED_RUN.resumed))
        for token in (settle(1), settle(2, completions=2), settle(3)):
            assert decide(state, token) == ()
        state = after(state, BeginSampling(initial=START), issue(9))
        assert state.sampling.issued == 4
        assert decide(state, settle(1)) == decide(state, settle(4)) == ()
        assert decide(state, settle(4, execution_id="second")) == (WorkSettled(number=4, index=0),)

    @pytest.mark.parametrize(
        ("command", "what"),
        [(BeginSampling(initial=START), "begin sampling"), (issue(9), "issue work"), (settle(1), "settle work")],
    )
    def test_a_run_that_is_not_open_and_resumed_samples_nothing(self, command: Command, what: str) -> None:
        ended = after(THREE, EndRun(outcome=Outcome.COMPLETED, step=1))
        with pytest.raises(Refused, match=f"cannot {what}: the run is ended"):
            decide(ended, command)
        with pytest.raises(Refused, match=f"cannot {what}: epoch 2 has not decided"):
            decide(after(THREE, open_run_command(segment=2)), command)


def open_save(step: int, plan: Plan = FULL) -> OpenSave:
    return OpenSave(step=step, plan=plan, reason=Reason.CADENCE, mode=Mode.SYNCHRONOUS)


class TestSaves:
    SAVE = SaveId(3, 1, 1)

    def test_a_full_save_carries_the_boundary_of_the_moment_in_which_it_is_opened(self) -> None:
        state = after(THREE, settle(1), open_save(3), settle(2, 0, completions=2), settle(2, 1, completions=2))
        assert state.sampling.boundary == point(7)
        assert state.sampling.carried == Carried(save=self.SAVE, boundary=point(9))
        assert due(state)[0] == StorePayload(save=self.SAVE, plan=FULL, sampling=point(9))

    def test_an_artifact_and_a_run_without_a_boundary_carry_nothing(self) -> None:
        for state in (after(THREE, open_save(3, PARTIAL)), after(RUN, open_save(3))):
            assert state.sampling.carried is None
            (store,) = (effect for effect in due(state) if isinstance(effect, StorePayload))
            assert store.sampling is None

    def test_what_was_carried_is_dropped_with_the_save(self) -> None:
        state = after(THREE, open_save(3))
        assert after(state, ReportGivenUp(save=self.SAVE, code="no-space", detail="")).sampling.carried is None
        stored = after(state, ReportStored(save=self.SAVE, components=stored_of(FULL)))
        assert stored.sampling.carried is not None
        assert after(stored, ReportSealed(save=self.SAVE, manifest=MANIFEST)).sampling == THREE.sampling

    def test_what_an_open_save_carries_outlives_its_writer(self) -> None:
        state = after(THREE, open_save(3), open_run_command(segment=2))
        assert state.sampling.carried == Carried(save=self.SAVE, boundary=START)
        assert state.sampling.boundary is None

    @pytest.mark.parametrize("kind", [SaveOpened, SaveSealed, SaveAbandoned])
    def test_a_room_that_nobody_uses_is_left_as_it_is(self, kind: type) -> None:
        opened = SaveOpened(save=self.SAVE, plan=FULL, reason=Reason.CADENCE, mode=Mode.SYNCHRONOUS, why="")
        room = Sampling()
        moved = {
            SaveOpened: lambda: sampling.on_save_opened(room, opened),
            SaveSealed: lambda: sampling.on_save_settled(room, SaveSealed(save=self.SAVE, manifest=MANIFEST)),
            SaveAbandoned: lambda: sampling.on_save_settled(
                room, SaveAbandoned(save=self.SAVE, code="no-space", detail="")
            ),
        }[kind]()
        assert moved is room
