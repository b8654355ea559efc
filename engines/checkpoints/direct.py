"""Checkpoints in a bucket: payload under keys of its own, its manifest last, by a conditional create.

    checkpoints/
      iter_000000100/
        model/<save id>__0_0.distcp   model/.metadata   .posttrain/generations/<save id>/trainer.pt   payload
        .posttrain-validation.0.json                                                              its validation
        .posttrain-manifest.json                                             from here on it is published (INV-01)
      latest_checkpoint.txt                                                  the one published object that moves
    checkpoint_artifacts/                                                    the same with a manifest of another name

1. What is seen without a manifest is no checkpoint: there is no staging and no rename. Payload is never replaced, as
   its key has the id of its save; it is uploaded in one pass, and nothing lies on a disk meanwhile.
2. The manifest is created under a condition and only once every file that it lists was seen to be there with its
   size. It never changes (INV-02). A retry of its save looks at it and its files again and writes nothing; a retry
   that would seal another plan or other files is `Corrupt`.
3. Everything at a key that several attempts share is written in one order: READ what is there and its version, look
   at the FENCE, then CREATE or SWAP exactly that, and begin again on a Conflict. A later writer claims the run before
   it writes. So what was read before a look that found no claim is not a later writer's, and what a later writer
   writes after the look has another version: either way nothing of it is replaced, however long this writer paused
   in between, and whenever its request arrives (INV-10). No object at such a key is ever deleted, and no version
   comes back there.
4. `.metadata` of an earlier attempt is replaced in this order, unless a manifest is beside it: its digest is bound.
5. A save of a dead writer is settled by taking its manifest's key: a tombstone is created there, or takes the place
   of the tombstone of another save. Its writer's late create, and its late swap of an earlier tombstone, then meet a
   Conflict for ever. Only behind that the save is said to be absent; who finds its manifest instead says so.
6. The pointer moves by the order of rule 3 and never back (INV-03).
7. Nothing is removed but uploads that were never completed. Payload that no manifest names stays.
8. Before its manifest an attempt fails as `GivenUp`. An answer about the manifest, a mark, a tombstone or the pointer
   that stays unknown is `Uncertain`: only a later writer's look can tell. Doing a verb twice is harmless (INV-13).

Memory of one writer: what its upload buffers, which with `uploading.LANES` lanes and parts of `uploading.PART_BYTES`
or more is (2 x lanes + 1) x part <= `uploading.BUFFER_BYTES` bytes, and the `relay.DEPTH + 1` blocks of
`memory.BLOCK` bytes through which an image is composed: 144 MiB and 20 MiB for objects up to 140 GiB. A rank writes
one file at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING

from attrs import frozen

from milepost.engines.buckets import SMALL_BYTES, Bucket, Committed, Conflict, Leftover, Unknown, Version
from milepost.engines.buckets.reading import BucketDisk
from milepost.engines.checkpoints import Found, GivenUp, Published, Uncertain, generations
from milepost.engines.checkpoints import direct_names as names
from milepost.engines.checkpoints.local import POINTER
from milepost.engines.checkpoints.manifest import (
    ARTIFACT,
    MANIFEST,
    Manifest,
    decode,
    digest_of,
    encode,
    manifest_name,
)
from milepost.engines.checkpoints.tree import Tree
from milepost.engines.digests import Algorithm, Digester
from milepost.transitions.errors import Corrupt, Fenced, MilepostError, Refused
from milepost.transitions.retention import Part
from milepost.transitions.saving import Save
from milepost.transitions.validation import Generation
from milepost.transitions.values import FULL, FileDigest, Plan, SaveId, Witness, parse_iteration

if TYPE_CHECKING:
    from milepost.engines.formats import Image

DEADLINE_S = 120.0
"""How long a conditional request is repeated while its answer is unclear."""

WITNESSES = 3
"""So many of the newest manifests of each tree are read as witnesses."""

_LOOKS = 8
"""So many sizes are asked for at once."""


@frozen(kw_only=True)
class DirectCheckpoints:
    """Checkpoints below the key `root` of `bucket`, artifacts below `artifacts`. The bucket has no prefix of its own.

    `fence` raises `Fenced` once a later writer claimed the run. The plan of a save says in which tree its
    payload lies. Beside what `Checkpoints` says,
    every verb raises what the store raises (`Unavailable`, `Misconfigured`, `Corrupt`).
    """

    bucket: Bucket
    root: str
    _artifacts: str
    fence: Callable[[], None]
    algorithm: Algorithm = "blake3"
    crc32: bool = False

    # --- making one -------------------------------------------------------------------------------------

    def stage(self, save: SaveId, *, size: int, folders: tuple[str, ...] = (), plan: Plan = FULL) -> None:
        self.fence()
        with _given_up(f"clearing what earlier attempts left of {save.directory}"):
            for leftover, owner in self._leftovers(f"{self._tree(plan).of(save)}/"):
                if owner < save:
                    self.bucket.abort_upload(leftover)

    def put(self, save: SaveId, image: Image, *, plan: Plan = FULL) -> FileDigest:
        from milepost.engines.formats import write_image  # who only looks does without tensors

        path = names.path_of(save, image.name)
        with _given_up(f"sending {path}"):
            written = write_image(
                names.UploadDisk(self.bucket, image.room),
                f"{self._tree(plan).of(save)}/{path}",
                image,
                algorithm=self.algorithm,
                crc32=self.crc32,
            )
        return FileDigest(path=path, size=written.size, digest=written.digest)

    def put_bytes(self, save: SaveId, name: str, data: bytes, *, plan: Plan = FULL) -> FileDigest:
        path, tree = names.path_of(save, name), self._tree(plan)
        digester = Digester(self.algorithm, size=len(data))
        digester.update(data)
        is_shared = path.rpartition("/")[2] == names.METADATA
        try:
            with _given_up(f"writing {path}"):
                other = self._place(
                    f"{tree.of(save)}/{path}",
                    data,
                    over=lambda _found: is_shared and not self._is_published(tree, save),
                )
        except Uncertain as error:  # it is created late or never; another attempt replaces it, or meets it
            raise GivenUp("unknown", str(error)) from error
        if other is not None:
            raise self._conflict(f"{tree.of(save)}/{path}")
        return FileDigest(path=path, size=len(data), digest=digester.digest)

    def seal(self, manifest: Manifest, *, pending: bool, marker: bytes | None = None) -> FileDigest:
        assert marker is None, "several roles lie on a disk only"
        assert manifest.plan == FULL or not pending, "only a checkpoint has a validation"
        save, tree, data = manifest.save, self._tree(manifest.plan), encode(manifest)
        key = self._manifest_key(tree, save)
        with _given_up("looking at what is to be sealed"):
            there = self._read(key)
            already = None if there is None else self._of_save(there[0], save, key)
            if there is None or self._gives_way(there[0], save, key):
                if wrong := self._lacking(tree.of(save), manifest.files):
                    raise GivenUp("incomplete", f"{self.bucket.where(tree.of(save))}: {wrong}")
                self._begin_validation(tree, save, pending=pending)
        if already is not None:
            return self._sealed_before(already, manifest, tree)
        with _given_up("writing the manifest"):
            other = self._place(key, data, over=lambda found: self._gives_way(found, save, key))
            already = None if other is None else self._of_save(other, save, key)
        if other is None:
            return digest_of(data, name=manifest_name(manifest.plan))
        if already is not None:  # a request of this very save arrived late
            return self._sealed_before(already, manifest, tree)
        self.fence()  # mostly it was a later writer
        raise self._conflict(key)

    def _begin_validation(self, tree: Tree, save: SaveId, *, pending: bool) -> None:
        """Say beside the manifest to be that the validation is pending, or see that nothing there says so."""
        said = Generation.EVALUATION_PENDING
        key = f"{tree.of(save)}/{generations.name_of(said)}"
        if pending:
            data = generations.encode(save, said)
            if self._place(key, data, over=lambda _found: not self._is_published(tree, save)) is not None:
                raise self._conflict(key)
        elif self.bucket.stat(key) is not None:  # of another attempt at this step, and this one cannot unsay it
            raise self._conflict(key)

    def _gives_way(self, found: bytes, save: SaveId, key: str) -> bool:
        """Whether the save's manifest may take the place of this: the tombstone of another save."""
        revoked = names.revoked(found, where=self.bucket.where(key))
        return revoked is not None and revoked != save

    def _sealed_before(self, already: Found, manifest: Manifest, tree: Tree) -> FileDigest:
        where, found = self.bucket.where(tree.of(manifest.save)), already.manifest
        if (found.plan, found.components) != (manifest.plan, manifest.components):
            raise Corrupt(
                f"{where}: save {manifest.save} is published with other files than are to be sealed now. Nothing was "
                "changed; look at it with `milepost verify`"
            )
        if wrong := self._lacking(tree.of(manifest.save), found.files):
            raise Corrupt(f"{where}: {wrong}. It is published; look at it with `milepost verify`")
        return already.file

    def _lacking(self, path: str, files: tuple[FileDigest, ...]) -> str:
        """What is not there as it is listed; an empty string for nothing. One cheap request for each file."""
        with ThreadPoolExecutor(_LOOKS, thread_name_prefix="milepost-look") as pool:
            stats = pool.map(lambda file: self.bucket.stat(f"{path}/{file.path}"), files)
            for file, stat in zip(files, stats, strict=True):
                if stat is None or stat.size != file.size:
                    found = "nothing" if stat is None else f"{stat.size} bytes"
                    return f"{file.path}: expected {file.size} bytes, found {found}"
        return ""

    # --- settling one -----------------------------------------------------------------------------------

    def observe(self, save: SaveId, *, plan: Plan) -> Found | None:
        key = self._manifest_key(self._tree(plan), save)
        other = self._place(key, names.encode(save), over=lambda found: self._gives_way(found, save, key))
        return None if other is None else self._of_save(other, save, key)

    # --- what joins a published one ---------------------------------------------------------------------

    def mark(self, save: SaveId, generation: Generation) -> None:
        path, key = self._full.of(save), self._manifest_key(self._full, save)
        there = self._read(key)
        if there is None or self._of_save(there[0], save, key) is None:
            raise Corrupt(
                f"{self.bucket.where(path)}: expected the checkpoint of save {save}, found nothing or that of "
                "another one. Nothing was changed; look at it with `milepost verify`"
            )
        key, data = f"{path}/{generations.name_of(generation)}", generations.encode(save, generation)
        if self._place(key, data, over=lambda _found: False) is not None:
            raise Corrupt(
                f"{self.bucket.where(key)}: expected {data.decode().rstrip()}, found other bytes. Nothing was "
                "changed; look at it with `milepost verify`"
            )

    def prune(self, save: SaveId, part: Part, files: tuple[str, ...]) -> None:
        raise Refused(f"{self.bucket.where(self.root)}: nothing that was published in a bucket is removed")

    # --- the pointer ------------------------------------------------------------------------------------

    def point(self, save: SaveId, *, epoch: int) -> None:
        key = f"{self.root}/{POINTER}"
        newer = self._place(key, f"{save.directory}\n".encode(), over=lambda found: _step_of(found) <= save.step)
        if newer is not None:
            self.fence()
            raise Corrupt(
                f"{self.bucket.where(key)}: expected {save.directory} or an earlier checkpoint, found "
                f"{newer.decode(errors='replace').strip()}, and no later writer has claimed the run. Nothing was "
                "changed; give every run a prefix of its own"
            )

    # --- what dead attempts left ------------------------------------------------------------------------

    def clear(self, *, epoch: int, abandoned: tuple[SaveId, ...]) -> tuple[str, ...]:
        cleared = []
        for tree in self._trees:
            for leftover, owner in self._leftovers(f"{tree.path}/"):
                if owner.epoch < epoch or owner in abandoned:
                    self.bucket.abort_upload(leftover)
                    cleared.append(leftover.key.removeprefix(f"{tree.path}/"))
        return tuple(cleared)

    def _leftovers(self, prefix: str) -> Iterator[tuple[Leftover, SaveId]]:
        """Uploads that were begun below this prefix, each with the save in its key."""
        for leftover in self.bucket.uploads(prefix):
            tree = next((tree for tree in self._trees if leftover.key.startswith(f"{tree.path}/")), None)
            if tree is not None:
                name, _, path = leftover.key.removeprefix(f"{tree.path}/").partition("/")
                owner = names.save_of(path)
                if owner is not None and owner.directory == name:
                    yield leftover, owner

    # --- looking ----------------------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        return self._full.names()

    def claimed(self, name: str) -> Published | None:
        return self._claimed(self._full, name)

    def published(self) -> tuple[Published, ...]:
        return self._all_claimed(self._full)

    def artifacts(self) -> tuple[Published, ...]:
        return self._all_claimed(self._partial)

    def _all_claimed(self, tree: Tree) -> tuple[Published, ...]:
        return tuple(one for name in tree.names() if (one := self._claimed(tree, name)) is not None)

    def _claimed(self, tree: Tree, name: str) -> Published | None:
        """What is published, or has a manifest that cannot be read; a name without one claims nothing (rule 1)."""
        one = tree.claimed(name)
        if one.found is None:
            there = self._read(f"{tree.path}/{name}/{tree.manifest}")
            if there is None or names.revoked(there[0], where=name) is not None:
                return None
        return one

    def examine(self, save: Save, *, lost: Part | None) -> str:
        return self._tree(save.plan).examine(save, lost=lost)

    def witnesses(self) -> tuple[tuple[str, Witness], ...]:
        """Those of the newest manifests of each tree, from the checkpoint on that the pointer names.

        A later step was sealed later and its witness has the higher number, so that the newest that can be read
        says all. What an older one knew besides could be missing only if objects of the journal were lost, in this
        very bucket, and a log that lacks a slot does not open.
        """
        folder = f"{self._artifacts.rpartition('/')[2]}/"
        seen = [*islice(self._readable(self._full), WITNESSES)]
        seen += [(f"{folder}{name}", manifest) for name, manifest in islice(self._readable(self._partial), WITNESSES)]
        return tuple((name, manifest.witness) for name, manifest in seen)

    def _readable(self, tree: Tree) -> Iterator[tuple[str, Manifest]]:
        """From the newest name back, every one with a manifest that can be read."""
        there = self._read(f"{self.root}/{POINTER}")
        pointed = there[0].decode(errors="replace").strip() if there is not None else ""
        start = pointed if parse_iteration(pointed) is not None else ""
        for name in sorted({*self._names_from(tree, start), *filter(None, (start,))}, reverse=True):
            key = f"{tree.path}/{name}/{tree.manifest}"
            with suppress(Corrupt):
                if (found := self._read(key)) is not None:
                    yield name, decode(found[0], where=self.bucket.where(key))

    def _names_from(self, tree: Tree, start: str) -> Iterable[str]:
        """The names of saves in a tree, from this one on."""
        found: tuple[str, ...] = ()
        with suppress(FileNotFoundError):  # there is none
            found = BucketDisk(self.bucket).names(tree.path, since=start)
        return (name for name in found if parse_iteration(name) is not None)

    def resync(self) -> None:
        """Nothing: what is read from a bucket is durable."""

    # --- one object that several attempts write ---------------------------------------------------------

    def _place(self, key: str, data: bytes, *, over: Callable[[bytes], bool]) -> bytes | None:
        """Put `data` at the key, where nothing is or where `over` says that what is there gives way (rule 3).

        The bytes that are there instead, and stay; None once it is `data`.
        """
        while True:
            there = self._read(key)
            if there is not None and there[0] == data:
                return None
            if there is not None and not over(there[0]):
                return there[0]
            self.fence()
            if there is None:
                answer = self.bucket.create(key, data, deadline_s=DEADLINE_S)
            else:
                answer = self.bucket.swap(key, data, expected=there[1], deadline_s=DEADLINE_S)
            match answer:
                case Committed():
                    return None
                case Unknown(why=why):
                    raise Uncertain(
                        f"{why}: whether {self.bucket.where(key)} was written cannot be said. Nothing more is "
                        "recorded by this writer; open the run again to look and settle it"
                    )
                case Conflict():
                    continue

    def _read(self, key: str) -> tuple[bytes, Version] | None:
        try:
            return self.bucket.read(key, limit=SMALL_BYTES)
        except FileNotFoundError:
            return None

    def _of_save(self, data: bytes, save: SaveId, key: str) -> Found | None:
        """What these bytes at a manifest's key publish, where it is this very save; `Corrupt` for damaged ones."""
        where = self.bucket.where(key)
        if names.revoked(data, where=where) is not None:
            return None
        manifest = decode(data, where=where)
        found = Found(manifest=manifest, file=digest_of(data, name=key.rpartition("/")[2]))
        return found if manifest.save == save else None

    def _is_published(self, tree: Tree, save: SaveId) -> bool:
        """Whether there is a manifest, of whatever save, or what cannot be told from one."""
        key = self._manifest_key(tree, save)
        there = self._read(key)
        return there is not None and names.revoked(there[0], where=self.bucket.where(key)) is None

    # --- names and errors -------------------------------------------------------------------------------

    @property
    def _full(self) -> Tree:
        return Tree(disk=BucketDisk(self.bucket), path=self.root, manifest=MANIFEST)

    @property
    def _partial(self) -> Tree:
        return Tree(disk=BucketDisk(self.bucket), path=self._artifacts, manifest=ARTIFACT)

    @property
    def _trees(self) -> tuple[Tree, Tree]:
        return self._full, self._partial

    def _tree(self, plan: Plan) -> Tree:
        return self._full if plan == FULL else self._partial

    def _manifest_key(self, tree: Tree, save: SaveId) -> str:
        return f"{tree.of(save)}/{tree.manifest}"

    def _conflict(self, key: str) -> GivenUp:
        return GivenUp("conflict", f"{self.bucket.where(key)} is there already and is no work of this save")


def _step_of(pointer: bytes) -> int:
    """The step that the pointer names; -1 for one that names nothing, which anything may replace."""
    step = parse_iteration(pointer.decode(errors="replace").strip())
    return -1 if step is None else step


@contextmanager
def _given_up(doing: str) -> Iterator[None]:
    """An error before the manifest gives the save up: nothing refers to what was sent."""
    try:
        yield
    except (GivenUp, Fenced, Uncertain):
        raise
    except Corrupt as error:
        raise GivenUp("conflict", str(error)) from error
    except (MilepostError, OSError, ValueError) as error:
        raise GivenUp(type(error).__name__, f"{doing}: {error}") from error
