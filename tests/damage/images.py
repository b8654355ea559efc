"""Small runs as files in memory: to be bent, looked at by `verify`, and started from.

1. An image is every file of a disk by path; None stands for a directory.
2. `ended`, `killed` and `governed` are made by the shipped code on a simulated disk, with a model of three numbers.
3. A start runs on a fresh simulated disk that holds the image; what it left is compared byte by byte.
"""

from __future__ import annotations

import errno
import io
import os
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Self, cast

from attrs import frozen

from milepost.engines.disks import Source, Stat, write_all
from milepost.engines.simulated import SimulatedDisk
from milepost.journal.forensics.findings import Finding
from milepost.journal.forensics.reading import Place
from milepost.journal.forensics.verifying import Verified, verify
from milepost.transitions.errors import MilepostError
from milepost.transitions.values import FULL, Component, iteration_name
from tests.crash.world import Run, Values, config

Image = Mapping[str, bytes | None]

SETTINGS = config(save_every=1)
TORN = b'{"seq":999,"epoch":1,"at":"2026'
POINTER = "checkpoints/latest_checkpoint.txt"
CACHE = "journal/fold-cache"


@frozen(kw_only=True)
class Small:
    """A run: its files below `path`, the newest checkpoint that a start takes, and what the model then holds."""

    path: str
    files: Image
    step: int
    values: Values

    def at(self, name: str) -> str:
        return f"{self.path}/{name}"

    def read(self, name: str) -> bytes:
        data = self.files[self.at(name)]
        assert data is not None
        return data

    def but(self, changes: Mapping[str, bytes | None], *, without: tuple[str, ...] = ()) -> Small:
        """The run with some files (by name below it) changed and some names, with all below them, gone."""
        gone = tuple(self.at(name) for name in without)
        kept = {
            p: d for p, d in self.files.items() if p not in gone and not p.startswith(tuple(f"{g}/" for g in gone))
        }
        files = {**kept, **{self.at(name): data for name, data in changes.items()}}
        return Small(path=self.path, files=files, step=self.step, values=self.values)

    @property
    def names(self) -> tuple[str, ...]:
        """Every file below the run that has a meaning and a byte, by its name."""
        below = (
            p.removeprefix(f"{self.path}/") for p, d in self.files.items() if d and p.startswith(f"{self.path}/")
        )
        return tuple(sorted(name for name in below if name != "journal/fold-cache"))

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name.endswith(".jsonl"))


@cache
def cached() -> Small:
    """Checkpoints 1 and 2 by a first epoch, 3 by a second one; both ended by themselves and left a fold cache."""
    disk = SimulatedDisk()
    first = Run(disk, "a", config=SETTINGS)
    first.train(2)
    first.close()
    second = Run(disk, "bb", config=SETTINGS)
    second.train(1)
    second.close()
    return Small(path=second.attempt, files=_files(disk), step=3, values=second.trainer.values())


@cache
def ended() -> Small:
    """The same without the cache, which would spare a start reading what lies before it."""
    return cached().but({}, without=(CACHE,))


@cache
def killed() -> Small:
    """Killed twice in the middle of a line: with step 3 staged, and with step 4 published and not recorded."""
    disk = SimulatedDisk()
    first = Run(disk, "a", config=SETTINGS)
    first.train(3)
    first.tick()
    first.tick()
    segment = f"{first.attempt}/journal/00000001.jsonl"
    files = _files(disk)
    disk = disk_of({**files, segment: (files[segment] or b"") + TORN})
    second = Run(disk, "bb", config=SETTINGS)
    assert second.step == 2
    second.train(2)
    for _ in range(3):
        second.tick()
    segment = f"{first.attempt}/journal/00000002.jsonl"
    files = _files(disk)
    lines = (files[segment] or b"").splitlines(keepends=True)
    assert b"save-sealed" in lines[-1]  # it was not synced: the kill may take it
    files = {**files, segment: b"".join(lines[:-1]) + TORN}
    run = Small(path=second.attempt, files=files, step=4, values=second.trainer.values())
    return run.but({}, without=(CACHE,))


@cache
def governed() -> Small:
    """Every small file that a policy makes: artifacts 1, 3 and 5, and validated checkpoints 2, 4 and 6.

    Each of these carries every generation. Retention took the optimizer of checkpoint 2, and left that of 4: the
    second epoch resumed from it. Both epochs ended by themselves.
    """
    disk = SimulatedDisk()
    plan = (Component.MODEL,)
    settings = config(save_every=1, plan=plan, validate_every=2, validation=FULL, keep_optim=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the plan makes artifacts, as it is meant to
        for name, steps in (("a", 4), ("bb", 2)):
            run = Run(disk, name, config=settings)
            run.train(steps, validate=True)
            run.close()
    return Small(path=run.attempt, files=_files(disk), step=6, values=run.trainer.values()).but({}, without=(CACHE,))


def _files(disk: SimulatedDisk) -> dict[str, bytes | None]:
    return {path: cast("bytes | None", data) for path, data in disk.tree().items() if path}


def disk_of(files: Image) -> SimulatedDisk:
    """A fresh machine with these files."""
    disk = SimulatedDisk()
    for path, data in sorted(files.items()):
        if data is None:
            disk.mkdir(path)
            continue
        with disk.create(path) as sink:
            write_all(sink, data)
    return disk


# --- looking ------------------------------------------------------------------------------------------------


class ImageDisk:
    """The reading half of a disk, over an image."""

    def __init__(self, files: Image) -> None:
        self._files = files
        self._names: dict[str, list[str]] = {}
        for path in sorted(files):
            above, _, name = path.rpartition("/")
            self._names.setdefault(above, []).append(name)

    def stat(self, path: str) -> Stat | None:
        if path not in self._files:
            return None
        data = self._files[path]
        return Stat(kind="dir" if data is None else "file", size=len(data or b""), mtime_s=0.0, inode=0)

    def names(self, path: str) -> tuple[str, ...]:
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if self._files[path] is not None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return tuple(self._names.get(path, ()))

    def read(self, path: str, *, limit: int) -> bytes:
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        data = self._files[path]
        if data is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        assert len(data) <= limit
        return data

    def open(self, path: str, *, bulk: bool = False) -> Source:
        return _Bytes(self.read(path, limit=1 << 30))

    def where(self, path: str) -> str:
        return f"/{path}"


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read_into(self, offset: int, buffer: object) -> int:
        return io.BytesIO(self._data[offset:]).readinto(buffer)  # type: ignore[arg-type]

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def look(run: Small, *, quick: bool = False) -> Verified:
    """What `verify` says of the image."""
    return verify(Place(disk=ImageDisk(run.files), path=run.path), quick=quick)  # type: ignore[arg-type]


def news(found: Verified, known: Verified) -> list[Finding]:
    """What was not found before the damage, with everything that a finding owes its reader."""
    fresh = [one for one in found.findings if one not in known.findings]
    for one in fresh:
        assert all((one.place.startswith("/"), one.expected, one.found, one.action)), one
    return fresh


# --- starting -----------------------------------------------------------------------------------------------


def start(run: Small, *, links: tuple[str, ...] = ()) -> MilepostError | None:
    """A start with resume=auto: the one typed error that it ended in, or None for a resume from what is whole.

    Any other exception fails the test, and so does a resume from anything but the newest checkpoint with its exact
    values, and a start that touched what was there. `links` are symlinks that somebody put there.
    """
    disk = disk_of(run.files)
    for name in links:
        disk.plant_symlink(run.at(name))
    try:
        opened = Run(disk, "opener", config=SETTINGS)
    except MilepostError as error:
        assert str(error)
        _require_untouched(run, disk)
        return error
    assert opened.step == run.step, f"resumed from step {opened.step} in silence, not from {run.step}"
    assert opened.trainer.values() == run.values
    assert opened.journal.resumption.source.endswith(iteration_name(run.step))
    _require_untouched(run, disk)
    return None


def _require_untouched(run: Small, disk: SimulatedDisk) -> None:
    """Every file is as it was, but for the pointer and the cache, which are written again, and cleared staging."""
    after = disk.tree()
    for path, data in run.files.items():
        name = path.removeprefix(f"{run.path}/")
        if name in (POINTER, CACHE) or name.startswith("checkpoints/.staging/"):
            continue
        assert path in after, f"{path} is gone"
        assert after[path] == data, f"{path} was changed"
