"""The small files beside a manifest, held against the journal: generations, the release marker, `_SUCCESS`.

Their bytes follow from what they say, so each is compared whole: a file that differs in one byte is found.

    a generation                         it is
    up to what the journal recorded      to be there
    the one that is being recorded       there or not: it is written before it is recorded
    any later one                        not to be there
    none recorded, as there is no        whole, with every earlier one; nothing else is known of it
    journal to ask

    the release marker                   it is
    the optimizer was released           to be there, and to name its files
    the optimizer is being released      there or not; what it does not name is to be there
    neither                              not to be there

    the marker of a boundary, _SUCCESS   it is
    the journal joined several roles     to be there, and what was recorded of them (INV-15)
    no journal to ask, several roles     to be there, and of these roles and this iteration
    one trainer                          not to be there
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from milepost.engines.checkpoints import generations, marker, released
from milepost.engines.checkpoints.manifest import LIMIT_BYTES
from milepost.engines.checkpoints.marker import SUCCESS
from milepost.engines.checkpoints.roles import roles_of
from milepost.engines.disks import Disk
from milepost.journal.forensics import findings as rows
from milepost.journal.forensics.findings import Finding, finding
from milepost.journal.forensics.reading import Kind
from milepost.transitions.boundary import BoundaryOpened
from milepost.transitions.errors import Corrupt, NewerVersion
from milepost.transitions.saving import Save
from milepost.transitions.validation import Generation
from milepost.transitions.values import Component, FileDigest, SaveId

_LIMIT_BYTES = 1 << 20


@frozen(kw_only=True)
class Promised:
    """What the journal says of one directory; without a `save` it says nothing, or it cannot be asked.

    `released`: its optimizer is gone. `releasing`: it may be, as it marks itself. `generations` counts those that are
    recorded, None where nobody knows; `furthest` those that may be there. `boundary` are the roles that it joined.
    """

    kind: Kind
    save: Save | None = None
    released: bool = False
    releasing: bool = False
    generations: int | None = None
    furthest: int = len(Generation)
    boundary: BoundaryOpened | None = None

    @property
    def optimizer(self) -> tuple[str, ...]:
        """The files of its optimizer."""
        parts = self.save.components if self.save is not None else ()
        return tuple(file.path for part in parts if part.component is Component.OPTIMIZER for file in part.files)

    @property
    def gone(self) -> tuple[str, ...]:
        """The files that retention released."""
        return self.optimizer if self.released else ()


def examine_generations(disk: Disk, path: str, promised: Promised, *, owner: SaveId | None) -> Iterator[Finding]:
    """What the directory says of its validation. `owner` is the save that lies there, as far as it is known."""
    there = [_is_there(disk, f"{path}/{name}") for name in generations.names]
    needed = promised.generations
    if needed is None:
        needed = max((number for number, is_there in enumerate(there, 1) if is_there), default=0)
    for number, (generation, is_there) in enumerate(zip(Generation, there, strict=True), 1):
        file = f"{path}/{generations.name_of(generation)}"
        if is_there:
            if number > promised.furthest:
                expected = f"{promised.furthest} generations: the journal knows of no other"
                yield finding(rows.GENERATION_UNRECORDED, disk.where(file), expected=expected, found=generation.value)
            yield from _wrong_generation(disk, file, generation, owner=owner)
        elif number <= needed:
            yield finding(rows.GENERATION_MISSING, disk.where(file), expected=generation.value, found="nothing")


def _is_there(disk: Disk, file: str) -> bool:
    """Whether there is a name; where the disk cannot tell, reading it says so."""
    try:
        return disk.stat(file) is not None
    except OSError:
        return True


def _wrong_generation(disk: Disk, file: str, generation: Generation, *, owner: SaveId | None) -> Iterator[Finding]:
    where, expected = disk.where(file), f"{generation.value} of save {owner or 'unknown'}"
    try:
        data = disk.read(file, limit=_LIMIT_BYTES)
        mark = generations.decode(data, where=where)
    except NewerVersion as error:
        yield finding(rows.GENERATION_NEWER, where, expected=expected, found=str(error))
    except (Corrupt, OSError) as error:
        yield finding(rows.GENERATION_UNREADABLE, where, expected=expected, found=str(error))
    else:
        if data != generations.encode(owner or mark.save, generation):
            found = f"{mark.generation.value} of save {mark.save}"
            yield finding(rows.GENERATION_UNREADABLE, where, expected=expected, found=found)


def examine_release(
    disk: Disk, path: str, promised: Promised, *, owner: SaveId | None
) -> tuple[list[Finding], tuple[str, ...]]:
    """What the directory says of its release, and the files that may be missing for it."""
    file, save = f"{path}/{released.RELEASED}", promised.save
    where = disk.where(file)
    expected = f"the files {', '.join(promised.optimizer)} of save {owner}" if save is not None else "a marker"
    try:
        release = released.find(disk, path)
    except NewerVersion as error:
        return [finding(rows.RELEASE_NEWER, where, expected=expected, found=str(error))], ()
    except (Corrupt, OSError) as error:
        return [finding(rows.RELEASE_UNREADABLE, where, expected=expected, found=str(error))], ()
    if release is None:
        needed = promised.released
        return [finding(rows.RELEASE_MISSING, where, expected=expected, found="nothing")] if needed else [], ()
    found = f"the files {', '.join(release.files)} of save {release.save}"
    if save is not None and not (promised.released or promised.releasing):
        expected = "no release: retention took nothing of it"
        return [finding(rows.RELEASE_UNRECORDED, where, expected=expected, found=found)], ()
    if (save is not None and release.files != promised.optimizer) or release.save != (owner or release.save):
        return [finding(rows.RELEASE_UNREADABLE, where, expected=expected, found=found)], ()
    return [], release.files


def examine_marker(
    disk: Disk, path: str, promised: Promised, *, files: Sequence[FileDigest], owner: SaveId | None
) -> Iterator[Finding]:
    """What the directory says of its roles. `files` are its payload, as far as they are known."""
    file, boundary, roles = f"{path}/{SUCCESS}", promised.boundary, roles_of(files)
    where = disk.where(file)
    if boundary is None and not roles:
        if files and _is_there(disk, file):
            expected = "no marker: one trainer has no boundary"
            yield finding(rows.MARKER_UNRECORDED, where, expected=expected, found="a name that may be one")
        return
    expected = f"the boundary of {', '.join(roles)}"
    if boundary is not None:
        told = marker.of_boundary(boundary.save, roles=boundary.roles, loop_state=boundary.loop_state)
        expected = marker.encode(told).decode().rstrip()
    try:
        data = disk.read(file, limit=LIMIT_BYTES)
        found = marker.decode(data, where=where)
    except FileNotFoundError:
        yield finding(rows.MARKER_MISSING, where, expected=expected, found="nothing")
    except NewerVersion as error:
        yield finding(rows.MARKER_NEWER, where, expected=expected, found=str(error))
    except (Corrupt, OSError) as error:
        yield finding(rows.MARKER_UNREADABLE, where, expected=expected, found=str(error))
    else:
        if boundary is not None and data != f"{expected}\n".encode():
            yield finding(rows.MARKER_DIFFERS, where, expected=expected, found=data.decode().rstrip())
        elif owner is not None and (wrong := marker.contradiction(found, save=owner, roles=roles)):
            yield finding(rows.MARKER_DIFFERS, where, expected=expected, found=wrong)
