"""A real file system whose power can be cut: a loop mount and FS_IOC_SHUTDOWN.

    with mounted(kind="ext4", size_mib=64) as mount:
        …                       # anything below mount.root, by this process or others
        mount.cut()             # what was not synced is gone; every open file answers EIO from now on
        …                       # close them all, or the remount is refused as busy
        mount.remount()         # recovery from the journal, as after a reboot

The shutdown (without flushing the log, ext4 and xfs) drops what is in memory, renames without a directory's fsync
included. It needs root, loop devices and the file system's mkfs; `unavailable` says what is missing.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

from attrs import frozen

FileSystem = Literal["ext4", "xfs"]

_FS_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_MKFS: dict[FileSystem, tuple[str, ...]] = {
    "ext4": ("mkfs.ext4", "-q", "-F"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
_LEAST_MIB: dict[FileSystem, int] = {"ext4": 8, "xfs": 300}


class PowerError(Exception):
    """The mount could not be made; the message is the tool's own."""


@frozen(kw_only=True)
class Mount:
    """A mounted file system; `root` is a directory on it that is empty at first."""

    image: Path
    point: Path

    @property
    def root(self) -> Path:
        return self.point / "root"

    def cut(self) -> None:
        """Cut the power."""
        fd = os.open(self.point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _FS_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def remount(self) -> None:
        """Start again with what is on the disk."""
        _run("umount", self.point)
        _run("mount", "-o", "loop", self.image, self.point)


@cache
def unavailable(kind: FileSystem) -> str | None:
    """Why no file system of this kind can be mounted here, found by trying; None where it can."""
    if os.geteuid() != 0:
        return "only root may mount"
    for tool in (_MKFS[kind][0], "mount", "umount"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    try:
        with mounted(kind=kind, size_mib=0):
            return None
    except PowerError as error:
        return str(error)


@contextmanager
def mounted(*, kind: FileSystem, size_mib: int, options: Sequence[str] = ()) -> Iterator[Mount]:
    """Make a file system of at least `size_mib` MiB in a temporary file and mount it for the length of the `with`.

    `options` go to its mkfs.
    """
    with tempfile.TemporaryDirectory() as folder:
        mount = Mount(image=Path(folder, "image"), point=Path(folder, "mount"))
        mount.point.mkdir()
        with mount.image.open("wb") as image:
            image.truncate(max(size_mib, _LEAST_MIB[kind]) << 20)
        _run(*_MKFS[kind], *options, mount.image)
        _run("mount", "-o", "loop", mount.image, mount.point)
        try:
            mount.root.mkdir()
            _sync_dir(mount.point)
            yield mount
        finally:
            _run("umount", "--lazy", mount.point)


def _sync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PowerError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
