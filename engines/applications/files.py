"""The artifacts of an application's checkpoint: flat names of regular files, measured through no symlink.

1. A name is one file of the directory: no separator, no `.` or `..`, and not the manifest's own name or the one of a
   manifest on its way.
2. A file is opened without following a symlink, and what was opened has to be a regular file. There is no look
   before that somebody could come between.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterable

from attrs import frozen

from milepost.engines.digests import digest_of
from milepost.engines.disks import Disk
from milepost.engines.disks.paths import split_last
from milepost.transitions.errors import Refused

MANIFEST = "application-manifest.json"
TEMPORARY = f".{MANIFEST}."
"""What the name of a manifest on its way begins with."""

_NO_SUCH = {
    errno.ENOENT: "no such file",
    errno.ELOOP: "a symlink",
    errno.EISDIR: "a directory",
    errno.EINVAL: "no regular file",
    errno.ENXIO: "no regular file",
    errno.ENAMETOOLONG: "a name too long for a file",
}


@frozen(kw_only=True)
class Artifact:
    """What a file has to be: `size` in bytes, `sha256` in 64 hex digits."""

    size: int
    sha256: str


def shard_names(stem: str, *, world_size: int, suffix: str = ".pt") -> tuple[str, ...]:
    """The names of the files that `world_size` ranks write together: `model-00000-of-00002.pt` and so on."""
    if type(world_size) is not int or world_size < 1:
        raise Refused(f"world_size: expected an integer of at least 1, found {world_size!r}")
    return flat_names(f"{stem}-{rank:05d}-of-{world_size:05d}{suffix}" for rank in range(world_size))


def flat_names(artifacts: Iterable[str]) -> tuple[str, ...]:
    """The names, sorted; `Refused` for one that is no flat name, for one that is there twice, and for none at all."""
    if isinstance(artifacts, str | bytes):
        raise Refused(f"artifacts: expected several file names, found the one string {artifacts!r}; give a list")
    names = tuple(artifacts)
    for name in names:
        if wrong := fault_of(name):
            raise Refused(f"artifacts: expected flat file names, found {name!r}: {wrong}")
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise Refused(f"artifacts: expected each name once, found {', '.join(twice)} more than once")
    if not names:
        raise Refused("artifacts: expected the name of every file of the checkpoint, found none")
    return tuple(sorted(names))


def fault_of(name: object) -> str:
    """Why this is not the name of an artifact, or nothing."""
    if type(name) is not str:
        return "it is no string"
    try:
        above, last = split_last(name)
    except ValueError:
        return "it is no name of a file"
    if above:
        return "it is in another directory"
    if last == MANIFEST or last.startswith(TEMPORARY):
        return "it is the manifest's own"
    return ""


def measure(disk: Disk, path: str) -> Artifact | str:
    """What the file at `path` is, or why it is no artifact; every other `OSError` is the caller's."""
    try:
        with disk.open(path, bulk=True) as source:
            return Artifact(size=source.size, sha256=digest_of(source, algorithm="sha256").removeprefix("sha256:"))
    except OSError as error:
        return _told(error)


def size_of(disk: Disk, path: str) -> int | str:
    """The size of the file at `path` in bytes, or why it is no artifact; raises as `measure`."""
    try:
        with disk.open(path) as source:
            return source.size
    except OSError as error:
        return _told(error)


def _told(error: OSError) -> str:
    if error.errno not in _NO_SUCH:
        raise error
    return _NO_SUCH[error.errno]
