"""Both trees held against the journal: what is promised of each directory, retention and validation considered.

the journal says                           the directory is
sealed                                     there, and whole
sealed, its optimizer released             there, and whole but for the optimizer, and says so itself
sealed, retention is taking its optimizer  there, and whole but for what its own marker names
sealed, retention is removing it           there or not: nobody relies on it
sealed, removed                            not there
nothing                                    a live writer's next one, or not ours
nothing, in a bucket without a manifest    half-written: what a save left that was given up, or that goes on

In a bucket a save is written below its final name. Its manifest is what makes it one; where a later writer gave the
save up, its tombstone lies in the manifest's place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import field, frozen

from milepost.engines.checkpoints.direct_names import revoked
from milepost.engines.checkpoints.manifest import ARTIFACT, LIMIT_BYTES, MANIFEST
from milepost.journal.forensics import findings as rows
from milepost.journal.forensics.findings import Finding, Row, finding
from milepost.journal.forensics.listing import is_open
from milepost.journal.forensics.marks import Promised
from milepost.journal.forensics.reading import Kind, Place
from milepost.journal.forensics.timeline import Beside
from milepost.journal.forensics.wholeness import Pending, examine
from milepost.transitions.errors import NewerVersion
from milepost.transitions.machine import State
from milepost.transitions.retention import Part, Prune, PruneStage
from milepost.transitions.saving import Save
from milepost.transitions.validation import Generation, ValidationStage
from milepost.transitions.values import FULL, SaveId, iteration_name, parse_iteration


@frozen(kw_only=True)
class Trees:
    """What was found in both trees: the files to hash, and how many directories of each kind were looked at."""

    found: list[Finding] = field(factory=list)
    pending: list[Pending] = field(factory=list)
    counts: dict[Kind, int] = field(factory=lambda: dict.fromkeys(Kind, 0))


def examine_trees(
    place: Place,
    *,
    state: State | None,
    beside: Beside | None,
    names: Mapping[Kind, tuple[str, ...]],
    writer: int | None,
) -> Trees:
    """Everything but the digests. Without a `state`, as the journal is refused, a directory has only its manifest.

    `beside` is what the journal says of the small files of each checkpoint; None where it could not be asked.
    """
    trees = Trees()
    for kind in Kind:
        sealed = _sealed(state, kind)
        listed = {name for name in names[kind] if parse_iteration(name) is not None}
        for name in sorted(name for name in listed | sealed.keys() if place.means(kind, name)):
            save = sealed.get(name)
            promised: Promised | None = Promised(kind=kind)
            is_under_way = state is not None and is_open(name, kind, state)
            if save is None and place.remote and _is_half_written(place, kind, name):
                if not is_under_way:
                    trees.found.append(_half_written(place, kind, name))
                promised = None
            elif state is not None and save is not None:
                there = name in listed
                trees.found.extend(_retained(place, state, save, there=there, writer=writer))
                promised = _promised(state, save, there=there, beside=beside, live=writer is not None)
            elif state is not None and writer is None and not is_under_way:
                trees.found.append(_unrecorded(place, kind, name))
            if promised is not None:
                trees.counts[kind] += 1
                found, pending = examine(place.disk, f"{place.tree(kind)}/{name}", promised)
                trees.found.extend(found)
                trees.pending.extend(pending)
    return trees


def _sealed(state: State | None, kind: Kind) -> dict[str, Save]:
    if state is None:
        return {}
    saves = state.saving.sealed if kind is Kind.CHECKPOINT else state.saving.artifacts
    return {save.id.directory: save for save in saves.values()}


def _promised(state: State, save: Save, *, there: bool, beside: Beside | None, live: bool) -> Promised | None:
    """What has to be in the directory of a sealed save; None where nothing is relied on."""
    if save.plan != FULL:
        return Promised(kind=Kind.ARTIFACT, save=save)
    if save.id.step in state.retention.removed:  # who brought one back is held to the manifest that came with it
        return Promised(kind=Kind.CHECKPOINT) if there else None
    prune = _open_prune(state, save.id)
    if prune is not None and prune.part is Part.CHECKPOINT:
        return None
    count = beside.generations.get(save.id, 0) if beside is not None else None
    return Promised(
        kind=Kind.CHECKPOINT,
        save=save,
        released=save.id.step in state.retention.released,
        releasing=prune is not None,
        generations=count,
        furthest=len(Generation) if live or count is None else count + _writing(state, save.id),
        boundary=beside.boundaries.get(save.id) if beside is not None else None,
    )


def _writing(state: State, save: SaveId) -> bool:
    """Whether the next generation may be there already: it is written before it is recorded."""
    stage = state.validation.stage
    return save == state.validation.pending and stage in (ValidationStage.PASSED, ValidationStage.PUBLISHING)


def _retained(place: Place, state: State, save: Save, *, there: bool, writer: int | None) -> Iterator[Finding]:
    """What retention has to say of a sealed save, where that is more than that it stays."""
    where = place.disk.where(f"{place.checkpoints}/{save.id.directory}")
    if save.plan == FULL and save.id.step in state.retention.removed:
        if there:
            found = f"{save.id.directory}, which retention removed"
            yield finding(rows.PRUNED_BACK, where, expected="nothing", found=found)
    elif (prune := _open_prune(state, save.id)) is not None:
        what = "all of it" if prune.part is Part.CHECKPOINT else "its optimizer"
        expected = f"{what} gone: retention began to remove it"
        yield finding(_row_of(prune, writer), where, expected=expected, found="a prune that is not completed")


def _row_of(prune: Prune, writer: int | None) -> Row:
    if prune.stage is PruneStage.FAILED:
        return rows.PRUNE_FAILED
    return rows.HALF_PRUNED if writer is None else rows.BEING_WRITTEN


def _open_prune(state: State, save: SaveId) -> Prune | None:
    return next((prune for prune in state.retention.open if prune.save == save), None)


def _unrecorded(place: Place, kind: Kind, name: str) -> Finding:
    row = rows.UNRECORDED if kind is Kind.CHECKPOINT else rows.UNRECORDED_ARTIFACT
    where = place.disk.where(f"{place.tree(kind)}/{name}")
    return finding(row, where, expected=f"{kind.value}s that the journal sealed", found=name)


def _is_half_written(place: Place, kind: Kind, name: str) -> bool:
    """Whether there is no manifest here, only payload or a tombstone. What was asked for by name has to have one."""
    path = f"{place.tree(kind)}/{name}/{MANIFEST if kind is Kind.CHECKPOINT else ARTIFACT}"
    try:
        data = place.disk.read(path, limit=LIMIT_BYTES)
        return revoked(data, where=place.disk.where(path)) is not None
    except NewerVersion:
        return True  # a tombstone of a later milepost
    except FileNotFoundError:
        return place.checkpoint != name
    except OSError:
        return False  # who reads it says so


def _half_written(place: Place, kind: Kind, name: str) -> Finding:
    where = place.disk.where(f"{place.tree(kind)}/{name}")
    return finding(rows.HALF_WRITTEN, where, expected=f"a {kind.value}", found="files without a manifest")


def pruned_between(place: Place, before: State, after: State) -> tuple[str, ...]:
    """The checkpoints, as a person would open them, of which retention took something from one state to the next."""
    return tuple(
        place.disk.where(f"{place.checkpoints}/{iteration_name(step)}")
        for step in after.saving.sealed
        if before.retention.lost(step) is not after.retention.lost(step)
    )
