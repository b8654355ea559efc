"""Ranks and roles: every crash, every fault and every loss of a member is survived, by all of them or as none.

The checks are those that planted bugs have to get past, too.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from milepost.engines.simulated import Fault, SimulatedDisk, fault_at
from milepost.transitions.errors import Corrupt, Unavailable
from tests.crash import gauntlet, histories, ranks, roles
from tests.crash.explore import Explorer, recover
from tests.crash.promised import promises
from tests.crash.promises import keeps, look
from tests.crash.puppets import ROLES_APART, ROLES_OF_RANKS, TWO_RANKS, TWO_ROLES, Cast
from tests.crash.world import Form, Run, config

CHECKS = tuple(check for check in gauntlet.CHECKS if check.__module__ in (ranks.__name__, roles.__name__))
SLOW = (
    ranks.every_crash_of_a_save_of_ranks_is_survived,
    ranks.every_fault_of_another_rank_is_survived,
    roles.every_crash_of_a_boundary_over_members_is_survived,
    roles.every_crash_of_a_release_in_directories_is_survived,
    roles.every_fault_of_a_boundary_is_survived,
    roles.every_loss_of_a_role_beside_the_loop_is_survived,
)


@pytest.mark.parametrize("check", [check for check in CHECKS if check not in SLOW], ids=lambda check: check.__name__)
def test_a_crew_keeps_its_promises(check: Callable[[], None]) -> None:
    check()


@pytest.mark.slow
@pytest.mark.parametrize("check", SLOW, ids=lambda check: check.__name__)
def test_a_crew_keeps_its_promises_wherever_it_is_interrupted(check: Callable[[], None]) -> None:
    check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cast", "form"),
    [(TWO_RANKS, "dcp"), (TWO_ROLES, "consolidated"), (ROLES_APART, "consolidated")],
    ids=["ranks", "roles", "roles apart"],
)
def test_a_crew_survives_a_kill_and_a_power_loss_in_its_recovery(cast: Cast, form: Form) -> None:
    disk = SimulatedDisk()
    (roles.a_boundary if cast.roles else ranks.a_save)(disk, cast, form)
    explorer = ranks.explorer_of(cast, form)
    explorer.every_kill(disk, start=histories.publishing(disk, 1) - 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cast", "form"), [(TWO_RANKS, "dcp"), (ROLES_APART, "consolidated")], ids=["ranks", "roles"]
)
def test_a_start_of_a_crew_that_fails_anywhere_says_so_and_loses_nothing(cast: Cast, form: Form) -> None:
    """On whichever member's view of the disk."""
    knobs = config(save_async=False, form=form)
    disk = SimulatedDisk()
    run = Run(disk, "a", config=knobs, cast=cast)
    run.train()
    run.save()
    run.process.kill()
    told = promises(disk)
    whole = disk.killed()
    Run(whole, "b", config=knobs, cast=cast)
    for index, operation in enumerate(whole.trace):
        if operation.verb == "mark" or "/journal/" in operation.path:
            continue
        image = disk.killed()
        image.hardware.faults = fault_at({index: Fault(error=errno.EIO)})
        with suppress(Unavailable, Corrupt):
            Run(image, "b", config=knobs, cast=cast)
        image.hardware.faults = fault_at({})
        again = image.killed()
        again.drop_caches()
        keeps(look(again), told)
        keeps(recover(again, goes_on=False, cast=cast, form=form).seen, told)


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("cast", "form"),
    [
        (TWO_RANKS, "dcp"),
        (TWO_ROLES, "consolidated"),
        (TWO_ROLES, "dcp"),
        (ROLES_APART, "dcp"),
        (ROLES_OF_RANKS, "dcp"),
        (ROLES_OF_RANKS, "consolidated"),
    ],
    ids=str,
)
def test_every_crash_of_a_crew_survives_one_more_in_its_recovery(cast: Cast, form: Form) -> None:
    disk = SimulatedDisk()
    roles.boundaries(disk, cast=cast, form=form, keep_optim=1)
    Explorer(cast=cast, form=form).every_crash(disk, depth=1)
