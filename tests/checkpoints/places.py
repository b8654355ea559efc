"""Checkpoints on some disk, and saves made there by the verbs alone."""

from __future__ import annotations

from attrs import evolve, frozen

from milepost.engines.checkpoints.local import LocalCheckpoints
from milepost.engines.checkpoints.manifest import Manifest
from milepost.engines.checkpoints.parts import component_of, tree_of
from milepost.engines.disks import Disk, write_all
from milepost.engines.formats import stream
from milepost.transitions.saving import Save, SaveStage
from milepost.transitions.values import FULL, Component, Mode, Plan, Reason, SaveId, StoredComponent, Witness

FULL_TREE, PARTIAL_TREE = "run/checkpoints", "run/checkpoint_artifacts"
STAGING = f"{FULL_TREE}/.staging"
MODEL: Plan = (Component.MODEL,)
SAVE = SaveId(7, 1, 1)


@frozen(kw_only=True)
class Place:
    """A disk and the checkpoints on it."""

    disk: Disk
    checkpoints: LocalCheckpoints


def place_on(disk: Disk) -> Place:
    """A run's checkpoints below `run/` of a new disk, ready to be written."""
    disk.mkdir("run")
    disk.sync_dir("")
    place = reached(disk)
    place.checkpoints.prepare()
    return place


def reached(disk: Disk) -> Place:
    """The checkpoints of a run that is there."""
    checkpoints = LocalCheckpoints(disk=disk, root=FULL_TREE, artifacts=PARTIAL_TREE, fence=lambda: None)
    return Place(disk=disk, checkpoints=checkpoints)


def staged(place: Place, save: SaveId = SAVE, *, plan: Plan = FULL) -> Manifest:
    """A save up to its manifest, which is given back."""
    place.checkpoints.stage(save, size=1)
    images = stream({"model": {"w": save.step}, "optim": {"m": 2}, "trainer": {}})
    stored = []
    for component in plan:
        mine = [image for image in images if component_of(tree_of(image.name)) is component]
        files = tuple(place.checkpoints.put(save, image) for image in mine)
        stored.append(StoredComponent(component=component, files=files))
    return Manifest(
        save=save,
        run_ts="20260102030405",
        plan=plan,
        checkpoint_format="consolidated",
        world_size=1,
        components=tuple(stored),
        witness=Witness(seq=save.counter, sum="ab"),
        milepost="0.1.0",
    )


def sealed(place: Place, save: SaveId = SAVE, *, plan: Plan = FULL, pending: bool = False) -> Save:
    """A published save, as the journal knows it."""
    manifest = staged(place, save, plan=plan)
    known = Save(
        id=save,
        stage=SaveStage.SEALED,
        plan=plan,
        reason=Reason.CADENCE,
        mode=Mode.SYNCHRONOUS,
        components=manifest.components,
    )
    return evolve(known, manifest=place.checkpoints.seal(manifest, pending=pending))


def write(disk: Disk, path: str, data: bytes) -> None:
    """Put these bytes there, whatever was there before."""
    if disk.stat(path) is not None:
        disk.unlink(path)
    with disk.create(path) as sink:
        write_all(sink, data)
        sink.sync()


def read(disk: Disk, path: str) -> bytes:
    return disk.read(path, limit=1 << 20)


def everything(disk: Disk, path: str) -> dict[str, bytes]:
    """Every file below a directory that is there, by its path below it."""
    found: dict[str, bytes] = {}
    for name in disk.names(path):
        stat = disk.stat(f"{path}/{name}")
        if stat is not None and stat.kind == "dir":
            found |= {f"{name}/{below}": data for below, data in everything(disk, f"{path}/{name}").items()}
        else:
            found[name] = read(disk, f"{path}/{name}")
    return found
