"""`slurm --run`: one step and one save, as the run's own journal measured them, against the grace."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from milepost.engines.termination import Termination
from tests.cli.conftest import KEEP_ALL, MODEL_ONLY, Milepost
from tests.journal.runs import FakeWatch, StillAmbient, config, train


class Clock(StillAmbient):
    """Time passes where a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC) + timedelta(seconds=self.passed_s)


def run_of(root: Path, steps_s: list[float], *, overrides: tuple[str, ...] = (), stop: bool = False) -> Path:
    """A run whose steps take so long, in seconds, and whose saves take no time. With `stop` the last is its last."""
    clock, watch = Clock(), FakeWatch()

    def pass_time(journal: object, step: int) -> None:
        clock.passed_s += steps_s[step - 1]
        if stop and step == len(steps_s):
            watch.seen = Termination(reason="signal SIGUSR1", detail="")

    settings = config(root, KEEP_ALL, "rl.save_async=false", *overrides)
    _, journal = train(settings, until=len(steps_s), ambient=clock, watch=watch, each=pass_time)
    return Path(journal.run_dir)


def test_the_slowest_step_and_the_slowest_save_have_to_fit(milepost: Milepost, tmp_path: Path) -> None:
    run = run_of(tmp_path, [10, 20, 700, 20, 10])
    answer = milepost("slurm", "--run", run, "--json")
    budget = answer.json["budget"]
    assert answer.code == 1
    assert budget["step"] == {"count": 5, "median_s": 20.0, "slowest_s": 700.0}
    assert (budget["needed_s"], budget["grace_s"], budget["fits"]) == (700.0, 600, False)
    assert "DOES NOT FIT" in answer.err
    assert "--grace" in answer.err


def test_a_longer_grace_is_enough_and_the_script_is_printed_either_way(milepost: Milepost, tmp_path: Path) -> None:
    run = run_of(tmp_path, [10, 20, 700, 20, 10])
    enough = milepost("slurm", "--run", run, "--grace", 700)
    assert enough.code == 0
    assert "It fits" in enough.err
    assert enough.out == milepost("slurm", "--grace", 700).out
    assert milepost("slurm", "--run", run).out == milepost("slurm").out


def test_a_save_of_the_loop_belongs_to_the_time_between_two_looks(milepost: Milepost, tmp_path: Path) -> None:
    """The order to stop may come right behind a look: the cadence save and the next step come before the next one."""
    clock = Clock()

    def pass_time(journal: object, step: int) -> None:
        clock.passed_s += 100

    def evaluate(step: int) -> None:
        clock.passed_s += 400

    settings = config(tmp_path, KEEP_ALL, "rl.validation.every_steps=2")
    _, journal = train(settings, until=6, ambient=clock, each=pass_time, validate=evaluate)
    budget = milepost("slurm", "--run", journal.run_dir, "--json").json["budget"]
    assert budget["step"]["slowest_s"] == 500.0


@pytest.mark.parametrize("steps", [1, 4])
def test_too_few_steps_are_said_and_are_no_failure(milepost: Milepost, tmp_path: Path, steps: int) -> None:
    answer = milepost("slurm", "--run", run_of(tmp_path, [9000.0] * steps), "--json")
    assert answer.code == 0
    assert (answer.json["budget"]["fits"], answer.json["budget"]["needed_s"]) == (None, None)
    assert f"the journal has {steps} steps" in answer.err


def test_a_run_without_a_save_cannot_tell(milepost: Milepost, tmp_path: Path) -> None:
    answer = milepost("slurm", "--run", run_of(tmp_path, [1.0] * 6, overrides=("rl.save_every=0",)), "--json")
    assert (answer.code, answer.json["budget"]["fits"], answer.json["budget"]["saves"]) == (0, None, [])


def test_saves_are_told_by_mode_and_by_what_they_hold(milepost: Milepost, both: Path) -> None:
    saves = milepost("slurm", "--run", both, "--json").json["budget"]["saves"]
    assert [(one["mode"], one["full"], one["took"]["count"]) for one in saves] == [
        ("asynchronous", False, 2),
        ("synchronous", True, 1),
    ]


def test_a_killed_epoch_ends_the_step_that_it_was_in(milepost: Milepost, tmp_path: Path) -> None:
    """The time in which nobody ran is no step."""
    run = run_of(tmp_path, [1, 1, 1], stop=True)
    clock = Clock()
    clock.passed_s = 9000.0

    def pass_time(journal: object, step: int) -> None:
        clock.passed_s += 2

    train(config(tmp_path, KEEP_ALL), until=6, ambient=clock, each=pass_time)
    budget = milepost("slurm", "--run", run, "--json").json["budget"]
    assert budget["step"] == {"count": 6, "median_s": 1.5, "slowest_s": 2.0}


def test_a_run_of_artifacts_is_measured_by_its_emergency_save(milepost: Milepost, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="partial"):
        run = run_of(tmp_path, [1.0] * 6, overrides=(MODEL_ONLY,), stop=True)
    budget = milepost("slurm", "--run", run, "--json").json["budget"]
    assert [(one["full"], one["took"]["count"]) for one in budget["saves"]] == [(True, 1), (False, 2)]
    assert budget["fits"] is True
