"""The example of two roles: killed in three places, it goes on from what both of them had saved together."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crew.test_ray import unavailable

EXAMPLE = Path(__file__).parents[2] / "examples" / "actor_critic.py"
ALONE = ("unshare", "--net", "--pid", "--fork", "--mount-proc")
"""Ray listens on every interface, and outlives a driver that is killed: here neither leaves its namespace."""


def drill(cwd: Path, *, ray: bool = False) -> str:
    """What the drill prints, run from `cwd` and with its runs below it."""
    command: tuple[str, ...] = (sys.executable, str(EXAMPLE), "--drill", "--output-root", "runs")
    if ray:
        command = (*ALONE, "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *command, "--ray")
    environ = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.kills
@pytest.mark.slow
def test_both_roles_go_on_together_from_each_kill_and_nothing_differs(tmp_path: Path) -> None:
    told = drill(tmp_path)
    whole, warm_up, between, update, last = re.split(r"^--- .*$", told, flags=re.MULTILINE)
    # Eight iterations of the critic alone, then two passes of the actor in each.
    assert "updates: actor 104, critic 60; " in whole and "updates: actor 104, critic 60; " in last
    assert "start: fresh at iteration 0\n" in warm_up and "saved checkpoint" not in warm_up
    assert "start: fresh at iteration 0\n" in between and "iter_000000020" not in between
    # The actor's files of iteration 20 were written: without the critic's they are nothing.
    assert "start: exact at iteration 10\n" in update
    assert "start: exact at iteration 40\n" in last
    assert told.splitlines()[-1] == "the same weights to the last bit"

    (checkpoint,) = (tmp_path / "runs" / "killed").glob("milepost/default/arms/*/checkpoints/iter_000000060")
    assert {path.name for path in checkpoint.iterdir()} >= {"actor", "critic", "_SUCCESS"}


@pytest.mark.services
@pytest.mark.kills
@pytest.mark.slow
def test_roles_in_ray_actors_go_on_together_as_well(tmp_path: Path) -> None:
    if (why := unavailable()) is not None:
        pytest.skip(why)
    told = drill(tmp_path, ray=True)
    starts = re.findall(r"^start: .*$", told, re.MULTILINE)
    assert [start.removeprefix("start: ") for start in starts] == [
        "fresh at iteration 0",
        "fresh at iteration 0",
        "fresh at iteration 0",
        "exact at iteration 40",
    ]
    assert told.splitlines()[-1] == "the same weights to the last bit"


@pytest.mark.slow
def test_a_run_is_not_continued_with_other_settings(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "--output-root", str(tmp_path)]
    first = subprocess.run([*command, "--die-in", "update"], capture_output=True, text=True, timeout=120)
    assert first.returncode == -9, first.stdout + first.stderr
    changed = tmp_path / "changed.py"
    changed.write_text(EXAMPLE.read_text(encoding="utf-8").replace('"clip": 0.2', '"clip": 0.3'), encoding="utf-8")
    command[1] = str(changed)
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 1
    assert "the run was trained with {'clip': 0.2}" in refused.stderr
