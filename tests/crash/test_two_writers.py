"""Two writers without locks: every single pause, and the six schedules that a model checker found.

Each schedule failed an earlier wording of the order of operations (`spec/durability.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from milepost.engines.simulated import SimulatedDisk
from milepost.transitions.errors import Fenced
from tests.crash import duels
from tests.crash.duels import settle
from tests.crash.explore import Explorer, recover
from tests.crash.promised import Saved, promises
from tests.crash.promises import keeps, look
from tests.crash.world import HOME, Run, config
from tests.crash.writers import Point, Program, Stage, When, idles, saves_once, saves_twice, stage


def second(verb: str, setting: Stage) -> When:
    """The first operation of this verb on the checkpoints once the first save is acknowledged."""

    def when(point: Point) -> bool:
        saved = any(isinstance(promise, Saved) for promise in promises(setting.disk))
        return point.verb == verb and saved and "/checkpoints/" in point.path

    return when


def test_an_overtaken_sweep_spares_its_successor() -> None:
    """Schedule 4: the older writer sweeps while the newer one has a save in its staging."""
    duels.an_overtaken_sweep_spares_its_successor()


def test_two_sweeps_of_one_debris_agree() -> None:
    duels.two_sweeps_of_one_debris_agree()


def test_what_is_found_published_is_made_durable_first() -> None:
    """Schedule 2 the other way round: the older one never gets to its sync."""
    duels.what_is_found_published_is_made_durable_first()


@pytest.mark.parametrize("program", [idles, saves_once])
def test_a_writer_that_sleeps_before_its_staging_publishes_nothing(program: Program) -> None:
    """Schedule 1: paused before mkdir while the newer one claims, looks and abandons the save."""
    with stage() as both:
        older = both.enter("a", saves_twice)
        assert older.go(second("mkdir", both))
        newer = both.enter("b", program)
        newer.go()
        older.go()
        assert isinstance(older.failure, Fenced)
        published = look(both.disk)[f"{HOME}/20261129160904"].published
        assert len(published) == (1 if program is idles else 2)
        settle(both, newest=newer)


def test_what_the_older_published_and_did_not_sync_is_sealed_by_the_newer_and_stays() -> None:
    """Schedule 2: paused between publish and the sync of its directory while the newer one seals."""
    with stage() as both:
        older = both.enter("a", saves_twice)
        assert older.go(second("publish", both))
        assert older.go(lambda point: point.verb == "sync_dir")
        newer = both.enter("b", idles)
        newer.go()
        assert newer.failure is None
        assert set(look(both.disk)[f"{HOME}/20261129160904"].published) == {1, 2}
        Explorer(renames=("separate",), goes_on=False).some_crashes(both.disk, [len(both.disk.trace)])
        older.go()
        settle(both, newest=newer)


def test_what_is_read_is_made_durable_afterwards() -> None:
    """Schedule 3, where the older one never gets to its sync."""
    duels.what_is_read_is_made_durable_afterwards()


def test_two_first_starts_agree() -> None:
    duels.two_first_starts_agree()


@pytest.mark.parametrize("pause", ["open", "read_into", "sync_file"])
def test_what_is_appended_while_the_newer_reads_is_durable_or_not_acknowledged(pause: str) -> None:
    """Schedule 3: an append between the newer one's read of a segment and its sync of it."""
    with stage() as both:
        older = both.enter("a", saves_twice)
        assert older.go(second("publish", both))
        newer = both.enter("b", idles)
        assert newer.go(lambda point: point.verb == pause and point.name == "00000001.jsonl")
        older.go()
        newer.go()
        settle(both, newest=newer)


@pytest.mark.parametrize("pause", ["create", "rename"])
def test_an_overtaken_pointer_never_moves_back(pause: str) -> None:
    """Schedule 5: the older one's rename of the pointer comes after the newer one's."""
    with stage() as both:
        older = both.enter("a", saves_once)
        assert older.go(lambda point: point.verb == pause and point.name.startswith("latest_checkpoint.txt"))
        newer = both.enter("b", saves_twice)
        newer.go()
        older.go()
        assert older.failure is not None
        settle(both, newest=newer)
        assert look(both.disk)[f"{HOME}/20261129160904"].latest == 3


def test_an_overtaken_opener_is_fenced_and_does_not_cry_damage() -> None:
    """Its own part of the log knows nothing of the checkpoints that its successor publishes meanwhile."""
    with stage() as both:
        older = both.enter("a", idles)
        assert older.go(lambda point: point.verb == "names" and point.name == "checkpoints")
        newer = both.enter("b", saves_once)
        newer.go()
        older.go()
        assert isinstance(older.failure, Fenced)
        settle(both, newest=newer)


def test_a_pointer_that_moves_while_its_temporary_is_being_removed_stops_nobody() -> None:
    with stage() as both:
        older = both.enter("a", saves_once)
        assert older.go(lambda point: point.verb == "rename")
        newer = both.enter("b", idles)
        assert newer.go(lambda point: point.verb == "unlink" and point.name == "latest_checkpoint.txt.1.tmp")
        older.go()
        newer.go()
        settle(both, newest=newer)


def test_of_two_unsynced_lines_the_second_may_survive_alone() -> None:
    """Schedule 6: the log is torn there, not corrupt."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config())
    run.train()
    told = promises(disk)
    segment = f"{run.attempt}/journal/00000001.jsonl"
    alone = 0
    for image in disk.crash_images():
        lines = cast(bytes, image.tree()[segment]).splitlines()
        if lines[-1].startswith(b"\0") and b'"update-applied"' in lines[-1]:
            keeps(look(image), told)
            keeps(recover(image).seen, told)
            alone += 1
    assert alone, "no image has the second line without the first"


def test_an_overtaken_sweep_spares_its_successors_notes() -> None:
    duels.an_overtaken_sweep_spares_its_successors_notes()


@pytest.mark.parametrize(
    "check",
    [
        duels.a_writer_that_sleeps_in_a_validation_is_overtaken,
        pytest.param(duels.a_writer_that_sleeps_in_a_prune_is_overtaken, marks=pytest.mark.slow),
        duels.a_writer_that_sleeps_over_an_artifact_is_overtaken,
        pytest.param(duels.a_newcomer_is_not_deceived_by_a_prune, marks=pytest.mark.slow),
    ],
    ids=lambda check: check.__name__,
)
def test_two_writers_of_what_is_pending_pruned_or_partial(check: Callable[[], None]) -> None:
    check()


@pytest.mark.slow
def test_a_newcomer_is_never_deceived() -> None:
    duels.a_newcomer_is_never_deceived()


@pytest.mark.slow
def test_a_crew_that_sleeps_is_overtaken() -> None:
    duels.a_crew_that_sleeps_is_overtaken()


@pytest.mark.slow
def test_two_writers_never_lie() -> None:
    duels.two_writers_never_lie()


@pytest.mark.fuzz
@pytest.mark.parametrize("number", range(170))
def test_both_writers_may_be_paused_anywhere(number: int) -> None:
    """The older one pauses at one operation, the newer at another; then the older goes on first."""
    for pause in range(0, 170, 3):
        with stage() as both:
            older = both.enter("a", saves_twice)
            older.go(lambda point: point.number == number)
            newer = both.enter("b", saves_once)
            newer.go(lambda point, pause=pause: point.number == pause)  # type: ignore[misc]
            older.go()
            newer.go()
            settle(both, newest=newer)
