"""Saves whose files lie in directories: shards of one trainer, and the boundary of two roles."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from milepost.engines.checkpoints import marker
from milepost.engines.checkpoints.manifest import Manifest
from milepost.engines.formats import stream
from milepost.transitions.saving import Save, SaveStage
from milepost.transitions.values import (
    FULL,
    Clocks,
    Component,
    FileDigest,
    Mode,
    Reason,
    RoleClocks,
    SaveId,
    StoredComponent,
    Witness,
)
from tests.checkpoints.places import SAVE, Place


@frozen(kw_only=True)
class Layout:
    """The directories of a save and the files in them, by component."""

    folders: tuple[str, ...]
    files: Mapping[Component, tuple[str, ...]]
    roles: tuple[RoleClocks, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for names in self.files.values() for name in names)

    @property
    def optimizer(self) -> tuple[str, ...]:
        return self.files[Component.OPTIMIZER]

    @property
    def emptied(self) -> tuple[str, ...]:
        """The directories that nothing but the optimizer lies in."""
        rest = set(self.names) - set(self.optimizer)
        return tuple(one for one in self.folders if not any(name.startswith(f"{one}/") for name in rest))


ROLES = (
    RoleClocks(role="critic", clocks=Clocks(attempt_id=9, optimizer_step=9)),
    RoleClocks(role="policy", clocks=Clocks(attempt_id=4, optimizer_step=4)),
)
SHARDS = Layout(
    folders=("optim",),
    files={
        Component.MODEL: ("model.pt",),
        Component.OPTIMIZER: ("optim/__0_0.distcp", "optim/.metadata"),
        Component.TRAINING_STATE: (),
    },
)
BOUNDARY = Layout(
    folders=("policy", "policy/optim", "critic"),
    files={
        Component.MODEL: ("policy/model.pt",),
        Component.OPTIMIZER: ("policy/optim/.metadata", "critic/optim.pt"),
        Component.TRAINING_STATE: ("critic/trainer.pt",),
    },
    roles=ROLES,
)
"""One optimizer is a directory of its own, the other a file among others."""


def marker_of(layout: Layout, save: SaveId = SAVE) -> bytes | None:
    """The marker of a save of this layout."""
    if not layout.roles:
        return None
    return marker.encode(marker.of_boundary(save, roles=layout.roles, loop_state=()))


def staged(place: Place, layout: Layout, save: SaveId = SAVE) -> Manifest:
    """A save of this layout up to its manifest, which is given back."""
    place.checkpoints.stage(save, size=1, folders=layout.folders)
    components = tuple(
        StoredComponent(component=component, files=tuple(_put(place, save, name) for name in layout.files[component]))
        for component in FULL
    )
    return Manifest(
        save=save,
        run_ts="20260102030405",
        plan=FULL,
        checkpoint_format="dcp",
        world_size=1,
        components=components,
        witness=Witness(seq=save.counter, sum="ab"),
        milepost="0.3.0",
    )


def sealed(place: Place, layout: Layout, save: SaveId = SAVE) -> Save:
    """A published save of this layout, as the journal knows it."""
    manifest = staged(place, layout, save)
    known = Save(
        id=save,
        stage=SaveStage.SEALED,
        plan=FULL,
        reason=Reason.CADENCE,
        mode=Mode.SYNCHRONOUS,
        components=manifest.components,
    )
    return evolve(known, manifest=place.checkpoints.seal(manifest, pending=False, marker=marker_of(layout, save)))


def _put(place: Place, save: SaveId, name: str) -> FileDigest:
    if name.endswith(".pt"):
        (image,) = stream({name.removesuffix(".pt"): {"step": save.step}})
        return place.checkpoints.put(save, image)
    return place.checkpoints.put_bytes(save, name, f"{name} of {save}".encode())
