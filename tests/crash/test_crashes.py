"""Every crash of short histories is survived, in recovery too; the same checks that planted bugs have to get past."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from milepost.engines.simulated import Fault, SimulatedDisk, fault_at, fault_on
from milepost.journal import Config
from milepost.transitions.errors import Corrupt, Unavailable
from tests.crash import duels, gauntlet, histories, ranks, roles
from tests.crash.explore import Explorer, recover
from tests.crash.promised import promises
from tests.crash.promises import keeps, look
from tests.crash.world import Run, config
from tests.crash.writers import saves_once

ONE_WRITER = tuple(
    check
    for check in gauntlet.CHECKS
    if check.__module__ not in (duels.__name__, ranks.__name__, roles.__name__)
    and check is not gauntlet.a_power_loss_after_a_kill_is_survived
)
"""The others are in `test_two_writers.py` and `test_crews.py`, and among the slow ones below."""


def opening(disk: SimulatedDisk) -> None:
    """A first start."""
    Run(disk, "a", config=config())


@pytest.mark.parametrize("check", ONE_WRITER, ids=lambda check: check.__name__)
def test_one_writer_keeps_its_promises(check: Callable[[], None]) -> None:
    check()


@pytest.mark.slow
def test_a_power_loss_after_a_kill_is_survived() -> None:
    gauntlet.a_power_loss_after_a_kill_is_survived()


def test_a_first_start_survives_a_crash_and_another_in_its_recovery() -> None:
    disk = SimulatedDisk()
    opening(disk)
    Explorer().every_crash(disk, depth=1)


@pytest.mark.slow
def test_a_first_start_survives_three_crashes_in_a_row() -> None:
    disk = SimulatedDisk()
    opening(disk)
    Explorer(renames=("separate",), losses=("torn",), goes_on=False).every_crash(disk, depth=2)


@pytest.mark.slow
@pytest.mark.parametrize("renames", ["atomic", "separate"])
def test_a_save_survives_a_crash_and_another_in_its_recovery(renames: str) -> None:
    disk = SimulatedDisk()
    histories.one_save(disk)
    begun = next(i for i, operation in enumerate(disk.trace) if operation.verb == "publish")
    explorer = Explorer(renames=(renames,), losses=(), goes_on=False)  # type: ignore[arg-type]
    explorer.every_crash(disk, depth=1, start=begun - 6)


@pytest.mark.slow
@pytest.mark.parametrize("program", [histories.a_day, histories.a_killed_save], ids=lambda program: program.__name__)
def test_a_longer_history_survives_every_crash(program: Callable[[SimulatedDisk], None]) -> None:
    disk = SimulatedDisk()
    program(disk)
    Explorer(renames=("atomic",), losses=(), goes_on=False).every_crash(disk)


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [histories.RELEASES, histories.REMOVES], ids=["a release", "a removal"])
def test_a_prune_survives_a_crash_and_another_in_its_recovery(knobs: Config) -> None:
    disk = SimulatedDisk()
    histories.killed_inside_a_prune(disk, knobs, "unlink")
    Explorer(renames=("separate",), losses=(), goes_on=False).every_crash(disk, depth=1, start=len(disk.trace))


@pytest.mark.slow
def test_a_publication_survives_a_crash_and_another_in_its_recovery() -> None:
    disk = SimulatedDisk()
    run = Run(disk, "a", config=histories.VALIDATES)
    run.train(validate=True)
    begun = max(i for i, one in enumerate(disk.trace) if one.verb == "link") - 4
    Explorer(renames=("separate",), losses=(), goes_on=False).every_crash(disk, depth=1, start=begun)


@pytest.mark.fuzz
@pytest.mark.parametrize(
    "program",
    [
        histories.one_save,
        histories.a_killed_save,
        histories.a_validation_that_dies,
        histories.a_union,
        histories.releases,
        histories.removes,
    ],
    ids=lambda program: program.__name__,
)
def test_every_crash_survives_two_more_in_its_recovery(program: Callable[[SimulatedDisk], None]) -> None:
    disk = SimulatedDisk()
    program(disk)
    Explorer(goes_on=False).every_crash(disk, depth=2)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_start_that_fails_anywhere_says_so_and_loses_nothing(code: int) -> None:
    disk = SimulatedDisk()
    histories.killed_inside_a_save(disk)
    told = promises(disk)
    whole = disk.killed()
    recover(whole.killed(), goes_on=False)
    Run(whole, "b", config=config(save_async=False))
    for index, operation in enumerate(whole.trace):
        if operation.verb == "mark":
            continue
        image = disk.killed()
        image.hardware.faults = fault_at({index: Fault(error=code)})
        with suppress(Unavailable, Corrupt):
            Run(image, "b", config=config(save_async=False))
        image.hardware.faults = fault_at({})
        again = image.killed()
        again.drop_caches()
        keeps(look(again), told)
        keeps(recover(again, goes_on=False).seen, told)


def test_a_lock_that_cannot_be_given_back_is_unavailable_and_loses_nothing() -> None:
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config(save_async=False))
    saves_once(run)
    disk.hardware.faults = fault_on("release", Fault(error=errno.EIO))
    with pytest.raises(Unavailable, match="lock"):
        run.close()
    keeps(look(disk), promises(disk))
    recover(disk.killed())
