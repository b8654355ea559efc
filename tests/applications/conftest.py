"""Both disks behind one fixture: what is tested with `bench` holds on each of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import frozen

from milepost.engines.disks import Disk
from milepost.engines.disks.local import LocalDisk
from milepost.engines.simulated import SimulatedDisk
from tests.applications.crashing import saved


@frozen(kw_only=True)
class Bench:
    """A disk with the files of `crashing.saved` on it, and a way to put a symlink there."""

    disk: Disk
    plant_symlink: Callable[[str], None]


@pytest.fixture(params=["local", "simulated"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    if request.param == "simulated":
        simulated = SimulatedDisk()
        saved(simulated)
        return Bench(disk=simulated, plant_symlink=simulated.plant_symlink)
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "elsewhere").write_bytes(b"first shard")
    local = LocalDisk(root)
    saved(local)
    return Bench(disk=local, plant_symlink=lambda path: os.symlink(tmp_path / "elsewhere", root / path))
