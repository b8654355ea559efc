"""What retention takes: an optimizer behind a marker that says so, a checkpoint out of its namespace first."""

from __future__ import annotations

import errno

import pytest

from milepost.engines.checkpoints import released
from milepost.engines.checkpoints.manifest import MANIFEST
from milepost.engines.simulated import Fault, SimulatedDisk, fault_on
from milepost.engines.simulated.faults import no_fault
from milepost.transitions.errors import Corrupt, Unavailable
from milepost.transitions.retention import Part
from milepost.transitions.validation import Generation
from milepost.transitions.values import SaveId
from tests.checkpoints.places import FULL_TREE, SAVE, STAGING, Place, everything, place_on, sealed, write

PATH = f"{FULL_TREE}/{SAVE.directory}"
OPTIM = ("optim.pt",)
OTHER = SaveId(8, 1, 2)


def release(place: Place, save: SaveId = SAVE) -> None:
    place.checkpoints.prune(save, Part.OPTIMIZER, OPTIM)


def remove(place: Place, save: SaveId = SAVE) -> None:
    place.checkpoints.prune(save, Part.CHECKPOINT, ("model.pt", "optim.pt", "trainer.pt"))


def test_a_released_optimizer_is_gone_and_the_rest_stays(place: Place) -> None:
    sealed(place)
    before = everything(place.disk, PATH)
    release(place)
    after = everything(place.disk, PATH)
    marker = {released.RELEASED: released.encode(SAVE, OPTIM)}
    assert after == {name: data for name, data in before.items() if name != "optim.pt"} | marker
    assert released.read(place.disk, PATH) == OPTIM
    assert place.disk.names(STAGING) == ()


def test_a_removed_checkpoint_is_gone_and_its_neighbour_stays(place: Place) -> None:
    sealed(place)
    sealed(place, OTHER)
    before = everything(place.disk, f"{FULL_TREE}/{OTHER.directory}")
    remove(place)
    assert place.disk.names(FULL_TREE) == (".staging", OTHER.directory)
    assert place.disk.names(STAGING) == ()
    assert everything(place.disk, f"{FULL_TREE}/{OTHER.directory}") == before


def test_pruning_twice_is_pruning_once(place: Place) -> None:
    sealed(place)
    for prune in (release, remove):
        prune(place)
        before = everything(place.disk, "run")
        prune(place)
        assert everything(place.disk, "run") == before


@pytest.mark.parametrize("part", list(Part))
def test_only_the_checkpoint_of_this_very_save_is_pruned(place: Place, part: Part) -> None:
    sealed(place)
    before = everything(place.disk, "run")
    with pytest.raises(Corrupt, match="expected the checkpoint of save"):
        place.checkpoints.prune(SaveId(7, 1, 2), part, OPTIM)
    assert everything(place.disk, "run") == before


@pytest.mark.parametrize("part", list(Part))
def test_a_checkpoint_whose_manifest_is_damaged_is_not_touched(place: Place, part: Part) -> None:
    sealed(place)
    write(place.disk, f"{PATH}/{MANIFEST}", b"{}\n")
    before = everything(place.disk, "run")
    with pytest.raises(Corrupt, match="ends with its sum"):
        place.checkpoints.prune(SAVE, part, OPTIM)
    assert everything(place.disk, "run") == before


def test_a_marker_that_says_something_else_is_left_and_nothing_is_unlinked(place: Place) -> None:
    sealed(place)
    write(place.disk, f"{PATH}/{released.RELEASED}", released.encode(SAVE, ("model.pt",)))
    before = everything(place.disk, "run")
    with pytest.raises(Corrupt, match="found other bytes"):
        release(place)
    assert everything(place.disk, "run") == before


def test_a_half_removed_checkpoint_is_removed_by_the_next_call_or_swept(place: Place) -> None:
    for again in (lambda: remove(place), lambda: place.checkpoints.clear(epoch=2, abandoned=())):
        sealed(place)
        place.disk.rename(PATH, f"{STAGING}/pruned-{SAVE}")
        place.disk.unlink(f"{STAGING}/pruned-{SAVE}/{MANIFEST}")
        again()
        assert everything(place.disk, "run") == {} and place.disk.names(STAGING) == ()


def test_debris_of_the_own_epoch_is_not_swept(place: Place) -> None:
    sealed(place)
    place.disk.rename(PATH, f"{STAGING}/pruned-{SAVE}")
    assert place.checkpoints.clear(epoch=1, abandoned=()) == ()
    assert place.checkpoints.clear(epoch=2, abandoned=()) == (f"pruned-{SAVE}",)


def test_somebody_elses_name_in_the_staging_area_stays(place: Place) -> None:
    for name in ("pruned-notes", "note-to-self", "7.1"):
        write(place.disk, f"{STAGING}/{name}", b"mine")
    assert place.checkpoints.clear(epoch=9, abandoned=()) == ()
    assert place.disk.names(STAGING) == ("7.1", "note-to-self", "pruned-notes")


FAILING = [
    *((Part.OPTIMIZER, verb) for verb in ("create", "sync", "link", "sync_dir", "unlink")),
    *((Part.CHECKPOINT, verb) for verb in ("rename", "sync_dir", "unlink", "rmdir")),
]


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
@pytest.mark.parametrize(("part", "verb"), FAILING)
def test_a_failing_disk_is_reported_and_the_next_call_goes_on_from_there(part: Part, verb: str, error: int) -> None:
    disk = SimulatedDisk()
    place = place_on(disk)
    known = sealed(place)
    disk.hardware.faults = fault_on(verb, Fault(error=error), nth=2 if verb == "unlink" else 1)
    with pytest.raises(Unavailable, match=f"removing the {part.value} of iter_000000007 failed"):
        place.checkpoints.prune(SAVE, part, OPTIM)
    disk.hardware.faults = no_fault
    place.checkpoints.prune(SAVE, part, OPTIM)
    assert place.checkpoints.examine(known, lost=part) == ""
    assert not any(name.endswith("optim.pt") for name in everything(disk, "run"))
    place.checkpoints.clear(epoch=2, abandoned=())
    assert disk.names(STAGING) == ()


# --- looking --------------------------------------------------------------------------------------------------


def test_what_retention_took_is_no_damage_and_what_it_did_not_take_is(place: Place) -> None:
    known = sealed(place)
    release(place)
    (seen,) = place.checkpoints.published()
    assert seen.problem == "" and place.checkpoints.examine(known, lost=Part.OPTIMIZER) == ""
    assert "the journal does not" in place.checkpoints.examine(known, lost=None)
    place.disk.unlink(f"{PATH}/model.pt")
    assert "model.pt" in place.checkpoints.examine(known, lost=Part.OPTIMIZER)
    remove(place)
    assert place.checkpoints.published() == () and place.checkpoints.examine(known, lost=Part.CHECKPOINT) == ""
    assert place.checkpoints.examine(known, lost=Part.OPTIMIZER) != ""


def test_a_missing_optimizer_without_a_marker_is_damage_whatever_the_journal_lost(place: Place) -> None:
    known = sealed(place)
    place.disk.unlink(f"{PATH}/optim.pt")
    for lost in (None, Part.OPTIMIZER):
        assert "optim.pt: expected" in place.checkpoints.examine(known, lost=lost)
    (seen,) = place.checkpoints.published()
    assert "optim.pt: expected" in seen.problem


def test_an_interrupted_release_is_explained_by_its_marker(place: Place) -> None:
    known = sealed(place)
    write(place.disk, f"{PATH}/{released.RELEASED}", released.encode(SAVE, OPTIM))
    assert place.checkpoints.examine(known, lost=Part.OPTIMIZER) == ""
    release(place)
    assert "optim.pt" not in place.disk.names(PATH)


def test_a_published_validation_outlives_its_released_optimizer(place: Place) -> None:
    known = sealed(place, pending=True)
    for generation in Generation:
        place.checkpoints.mark(SAVE, generation)
    release(place)
    place.checkpoints.resync()
    assert place.checkpoints.examine(known, lost=Part.OPTIMIZER) == ""
