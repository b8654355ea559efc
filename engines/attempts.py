"""Run attempts: which `<project>/<group>/<name>/<RUN_TS>/` a start belongs to.

RUN_TS is minted when an attempt is first launched and reused by every later start of it:

    resume            adopted attempt
    auto              the newest; minted where there is none
    off               minted: a sibling, nothing that exists is touched
    a path            the attempt that the path lies in, else the newest; minted where there is none
    run_ts is set     that one, made where it is missing

A `<name>/checkpoints/` from before attempts had directories of their own keeps the flat layout for `auto` and paths.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from datetime import timedelta

from attrs import frozen

from milepost.engines.ambient import Ambient
from milepost.engines.disks import Disk
from milepost.transitions.errors import Refused, Unavailable

CHECKPOINTS = "checkpoints"
ARTIFACTS = "checkpoint_artifacts"
JOURNAL = "journal"
"""What lies in the directory of an attempt."""

_RUN_TS = re.compile(r"\d{14}", re.ASCII)


@frozen(kw_only=True)
class Attempt:
    """A run attempt: its directory on the disk, its RUN_TS (empty in the flat layout), and whether it is new."""

    path: str
    run_ts: str
    minted: bool


def resolve(disk: Disk, home: str, *, resume: str, run_ts: str, ambient: Ambient) -> Attempt:
    """The attempt below `home` (`<project>/<group>/<name>`) that this start belongs to, made where it is new."""
    try:
        make_directories(disk, home)
        if run_ts:
            return _pinned(disk, home, run_ts)
        if resume == "off":
            return _mint(disk, home, ambient)
        if disk.stat(f"{home}/{CHECKPOINTS}") is not None:
            return Attempt(path=home, run_ts="", minted=False)
        existing = attempts(disk, home)
        containing = next((ts for ts in existing if f"/{home}/{ts}/" in f"/{resume}/"), None)
        chosen = containing or (existing[-1] if existing else None)
        if chosen is None:
            return _mint(disk, home, ambient)
        return Attempt(path=f"{home}/{chosen}", run_ts=chosen, minted=False)
    except OSError as error:
        raise Unavailable(
            f"the run's directory {disk.where(home)} cannot be used: {error}. Nothing was changed; make it a "
            "writable directory or choose another run.output_root"
        ) from error


def attempts(disk: Disk, home: str) -> tuple[str, ...]:
    """The RUN_TS of every attempt below `home`, oldest first."""
    return tuple(name for name in disk.names(home) if _RUN_TS.fullmatch(name))


def make_root(path: str) -> str:
    """The folder of all runs, made with everything above it that is missing, durably; its absolute path."""
    root = os.path.abspath(os.path.expanduser(path))
    missing = []
    while not os.path.isdir(root):
        missing.append(os.path.basename(root))
        root = os.path.dirname(root)
    try:
        for name in reversed(missing):
            above, root = root, os.path.join(root, name)
            os.makedirs(root, exist_ok=True)
            folder = os.open(above, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        raise Unavailable(
            f"run.output_root={path} cannot be made: {error}. Choose a folder on a writable disk"
        ) from error
    return root


def make_directories(disk: Disk, path: str) -> None:
    """Make every missing directory on the way. All are made durable: who made one may have died before that."""
    above = ""
    for part in path.split("/"):
        here = f"{above}/{part}" if above else part
        if disk.stat(here) is None:
            with suppress(FileExistsError):  # another start was faster
                disk.mkdir(here)
        disk.sync_dir(above)
        above = here


def _pinned(disk: Disk, home: str, run_ts: str) -> Attempt:
    if not _RUN_TS.fullmatch(run_ts):
        raise Refused(f"rl.run_ts={run_ts!r} is no RUN_TS; expected YYYYmmddHHMMSS")
    minted = disk.stat(f"{home}/{run_ts}") is None
    make_directories(disk, f"{home}/{run_ts}")
    return Attempt(path=f"{home}/{run_ts}", run_ts=run_ts, minted=minted)


def _mint(disk: Disk, home: str, ambient: Ambient) -> Attempt:
    at = ambient.now()
    while True:
        run_ts = at.strftime("%Y%m%d%H%M%S")
        try:
            disk.mkdir(f"{home}/{run_ts}")
        except FileExistsError:
            at += timedelta(seconds=1)
            continue
        disk.sync_dir(home)
        return Attempt(path=f"{home}/{run_ts}", run_ts=run_ts, minted=True)
