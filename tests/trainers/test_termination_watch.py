"""Signals, the sentinel and the deadline, with real signals and real files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from milepost.engines.termination import SENTINEL, SKEW_S, TerminationWatch

JOB_START = 1_800_000_000
NOW = JOB_START + 300.0
ENVIRON = {"SLURM_JOB_START_TIME": str(JOB_START)}


@pytest.fixture(autouse=True)
def handlers_are_put_back() -> Iterator[None]:
    before = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)] == before


def watching(
    directory: Path | None = None, *, now: Callable[[], float] = lambda: NOW, **extra: str
) -> TerminationWatch:
    place = {"SLURM_LOG_DIR": str(directory)} if directory else {}
    return TerminationWatch(grace_s=60, environ=ENVIRON | place | extra, now=now)


def touch(directory: Path, at: float) -> Path:
    sentinel = directory / SENTINEL
    sentinel.touch()
    os.utime(sentinel, (at, at))
    return sentinel


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_sets_a_flag_that_the_next_poll_sees(number: signal.Signals) -> None:
    with watching() as watch:
        assert watch.observed() is None
        os.kill(os.getpid(), number)
        seen = watch.observed()
    assert seen is not None
    assert seen.reason == f"signal {number.name}"
    assert str(os.getpid()) in seen.detail


def test_the_first_signal_stays_the_answer() -> None:
    with watching() as watch:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        first = watch.observed()
        os.kill(os.getpid(), signal.SIGTERM)
        assert watch.observed() is first is not None
        assert first.reason == "signal SIGUSR1"


def test_the_previous_handler_is_put_back_and_gets_the_next_signal() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        with watching() as watch:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert heard == []
        watch.close()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_replaced_ours_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    try:
        with watching():
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_outside_the_main_thread_signals_are_not_trapped_and_the_watch_says_so(tmp_path: Path) -> None:
    made: list[TerminationWatch] = []
    thread = threading.Thread(target=lambda: made.append(watching(tmp_path)))
    thread.start()
    thread.join()
    [watch] = made
    assert watch.limits == ("SIGUSR1 and SIGTERM are not seen: only the main thread can install handlers",)
    touch(tmp_path, NOW)
    assert watch.observed() is not None


def test_a_forked_child_dies_of_a_sigterm_as_if_nobody_watched() -> None:
    with watching() as watch:
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        assert watch.observed() is None


def test_a_sentinel_that_appears_is_seen(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        assert watch.observed() is None
        touch(tmp_path, NOW)
        seen = watch.observed()
    assert seen is not None
    assert seen.reason == "sentinel"
    assert str(tmp_path / SENTINEL) in seen.detail


def test_a_sentinel_that_appears_counts_whatever_its_clock_says(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        touch(tmp_path, JOB_START - 5000)
        assert watch.observed() is not None


def test_what_was_observed_stays_when_the_sentinel_is_removed(tmp_path: Path) -> None:
    with watching(tmp_path) as watch:
        sentinel = touch(tmp_path, NOW)
        seen = watch.observed()
        sentinel.unlink()
        assert watch.observed() is seen is not None


FOUND_AT_THE_START = {
    "left by an earlier job": (JOB_START - 3600.0, False),
    "left just before this job": (JOB_START - 0.5, False),
    "within the doubt after the start": (JOB_START + SKEW_S, False),
    "touched while this job was loading": (JOB_START + SKEW_S + 0.5, True),
    "touched just now": (NOW, True),
    "within the doubt before now": (NOW + SKEW_S, True),
    "from the future": (NOW + SKEW_S + 0.5, False),
}


@pytest.mark.parametrize("name", FOUND_AT_THE_START)
def test_a_sentinel_found_at_the_start_is_told_apart_by_its_time(tmp_path: Path, name: str) -> None:
    at, counts = FOUND_AT_THE_START[name]
    touch(tmp_path, at)
    with watching(tmp_path) as watch:
        assert (watch.observed() is not None) is counts
        assert any("left by an earlier job" in limit for limit in watch.limits) is not counts


@pytest.mark.parametrize("at", [NOW, JOB_START - 100.0], ids=["touched", "touched by a clock that is behind"])
def test_a_stale_sentinel_counts_once_it_is_touched_again(tmp_path: Path, at: float) -> None:
    touch(tmp_path, JOB_START - 3600)
    with watching(tmp_path) as watch:
        assert watch.observed() is None
        touch(tmp_path, at)
        assert watch.observed() is not None


def test_a_stale_sentinel_counts_once_it_is_replaced_even_by_one_of_the_same_time(tmp_path: Path) -> None:
    sentinel = touch(tmp_path, JOB_START - 3600)
    with watching(tmp_path) as watch:
        sentinel.rename(tmp_path / "kept")  # so that its inode is not given out again
        assert watch.observed() is None
        touch(tmp_path, JOB_START - 3600)
        assert watch.observed() is not None


def test_a_stale_sentinel_does_not_stop_a_requeued_job_with_the_same_log_directory(tmp_path: Path) -> None:
    with watching(tmp_path) as first:
        touch(tmp_path, NOW)
        assert first.observed() is not None
    with watching(tmp_path, now=lambda: NOW + 60, SLURM_JOB_START_TIME=str(int(NOW) + 10)) as second:
        assert second.observed() is None


def test_without_the_start_of_the_job_that_of_this_process_decides(tmp_path: Path) -> None:
    environ = {"SLURM_LOG_DIR": str(tmp_path)}
    script = (
        "import os, sys, time; from milepost.engines.termination import SKEW_S, TerminationWatch; "
        "time.sleep(0.3); at = time.time() + SKEW_S - 0.1; "  # the latest that counts; the start is earlier still
        "os.utime(sys.argv[1], (at, at)) if sys.argv[2] == 'now' else None; "
        f"print(TerminationWatch(grace_s=60, environ={environ!r}).observed() is not None)"
    )
    sentinel = touch(tmp_path, time.time() - 20)
    answers = []
    for touched in ("earlier", "now"):
        command = [sys.executable, "-c", script, str(sentinel), touched]
        answers.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    assert answers == ["False", "True"]


def test_a_first_look_that_fails_does_not_make_a_stale_sentinel_new(tmp_path: Path) -> None:
    """ELOOP stands for a file server that stumbles: not 'no such file', and gone at the next poll."""
    (tmp_path / SENTINEL).symlink_to(SENTINEL)
    with watching(tmp_path) as watch:
        assert watch.observed() is None
        (tmp_path / SENTINEL).unlink()
        touch(tmp_path, JOB_START - 3600)
        assert watch.observed() is None
        touch(tmp_path, NOW)
        assert watch.observed() is not None


def test_a_log_directory_that_does_not_exist_yet_is_watched_too(tmp_path: Path) -> None:
    directory = tmp_path / "later"
    with watching(directory) as watch:
        assert watch.observed() is None
        directory.mkdir()
        touch(directory, NOW)
        assert watch.observed() is not None


def test_the_deadline_comes_one_grace_before_the_end() -> None:
    clock = [NOW]
    with watching(now=lambda: clock[0], SLURM_JOB_END_TIME=str(int(NOW) + 100)) as watch:
        clock[0] = NOW + 39.9
        assert watch.observed() is None
        clock[0] = NOW + 40
        seen = watch.observed()
    assert seen is not None
    assert seen.reason == "deadline"
    assert f"{NOW + 100:.0f}" in seen.detail
    assert "60 s" in seen.detail


def test_a_start_within_the_grace_is_past_the_deadline() -> None:
    with watching(SLURM_JOB_END_TIME=str(int(NOW) + 10)) as watch:
        assert watch.observed() is not None


def test_an_end_that_had_passed_at_the_start_is_not_used() -> None:
    with watching(SLURM_JOB_END_TIME=str(int(NOW) - 1)) as watch:
        assert watch.observed() is None
        assert watch.limits == ("SLURM_JOB_END_TIME had passed at the start: no deadline is kept",)


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "0", "2026-11-29T00:00:00", "١٢"])
@pytest.mark.parametrize("name", ["SLURM_JOB_END_TIME", "SLURM_JOB_START_TIME"])
def test_a_time_that_is_none_is_named_and_not_used(name: str, text: str) -> None:
    with TerminationWatch(grace_s=60, environ=ENVIRON | {name: text}, now=lambda: NOW) as watch:
        assert watch.observed() is None
        assert watch.limits == (f"{name} is {text!r}, expected unix seconds: it is not used",)


def test_outside_slurm_only_signals_are_watched() -> None:
    with TerminationWatch(grace_s=60, environ={}) as watch:
        assert watch.observed() is None
        assert watch.limits == ()
