"""Checkpoints on a disk: a staged directory, its manifest last, published by a rename that never replaces.

    checkpoints/
      iter_000000100/            published: complete, or not there
      latest_checkpoint.txt      the one file that is ever replaced
      .staging/<save id>/        a save of either kind under way; nobody reads it
      .staging/revoked-<id>/     a save that a later writer took away from its writer
      .staging/pruned-<id>/      a checkpoint that is being removed
      .staging/note-<id>         a small file on its way to the published checkpoint of that save
    checkpoint_artifacts/
      iter_000000100/            an artifact: published from the same staging area

Who needs a name in the staging area that a dead writer or a torn rename has left takes it with `~1`, `~2`, … instead.

The order of every operation is the order of `spec/durability.md`; each sync, fence and rename has a planted bug that
drops it (`tests/crash`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from typing import TYPE_CHECKING

from attrs import frozen

from milepost.engines.checkpoints import Found, GivenUp, Published, Uncertain, generations, released
from milepost.engines.checkpoints.manifest import (
    ARTIFACT,
    LIMIT_BYTES,
    MANIFEST,
    Manifest,
    digest_of,
    encode,
    folders_of,
    manifest_name,
)
from milepost.engines.checkpoints.marker import SUCCESS
from milepost.engines.checkpoints.tree import Tree
from milepost.engines.digests import Algorithm, Digester
from milepost.engines.disks import Disk, write_all
from milepost.transitions.errors import Corrupt, Unavailable
from milepost.transitions.retention import Part
from milepost.transitions.saving import Save
from milepost.transitions.validation import Generation
from milepost.transitions.values import FULL, FileDigest, Plan, SaveId, Witness

if TYPE_CHECKING:
    from milepost.engines.formats import Image

POINTER = "latest_checkpoint.txt"
STAGING = ".staging"
REVOKED = "revoked-"
PRUNED = "pruned-"
NOTE = "note-"
HEADROOM_BYTES = 32 << 20
"""Left free beside a save, so that the failure of a later one can still be journalled."""

_TEMPORARY = f"{POINTER}.", ".tmp"
_NOT_APPLIED = (errno.EEXIST, errno.ENOTEMPTY)


@frozen(kw_only=True)
class LocalCheckpoints:
    """Checkpoints below `root` on `disk`, artifacts below `artifacts`, both on one file system.

    `fence` raises `Fenced` once a later writer claimed the run.
    """

    disk: Disk
    root: str
    _artifacts: str
    fence: Callable[[], None]
    algorithm: Algorithm = "blake3"
    crc32: bool = False

    # --- making one -------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the directories that every save needs, durably. The run's own directory is there."""
        for path in (self.root, self._staging):
            self._make(path)

    def _make(self, path: str) -> None:
        with suppress(FileExistsError):  # mostly; or another writer was faster
            self.disk.mkdir(path)
        self.disk.sync_dir(path.rpartition("/")[0])

    def stage(self, save: SaveId, *, size: int, folders: tuple[str, ...] = (), plan: Plan = FULL) -> None:
        free = self.disk.free(self.root)
        if free < size + HEADROOM_BYTES:
            raise GivenUp(
                "no-space",
                f"{size} bytes to write and {HEADROOM_BYTES} to keep free; {self.disk.where(self.root)} has {free}",
            )
        with _given_up("making the staging"):
            self.disk.mkdir(self._of(save))
            for folder in folders:
                self.disk.mkdir(f"{self._of(save)}/{folder}")
            self.disk.sync_dir(self._staging)
        # A claim after this look finds a directory to revoke; a claim before it is found here.
        self.fence()

    def put(self, save: SaveId, image: Image, *, plan: Plan = FULL) -> FileDigest:
        from milepost.engines.formats import write_image  # who only looks does without tensors

        path = f"{self._of(save)}/{image.name}"
        with _given_up(f"writing {image.name}"):
            written = write_image(self.disk, path, image, algorithm=self.algorithm, crc32=self.crc32)
        return FileDigest(path=image.name, size=written.size, digest=written.digest)

    def put_bytes(self, save: SaveId, name: str, data: bytes, *, plan: Plan = FULL) -> FileDigest:
        digester = Digester(self.algorithm, size=len(data))
        digester.update(data)
        with _given_up(f"writing {name}"):
            self._write(f"{self._of(save)}/{name}", data)
        return FileDigest(path=name, size=len(data), digest=digester.digest)

    def seal(self, manifest: Manifest, *, pending: bool, marker: bytes | None = None) -> FileDigest:
        assert manifest.plan == FULL or not (pending or marker), "only a checkpoint has a validation or several roles"
        tree, staged, name = self._tree(manifest.plan), self._of(manifest.save), manifest_name(manifest.plan)
        final, data = tree.of(manifest.save), encode(manifest)
        with _given_up("writing the manifest"):
            if tree.path == self._artifacts:  # most runs never have one
                self._make(tree.path)
            if (already := tree.look(manifest.save)) is not None:
                return already.file
            if pending:
                said = Generation.EVALUATION_PENDING
                self._write(f"{staged}/{generations.name_of(said)}", generations.encode(manifest.save, said))
            self._sync_below(staged, manifest)
            self._write(f"{staged}/{name}", data)
            if marker is not None:
                self._write(f"{staged}/{SUCCESS}", marker)
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
            self.disk.sync_dir(tree.path)
            self.disk.sync_dir(self._staging)
        except OSError as error:
            raise self._uncertain(f"syncing the publication of {manifest.save.directory}", error) from error
        return digest_of(data, name=name)

    def _sync_below(self, staged: str, manifest: Manifest) -> None:
        """Make the names durable of what lies in a directory of the staged one."""
        for folder in folders_of(file.path for file in manifest.files):
            self.disk.sync_dir(f"{staged}/{folder}")

    def _write(self, path: str, data: bytes) -> None:
        """A new file, its bytes durable; its name is not."""
        with self.disk.create(path) as sink:
            write_all(sink, data)
            sink.sync()

    # --- settling one -----------------------------------------------------------------------------------

    def observe(self, save: SaveId, *, plan: Plan) -> Found | None:
        tree, staged, revoked = self._tree(plan), self._of(save), f"{self._staging}/{REVOKED}{save}"
        with self._unavailable(f"revoking the staging of save {save}"):
            with suppress(FileNotFoundError):  # never made, revoked before, or published a moment ago
                self.disk.rename(staged, revoked)
            found = tree.look(save)
            if found is not None:
                tree.resync_one(save.directory, found.manifest)
            tree.sync()
            self.disk.sync_dir(self._staging)
        return found

    # --- what joins a published one ---------------------------------------------------------------------

    def mark(self, save: SaveId, generation: Generation) -> None:
        path, doing = self._full.of(save), f"marking {save.directory} as {generation.value}"
        with self._unavailable(doing):
            self._require(save)
            data = generations.encode(save, generation)
            note = self._note(save, data)
        try:
            self._join(note, f"{path}/{generations.name_of(generation)}", data)
            self.disk.sync_dir(path)
        except OSError as error:
            raise self._uncertain(doing, error) from error

    def _note(self, save: SaveId, data: bytes) -> str:
        """A file with these bytes, durable, in the staging area."""
        paths = self._names_for(f"{NOTE}{save}")
        while True:
            path = next(paths)
            with suppress(FileExistsError):  # of a dead writer, or of one that does not know yet
                self._write(path, data)
                return path

    def _join(self, note: str, path: str, data: bytes) -> None:
        """Give the note its place beside a manifest, where nothing is or equal bytes are."""
        try:
            self.disk.link(note, path)
        except FileExistsError:
            if self.disk.read(path, limit=LIMIT_BYTES) != data:
                raise Corrupt(
                    f"{self.disk.where(path)}: expected {data.decode().rstrip()}, found other bytes. Nothing was "
                    "changed; look at it with `milepost verify`"
                ) from None
            # After a sync that failed the next one succeeds and writes nothing: only a new entry is one to be synced.
            self.disk.rename(note, path)
        finally:
            with suppress(OSError):  # it became the name, or it is swept
                self.disk.unlink(note)

    def _require(self, save: SaveId) -> None:
        if self._full.look(save) is None:
            raise Corrupt(
                f"{self.disk.where(self._full.of(save))}: expected the checkpoint of save {save}, found nothing "
                "or that of another one. Nothing was changed; look at it with `milepost verify`"
            )

    # --- what retention takes ---------------------------------------------------------------------------

    def prune(self, save: SaveId, part: Part, files: tuple[str, ...]) -> None:
        try:
            if part is Part.CHECKPOINT:
                self._remove_all(save)
            else:
                self._release(save, files)
        except OSError as error:
            raise Unavailable(
                f"removing the {part.value} of {save.directory} failed: {error}. Nothing relies on what is left; "
                "retention tries again when it is applied next"
            ) from error

    def _release(self, save: SaveId, files: tuple[str, ...]) -> None:
        path, data = self._full.of(save), released.encode(save, files)
        self._require(save)
        self._join(self._note(save, data), f"{path}/{released.RELEASED}", data)
        # From here on, whoever finds the checkpoint without these files finds the reason beside it.
        self.disk.sync_dir(path)
        released.remove(self.disk, path, files)

    def _remove_all(self, save: SaveId) -> None:
        final = self._full.of(save)
        if self.disk.stat(final) is not None:
            self._require(save)
            free = (path for path in self._names_for(f"{PRUNED}{save}") if self.disk.stat(path) is None)
            with suppress(FileNotFoundError):  # an overtaken writer was faster
                self.disk.rename(final, next(free))
        else:
            for path in self._pruned(save):
                # Whole, so an attempt may have failed at the sync below, and after that one the next writes nothing.
                if self.disk.stat(f"{path}/{MANIFEST}") is not None:
                    self.disk.rename(path, final)
                    self.disk.rename(final, path)
        # Half of it must never look complete: its name is gone for good before the first of its files.
        self.disk.sync_dir(self.root)
        for path in self._pruned(save):
            self._destroy(path)

    def _pruned(self, save: SaveId) -> list[str]:
        """Where the checkpoint lies that is being removed; a torn rename leaves it several names."""
        names = self.disk.names(self._staging)
        return [f"{self._staging}/{name}" for name in names if _staged(name) == (PRUNED, save)]

    def _destroy(self, path: str) -> None:
        """Remove a checkpoint, its manifest first and for good: what has one there is whole."""
        with suppress(FileNotFoundError):  # an earlier attempt came as far
            self.disk.unlink(f"{path}/{MANIFEST}")
        with suppress(FileNotFoundError):  # an overtaken writer was faster
            self.disk.sync_dir(path)
        self._remove(path)

    # --- the pointer ------------------------------------------------------------------------------------

    def point(self, save: SaveId, *, epoch: int) -> None:
        prefix, suffix = _TEMPORARY
        temporary = f"{prefix}{epoch}{suffix}"
        with self._unavailable(f"writing the pointer to {save.directory}"):
            for name in self.disk.names(self.root):
                if name == temporary or _epoch_of(name, below=epoch) is not None:
                    with suppress(FileNotFoundError):  # its writer, not yet overtaken, was faster
                        self.disk.unlink(f"{self.root}/{name}")
            self._write(f"{self.root}/{temporary}", f"{save.directory}\n".encode())
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
                kind, save = _staged(name)
                if save is None or not (save.epoch < epoch or save in abandoned):
                    continue
                if kind == NOTE:  # its id does not say whose it is; what is listed before this look is no successor's
                    self.fence()
                path = f"{self._staging}/{name}"
                # A rename that only half survived leaves a published directory with a second name here.
                if any(self._is_one(path, tree.of(save)) for tree in self._trees):
                    continue
                self._remove(path)
                cleared.append(name)
        return tuple(cleared)

    def _is_one(self, path: str, other: str) -> bool:
        """Whether these are two names of one directory."""
        one, two = self.disk.stat(path), self.disk.stat(other)
        return one is not None and two is not None and one.inode == two.inode

    def _remove(self, path: str) -> None:
        """Remove a file, or a directory with all that is in it; an overtaken writer may be doing the same."""
        with suppress(FileNotFoundError):
            stat = self.disk.stat(path)
            if stat is None or stat.kind != "dir":
                self.disk.unlink(path)
                return
            for name in self.disk.names(path):
                self._remove(f"{path}/{name}")
            self.disk.rmdir(path)

    # --- looking ----------------------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        with self._unavailable("looking at the published checkpoints"):
            return self._full.names()

    def claimed(self, name: str) -> Published | None:
        with self._unavailable(f"looking at {name}"):
            return self._full.claimed(name)

    def published(self) -> tuple[Published, ...]:
        with self._unavailable("looking at the published checkpoints"):
            return self._full.published()

    def artifacts(self) -> tuple[Published, ...]:
        with self._unavailable("looking at the published artifacts"):
            return self._partial.published()

    def examine(self, save: Save, *, lost: Part | None) -> str:
        return self._tree(save.plan).examine(save, lost=lost)

    def witnesses(self) -> tuple[tuple[str, Witness], ...]:
        folder = self._artifacts.rpartition("/")[2]
        with self._unavailable("looking at what is published"):
            seen = [*self._full.manifests()]
            seen += [(f"{folder}/{name}", manifest) for name, manifest in self._partial.manifests()]
        return tuple((name, manifest.witness) for name, manifest in seen)

    def resync(self) -> None:
        with self._unavailable("syncing what recovery rests on"):
            if self.disk.stat(f"{self.root}/{POINTER}") is not None:
                self.disk.sync_file(f"{self.root}/{POINTER}")
            self.disk.sync_dir(self._staging)
            for tree in self._trees:
                tree.resync()

    # --- names and errors -------------------------------------------------------------------------------

    @property
    def _full(self) -> Tree:
        return Tree(disk=self.disk, path=self.root, manifest=MANIFEST)

    @property
    def _partial(self) -> Tree:
        return Tree(disk=self.disk, path=self._artifacts, manifest=ARTIFACT)

    @property
    def _trees(self) -> tuple[Tree, Tree]:
        return self._full, self._partial

    def _tree(self, plan: Plan) -> Tree:
        return self._full if plan == FULL else self._partial

    @property
    def _staging(self) -> str:
        return f"{self.root}/{STAGING}"

    def _of(self, save: SaveId) -> str:
        return f"{self._staging}/{save}"

    def _names_for(self, name: str) -> Iterator[str]:
        """Paths in the staging area for who needs one that is not taken; there is no last one."""
        path = f"{self._staging}/{name}"
        return chain((path,), (f"{path}~{number}" for number in count(1)))

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


def _staged(name: str) -> tuple[str, SaveId | None]:
    """The prefix of a name in the staging area, and the save that it belongs to; None for somebody else's name."""
    kind = next((prefix for prefix in (REVOKED, PRUNED, NOTE) if name.startswith(prefix)), "")
    try:
        return kind, SaveId.parse(name.removeprefix(kind).partition("~")[0])
    except ValueError:
        return kind, None
