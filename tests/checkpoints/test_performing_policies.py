"""Effect to report, for what the policies of saving ask of a disk; doing each twice is doing it once."""

from __future__ import annotations

import errno

import pytest

from milepost.engines.checkpoints import Uncertain, generations
from milepost.engines.perform import Engines
from milepost.engines.simulated import Fault, SimulatedDisk, fault_on
from milepost.transitions.machine import Command, Effect
from milepost.transitions.retention import Part, PrunePart, ReportPruned, ReportPruneFailed
from milepost.transitions.saving import (
    ObserveSave,
    ReportAbsent,
    ReportFound,
    ReportGivenUp,
    ReportSealed,
    SealSave,
)
from milepost.transitions.validation import Generation, MarkGeneration, ReportMarked
from milepost.transitions.values import FULL, Plan, SaveId, Witness
from tests.checkpoints.places import FULL_TREE, MODEL, SAVE, Place, everything, place_on, staged, write

WITNESS = Witness(seq=3, sum="ab")


def engines_of(place: Place) -> Engines:
    return Engines(
        checkpoints=place.checkpoints,
        run_ts="20260102030405",
        checkpoint_format="consolidated",
        world_size=1,
        milepost="0.1.0",
    )


def perform(engines: Engines, effect: Effect) -> Command:
    return engines.perform(effect, witness=WITNESS)


def published(
    place: Place, engines: Engines, save: SaveId = SAVE, *, plan: Plan = FULL, pending: bool = False
) -> Command:
    components = staged(place, save, plan=plan).components
    return perform(engines, SealSave(save=save, plan=plan, components=components, pending=pending))


@pytest.mark.parametrize("plan", [FULL, MODEL])
def test_what_was_sealed_is_what_a_look_finds(place: Place, plan: Plan) -> None:
    engines = engines_of(place)
    sealed = published(place, engines, plan=plan)
    assert isinstance(sealed, ReportSealed)
    for _ in range(2):
        found = perform(engines, ObserveSave(save=SAVE, plan=plan))
        assert isinstance(found, ReportFound) and found.manifest == sealed.manifest
    other = MODEL if plan == FULL else FULL
    assert perform(engines, ObserveSave(save=SAVE, plan=other)) == ReportAbsent(save=SAVE)


def test_a_second_artifact_of_a_step_is_reported_given_up(place: Place) -> None:
    engines, second = engines_of(place), SaveId(7, 1, 2)
    published(place, engines, plan=MODEL)
    report = published(place, engines, second, plan=MODEL)
    assert isinstance(report, ReportGivenUp) and (report.save, report.code) == (second, "conflict")


def test_a_validation_is_marked_step_by_step(place: Place) -> None:
    engines, path = engines_of(place), f"{FULL_TREE}/{SAVE.directory}"
    published(place, engines, pending=True)
    assert generations.read(place.disk, path) is Generation.EVALUATION_PENDING
    for generation in (Generation.PUBLICATION_PENDING, Generation.PUBLISHED):
        for _ in range(2):
            report = perform(engines, MarkGeneration(save=SAVE, generation=generation))
            assert report == ReportMarked(save=SAVE, generation=generation)
            assert generations.read(place.disk, path) is generation


@pytest.mark.parametrize("part", list(Part))
def test_a_part_is_pruned(place: Place, part: Part) -> None:
    engines = engines_of(place)
    published(place, engines)
    for _ in range(2):
        assert perform(engines, PrunePart(save=SAVE, part=part, files=("optim.pt",))) == ReportPruned(
            save=SAVE, part=part
        )
        assert not any(name.endswith("optim.pt") for name in everything(place.disk, "run"))


@pytest.mark.parametrize("part", list(Part))
def test_a_prune_that_fails_is_a_report_and_the_run_goes_on(part: Part) -> None:
    disk = SimulatedDisk()
    place = place_on(disk)
    engines = engines_of(place)
    published(place, engines)
    disk.hardware.faults = fault_on("sync_dir", Fault(error=errno.EIO))
    report = perform(engines, PrunePart(save=SAVE, part=part, files=("optim.pt",)))
    assert isinstance(report, ReportPruneFailed) and (report.save, report.part) == (SAVE, part)
    assert "Nothing relies on what is left" in report.detail


def test_a_prune_of_what_is_no_work_of_the_save_is_a_report_as_well(place: Place) -> None:
    engines = engines_of(place)
    published(place, engines)
    write(place.disk, f"{FULL_TREE}/{SAVE.directory}/.posttrain-manifest.json", b"{}\n")
    report = perform(engines, PrunePart(save=SAVE, part=Part.CHECKPOINT, files=()))
    assert isinstance(report, ReportPruneFailed) and "manifest" in report.detail


def test_a_mark_with_an_unknown_outcome_is_no_report() -> None:
    disk = SimulatedDisk()
    place = place_on(disk)
    engines = engines_of(place)
    published(place, engines, pending=True)
    disk.hardware.faults = fault_on("link", Fault(error=errno.EIO, done=True))
    with pytest.raises(Uncertain):
        perform(engines, MarkGeneration(save=SAVE, generation=Generation.PUBLICATION_PENDING))
