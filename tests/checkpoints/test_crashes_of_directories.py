"""Every crash of a save whose files lie in directories, of its release and of its removal, and of doing it again.

What is visible under its final name has every file in every directory, and several roles have their marker.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from milepost.engines.checkpoints import released
from milepost.engines.simulated import SimulatedDisk
from milepost.engines.simulated.medium import Renames
from milepost.transitions.retention import Part
from tests.checkpoints.boundaries import BOUNDARY, SHARDS, Layout, marker_of, sealed, staged
from tests.checkpoints.crashing import NEIGHBOUR, images, look, survive_doing_it_again
from tests.checkpoints.places import FULL_TREE, SAVE, Place, place_on, reached

Do = Callable[[Place], None]
Done = Callable[[SimulatedDisk], bool]

PATH = f"{FULL_TREE}/{SAVE.directory}"
LAYOUTS = pytest.mark.parametrize("layout", [SHARDS, BOUNDARY], ids=["shards", "boundary"])
RENAMES = pytest.mark.parametrize("renames", ["atomic", "separate"])


@RENAMES
@LAYOUTS
def test_no_crash_leaves_half_of_a_publication(layout: Layout, renames: Renames) -> None:
    survive_a_publication(layout, renames)


def survive_a_publication(layout: Layout, renames: Renames) -> None:
    disk = SimulatedDisk()
    place = place_on(disk)
    sealed(place, layout, NEIGHBOUR)
    manifest = staged(place, layout)
    begun = len(disk.trace)
    place.checkpoints.seal(manifest, pending=False, marker=marker_of(layout))
    disk.mark("done")
    seen = set()
    for image, told in images(disk, begun, renames):
        look(image)
        seen.add(image.stat(PATH) is not None)
        assert image.stat(PATH) is not None or not told
        settle(image)
    assert seen == {False, True}


def settle(disk: SimulatedDisk) -> None:
    """What the next writer does: it looks, keeps what is there and sweeps what is not."""
    checkpoints = reached(disk).checkpoints
    checkpoints.resync()
    checkpoints.observe(SAVE, plan=tuple(BOUNDARY.files))
    checkpoints.clear(epoch=2, abandoned=())
    look(disk)
    assert not any(one.problem for one in checkpoints.published())


def release(place: Place) -> None:
    place.checkpoints.prune(SAVE, Part.OPTIMIZER, BOUNDARY.optimizer)


def remove(place: Place) -> None:
    place.checkpoints.prune(SAVE, Part.CHECKPOINT, BOUNDARY.names)


def is_released(disk: SimulatedDisk) -> bool:
    gone = not any(disk.stat(f"{PATH}/{name}") for name in (*BOUNDARY.optimizer, *BOUNDARY.emptied))
    return gone and released.read(disk, PATH) == BOUNDARY.optimizer


def is_removed(disk: SimulatedDisk) -> bool:
    return disk.stat(PATH) is None


@RENAMES
@pytest.mark.parametrize(("do", "done"), [(release, is_released), (remove, is_removed)], ids=["release", "remove"])
def test_no_crash_leaves_what_looks_complete_and_is_not(do: Do, done: Done, renames: Renames) -> None:
    survive_a_prune(do, done, renames)


def survive_a_prune(do: Do, done: Done, renames: Renames) -> None:
    disk = SimulatedDisk()
    place = place_on(disk)
    sealed(place, BOUNDARY, NEIGHBOUR)
    sealed(place, BOUNDARY)
    begun = len(disk.trace)
    do(place)
    disk.mark("done")
    survive_doing_it_again(disk, begun, do, done=done, renames=renames)


def every_crash_of_a_boundary_is_survived() -> None:
    """In one piece, for who plants a bug."""
    survive_a_publication(BOUNDARY, "atomic")
    survive_a_prune(release, is_released, "atomic")
