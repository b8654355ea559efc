"""`journal.sampling`: the ledger in a run, and its records, which ride on the next entry."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from milepost.engines.shapes import shape_of
from milepost.engines.simulated import SimulatedDisk
from milepost.journal import Journal, Refused, SamplingBoundary, SamplingToken
from milepost.journal.driver import HELD, HELD_BYTES
from milepost.journal.log.replay import fold
from milepost.journal.sampling.boundaries import LIMIT_BYTES, boundary_of, point_of
from milepost.transitions.errors import Unavailable
from milepost.transitions.machine import Command, Record, State, decide, evolve
from milepost.transitions.sampling import (
    BeginSampling,
    IssueWork,
    SamplingRestored,
    SettleWork,
    WorkIssued,
    WorkSettled,
)
from milepost.transitions.saving import SaveOpened
from milepost.transitions.updates import ApplyUpdate, OpenUpdate, SkipUpdate
from milepost.transitions.values import SamplingPoint
from tests.crash.histories import small_segments
from tests.sampling.runs import START, at, driver_of, lines, opened, settings, train_to


def sampled(journal: Journal) -> list[Record]:
    kinds = (SamplingRestored, WorkIssued, WorkSettled)
    return [one for entry, _ in journal.history() for one in entry.records if isinstance(one, kinds)]


class TestTheLedgerOfARun:
    def test_it_begins_once_and_says_where_it_is(self, tmp_path: Path) -> None:
        with opened(settings(tmp_path)) as (journal, _):
            ledger = journal.sampling
            assert (ledger.boundary, ledger.outstanding) == (None, 0)
            assert ledger.execution_id == journal.execution_id
            assert ledger.begin(START) == START
            assert ledger.begin(at(3)) == START
            first, second = ledger.issue(at(99)), ledger.issue(at(97), 2)
            assert (first.execution_id, ledger.outstanding) == (journal.execution_id, 2)
            assert ledger.settle(second, 1) and not ledger.settle(second, 1)
            assert ledger.boundary == START
            assert ledger.settle(first) and ledger.boundary == at(99)
            assert ledger.settle(second) and ledger.boundary == at(97)
            assert not ledger.settle(first, 99)

    def test_an_issue_before_any_beginning_implies_it(self, tmp_path: Path) -> None:
        with opened(settings(tmp_path)) as (journal, _):
            journal.sampling.issue(SamplingBoundary(3, 7, "here"), 3)
            assert journal.sampling.boundary == SamplingBoundary(1, 10, None)
            assert journal.sampling.begin(START) == SamplingBoundary(1, 10, None)

    def test_numbers_that_no_line_holds_are_refused_and_the_largest_are_written(self, tmp_path: Path) -> None:
        with opened(settings(tmp_path)) as (journal, _):
            for wrong in (SamplingBoundary(1 << 63, 1, None), SamplingBoundary(1, 1 << 63, None)):
                for call in (journal.sampling.begin, journal.sampling.issue):
                    with pytest.raises(Refused, match="has numbers of 64 bits"):
                        call(wrong)
            largest = (1 << 63) - 1
            journal.sampling.issue(SamplingBoundary(largest, largest, None), largest)
            driver_of(journal).barrier()
            assert fold(driver_log(journal)).state == journal.state

    @pytest.mark.parametrize("completions", [0, True, 1.0, None])
    def test_what_is_refused_begins_nothing(self, completions: Any, tmp_path: Path) -> None:
        with opened(settings(tmp_path)) as (journal, _):
            with pytest.raises(Refused, match="expected an integer of at least 1"):
                journal.sampling.issue(at(99), completions)
            assert journal.sampling.boundary is None

    def test_the_bound_of_the_configuration_refuses_one_more(self, tmp_path: Path) -> None:
        with opened(settings(tmp_path, "sampling.max_outstanding=1")) as (journal, _):
            journal.sampling.begin(START)
            journal.sampling.issue(at(97), 3)
            with pytest.raises(Refused, match="work 1 with 0 of 3 completions settled stalls the head"):
                journal.sampling.issue(at(96))

    def test_snapshots_are_copies_on_their_way_in_and_out(self, tmp_path: Path) -> None:
        with opened(settings(tmp_path)) as (journal, _):
            state = {"order": [1]}
            journal.sampling.begin(SamplingBoundary(1, 5, state))
            state["order"].append(2)
            for _ in range(2):
                boundary = journal.sampling.boundary
                assert boundary is not None
                assert boundary.sampler_state == {"order": [1]}
                boundary.sampler_state["order"].append(3)  # type: ignore[index]

    def test_what_is_no_token_settles_nothing_and_a_closed_run_is_refused(self, tmp_path: Path) -> None:
        with opened(settings(tmp_path)) as (journal, _):
            ledger = journal.sampling
            ledger.begin(START)
            token = ledger.issue(at(99))
            for wrong in ("x", 1, None, (journal.execution_id, 1, 1)):
                assert ledger.settle(wrong, -1) is False  # type: ignore[arg-type]
            assert (ledger.boundary, ledger.outstanding) == (START, 1)
            assert ledger.settle(token)
        with pytest.raises(Refused, match="cannot settle work: the run is ended"):
            journal.sampling.settle(SamplingToken(journal.execution_id, 1, 1))


class TestSamplerStates:
    @pytest.mark.parametrize(
        "state",
        [
            None,
            True,
            False,
            0,
            -(2**70),
            2**70,
            0.1,
            -0.0,
            1e300,
            "",
            'üñ\ud800\n"\\',
            [],
            {},
            [1, 1.0, True, None, "x", {"a": [{"b": []}]}],
            {"z": 1, "a": {"": None}},
        ],
    )
    def test_json_values_come_back_as_they_were_given(self, state: object, tmp_path: Path) -> None:
        given = SamplingBoundary(1, 5, state)
        assert repr(boundary_of(point_of(given))) == repr(given) or state == {"z": 1, "a": {"": None}}
        assert boundary_of(point_of(given)) == given
        with opened(settings(tmp_path)) as (journal, _):
            journal.sampling.begin(given)
            driver_of(journal).barrier()
            assert fold(driver_log(journal)).state.sampling.boundary == point_of(given)

    def test_equal_states_have_one_text(self) -> None:
        one = point_of(SamplingBoundary(1, 5, {"b": [1, 2], "a": "ü"}))
        assert one == point_of(SamplingBoundary(1, 5, {"a": "ü", "b": [1, 2]}))
        assert one.sampler_state == '{"a":"ü","b":[1,2]}'

    @pytest.mark.parametrize(
        ("state", "says"),
        [
            (float("nan"), "sampler_state: expected None, a bool.* found float nan"),
            ({"a": [0, math.inf]}, r"sampler_state\.a\[1\]: .* found float inf"),
            ((1, 2), r"sampler_state: .* found tuple \(1, 2\)"),
            ({"a": {"b": {1, 2}}}, r"sampler_state\.a\.b: .* found set \{1, 2\}"),
            ({"a": {1: 2}}, r"sampler_state\.a: expected keys that are strings, found 1"),
            ([b"x"], r"sampler_state\[0\]: .* found bytes"),
            ([object()], r"sampler_state\[0\]: .* found object"),
            (
                "x" * LIMIT_BYTES,
                f"sampler_state: expected at most {LIMIT_BYTES} bytes of JSON, found {LIMIT_BYTES + 2}",
            ),
        ],
    )
    def test_what_no_journal_holds_is_refused_by_its_path(self, state: object, says: str, tmp_path: Path) -> None:
        with opened(settings(tmp_path)) as (journal, _):
            for call in (journal.sampling.begin, journal.sampling.issue):
                with pytest.raises(Refused, match=says):
                    call(SamplingBoundary(1, 5, state))
            assert journal.sampling.boundary is None

    def test_a_state_that_holds_itself_is_refused(self) -> None:
        state: list[object] = []
        state.append(state)
        with pytest.raises(Refused, match="not nested so deep"):
            point_of(SamplingBoundary(1, 5, state))

    def test_a_subclass_is_not_its_base(self) -> None:
        class Mapping(dict[str, int]): ...

        with pytest.raises(Refused, match="found Mapping"):
            point_of(SamplingBoundary(1, 5, Mapping()))


def driver_log(journal: Journal) -> Any:
    lead = journal._lead
    assert lead is not None
    return lead._opened.log


class TestRecordsThatAreHeldBack:
    def test_they_ride_in_front_of_the_records_of_the_next_entry(self, tmp_path: Path) -> None:
        with opened(settings(tmp_path)) as (journal, _):
            before = lines(journal)
            journal.sampling.begin(START)
            journal.sampling.settle(journal.sampling.issue(at(99)))
            assert lines(journal) == before
            assert journal.state.sampling.boundary == point_of(at(99))
            driver_of(journal).submit(OpenUpdate(step=1))
            assert lines(journal) == before + 1
            *_, (entry, state) = journal.history()
            assert [record.KIND for record in entry.records] == [
                "sampling-restored",
                "work-issued",
                "work-settled",
                "update-opened",
            ]
            assert state == journal.state
            driver_of(journal).submit(ApplyUpdate())

    def test_a_barrier_and_a_look_at_the_history_write_them(self, tmp_path: Path) -> None:
        with opened(settings(tmp_path)) as (journal, _):
            journal.sampling.begin(START)
            witness = driver_of(journal).barrier()
            assert driver_of(journal).head.seq == witness.seq
            assert fold(driver_log(journal)).state == journal.state
            journal.sampling.issue(at(99))
            assert sampled(journal)[-1] == WorkIssued(number=1, completions=1, after=point_of(at(99)))

    def test_what_is_durable_is_never_a_state_with_more_than_its_log(self, tmp_path: Path) -> None:
        with opened(settings(tmp_path)) as (journal, _):
            driver = driver_of(journal)
            journal.sampling.begin(START)
            driver.barrier()
            journal.sampling.issue(at(99))
            assert driver.durable is not None
            mark, state = driver.durable
            folded = fold(driver_log(journal))
            assert (mark.head, state) == (folded.head, folded.state)
            assert state.sampling.issued == 0
            assert journal.state.sampling.issued == 1

    def test_what_is_durable_is_the_state_of_its_mark(self, tmp_path: Path) -> None:
        """Another thread issues while the disk syncs."""
        with opened(settings(tmp_path)) as (journal, _):
            driver = driver_of(journal)
            journal.sampling.begin(START)
            sync = driver._appender.sync

            def syncing() -> int:
                journal.sampling.issue(at(99))
                return sync()

            driver._appender.sync = syncing  # type: ignore[method-assign]
            witness = driver.barrier()
            driver._appender.sync = sync  # type: ignore[method-assign]
            assert driver.durable is not None
            mark, state = driver.durable
            assert (mark.head.seq, state.sampling.issued) == (witness.seq, 0)
            assert journal.state.sampling.issued == 1

    def test_no_more_than_a_fixed_number_is_held_back(self, tmp_path: Path) -> None:
        with opened(settings(tmp_path)) as (journal, _):
            before = lines(journal)
            journal.sampling.begin(SamplingBoundary(1, 10_000, None))
            for number in range(1, HELD):
                journal.sampling.issue(SamplingBoundary(1, 10_000 - number, None))
            assert lines(journal) == before
            journal.sampling.issue(SamplingBoundary(1, 10_000 - HELD, None))
            assert lines(journal) == before + 1
            assert fold(driver_log(journal)).state.sampling.issued == HELD - 1
            assert journal.state.sampling.issued == HELD

    def test_no_more_than_fits_into_a_line_is_held_back_however_it_is_quoted(self, tmp_path: Path) -> None:
        quoted = "\\" * (LIMIT_BYTES // 2 - 8)
        with opened(settings(tmp_path)) as (journal, _):
            before = lines(journal)
            journal.sampling.begin(SamplingBoundary(1, 10, quoted))
            for number in range(1, 5):
                journal.sampling.issue(SamplingBoundary(1, 10 - number, quoted))
            assert lines(journal) == before + 4
            driver_of(journal).barrier()
            assert fold(driver_log(journal)).state == journal.state
        assert HELD_BYTES >= LIMIT_BYTES

    def test_what_is_too_long_together_is_two_entries(self, tmp_path: Path) -> None:
        quoted = "\\" * (LIMIT_BYTES // 2 - 8)
        with opened(settings(tmp_path)) as (journal, _):
            driver = driver_of(journal)
            driver.submit(OpenUpdate(step=1))
            journal.sampling.begin(SamplingBoundary(1, 10, quoted))
            before = lines(journal)
            driver.submit(SkipUpdate(why="x" * 600_000))
            assert lines(journal) == before + 2
            driver.submit(OpenUpdate(step=2))
            journal.sampling.issue(SamplingBoundary(1, 9, quoted))
            with pytest.raises(Refused, match="a line of the journal holds at most"):
                driver.submit(SkipUpdate(why="x" * (1 << 20)))
            assert lines(journal) == before + 4  # what was held back is there, and the other is not
            assert fold(driver_log(journal)).state == journal.state
            driver.submit(SkipUpdate(why="inf"))

    def test_they_follow_the_header_where_the_segment_is_full(self) -> None:
        disk = SimulatedDisk()
        with small_segments(), opened(settings("/simulated"), disk=disk) as (journal, _):
            journal.sampling.begin(SamplingBoundary(1, 1_000, None))
            for number in range(1, 400):
                journal.sampling.settle(journal.sampling.issue(SamplingBoundary(1, 1_000 - number, None)))
                if number % 7 == 0:
                    driver_of(journal).barrier()
                    folded = fold(driver_log(journal))
                    assert (folded.state, folded.head) == (journal.state, driver_of(journal).head)
            assert journal.state.run.segment > 3

    def test_a_close_writes_them(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match="this file was closed"), opened(settings(tmp_path)) as (journal, _):
            journal.sampling.begin(START)
            driver_of(journal).close()
            assert fold(driver_log(journal)).state.sampling.boundary == point_of(START)

    def test_records_that_a_refused_command_leaves_are_none(self, tmp_path: Path) -> None:
        with opened(settings(tmp_path)) as (journal, _):
            journal.sampling.begin(START)
            before = journal.state
            for command in (lambda: journal.sampling.issue(at(50)), lambda: journal.sampling.issue(at(101))):
                with pytest.raises(Refused):
                    command()
            assert journal.state == before
            assert [type(record) for record in sampled(journal)] == [SamplingRestored]

    def test_the_log_of_a_run_folds_to_the_state_that_was_published(self, tmp_path: Path) -> None:
        with opened(settings(tmp_path)) as (journal, training):
            journal.sampling.begin(START)
            tokens = [journal.sampling.issue(at(100 - 2 * number), 2) for number in range(1, 9)]
            train_to(journal, training, 3)
            for token in (*tokens[4:], *tokens[:3]):
                journal.sampling.settle(token, 1)
                journal.sampling.settle(token)
            train_to(journal, training, 5)
            state = journal.state
            assert state.sampling.boundary == point_of(at(94))
            *_, (_, folded) = journal.history()
            assert folded == state

    def test_a_save_has_what_was_held_back_before_it_in_its_own_entry(self, tmp_path: Path) -> None:
        with opened(settings(tmp_path)) as (journal, training):
            journal.sampling.begin(START)
            train_to(journal, training, 1)
            journal.sampling.settle(journal.sampling.issue(at(99)))
            journal.save(1)
            (entry,) = (e for e, _ in journal.history() if any(isinstance(one, SaveOpened) for one in e.records))
            assert [one.KIND for one in entry.records] == ["work-issued", "work-settled", "save-opened"]


def test_threads_may_issue_and_settle_while_the_loop_trains_and_saves(tmp_path: Path) -> None:
    with opened(settings(tmp_path, "save_every=1")) as (journal, training):
        ledger = journal.sampling
        ledger.begin(SamplingBoundary(1, 10_000, 0))
        issuing = threading.Lock()
        won: list[SamplingToken] = []

        def work(order: int) -> None:
            tokens = []
            for _ in range(400):
                with issuing:  # a sampler gives one piece after the other
                    tail = journal.state.sampling.tail
                    assert tail is not None
                    tokens.append(ledger.issue(SamplingBoundary(1, tail.remaining - 2, tail.remaining), 2))
                for token in tokens[-3::order]:
                    won.extend(token for index in (1, 0) if ledger.settle(token, index))
            for token in tokens:
                won.extend(token for index in (0, 1) if ledger.settle(token, index))

        threads = [threading.Thread(target=work, args=(order,)) for order in (1, 2, 3)]
        for thread in threads:
            thread.start()
        train_to(journal, training, 4)
        for thread in threads:
            thread.join()
        state = journal.state
        assert (ledger.outstanding, state.sampling.head) == (0, state.sampling.issued + 1)
        assert Counter(won) == dict.fromkeys(won, 2) and len(set(won)) == state.sampling.issued
        driver_of(journal).barrier()
        assert fold(driver_log(journal)).state == journal.state


def test_the_state_of_a_run_that_samples_is_kept_in_the_fold_cache(tmp_path: Path) -> None:
    with opened(settings(tmp_path)) as (journal, _):
        journal.sampling.begin(START)
        tokens = [journal.sampling.issue(at(98 - 2 * number), 2) for number in range(5)]
        for token in (*tokens[1:3], tokens[4]):
            journal.sampling.settle(token)
        journal.sampling.settle(tokens[2], 1)
        shape = shape_of(State)
        assert shape.read(orjson.loads(orjson.dumps(shape.write(journal.state)))) == journal.state
        assert journal.state.sampling.stretches and len(journal.state.sampling.partly) == 2


def test_what_the_driver_publishes_is_what_decide_and_evolve_of_the_machine_make(tmp_path: Path) -> None:
    with opened(settings(tmp_path)) as (journal, _):
        driver, state = driver_of(journal), journal.state
        points = [SamplingPoint(epoch=1 + n, remaining=98 - n, sampler_state=str(n)) for n in range(2)]
        tokens = [SamplingToken(journal.execution_id, 1, 2), SamplingToken(journal.execution_id, 2, 1)]
        calls: tuple[tuple[Command, Callable[[], object]], ...] = (
            (
                IssueWork(after=points[0], completions=2),
                lambda: driver.issue_work(points[0], completions=2, limit=0, size=1),
            ),
            (BeginSampling(initial=points[1]), lambda: driver.begin_sampling(points[1], size=1)),
            (
                IssueWork(after=points[1], completions=1),
                lambda: driver.issue_work(points[1], completions=1, limit=0, size=1),
            ),
            (SettleWork(token=tokens[1], index=0), lambda: driver.settle_work(tokens[1], index=0)),
            (SettleWork(token=tokens[0], index=1), lambda: driver.settle_work(tokens[0], index=1)),
            (SettleWork(token=tokens[0], index=1), lambda: driver.settle_work(tokens[0], index=1)),
            (SettleWork(token=tokens[0], index=0), lambda: driver.settle_work(tokens[0], index=0)),
        )
        decided: list[Record] = []
        for command, call in calls:
            records = decide(state, command)
            for record in records:
                state = evolve(state, record)
            decided += records
            call()
            assert journal.state == state
        assert sampled(journal) == decided
