"""Real processes that train, started in milliseconds: the client of the server in `training.py`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Self

from attrs import frozen

from tests.kills import training


@frozen(kw_only=True)
class Ended:
    """How a run ended: its exit code (minus the signal's number for a killed one) and what it noted before."""

    code: int
    notes: tuple[str, ...]

    @property
    def opened_at(self) -> int | None:
        """The step from which it continued; None where it ended before its state was restored."""
        return next((int(note.split()[1]) for note in self.notes if note.startswith("opened ")), None)

    @property
    def acknowledged(self) -> int:
        """The newest step whose save was acknowledged; 0 for none."""
        return max((int(note.split()[1]) for note in self.notes if note.startswith("saved ")), default=0)

    @property
    def error(self) -> str:
        """The typed error that it ended with; empty for none."""
        return next((note.removeprefix("error ") for note in self.notes if note.startswith("error ")), "")

    def __attrs_post_init__(self) -> None:
        untyped = [note for note in self.notes if note.startswith("untyped ")]
        assert not untyped and self.code != training.UNTYPED, f"an error that is none of milepost's: {untyped}"


class Nursery:
    """Forks training runs, one at a time."""

    def __init__(self, scratch: Path) -> None:
        self._notes = scratch / "notes"
        # A job's own deadline must not end the runs; and threads of a pool would not survive the fork.
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._server = subprocess.Popen(
            (sys.executable, training.__file__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        _there(self._server.stdin).close()
        self._server.wait()
        _there(self._server.stdout).close()

    def start(self, root: Path, name: str, *, asynchronous: bool, policies: bool, pause_in: int | None = None) -> int:
        """Start the run `name` below `root`, or start it again; the pid. It stops itself within step `pause_in`."""
        self._notes.unlink(missing_ok=True)
        return self._ask(
            {
                "root": str(root),
                "name": name,
                "asynchronous": asynchronous,
                "notes": str(self._notes),
                "policies": policies,
                "pause_in": pause_in,
            }
        )

    def wait(self) -> Ended:
        """Wait for the end of what was started."""
        code = self._ask({})
        notes = self._notes.read_text(encoding="utf-8").splitlines() if self._notes.exists() else []
        return Ended(code=code, notes=tuple(notes))

    def whole(self, root: Path, name: str, *, asynchronous: bool, policies: bool) -> Ended:
        """Run to a good end."""
        self.start(root, name, asynchronous=asynchronous, policies=policies)
        ended = self.wait()
        assert ended.code == 0, ended
        return ended

    def _ask(self, request: dict[str, object]) -> int:
        pipe = _there(self._server.stdin)
        pipe.write(json.dumps(request) + "\n")
        pipe.flush()
        return int(_there(self._server.stdout).readline())


def alive(pid: int) -> bool:
    """Whether it is no zombie, which keeps its pid until the server waits for it."""
    return _state(pid) != "Z"


def await_pause(pid: int) -> None:
    """Wait until the run has stopped itself, with all its threads."""
    while _state(pid) != "T":
        assert alive(pid), "the run ended before its pause"
        time.sleep(0.001)


def resume(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


def kill(pid: int) -> None:
    """SIGKILL; to a zombie it does nothing."""
    os.kill(pid, signal.SIGKILL)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def _there(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
