"""Every planted bug is caught by the suite's own checks, or is listed with the proof that it is none.

Bugs by machine (`planting.py`): each durability call dropped, done one statement late, or replacing. Bugs by name:
`bugs.py`. A survivor fails, and so does an entry of `EQUIVALENT` that is caught or names no site.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.crash import gauntlet
from tests.crash.bugs import BUGS, Bug, written
from tests.crash.planting import Mutant, mutants, planted

_LOCAL = "engines.checkpoints.local:LocalCheckpoints"

EQUIVALENT: dict[str, str] = {
    "engines.attempts:_mint:sync_dir:1 dropped": (
        "open_attempt begins with make_directories, which syncs every directory on the way to the attempt"
    ),
    f"{_LOCAL}.stage:sync_dir:1 dropped": (
        "nothing rests on a name in the staging area: where a power loss takes it, it takes the writer too, and the "
        "save was neither published nor acknowledged; publishing syncs the staging area itself"
    ),
    f"{_LOCAL}.stage:fence:1 dropped": (
        "the lane looks for a successor again between storing and sealing: a claim before that look is found by it, "
        "a claim after it finds the staging made, and revokes it"
    ),
    f"{_LOCAL}.seal:publish:1 replacing": (
        "rename(2) of a directory refuses a target that is not empty, and what is published never is"
    ),
    f"{_LOCAL}.seal:sync_dir:2 late": "both directories are synced before anything is recorded, in either order",
    f"{_LOCAL}.seal:sync_dir:3 dropped": (
        "what may come back is a second name of the published directory in the staging area, which the sweep leaves "
        "alone; see the bug that sweeps it"
    ),
    f"{_LOCAL}.observe:sync_dir:1 late": "both directories are synced before anything is recorded, in either order",
    f"{_LOCAL}.observe:sync_dir:2 dropped": (
        "a power loss that undoes the revocation takes every earlier writer with it, and the name is swept at open"
    ),
    f"{_LOCAL}.resync:sync_file:1 dropped": (
        "the pointer's bytes were synced before the rename that made them latest, and it is written again at open"
    ),
    f"{_LOCAL}.resync:sync_dir:1 dropped": "nothing that is recorded rests on a name in the staging area",
    f"{_LOCAL}.resync:sync_dir:1 late": "both directories are synced before anything is recorded, in either order",
    f"{_LOCAL}.resync:sync_dir:2 dropped": (
        "a sealed save's name was synced before it was recorded, an unsettled one's is synced behind the look at it, "
        "and the pointer is written again at open"
    ),
    f"{_LOCAL}._resync_published:sync_file:1 dropped": (
        "every file was synced before the manifest was written, and the manifest before the publishing rename"
    ),
    f"{_LOCAL}._resync_published:sync_dir:1 dropped": "the staged directory was synced before the publishing rename",
    "engines.logs.segments:SegmentAppender.rotate:sync:1 late": (
        "closing the segment before, which is durable already, changes nothing that the header rests on"
    ),
    "journal.driver:Driver.barrier:sync:1 late": (
        "what was appended before the look is read by whoever claims after it, and made durable before it is built on"
    ),
    "journal.facade:Journal.close:barrier:1 late": (
        "the fold cache keeps what the newest barrier covered, whichever that was, and is never authoritative"
    ),
    "journal.opening:open_attempt:resync:1 late": "both are done before the header is written, in either order",
    "journal.opening:open_attempt:resync:2 dropped": (
        "it syncs what LocalCheckpoints.resync lists, and each of these is covered as said above"
    ),
}
"""Mutants that no check can tell from the product, each with its proof."""

TOGETHER: tuple[tuple[str, ...], ...] = (
    (f"{_LOCAL}.observe:sync_dir:1 dropped", f"{_LOCAL}.resync:sync_dir:2 dropped"),
    (f"{_LOCAL}.stage:fence:1 dropped", "journal.driver:Driver.barrier:fenced:1 dropped"),
)
"""Calls that cover for each other: dropped together they are caught."""

MUTANTS = {str(mutant): mutant for mutant in mutants()}


def catch(plant: AbstractContextManager[object], *, by: Callable[[], None] | None = None) -> str | None:
    """The check that catches what is planted: this one, where it is said; None where it survives."""
    with plant:
        for check in gauntlet.CHECKS if by is None else (by,):
            try:
                check()
            except Exception:  # noqa: BLE001 - a mutant may fail in any way; what counts is that it fails
                return check.__name__
    return None


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [m for name, m in MUTANTS.items() if name not in EQUIVALENT], ids=str)
def test_a_durability_call_is_missed(mutant: Mutant) -> None:
    assert catch(planted(mutant)), f"{mutant} survives: add the check that catches it, or its proof to EQUIVALENT"


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_is_caught(bug: Bug) -> None:
    assert catch(written(bug), by=bug.by), f"{bug} survives: add the check that catches it"


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUIVALENT)
def test_an_equivalent_mutant_is_one(name: str) -> None:
    assert name in MUTANTS, f"{name} is in EQUIVALENT and names no call of the product"
    assert (caught := catch(planted(MUTANTS[name]))) is None, f"{name} is caught by {caught}: it is not equivalent"


@pytest.mark.slow
@pytest.mark.parametrize("names", TOGETHER, ids=" and ".join)
def test_calls_that_cover_for_each_other_are_missed_together(names: tuple[str, ...]) -> None:
    assert catch(planted(*(MUTANTS[name] for name in names)))


def test_the_product_gets_past_every_quick_check() -> None:
    """Otherwise a bug would be caught by a check that catches everything."""
    for check in gauntlet.CHECKS[:9]:
        check()
