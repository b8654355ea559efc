"""The release marker, `.posttrain-released.json`: which files of a checkpoint retention took away.

1. It is durable beside the manifest before the first of these files is unlinked, so that what lacks them says so of
   itself, and a copy of it does. A file that it names may still be there: the release was interrupted.
2. It is created and never replaced (INV-02). Its bytes follow from the save and the files.
3. Retention never touches an artifact. One is released by hand alone, once its archive was proven, and the receipt of
   that lies beside it.
"""

from __future__ import annotations

from contextlib import suppress

from attrs import frozen

from milepost.engines.checkpoints.manifest import LIMIT_BYTES, folders_of, require_inside
from milepost.engines.checkpoints.proven import Form
from milepost.engines.disks import Disk
from milepost.transitions.values import SaveId, parse_iteration

RELEASED = ".posttrain-released.json"
RECEIPT = ".uploaded"
"""What lies in a published directory once an archive of it was proven (`milepost.engines.archive.receipt`)."""
FORMAT = "milepost.released.v1"


@frozen(kw_only=True)
class Release:
    """The files of the checkpoint of this save that are gone, or may be."""

    save: SaveId
    files: tuple[str, ...]


_FORM = Form(content=Release, tag=FORMAT, called="a release marker")


def encode(save: SaveId, files: tuple[str, ...]) -> bytes:
    """The bytes of the marker."""
    return _FORM.encode(Release(save=save, files=files))


def decode(data: bytes, *, where: str) -> Release:
    """The release of these bytes; `Corrupt` where one of them is wrong, `NewerVersion` for a later format."""
    release = _FORM.decode(data, where=where)
    require_inside(release.files, where=where)
    return release


def remove(disk: Disk, path: str, files: tuple[str, ...]) -> None:
    """Remove files that the marker in `path` names, and the directories that nothing lies in any more, for good.

    Doing it twice, or going on with it, leaves what doing it once leaves (INV-13).
    """
    for file in files:
        with suppress(FileNotFoundError):  # done before, or somebody else was faster
            disk.unlink(f"{path}/{file}")
    for folder in folders_of(files):
        with suppress(FileNotFoundError):
            if disk.names(f"{path}/{folder}"):
                disk.sync_dir(f"{path}/{folder}")
            else:  # what was in it goes with its name, which the directory above is synced for
                disk.rmdir(f"{path}/{folder}")
    disk.sync_dir(path)


def read(disk: Disk, path: str) -> tuple[str, ...]:
    """The released files of the checkpoint directory `path`, none where it has no marker. Raises as `find` does."""
    release = find(disk, path)
    return release.files if release is not None else ()


def archived(disk: Disk, path: str) -> tuple[str, ...]:
    """The files of the artifact `path` that were released to its archive. Raises as `find` does."""
    return read(disk, path) if is_archived(disk, path) else ()


def is_archived(disk: Disk, path: str) -> bool:
    """Whether a receipt says that an archive of the published directory `path` was proven."""
    return disk.stat(f"{path}/{RECEIPT}") is not None


def archived_steps(disk: Disk, root: str) -> tuple[int, ...]:
    """The steps of the checkpoints below `root` that have a receipt, whoever wrote it."""
    steps = {name: parse_iteration(name) for name in disk.names(root)}
    return tuple(step for name, step in steps.items() if step is not None and is_archived(disk, f"{root}/{name}"))


def find(disk: Disk, path: str) -> Release | None:
    """The marker of the checkpoint directory `path`; `Corrupt` where it is damaged, `OSError` as the disk says."""
    marker = f"{path}/{RELEASED}"
    if disk.stat(marker) is None:
        return None
    return decode(disk.read(marker, limit=LIMIT_BYTES), where=disk.where(marker))
