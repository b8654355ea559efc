"""Which directory a start belongs to, on both disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.engines.attempts import attempts, make_root, resolve
from milepost.engines.disks import Disk
from milepost.engines.disks.local import LocalDisk
from milepost.engines.simulated import Fault, SimulatedDisk, fault_on
from milepost.transitions.errors import Unavailable
from tests.journal.runs import StillAmbient

HOME = "project/group/name"
NOW = "20260102030405"


@pytest.fixture(params=["local", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return LocalDisk(tmp_path) if request.param == "local" else SimulatedDisk()


def adopted(disk: Disk, *, resume: str = "auto", run_ts: str = "") -> tuple[str, bool]:
    attempt = resolve(disk, HOME, resume=resume, run_ts=run_ts, ambient=StillAmbient())
    return attempt.path, attempt.minted


@pytest.mark.parametrize("resume", ["auto", "off", "/elsewhere/iter_000000001"])
def test_the_first_start_mints_the_attempt_of_its_second(disk: Disk, resume: str) -> None:
    assert adopted(disk, resume=resume) == (f"{HOME}/{NOW}", True)
    stat = disk.stat(f"{HOME}/{NOW}")
    assert stat is not None and stat.kind == "dir"


def test_auto_and_a_path_elsewhere_adopt_the_newest(disk: Disk) -> None:
    adopted(disk)
    newest, _ = adopted(disk, resume="off")
    assert adopted(disk) == (newest, False)
    assert adopted(disk, resume="/elsewhere/iter_000000001") == (newest, False)


def test_a_path_into_an_older_attempt_adopts_that_one(disk: Disk) -> None:
    oldest, _ = adopted(disk)
    adopted(disk, resume="off")
    inside = f"/root/{oldest}/checkpoints/iter_000000001"
    assert adopted(disk, resume=inside) == (oldest, False)


def test_two_attempts_of_one_second_have_two_names(disk: Disk) -> None:
    first, _ = adopted(disk, resume="off")
    second, minted = adopted(disk, resume="off")
    assert minted and second > first
    assert attempts(disk, HOME) == (NOW, "20260102030406")


def test_a_pinned_attempt_is_made_or_found(disk: Disk) -> None:
    assert adopted(disk, run_ts="20250101000000") == (f"{HOME}/20250101000000", True)
    assert adopted(disk, run_ts="20250101000000") == (f"{HOME}/20250101000000", False)


def test_a_run_from_before_attempts_keeps_its_flat_layout_until_a_fresh_start(disk: Disk) -> None:
    adopted(disk)
    disk.mkdir(f"{HOME}/checkpoints")
    attempt = resolve(disk, HOME, resume="auto", run_ts="", ambient=StillAmbient())
    assert (attempt.path, attempt.run_ts, attempt.minted) == (HOME, "", False)
    assert adopted(disk, resume="off")[1]


def test_names_that_are_no_timestamp_are_no_attempts(disk: Disk) -> None:
    adopted(disk)
    for name in ("notes", "2026", "20260102030405x"):
        disk.mkdir(f"{HOME}/{name}")
    assert attempts(disk, HOME) == (NOW,)


def test_everything_above_an_attempt_survives_the_power(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    path, _ = adopted(disk)
    for image in disk.crash_images():
        assert image.stat(path) is not None


def test_a_disk_that_refuses_is_one_clear_error() -> None:
    disk = SimulatedDisk()
    disk.hardware.faults = fault_on("mkdir", Fault(error=30), nth=2)
    with pytest.raises(Unavailable, match=r"project/group/name cannot be used.*output_root"):
        adopted(disk)


def test_the_folder_of_all_runs_is_made_with_everything_above_it(tmp_path: Path) -> None:
    root = make_root(str(tmp_path / "a" / "b"))
    assert root == str(tmp_path / "a" / "b") and Path(root).is_dir()
    assert make_root(root) == root
