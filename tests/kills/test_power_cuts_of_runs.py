"""Power cuts at random moments of real saves and recoveries: what was acknowledged is on the disk after the reboot.

The training process lives on while its disk dies under it: it ends with one typed error. The file system is a real
one on a loop mount (`tests/disks/power.py`); the mount after a cut recovers it as a reboot would.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.disks.power import FileSystem, mounted, unavailable
from tests.kills.nursery import Nursery
from tests.kills.training import TYPED
from tests.kills.trials import Tally, Trial, live_in_peace, seeded

pytestmark = pytest.mark.kills

DEEP = [pytest.mark.fuzz, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    ("kind", "asynchronous", "cuts"),
    [
        ("ext4", True, 20),
        ("ext4", False, 20),
        pytest.param("ext4", True, 200, marks=DEEP),
        pytest.param("xfs", True, 100, marks=DEEP),
        pytest.param("xfs", False, 100, marks=DEEP),
    ],
)
def test_a_run_continues_to_the_same_bits_after_power_cuts(
    nursery: Nursery,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: FileSystem,
    asynchronous: bool,
    cuts: int,
) -> None:
    if (why := unavailable(kind)) is not None:
        pytest.skip(f"no {kind} can be mounted here: {why}")
    seed, rng = seeded()
    print(f"MILEPOST_KILLS_SEED={seed}")
    peace = live_in_peace(nursery, tmp_path, asynchronous=asynchronous, policies=True)
    tally = Tally()
    with mounted(kind=kind, size_mib=200) as mount:
        while tally.blows < cuts:
            root = mount.root / str(tally.blows)
            trial = Trial(
                nursery=nursery,
                root=root,
                asynchronous=asynchronous,
                peace=peace,
                strike=lambda pid: mount.cut(),
                revive=mount.remount,
                codes=frozenset((TYPED,)),
            )
            trial.run(rng, tally, blows=rng.randint(1, 5))
            shutil.rmtree(root)
    with capsys.disabled():
        print(f"\n  power cuts on {kind}, seed {seed}: {tally} ")
    assert tally.in_saves >= cuts // 6, "too few cuts landed in a save"
    assert tally.in_recoveries >= cuts // 20, "too few cuts landed in a recovery"
