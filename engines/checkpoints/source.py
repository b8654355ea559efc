"""A checkpoint, open for restoring: what a trainer is given to read."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from attrs import frozen

from milepost.engines.checkpoints.manifest import Manifest
from milepost.engines.checkpoints.parts import full_name, is_sampling, split_name, tree_of
from milepost.engines.disks import Disk
from milepost.engines.formats import forms_of_pt, read_pt
from milepost.transitions.errors import Corrupt, MilepostError, Unavailable
from milepost.transitions.values import FileDigest


@frozen(kw_only=True)
class CheckpointSource:
    """One role of a published checkpoint directory (`role` is empty where there is only one), as one rank reads it.

    With `verify` every file is proven by its digest while it is read: a `.pt` by every rank that reads it, the files
    of a directory of shards each by one of the `world_size` ranks.
    """

    disk: Disk
    path: str
    manifest: Manifest
    role: str
    world_size: int
    rank: int
    verify: bool

    @property
    def where(self) -> str:
        return self.disk.where(f"{self.path}/{self.role}" if self.role else self.path)

    def names(self) -> tuple[str, ...]:
        return tuple(self._trees)

    def load(self, name: str, *, into: object | None = None) -> object:
        held = self._held(name)
        with _readable(held):
            if held.file is None:
                from milepost.engines.formats.dcp import read_dcp  # costs most of a second, and few need it

                return read_dcp(
                    self.disk,
                    held.path,
                    files=held.files,
                    into=into,
                    rank=self.rank,
                    world_size=self.world_size,
                    verify=self.verify,
                )
            with self.disk.open(held.path, bulk=True) as source:
                digest = held.file.digest if self.verify else None
                return read_pt(source, into=into, digest=digest, where=held.where)

    def forms(self, name: str) -> object:
        held = self._held(name)
        with _readable(held):
            if held.file is None:
                from milepost.engines.formats.dcp import forms_of_dcp

                return forms_of_dcp(self.disk, held.path, files=held.files, verify=self.verify)
            with self.disk.open(held.path) as source:
                return forms_of_pt(source, where=held.where)

    def _held(self, name: str) -> _Held:
        full = full_name(self.role, name)
        files = self._trees[name]
        file = next((one for path, one in files.items() if path.endswith(".pt")), None)  # in a bucket it lies deeper
        path = f"{self.path}/{full}" if file is None else f"{self.path}/{file.path}"
        within = {inner.removeprefix(f"{full}/"): one for inner, one in files.items()}
        return _Held(where=self.disk.where(path), path=path, file=file, files=within)

    @property
    def _trees(self) -> Mapping[str, Mapping[str, FileDigest]]:
        """The files of each tree of the role, by their path."""
        trees: dict[str, dict[str, FileDigest]] = {}
        for file in self.manifest.files:
            if is_sampling(file.path):
                continue
            role, name = split_name(tree_of(file.path))
            if role == self.role:
                trees.setdefault(name, {})[file.path] = file
        return trees


@frozen(kw_only=True)
class _Held:
    """One tree as it lies in a checkpoint: a `.pt` file, or (`file` is None) a directory of shards."""

    where: str
    path: str
    file: FileDigest | None
    files: Mapping[str, FileDigest]


@contextmanager
def _readable(held: _Held) -> Iterator[None]:
    """What the disk says while this tree is read is an error that says what was expected there."""
    try:
        yield
    except OSError as error:
        file = held.file
        expected = (
            "shards as the manifest lists them" if file is None else f"{file.size} bytes with digest {file.digest}"
        )
        raise unreadable(held.where, expected, error) from error


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
    rank: int

    def names(self) -> tuple[str, ...]:
        return tuple(self.trees)

    def load(self, name: str, *, into: object | None = None) -> object:
        return self.trees[name]

    def forms(self, name: str) -> object:
        return self.trees[name]


_ALIASES: Mapping[str, str] = {"net": "model", "optimizer": "optim"}


def open_file(disk: Disk, path: str, *, world_size: int, rank: int) -> FileSource:
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
        where=where,
        trees={_ALIASES.get(name, name): part for name, part in tree.items()},
        world_size=world_size,
        rank=rank,
    )
