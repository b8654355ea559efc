"""Publishing the manifest of an application's checkpoint: artifacts first, its name last, and never twice.

    1  look          a manifest and nothing on its way     `Refused`, before anything is read
    2  each file     hashed and synced                     `Refused` for what is no artifact
    3  sync_dir      the directory, and the one above      the names of the artifacts are durable
    4  temporary     written and synced                    `.application-manifest.json.<nonce>`
    5  link          to its name, which never replaces     whoever looks sees a whole manifest (INV-01, INV-02)
    6  sync_dir      the directory                         from here on it is published
    7  unlink        every temporary

1. Up to 4 a failure is `Unavailable` with nothing published, and takes its own temporary along.
2. From 5 on a failure is an unknown outcome, and the temporary stays. So the disk itself says what a publish came to:
   a manifest alone was published and acknowledged, a manifest beside a temporary of equal bytes was perhaps not. The
   second is settled by publishing the same content again, in this process or in the next one after a crash.
3. Who settles links no second time but renames a new file of equal bytes over the manifest: after a sync that failed
   the next one succeeds and writes nothing, and only a new entry is one to be synced. The bytes stay what they were.
4. What a killed publish left hinders nobody: its name is its own. Once a manifest is published no temporary has a use
   any more, whoever made it: one that is still being published finds the name taken.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from milepost.engines.applications.files import MANIFEST, TEMPORARY, Artifact, measure
from milepost.engines.checkpoints.manifest import LIMIT_BYTES
from milepost.engines.disks import Disk, write_all
from milepost.transitions.errors import Refused, Unavailable

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def publish(
    disk: Disk,
    directory: str,
    *,
    names: Sequence[str],
    encode: Callable[[Mapping[str, Artifact]], bytes],
    nonce: str,
) -> bytes:
    """Publish these files of `directory` under the manifest that `encode` makes of them; its bytes.

    `Refused` where there is one already or where a file is no artifact, `Unavailable` where the disk fails.
    """
    final = f"{directory}/{MANIFEST}"
    with _nothing_published(disk, directory, "looking at the directory"):
        _require_directory(disk, directory)
        if disk.stat(final) is not None and not temporaries(disk, directory):
            raise _published(disk, final)
    with _nothing_published(disk, directory, "syncing the artifacts"):
        artifacts = {name: _secured(disk, f"{directory}/{name}") for name in names}
        disk.sync_dir(directory)
        disk.sync_dir(directory.rpartition("/")[0])
    data = encode(artifacts)
    temporary = f"{directory}/{TEMPORARY}{nonce}"
    with _nothing_published(disk, directory, "writing the manifest"):
        _write(disk, temporary, data)
    try:
        _give_name(disk, directory, temporary, data)
        disk.sync_dir(directory)
    except OSError as error:
        raise Unavailable(
            f"{disk.where(final)}: whether it was published is unknown: {error}. What is there is whole, whichever "
            "it is; publish the same files again once the disk is sound, which finds out and finishes"
        ) from error
    _sweep(disk, directory)
    return data


def temporaries(disk: Disk, directory: str) -> tuple[str, ...]:
    """The names of the manifests on their way in `directory`."""
    return tuple(name for name in disk.names(directory) if name.startswith(TEMPORARY))


def _sweep(disk: Disk, directory: str) -> None:
    """Remove what has no use any more. One that stays lets the same content be published again, and no other."""
    with suppress(OSError):
        for name in temporaries(disk, directory):
            with suppress(FileNotFoundError):  # another publisher was faster
                disk.unlink(f"{directory}/{name}")


def _require_directory(disk: Disk, directory: str) -> None:
    found = disk.stat(directory)
    if found is None or found.kind != "dir":
        what = "nothing" if found is None else f"a {found.kind}"
        raise Refused(
            f"{disk.where(directory)}: expected the directory of the artifacts, found {what}. Nothing was changed; "
            "make the directory and save into it, and give no symlink to it"
        )


def _secured(disk: Disk, path: str) -> Artifact:
    """The artifact at `path`, durable; `Refused` where it is none or is not the same file all the time."""
    before = disk.stat(path)
    artifact = measure(disk, path)
    if isinstance(artifact, str):
        raise Refused(f"{disk.where(path)}: expected an artifact, found {artifact}. Nothing was published")
    disk.sync_file(path)
    if before != disk.stat(path):
        raise Refused(
            f"{disk.where(path)}: expected a file that nobody writes any more, found it changed while it was hashed. "
            "Nothing was published; publish when every rank is done"
        )
    return artifact


def _write(disk: Disk, path: str, data: bytes) -> None:
    """A new file with these bytes, durable, or none."""
    sink = disk.create(path)
    try:
        with sink:
            write_all(sink, data)
            sink.sync()
    except OSError:
        with suppress(OSError):
            disk.unlink(path)
        raise


def _give_name(disk: Disk, directory: str, temporary: str, data: bytes) -> None:
    """Make the temporary the manifest; `Refused` where there is one, unless it is ours and was never settled."""
    final = f"{directory}/{MANIFEST}"
    try:
        disk.link(temporary, final)
    except FileExistsError:
        if _is_one_file(disk, temporary, final):
            return  # the answer was lost, and the request came twice (link(2), BUGS: NFS)
        if not _is_unsettled(disk, directory, temporary, data):
            with suppress(OSError):  # it is swept by whoever publishes, and hinders nobody
                disk.unlink(temporary)
            raise _published(disk, final) from None
        with _swept(disk, final):
            disk.rename(temporary, final)
    except FileNotFoundError:
        with _swept(disk, final):
            raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with suppress(OSError):
            disk.unlink(temporary)
        raise Unavailable(
            f"{disk.where(directory)}: this file system gives a file no second name: {error}. Nothing was published; "
            "save to a file system with hard links, which cannot replace what is there"
        ) from error


@contextmanager
def _swept(disk: Disk, final: str) -> Iterator[None]:
    """A temporary that is gone beside a manifest was swept by another publisher, who is done."""
    try:
        yield
    except FileNotFoundError as error:
        if disk.stat(final) is None:
            raise
        raise _published(disk, final) from error


def _is_one_file(disk: Disk, one: str, other: str) -> bool:
    first, second = disk.stat(one), disk.stat(other)
    return first is not None and second is not None and first.inode == second.inode


def _is_unsettled(disk: Disk, directory: str, temporary: str, data: bytes) -> bool:
    """Whether the manifest is of this content and the one who published it perhaps never knew (rule 2)."""
    if disk.read(f"{directory}/{MANIFEST}", limit=LIMIT_BYTES) != data:
        return False
    others = (f"{directory}/{name}" for name in temporaries(disk, directory))
    return any(other != temporary and disk.read(other, limit=LIMIT_BYTES) == data for other in others)


def _published(disk: Disk, final: str) -> Refused:
    return Refused(
        f"{disk.where(final)}: expected no manifest, found one: a checkpoint is published once and stays as it is. "
        "Nothing was changed; load it, or save into a new directory"
    )


@contextmanager
def _nothing_published(disk: Disk, directory: str, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        way_out = (
            "the disk may have lost what it said it had, so save into a new directory once it is sound"
            if error.errno == errno.EIO
            else "publish again once the cause is gone"
        )
        raise Unavailable(
            f"{disk.where(directory)}: {doing} failed: {error}. Nothing was published; {way_out}"
        ) from error
