"""An archive, or a checkpoint that was copied as it is, into a new local directory.

1. The manifest is read first: without one there is nothing whole to fetch. Every payload file is proven by the size
   and the digest that it states, and by those of the declaration, where there is one.
2. Small files prove themselves, by the declaration or by their own sum, and belong to the manifest's save.
3. Files are collected beside the new directory, in `.fetching-<name>`, each durable once it is proven. The manifest
   is written last, and the name is given by a rename that replaces nothing (INV-01, INV-02).
4. What an interrupted fetch collected is proven again by its digests and not fetched again; the rest is. A file that
   the disk failed to take is removed: after a failed sync the next one may lie.
5. A wrong, shorter, longer or changed object is `Corrupt`, and nothing is published.
6. One fetch at a time into one directory: a lock beside it, gone at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from attrs import frozen

from milepost.engines.ambient import Ambient
from milepost.engines.archive.declaration import DECLARATION, Declaration, decode
from milepost.engines.archive.inventory import small_file
from milepost.engines.archive.streaming import (
    Meter,
    Told,
    algorithm_of,
    file_digests,
    object_blocks,
    require_digests,
    untold,
)
from milepost.engines.buckets.remote import Remote
from milepost.engines.checkpoints import generations, marker, released
from milepost.engines.checkpoints.manifest import (
    ARTIFACT,
    LIMIT_BYTES,
    MANIFEST,
    Manifest,
    folders_of,
    manifest_name,
)
from milepost.engines.checkpoints.manifest import decode as decode_manifest
from milepost.engines.checkpoints.marker import SUCCESS
from milepost.engines.checkpoints.released import RELEASED
from milepost.engines.checkpoints.roles import roles_of
from milepost.engines.digests import Digester
from milepost.engines.disks import Disk, write_all
from milepost.transitions.errors import Busy, Corrupt, Refused
from milepost.transitions.validation import Generation
from milepost.transitions.values import FileDigest

STAGING = ".fetching-"


@frozen(kw_only=True)
class Fetched:
    """What lies in the new directory. `fetched` came now, `found` was collected by an earlier attempt; `released` are
    payload files that the archive says retention took before."""

    directory: str
    files: int
    bytes: int
    fetched: tuple[str, ...]
    found: tuple[str, ...]
    released: tuple[str, ...]


Digests: TypeAlias = tuple[str, ...]


@frozen(kw_only=True)
class _Contents:
    """An archive as its small files describe it: `small` are their bytes, `payload` what the bytes have to be."""

    manifest: Manifest
    small: dict[str, bytes]
    payload: tuple[tuple[FileDigest, Digests], ...]
    released: tuple[str, ...]


def fetch(source: Remote, disk: Disk, path: str, *, ambient: Ambient, told: Told = untold) -> Fetched:
    """Fetch the archive `source` into the new directory `path`, whose parent exists; safe to call again.

    Raises `Refused` where there is no archive, or something at `path`; `Busy` while another fetch goes there;
    `Corrupt` or `NewerVersion` for what is wrong with the archive; `Unavailable` or `OSError`.
    """
    parent, _, name = path.rpartition("/")
    staging = f"{parent}/{STAGING}{name}" if parent else f"{STAGING}{name}"
    with only_one(disk, f"{staging}.lock"):
        if disk.stat(path) is not None:
            raise Refused(f"{disk.where(path)}: expected nothing there, found something; name a new directory")
        contents = _contents(source)
        small = (*contents.small, *(file.path for file, _ in contents.payload))
        _make_folders(disk, staging, folders_of(small))
        fetched, found = _collect(source, disk, staging, contents, ambient=ambient, told=told)
        last = manifest_name(contents.manifest.plan)
        for one in (*(name for name in contents.small if name != last), last):
            _write_small(disk, f"{staging}/{one}", contents.small[one])
        for folder in (*(f"{staging}/{folder}" for folder in folders_of(small)), staging):
            disk.sync_dir(folder)
        _require_nothing_else(disk, staging, frozenset(small))
        disk.publish(staging, path)
        disk.sync_dir(parent)
    size = sum(file.size for file, _ in contents.payload) + sum(map(len, contents.small.values()))
    return Fetched(
        directory=disk.where(path),
        files=len(small),
        bytes=size,
        fetched=fetched,
        found=found,
        released=contents.released,
    )


@contextmanager
def only_one(disk: Disk, path: str) -> Iterator[None]:
    """`Busy` while another process is in here with the same lock. Its file goes with success, and is harmless."""
    try:
        lock = disk.lock(path)
    except BlockingIOError:
        raise Busy(f"{disk.where(path)} is held: another process writes there; wait until it has ended") from None
    try:
        yield
        with suppress(OSError):  # whoever opened it before looks at what is there now
            disk.unlink(path)
    finally:
        lock.release()


# --- what there is to fetch ---------------------------------------------------------------------------------


def _contents(source: Remote) -> _Contents:
    name, data = _manifest(source)
    manifest = decode_manifest(data, where=source.where(name))
    if manifest_name(manifest.plan) != name:
        raise Corrupt(f"{source.where(name)}: expected what belongs in {name}, found another plan's manifest")
    declared = _declared(source, small_file(name, data))
    small = {name: data, **_small_files(source, manifest, declared)}
    release = released.decode(small[RELEASED], where=source.where(RELEASED)) if RELEASED in small else None
    if release is not None and release.save != manifest.save:
        raise Corrupt(f"{source.where(RELEASED)}: it is of save {release.save}, the manifest of {manifest.save}")
    gone = frozenset(release.files if release is not None else ())
    payload: list[tuple[FileDigest, Digests]] = []
    lacking: list[str] = []
    for file in manifest.files:
        one = declared.get(file.path) if declared is not None else None
        is_there = source.bucket.stat(source.key(file.path)) is not None if declared is None else one is not None
        if file.path in gone and not is_there:
            lacking.append(file.path)
        elif declared is not None and (one is None or one.size != file.size):
            told = "nothing" if one is None else f"{one.size} bytes"
            raise Corrupt(
                f"{source.where(DECLARATION)}: expected {file.size} bytes of {file.path}, it declares {told}"
            )
        else:
            payload.append((file, tuple(dict.fromkeys((file.digest, *((one.digest,) if one is not None else ()))))))
    return _Contents(manifest=manifest, small=small, payload=tuple(payload), released=tuple(lacking))


def _manifest(source: Remote) -> tuple[str, bytes]:
    for name in (MANIFEST, ARTIFACT):
        with suppress(FileNotFoundError):
            return name, source.bucket.read(source.key(name), limit=LIMIT_BYTES)[0]
    raise Refused(
        f"{source.where('')}: expected an archive, found neither {MANIFEST} nor {ARTIFACT}: it was never complete, "
        "or lies elsewhere; name an iter_* directory"
    )


def _declared(source: Remote, manifest: FileDigest) -> dict[str, FileDigest] | None:
    """What the declaration says of each file; None where there is none, as in a copy of a direct checkpoint."""
    try:
        data, _ = source.bucket.read(source.key(DECLARATION), limit=LIMIT_BYTES)
    except FileNotFoundError:
        return None
    declaration: Declaration = decode(data, where=source.where(DECLARATION))
    if declaration.manifest != manifest:
        raise Corrupt(
            f"{source.where(manifest.path)}: expected the declared digest {declaration.manifest.digest}, found "
            f"{manifest.digest}"
        )
    return {file.path: file for file in declaration.files}


def _small_files(source: Remote, manifest: Manifest, declared: dict[str, FileDigest] | None) -> dict[str, bytes]:
    """Generations, the release marker and `_SUCCESS`. A generation may have joined after the declaration."""
    found: dict[str, bytes] = {}
    for name in (*generations.names, RELEASED, SUCCESS):
        one = declared.get(name) if declared is not None else None
        try:
            data, _ = source.bucket.read(source.key(name), limit=LIMIT_BYTES)
        except FileNotFoundError:
            if one is not None:
                raise Corrupt(f"{source.where(name)}: expected {one.size} bytes, found nothing") from None
            continue
        if one is not None and small_file(name, data) != one:
            raise Corrupt(f"{source.where(name)}: expected the declared {one.digest}, found other bytes")
        if one is not None or declared is None or name in generations.names:
            found[name] = data
    _require_generations(source, manifest, found)
    if roles := roles_of(manifest.files):
        told = marker.decode(found[SUCCESS], where=source.where(SUCCESS)) if SUCCESS in found else None
        if wrong := marker.contradiction(told, save=manifest.save, roles=roles):
            raise Corrupt(f"{source.where(SUCCESS)}: {wrong}")
    return found


def _require_generations(source: Remote, manifest: Manifest, small: dict[str, bytes]) -> None:
    """Each is what this save writes of it, and none is missing before another."""
    there = [name for name in generations.names if name in small]
    if there != list(generations.names[: len(there)]):
        raise Corrupt(f"{source.where('')}: expected the generations in order, found {', '.join(there)}")
    for generation, name in zip(Generation, there, strict=False):
        if small[name] != generations.encode(manifest.save, generation):
            raise Corrupt(f"{source.where(name)}: expected {generation.value} of save {manifest.save}")


# --- collecting ---------------------------------------------------------------------------------------------


def _make_folders(disk: Disk, staging: str, folders: tuple[str, ...]) -> None:
    for folder in (staging, *(f"{staging}/{folder}" for folder in reversed(folders))):
        with suppress(FileExistsError):  # of an interrupted fetch
            disk.mkdir(folder)


def _collect(
    source: Remote, disk: Disk, staging: str, contents: _Contents, *, ambient: Ambient, told: Told
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Every payload file, proven and durable: those that were fetched, and those that were there."""
    total = sum(file.size for file, _ in contents.payload)
    meter = Meter(told, doing="fetching", total=total, ambient=ambient)
    fetched: list[str] = []
    found: list[str] = []
    for file, digests in contents.payload:
        here = f"{staging}/{file.path}"
        if _is_collected(disk, here, file, digests, meter=meter):
            found.append(file.path)
        else:
            download_file(source, disk, here, file=file, digests=digests, meter=meter)
            fetched.append(file.path)
    return tuple(fetched), tuple(found)


def _is_collected(disk: Disk, here: str, file: FileDigest, digests: Digests, *, meter: Meter) -> bool:
    """Whether an earlier attempt collected this file; anything else of its name is removed."""
    stat = disk.stat(here)
    if stat is None:
        return False
    if stat.kind == "file" and stat.size == file.size:
        unheard = Meter(untold, doing="", total=0, ambient=meter.ambient)
        if file_digests(disk, here, algorithms=map(algorithm_of, digests), meter=unheard) == digests:
            disk.sync_file(here)  # its attempt may have ended before it was durable
            meter.add(file.size, path=file.path)
            return True
    disk.unlink(here)
    return False


def download_file(source: Remote, disk: Disk, here: str, *, file: FileDigest, digests: Digests, meter: Meter) -> None:
    """The object as the new file `here`, durable, and proven; `Corrupt`, and no file, where it is another one."""
    stat = source.bucket.stat(source.key(file.path))
    if stat is None or stat.size != file.size:
        found = "nothing" if stat is None else f"{stat.size} bytes"
        raise Corrupt(f"{source.where(file.path)}: expected {file.size} bytes, found {found}")
    digesters = [Digester(algorithm_of(digest), size=file.size) for digest in digests]
    try:
        with disk.create(here, bulk=True) as sink:
            for block in object_blocks(source, file.path, stat):
                for digester in digesters:
                    digester.update(block)
                write_all(sink, block)
                meter.add(len(block), path=file.path)
            sink.sync()
    except OSError:
        with suppress(OSError):  # the first failure is the one to tell
            disk.unlink(here)
        raise
    try:
        require_digests(source.where(file.path), digests, [digester.digest for digester in digesters])
    except Corrupt:
        disk.unlink(here)
        raise


def _write_small(disk: Disk, here: str, data: bytes) -> None:
    with suppress(FileNotFoundError):  # of an interrupted fetch
        disk.unlink(here)
    with disk.create(here) as sink:
        write_all(sink, data)
        sink.sync()


def _require_nothing_else(disk: Disk, staging: str, known: frozenset[str]) -> None:
    """What is about to be published has no file that nobody listed."""
    for folder in ("", *folders_of(known)):
        above = f"{staging}/{folder}" if folder else staging
        for name in disk.names(above):
            inner = f"{folder}/{name}" if folder else name
            if inner not in known and inner not in folders_of(known):
                raise Refused(
                    f"{disk.where(f'{above}/{name}')}: it is not of this archive; remove it and fetch again"
                )
