"""The example on several ranks: each death is told by the survivor, and the starts after them change nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "fsdp2_run.py"


def drill(cwd: Path) -> str:
    """What the drill prints, run from `cwd` and with its runs below it."""
    command = (sys.executable, str(EXAMPLE), "--drill", "--output-root", "runs")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.kills
@pytest.mark.slow
def test_the_survivor_names_each_lost_rank_and_nothing_differs_in_the_end(tmp_path: Path) -> None:
    told = drill(tmp_path)
    whole, writing, step, last = re.split(r"^--- .*$", told, flags=re.M)
    assert whole.startswith("start: fresh at step 0, 2 ranks\nfinal weights sum to ")

    assert "start: fresh at step 0, 2 ranks\n" in writing and "final weights" not in writing
    assert re.search(r"^rank 0 ends: save 30\.1\.3 was given up \(rank-lost: rank 1 is gone: ", writing, re.M)
    assert "start: exact at step 20, 2 ranks\n" in step and "final weights" not in step
    assert re.search(r"^rank 1 ends: rank 0 is gone: ", step, re.M)
    assert "start: exact at step 40, 2 ranks\n" in last
    assert told.splitlines()[-1] == "the same weights to the last bit"

    (checkpoint,) = (tmp_path / "runs" / "killed").glob("milepost/default/waves/*/checkpoints/iter_000000060")
    for part in ("model", "optim"):
        assert {path.name for path in (checkpoint / part).iterdir()} == {".metadata", "__0_0.distcp", "__1_0.distcp"}
