"""Checkpoints on a disk: a staged directory, its manifest last, published by a rename that never replaces.

    checkpoints/
      iter_000000100/            published: complete, or not there
      latest_checkpoint.txt      the one file that is ever replaced
      .staging/<save id>/        a save under way; nobody reads it
      .staging/revoked-<id>/     a save that a later writer took away from its writer

The order of every operation is the order of `spec/durability.md`; each sync, fence and rename has a planted bug that
drops it (`tests/crash`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from attrs import frozen

from milepost.engines.checkpoints import Found, GivenUp, Published, Uncertain
from milepost.engines.checkpoints.manifest import LIMIT_BYTES, MANIFEST, Manifest, decode, digest_of, encode
from milepost.engines.digests import Algorithm
from milepost.engines.disks import Disk, write_all
from milepost.transitions.errors import Corrupt, Unavailable
from milepost.transitions.saving import Save
from milepost.transitions.values import FileDigest, SaveId, Witness, parse_iteration

if TYPE_CHECKING:
    from milepost.engines.formats import Image

POINTER = "latest_checkpoint.txt"
STAGING = ".staging"
REVOKED = "revoked-"
HEADROOM_BYTES = 32 << 20
"""Left free beside a save, so that the failure of a later one can still be journalled."""

_TEMPORARY = f"{POINTER}.", ".tmp"
_NOT_APPLIED = (errno.EEXIST, errno.ENOTEMPTY)


@frozen(kw_only=True)
class LocalCheckpoints:
    """Checkpoints below `root` on `disk`. `fence` raises `Fenced` once a later writer claimed the run."""

    disk: Disk
    root: str
    fence: Callable[[], None]
    algorithm: Algorithm = "blake3"
    crc32: bool = False

    # --- making one -------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the directories that every save needs, durably. The run's own directory is there."""
        parent = self.root.rpartition("/")[0]
        for path, above in ((self.root, parent), (self._staging, self.root)):
            with suppress(FileExistsError):  # mostly; or another start was faster
                self.disk.mkdir(path)
            self.disk.sync_dir(above)

    def stage(self, save: SaveId, *, size: int) -> None:
        free = self.disk.free(self.root)
        if free < size + HEADROOM_BYTES:
            raise GivenUp(
                "no-space",
                f"{size} bytes to write and {HEADROOM_BYTES} to keep free; {self.disk.where(self.root)} has {free}",
            )
        with _given_up("making the staging"):
            self.disk.mkdir(self._of(save))
            self.disk.sync_dir(self._staging)
        # A claim after this look finds a directory to revoke; a claim before it is found here.
        self.fence()

    def put(self, save: SaveId, image: Image) -> FileDigest:
        from milepost.engines.formats import write_image  # who only looks does without tensors

        path = f"{self._of(save)}/{image.name}"
        with _given_up(f"writing {image.name}"):
            written = write_image(self.disk, path, image, algorithm=self.algorithm, crc32=self.crc32)
        return FileDigest(path=image.name, size=written.size, digest=written.digest)

    def seal(self, manifest: Manifest) -> FileDigest:
        staged, final = self._of(manifest.save), f"{self.root}/{manifest.save.directory}"
        data = encode(manifest)
        with _given_up("writing the manifest"):
            if (already := self._look(manifest.save)) is not None:
                return already.file
            with self.disk.create(f"{staged}/{MANIFEST}") as sink:
                write_all(sink, data)
                sink.sync()
            self.disk.sync_dir(staged)
        try:
            self.disk.publish(staged, final)
        except OSError as error:
            if error.errno in _NOT_APPLIED:
                raise GivenUp(
                    "conflict", f"{self.disk.where(final)} is there already and is no work of this save"
                ) from error
            raise self._uncertain(f"publishing {manifest.save.directory}", error) from error
        try:
            self.disk.sync_dir(self.root)
            self.disk.sync_dir(self._staging)
        except OSError as error:
            raise self._uncertain(f"syncing the publication of {manifest.save.directory}", error) from error
        return digest_of(data)

    # --- settling one -----------------------------------------------------------------------------------

    def observe(self, save: SaveId) -> Found | None:
        staged, revoked = self._of(save), f"{self._staging}/{REVOKED}{save}"
        with self._unavailable(f"revoking the staging of save {save}"):
            with suppress(FileNotFoundError):  # never made, revoked before, or published a moment ago
                self.disk.rename(staged, revoked)
            found = self._look(save)
            if found is not None:
                self._resync_published(save.directory, found.manifest)
            self.disk.sync_dir(self.root)
            self.disk.sync_dir(self._staging)
        return found

    def _look(self, save: SaveId) -> Found | None:
        found = self._read(save.directory)
        return found if found is not None and found.manifest.save == save else None

    def _read(self, name: str) -> Found | None:
        path = f"{self.root}/{name}/{MANIFEST}"
        if self.disk.stat(path) is None:
            return None
        data = self.disk.read(path, limit=LIMIT_BYTES)
        return Found(manifest=decode(data, where=self.disk.where(path)), file=digest_of(data))

    # --- the pointer ------------------------------------------------------------------------------------

    def point(self, save: SaveId, *, epoch: int) -> None:
        prefix, suffix = _TEMPORARY
        temporary = f"{prefix}{epoch}{suffix}"
        with self._unavailable(f"writing the pointer to {save.directory}"):
            for name in self.disk.names(self.root):
                if name == temporary or _epoch_of(name, below=epoch) is not None:
                    with suppress(FileNotFoundError):  # its writer, not yet overtaken, was faster
                        self.disk.unlink(f"{self.root}/{name}")
            with self.disk.create(f"{self.root}/{temporary}") as sink:
                write_all(sink, f"{save.directory}\n".encode())
                sink.sync()
        # A later writer removes the temporary after its claim, so this rename either precedes its own or fails.
        self.fence()
        try:
            self.disk.rename(f"{self.root}/{temporary}", f"{self.root}/{POINTER}")
            self.disk.sync_dir(self.root)
        except OSError as error:
            raise self._uncertain(f"moving the pointer to {save.directory}", error) from error

    # --- what dead attempts left ------------------------------------------------------------------------

    def clear(self, *, epoch: int, abandoned: tuple[SaveId, ...]) -> tuple[str, ...]:
        cleared: list[str] = []
        with self._unavailable("clearing the staging area"):
            for name in self.disk.names(self._staging):
                save = _staged_id(name)
                mine = save is not None and (save.epoch < epoch or save in abandoned)
                # A rename that only half survived leaves a published directory with a second name here.
                if save is None or not mine or self._look(save) is not None:
                    continue
                self._remove(f"{self._staging}/{name}")
                cleared.append(name)
        return tuple(cleared)

    def _remove(self, path: str) -> None:
        """Remove a directory with all that is in it; an overtaken writer may be doing the same."""
        with suppress(FileNotFoundError):
            for name in self.disk.names(path):
                below = f"{path}/{name}"
                stat = self.disk.stat(below)
                if stat is not None and stat.kind == "dir":
                    self._remove(below)
                    continue
                with suppress(FileNotFoundError):
                    self.disk.unlink(below)
            self.disk.rmdir(path)

    # --- looking ----------------------------------------------------------------------------------------

    def published(self) -> tuple[Published, ...]:
        with self._unavailable("looking at the published checkpoints"):
            return tuple(self._published(name) for name in self._names())

    def _published(self, name: str) -> Published:
        try:
            found = self._read(name)
        except (Corrupt, OSError) as error:
            return Published(name=name, found=None, problem=str(error))
        if found is None:
            return Published(name=name, found=None, problem=f"no {MANIFEST}: it was never complete, or lost it")
        if found.manifest.save.directory != name:
            return Published(
                name=name, found=found, problem=f"its manifest is that of {found.manifest.save.directory}"
            )
        return Published(name=name, found=found, problem=self._sizes(name, found.manifest.files))

    def examine(self, save: Save) -> str:
        seen = self._published(save.id.directory)
        if seen.problem or seen.found is None:
            return seen.problem
        if seen.found.file != save.manifest:
            return f"its manifest is {seen.found.file.digest}, the journal recorded {save.manifest}"
        return ""

    def _sizes(self, name: str, files: tuple[FileDigest, ...]) -> str:
        for file in files:
            try:
                stat = self.disk.stat(f"{self.root}/{name}/{file.path}")
            except OSError as error:
                return f"{file.path}: {error}"
            if stat is None or stat.kind != "file" or stat.size != file.size:
                found = "nothing" if stat is None else f"a {stat.kind} of {stat.size} bytes"
                return f"{file.path}: expected {file.size} bytes, found {found}"
        return ""

    def witnesses(self) -> tuple[tuple[str, Witness], ...]:
        return tuple((seen.name, seen.found.manifest.witness) for seen in self.published() if seen.found is not None)

    def resync(self) -> None:
        with self._unavailable("syncing what recovery rests on"):
            for seen in self.published():
                if seen.found is not None:
                    self._resync_published(seen.name, seen.found.manifest)
            if self.disk.stat(f"{self.root}/{POINTER}") is not None:
                self.disk.sync_file(f"{self.root}/{POINTER}")
            self.disk.sync_dir(self._staging)
            self.disk.sync_dir(self.root)

    def _resync_published(self, name: str, manifest: Manifest) -> None:
        for path in (*(file.path for file in manifest.files), MANIFEST):
            if self.disk.stat(f"{self.root}/{name}/{path}") is not None:
                self.disk.sync_file(f"{self.root}/{name}/{path}")
        self.disk.sync_dir(f"{self.root}/{name}")

    def _names(self) -> Iterator[str]:
        return (name for name in self.disk.names(self.root) if parse_iteration(name) is not None)

    # --- names and errors -------------------------------------------------------------------------------

    @property
    def _staging(self) -> str:
        return f"{self.root}/{STAGING}"

    def _of(self, save: SaveId) -> str:
        return f"{self._staging}/{save}"

    @contextmanager
    def _unavailable(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unavailable(
                f"{doing} failed: {error}. What was published before is untouched; open the run again once "
                f"{self.disk.where(self.root)} works"
            ) from error

    def _uncertain(self, doing: str, error: OSError) -> Uncertain:
        return Uncertain(
            f"{doing} failed and may or may not have taken effect: {error}. Nothing more is recorded by this writer; "
            "open the run again to look and settle it"
        )


@contextmanager
def _given_up(doing: str) -> Iterator[None]:
    """An error before the publishing step gives the save up; EIO says that the disk forgets, and is `Uncertain`."""
    try:
        yield
    except Corrupt as error:
        raise GivenUp("conflict", str(error)) from error
    except OSError as error:
        if error.errno == errno.EIO:
            raise Uncertain(
                f"{doing} failed: {error}. The disk may have lost what it said it had; nothing more is recorded by "
                "this writer. What was published before is untouched; open the run again once the disk is sound"
            ) from error
        code = errno.errorcode.get(error.errno or 0, "OSError")
        raise GivenUp(code, f"{doing}: {error}") from error


def _epoch_of(name: str, *, below: int) -> int | None:
    """The epoch in the name of a pointer temporary, where it is an earlier one."""
    prefix, suffix = _TEMPORARY
    digits = name.removeprefix(prefix).removesuffix(suffix)
    if name != f"{prefix}{digits}{suffix}" or not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits) if int(digits) < below else None


def _staged_id(name: str) -> SaveId | None:
    try:
        return SaveId.parse(name.removeprefix(REVOKED))
    except ValueError:
        return None
