"""Every state that a crash may leave of published saves, and what has to be true of each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from blake3 import blake3

from milepost.engines.checkpoints import generations, marker, released
from milepost.engines.checkpoints.manifest import ARTIFACT, MANIFEST, decode
from milepost.engines.checkpoints.marker import SUCCESS
from milepost.engines.checkpoints.roles import roles_of
from milepost.engines.simulated import SimulatedDisk
from milepost.engines.simulated.crashes import Key
from milepost.engines.simulated.medium import Renames
from milepost.transitions.errors import MilepostError
from milepost.transitions.values import SaveId
from tests.checkpoints.places import FULL_TREE, PARTIAL_TREE, STAGING, Place, reached

NEIGHBOUR = SaveId(6, 1, 1)
"""A save that is there from the start, and stays."""


def images(
    disk: SimulatedDisk, begun: int, renames: Renames, *, met: set[Key] | None = None
) -> Iterator[tuple[SimulatedDisk, bool]]:
    """Every state, not in `met`, that a crash from entry `begun` on may leave, and whether all was done by then."""
    met = set() if met is None else met
    for length in (cut for cut in disk.cuts() if cut >= begun):
        told = bool(disk.marks(length))
        for image in (*disk.crash_images(length, renames=renames), disk.killed(length, renames=renames)):
            if (key := (image.key(), told)) not in met:
                met.add(key)
                yield image, told


def survive_doing_it_again(
    disk: SimulatedDisk,
    begun: int,
    do: Callable[[Place], None],
    *,
    done: Callable[[SimulatedDisk], bool],
    renames: Renames,
) -> None:
    """Every crash since entry `begun`, when `do` began: it is done again, crashes again, and is done once more."""
    met: set[Key] = set()
    for image, told in images(disk, begun, renames):
        look(image)
        assert done(image) or not told
        again, begun_again = reached(image), len(image.trace)
        again.checkpoints.resync()
        do(again)
        assert done(image)
        for second, _ in images(image, begun_again, renames, met=met):
            look(second)
            do(reached(second))
            look(second)
            assert done(second)
            reached(second).checkpoints.clear(epoch=2, abandoned=())
            assert second.names(STAGING) == ()
    assert len(met) > 5


def look(disk: SimulatedDisk) -> None:
    """Each published name, from the bytes alone: whole, or its own marker says what is not there."""
    for root, manifest in ((FULL_TREE, MANIFEST), (PARTIAL_TREE, ARTIFACT)):
        for name in disk.names(root) if disk.stat(root) is not None else ():
            if name.startswith("iter_"):
                _look_at(disk, f"{root}/{name}", manifest)
    assert f"{FULL_TREE}/{NEIGHBOUR.directory}/{MANIFEST}" in disk.tree()


def _look_at(disk: SimulatedDisk, path: str, manifest: str) -> None:
    tree = disk.tree()
    data = tree.get(f"{path}/{manifest}")
    assert isinstance(data, bytes), f"{path} is visible without its manifest: {disk.names(path)}"
    try:
        files, gone = decode(data, where=path).files, released.read(disk, path)
        generations.read(disk, path)
        told = marker.read(disk, path)
    except MilepostError as error:
        raise AssertionError(f"{path} is damaged") from error
    for file in files:
        content = tree.get(f"{path}/{file.path}")
        whole = isinstance(content, bytes) and f"blake3:{blake3(content).hexdigest()}" == file.digest
        assert whole or (content is None and file.path in gone), f"{path}/{file.path} is not what it was"
    roles = roles_of(files)
    assert not roles or (told is not None and told.counters is not None and tuple(told.counters) == roles), path
    payload = {file.path.partition("/")[0] for file in files}
    assert set(disk.names(path)) <= {manifest, *generations.names, released.RELEASED, SUCCESS, *payload}
