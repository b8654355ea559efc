"""A checkpoint, open for restoring: what a trainer is given to read."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from attrs import frozen

from milepost.engines.checkpoints.manifest import Manifest
from milepost.engines.disks import Disk
from milepost.engines.formats import read_pt
from milepost.transitions.errors import Corrupt, MilepostError, Unavailable
from milepost.transitions.values import FileDigest


@frozen(kw_only=True)
class CheckpointSource:
    """A published checkpoint directory. With `verify`, every file is proven by its digest while it is read."""

    disk: Disk
    path: str
    manifest: Manifest
    world_size: int
    verify: bool

    @property
    def where(self) -> str:
        return self.disk.where(self.path)

    def names(self) -> tuple[str, ...]:
        return tuple(self._files)

    def load(self, name: str, *, into: object | None = None) -> object:
        file = self._files[name]
        path = f"{self.path}/{file.path}"
        try:
            with self.disk.open(path, bulk=True) as source:
                where = self.disk.where(path)
                return read_pt(source, into=into, digest=file.digest if self.verify else None, where=where)
        except OSError as error:
            raise unreadable(self.disk.where(path), f"{file.size} bytes with digest {file.digest}", error) from error

    @property
    def _files(self) -> Mapping[str, FileDigest]:
        return {file.path.removesuffix(".pt"): file for file in self.manifest.files}


def unreadable(where: str, expected: str, error: OSError) -> MilepostError:
    """A disk that could not read says nothing of the bytes; any other error is about what lies there."""
    if error.errno == errno.EIO:
        return Unavailable(f"{where} could not be read: {error}. It may be whole; look at the disk and start again")
    return Corrupt(
        f"{where}: expected {expected}, found {error}. Restore the file from a copy, or resume from another "
        "checkpoint by its path"
    )


@frozen(kw_only=True)
class FileSource:
    """One `.pt` file from before checkpoints were directories: a mapping of component to tree.

    It has no manifest and no digest: what it holds is believed as far as it fits the trainer.
    """

    where: str
    trees: Mapping[str, object]
    world_size: int

    def names(self) -> tuple[str, ...]:
        return tuple(self.trees)

    def load(self, name: str, *, into: object | None = None) -> object:
        return self.trees[name]


_ALIASES: Mapping[str, str] = {"net": "model", "optimizer": "optim"}


def open_file(disk: Disk, path: str, *, world_size: int) -> FileSource:
    """Read a single `.pt`; `Corrupt` where it is none or holds no mapping."""
    where = disk.where(path)
    try:
        with disk.open(path, bulk=True) as source:
            tree = read_pt(source, where=where)
    except OSError as error:
        raise unreadable(where, "a .pt file", error) from error
    if not isinstance(tree, dict) or not all(isinstance(name, str) for name in tree):
        raise Corrupt(f"{where}: expected a mapping of component to state, found a {type(tree).__name__}")
    return FileSource(
        where=where, trees={_ALIASES.get(name, name): part for name, part in tree.items()}, world_size=world_size
    )
