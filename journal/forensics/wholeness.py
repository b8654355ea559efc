"""One checkpoint held against its manifest and the journal, then its bytes against their digests.

    what is there                                   it is held against
    a sealed save, whatever the manifest says       the files that the journal recorded before it was published
    no sealed save, a manifest that proves itself   the files that the manifest lists
    no sealed save, no such manifest                nothing: its names are of no meaning

Every finding is reported; none hides another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Self

from attrs import frozen
from typing_extensions import Buffer

from milepost.engines.checkpoints.manifest import LIMIT_BYTES, MANIFEST, Manifest, decode, digest_of
from milepost.engines.digests import Algorithm, Digester
from milepost.engines.digests import digest_of as digest_of_source
from milepost.engines.disks import Disk, Source
from milepost.journal.forensics import findings as rows
from milepost.journal.forensics.findings import Finding, finding
from milepost.transitions.errors import Corrupt, NewerVersion
from milepost.transitions.saving import Save
from milepost.transitions.values import FileDigest

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


def examine(disk: Disk, path: str, *, save: Save | None) -> tuple[list[Finding], list[Pending]]:
    """Everything about the checkpoint at `path` but its digests. `save` is what the journal sealed there, if it did.

    The checkpoint of another save that lies here is found by its id, and a rewritten manifest by its digest.
    """
    where, name = disk.where(path), path.rpartition("/")[2]
    try:
        stat = disk.stat(path)
    except OSError as error:
        return [finding(rows.LOOK_FAILED, where, expected="a checkpoint", found=str(error))], []
    if stat is None:
        return [finding(rows.CHECKPOINT_MISSING, where, expected="a checkpoint", found="nothing")], []
    if stat.kind != "dir":
        row = rows.SYMLINK if save is None and stat.kind == "symlink" else rows.CHECKPOINT_MISSING
        return [finding(row, where, expected="a directory", found=f"a {stat.kind}")], []
    found: list[Finding] = []
    manifest = _manifest(disk, path, save, found)
    if manifest is not None and manifest.save.directory != name:
        expected = f"the manifest of {name}"
        found.append(finding(rows.MANIFEST_FOREIGN, where, expected=expected, found=f"that of save {manifest.save}"))
    files: tuple[FileDigest, ...] = manifest.files if manifest is not None else ()
    if save is not None:
        files = tuple(file for part in save.components for file in part.files)
    pending = [Pending(path=f"{path}/{file.path}", file=file) for file in files]
    wrong = {one.path: _wrong_at_a_look(disk, one) for one in pending}
    found += [one for one in wrong.values() if one is not None]
    if files:
        found += _unlisted(disk, path, {MANIFEST, *(file.path.split("/")[0] for file in files)})
    return found, [one for one in pending if wrong[one.path] is None]


def hash_all(disk: Disk, pending: list[Pending], *, advance: Advance) -> Iterator[Finding]:
    """Take every digest; what differs from what is promised."""
    total, before = sum(one.file.size for one in pending), 0
    for one in pending:
        try:
            digest = _digest(disk, one, partial(_advance, advance, before, total))
        except OSError as error:
            yield finding(
                rows.FILE_UNREADABLE, disk.where(one.path), expected=f"{one.file.size} bytes", found=str(error)
            )
        else:
            if digest != one.file.digest:
                yield finding(rows.FILE_DIGEST, disk.where(one.path), expected=one.file.digest, found=digest)
        before += one.file.size
        advance(before, total)


def _manifest(disk: Disk, path: str, save: Save | None, found: list[Finding]) -> Manifest | None:
    """The manifest, where its bytes prove themselves; every reason to doubt it goes to `found`."""
    where = disk.where(f"{path}/{MANIFEST}")
    expected = save.manifest.digest if save is not None and save.manifest is not None else "a manifest"
    try:
        data = disk.read(f"{path}/{MANIFEST}", limit=LIMIT_BYTES)
    except FileNotFoundError:
        found.append(finding(rows.MANIFEST_MISSING, where, expected=expected, found="nothing"))
        return None
    except OSError as error:
        found.append(finding(rows.MANIFEST_UNREADABLE, where, expected=expected, found=str(error)))
        return None
    if save is not None and digest_of(data) != save.manifest:
        file = digest_of(data)
        found.append(
            finding(rows.MANIFEST_DIFFERS, where, expected=expected, found=f"{file.digest}, {file.size} bytes")
        )
    try:
        return decode(data, where=where)
    except NewerVersion as error:
        found.append(finding(rows.MANIFEST_NEWER, where, expected="a manifest of this version", found=str(error)))
    except Corrupt as error:
        found.append(finding(rows.MANIFEST_UNREADABLE, where, expected=expected, found=str(error)))
    return None


def _wrong_at_a_look(disk: Disk, one: Pending) -> Finding | None:
    where, expected = disk.where(one.path), f"a file of {one.file.size} bytes"
    try:
        stat = disk.stat(one.path)
    except OSError as error:
        return finding(rows.FILE_UNREADABLE, where, expected=expected, found=str(error))
    if stat is None:
        return finding(rows.FILE_MISSING, where, expected=expected, found="nothing")
    if stat.kind != "file":
        return finding(rows.FILE_UNREADABLE, where, expected=expected, found=f"a {stat.kind}")
    if stat.size != one.file.size:
        found = f"{stat.size} bytes"
        offset = min(stat.size, one.file.size)
        return finding(rows.FILE_SIZE, where, expected=expected, found=found, offset=offset)
    return None


def _unlisted(disk: Disk, path: str, known: set[str]) -> Iterator[Finding]:
    """What lies in a published directory and belongs to nothing that it promised (INV-02)."""
    try:
        strangers = [(name, disk.stat(f"{path}/{name}")) for name in disk.names(path) if name not in known]
    except OSError as error:
        yield finding(rows.LOOK_FAILED, disk.where(path), expected="a directory to list", found=str(error))
        return
    for name, stat in strangers:
        row = rows.SYMLINK if stat is not None and stat.kind == "symlink" else rows.FILE_UNLISTED
        where = disk.where(f"{path}/{name}")
        yield finding(row, where, expected="the manifest and what it lists", found="a name that it does not list")


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
