"""Whether this run was told to stop: signals, the sentinel file, the deadline.

1. Nothing here acts. The handlers of SIGUSR1 and SIGTERM set a flag; the loop polls `observed` at its step
   boundaries. A poll costs one `stat` at most. The first thing observed stays the answer.
2. The sentinel is `$SLURM_LOG_DIR/SIGUSR1_RECEIVED`, which the batch script's trap touches. What the watch finds
   when it starts may be left over from an earlier job with the same log directory. It is of this job only if its
   mtime lies after the job's start, `$SLURM_JOB_START_TIME` or else the start of this process, and not in the
   future, with `SKEW_S` of doubt against it at both ends. Otherwise it is stale: then, as after any start
   without a sentinel, only a change counts, that is another (device, inode, mtime), and no clock is compared.
   A touch of a stale file is a change. `spec/sentinel.md` has the cases.
3. The deadline is `$SLURM_JOB_END_TIME` (unix seconds) minus the grace. An end that has passed when the watch
   starts says nothing about this run (a longer time limit does not reach the environment) and is not used.
4. What the watch cannot see is in `limits`, never an error: training goes on without it.
5. `close` puts the previous handlers back. A forked child that inherits a handler is not the trainer: it hands
   the signal on to the previous one.

Source: the checkpointing contract, "Preemption / timeout".
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Literal, Self

from attrs import frozen

SENTINEL = "SIGUSR1_RECEIVED"

SKEW_S = 2.0
"""How far the clocks of a file server and of the scheduler may be apart; the job's start is cut to a second."""

_SIGNALS = (signal.SIGUSR1, signal.SIGTERM)

StopReason = Literal["signal SIGTERM", "signal SIGUSR1", "sentinel", "deadline"]


@frozen(kw_only=True)
class Termination:
    """Why the run has to stop, and what was seen."""

    reason: StopReason
    detail: str


class TerminationWatch:
    """Watches from construction to `close`, or to the end of its `with` block.

    `grace_s` is how long before the scheduler's end the run is told to stop, in seconds; `now` gives unix seconds.
    `limits` says in words what this watch cannot see.
    """

    def __init__(
        self,
        *,
        grace_s: float,
        environ: Mapping[str, str] = os.environ,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._now = now
        self._pid = os.getpid()
        self._signal: signal.Signals | None = None
        self._observed: Termination | None = None
        self._previous: dict[signal.Signals, Callable[[int, FrameType | None], object] | int] = {}
        self._limits: list[str] = []
        started_s = now()
        self._end_s = self._read_seconds(environ, "SLURM_JOB_END_TIME")
        if self._end_s is not None and self._end_s <= started_s:
            self._limits.append("SLURM_JOB_END_TIME had passed at the start: no deadline is kept")
            self._end_s = None
        self._grace_s = grace_s
        job_start_s = self._read_seconds(environ, "SLURM_JOB_START_TIME")
        since_s = started_s - _process_age_s() if job_start_s is None else job_start_s
        directory = environ.get("SLURM_LOG_DIR")
        self._sentinel = _Sentinel(os.path.join(directory, SENTINEL), since_s, now) if directory else None
        self._trap()

    @property
    def limits(self) -> tuple[str, ...]:
        if self._sentinel is None or self._sentinel.stale is None:
            return tuple(self._limits)
        left = f"{self._sentinel.path} was left by an earlier job: it counts once it is touched again"
        return (*self._limits, left)

    def observed(self) -> Termination | None:
        """Why the run has to stop, or None. Once there is a reason it stays."""
        if self._observed is None:
            self._observed = self._look()
        return self._observed

    def close(self) -> None:
        """Put the previous handlers back, except where somebody else has replaced ours. Twice is harmless."""
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, previous)
        self._previous = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _look(self) -> Termination | None:
        if self._signal is not None:
            reason: StopReason = "signal SIGTERM" if self._signal is signal.SIGTERM else "signal SIGUSR1"
            return Termination(reason=reason, detail=f"process {self._pid} was sent {self._signal.name}")
        if self._sentinel is not None and (touched_s := self._sentinel.touched()) is not None:
            return Termination(reason="sentinel", detail=f"{self._sentinel.path}, touched at {touched_s:.3f}")
        if self._end_s is not None and self._now() >= self._end_s - self._grace_s:
            return Termination(
                reason="deadline", detail=f"the job ends at {self._end_s:.0f}, {self._grace_s:g} s of grace before"
            )
        return None

    def _trap(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._limits.append("SIGUSR1 and SIGTERM are not seen: only the main thread can install handlers")
            return
        for number in _SIGNALS:
            previous = signal.getsignal(number)
            if previous is None:  # installed by C code: it could not be put back
                self._limits.append(f"{number.name} is not seen: its handler is not Python's")
            else:
                self._previous[number] = previous
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._pid:
            self._signal = self._signal or signal.Signals(number)
            return
        signal.signal(number, self._previous.get(signal.Signals(number), signal.SIG_DFL))
        os.kill(os.getpid(), number)

    def _read_seconds(self, environ: Mapping[str, str], name: str) -> float | None:
        text = environ.get(name)
        if text is None:
            return None
        if text.isascii() and text.isdigit() and int(text) > 0:
            return float(text)
        self._limits.append(f"{name} is {text!r}, expected unix seconds: it is not used")
        return None


class _Sentinel:
    """Rule 2: which sentinel is of this job. `since_s` is the job's start, in unix seconds."""

    def __init__(self, path: str, since_s: float, now: Callable[[], float]) -> None:
        self.path = path
        self.stale: tuple[int, int, int] | None = None
        self._since_s = since_s
        self._now = now
        self._settled = False
        self.touched()

    def touched(self) -> float | None:
        """When this job's sentinel was touched, in unix seconds of its file system; None without one."""
        try:
            seen = os.stat(self.path)
        except FileNotFoundError:
            self._settled = True
            return None
        except OSError:  # a file server that stumbles must not end the run: the next poll looks again
            return None
        found = (seen.st_dev, seen.st_ino, seen.st_mtime_ns)
        mtime_s = seen.st_mtime_ns / 1e9
        # The first look that succeeds settles what was there at the start.
        if not self._settled and not self._since_s + SKEW_S < mtime_s <= self._now() + SKEW_S:
            self.stale = found
        self._settled = True
        return None if found == self.stale else mtime_s


def _process_age_s() -> float:
    """Seconds since this process started (proc(5), field 22 of stat); 0 where there is no /proc."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
            after_name = stat.read().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    started_s = int(after_name[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
