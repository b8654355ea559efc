"""Every clause of the replay ledger has a check that notices when it is broken: one planted mistake each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.crash import sampled as crashes
from tests.crash.bugs import Bug, require_caught, require_sound
from tests.sampling import test_ledger_histories as histories
from tests.sampling import test_recorded_ledger as recorded
from tests.sampling import test_replay_ledger as alone
from tests.sampling import test_resuming_samples as resuming
from tests.transitions import test_sampling_lifecycle as lifecycle

ROOM = "transitions.sampling"
MACHINE = "transitions.machine"
DRIVER = "journal.driver:Driver"
LINE = "journal.sampling.live:LiveLine"
FOLDING = "journal.sampling.live:FoldingLine"
LEDGER = "journal.sampling.ledger:SamplingReplayLedger"
BOUNDARIES = "journal.sampling.boundaries"
FILE = "engines.checkpoints.sampled"

issuing, settling, copies = alone.TestIssuing(), alone.TestSettling(), alone.TestCopies()
groups, executions, saves = lifecycle.TestSettling(), lifecycle.TestExecutions(), lifecycle.TestSaves()
held, states = recorded.TestRecordsThatAreHeldBack(), recorded.TestSamplerStates()
resumes, files, damage = resuming.TestResuming(), resuming.TestTheFile(), resuming.TestDamage()


def within(check: Callable[[Path], None]) -> Callable[[], None]:
    """The check, in a folder of its own."""

    def checked() -> None:
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))

    checked.__name__ = getattr(check, "__name__", "checked")
    return checked


def what_is_not_known_is_false() -> None:
    for index in (0, 5, True):
        settling.test_a_token_that_is_unknown_old_or_retired_is_false_whatever_its_index_is(index)


def lines_fold() -> None:
    """The first example that fails is enough here."""
    run_state_machine_as_test(
        histories.Folds, settings=settings(stateful_step_count=40, max_examples=40, phases=[Phase.generate])
    )


def a_bool_is_no_count() -> None:
    issuing.test_completions_are_integers_from_one(True)


def a_bool_is_no_index() -> None:
    settling.test_an_index_out_of_range_is_refused_and_a_bool_is_no_index(True)


def a_bool_is_no_epoch() -> None:
    alone.TestBoundaries().test_an_epoch_is_an_integer_from_one(True)


def the_budget_goes_on() -> None:
    for remaining, epoch in ((10, 1), (8, 2), (100, 2)):
        issuing.test_the_budget_loses_exactly_the_completions_in_the_same_epoch_and_in_a_later_one(
            remaining, 1, epoch
        )


def a_tuple_is_no_list() -> None:
    with tempfile.TemporaryDirectory() as folder:
        states.test_what_no_journal_holds_is_refused_by_its_path((1, 2), r"found tuple", Path(folder))


def other_bytes_are_corrupt(folder: Path) -> None:
    damage.test_other_bytes_are_corrupt_whether_or_not_payload_is_verified(folder, "verify_on_resume=false")


def no_boundary_is_told_apart(folder: Path) -> None:
    damage.test_what_is_proven_and_no_boundary_is_told_apart(
        folder, {"epoch": 0}, resuming.Corrupt, "expected an epoch from 1"
    )


def bug(name: str, where: str, old: str, new: str, by: Callable[[], None]) -> Bug:
    return Bug(name, where, ((old, new),), by)


BUGS = (
    bug(
        "the boundary passes a gap",
        f"{ROOM}:_moved",
        "if number == sampling.head:",
        "if True:",
        groups.test_the_boundary_never_passes_a_gap,
    ),
    bug(
        "the boundary of a live writer passes a gap",
        f"{LINE}.settle",
        "if number == self.head:",
        "if True:",
        settling.test_the_boundary_moves_over_the_settled_head_and_never_over_a_gap,
    ),
    bug(
        "the boundary of a live writer stays in front of what is settled behind the head",
        f"{LINE}.settle",
        "behind = self._take(number + 1) if self.stretches else None",
        "behind = None",
        settling.test_the_boundary_moves_over_the_settled_head_and_never_over_a_gap,
    ),
    bug(
        "a live writer does not join what is settled",
        f"{LINE}.settle",
        "front = self._take(number - 1)",
        "front = None",
        lines_fold,
    ),
    bug(
        "part of a group is all of it to a live writer",
        f"{LINE}.settle",
        "if len(indices) < work.completions:",
        "if False:",
        settling.test_a_new_settlement_is_true_even_where_the_boundary_stays_and_a_duplicate_is_false,
    ),
    bug(
        "the state forgets a stretch that was taken",
        f"{FOLDING}._take",
        "self._touched.update((stretch.first, stretch.last))",
        "pass",
        histories.test_a_fold_forgets_the_stretches_that_were_joined_or_passed_since_the_one_before,
    ),
    bug(
        "the state does not hear of a settlement",
        f"{FOLDING}.settle",
        "self._touched.add(record.number)",
        "pass",
        lines_fold,
    ),
    bug(
        "the line of a live writer outlives its execution",
        f"{FOLDING}.behind",
        "if sampling.boundary is base.boundary and sampling.outstanding is base.outstanding:",
        "if True:",
        lines_fold,
    ),
    bug(
        "the boundary stays in front of what is settled behind the head",
        f"{ROOM}:_moved",
        "if behind is None:",
        "if True:",
        groups.test_the_boundary_never_passes_a_gap,
    ),
    bug(
        "what is settled behind is not joined",
        f"{ROOM}:_moved",
        "if front is not None:",
        "if False:",
        groups.test_what_is_settled_joins_what_is_settled_around_it,
    ),
    bug(
        "part of a group is all of it",
        f"{ROOM}:on_settled",
        "if len(settled) + 1 < work.completions:",
        "if False:",
        groups.test_a_group_counts_when_the_last_of_it_is_settled_in_any_order,
    ),
    bug(
        "a duplicate is counted",
        f"{ROOM}:settled",
        "if work is None or index in line.partly.get(number, ()):",
        "if work is None:",
        settling.test_a_new_settlement_is_true_even_where_the_boundary_stays_and_a_duplicate_is_false,
    ),
    bug(
        "a record may settle twice",
        f"{ROOM}:on_settled",
        " or index in settled:",
        ":",
        lifecycle.TestIssuing().test_a_completion_is_settled_once_in_the_records_too,
    ),
    bug(
        "an old token is accepted",
        f"{ROOM}:settled",
        "token.execution_id != execution_id or ",
        "",
        what_is_not_known_is_false,
    ),
    bug(
        "a retired token is accepted",
        f"{ROOM}:settled",
        "line.head < number <= line.issued",
        "number <= line.issued",
        what_is_not_known_is_false,
    ),
    bug(
        "an unknown token is accepted",
        f"{ROOM}:settled",
        "line.head < number <= line.issued",
        "line.head < number",
        what_is_not_known_is_false,
    ),
    bug(
        "a forged token is accepted",
        f"{ROOM}:settled",
        "(work is None or work.completions != token.completions)",
        "work is None",
        what_is_not_known_is_false,
    ),
    Bug(
        "the index is looked at first",
        f"{ROOM}:settled",
        (
            (
                "number = token.number",
                "number = token.number\nif type(index) is not int or not 0 <= index < token.completions:\n"
                "    raise Refused('out of range')",
            ),
        ),
        what_is_not_known_is_false,
    ),
    bug(
        "the budget is lost at a change of epoch",
        f"{ROOM}:_misfit",
        "if tail.remaining - after.remaining != completions:",
        "if after.epoch == tail.epoch and tail.remaining - after.remaining != completions:",
        the_budget_goes_on,
    ),
    bug(
        "an epoch falls",
        f"{ROOM}:_misfit",
        "if after.epoch < tail.epoch:",
        "if False:",
        issuing.test_an_epoch_never_falls_behind_what_was_issued_last,
    ),
    bug(
        "a bool is a count",
        f"{ROOM}:_counted",
        "type(completions) is not int",
        "not isinstance(completions, int)",
        a_bool_is_no_count,
    ),
    bug(
        "a bool is an index",
        f"{ROOM}:settled",
        "type(index) is not int",
        "not isinstance(index, int)",
        a_bool_is_no_index,
    ),
    bug(
        "a bool is an epoch",
        f"{BOUNDARIES}:SamplingBoundary.__attrs_post_init__",
        "type(value) is not int",
        "not isinstance(value, int)",
        a_bool_is_no_epoch,
    ),
    bug(
        "the bound is not looked at",
        f"{ROOM}:issued",
        "if 0 < limit <= len(line.outstanding):",
        "if False:",
        issuing.test_a_bound_refuses_one_more_and_names_who_stalls_the_head,
    ),
    bug(
        "a snapshot is the caller's own",
        f"{LEDGER}._keep",
        "copy.deepcopy(boundary.sampler_state)",
        "boundary.sampler_state",
        copies.test_changing_what_was_passed_changes_nothing,
    ),
    bug(
        "a snapshot is the ledger's own",
        f"{LEDGER}.boundary",
        "copy.deepcopy(self._states[point.sampler_state])",
        "self._states[point.sampler_state]",
        copies.test_changing_what_was_returned_changes_nothing,
    ),
    bug(
        "what is settled is remembered for ever",
        f"{LEDGER}._forget",
        "if len(self._states) <= 2 * (len(line.outstanding) + len(line.stretches)) + _SPARE:",
        "if True:",
        alone.TestMemory().test_the_states_of_what_is_settled_are_forgotten_behind_a_head_that_stalls,
    ),
    bug(
        "what is outstanding outlives its execution",
        f"{ROOM}:on_run_opened",
        "return Sampling(stage=stage, issued=sampling.issued, head=sampling.issued + 1, carried=sampling.carried)",
        "return evolve(sampling, stage=stage, boundary=None, tail=None)",
        executions.test_an_opening_empties_what_is_outstanding_and_numbers_go_on,
    ),
    bug(
        "numbers begin again",
        f"{ROOM}:on_run_opened",
        "issued=sampling.issued, head=sampling.issued + 1",
        "issued=0, head=1",
        executions.test_an_opening_empties_what_is_outstanding_and_numbers_go_on,
    ),
    bug(
        "a save carries the boundary of its end",
        f"{MACHINE}:due",
        "sampling=state.sampling.carried.boundary if state.sampling.carried is not None else None,",
        "sampling=state.sampling.boundary,",
        crashes.what_a_save_carries_is_what_was_settled_when_it_was_opened,
    ),
    bug(
        "an artifact carries a boundary",
        f"{ROOM}:on_save_opened",
        " or record.plan != FULL:",
        ":",
        saves.test_an_artifact_and_a_run_without_a_boundary_carry_nothing,
    ),
    bug(
        "what was carried outlives its save",
        f"{ROOM}:on_save_settled",
        "return sampling if sampling.carried is None else evolve(sampling, carried=None)",
        "return sampling",
        saves.test_what_was_carried_is_dropped_with_the_save,
    ),
    bug(
        "a resume forgets what its checkpoint carries",
        f"{MACHINE}:_adopt",
        "*sampling.restore(command.sampling)",
        "*sampling.restore(None)",
        crashes.what_a_save_carries_is_what_was_settled_when_it_was_opened,
    ),
    bug(
        "a save does not write what it carries",
        "engines.perform:Engines._with_sampling",
        "if effect.sampling is None or",
        "if True or",
        crashes.what_a_save_carries_is_what_was_settled_when_it_was_opened,
    ),
    bug(
        "a barrier leaves behind what is held back",
        f"{DRIVER}.barrier",
        "self.flush()",
        "self._require_sound()",
        crashes.a_barrier_takes_along_what_was_held_back,
    ),
    bug(
        "an entry loses what is held back",
        f"{DRIVER}._append",
        "line, head = self._pack((*self._held, *records), state)",
        "line, head = self._pack(records, state)",
        within(held.test_they_ride_in_front_of_the_records_of_the_next_entry),
    ),
    bug(
        "what is held back is written again",
        f"{DRIVER}._append",
        "self._held, self._held_bytes = [], 0",
        "pass",
        within(held.test_a_barrier_and_a_look_at_the_history_write_them),
    ),
    bug(
        "a rotation loses what is held back",
        f"{DRIVER}._append",
        "self._rotate()",
        "self._rotate()\nself._held = []",
        held.test_they_follow_the_header_where_the_segment_is_full,
    ),
    bug(
        "a close loses what is held back",
        f"{DRIVER}.close",
        "self.flush()",
        "pass",
        within(held.test_a_close_writes_them),
    ),
    bug(
        "any number is held back",
        f"{DRIVER}._make_room",
        "len(self._held) >= HELD or ",
        "",
        within(held.test_no_more_than_a_fixed_number_is_held_back),
    ),
    bug(
        "any size is held back",
        f"{DRIVER}._make_room",
        " or self._held_bytes + size > HELD_BYTES",
        "",
        within(held.test_no_more_than_fits_into_a_line_is_held_back_however_it_is_quoted),
    ),
    bug(
        "what is too long together is refused",
        f"{DRIVER}._append",
        "if not (self._held and records):",
        "if True:",
        within(held.test_what_is_too_long_together_is_two_entries),
    ),
    bug(
        "what is durable is what was published",
        f"{DRIVER}.barrier",
        "self._durable = (mark, state)",
        "self._durable = (mark, self.state)",
        within(held.test_what_is_durable_is_the_state_of_its_mark),
    ),
    bug(
        "a tuple is a list",
        f"{BOUNDARIES}:_require_json",
        "if kind is list:",
        "if kind in (list, tuple):",
        a_tuple_is_no_list,
    ),
    bug(
        "the file is believed",
        f"{FILE}:read",
        "if digester.digest != file.digest:",
        "if False:",
        within(other_bytes_are_corrupt),
    ),
    bug(
        "what the file says is believed",
        f"{FILE}:read",
        "if point.epoch < 1 or point.remaining < 0 or not _is_json(point.sampler_state):",
        "if False:",
        within(no_boundary_is_told_apart),
    ),
)


@pytest.mark.parametrize("planted", BUGS, ids=lambda planted: planted.name)
def test_a_bug_of_the_ledger_is_caught(planted: Bug) -> None:
    require_caught(planted)


def test_without_a_bug_every_check_of_the_ledger_passes() -> None:
    require_sound(BUGS)
