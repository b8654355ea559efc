"""The benchmarks run to their end, at a size that measures nothing, and say everything that they should."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import FIGURES
from benchmarks.measuring import Bar, judge

ROOT = Path(__file__).parents[2]
ROUNDS = 1


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_measured_judged_and_written_down(name: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "--quick", f"--rounds={ROUNDS}", "--mib=4", "--output=results"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )

    assert run.returncode == 0, run.stderr
    result = json.loads((tmp_path / "results" / f"{name}.json").read_text())
    assert result["figure"] == name
    assert result["rounds"] == ROUNDS
    assert {"date", "cpu", "kernel", "file_system", "python", "torch", "milepost"} <= result["environment"].keys()
    samples = [values for case in result["cases"].values() for values in case.values()]
    assert samples
    assert all(len(values) == ROUNDS and all(map(math.isfinite, values)) for values in samples)
    assert result["bars"]
    for bar in result["bars"]:
        _require_judged(bar, result, run.stdout)
    page = (tmp_path / "results" / "README.md").read_text()
    assert all(f"| {case} |" in page for case in result["cases"])
    assert all(bar["says"] in page for bar in result["bars"])
    assert not list((tmp_path / "outputs").glob("bench-*")), "what was measured with is removed"


def _require_judged(bar: dict[str, Any], result: dict[str, Any], printed: str) -> None:
    """A bar holds a case that was measured against peers that were, and its verdict follows from its value."""
    assert bar["measure"] in result["cases"][bar["case"]]
    assert not bar["against"] or bar["compared_with"] in result["cases"]
    low, high = bar["at_least"] or 0.0, math.inf if bar["at_most"] is None else bar["at_most"]
    assert bar["met"] == (low <= bar["value"] <= high)
    assert f"{'met   ' if bar['met'] else 'MISSED'} {bar['says']}" in printed
    explained = bar["case"] in result["profiles"]
    assert bar["met"] or explained or result["figure"] in ("buckets", "memory", "ranks")  # no profile tells why


SAMPLES = {
    "ours": [{"s": 1.0}, {"s": 3.0}, {"s": 2.0}],
    "slow": [{"s": 2.0}, {"s": 6.0}, {"s": 8.0}],
    "fast": [{"s": 1.0}, {"s": 2.0}, {"s": 4.0}],
}


def test_a_bar_is_the_median_of_the_ratios_within_each_round_to_the_best_peer() -> None:
    judged = judge(Bar(says="", case="ours", measure="s", against=("slow", "fast"), at_most=0.9), SAMPLES)

    assert (judged.against, judged.value, judged.met) == ("fast", 1.0, False)


def test_a_peer_that_is_not_installed_is_left_out() -> None:
    judged = judge(Bar(says="", case="ours", measure="s", against=("slow", "absent"), at_most=0.5), SAMPLES)

    assert (judged.against, judged.value, judged.met) == ("slow", 0.5, True)


@pytest.mark.parametrize(("at_most", "at_least", "met"), [(2.0, None, True), (1.9, None, False), (None, 2.1, False)])
def test_a_bar_without_peers_is_held_against_its_limit(
    at_most: float | None, at_least: float | None, met: bool
) -> None:
    judged = judge(Bar(says="", case="ours", measure="s", at_most=at_most, at_least=at_least), SAMPLES)

    assert (judged.value, judged.met) == (2.0, met)
