"""One published directory held against its manifest and the journal, then its bytes against their digests.

    what is there                                   it is held against
    a sealed save, whatever the manifest says       the files that the journal recorded before it was published
    no sealed save, a manifest that proves itself   the files that the manifest lists
    no sealed save, no such manifest                nothing: its names are of no meaning

What retention released is not looked for. Every finding is reported; none hides another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from attrs import frozen
from typing_extensions import Buffer

from milepost.engines.archive.declaration import DECLARATION
from milepost.engines.archive.receipt import TEMPORARY
from milepost.engines.checkpoints import generations, released
from milepost.engines.checkpoints.manifest import (
    ARTIFACT,
    LIMIT_BYTES,
    MANIFEST,
    Manifest,
    decode,
    digest_of,
    folders_of,
    manifest_name,
)
from milepost.engines.checkpoints.marker import SUCCESS
from milepost.engines.checkpoints.released import RECEIPT, RELEASED
from milepost.engines.digests import Algorithm, Digester
from milepost.engines.digests import digest_of as digest_of_source
from milepost.engines.disks import Disk, Source
from milepost.journal.forensics import findings as rows
from milepost.journal.forensics.findings import Finding, finding
from milepost.journal.forensics.marks import Promised, examine_generations, examine_marker, examine_release
from milepost.journal.forensics.reading import Kind
from milepost.transitions.errors import Corrupt, NewerVersion
from milepost.transitions.values import FileDigest, SaveId

Advance = Callable[[int, int], None]
"""Told how many bytes of how many are hashed."""

_SMALL_BYTES = 1 << 20
"""Hashed in one piece: beside reading, a thread and its ring cost more than they save."""

_ALGORITHMS: tuple[Algorithm, ...] = ("blake3", "sha256")


@frozen(kw_only=True)
class Pending:
    """A file of the right kind and size whose digest is still to be taken."""

    path: str
    file: FileDigest


def examine(disk: Disk, path: str, promised: Promised) -> tuple[list[Finding], list[Pending]]:
    """Everything about the directory at `path` but its digests, as far as it was promised.

    What another save published and what lies here is found by its id, and a rewritten manifest by its digest.
    """
    where, name, save = disk.where(path), path.rpartition("/")[2], promised.save
    missing = rows.CHECKPOINT_MISSING if promised.kind is Kind.CHECKPOINT else rows.ARTIFACT_MISSING
    try:
        stat = disk.stat(path)
    except OSError as error:
        return [finding(rows.LOOK_FAILED, where, expected=f"a {promised.kind.value}", found=str(error))], []
    if stat is None:
        return [finding(missing, where, expected=f"a {promised.kind.value}", found="nothing")], []
    if stat.kind != "dir":
        row = rows.SYMLINK if save is None and stat.kind == "symlink" else missing
        return [finding(row, where, expected="a directory", found=f"a {stat.kind}")], []
    found: list[Finding] = []
    manifest = _manifest(disk, path, promised, found)
    if manifest is not None and manifest.save.directory != name:
        expected = f"the manifest of {name}"
        found.append(finding(rows.MANIFEST_FOREIGN, where, expected=expected, found=f"that of save {manifest.save}"))
    files: tuple[FileDigest, ...] = manifest.files if manifest is not None else ()
    if save is not None:
        files = save.files
    owner = save.id if save is not None else manifest.save if manifest is not None else None
    known = {MANIFEST if promised.kind is Kind.CHECKPOINT else ARTIFACT, RECEIPT, TEMPORARY, DECLARATION}
    optional: tuple[str, ...] = ()
    if promised.kind is Kind.CHECKPOINT:
        known |= {*generations.names, RELEASED, SUCCESS}
        found += examine_generations(disk, path, promised, owner=owner)
        release, optional = examine_release(disk, path, promised, owner=owner)
        found += release
        found += examine_marker(disk, path, promised, files=files, owner=owner)
    else:
        known.add(RELEASED)
        with suppress(Corrupt, OSError):  # then nothing excuses what is missing
            optional = released.archived(disk, path)
    pending: list[Pending] = []
    for file in files:
        seen = _look(disk, Pending(path=f"{path}/{file.path}", file=file), promised, optional=file.path in optional)
        if isinstance(seen, Pending):
            pending.append(seen)
        elif seen is not None:
            found.append(seen)
    if files:
        found += _unlisted(disk, path, known, files, owner=owner)
    return found, pending


def hash_all(disk: Disk, pending: list[Pending], *, advance: Advance) -> Iterator[Finding]:
    """Take every digest; what differs from what is promised."""
    total, before = sum(one.file.size for one in pending), 0
    for one in pending:
        try:
            digest = _digest(disk, one, partial(_advance, advance, before, total))
        except (Corrupt, OSError) as error:  # in a bucket, one that was replaced meanwhile is corrupt
            yield finding(
                rows.FILE_UNREADABLE, disk.where(one.path), expected=f"{one.file.size} bytes", found=str(error)
            )
        else:
            if digest != one.file.digest:
                yield finding(rows.FILE_DIGEST, disk.where(one.path), expected=one.file.digest, found=digest)
        before += one.file.size
        advance(before, total)


def _manifest(disk: Disk, path: str, promised: Promised, found: list[Finding]) -> Manifest | None:
    """The manifest, where its bytes prove themselves; every reason to doubt it goes to `found`."""
    save, name = promised.save, MANIFEST if promised.kind is Kind.CHECKPOINT else ARTIFACT
    where = disk.where(f"{path}/{name}")
    expected = save.manifest.digest if save is not None and save.manifest is not None else "a manifest"
    try:
        data = disk.read(f"{path}/{name}", limit=LIMIT_BYTES)
    except FileNotFoundError:
        found.append(finding(rows.MANIFEST_MISSING, where, expected=expected, found="nothing"))
        return None
    except OSError as error:
        found.append(finding(rows.MANIFEST_UNREADABLE, where, expected=expected, found=str(error)))
        return None
    file = digest_of(data, name=name)
    if save is not None and file != save.manifest:
        found.append(
            finding(rows.MANIFEST_DIFFERS, where, expected=expected, found=f"{file.digest}, {file.size} bytes")
        )
    try:
        manifest = decode(data, where=where)
    except NewerVersion as error:
        found.append(finding(rows.MANIFEST_NEWER, where, expected="a manifest of this version", found=str(error)))
    except Corrupt as error:
        found.append(finding(rows.MANIFEST_UNREADABLE, where, expected=expected, found=str(error)))
    else:
        if manifest_name(manifest.plan) == name:
            return manifest
        other = f"what belongs in {manifest_name(manifest.plan)}"
        found.append(finding(rows.MANIFEST_UNREADABLE, where, expected=expected, found=other))
    return None


def _look(disk: Disk, one: Pending, promised: Promised, *, optional: bool) -> Pending | Finding | None:
    """The file, where it is right at a look; what is wrong with it; None where it is gone and was to be."""
    where, expected = disk.where(one.path), f"a file of {one.file.size} bytes"
    try:
        stat = disk.stat(one.path)
    except OSError as error:
        return finding(rows.FILE_UNREADABLE, where, expected=expected, found=str(error))
    if one.file.path in promised.gone:
        if stat is None:
            return None
        return finding(rows.FILE_RELEASED, where, expected="nothing: retention released it", found=f"a {stat.kind}")
    if stat is None:
        return None if optional else finding(rows.FILE_MISSING, where, expected=expected, found="nothing")
    if stat.kind != "file":
        return finding(rows.FILE_UNREADABLE, where, expected=expected, found=f"a {stat.kind}")
    if stat.size != one.file.size:
        offset = min(stat.size, one.file.size)
        return finding(rows.FILE_SIZE, where, expected=expected, found=f"{stat.size} bytes", offset=offset)
    return one


def _unlisted(
    disk: Disk, path: str, known: set[str], files: Sequence[FileDigest], *, owner: SaveId | None
) -> Iterator[Finding]:
    """What lies in a published directory, or in one of its own, and belongs to nothing that it promised (INV-02)."""
    folders = folders_of(file.path for file in files)
    known = known | {file.path for file in files} | set(folders)
    for folder in ("", *reversed(folders)):
        here = f"{path}/{folder}" if folder else path
        try:
            names = disk.names(here) if disk.stat(here) is not None else ()
            strangers = [(name, disk.stat(f"{here}/{name}")) for name in names if _below(folder, name) not in known]
        except OSError as error:
            yield finding(rows.LOOK_FAILED, disk.where(here), expected="a directory to list", found=str(error))
            continue
        for name, stat in strangers:
            row = rows.SYMLINK if stat is not None and stat.kind == "symlink" else rows.FILE_UNLISTED
            if _is_of_another_attempt(name, owner):
                row = rows.ATTEMPT_LEFTOVER
            where = disk.where(f"{here}/{name}")
            yield finding(row, where, expected="the manifest and what it lists", found="a name that it does not list")


def _is_of_another_attempt(name: str, owner: SaveId | None) -> bool:
    """Whether another attempt at this step made it, who wrote to a bucket: there its id is in the names."""
    try:
        made = SaveId.parse(name.partition("__")[0])
    except ValueError:
        return False
    return owner is not None and made.step == owner.step and made != owner


def _below(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _advance(advance: Advance, before: int, total: int, done: int) -> None:
    advance(before + done, total)


def _digest(disk: Disk, one: Pending, advance: Callable[[int], None]) -> str:
    name = one.file.digest.partition(":")[0]
    algorithm = next((known for known in _ALGORITHMS if known == name), None)
    if algorithm is None:
        return f"no digest: the algorithm {name} is not known to this milepost"
    if one.file.size <= _SMALL_BYTES:
        digester = Digester(algorithm)
        digester.update(disk.read(one.path, limit=_SMALL_BYTES))
        return digester.digest
    with _Watched(disk.open(one.path, bulk=True), advance) as source:
        return digest_of_source(source, algorithm=algorithm)


class _Watched:
    """A source that says how far its reader is."""

    def __init__(self, source: Source, advance: Callable[[int], None]) -> None:
        self._source = source
        self._advance = advance

    @property
    def size(self) -> int:
        return self._source.size

    def read_into(self, offset: int, buffer: Buffer) -> int:
        count = self._source.read_into(offset, buffer)
        self._advance(offset + count)
        return count

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
