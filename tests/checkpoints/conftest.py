"""The two disks behind one fixture: whatever is tested with `place` holds on both."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.engines.disks.local import LocalDisk
from milepost.engines.simulated import SimulatedDisk
from tests.checkpoints.places import Place, place_on


@pytest.fixture(params=["local", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return place_on(SimulatedDisk() if request.param == "simulated" else LocalDisk(tmp_path))
