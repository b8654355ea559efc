"""What each rank writes: planned by every rank for itself, then together, by torch's own planner.

1. A rank's plan needs neither the others nor a process group: a sharded tensor knows its place in its mesh. Planning
   is dear, so a `Planner` keeps the last plan with a fingerprint of the state that it was made for: names, types,
   shapes and placements. As long as these stay, the plan does, and two plans compare by their fingerprints.
2. Planning together is pure. What several ranks have (replicas, plain tensors, plain values) is written by one of
   them; what they do not have alike, or what leaves a hole or an overlap, is `Refused` with the names.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from attrs import define, field, frozen
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from milepost.engines.formats.chunks import is_dtensor, local_of
from milepost.engines.formats.dcp.trees import Flat
from milepost.transitions.errors import Refused

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@frozen
class LocalPlan:
    """What one rank could write; picklable. Equal where the fingerprints are, which is cheap to ask."""

    fingerprint: str
    plan: SavePlan = field(eq=False, repr=False)


@define
class Planner:
    """Plans one tree of one rank, again and again. Holds the last plan and none of the state."""

    _last: LocalPlan | None = field(default=None, init=False)

    def plan(self, flat: Flat, *, name: str, coordinator: bool) -> LocalPlan:
        """The plan for these values; the last one where nothing but values changed."""
        fingerprint = _fingerprint(flat)
        if self._last is None or self._last.fingerprint != fingerprint:
            self._last = LocalPlan(fingerprint, _plan(flat, name=name, coordinator=coordinator))
        return self._last


def _plan(flat: Flat, *, name: str, coordinator: bool) -> SavePlan:
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    try:
        with torch.no_grad():
            planner.set_up_planner(flat.values, is_coordinator=coordinator)
            plan = planner.create_local_plan()
    except (RuntimeError, ValueError, AssertionError) as error:
        raise Refused(f"$.{name}: torch.distributed.checkpoint cannot plan it: {error}") from error
    return dataclasses.replace(plan, planner_data=flat.paths)


def _fingerprint(flat: Flat) -> str:
    """A digest over everything that the plan is made from."""
    seen = hashlib.blake2b(digest_size=16)
    meshes: dict[int, str] = {}
    for name, path in flat.paths.items():
        seen.update(f"{path} {_described(flat.values.get(name), meshes)}\n".encode())
    return seen.hexdigest()


def _described(value: object, meshes: dict[int, str]) -> str:
    if not isinstance(value, torch.Tensor):
        return "value"
    whole = f"{value.dtype} {tuple(value.shape)}"
    if not is_dtensor(value):
        return f"tensor {whole}"
    mesh = value.device_mesh
    if id(mesh) not in meshes:
        meshes[id(mesh)] = _described_mesh(mesh)
    return f"shard {whole} {value.placements} {tuple(local_of(value).shape)} {meshes[id(mesh)]}"


def _described_mesh(mesh: DeviceMesh) -> str:
    return f"{mesh.device_type} {mesh.mesh.tolist()} {mesh.get_coordinate()}"


@frozen
class Together:
    """`plans` says for each rank what it writes, in the order in which the ranks' plans were given."""

    plans: tuple[SavePlan, ...]
    metadata: Metadata = field(repr=False)


def plan_together(plans: Sequence[LocalPlan]) -> Together:
    """Who writes what of a tree, from the plans of all ranks that hold it. Reads and changes nothing else.

    Raises `Refused` where the ranks do not have one and the same state, or not all of it.
    """
    _check_alike([local.plan for local in plans])
    planner = DefaultSavePlanner()
    try:
        shared, metadata = planner.create_global_plan([local.plan for local in plans])
    except (ValueError, AssertionError) as error:
        raise Refused(f"the ranks' state does not make one checkpoint: {error}") from error
    return Together(tuple(dataclasses.replace(plan, planner_data=None) for plan in shared), metadata)


def _check_alike(plans: Sequence[SavePlan]) -> None:
    """A name means the same on every rank: the planner takes what several have from any one of them."""
    known: dict[str, tuple[str, int]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            found = _kind(item)
            expected, first = known.setdefault(item.index.fqn, (found, rank))
            if found != expected:
                raise Refused(
                    f"{item.index.fqn}: rank {first} has {expected}, rank {rank} has {found}; every rank has to save "
                    "the same state"
                )
    _check_mappings([plan.planner_data for plan in plans])


def _kind(item: WriteItem) -> str:
    data = item.tensor_data
    if data is None:
        return "a plain value"
    return f"{item.type.name.lower()} of {data.properties.dtype}, shape {tuple(data.size)}"


def _check_mappings(paths: Sequence[Mapping[str, object]]) -> None:
    """A rank may hold less (its stage of a pipeline), but never another thing under the same name."""
    known: dict[str, tuple[object, int]] = {}
    for rank, mine in enumerate(paths):
        for name, path in mine.items():
            expected, first = known.setdefault(name, (path, rank))
            if path != expected:
                raise Refused(f"{name}: the path {expected!r} on rank {first}, {path!r} on rank {rank}")
