"""What a checkpoint says of its own validation: generations, one small file each, beside its manifest.

    .posttrain-validation.0.json   evaluation-pending    staged before the manifest: published with it
    .posttrain-validation.1.json   publication-pending   created once the evaluation passed
    .posttrain-validation.2.json   published             created once it may be announced

1. A successor is created beside its predecessor and replaces nothing (INV-02); the newest one counts.
2. A copy of the directory carries its pending state. In its own run the journal decides, and these follow it.
3. The bytes follow from the save and the generation: two writers of one generation write the same file.
4. A later one without an earlier one is damage: they are written in order, each durable before the next.
"""

from __future__ import annotations

from attrs import frozen

from milepost.engines.checkpoints.proven import Form
from milepost.engines.disks import Disk
from milepost.transitions.errors import Corrupt
from milepost.transitions.validation import Generation
from milepost.transitions.values import SaveId

FORMAT = "milepost.validation.v1"

names: tuple[str, ...] = tuple(f".posttrain-validation.{number}.json" for number in range(len(Generation)))
"""The names of the generations, in their order."""

_LIMIT_BYTES = 1 << 16


@frozen(kw_only=True)
class Mark:
    """One generation of the checkpoint of one save."""

    save: SaveId
    generation: Generation


_FORM = Form(content=Mark, tag=FORMAT, called="a generation of a validation")


def name_of(generation: Generation) -> str:
    """The name of the file that says it."""
    return names[list(Generation).index(generation)]


def encode(save: SaveId, generation: Generation) -> bytes:
    """The bytes of the generation's file."""
    return _FORM.encode(Mark(save=save, generation=generation))


def decode(data: bytes, *, where: str) -> Mark:
    """The generation of these bytes; `Corrupt` where one of them is wrong, `NewerVersion` for a later format."""
    return _FORM.decode(data, where=where)


def read(disk: Disk, path: str) -> Generation | None:
    """The newest generation of the checkpoint directory `path`; None: it never had a validation.

    `Corrupt` where one is damaged, missing among others or of another save; `OSError` where the disk cannot tell.
    """
    marks = read_all(disk, path)
    return marks[-1].generation if marks else None


def read_all(disk: Disk, path: str) -> tuple[Mark, ...]:
    """Every generation of the checkpoint directory `path`, in order, all of one save. Raises as `read` does."""
    there = frozenset(disk.names(path))
    count = max((number for number, name in enumerate(names, 1) if name in there), default=0)
    marks: list[Mark] = []
    for generation, name in zip(Generation, names[:count], strict=False):
        where = disk.where(f"{path}/{name}")
        if name not in there:
            raise Corrupt(f"{where}: expected {generation.value}, found nothing beside {names[count - 1]}")
        mark = decode(disk.read(f"{path}/{name}", limit=_LIMIT_BYTES), where=where)
        expected = Mark(save=marks[0].save if marks else mark.save, generation=generation)
        if mark != expected:
            found = f"{mark.generation.value} of save {mark.save}"
            raise Corrupt(f"{where}: expected {generation.value} of save {expected.save}, found {found}")
        marks.append(mark)
    return tuple(marks)
