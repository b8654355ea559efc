"""One prune from its opening to the end: every stage, every record, either part, crashes and reports."""

from __future__ import annotations

import pytest
from attrs import evolve as replaced
from rpds import HashTrieMap

from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.machine import Command, Record, State, decide, due, evolve
from milepost.transitions.retention import (
    TABLE,
    Part,
    Pruned,
    PruneFailed,
    PruneOpened,
    PrunePart,
    PruneStage,
    ReportPruned,
    ReportPruneFailed,
    Retention,
)
from milepost.transitions.values import SaveId
from tests.transitions.samples import OLDER, PARTS, RESUMED_RUN, SAVE, prune_in, published, retention_in, run_opened

NEWEST = SaveId(20, 1, 2)
CALM = State(run=RESUMED_RUN, saving=published(full=(OLDER, SAVE, NEWEST)))
RECORDS = (PruneOpened, Pruned, PruneFailed)


def state_at(stage: PruneStage, part: Part) -> State:
    return replaced(CALM, retention=retention_in(stage, part=part))


def record_of(kind: type, part: Part, *, save: SaveId = SAVE) -> Record:
    if kind is PruneOpened:
        return PruneOpened(save=save, part=part, files=prune_in(PruneStage.OPEN, part=part).files, why="")
    return PruneFailed(save=save, part=part, detail="EIO") if kind is PruneFailed else Pruned(save=save, part=part)


@pytest.mark.parametrize("part", Part, ids=lambda part: part.value)
@pytest.mark.parametrize("stage", PruneStage, ids=lambda stage: stage.name)
@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_either_part_moves_as_the_table_says_or_is_refused(part: Part, stage: PruneStage, kind: type) -> None:
    state, record = state_at(stage, part), record_of(kind, part)
    if (stage, kind) in TABLE:
        assert evolve(state, record).retention == retention_in(TABLE[stage, kind], part=part)
    else:
        message = f"the prune of {part.value} of iter_000000010 in stage {stage.name} has no {kind.__name__}"
        with pytest.raises(IllegalTransition, match=message):
            evolve(state, record)


@pytest.mark.parametrize("stage", [PruneStage.OPEN, PruneStage.FAILED], ids=lambda stage: stage.name)
def test_with_the_checkpoint_goes_the_prune_of_its_optimizer(stage: PruneStage) -> None:
    state = evolve(state_at(stage, Part.OPTIMIZER), record_of(PruneOpened, Part.CHECKPOINT))
    assert state.retention.open == (prune_in(PruneStage.OPEN, part=Part.CHECKPOINT),)


@pytest.mark.parametrize("stage", [PruneStage.OPEN, PruneStage.FAILED, PruneStage.GONE], ids=lambda stage: stage.name)
@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_of_a_checkpoint_that_is_pruned_nothing_happens_to_its_optimizer(stage: PruneStage, kind: type) -> None:
    message = "the prune of optimizer of iter_000000010 in stage GONE"
    with pytest.raises(IllegalTransition, match=message):
        evolve(state_at(stage, Part.CHECKPOINT), record_of(kind, Part.OPTIMIZER))


def test_a_checkpoint_whose_optimizer_is_released_is_removed_later() -> None:
    state = evolve(state_at(PruneStage.GONE, Part.OPTIMIZER), record_of(PruneOpened, Part.CHECKPOINT))
    gone = HashTrieMap({SAVE.step: SAVE})
    assert evolve(state, record_of(Pruned, Part.CHECKPOINT)).retention == Retention(released=gone, removed=gone)


def test_prunes_of_other_checkpoints_are_left_alone() -> None:
    other = prune_in(PruneStage.FAILED, of=OLDER)
    state = replaced(CALM, retention=Retention(open=(other, prune_in(PruneStage.OPEN))))
    for kind in (PruneFailed, Pruned):
        assert other in evolve(state, record_of(kind, Part.OPTIMIZER)).retention.open
    assert other in evolve(state, record_of(PruneOpened, Part.CHECKPOINT)).retention.open


# --- what is lost -----------------------------------------------------------------------------------------

LOST: tuple[tuple[PruneStage, Part, Part | None], ...] = (
    (PruneStage.NONE, Part.OPTIMIZER, None),
    *((stage, part, part) for part in Part for stage in PruneStage if stage is not PruneStage.NONE),
)


@pytest.mark.parametrize(("stage", "part", "lost"), LOST, ids=lambda value: getattr(value, "name", str(value)))
def test_from_its_opening_on_nobody_relies_on_the_part(stage: PruneStage, part: Part, lost: Part | None) -> None:
    retention = retention_in(stage, part=part)
    assert retention.lost(SAVE.step) is lost
    assert retention.lost(OLDER.step) is None


def test_of_both_parts_the_larger_is_lost() -> None:
    gone = HashTrieMap({SAVE.step: SAVE})
    assert Retention(released=gone, removed=gone).lost(SAVE.step) is Part.CHECKPOINT
    opened = Retention(open=(prune_in(PruneStage.FAILED, part=Part.CHECKPOINT),), released=gone)
    assert opened.lost(SAVE.step) is Part.CHECKPOINT


# --- outstanding work and reports -------------------------------------------------------------------------


def test_open_prunes_are_due_oldest_step_first_and_failed_ones_are_not() -> None:
    prunes = (
        prune_in(PruneStage.OPEN),
        prune_in(PruneStage.OPEN, of=OLDER, part=Part.CHECKPOINT),
        prune_in(PruneStage.FAILED, of=SaveId(7, 1, 1)),
    )
    assert due(replaced(CALM, retention=Retention(open=prunes))) == (
        PrunePart(save=OLDER, part=Part.CHECKPOINT, files=("model.pt", "optimizer.pt", "training_state.pt")),
        PrunePart(save=SAVE, part=Part.OPTIMIZER, files=("optimizer.pt",)),
    )


def test_a_later_writer_finishes_what_was_open_or_failed() -> None:
    prunes = (prune_in(PruneStage.OPEN), prune_in(PruneStage.FAILED, of=OLDER, part=Part.CHECKPOINT))
    state = evolve(replaced(CALM, retention=Retention(open=prunes)), run_opened(2))
    assert {prune.stage for prune in state.retention.open} == {PruneStage.OPEN}
    assert [(e.save, e.part) for e in due(state) if isinstance(e, PrunePart)] == [
        (OLDER, Part.CHECKPOINT),
        (SAVE, Part.OPTIMIZER),
    ]


@pytest.mark.parametrize("part", Part, ids=lambda part: part.value)
def test_a_report_becomes_the_record_of_its_outcome(part: Part) -> None:
    state = state_at(PruneStage.OPEN, part)
    assert decide(state, ReportPruned(save=SAVE, part=part)) == (Pruned(save=SAVE, part=part),)
    failed = ReportPruneFailed(save=SAVE, part=part, detail="EIO")
    assert decide(state, failed) == (PruneFailed(save=SAVE, part=part, detail="EIO"),)


@pytest.mark.parametrize("part", Part, ids=lambda part: part.value)
@pytest.mark.parametrize("stage", [PruneStage.NONE, PruneStage.FAILED, PruneStage.GONE], ids=lambda stage: stage.name)
def test_a_report_on_a_prune_that_is_not_open_is_refused(part: Part, stage: PruneStage) -> None:
    reports: tuple[Command, ...] = (
        ReportPruned(save=SAVE, part=part),
        ReportPruneFailed(save=SAVE, part=part, detail=""),
    )
    message = f"a report on the prune of {part.value} of iter_000000010, which is not open but {stage.value}"
    for report in reports:
        with pytest.raises(Refused, match=message):
            decide(state_at(stage, part), report)


def test_a_prune_goes_on_while_the_run_is_reopened_and_ends_with_it() -> None:
    state = state_at(PruneStage.OPEN, Part.CHECKPOINT)
    for run in PARTS["run"].values():
        effects = due(replaced(state, run=run))
        assert len(effects) == (1 if run.stage.value == "open" else 0)
