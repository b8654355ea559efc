"""SIGKILL at random moments of real saves and of recoveries, on a real disk: nothing acknowledged is lost.

A seed decides the moments, as far as a clock can; `MILEPOST_KILLS_SEED` sets it.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.kills.nursery import Nursery, kill
from tests.kills.trials import Tally, Trial, live_in_peace, seeded

pytestmark = pytest.mark.kills

KILLS = (50, pytest.param(400, marks=[pytest.mark.fuzz, pytest.mark.timeout(3600)]))


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize("asynchronous", [True, False], ids=["asynchronous", "synchronous"])
def test_a_killed_run_continues_to_the_same_bits(
    nursery: Nursery, tmp_path: Path, capsys: pytest.CaptureFixture[str], asynchronous: bool, kills: int
) -> None:
    seed, rng = seeded()
    print(f"MILEPOST_KILLS_SEED={seed}")
    peace = live_in_peace(nursery, tmp_path / "peace", asynchronous=asynchronous, policies=True)
    tally = Tally()
    while tally.blows < kills:
        trial = Trial(
            nursery=nursery,
            root=tmp_path / f"after {tally.blows}",
            asynchronous=asynchronous,
            peace=peace,
            strike=kill,
            revive=lambda: None,
            codes=frozenset((-signal.SIGKILL,)),
        )
        trial.run(rng, tally, blows=rng.randint(1, 5))
    with capsys.disabled():
        print(f"\n  SIGKILL, seed {seed}: {tally} ")
    assert tally.in_saves >= kills // 6, "too few kills landed in a save"
    assert tally.in_recoveries >= kills // 20, "too few kills landed in a recovery"
