"""What a run holds: its checkpoints and artifacts, each with how far it is. Values in, values out.

What a checkpoint is, by the journal and a quick look (manifest and sizes); the first line that fits:

    open, unsettled        its save is under way, or its writer is gone and nobody has looked yet
    damaged                its files are not those that were sealed
    pruning                retention began to remove a part of it and has not said that it is gone
    evaluation-pending     published; its evaluation has not passed
    publication-pending    published and evaluated; the rest of its validation is not done
    optimizer-released     retention took its optimizer: a model, and no resume source
    sealed                 published, whole, announced
    artifact               a partial save, whole; never a resume source
    unrecorded             it lies there and the journal does not know it

What retention removed is not listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

from attrs import frozen

from milepost.engines.checkpoints import Checkpoints, Published, generations, released
from milepost.engines.checkpoints.local import LocalCheckpoints
from milepost.journal.candidates import candidates_of
from milepost.journal.forensics.reading import Kind, Place
from milepost.journal.forensics.timeline import Chronicle, Event, chronicle
from milepost.transitions.errors import Corrupt, Refused
from milepost.transitions.machine import State
from milepost.transitions.resuming import Candidate, Standing
from milepost.transitions.retention import Part, kept
from milepost.transitions.saving import Save, SaveStage
from milepost.transitions.validation import Generation, ValidationStage
from milepost.transitions.values import (
    Component,
    FileDigest,
    LoopValue,
    RoleClocks,
    SaveId,
    Witness,
    parse_iteration,
)


class Stage(Enum):
    """The table at the top."""

    SEALED = "sealed"
    EVALUATION_PENDING = "evaluation-pending"
    PUBLICATION_PENDING = "publication-pending"
    OPTIMIZER_RELEASED = "optimizer-released"
    PRUNING = "pruning"
    ARTIFACT = "artifact"
    DAMAGED = "damaged"
    OPEN = "open"
    UNSETTLED = "unsettled"
    UNRECORDED = "unrecorded"


@frozen(kw_only=True)
class Listed:
    """A row of `ls`.

    `components` and `size`, payload in bytes, are of what is there: what retention released does not count. `roles`
    are those that it joins, at the clocks that were recorded; none for one trainer. `at` is when that was
    recorded, or empty. `latest` says that the pointer names it, `archived` that it has the receipt of an archive.
    """

    name: str
    kind: Kind
    step: int
    save: str | None
    stage: Stage
    reason: str
    components: tuple[Component, ...]
    roles: tuple[RoleClocks, ...]
    size: int
    at: str
    latest: bool
    archived: bool
    resumable: bool
    detail: str


@frozen(kw_only=True)
class Listing:
    """What `ls` says: checkpoints and artifacts by step. `pointer` is what latest_checkpoint.txt names, as read."""

    run: str
    pointer: str | None
    checkpoints: tuple[Listed, ...]


def checkpoints_at(place: Place) -> Checkpoints:
    """The run's checkpoints and artifacts, to be looked at only."""
    return LocalCheckpoints(disk=place.disk, root=place.checkpoints, artifacts=place.artifacts, fence=lambda: None)


def witnesses_of(place: Place, checkpoints: Checkpoints) -> Mapping[str, Witness]:
    """What the manifests of both trees knew of the journal."""
    return dict(checkpoints.witnesses()) if place.disk.stat(place.checkpoints) is not None else {}


def names_at(place: Place, kind: Kind) -> frozenset[str]:
    """The names in the tree of this kind, to be taken before the log is read."""
    tree = place.tree(kind)
    return frozenset(place.disk.names(tree) if place.disk.stat(tree) is not None else ())


def candidates_at(place: Place, state: State, *, there: frozenset[str], every: bool = False) -> tuple[Candidate, ...]:
    """What the journal sealed and what lay beside it before the log was read, each with its standing.

    With `every` each is looked at, otherwise what a start looks at. What came later is a live writer's next
    checkpoint, which the log that was read cannot know.
    """
    if place.disk.stat(place.checkpoints) is None:
        return tuple(
            Candidate(
                name=save.id.directory,
                step=save.id.step,
                standing=Standing.DAMAGED,
                save=save.id,
                detail="checkpoints/ is gone",
            )
            for save in kept(state.retention, saving=state.saving)
        )
    found = candidates_of(state, checkpoints_at(place), every=every)
    return tuple(one for one in found if one.save is not None or one.name in there)


def pointer_of(place: Place) -> str | None:
    """What latest_checkpoint.txt says; None where it does not say anything readable."""
    try:
        raw = place.disk.read(f"{place.checkpoints}/latest_checkpoint.txt", limit=4096)
    except OSError:
        return None
    return raw.decode("utf-8", "replace").strip()


# --- rows ---------------------------------------------------------------------------------------------


def listing(place: Place) -> Listing:
    """Everything of both trees, by step: sealed, under way, or lying there without a record."""
    return _told(place)[1]


def _told(place: Place) -> tuple[Chronicle, Listing]:
    """What the journal tells, read once, and what it makes of both trees."""
    there = {kind: names_at(place, kind) for kind in Kind}
    story = chronicle(place.log)
    pointer = pointer_of(place)
    rows = [
        *_checkpoints(place, story, there=there[Kind.CHECKPOINT], pointer=pointer),
        *_artifacts(place, story, there=there[Kind.ARTIFACT]),
        *(_under_way(save, story) for save in story.state.saving.open),
    ]
    rows.sort(key=lambda one: (one.step, one.kind.value))
    return story, Listing(run=place.where, pointer=pointer, checkpoints=tuple(rows))


def _checkpoints(place: Place, story: Chronicle, *, there: frozenset[str], pointer: str | None) -> Iterator[Listed]:
    state = story.state
    for candidate in candidates_at(place, state, there=there, every=True):
        if is_open(candidate.name, Kind.CHECKPOINT, state):
            continue
        latest = candidate.name == pointer
        if candidate.save is None:
            yield _unrecorded(candidate.name, Kind.CHECKPOINT, detail=candidate.detail, latest=latest)
            continue
        save = state.saving.sealed[candidate.step]
        damaged = candidate.standing is Standing.DAMAGED
        yield _sealed(
            save,
            story,
            kind=Kind.CHECKPOINT,
            stage=Stage.DAMAGED if damaged else stage_of(state, save.id),
            detail=candidate.detail,
            latest=latest,
            archived=released.is_archived(place.disk, f"{place.checkpoints}/{candidate.name}"),
            resumable=candidate.standing is Standing.SOUND,
        )


def _artifacts(place: Place, story: Chronicle, *, there: frozenset[str]) -> Iterator[Listed]:
    checkpoints, state = checkpoints_at(place), story.state
    seen: dict[str, Published] = {}
    if place.disk.stat(place.artifacts) is not None:
        seen = {one.name: one for one in checkpoints.artifacts()}
    recorded = {save.id.directory: save for save in state.saving.artifacts.values()}
    for name in sorted(seen.keys() | recorded.keys()):
        save = recorded.get(name)
        if save is not None:
            problem = checkpoints.examine(save, lost=None) if name in seen else "the directory is gone"
            stage = Stage.DAMAGED if problem else Stage.ARTIFACT
            gone = "" if problem else _archived(place, name)
            archived = released.is_archived(place.disk, f"{place.artifacts}/{name}")
            yield _sealed(save, story, kind=Kind.ARTIFACT, stage=stage, archived=archived, detail=problem or gone)
        elif name in there and not is_open(name, Kind.ARTIFACT, state):
            detail = seen[name].problem or "the journal has no record of it"
            yield _unrecorded(name, Kind.ARTIFACT, detail=detail)


def stage_of(state: State, save: SaveId) -> Stage:
    """How far a sealed checkpoint is that a look found whole."""
    lost = state.retention.lost(save.step)
    if save == state.validation.pending:
        evaluating = state.validation.stage is ValidationStage.EVALUATING
        return Stage.EVALUATION_PENDING if evaluating else Stage.PUBLICATION_PENDING
    if lost is Part.CHECKPOINT or any(prune.save == save for prune in state.retention.open):
        return Stage.PRUNING
    return Stage.OPTIMIZER_RELEASED if lost is Part.OPTIMIZER else Stage.SEALED


def _sealed(
    save: Save,
    story: Chronicle,
    *,
    kind: Kind,
    stage: Stage,
    archived: bool,
    detail: str,
    latest: bool = False,
    resumable: bool = False,
) -> Listed:
    gone = stage is not Stage.DAMAGED and save.id == story.state.retention.released.get(save.id.step)
    parts = [one for one in save.components if not (gone and one.component is Component.OPTIMIZER)]
    return Listed(
        name=save.id.directory,
        kind=kind,
        step=save.id.step,
        save=str(save.id),
        stage=stage,
        reason=save.reason.value,
        components=tuple(one.component for one in parts),
        roles=_roles(story, save.id),
        size=sum(file.size for one in parts for file in one.files),
        at=story.sealed(save.id).at,
        latest=latest,
        archived=archived,
        resumable=resumable,
        detail=detail,
    )


def _unrecorded(name: str, kind: Kind, *, detail: str, latest: bool = False) -> Listed:
    step = parse_iteration(name)
    assert step is not None, name
    return Listed(
        name=name,
        kind=kind,
        step=step,
        save=None,
        stage=Stage.UNRECORDED,
        reason="",
        components=(),
        roles=(),
        size=0,
        at="",
        latest=latest,
        archived=False,
        resumable=False,
        detail=detail,
    )


def _under_way(save: Save, story: Chronicle) -> Listed:
    return Listed(
        name=save.id.directory,
        kind=Kind.of(save.plan),
        step=save.id.step,
        save=str(save.id),
        stage=Stage.OPEN if save.stage is SaveStage.WRITING else Stage.UNSETTLED,
        reason=save.reason.value,
        components=save.plan,
        roles=_roles(story, save.id),
        size=save.size,
        at=story.events[save.id][-1].at,
        latest=False,
        archived=False,
        resumable=False,
        detail=story.events[save.id][-1].text,
    )


def _roles(story: Chronicle, save: SaveId) -> tuple[RoleClocks, ...]:
    return story.boundaries[save].roles if save in story.boundaries else ()


def is_open(name: str, kind: Kind, state: State) -> bool:
    """Whether a save is under way that would be published under this name, in the tree of this kind."""
    return any((save.id.directory, Kind.of(save.plan)) == (name, kind) for save in state.saving.open)


# --- one, whole ---------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Shown:
    """One of them, whole: its row, what its manifest lists and saw, and the entries that made it.

    `loop_state` is what the loop of several roles had recorded with it: the JSON text of each value.
    `generation` is what the checkpoint itself says of its validation, `released` the files that it says are gone;
    None and nothing where it does not say so, or not readably.
    """

    listed: Listed
    where: str
    run_ts: str
    milepost: str
    checkpoint_format: str
    world_size: int
    witness: Witness | None
    manifest: FileDigest | None
    files: tuple[FileDigest, ...]
    loop_state: tuple[LoopValue, ...]
    generation: Generation | None
    released: tuple[str, ...]
    events: tuple[Event, ...]


def shown(place: Place, name: str) -> tuple[Shown, ...]:
    """Everything that journal and manifest say of what has this name: a checkpoint, an artifact, or both.

    `Refused` where neither tree and no record knows it.
    """
    story, listed = _told(place)
    rows = [one for one in listed.checkpoints if one.name == name and place.means(one.kind, name)]
    events = events_of(story, name)
    if not rows:
        raise unknown(place, name, events)
    return tuple(_shown(place, row, story, events) for row in rows)


def _shown(place: Place, row: Listed, story: Chronicle, events: tuple[Event, ...]) -> Shown:
    boundary = story.boundaries.get(SaveId.parse(row.save)) if row.save is not None else None
    path = f"{place.tree(row.kind)}/{row.name}"
    found = None
    if place.disk.stat(path) is not None:
        checkpoints = checkpoints_at(place)
        published = checkpoints.published() if row.kind is Kind.CHECKPOINT else checkpoints.artifacts()
        found = next((one.found for one in published if one.name == row.name), None)
    manifest = found.manifest if found is not None else None
    return Shown(
        listed=row,
        where=place.disk.where(path),
        run_ts=manifest.run_ts if manifest else "",
        milepost=manifest.milepost if manifest else "",
        checkpoint_format=manifest.checkpoint_format if manifest else "",
        world_size=manifest.world_size if manifest else 0,
        witness=manifest.witness if manifest else None,
        manifest=found.file if found is not None else None,
        files=manifest.files if manifest else (),
        loop_state=boundary.loop_state if boundary is not None else (),
        generation=_generation(place, path),
        released=_released(place, path),
        events=events,
    )


def _generation(place: Place, path: str) -> Generation | None:
    try:
        return generations.read(place.disk, path)
    except (Corrupt, OSError):
        return None  # `verify` says what is wrong with it


def _archived(place: Place, name: str) -> str:
    """What became of the payload of an artifact that a look found nothing wrong with."""
    files = released.archived(place.disk, f"{place.artifacts}/{name}")
    return f"{', '.join(files)} lies in its archive alone: milepost fetch brings it back" if files else ""


def _released(place: Place, path: str) -> tuple[str, ...]:
    try:
        return released.read(place.disk, path)
    except (Corrupt, OSError):
        return ()


def events_of(story: Chronicle, name: str) -> tuple[Event, ...]:
    """Everything recorded of every attempt to save the step of this name, oldest first."""
    of_step = (events for save, events in story.events.items() if save.directory == name)
    return tuple(sorted((event for events in of_step for event in events), key=lambda event: event.seq))


def unknown(place: Place, name: str, events: tuple[Event, ...]) -> Refused:
    """What to say of a checkpoint that is nowhere."""
    if parse_iteration(name) is None:
        return Refused(f"{name!r} is no checkpoint: expected a name as iter_000000100")
    last = f"; the last that was recorded of it: {events[-1].text} (entry {events[-1].seq})" if events else ""
    return Refused(f"{name} is neither in the journal of {place.where} nor among its checkpoints and artifacts{last}")
