"""The two disks behind one fixture: whatever is tested with `bench` holds for both."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.engines.disks import Disk
from milepost.engines.disks.local import LocalDisk
from milepost.engines.simulated import SimulatedDisk
from tests.disks.bench import Bench


@pytest.fixture(params=["local", "simulated"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    if request.param == "simulated":
        simulated = SimulatedDisk()
        return Bench(disk=simulated, other=simulated.process("other"), plant_symlink=simulated.plant_symlink)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "inside").touch()
    root = tmp_path / "root"
    root.mkdir()

    def plant_symlink(path: str) -> None:
        (root / path).symlink_to(tmp_path / "elsewhere")

    return Bench(disk=LocalDisk(root), other=LocalDisk(root), plant_symlink=plant_symlink)


@pytest.fixture
def disk(bench: Bench) -> Disk:
    return bench.disk
