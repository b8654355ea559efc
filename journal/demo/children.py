"""Training in a child process: let it end, or kill it in the middle of a save.

1. Nothing in the child knows that it is watched: it runs the command that a user would type.
2. A kill has to land between the first byte of a payload and its manifest. The child is stopped first (SIGSTOP), then
   what lies on the disk is looked at, and only if that is a half-written save does SIGKILL follow; otherwise the
   child goes on and the next save is waited for.
3. What a `Kill` says is read from the disk after the child is dead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from attrs import frozen

from milepost.engines.checkpoints.local import POINTER, STAGING
from milepost.engines.checkpoints.manifest import MANIFEST
from milepost.transitions.values import SaveId

_LOOK_EVERY_S = 0.0005


class DemoFailed(Exception):
    """The demonstration could not be carried out; the message has the child's own words."""


@frozen(kw_only=True)
class Kill:
    """What was on disk when the child was dead: the files of the save under way, by name and size in bytes."""

    save: SaveId
    staged: tuple[tuple[str, int], ...]
    published: tuple[str, ...]
    latest: str


class Child:
    """A command under way; `echo` gets each line that it prints, in a thread of its own."""

    def __init__(self, command: Sequence[str], *, echo: Callable[[str], None]) -> None:
        self._lines: list[str] = []
        self._echo = echo
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._relay, name="milepost-demo-reader")
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()  # harmless for one that has ended
        self._process.wait()
        self._reader.join()

    def finish(self) -> None:
        """Wait for the end; `DemoFailed` where it is not a good one."""
        if code := self._process.wait():
            self._reader.join()
            raise DemoFailed("\n".join((f"the training process ended with exit code {code}:", *self._lines[-20:])))

    def kill_inside_save(self, checkpoints: Callable[[], Path | None], *, at_least: int) -> Kill:
        """SIGKILL within a save of step `at_least` or later; `DemoFailed` where every one of them was missed.

        `checkpoints` finds the directory of the run's checkpoints once there is one.
        """
        while self._process.poll() is None:
            folder = checkpoints()
            if folder is None or half_written(folder, at_least=at_least) is None or not self._stopped():
                time.sleep(_LOOK_EVERY_S)
                continue
            if half_written(folder, at_least=at_least) is None:
                self._process.send_signal(signal.SIGCONT)
                continue
            self._process.kill()
            self._process.wait()
            return _after_kill(folder, at_least=at_least)
        self.finish()
        raise DemoFailed(f"training ended before a save of step {at_least} or later could be caught half-written")

    def _stopped(self) -> bool:
        """Stop every thread of the child; False where it ended instead."""
        self._process.send_signal(signal.SIGSTOP)
        seen = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return seen is not None and seen.si_code == os.CLD_STOPPED

    def _relay(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line.rstrip())
            self._echo(line.rstrip())


def half_written(checkpoints: Path, *, at_least: int) -> SaveId | None:
    """A save of which some payload is written, and no manifest is there nor a published directory."""
    try:
        for staged in (checkpoints / STAGING).iterdir():
            save, written = SaveId.parse(staged.name), {file.name: file.stat().st_size for file in staged.iterdir()}
            published = (checkpoints / save.directory).exists()
            if save.step >= at_least and any(written.values()) and MANIFEST not in written and not published:
                return save
    except (ValueError, FileNotFoundError):
        pass  # published, or swept, while it was looked at
    return None


def _after_kill(checkpoints: Path, *, at_least: int) -> Kill:
    save = half_written(checkpoints, at_least=at_least)
    assert save is not None, "a stopped child finished its save"
    staged = checkpoints / STAGING / str(save)
    return Kill(
        save=save,
        staged=tuple(sorted((file.name, file.stat().st_size) for file in staged.iterdir())),
        published=tuple(sorted(path.name for path in checkpoints.glob("iter_*"))),
        latest=(checkpoints / POINTER).read_text(encoding="utf-8").strip(),
    )
