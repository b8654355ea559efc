"""The marker of a boundary, `_SUCCESS`: the roles beside it are all there, and these are the counters they committed.

    {"version": 1, "iteration": 100, "counters": {"policy": 90, "critic": 100}, "loop_state": {"warmup": 10}}

1. It is written behind the manifest, last of all, and published with it: several roles without a marker of their
   iteration are no checkpoint (INV-15).
2. `counters` are the optimizer steps by role. A marker from before there were any lacks them, and may lack
   `loop_state`: both are optional, so the version is still 1.
3. `loop_state` is the loop's own. Its values are scalars of JSON and come back as they were: 1.0 stays a float, a
   large integer stays whole, and there is no NaN.
4. It has no sum: other programs read and write it. The journal recorded what it says, and `verify` compares.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from attrs import field, frozen

from milepost.engines import plainjson
from milepost.engines.checkpoints.manifest import LIMIT_BYTES
from milepost.engines.disks import Disk
from milepost.transitions.errors import Corrupt, NewerVersion, Refused
from milepost.transitions.values import LoopValue, RoleClocks, SaveId

SUCCESS = "_SUCCESS"
VERSION = 1

Scalar = str | int | float | bool | None
"""A value of JSON that holds no other one."""

_FIELDS = frozenset(("version", "iteration", "counters", "loop_state"))


@frozen(kw_only=True)
class Marker:
    """What a marker says. None for a field that it was written without."""

    iteration: int
    counters: Mapping[str, int] | None = field(default=None)
    loop_state: Mapping[str, Scalar] | None = field(default=None)


def of_boundary(save: SaveId, *, roles: Sequence[RoleClocks], loop_state: Sequence[LoopValue]) -> Marker:
    """The marker of the boundary which the journal recorded as this."""
    return Marker(
        iteration=save.step,
        counters={one.role: one.clocks.optimizer_step for one in roles},
        loop_state=loop_state_of(loop_state),
    )


def loop_values(loop_state: Mapping[str, object]) -> tuple[LoopValue, ...]:
    """A loop's own state as the journal records it; `Refused` for what is no scalar of JSON, by its name."""
    for name, value in loop_state.items():
        if type(name) is not str or not is_scalar(value):
            raise Refused(
                f"loop_state {name!r}: expected a string, a finite number, a bool or None under a name that is a "
                f"string, found {value!r}"
            )
    return tuple(LoopValue(name=name, value=json.dumps(value)) for name, value in loop_state.items())


def loop_state_of(values: Iterable[LoopValue]) -> dict[str, Scalar]:
    """The inverse of `loop_values`: what the loop gave, as it gave it."""
    return {one.name: json.loads(one.value) for one in values}


def encode(marker: Marker) -> bytes:
    """The bytes of the marker's file."""
    fields = {"iteration": marker.iteration, "counters": marker.counters, "loop_state": marker.loop_state}
    document = {"version": VERSION} | {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in fields.items()
        if value is not None
    }
    return json.dumps(document, allow_nan=False).encode() + b"\n"


def decode(data: bytes, *, where: str) -> Marker:
    """What these bytes say; `Corrupt` where they are no marker, `NewerVersion` for a later one."""
    try:
        document: object = plainjson.read(data)
    except ValueError as error:
        raise Corrupt(f"{where}: expected the marker of a boundary, found no such JSON: {error}") from error
    if not isinstance(document, dict):
        raise Corrupt(f"{where}: expected the marker of a boundary, found {document!r}")
    version = document.get("version")
    if type(version) is int and version > VERSION:
        raise NewerVersion(f"{where}: a marker of version {version}; this milepost reads {VERSION}")
    if type(version) is not int or version != VERSION:
        raise Corrupt(f"{where}: expected a marker of version {VERSION}, found {version!r}")
    if unknown := document.keys() - _FIELDS:
        raise Corrupt(f"{where}: expected {', '.join(sorted(_FIELDS))}, found {', '.join(sorted(unknown))} as well")
    iteration = document.get("iteration")
    if not _is_count(iteration):
        raise Corrupt(f"{where}: expected the number of an iteration, found {iteration!r}")
    counters, loop_state = document.get("counters"), document.get("loop_state")
    if "counters" in document and not (isinstance(counters, dict) and all(map(_is_count, counters.values()))):
        raise Corrupt(f"{where}: expected a count for each role, found counters {counters!r}")
    if "loop_state" in document and not (isinstance(loop_state, dict) and all(map(is_scalar, loop_state.values()))):
        raise Corrupt(f"{where}: expected a mapping of JSON scalars, found loop_state {loop_state!r}")
    return Marker(iteration=cast(int, iteration), counters=counters, loop_state=loop_state)


def read(disk: Disk, path: str) -> Marker | None:
    """The marker of the checkpoint directory `path`, None where it has none; raises as `decode`, or `OSError`."""
    marker = f"{path}/{SUCCESS}"
    if disk.stat(marker) is None:
        return None
    return decode(disk.read(marker, limit=LIMIT_BYTES), where=disk.where(marker))


def contradiction(marker: Marker | None, *, save: SaveId, roles: Sequence[str]) -> str:
    """Why a checkpoint of this save and of these roles is not the boundary that its marker speaks of, or nothing."""
    named = ", ".join(roles)
    if marker is None:
        return f"no {SUCCESS} beside the roles {named}: they were never complete together, or lost it (INV-15)"
    if marker.iteration != save.step:
        return f"{SUCCESS} is of iteration {marker.iteration}, the manifest of {save.step} (INV-15)"
    if marker.counters is not None and set(marker.counters) != set(roles):
        told = ", ".join(marker.counters) or "none"
        return f"{SUCCESS} commits the roles {told}, the manifest has {named} (INV-15)"
    return ""


def is_scalar(value: object) -> bool:
    """Whether this is one value of JSON, and a finite one where it is a number."""
    return value is None or type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
