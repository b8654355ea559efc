"""One save at a time: what is refused, what a report becomes, and what is outstanding."""

from __future__ import annotations

import pytest
from attrs import evolve as replaced

from milepost.transitions import saving
from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.machine import Command, Record, State, decide, due, evolve
from milepost.transitions.saving import (
    ArtifactSealed,
    ComponentStored,
    ObserveSave,
    OpenSave,
    ReportAbsent,
    ReportFound,
    ReportGivenUp,
    ReportSealed,
    ReportStored,
    SaveAbandoned,
    SaveOpened,
    SaveSealed,
    SaveStage,
    SealSave,
    StorePayload,
)
from milepost.transitions.updates import Updates, UpdateStage
from milepost.transitions.values import FULL, Clocks, Component, FileDigest, Mode, Plan, Reason, SaveId
from tests.transitions.samples import (
    MANIFEST,
    PARTIAL,
    RESUMED_RUN,
    SAVE,
    STORED,
    published,
    run_opened,
    saving_in,
    stored_of,
)

FILES = tuple(file for part in STORED for file in part.files)
ABSENT = SaveId(10, 1, 9)


def state_with(stage: SaveStage, *, plan: Plan = FULL, stored: int = len(FULL)) -> State:
    return State(run=RESUMED_RUN, saving=saving_in(stage, plan=plan, stored=stored))


def asked(step: int, plan: Plan = FULL) -> OpenSave:
    return OpenSave(step=step, plan=plan, reason=Reason.CADENCE, mode=Mode.ASYNCHRONOUS, why="asked")


# --- opening ----------------------------------------------------------------------------------------------


def test_a_save_opens_under_an_id_of_step_epoch_and_the_next_counter() -> None:
    state = state_with(SaveStage.ABANDONED)
    (record,) = decide(state, asked(10))
    assert record == SaveOpened(
        save=SaveId(10, 1, 2), plan=FULL, reason=Reason.CADENCE, mode=Mode.ASYNCHRONOUS, why="asked"
    )
    (save,) = evolve(state, record).saving.open
    assert (save.id, save.stage, save.plan) == (SaveId(10, 1, 2), SaveStage.WRITING, FULL)
    assert (save.reason, save.mode, save.components, save.manifest) == (
        Reason.CADENCE,
        Mode.ASYNCHRONOUS,
        (),
        None,
    )


def test_the_counter_starts_again_in_each_epoch() -> None:
    state = evolve(state_with(SaveStage.ABANDONED), run_opened(2))
    state = replaced(state, run=replaced(state.run, resumed=RESUMED_RUN.resumed))
    (record,) = decide(state, asked(10))
    assert isinstance(record, SaveOpened)
    assert record.save == SaveId(10, 2, 1)


def test_step_zero_can_be_saved() -> None:
    assert len(decide(state_with(SaveStage.NONE), asked(0))) == 1


ACCUMULATING = Updates(stage=UpdateStage.ACCUMULATING, clocks=Clocks(attempt_id=4, optimizer_step=4))

REFUSED_SAVES: tuple[tuple[State, OpenSave, str], ...] = (
    (state_with(SaveStage.NONE), asked(-1), "cannot save step -1: steps count from 0"),
    (
        state_with(SaveStage.NONE),
        asked(10, plan=()),
        "cannot save step 10: a plan names components once and in order, not nothing",
    ),
    (
        state_with(SaveStage.NONE),
        asked(10, plan=(Component.OPTIMIZER, Component.MODEL)),
        "cannot save step 10: a plan names components once and in order, not optimizer, model",
    ),
    (
        state_with(SaveStage.NONE),
        asked(10, plan=(Component.MODEL, Component.MODEL)),
        "cannot save step 10: a plan names components once and in order, not model, model",
    ),
    (
        replaced(state_with(SaveStage.NONE), updates=ACCUMULATING),
        asked(10),
        "cannot save step 10: attempt 5 is still accumulating, .*; apply, skip or abort it first",
    ),
    (state_with(SaveStage.WRITING), asked(20), r"cannot save step 20: save 10\.1\.1 is open; join it first"),
    (state_with(SaveStage.UNSETTLED), asked(20), r"cannot save step 20: save 10\.1\.1 is open; join it first"),
)


@pytest.mark.parametrize(("state", "command", "message"), REFUSED_SAVES, ids=range(len(REFUSED_SAVES)))
def test_a_save_that_may_not_be_is_refused_with_the_way_out(state: State, command: OpenSave, message: str) -> None:
    with pytest.raises(Refused, match=message):
        decide(state, command)


# --- reports ----------------------------------------------------------------------------------------------


def test_a_stored_payload_becomes_one_record_for_each_component() -> None:
    state = state_with(SaveStage.WRITING, stored=0)
    records = decide(state, ReportStored(save=SAVE, components=STORED))
    assert records == tuple(ComponentStored(save=SAVE, component=part.component, files=part.files) for part in STORED)
    for record in records:
        state = evolve(state, record)
    assert state.saving.open[0].components == STORED
    assert state.saving.open[0].size == 7 * len(FULL)


def test_an_artifact_has_one_record_for_each_component_of_its_plan() -> None:
    state = state_with(SaveStage.WRITING, plan=PARTIAL, stored=0)
    for record in decide(state, ReportStored(save=SAVE, components=stored_of(PARTIAL))):
        state = evolve(state, record)
    assert due(state) == (SealSave(save=SAVE, plan=PARTIAL, components=stored_of(PARTIAL), pending=False),)


def test_what_is_missing_stays_due_until_all_of_it_is_stored() -> None:
    state = state_with(SaveStage.WRITING, stored=0)
    for stored, missing in ((STORED[2:], FULL[:2]), (STORED[:1], FULL[1:2])):
        for record in decide(state, ReportStored(save=SAVE, components=stored)):
            state = evolve(state, record)
        assert due(state) == (StorePayload(save=SAVE, plan=missing),)
    for record in decide(state, ReportStored(save=SAVE, components=STORED[1:2])):
        state = evolve(state, record)
    (seal,) = due(state)
    assert isinstance(seal, SealSave)
    assert {part.component for part in seal.components} == set(FULL)


REPORTS: tuple[tuple[SaveStage, Command, Record], ...] = (
    (SaveStage.WRITING, ReportSealed(save=SAVE, manifest=MANIFEST), SaveSealed(save=SAVE, manifest=MANIFEST)),
    (
        SaveStage.WRITING,
        ReportGivenUp(save=SAVE, code="no-space", detail="full"),
        SaveAbandoned(save=SAVE, code="no-space", detail="full"),
    ),
    (
        SaveStage.UNSETTLED,
        ReportFound(save=SAVE, manifest=MANIFEST, files=FILES),
        SaveSealed(save=SAVE, manifest=MANIFEST),
    ),
    (
        SaveStage.UNSETTLED,
        ReportAbsent(save=SAVE),
        SaveAbandoned(save=SAVE, code="interrupted", detail="its writer ended before it was published"),
    ),
)
EVERY_REPORT = (ReportStored(save=SAVE, components=STORED), *(command for _, command, _ in REPORTS))


@pytest.mark.parametrize(("stage", "command", "record"), REPORTS, ids=lambda value: type(value).__name__)
def test_a_report_becomes_the_record_that_it_proves(stage: SaveStage, command: Command, record: Record) -> None:
    assert decide(state_with(stage), command) == (record,)


PARTIAL_FILES = tuple(file for part in stored_of(PARTIAL) for file in part.files)


@pytest.mark.parametrize(
    ("stage", "command"),
    [
        (SaveStage.WRITING, ReportSealed(save=SAVE, manifest=MANIFEST)),
        (SaveStage.UNSETTLED, ReportFound(save=SAVE, manifest=MANIFEST, files=PARTIAL_FILES)),
    ],
    ids=["sealed", "found"],
)
def test_a_published_partial_save_is_an_artifact_and_nothing_points_at_it(stage: SaveStage, command: Command) -> None:
    state = state_with(stage, plan=PARTIAL)
    (record,) = decide(state, command)
    assert record == ArtifactSealed(save=SAVE, manifest=MANIFEST)
    after = evolve(state, record)
    assert after.saving == published(artifacts=(SAVE,))
    assert (after.pointer, after.validation, due(after)) == (state.pointer, state.validation, ())


@pytest.mark.parametrize("stage", SaveStage, ids=lambda stage: stage.name)
@pytest.mark.parametrize("command", EVERY_REPORT, ids=lambda command: type(command).__name__)
def test_a_report_is_refused_in_every_other_stage(stage: SaveStage, command: Command) -> None:
    expected = SaveStage.UNSETTLED if isinstance(command, ReportFound | ReportAbsent) else SaveStage.WRITING
    if stage is expected:
        assert decide(state_with(stage), command)
    else:
        with pytest.raises(Refused, match=rf"a report on save 10\.1\.1, which is not {expected.value}"):
            decide(state_with(stage), command)


@pytest.mark.parametrize("stage", [SaveStage.WRITING, SaveStage.UNSETTLED], ids=lambda stage: stage.name)
@pytest.mark.parametrize("command", EVERY_REPORT, ids=lambda command: type(command).__name__)
def test_a_report_on_another_save_is_refused(stage: SaveStage, command: ReportSealed) -> None:
    with pytest.raises(Refused, match=r"a report on save 10\.1\.9"):
        decide(state_with(stage), replaced(command, save=ABSENT))


@pytest.mark.parametrize(
    ("stored", "files"),
    [(2, FILES[:2]), (3, FILES[:2]), (3, (*FILES, FileDigest(path="x", size=0, digest="")))],
    ids=["journal incomplete", "disk has less", "disk has more"],
)
def test_a_found_manifest_that_lists_other_files_is_not_rolled_forward(
    stored: int, files: tuple[FileDigest, ...]
) -> None:
    state = state_with(SaveStage.UNSETTLED, stored=stored)
    with pytest.raises(Refused, match=r"iter_000000010 carries the id of save .* other files .*`milepost verify`"):
        decide(state, ReportFound(save=SAVE, manifest=MANIFEST, files=files))


# --- records ----------------------------------------------------------------------------------------------


def test_a_sealed_save_is_the_newest_and_no_longer_open() -> None:
    after = evolve(state_with(SaveStage.WRITING), SaveSealed(save=SAVE, manifest=MANIFEST)).saving
    assert (after.open, after.newest) == ((), SAVE)
    assert (after.sealed[10].stage, after.sealed[10].manifest) == (SaveStage.SEALED, MANIFEST)


def test_a_later_step_is_saved_and_sealed_beside_the_earlier_ones() -> None:
    state = state_with(SaveStage.SEALED)
    later = SaveId(11, 1, 2)
    for command in (
        asked(11),
        ReportStored(save=later, components=STORED),
        ReportSealed(save=later, manifest=MANIFEST),
    ):
        for record in decide(state, command):
            state = evolve(state, record)
    assert set(state.saving.sealed) == {10, 11}
    assert state.saving.newest == later


def test_an_abandoned_save_leaves_the_sealed_ones_alone_and_says_why_it_was_given_up() -> None:
    before = state_with(SaveStage.WRITING)
    record = SaveAbandoned(save=SAVE, code="no-space", detail="full")
    assert evolve(before, record).saving == replaced(before.saving, open=(), given_up=record)


ILLEGAL: tuple[tuple[State, Record, str], ...] = (
    (
        state_with(SaveStage.WRITING),
        SaveOpened(save=SaveId(20, 1, 2), plan=FULL, reason=Reason.CADENCE, mode=Mode.SYNCHRONOUS, why=""),
        r"save 20\.1\.2 opened while save 10\.1\.1 is open \(INV-04\)",
    ),
    (
        state_with(SaveStage.WRITING),
        ComponentStored(save=SAVE, component=Component.MODEL, files=()),
        r"save 10\.1\.1 stored model twice or against its plan",
    ),
    (
        state_with(SaveStage.WRITING, plan=PARTIAL),
        ComponentStored(save=SAVE, component=Component.OPTIMIZER, files=()),
        "stored optimizer twice or against its plan",
    ),
    (
        state_with(SaveStage.WRITING, stored=2),
        SaveSealed(save=SAVE, manifest=MANIFEST),
        r"save 10\.1\.1 was sealed before every component of its plan was stored",
    ),
    (
        state_with(SaveStage.WRITING, plan=PARTIAL, stored=1),
        ArtifactSealed(save=SAVE, manifest=MANIFEST),
        r"save 10\.1\.1 was sealed before every component of its plan was stored",
    ),
    (
        state_with(SaveStage.WRITING),
        ArtifactSealed(save=SAVE, manifest=MANIFEST),
        r"save 10\.1\.1 of model, optimizer, training_state was sealed by ArtifactSealed \(INV-05\)",
    ),
    (
        state_with(SaveStage.WRITING, plan=PARTIAL),
        SaveSealed(save=SAVE, manifest=MANIFEST),
        r"save 10\.1\.1 of model, training_state was sealed by SaveSealed \(INV-05\)",
    ),
    (
        replaced(
            state_with(SaveStage.WRITING), saving=replaced(saving_in(SaveStage.WRITING), newest=SaveId(11, 1, 1))
        ),
        SaveSealed(save=SAVE, manifest=MANIFEST),
        r"save 10\.1\.1 was sealed against the order of steps: step 11 is published",
    ),
    (
        state_with(SaveStage.WRITING),
        ArtifactSealed(save=ABSENT, manifest=MANIFEST),
        r"ArtifactSealed for save 10\.1\.9, which is not open",
    ),
    (
        state_with(SaveStage.WRITING),
        SaveSealed(save=ABSENT, manifest=MANIFEST),
        r"SaveSealed for save 10\.1\.9, which is not open",
    ),
)


@pytest.mark.parametrize(("state", "record", "message"), ILLEGAL, ids=range(len(ILLEGAL)))
def test_a_record_that_contradicts_its_save_is_illegal(state: State, record: Record, message: str) -> None:
    with pytest.raises(IllegalTransition, match=message):
        evolve(state, record)


# --- outstanding work -------------------------------------------------------------------------------------

DUE: tuple[tuple[SaveStage, int, tuple[saving.SavingEffect, ...]], ...] = (
    (SaveStage.NONE, 0, ()),
    (SaveStage.WRITING, 0, (StorePayload(save=SAVE, plan=FULL),)),
    (SaveStage.WRITING, 2, (StorePayload(save=SAVE, plan=(Component.TRAINING_STATE,)),)),
    (SaveStage.WRITING, 3, (SealSave(save=SAVE, plan=FULL, components=STORED, pending=False),)),
    (SaveStage.UNSETTLED, 0, (ObserveSave(save=SAVE, plan=FULL),)),
    (SaveStage.UNSETTLED, 3, (ObserveSave(save=SAVE, plan=FULL),)),
    (SaveStage.SEALED, 3, ()),
    (SaveStage.ABANDONED, 0, ()),
)


@pytest.mark.parametrize(("stage", "stored", "effects"), DUE, ids=lambda value: getattr(value, "name", None))
def test_what_is_due_follows_from_the_save(
    stage: SaveStage, stored: int, effects: tuple[saving.SavingEffect, ...]
) -> None:
    assert due(state_with(stage, stored=stored)) == effects


@pytest.mark.parametrize("pending", [None, SAVE, ABSENT], ids=str)
def test_only_the_save_that_will_be_evaluated_is_sealed_as_pending(pending: SaveId | None) -> None:
    (seal,) = saving.due(saving_in(SaveStage.WRITING), pending=pending)
    assert seal == SealSave(save=SAVE, plan=FULL, components=STORED, pending=pending == SAVE)


@pytest.mark.parametrize("plan", [FULL, PARTIAL], ids=["checkpoint", "artifact"])
def test_a_new_writer_looks_before_it_stores_anything(plan: Plan) -> None:
    reopened = evolve(state_with(SaveStage.WRITING, plan=plan, stored=0), run_opened(2))
    assert due(reopened)[0] == ObserveSave(save=SAVE, plan=plan)
    assert not any(isinstance(effect, StorePayload) for effect in due(reopened))
