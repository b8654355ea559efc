"""One archive from its declaration to its receipt: best effort and strict, crashes, retries and reports."""

from __future__ import annotations

import pytest
from attrs import evolve as replaced

from milepost.transitions.archiving import (
    ArchiveDeclared,
    ArchiveFailed,
    ArchiveMarked,
    ArchiveSave,
    ArchiveStage,
    Archiving,
    DeclareArchive,
    ReportArchived,
    ReportArchiveFailed,
    RetryArchives,
)
from milepost.transitions.errors import Refused
from milepost.transitions.machine import State, decide, due, evolve
from milepost.transitions.validation import Generation, MarkGeneration, ReportMarked, ReportPassed, ValidationStage
from milepost.transitions.values import FULL, SaveId
from tests.transitions.samples import (
    ARCHIVED,
    DESTINATION,
    OLDER,
    PARTIAL,
    PARTS,
    RESUMED_RUN,
    SAVE,
    archiving_in,
    published,
    run_opened,
    validation_in,
)

CALM = State(
    run=RESUMED_RUN,
    saving=published(full=(OLDER, SAVE), artifacts=(SaveId(7, 1, 1),)),
    pointer=replaced(PARTS["pointer"][next(iter(PARTS["pointer"]))]),
)
DECLARED = ArchiveDeclared(save=SAVE, plan=FULL, destination=DESTINATION, strict=False)
DECLARE = DeclareArchive(step=10, plan=FULL, destination=DESTINATION)
PUBLISH = MarkGeneration(save=SAVE, generation=Generation.PUBLISHED)


def with_archive(stage: ArchiveStage, *, strict: bool = False, of: SaveId = SAVE) -> State:
    return replaced(CALM, archiving=archiving_in(stage, strict=strict, of=of))


def effects(state: State) -> tuple[object, ...]:
    return tuple(one for one in due(state) if isinstance(one, ArchiveSave | MarkGeneration))


def test_what_is_published_is_declared_once_and_is_then_due() -> None:
    (record,) = decide(CALM, DECLARE)
    assert record == DECLARED
    state = evolve(CALM, record)
    assert effects(state) == (ArchiveSave(save=SAVE, plan=FULL, destination=DESTINATION, strict=False),)
    assert decide(state, DECLARE) == ()
    done = evolve(state, ARCHIVED)
    assert effects(done) == ()
    assert decide(done, DECLARE) == ()
    assert (done.archiving.open, done.archiving.marked[SAVE]) == ((), ARCHIVED)


def test_an_artifact_is_archived_by_its_own_plan() -> None:
    (record,) = decide(CALM, DeclareArchive(step=7, plan=PARTIAL, destination=DESTINATION))
    assert record == ArchiveDeclared(save=SaveId(7, 1, 1), plan=PARTIAL, destination=DESTINATION, strict=False)


@pytest.mark.parametrize(("step", "plan"), [(9, FULL), (7, FULL), (10, PARTIAL)])
def test_what_is_not_published_is_not_archived(step: int, plan: tuple[object, ...]) -> None:
    with pytest.raises(Refused, match=f"cannot archive step {step}: nothing of this plan is published"):
        decide(CALM, DeclareArchive(step=step, plan=plan, destination=DESTINATION))  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", [ValidationStage.EVALUATING, ValidationStage.PASSED, ValidationStage.PUBLISHING])
def test_what_is_pending_is_archived_by_its_publication_alone(stage: ValidationStage) -> None:
    state = replaced(CALM, validation=validation_in(stage))
    with pytest.raises(Refused, match="cannot archive iter_000000010: its validation is pending"):
        decide(state, DECLARE)


def test_an_archive_before_the_resume_is_decided_is_refused() -> None:
    undecided = replaced(CALM, run=replaced(RESUMED_RUN, resumed=None))
    for command in (DECLARE, RetryArchives(destination=DESTINATION)):
        with pytest.raises(Refused, match="has not decided what it continues from"):
            decide(undecided, command)


def test_what_failed_is_not_tried_by_itself_and_is_tried_when_asked() -> None:
    (record,) = decide(
        with_archive(ArchiveStage.DECLARED), ReportArchiveFailed(save=SAVE, code="Unavailable", detail="no answer")
    )
    assert record == ArchiveFailed(save=SAVE, code="Unavailable", detail="no answer")
    failed = evolve(with_archive(ArchiveStage.DECLARED), record)
    (archive,) = failed.archiving.open
    assert (archive.stage, archive.code, archive.detail) == (ArchiveStage.FAILED, "Unavailable", "no answer")
    assert effects(failed) == ()
    again = "s3://other/run/checkpoints"
    (record,) = decide(failed, RetryArchives(destination=again))
    assert record == replaced(DECLARED, destination=again)
    (archive,) = evolve(failed, record).archiving.open
    assert (archive.stage, archive.destination, archive.code) == (ArchiveStage.DECLARED, again, "")


def test_a_retry_leaves_alone_what_is_under_way_or_done() -> None:
    both = Archiving(
        open=(
            *archiving_in(ArchiveStage.DECLARED, of=OLDER).open,
            *archiving_in(ArchiveStage.FAILED).open,
        )
    )
    state = replaced(CALM, archiving=both)
    assert decide(state, RetryArchives(destination=DESTINATION)) == (DECLARED,)
    assert [one.save for one in evolve(state, DECLARED).archiving.open] == [OLDER, SAVE]
    assert decide(with_archive(ArchiveStage.MARKED), RetryArchives(destination=DESTINATION)) == ()


def test_the_success_of_one_archive_says_nothing_of_another() -> None:
    both = Archiving(
        open=(*archiving_in(ArchiveStage.FAILED, of=OLDER).open, *archiving_in(ArchiveStage.DECLARED).open)
    )
    done = evolve(replaced(CALM, archiving=both), ARCHIVED).archiving
    assert [(one.save, one.stage) for one in done.open] == [(OLDER, ArchiveStage.FAILED)]
    assert set(done.marked) == {SAVE}


@pytest.mark.parametrize("stage", [ArchiveStage.NONE, ArchiveStage.FAILED, ArchiveStage.MARKED])
@pytest.mark.parametrize(
    "report",
    [ReportArchived(save=SAVE, files=1, size=1, sent=1), ReportArchiveFailed(save=SAVE, code="", detail="")],
    ids=lambda report: type(report).__name__,
)
def test_a_report_on_what_is_not_under_way_is_refused(
    stage: ArchiveStage, report: ReportArchived | ReportArchiveFailed
) -> None:
    with pytest.raises(Refused, match=f"archive of save 10.1.1, which is not declared but {stage.value}"):
        decide(with_archive(stage), report)


def test_a_crash_ends_an_ordinary_attempt_and_keeps_a_strict_one_due() -> None:
    ordinary = evolve(with_archive(ArchiveStage.DECLARED), run_opened(2)).archiving.open[0]
    assert (ordinary.stage, ordinary.code) == (ArchiveStage.FAILED, "interrupted")
    for stage in (ArchiveStage.DECLARED, ArchiveStage.FAILED):
        strict = evolve(with_archive(stage, strict=True), run_opened(2)).archiving.open[0]
        assert (strict.stage, strict.code, strict.detail) == (ArchiveStage.DECLARED, "", "")
    known = Archiving(open=(replaced(ordinary, code="Unavailable", detail="no answer"),))
    assert evolve(replaced(CALM, archiving=known), run_opened(2)).archiving == known


def test_a_publication_waits_for_its_archive() -> None:
    state = replaced(CALM, validation=validation_in(ValidationStage.EVALUATING))
    passed = decide(state, ReportPassed(step=10, archive=DESTINATION))
    assert passed[1:] == (replaced(DECLARED, strict=True),)
    for record in passed:
        state = evolve(state, record)
    pending = MarkGeneration(save=SAVE, generation=Generation.PUBLICATION_PENDING)
    assert effects(state) == (pending,)  # private until the checkpoint says so itself (INV-07)
    state = evolve(state, decide(state, ReportMarked(save=SAVE, generation=pending.generation))[0])
    assert effects(state) == (ArchiveSave(save=SAVE, plan=FULL, destination=DESTINATION, strict=True),)
    with pytest.raises(Refused, match="marked published, which is not due"):
        decide(state, ReportMarked(save=SAVE, generation=Generation.PUBLISHED))
    failed = evolve(state, ArchiveFailed(save=SAVE, code="Unavailable", detail=""))
    assert effects(failed) == ()
    assert failed.archiving.owes(SAVE)
    (record,) = decide(failed, RetryArchives(destination=DESTINATION))
    assert isinstance(record, ArchiveDeclared)
    assert record.strict
    marked = evolve(evolve(failed, record), ArchiveMarked(save=SAVE, files=1, size=1, sent=1))
    assert effects(marked) == (PUBLISH,)


def test_a_publication_without_an_archive_waits_for_nothing() -> None:
    state = replaced(CALM, validation=validation_in(ValidationStage.EVALUATING))
    assert len(decide(state, ReportPassed(step=10))) == 1
    publishing = replaced(
        with_archive(ArchiveStage.FAILED, of=OLDER), validation=validation_in(ValidationStage.PUBLISHING)
    )
    assert effects(publishing) == (PUBLISH,)
