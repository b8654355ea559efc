"""Local payload that goes, as its archive was proven: `milepost prune-verified`.

1. Nothing goes unless all of this holds, in this order: there is a receipt that binds a destination; the given
   credentials address that store; the local files have the digests of the receipt; every object of the receipt is
   live at the destination with its size and digest, which is read from its bytes. Otherwise all of it stays, and the
   answer says why.
2. The release marker is durable beside the manifest before the first file goes, so that what is left says so of
   itself. The manifest, the small files and the receipt stay: they lead back to the archive.
3. A checkpoint of a run with a journal stays: `milepost prune` takes it, and records that it did. An artifact is
   nobody's to resume from, and no retention ever takes it.
4. What was interrupted goes on: a file that the marker names may be gone already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from attrs import frozen

from milepost.engines.ambient import Ambient
from milepost.engines.archive import receipt as receipts
from milepost.engines.archive.inventory import manifest_of
from milepost.engines.archive.receipt import Receipt, TextMarker
from milepost.engines.archive.streaming import Meter, Told, algorithm_of, file_digests, require_object, untold
from milepost.engines.attempts import JOURNAL
from milepost.engines.buckets.remote import Destination, Remote
from milepost.engines.checkpoints import released
from milepost.engines.checkpoints.manifest import Manifest
from milepost.engines.checkpoints.released import RECEIPT, RELEASED
from milepost.engines.disks import Disk
from milepost.transitions.errors import Corrupt, MilepostError
from milepost.transitions.values import FULL, FileDigest

Opener: TypeAlias = Callable[[Destination], Remote | None]
"""The destination as the given credentials address it, or None where they address another store."""


@frozen(kw_only=True)
class Pruned:
    """What became of the payload of one directory: `kept` says why it stayed, and is empty where it is gone."""

    directory: str
    destination: str
    kept: str
    files: int
    freed: int


class _Stays(Exception):
    """Why a copy is kept."""


def prune_verified(disk: Disk, path: str, *, opener: Opener, ambient: Ambient, told: Told = untold) -> Pruned:
    """Remove the payload of the published directory `path`, if its archive was proven (rule 1).

    Whatever is missing, wrong or cannot be asked is a reason to keep the copy, in the answer. An `OSError` is raised
    only where removing itself failed; another call goes on from there.
    """
    destination = ""
    try:
        manifest, _ = manifest_of(disk, path)
        receipt = _receipt(disk, path)
        destination = str(receipt.destination)
        _require_nobody_resumes(disk, path, manifest)
        remote = opener(receipt.destination)
        if remote is None:
            raise _Stays(f"the credentials address another store than {receipt.destination.endpoint}")
        gone = _gone(disk, path, manifest)
        _require_local(disk, path, receipt, manifest, gone, ambient=ambient, told=told)
        _require_remote(remote, receipt, ambient=ambient, told=told)
    except _Stays as reason:
        return _kept(disk, path, destination, str(reason))
    except (MilepostError, OSError) as error:
        return _kept(disk, path, destination, str(error))
    going = tuple(file for file in manifest.files if file.path not in gone)
    _remove(disk, path, manifest)
    return Pruned(
        directory=disk.where(path),
        destination=destination,
        kept="",
        files=len(going),
        freed=sum(file.size for file in going),
    )


def _kept(disk: Disk, path: str, destination: str, why: str) -> Pruned:
    return Pruned(directory=disk.where(path), destination=destination, kept=why, files=0, freed=0)


def _receipt(disk: Disk, path: str) -> Receipt:
    found = receipts.find(disk, path)
    if found is None:
        raise _Stays(f"no {RECEIPT}: it was not archived")
    if isinstance(found, TextMarker):
        raise _Stays(f"its {RECEIPT} is a line of text, which binds no destination and no digest: publish it again")
    return found


def _require_nobody_resumes(disk: Disk, path: str, manifest: Manifest) -> None:
    if manifest.plan != FULL:
        return
    run = path.rpartition("/")[0].rpartition("/")[0]
    if disk.stat(f"{run}/{JOURNAL}" if run else JOURNAL) is not None:
        raise _Stays("it is a checkpoint of a run with a journal: `milepost prune` takes it, and records that it did")


def _gone(disk: Disk, path: str, manifest: Manifest) -> frozenset[str]:
    """The payload that an interrupted call removed already."""
    release = released.find(disk, path)
    if release is None:
        return frozenset()
    if release != _release(manifest):
        raise _Stays(f"its {RELEASED} speaks of other files: retention took a part of it, and the rest stays")
    return frozenset(file.path for file in manifest.files if disk.stat(f"{path}/{file.path}") is None)


def _release(manifest: Manifest) -> released.Release:
    return released.Release(save=manifest.save, files=tuple(file.path for file in manifest.files))


def _require_local(
    disk: Disk,
    path: str,
    receipt: Receipt,
    manifest: Manifest,
    gone: frozenset[str],
    *,
    ambient: Ambient,
    told: Told,
) -> None:
    """The receipt has every payload file, and what lies here is what it recorded."""
    recorded = {file.path: file for file in (*receipt.files, receipt.manifest)}
    if lacking := [file.path for file in manifest.files if file.path not in recorded]:
        raise _Stays(f"its {RECEIPT} has no {', '.join(lacking)}")
    here = [file for file in recorded.values() if file.path not in gone]
    meter = Meter(told, doing="hashing", total=sum(file.size for file in here), ambient=ambient)
    for file in here:
        _require_file(disk, path, file, meter)


def _require_file(disk: Disk, path: str, file: FileDigest, meter: Meter) -> None:
    where = disk.where(f"{path}/{file.path}")
    stat = disk.stat(f"{path}/{file.path}")
    if stat is None or stat.kind != "file" or stat.size != file.size:
        found = "nothing" if stat is None else f"a {stat.kind} of {stat.size} bytes"
        raise Corrupt(f"{where}: expected the {file.size} bytes that were archived, found {found}")
    (digest,) = file_digests(disk, f"{path}/{file.path}", algorithms=(algorithm_of(file.digest),), meter=meter)
    if digest != file.digest:
        raise Corrupt(f"{where}: expected the archived {file.digest}, found {digest}")


def _require_remote(remote: Remote, receipt: Receipt, *, ambient: Ambient, told: Told) -> None:
    meter = Meter(told, doing="proving", total=sum(file.size for file in receipt.objects), ambient=ambient)
    for file in receipt.objects:
        require_object(remote, file, meter=meter)


def _remove(disk: Disk, path: str, manifest: Manifest) -> None:
    release = _release(manifest)
    receipts.join(disk, path, RELEASED, released.encode(release.save, release.files))
    released.remove(disk, path, release.files)
