"""Every crash in a mark or a prune, and every crash while the next writer does it again.

Whatever is visible under a published name after a power loss or a kill is whole, but for what its own marker says is
gone; what was reported done is done; and doing it again, which is what the next opening does, comes to the end.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from milepost.engines.checkpoints import generations, released
from milepost.engines.simulated import Fault, SimulatedDisk, fault_on
from milepost.engines.simulated.faults import no_fault
from milepost.engines.simulated.medium import Renames
from milepost.transitions.errors import Unavailable
from milepost.transitions.retention import Part
from milepost.transitions.validation import Generation
from milepost.transitions.values import FULL
from tests.checkpoints.crashing import NEIGHBOUR, images, look, survive_doing_it_again
from tests.checkpoints.places import FULL_TREE, MODEL, PARTIAL_TREE, SAVE, Place, place_on, sealed

Do = Callable[[Place], None]

PATH = f"{FULL_TREE}/{SAVE.directory}"


def mark(place: Place) -> None:
    place.checkpoints.mark(SAVE, Generation.PUBLICATION_PENDING)


def mark_all(place: Place) -> None:
    for generation in Generation:
        place.checkpoints.mark(SAVE, generation)


def release(place: Place) -> None:
    place.checkpoints.prune(SAVE, Part.OPTIMIZER, ("optim.pt",))


def remove(place: Place) -> None:
    place.checkpoints.prune(SAVE, Part.CHECKPOINT, ("model.pt", "optim.pt", "trainer.pt"))


def release_and_remove(place: Place) -> None:
    if place.disk.stat(PATH) is not None:
        release(place)
    remove(place)


def is_marked(disk: SimulatedDisk) -> bool:
    return generations.name_of(Generation.PUBLICATION_PENDING) in disk.names(PATH)


def is_marked_to_the_end(disk: SimulatedDisk) -> bool:
    return generations.read(disk, PATH) is Generation.PUBLISHED


def is_released(disk: SimulatedDisk) -> bool:
    return released.read(disk, PATH) == ("optim.pt",) and "optim.pt" not in disk.names(PATH)


def says_released(disk: SimulatedDisk) -> bool:
    """The file itself may come back: its marker says that it may be there."""
    return released.read(disk, PATH) == ("optim.pt",)


def is_removed(disk: SimulatedDisk) -> bool:
    return disk.stat(PATH) is None


CASES = [
    (mark, is_marked),
    (mark_all, is_marked_to_the_end),
    (release, is_released),
    (remove, is_removed),
    (release_and_remove, is_removed),
]


@pytest.mark.parametrize("renames", ["atomic", "separate"])
@pytest.mark.parametrize(("do", "done"), CASES)
def test_no_crash_leaves_what_looks_complete_and_is_not(
    do: Do, done: Callable[[SimulatedDisk], bool], renames: Renames
) -> None:
    disk = SimulatedDisk()
    place = place_on(disk)
    sealed(place, NEIGHBOUR)
    sealed(place, pending=True)
    begun = len(disk.trace)
    do(place)
    disk.mark("done")
    survive_doing_it_again(disk, begun, do, done=done, renames=renames)


@pytest.mark.parametrize("renames", ["atomic", "separate"])
@pytest.mark.parametrize("pending", [False, True])
def test_no_crash_leaves_half_of_a_publication(pending: bool, renames: Renames) -> None:
    """A pending checkpoint is never visible without saying that it is pending, an artifact never in half."""
    disk = SimulatedDisk()
    place = place_on(disk)
    sealed(place, NEIGHBOUR)
    begun = len(disk.trace)
    sealed(place, plan=FULL if pending else MODEL, pending=pending)
    disk.mark("done")
    folder = PATH if pending else f"{PARTIAL_TREE}/{SAVE.directory}"
    for image, told in images(disk, begun, renames):
        look(image)
        there = image.stat(folder) is not None
        assert there or not told
        if there and pending:
            assert generations.read(image, folder) is Generation.EVALUATION_PENDING
        assert image.stat(f"{FULL_TREE}/latest_checkpoint.txt") is None


@pytest.mark.parametrize("renames", ["atomic", "separate"])
@pytest.mark.parametrize(("do", "done"), [(mark, is_marked), (release, says_released), (remove, is_removed)])
def test_a_directory_whose_sync_failed_is_not_believed(
    do: Do, done: Callable[[SimulatedDisk], bool], renames: Renames
) -> None:
    """The next sync succeeds and writes nothing: what is done again is done from the start."""
    for nth in range(1, 4):
        disk = SimulatedDisk()
        place = place_on(disk)
        sealed(place, NEIGHBOUR)
        sealed(place, pending=True)
        disk.hardware.faults = fault_on("sync_dir", Fault(error=errno.EIO), nth=nth)
        with suppress(Unavailable):
            do(place)
        disk.hardware.faults = no_fault
        begun = len(disk.trace)
        do(place)
        disk.mark("done")
        for image, told in images(disk, begun, renames):
            look(image)
            assert done(image) or not told
