"""The example of a run with a held-out set: it is killed in every pending state, and the start after it goes on."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "validated_run.py"

PENDING = "start: exact at step 20, its evaluation is pending"
EVALUATED = "step  20  held out: "
COMPLETED = "published checkpoint iter_000000020: validated"


def drill(cwd: Path) -> str:
    """What the drill prints, run from `cwd` and with its runs below it."""
    command = (sys.executable, str(EXAMPLE), "--drill", "--output-root", "runs")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def by_start(told: str) -> Mapping[str, str]:
    """What each start printed, by where it was killed: empty for the run in peace, `last` for the last one."""
    whole, *starts = re.split(r"^--- (?:killed in: |and let go on)", told, flags=re.MULTILINE)
    named = (start.partition("\n") for start in starts)
    return {"": whole} | {name or "last": said for name, _, said in named}


def kept(root: Path) -> Mapping[int, bool]:
    """The steps of the checkpoints that are there, and whether each has its optimizer."""
    found = root.glob("milepost/default/spirals/*/checkpoints/iter_*")
    return {int(path.name.removeprefix("iter_")): (path / "optim.pt").exists() for path in sorted(found)}


@pytest.mark.kills
@pytest.mark.slow
def test_each_pending_state_is_found_by_the_start_after_the_kill_and_nothing_differs(tmp_path: Path) -> None:
    told = drill(tmp_path)
    starts = by_start(told)
    assert list(starts) == ["", "publishing", "evaluation", "marking", "announcing", "last"]

    assert "start: fresh at step 0\n" in starts["publishing"]
    assert EVALUATED not in starts["publishing"]
    # The save that died was no checkpoint yet: the one before it is what there is.
    assert "start: exact at step 15\n" in starts["evaluation"]
    assert EVALUATED not in starts["evaluation"]
    # Published and not evaluated.
    assert PENDING in starts["marking"] and EVALUATED in starts["marking"]
    # Evaluated and not published: the opening goes on with it, dies in it, and the next one ends it.
    assert starts["announcing"] == ""
    assert COMPLETED in starts["last"] and "start: exact at step 20\n" in starts["last"]
    assert EVALUATED not in starts["last"] and PENDING not in starts["last"]

    assert told.splitlines()[-1] == "the same weights to the last bit"
    assert kept(tmp_path / "runs" / "whole") == {45: False, 60: False, 75: True, 80: True}
    # What the last start resumed from stays as it is.
    assert kept(tmp_path / "runs" / "killed") == {20: True, 45: False, 60: False, 75: True, 80: True}
