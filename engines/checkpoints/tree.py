"""One tree of published saves on a disk, looked at: the checkpoints, or the artifacts beside them.

1. A name is what its manifest says it is, or there is a problem with it; looking changes nothing.
2. A file that the release marker names may be gone; every other one has the size that the manifest states. Digests
   are for `milepost verify`: a look reads small files only.
3. Several roles are what their marker says they are, or there is a problem with them (INV-15).
4. A tree that nobody has made yet is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from attrs import frozen

from milepost.engines.checkpoints import Found, Published, generations, marker, released
from milepost.engines.checkpoints.manifest import (
    ARTIFACT,
    LIMIT_BYTES,
    Manifest,
    decode,
    digest_of,
    folders_of,
    manifest_name,
)
from milepost.engines.checkpoints.marker import SUCCESS
from milepost.engines.checkpoints.released import RELEASED, Release
from milepost.engines.checkpoints.roles import roles_of
from milepost.engines.disks import Disk
from milepost.transitions.errors import Corrupt
from milepost.transitions.retention import Part
from milepost.transitions.saving import Save
from milepost.transitions.values import FileDigest, SaveId, parse_iteration


@frozen(kw_only=True)
class Tree:
    """The published saves below `path`, each with its manifest under the name `manifest`."""

    disk: Disk
    path: str
    manifest: str

    def of(self, save: SaveId) -> str:
        """Where the save is published, if it is."""
        return f"{self.path}/{save.directory}"

    def look(self, save: SaveId) -> Found | None:
        """What is published under the save's name, where it is this very save. `Corrupt` where nothing can tell."""
        found = self._read(save.directory)
        return found if found is not None and found.manifest.save == save else None

    def published(self) -> tuple[Published, ...]:
        """Every name that is or claims to be a published save, in order of step."""
        return tuple(map(self.claimed, self.names()))

    def claimed(self, name: str) -> Published:
        """What lies under this name, by a quick look."""
        return self._published(name, may_lack=True)

    def examine(self, save: Save, *, lost: Part | None) -> str:
        """What is wrong with what the journal sealed, where it lost this part since; an empty string for nothing."""
        if lost is Part.CHECKPOINT:
            return ""
        seen = self._published(save.id.directory, may_lack=lost is not None)
        if seen.problem or seen.found is None:
            return seen.problem
        if seen.found.file != save.manifest:
            return f"its manifest is {seen.found.file.digest}, the journal recorded {save.manifest}"
        return ""

    def manifests(self) -> Iterator[tuple[str, Manifest]]:
        """Every name whose manifest can be read, with it; nothing else of it is looked at."""
        for name in self.names():
            found = None
            with suppress(Corrupt, OSError):
                found = self._read(name)
            if found is not None:
                yield name, found.manifest

    def resync(self) -> None:
        """Make durable what is published here, and the names."""
        for name, manifest in tuple(self.manifests()):
            self.resync_one(name, manifest)
        self.sync()

    def sync(self) -> None:
        """Make the names of the tree durable."""
        with suppress(FileNotFoundError):  # nobody has made it yet
            self.disk.sync_dir(self.path)

    def resync_one(self, name: str, manifest: Manifest) -> None:
        """Make durable what is published under this name; the name itself is the tree's."""
        listed, here = tuple(file.path for file in manifest.files), f"{self.path}/{name}"
        for path in (*listed, *generations.names, RELEASED, self.manifest, SUCCESS):
            with suppress(FileNotFoundError):  # it never had that, or retention took it, at this very moment too
                self.disk.sync_file(f"{here}/{path}")
        for folder in (*(f"{here}/{folder}" for folder in folders_of(listed)), here):
            with suppress(FileNotFoundError):  # retention took it, or an overtaken writer all of it
                self.disk.sync_dir(folder)

    def names(self) -> tuple[str, ...]:
        """Every name of an iteration, in order of step."""
        try:
            names = self.disk.names(self.path)
        except FileNotFoundError:
            return ()
        return tuple(name for name in names if parse_iteration(name) is not None)

    def _published(self, name: str, *, may_lack: bool) -> Published:
        found = None
        try:
            found = self._read(name)
            problem = self._problem(name, found, may_lack=may_lack)
        except (Corrupt, OSError) as error:
            problem = str(error)
        return Published(name=name, found=found, problem=problem)

    def _problem(self, name: str, found: Found | None, *, may_lack: bool) -> str:
        if found is None:
            return f"no {self.manifest}: it was never complete, or lost it"
        save, path = found.manifest.save, f"{self.path}/{name}"
        if save.directory != name:
            return f"its manifest is that of {save.directory}"
        for mark in generations.read_all(self.disk, path):
            if mark.save != save:
                return f"{generations.name_of(mark.generation)} is of save {mark.save}, the manifest of save {save}"
        if (roles := roles_of(found.manifest.files)) and (
            wrong := marker.contradiction(marker.read(self.disk, path), save=save, roles=roles)
        ):
            return wrong
        release = released.find(self.disk, path) or Release(save=save, files=())
        if release.save != save:
            return f"{RELEASED} is of save {release.save}, the manifest of save {save}"
        if release.files and not may_lack and not self._is_archived(path):
            return f"{RELEASED} says that {', '.join(release.files)} were released, and the journal does not"
        return self._sizes(path, [file for file in found.manifest.files if file.path not in release.files])

    def _is_archived(self, path: str) -> bool:
        """Whether this is an artifact that was released by hand, to its archive."""
        return self.manifest == ARTIFACT and released.is_archived(self.disk, path)

    def _sizes(self, path: str, files: Sequence[FileDigest]) -> str:
        for file in files:
            try:
                stat = self.disk.stat(f"{path}/{file.path}")
            except OSError as error:
                return f"{file.path}: {error}"
            if stat is None or stat.kind != "file" or stat.size != file.size:
                found = "nothing" if stat is None else f"a {stat.kind} of {stat.size} bytes"
                return f"{file.path}: expected {file.size} bytes, found {found}"
        return ""

    def _read(self, name: str) -> Found | None:
        path = f"{self.path}/{name}/{self.manifest}"
        if self.disk.stat(path) is None:
            return None
        where, data = self.disk.where(path), self.disk.read(path, limit=LIMIT_BYTES)
        manifest = decode(data, where=where)
        if manifest_name(manifest.plan) != self.manifest:
            raise Corrupt(f"{where}: expected {self.manifest}, found what belongs in {manifest_name(manifest.plan)}")
        return Found(manifest=manifest, file=digest_of(data, name=self.manifest))
