"""Saying on a published checkpoint how far its validation is: created, never replaced."""

from __future__ import annotations

import errno

import pytest
from attrs import evolve

from milepost.engines.checkpoints import Uncertain, generations
from milepost.engines.checkpoints.manifest import MANIFEST
from milepost.engines.simulated import Fault, SimulatedDisk, fault_on
from milepost.engines.simulated.faults import no_fault
from milepost.transitions.errors import Corrupt, Fenced, Unavailable
from milepost.transitions.validation import Generation
from milepost.transitions.values import SaveId
from tests.checkpoints.places import FULL_TREE, SAVE, STAGING, Place, everything, place_on, read, sealed, write

PATH = f"{FULL_TREE}/{SAVE.directory}"
NEXT = Generation.PUBLICATION_PENDING


def test_a_mark_joins_the_checkpoint_and_changes_nothing_else(place: Place) -> None:
    known = sealed(place, pending=True)
    before = everything(place.disk, PATH)
    place.checkpoints.mark(SAVE, NEXT)
    after = everything(place.disk, PATH)
    assert after == before | {generations.name_of(NEXT): generations.encode(SAVE, NEXT)}
    assert place.disk.names(STAGING) == ()
    assert place.checkpoints.examine(known, lost=None) == ""


def test_marking_twice_is_marking_once(place: Place) -> None:
    sealed(place, pending=True)
    for generation in Generation:
        place.checkpoints.mark(SAVE, generation)
        before = everything(place.disk, "run")
        place.checkpoints.mark(SAVE, generation)
        assert everything(place.disk, "run") == before


def test_other_bytes_in_the_way_are_left_and_refused(place: Place) -> None:
    sealed(place, pending=True)
    write(place.disk, f"{PATH}/{generations.name_of(NEXT)}", b"somebody else's")
    before = everything(place.disk, "run")
    with pytest.raises(Corrupt, match="found other bytes"):
        place.checkpoints.mark(SAVE, NEXT)
    assert everything(place.disk, "run") == before


@pytest.mark.parametrize("save", [SaveId(7, 1, 2), SaveId(8, 1, 1)])
def test_only_the_checkpoint_of_this_very_save_is_marked(place: Place, save: SaveId) -> None:
    sealed(place, pending=True)
    before = everything(place.disk, "run")
    with pytest.raises(Corrupt, match="expected the checkpoint of save"):
        place.checkpoints.mark(save, NEXT)
    assert everything(place.disk, "run") == before


def test_a_dead_writers_note_is_passed_by_and_swept(place: Place) -> None:
    sealed(place, pending=True)
    for name in (f"note-{SAVE}", f"note-{SAVE}~1"):
        write(place.disk, f"{STAGING}/{name}", b'{"format":')
    place.checkpoints.mark(SAVE, NEXT)
    assert generations.read(place.disk, PATH) is NEXT
    assert place.disk.names(STAGING) == (f"note-{SAVE}", f"note-{SAVE}~1")
    assert place.checkpoints.clear(epoch=1, abandoned=()) == ()
    assert place.checkpoints.clear(epoch=2, abandoned=()) == (f"note-{SAVE}", f"note-{SAVE}~1")
    assert place.disk.names(STAGING) == ()
    assert generations.read(place.disk, PATH) is NEXT


def test_an_overtaken_sweep_leaves_the_notes_to_its_successor(place: Place) -> None:
    sealed(place, pending=True)
    write(place.disk, f"{STAGING}/note-{SAVE}", b"on its way")

    def fence() -> None:
        raise Fenced("another writer claimed this run")

    with pytest.raises(Fenced):
        evolve(place.checkpoints, fence=fence).clear(epoch=2, abandoned=())
    assert place.disk.names(STAGING) == (f"note-{SAVE}",)


def test_without_space_the_mark_can_be_tried_again() -> None:
    disk = SimulatedDisk()
    place = place_on(disk)
    sealed(place, pending=True)
    before = everything(disk, PATH)
    disk.hardware.faults = fault_on("write", Fault(error=errno.ENOSPC))
    with pytest.raises(Unavailable, match="marking iter_000000007") as failure:
        place.checkpoints.mark(SAVE, NEXT)
    assert not isinstance(failure.value, Uncertain) and everything(disk, PATH) == before
    disk.hardware.faults = no_fault
    place.checkpoints.mark(SAVE, NEXT)
    assert generations.read(disk, PATH) is NEXT


@pytest.mark.parametrize("fault", [Fault(error=errno.EIO), Fault(error=errno.EIO, done=True)])
@pytest.mark.parametrize("verb", ["link", "sync_dir"])
def test_a_failure_from_the_link_on_leaves_an_unknown_outcome_that_a_repeat_settles(verb: str, fault: Fault) -> None:
    disk = SimulatedDisk()
    place = place_on(disk)
    sealed(place, pending=True)
    disk.hardware.faults = fault_on(verb, fault)
    with pytest.raises(Uncertain, match="may or may not"):
        place.checkpoints.mark(SAVE, NEXT)
    disk.hardware.faults = no_fault
    place.checkpoints.mark(SAVE, NEXT)
    assert generations.read(disk, PATH) is NEXT and disk.names(STAGING) == ()


def test_an_overtaken_writer_and_its_successor_write_the_same(place: Place) -> None:
    """The successor steps around the note of a writer that is paused between making and linking it."""
    sealed(place, pending=True)
    note, said = f"{STAGING}/note-{SAVE}", generations.encode(SAVE, NEXT)
    write(place.disk, note, said)
    place.checkpoints.mark(SAVE, NEXT)
    with pytest.raises(FileExistsError):
        place.disk.link(note, f"{PATH}/{generations.name_of(NEXT)}")
    assert read(place.disk, f"{PATH}/{generations.name_of(NEXT)}") == said
    assert MANIFEST in place.disk.names(PATH)
