"""The machine: what it is, and how to bring its memory and page cache into a known state."""

from __future__ import annotations

import mmap
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np

_PAGE = mmap.PAGESIZE


def warm_memory(size: int) -> None:
    """Touch `size` bytes of free memory and give them back, so that the next to allocate finds them backed."""
    size = min(size, _meminfo("MemAvailable") // 2)
    if size < _PAGE:
        return
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    np.frombuffer(memory, np.uint8)[::_PAGE] = 1
    memory.close()


def evict(path: Path) -> None:
    """Put every file below `path` out of the page cache."""
    for file in files_below(path):
        descriptor = os.open(file, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def fill_cache(path: Path) -> None:
    """Bring every file below `path` into the page cache."""
    buffer = bytearray(16 << 20)
    for file in files_below(path):
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass


def sync_tree(path: Path) -> None:
    """Make a file or a tree durable, and its name: what a peer leaves to its caller."""
    folders = [path.parent, *(one for one in (path, *path.rglob("*")) if one.is_dir())]
    for one in (*files_below(path), *folders):
        descriptor = os.open(one, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or a tree; one that is not there is no error."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def files_below(path: Path) -> Iterator[Path]:
    return (one for one in (path, *path.rglob("*")) if one.is_file())


def reset_peak() -> None:
    """Let the kernel count this process's peak memory from now on: clear_refs(5) of proc_pid_clear_refs(5)."""
    Path("/proc/self/clear_refs").write_text("5")


def status(key: str) -> int:
    """A figure of /proc/self/status in bytes: `VmRSS`, `VmHWM`, `RssAnon`."""
    return _table("/proc/self/status", key)


def environment(scratch: Path) -> dict[str, str | float]:
    """What a measurement depends on."""
    device, kind = _mounted_at(scratch)
    packages = ("milepost", "torch", "numpy", "blake3", "orjson", *(["safetensors"] if has_safetensors() else []))
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cpu": _cpu(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(_meminfo("MemTotal") / (1 << 30), 1),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": f"{platform.system()} {platform.release()}",
        "file_system": f"{kind} on {device}",
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        **{name: metadata.version(name) for name in packages},
    }


def has_safetensors() -> bool:
    """Whether the peer of the extra `bench` is installed."""
    return find_spec("safetensors") is not None


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _mounted_at(path: Path) -> tuple[str, str]:
    """The device and the type of the file system that `path` lies on."""
    mounts = [line.split()[:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [mount for mount in mounts if path.resolve().is_relative_to(mount[1])]
    device, _, kind = max(above, key=lambda mount: len(mount[1]))
    return device, kind


def _meminfo(key: str) -> int:
    return _table("/proc/meminfo", key)


def _table(path: str, key: str) -> int:
    rows = (line.split() for line in Path(path).read_text().splitlines())
    return next(int(row[1]) * 1024 for row in rows if row and row[0] == f"{key}:")
