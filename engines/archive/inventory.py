"""What a published directory holds, proven against its own manifest before anything is said of it.

1. Only a directory that is whole by itself is archived: its manifest is of its name, its payload has the digests that
   were sealed, its generations and its marker fit.
2. What the release marker names and is gone is not archived, and the answer says so.
3. Names that are not milepost's stay behind, and the answer names them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from attrs import frozen

from milepost.engines.ambient import Ambient
from milepost.engines.archive.declaration import DECLARATION, Declaration
from milepost.engines.archive.receipt import TEMPORARY
from milepost.engines.archive.streaming import Meter, Told, algorithm_of, file_digests, require_digests
from milepost.engines.checkpoints import generations, marker, released
from milepost.engines.checkpoints.manifest import ARTIFACT, LIMIT_BYTES, MANIFEST, Manifest, decode, manifest_name
from milepost.engines.checkpoints.marker import SUCCESS
from milepost.engines.checkpoints.released import RECEIPT, RELEASED
from milepost.engines.checkpoints.roles import roles_of
from milepost.engines.digests import Digester
from milepost.engines.disks import Disk
from milepost.transitions.errors import Corrupt, Refused
from milepost.transitions.values import FileDigest

ARCHIVE_DIGEST = "sha256"
"""What archives declare."""

_LARGE_BYTES = 64 << 20


@frozen(kw_only=True)
class Inventory:
    """A directory as it is: `released` are the payload files that are gone, `left_out` the names of somebody else.

    `proofs` are the sealed digests of the payload, by its paths: those of the bytes that were declared.
    """

    manifest: Manifest
    data: bytes
    declaration: Declaration
    proofs: dict[str, str]
    released: tuple[str, ...]
    left_out: tuple[str, ...]


def manifest_of(disk: Disk, path: str) -> tuple[Manifest, bytes]:
    """The manifest of the published directory `path`, and its bytes.

    `Refused` where the directory is not a published one, `Corrupt` or `NewerVersion` for its manifest, `OSError`.
    """
    there = [name for name in (MANIFEST, ARTIFACT) if disk.stat(f"{path}/{name}") is not None]
    if len(there) != 1:
        found = " and ".join(there) or "neither"
        raise Refused(
            f"{disk.where(path)}: expected a published checkpoint or artifact, with {MANIFEST} or {ARTIFACT}, "
            f"found {found}; name an iter_* directory"
        )
    file = f"{path}/{there[0]}"
    data = disk.read(file, limit=LIMIT_BYTES)
    manifest = decode(data, where=disk.where(file))
    if manifest_name(manifest.plan) != there[0]:
        raise Corrupt(f"{disk.where(file)}: expected what belongs in {there[0]}, found an other plan's manifest")
    return manifest, data


def inventory_of(disk: Disk, path: str, *, ambient: Ambient, told: Told) -> Inventory:
    """Everything in the published directory `path`, every byte hashed. Raises as `manifest_of`, and `Corrupt`."""
    manifest, data = manifest_of(disk, path)
    name = manifest_name(manifest.plan)
    gone = _released(disk, path, manifest)
    payload = [file for file in manifest.files if file.path not in gone]
    _require_fitting(disk, path, manifest)
    small = [one for one in (*generations.names, RELEASED, SUCCESS) if disk.stat(f"{path}/{one}") is not None]
    meter = Meter(told, doing="hashing", total=sum(file.size for file in payload), ambient=ambient)
    files = _all_proven(disk, path, payload, meter=meter)
    files += [_taken(disk, path, one) for one in small]
    known = {one.path.partition("/")[0] for one in (*manifest.files, *files)}
    known |= {name, DECLARATION, RECEIPT, TEMPORARY}
    return Inventory(
        manifest=manifest,
        data=data,
        declaration=Declaration(
            manifest=_taken(disk, path, name), files=tuple(sorted(files, key=lambda file: file.path))
        ),
        proofs={file.path: file.digest for file in payload},
        released=tuple(file.path for file in manifest.files if file.path in gone),
        left_out=tuple(one for one in disk.names(path) if one not in known),
    )


def _released(disk: Disk, path: str, manifest: Manifest) -> frozenset[str]:
    """The payload that the release marker names and that is gone."""
    release = released.find(disk, path)
    if release is None:
        return frozenset()
    if release.save != manifest.save:
        raise Corrupt(f"{disk.where(path)}: {RELEASED} is of save {release.save}, the manifest of {manifest.save}")
    return frozenset(file for file in release.files if disk.stat(f"{path}/{file}") is None)


def _require_fitting(disk: Disk, path: str, manifest: Manifest) -> None:
    """The names and the small files are those of this save."""
    where, save = disk.where(path), manifest.save
    if path.rpartition("/")[2] != save.directory:
        raise Corrupt(f"{where}: its manifest is that of {save.directory}; give the directory its own name")
    for mark in generations.read_all(disk, path):
        if mark.save != save:
            raise Corrupt(f"{where}: {generations.name_of(mark.generation)} is of save {mark.save}, not of {save}")
    roles = roles_of(manifest.files)
    if roles and (wrong := marker.contradiction(marker.read(disk, path), save=save, roles=roles)):
        raise Corrupt(f"{where}: {wrong}")


def _all_proven(disk: Disk, path: str, payload: list[FileDigest], *, meter: Meter) -> list[FileDigest]:
    """Each of `_proven`. sha256 goes through a file on one core, so large ones are hashed two at a time."""
    prove = partial(_proven, disk, path, meter=meter)
    if sum(file.size >= _LARGE_BYTES for file in payload) < 2:
        return [prove(file) for file in payload]
    pool = ThreadPoolExecutor(2, thread_name_prefix="milepost-inventory")
    try:
        return list(pool.map(prove, sorted(payload, key=lambda file: -file.size)))
    finally:
        pool.shutdown(cancel_futures=True)  # one that is wrong says enough


def _proven(disk: Disk, path: str, file: FileDigest, *, meter: Meter) -> FileDigest:
    """The file as an archive declares it; `Corrupt` where it is not the one that was sealed."""
    where = disk.where(f"{path}/{file.path}")
    stat = disk.stat(f"{path}/{file.path}")
    if stat is None or stat.kind != "file" or stat.size != file.size:
        found = "nothing" if stat is None else f"a {stat.kind} of {stat.size} bytes"
        raise Corrupt(f"{where}: expected {file.size} bytes with digest {file.digest}, found {found}")
    algorithms = dict.fromkeys((algorithm_of(file.digest), ARCHIVE_DIGEST))
    sealed, *more = file_digests(disk, f"{path}/{file.path}", algorithms=algorithms, meter=meter)
    require_digests(where, (file.digest,), (sealed,))
    return FileDigest(path=file.path, size=file.size, digest=more[0] if more else sealed)


def _taken(disk: Disk, path: str, name: str) -> FileDigest:
    return small_file(name, disk.read(f"{path}/{name}", limit=LIMIT_BYTES))


def small_file(name: str, data: bytes) -> FileDigest:
    """A small file as an archive declares it."""
    digester = Digester(ARCHIVE_DIGEST)
    digester.update(data)
    return FileDigest(path=name, size=len(data), digest=digester.digest)
