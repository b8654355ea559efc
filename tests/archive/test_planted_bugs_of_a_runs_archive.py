"""Every rule of the archive that a run makes has a check that notices when it is broken: one planted mistake each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.transitions.archiving import ArchiveStage
from milepost.transitions.validation import ValidationStage
from tests.crash import test_archived_runs as crashes
from tests.crash.bugs import Bug, require_caught, require_sound
from tests.journal import test_archives_of_runs as runs
from tests.transitions import test_archive_lifecycle as lifecycle

ARCHIVING = "transitions.archiving"
SAVES = "journal.saves"


def in_a_folder(check: Callable[[Path], None]) -> Callable[[], None]:
    """The same check with a directory of its own."""

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            check(Path(folder))

    return run


def no_crash_shows_what_is_private() -> None:
    for crash in crashes.crashes(*crashes.VALIDATED, every=10):
        crashes.look(crash)


def what_is_pending_is_refused() -> None:
    lifecycle.test_what_is_pending_is_archived_by_its_publication_alone(ValidationStage.EVALUATING)


def a_report_has_to_be_due() -> None:
    lifecycle.test_a_report_on_what_is_not_under_way_is_refused(
        ArchiveStage.FAILED, lifecycle.ReportArchived(save=lifecycle.SAVE, files=1, size=1, sent=1)
    )


gated = in_a_folder(runs.test_nothing_local_is_pruned_before_its_own_receipt)
completed_later = in_a_folder(
    runs.test_a_publication_whose_archive_fails_stays_pending_and_is_completed_by_the_next_start
)
made_up_for = in_a_folder(runs.test_an_emergency_does_not_wait_for_the_archive_and_a_later_one_makes_up_for_it)
tried_again = in_a_folder(
    runs.test_an_archive_that_succeeds_has_the_failed_ones_tried_and_each_is_released_by_its_own
)
before_its_publication = in_a_folder(runs.test_a_validated_checkpoint_is_archived_before_it_is_published)
retried_by_the_loop = in_a_folder(
    runs.test_a_publication_is_tried_again_by_the_same_journal_where_the_loop_asks_for_it
)


def bug(name: str, where: str, old: str, new: str, by: Callable[[], None]) -> Bug:
    return Bug(name, where, ((old, new),), by)


BUGS = (
    bug(
        "a pending checkpoint is archived like any other",
        f"{ARCHIVING}:declare",
        "if save.id == validation.pending:",
        "if False:",
        what_is_pending_is_refused,
    ),
    bug(
        "the archive of a publication is due before the checkpoint says that it is pending",
        f"{ARCHIVING}:due",
        "private = None if validation.stage is ValidationStage.PUBLISHING else validation.pending",
        "private = None",
        no_crash_shows_what_is_private,
    ),
    bug(
        "the publication does not wait for its archive",
        "transitions.machine:_passed",
        "if command.archive else ()",
        "if False else ()",
        before_its_publication,
    ),
    bug(
        "an archive that failed releases the publication",
        f"{ARCHIVING}:Archiving.owes",
        "one.save == save and one.strict",
        "one.save == save and one.strict and one.stage is ArchiveStage.DECLARED",
        completed_later,
    ),
    bug(
        "what a publication owes is forgotten by the next start",
        f"{ARCHIVING}:_reopened",
        "if archive.strict:",
        "if False:",
        completed_later,
    ),
    bug(
        "an archive that a crash interrupted counts as under way",
        f"{ARCHIVING}:_reopened",
        'return evolve(archive, stage=stage, code="interrupted", detail="its writer ended before it was complete")',
        "return archive",
        lifecycle.test_a_crash_ends_an_ordinary_attempt_and_keeps_a_strict_one_due,
    ),
    bug(
        "the success of one archive closes them all",
        f"{ARCHIVING}:on_archive_marked",
        "if one.save != record.save",
        "if False",
        lifecycle.test_the_success_of_one_archive_says_nothing_of_another,
    ),
    bug(
        "a failed archive is tried for ever",
        f"{ARCHIVING}:on_archive_failed",
        "evolve(archive, stage=stage, code",
        "evolve(archive, stage=archive.stage, code",
        lifecycle.test_what_failed_is_not_tried_by_itself_and_is_tried_when_asked,
    ),
    bug(
        "a report is believed that nobody asked for",
        f"{ARCHIVING}:_require_under_way",
        "if stage is not ArchiveStage.DECLARED:",
        "if False:",
        a_report_has_to_be_due,
    ),
    bug(
        "a retry forgets that a publication waits",
        f"{ARCHIVING}:retry",
        "strict=archive.strict",
        "strict=False",
        lifecycle.test_a_publication_waits_for_its_archive,
    ),
    bug(
        "retention asks the journal and not the receipt",
        f"{SAVES}:Saves._retention_lane",
        "archived=self._opened.archived,",
        "archived=tuple(self._state.saving.sealed),",
        gated,
    ),
    bug(
        "retention does not ask for a receipt",
        "transitions.retention:_protected",
        "if policy.archived is not None and save.step not in policy.archived:",
        "if False:",
        gated,
    ),
    bug(
        "what a dead writer did not declare is never archived",
        f"{SAVES}:Saves.make_up",
        "self._declare(self._state.saving.sealed[newest.step])",
        "return",
        in_a_folder(runs.test_a_newest_checkpoint_that_nobody_declared_is_archived_behind_the_next_one),
    ),
    bug(
        "what an emergency left is never archived",
        f"{SAVES}:Saves._lane",
        "self._declare(done)  # behind everything that is performed",
        "pass",
        made_up_for,
    ),
    bug(
        "what failed is not tried again behind a success",
        f"{SAVES}:Saves._archive_lane",
        "if save.id in self._state.archiving.marked and self._driver.submit(",
        "if False and self._driver.submit(",
        tried_again,
    ),
    bug(
        "the loop cannot have a publication tried again",
        "journal.boundaries:Boundaries.settle",
        "self._saves.try_archives()",
        "pass",
        retried_by_the_loop,
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("planted", BUGS, ids=str)
def test_a_bug_of_a_runs_archive_is_caught(planted: Bug) -> None:
    require_caught(planted)


@pytest.mark.slow
def test_without_a_bug_every_check_passes() -> None:
    require_sound(BUGS)
