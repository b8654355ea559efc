"""Every planted bug is caught by the suite's own checks, or is listed with the proof that it is none.

Bugs by machine (`planting.py`): each durability call dropped, done one statement late, or replacing. Bugs by name:
`bugs.py` and `crew_bugs.py`. A survivor fails, and so does an entry of `EQUIVALENT` that is caught or names no site.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.crash import duels, gauntlet, policies, roles
from tests.crash.bugs import BUGS, Bug, written
from tests.crash.crew_bugs import CREW_BUGS
from tests.crash.planting import mutants, planted

_LOCAL = "engines.checkpoints.local:LocalCheckpoints"
_RELEASED = "engines.checkpoints.released:"
_TREE = "engines.checkpoints.tree:Tree"

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
    f"{_LOCAL}.observe:sync:1 late": "both directories are synced before anything is recorded, in either order",
    f"{_LOCAL}.observe:sync_dir:1 dropped": (
        "a power loss that undoes the revocation takes every earlier writer with it, and the name is swept at open"
    ),
    f"{_LOCAL}.resync:sync_file:1 dropped": (
        "the pointer's bytes were synced before the rename that made them latest, and it is written again at open"
    ),
    f"{_LOCAL}.resync:sync_dir:1 dropped": "nothing that is recorded rests on a name in the staging area",
    f"{_LOCAL}.resync:sync_dir:1 late": "both directories are synced before anything is recorded, in either order",
    f"{_LOCAL}.resync:resync:1 dropped": "it does what Tree.resync does, and each call of that is covered below",
    f"{_TREE}.resync:sync:1 dropped": (
        "a sealed save's name was synced before it was recorded, an unsettled one's is synced behind the look at it, "
        "and the pointer is written again at open"
    ),
    f"{_TREE}.resync:resync_one:1 dropped": (
        "it does what Tree.resync_one does, and each call of that is covered below"
    ),
    f"{_LOCAL}.observe:resync_one:1 dropped": "the same",
    f"{_TREE}.resync_one:sync_file:1 dropped": (
        "every file was synced before the manifest was written, the manifest before the publishing rename, and what "
        "joined them later before it was linked"
    ),
    f"{_TREE}.resync_one:sync_dir:1 dropped": (
        "the staged directory was synced before the publishing rename, and where a writer died between linking a "
        "small file and this sync, the effect is still due: it is done again, sync and all"
    ),
    "engines.logs.segments:SegmentAppender.rotate:sync:1 late": (
        "closing the segment before, which is durable already, changes nothing that the header rests on"
    ),
    "journal.driver:Driver.barrier:sync:1 late": (
        "what was appended before the look is read by whoever claims after it, and made durable before it is built on"
    ),
    "journal.leading:Leading.close:barrier:1 late": (
        "the fold cache keeps what the newest barrier covered, whichever that was, and is never authoritative"
    ),
    "journal.restoring:_adopt:barrier:1 late": "what stands behind it looks a word up in a table",
    "journal.opening:open_attempt:resync:1 late": "both are done before the header is written, in either order",
    "journal.opening:open_attempt:resync:2 dropped": (
        "it syncs what LocalCheckpoints.resync lists, and each of these is covered as said above"
    ),
}
"""Mutants that no check can tell from the product, each with its proof."""

TOGETHER: tuple[tuple[str, ...], ...] = (
    (f"{_LOCAL}.observe:sync:1 dropped", f"{_TREE}.resync:sync:1 dropped"),
    (f"{_LOCAL}.stage:fence:1 dropped", "journal.driver:Driver.barrier:fenced:1 dropped"),
)
"""Calls that cover for each other: dropped together they are caught."""

APART = (f"{_LOCAL}.resync:sync_dir:1 dropped", "journal.opening:open_attempt:resync:2 dropped")
"""Without these nothing at an opening covers for all the others, so they are planted in a round of their own."""

BY: dict[str, Callable[[], None]] = {
    f"{_LOCAL}._release:sync_dir:1 dropped": policies.every_crash_of_retention_is_survived,
    f"{_LOCAL}._release:sync_dir:1 late": policies.every_crash_of_retention_is_survived,
    f"{_RELEASED}remove:sync_dir:1 dropped": roles.every_crash_of_a_release_in_directories_is_survived,
    f"{_LOCAL}._join:rename:1 dropped": policies.a_prune_that_fails_is_tried_again,
    f"{_LOCAL}._remove_all:rename:2 dropped": policies.a_prune_that_fails_is_tried_again,
    f"{_LOCAL}._remove_all:rename:2 late": policies.a_prune_that_fails_is_tried_again,
    f"{_LOCAL}._remove_all:rename:3 dropped": policies.a_prune_that_fails_is_tried_again,
    f"{_LOCAL}._remove_all:sync_dir:1 dropped": policies.a_prune_that_fails_is_tried_again,
    f"{_LOCAL}._remove_all:sync_dir:1 late": policies.a_prune_that_fails_is_tried_again,
    f"{_LOCAL}._destroy:unlink:1 dropped": policies.every_crash_of_a_prune_that_a_later_start_finishes_is_survived,
    f"{_LOCAL}._destroy:sync_dir:1 dropped": policies.every_crash_of_a_prune_that_a_later_start_finishes_is_survived,
    f"{_LOCAL}.clear:fence:1 dropped": duels.an_overtaken_sweep_spares_its_successors_notes,
    f"{_LOCAL}.point:fence:1 dropped": duels.two_writers_never_lie,
    f"{_LOCAL}.point:fence:1 late": duels.two_writers_never_lie,
    "engines.logs.segments:SegmentAppender.rotate:sync:1 dropped": gauntlet.every_crash_of_an_ending_is_survived,
}
"""The check that catches a mutant which the first ones do not."""

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


def rounds() -> tuple[tuple[str, ...], ...]:
    """The equivalent ones, in rounds of many: what survives together survives alone. No call is in a round twice."""
    apart = {name.rpartition(" ")[0] for name in APART}
    first = [
        name
        for name in EQUIVALENT
        if name not in APART and name.endswith(" late") is (name.rpartition(" ")[0] in apart)
    ]
    return tuple(first), tuple(name for name in EQUIVALENT if name not in first)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in EQUIVALENT])
def test_a_durability_call_is_missed(name: str) -> None:
    caught = catch(planted(MUTANTS[name]), by=BY.get(name))
    assert caught, f"{name} survives: add the check that catches it, or its proof to EQUIVALENT"


@pytest.mark.slow
@pytest.mark.parametrize("bug", (*BUGS, *CREW_BUGS), ids=str)
def test_a_bug_is_caught(bug: Bug) -> None:
    assert catch(written(bug), by=bug.by), f"{bug} survives: add the check that catches it"


def test_every_proof_is_of_a_call_of_the_product() -> None:
    named = {*EQUIVALENT, *APART, *BY, *(name for names in TOGETHER for name in names)}
    assert named <= MUTANTS.keys(), f"{named - MUTANTS.keys()} names no call of the product"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("names", rounds(), ids=("most", "others"))
def test_equivalent_mutants_are_equivalent(names: tuple[str, ...]) -> None:
    if catch(planted(*(MUTANTS[name] for name in names))) is None:
        return
    alone = {name: catch(planted(MUTANTS[name])) for name in names}
    pytest.fail(f"not equivalent: {[f'{name} is caught by {by}' for name, by in alone.items() if by] or 'together'}")


@pytest.mark.slow
@pytest.mark.parametrize("names", TOGETHER, ids=" and ".join)
def test_calls_that_cover_for_each_other_are_missed_together(names: tuple[str, ...]) -> None:
    assert catch(planted(*(MUTANTS[name] for name in names)))


@pytest.mark.slow
def test_the_product_gets_past_every_quick_check() -> None:
    """Otherwise a bug would be caught by a check that catches everything."""
    for check in gauntlet.CHECKS[: gauntlet.CHECKS.index(gauntlet.every_crash_of_a_save_is_survived)]:
        check()
