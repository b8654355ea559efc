"""Who may open a run in a bucket while another one writes it, or seems to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from milepost.engines.living import runs
from milepost.engines.simulated.faults import Killed
from milepost.journal import Busy, Fenced
from tests.direct_runs.stores import ROOT, RUN, Ambient, Cloud, config, opened, plain, train
from tests.journal.runs import Training


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def dead_writer(cloud: Cloud, root: Path, *, host: str, pid: int) -> None:
    """A run that saved step 2 and then was gone without a word."""
    process, remotes = cloud.process("victim")
    with pytest.raises(Killed):
        train(
            config(root),
            until=4,
            remotes=remotes,
            ambient=Ambient(host=host, pid=pid),
            each=lambda _journal, step: process.kill() if step == 3 else None,
        )


def test_a_second_start_on_this_file_system_is_busy_at_once(tmp_path: Path) -> None:
    cloud = Cloud()
    with opened(config(tmp_path), Training(), remotes=cloud.remotes):
        before = len(cloud.bucket().trace)
        with pytest.raises(Busy, match=f"{RUN} is being written by another process, which holds the lock"):
            train(config(tmp_path), until=2, remotes=cloud.remotes)
        assert len(cloud.bucket().trace) == before
    _, journal = train(config(tmp_path), until=2, remotes=cloud.remotes)
    assert journal.state.run.epoch == 2


def test_a_writer_on_this_machine_that_runs_is_waited_for(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    cloud = Cloud()
    dead_writer(cloud, tmp_path / "a", host="here", pid=other.pid)
    before = cloud.tree()
    with pytest.raises(Busy, match=rf"is being written by process {other.pid} on here \(epoch 1\), which runs"):
        train(config(tmp_path / "b"), until=4, remotes=cloud.remotes, ambient=Ambient(host="here", pid=1))
    assert cloud.tree() == before
    os.kill(other.pid, signal.SIGKILL)  # not waited for: it is a zombie now
    rest, journal = train(config(tmp_path / "b"), until=4, remotes=cloud.remotes, ambient=Ambient(host="here", pid=1))
    assert journal.resumption.step == 2 and rest.digest() == plain(4).digest()


def test_a_writer_that_ended_is_not_asked_for(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    cloud = Cloud()
    train(config(tmp_path / "a"), until=2, remotes=cloud.remotes, ambient=Ambient(host="here", pid=other.pid))
    _, journal = train(config(tmp_path / "b"), until=4, remotes=cloud.remotes, ambient=Ambient(host="here", pid=1))
    assert journal.resumption.step == 2


def test_a_writer_that_was_this_very_process_is_over(tmp_path: Path) -> None:
    cloud = Cloud()
    dead_writer(cloud, tmp_path, host="here", pid=os.getpid())
    _, journal = train(
        config(tmp_path), until=4, remotes=cloud.remotes, ambient=Ambient(host="here", pid=os.getpid())
    )
    assert journal.resumption.step == 2


def test_a_writer_on_another_machine_is_taken_over_and_fenced(tmp_path: Path) -> None:
    cloud = Cloud()
    training = Training()
    with pytest.raises(Fenced):  # noqa: SIM117 - the inner block ends first
        with opened(
            config(tmp_path / "a"), training, remotes=cloud.process("one")[1], ambient=Ambient(host="one")
        ) as journal:
            for step in journal.steps(until=6):
                training.step()
                if step == 3:
                    rest, successor = train(
                        config(tmp_path / "b"),
                        until=6,
                        remotes=cloud.process("two")[1],
                        ambient=Ambient(host="two"),
                    )
                    published = cloud.tree(f"{ROOT}/")
    assert (successor.resumption.step, successor.state.run.epoch) == (2, 2)
    assert rest.digest() == plain(6).digest()
    assert cloud.tree(f"{ROOT}/") == published


def test_of_two_that_open_at_once_one_is_busy_and_wrote_nothing(tmp_path: Path) -> None:
    cloud = Cloud()
    train(config(tmp_path / "a"), until=2, remotes=cloud.remotes)
    store = cloud.bucket().store
    late, slots = cloud.process("late")[1], len(cloud.tree("exp/one/journal/0"))
    header = f"exp/one/journal/{slots + 1:020d}.json"
    before = dict[str, bytes]()

    def overtaken(process: str, verb: str, key: str) -> None:
        if (process, verb, key) == ("late", "put", header):
            store.before = None
            train(config(tmp_path / "b"), until=4, remotes=cloud.process("early")[1], ambient=Ambient(host="early"))
            before.update(cloud.tree())

    store.before = overtaken
    with pytest.raises(Busy, match="was taken by another writer"):
        train(config(tmp_path / "c"), until=4, remotes=late, ambient=Ambient(host="late"))
    assert cloud.tree() == before
    assert list((tmp_path / "c").rglob("checkpoint_store.txt")) == []
    changes = {one.key for one in cloud.bucket().trace if one.process == "late" and one.change is not None}
    assert changes == {header}


def test_what_runs_is_told_from_what_has_its_number() -> None:
    now = datetime.now(UTC)
    assert runs(os.getpid(), since=now)
    assert not runs(os.getpid(), since=now - timedelta(days=36500))
    assert not runs(0, since=now) and not runs(-1, since=now)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert not runs(ended.pid, since=now)
