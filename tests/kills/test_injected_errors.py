"""A disk that fails within a real save: one typed error, nothing published is touched, and the next start goes on.

strace makes the N-th call of a thread fail: in the thread that writes the save, in those that carry its bytes, and in
the training loop. Real full disks are a loop-mounted ext4 of 64 MiB without free bytes or without free inodes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from milepost.engines.disks.beneath import open_beneath
from tests.disks.power import mounted, unavailable
from tests.kills.looking import Look, look
from tests.kills.nursery import Ended, Nursery, await_pause, resume
from tests.kills.training import SAVE_EVERY, TYPED
from tests.kills.trials import NAME, live_in_peace, require_end, require_same

pytestmark = pytest.mark.kills

PAUSE_IN = 2 * SAVE_EVERY
"""The step within which the fault is armed: one checkpoint is published, and the next save is due behind the step."""

HAS_OPENAT2 = open_beneath(os.open("/", os.O_PATH), "proc") is not None

SITES = (  # strace counts the calls of each thread by itself, and each save has a thread of its own
    *(("fsync", "EIO", nth) for nth in range(1, 10)),
    *(("fsync", "ENOSPC", nth) for nth in (1, 3, 7)),
    *(("fdatasync", "EIO", nth) for nth in range(1, 7)),
    *(("fdatasync", "ENOSPC", nth) for nth in (1, 3)),
    *(("write", "ENOSPC", nth) for nth in range(1, 6)),
    *(("write", "EIO", nth) for nth in (1, 2, 4)),
    *(("openat", "ENOSPC", nth) for nth in (1, 2, 5, 9, 14, 20)),
    *(("openat2", "ENOSPC", nth) for nth in (1, 2, 5, 9, 13) if HAS_OPENAT2),
    *(("close", "EIO", nth) for nth in (10, 30, 40)),
    ("mkdirat", "ENOSPC", 1),
    ("renameat2", "ENOSPC", 1),
    ("renameat2", "EIO", 1),
    ("renameat", "ENOSPC", 1),
    ("renameat", "EIO", 1),
)


@pytest.fixture(scope="module")
def peace(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Look:
    return live_in_peace(nursery, tmp_path_factory.mktemp("peace"), asynchronous=True, policies=False)


@cache
def no_strace() -> str | None:
    """Why strace cannot attach to a process here; None where it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    with subprocess.Popen(("sleep", "60")) as sleeper:
        try:
            with traced(sleeper.pid, "-e", "trace=none"):
                return None
        except RuntimeError as error:
            return str(error)
        finally:
            sleeper.kill()


@contextmanager
def traced(pid: int, *options: str) -> Iterator[None]:
    """strace attached to the process and to every thread that it has or will have."""
    tracer = subprocess.Popen(("strace", "-f", "-qq", "-p", str(pid), *options), stderr=subprocess.PIPE, text=True)
    try:
        while f"TracerPid:\t{tracer.pid}\n" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8"):
            if tracer.poll() is not None:
                raise RuntimeError(f"strace cannot attach: {tracer.stderr.read() if tracer.stderr else ''}")
            time.sleep(0.001)
        yield
    finally:
        tracer.terminate()
        tracer.communicate()


def require_one_error(ended: Ended, root: Path, before: Look, peace: Look) -> Look:
    """The run ended with one typed error, and what was published before is what it was."""
    assert ended.code == TYPED, ended
    assert sum(note.startswith("error ") for note in ended.notes) == 1
    assert ended.error.startswith("Unavailable: "), ended.error
    seen = look(root, NAME)
    assert seen.newest >= max(before.newest, ended.acknowledged)
    assert before.published.items() <= seen.published.items()
    require_same(seen, peace)
    return seen


@pytest.mark.parametrize(("call", "error", "nth"), SITES, ids=lambda value: str(value))
def test_a_failing_call_ends_in_one_error_and_the_next_start_goes_on(
    nursery: Nursery, tmp_path: Path, peace: Look, call: str, error: str, nth: int
) -> None:
    if (why := no_strace()) is not None:
        pytest.skip(why)
    trace = tmp_path / "trace"
    pid = nursery.start(tmp_path, NAME, asynchronous=True, policies=False, pause_in=PAUSE_IN)
    await_pause(pid)
    before = look(tmp_path, NAME)
    assert before.newest == PAUSE_IN - SAVE_EVERY
    with traced(pid, "-o", str(trace), "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={nth}"):
        resume(pid)
        ended = nursery.wait()
    assert "(INJECTED)" in trace.read_text(encoding="utf-8"), "the run never came to the call that was to fail"
    seen = require_one_error(ended, tmp_path, before, peace)
    require_end(nursery, tmp_path, asynchronous=True, policies=False, peace=peace, continues_from=seen.newest)


@contextmanager
def ballast(root: Path, *, free_bytes: int | None = None, free_inodes: int | None = None) -> Iterator[None]:
    """All bytes but `free_bytes`, or all inodes but `free_inodes`, of the file system are taken meanwhile."""
    folder = root / "ballast"
    folder.mkdir()
    has = os.statvfs(root)
    if free_bytes is not None:
        with (folder / "bytes").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, has.f_bavail * has.f_frsize - free_bytes)
    if free_inodes is not None:
        for number in range(has.f_favail - free_inodes):
            (folder / str(number)).touch()
    yield
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    "room",
    [{"free_bytes": 30 << 20}, {"free_bytes": 0}, *({"free_inodes": inodes} for inodes in range(7))],
    ids=lambda room: " ".join(f"{free} {number}" for free, number in room.items()),
)
def test_a_full_disk_ends_in_one_error_and_the_next_start_goes_on(
    nursery: Nursery, peace: Look, room: dict[str, int]
) -> None:
    if (why := unavailable("ext4")) is not None:
        pytest.skip(f"no ext4 can be mounted here: {why}")
    with mounted(kind="ext4", size_mib=64, options=("-N", "512")) as mount:
        pid = nursery.start(mount.root, NAME, asynchronous=True, policies=False, pause_in=PAUSE_IN)
        await_pause(pid)
        before = look(mount.root, NAME)
        with ballast(mount.root, **room):
            resume(pid)
            ended = nursery.wait()
        assert "No space left" in ended.error or "no-space" in ended.error, ended
        seen = require_one_error(ended, mount.root, before, peace)
        require_end(nursery, mount.root, asynchronous=True, policies=False, peace=peace, continues_from=seen.newest)
