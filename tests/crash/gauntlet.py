"""The checks that every planted bug has to get past, cheapest first; unbent, the product passes them all.

Each is a function that raises where something is wrong. They are also the ordinary tests of this folder.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import cast

from milepost.engines.logs.segments import SegmentLog
from milepost.engines.simulated import Fault, SimulatedDisk, fault_at, fault_on
from milepost.transitions.errors import Busy, Corrupt, Refused, Unavailable
from milepost.transitions.values import SaveId
from tests.crash import duels, marks, policies, ranks, roles
from tests.crash.explore import Explorer, recover
from tests.crash.histories import (
    a_day,
    a_killed_save,
    but_one,
    flipped,
    one_save,
    performing_twice,
    refused,
    small_segments,
    write,
)
from tests.crash.promised import Covered, Ended, Opened, Saved, promises
from tests.crash.promises import keeps, look
from tests.crash.published import need
from tests.crash.world import HOME, Run, config
from tests.crash.writers import saves_once, saves_twice

# --- checks: one writer -------------------------------------------------------------------------------------


def a_clean_run_is_promised_everything() -> None:
    disk = SimulatedDisk()
    with small_segments():
        a_day(disk)
    kept = promises(disk)
    saved = [promise.save.step for promise in kept if isinstance(promise, Saved)]
    need(saved == [2, 3, 4, 5], "promises", f"steps {saved} were acknowledged")
    need([promise.step for promise in kept if isinstance(promise, Opened)] == [0, 3], "promises", "a wrong resume")
    need(sum(isinstance(promise, Covered) for promise in kept) == 1, "promises", "the emergency was not covered")
    need(sum(isinstance(promise, Ended) for promise in kept) == 2, "promises", "an end was not acknowledged")
    keeps(look(disk), kept)
    recover(disk.killed())


def nothing_is_saved_inside_a_step() -> None:
    run = Run(SimulatedDisk(), "a", config=config(save_async=False))
    run.train()
    run.leave_inside_a_step()
    with refused(Refused, "INV-12"):
        run.save()


def a_live_run_is_busy() -> None:
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config(save_async=False))
    with refused(Busy, "INV-10"):
        Run(disk, "b", config=config())
    marks.hit("a live run found busy")
    saves_once(run)
    keeps(look(disk), promises(disk))


def damage_is_told_from_a_crash() -> None:
    """What a later entry or a manifest knows to be durable is never set aside as torn."""
    disk = SimulatedDisk()
    saves_twice(Run(disk, "a", config=config(save_async=False)))
    segment = f"{HOME}/20261129160904/journal/00000001.jsonl"
    lines = cast(bytes, disk.tree()[segment]).splitlines(keepends=True)
    for damaged in (flipped(lines, 3), flipped(lines, -2), lines[:4]):
        image = disk.killed()
        image.unlink(segment)
        image.unlink(segment.replace("00000001.jsonl", "fold-cache"))  # with it, what it covers is not read again
        write(image, segment, b"".join(damaged))
        with refused(Corrupt, "INV-09"):
            Run(image, "b", config=config())


def a_stranger_is_left_alone() -> None:
    """A directory that the journal knows nothing of is never resumed from, never replaced and never removed."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config(save_async=False))
    saves_once(run)
    root = f"{run.attempt}/checkpoints"
    mine = {path: data for path, data in disk.tree().items() if path.startswith(f"{root}/iter_000000001/")}
    stranger = {path.replace("iter_000000001", "iter_000000003"): data for path, data in mine.items()}
    disk.mkdir(f"{root}/iter_000000003")
    for path, data in stranger.items():
        write(disk, path, cast(bytes, data))
    run.process.kill()
    again = Run(disk, "b", config=config(save_async=False))
    need(again.step == 1, "INV-17", f"resumed from step {again.step}, which is none of the run's")
    need({one.name for one in again.journal.resumption.passed_over} == {"iter_000000003"}, "INV-17", "not explained")
    again.train(2)
    with refused(Unavailable, "INV-02"):
        again.save()
    marks.hit("a conflict at publish")
    again.train()
    again.save()
    need(all(disk.tree().get(path) == data for path, data in stranger.items()), "INV-02", "the stranger changed")
    need(again.journal.state.pointer.at == SaveId(4, 2, 2), "INV-03", "the next save went wrong")


def a_cached_pointer_is_not_believed() -> None:
    """A sync of the pointer's rename failed: the next process sees it, and a power loss may still take it."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config(save_async=False))
    disk.hardware.faults = lambda site: (
        Fault(error=errno.EIO) if site.verb == "sync_dir" and disk.trace[-1].verb == "rename" else None
    )
    run.train()
    with refused(Unavailable, "INV-03"):
        run.save()
    with refused(Unavailable, "INV-03"):
        run.train()
    marks.hit("a writer poisoned by EIO")
    disk.hardware.faults = fault_at({})
    again = disk.killed()
    Run(again, "b", config=config(save_async=False))
    Explorer(renames=("separate",)).poorest(again, told=promises(disk))


def what_a_failed_sync_lost_is_not_built_on() -> None:
    """The journal's fsync failed, its writer ended, the next one reads the lost lines from the page cache."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config(save_async=False))
    saves_once(run)
    segment = f"{run.attempt}/journal/00000001.jsonl"
    disk.hardware.faults = fault_on("sync", Fault(error=errno.EIO), path=segment)
    run.train()
    with refused(Unavailable, "INV-09"):
        run.save()
    disk.hardware.faults = fault_at({})
    again = disk.killed()
    Run(again, "b", config=config(save_async=False))
    Explorer(renames=("atomic",)).poorest(again, told=promises(disk))


def a_start_that_fails_gives_the_run_back() -> None:
    """In the same process another start may follow, once the disk works again."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config(save_async=False))
    saves_once(run)
    run.process.kill()
    latest = f"{run.attempt}/checkpoints/latest_checkpoint.txt"
    disk.hardware.faults = fault_on("rename", Fault(error=errno.EIO), path=latest)
    with refused(Unavailable, "INV-14"):
        Run(disk, "b", config=config())
    Run(disk, "b", config=config())


def doing_it_twice_is_doing_it_once() -> None:
    """INV-13, for every effect that can be told to do again."""
    disk = SimulatedDisk()
    with performing_twice():
        a_killed_save(disk)
        recover(disk.killed())
    keeps(look(disk), promises(disk))


def every_crash_of_a_save_is_survived() -> None:
    disk = SimulatedDisk()
    one_save(disk)
    Explorer(renames=("separate",), goes_on=False).every_crash(disk)


def every_crash_of_an_ending_is_survived() -> None:
    """The emergency's save, the order to stop, and the end of the run; the journal rotates on the way."""
    disk = SimulatedDisk()
    with small_segments():
        run = Run(disk, "a", config=config(save_async=False))
        begun = len(disk.trace)
        run.train()
        run.terminate()
        run.close()
        marks.hit("a termination covered")
        if len(SegmentLog(disk, folder=f"{run.attempt}/journal").numbers()) > 1:
            marks.hit("the journal rotated")
        Explorer(renames=("separate",), goes_on=False).every_crash(disk, start=begun)


def a_power_loss_after_a_kill_is_survived() -> None:
    """Dead writers leave what is readable and not durable: recovery may not build on it."""
    disk = SimulatedDisk()
    one_save(disk)
    begun = next(i for i, operation in enumerate(disk.trace) if operation.verb == "free")
    Explorer(renames=("separate",), goes_on=False).every_kill(disk, start=begun)


def every_fault_is_survived() -> None:
    """Each operation fails once, with EIO or for want of space; what was promised until then is kept."""
    whole = SimulatedDisk()
    whole.hardware.short_writes = but_one
    one_save(whole)
    for index, operation in enumerate(whole.trace):
        if operation.effect is not None:
            _with_fault(index, Fault(error=errno.EIO))
        if operation.verb in ("create", "mkdir", "write", "sync", "close"):
            _with_fault(index, Fault(error=errno.ENOSPC))


def _with_fault(index: int, fault: Fault) -> None:
    disk = SimulatedDisk()
    disk.hardware.faults = fault_at({index: fault})
    disk.hardware.short_writes = but_one
    try:
        one_save(disk)
    except Unavailable as failure:
        if "was given up (ENOSPC" in str(failure):
            marks.hit("a save given up for want of space")
    disk.hardware.faults = fault_at({})
    explorer = Explorer(renames=("separate",), goes_on=False)
    explorer.poorest(disk)
    disk.drop_caches()
    explorer.poorest(disk)


CHECKS: tuple[Callable[[], None], ...] = (
    a_clean_run_is_promised_everything,
    nothing_is_saved_inside_a_step,
    a_live_run_is_busy,
    damage_is_told_from_a_crash,
    a_stranger_is_left_alone,
    a_cached_pointer_is_not_believed,
    what_a_failed_sync_lost_is_not_built_on,
    a_start_that_fails_gives_the_run_back,
    doing_it_twice_is_doing_it_once,
    policies.an_artifact_stays_apart,
    policies.an_artifact_keeps_out_who_is_behind_it,
    policies.an_artifact_is_written_once,
    policies.a_stranger_among_the_artifacts_is_left_alone,
    policies.an_artifact_is_a_witness,
    policies.a_stop_is_covered_by_what_it_asks_for,
    policies.a_stop_joins_the_save_before_it,
    policies.a_validation_goes_in_its_order,
    policies.a_pending_evaluation_comes_before_any_step,
    policies.what_is_due_beside_a_validation_is_joined,
    policies.a_stop_with_a_validation_due_is_full_and_pending,
    policies.retention_takes_what_it_may_and_no_more,
    policies.retention_does_not_count_what_is_pending,
    policies.retention_asks_nobody_about_what_is_protected,
    policies.what_cannot_be_deleted_stops_nobody,
    policies.artifacts_are_not_counted,
    policies.what_was_released_is_no_resume_source,
    ranks.a_failure_of_a_rank_is_everyones,
    ranks.a_rank_that_is_gone_before_an_order_is_named,
    ranks.every_rank_gets_back_its_own,
    ranks.every_rank_evaluates,
    ranks.what_ranks_restore_is_compared,
    ranks.what_one_rank_is_told_stops_all,
    roles.a_role_joins_its_save_before_the_next,
    roles.a_boundary_is_of_its_roles,
    roles.a_marker_of_another_boundary_is_refused,
    roles.a_role_that_fails_takes_all_with_it,
    roles.a_snapshot_that_was_released_is_not_written,
    roles.retention_reaches_into_directories,
    roles.roles_are_saved_as_one,
    duels.an_overtaken_sweep_spares_its_successor,
    duels.an_overtaken_sweep_spares_its_successors_notes,
    duels.two_sweeps_of_one_debris_agree,
    duels.what_is_found_published_is_made_durable_first,
    duels.what_is_read_is_made_durable_afterwards,
    duels.two_first_starts_agree,
    every_crash_of_a_save_is_survived,
    policies.every_fault_of_a_validation_is_survived,
    policies.a_prune_that_fails_is_tried_again,
    policies.every_crash_of_a_stop_before_a_validation_is_survived,
    policies.every_crash_of_artifacts_is_survived,
    policies.every_crash_of_a_prune_that_a_later_start_finishes_is_survived,
    policies.every_crash_behind_a_death_in_an_evaluation_is_survived,
    policies.every_crash_of_a_validation_is_survived,
    policies.every_crash_of_retention_is_survived,
    roles.every_crash_of_a_boundary_is_survived,
    ranks.every_crash_of_a_save_of_ranks_is_survived,
    roles.every_crash_of_a_release_in_directories_is_survived,
    roles.every_crash_of_a_boundary_over_members_is_survived,
    ranks.every_loss_of_a_rank_is_survived,
    ranks.every_fault_of_another_rank_is_survived,
    roles.every_loss_of_a_role_beside_the_loop_is_survived,
    roles.every_fault_of_a_boundary_is_survived,
    a_power_loss_after_a_kill_is_survived,
    every_crash_of_an_ending_is_survived,
    every_fault_is_survived,
    duels.a_writer_that_sleeps_in_a_validation_is_overtaken,
    duels.a_writer_that_sleeps_in_a_prune_is_overtaken,
    duels.a_writer_that_sleeps_over_an_artifact_is_overtaken,
    duels.a_newcomer_is_not_deceived_by_a_prune,
    duels.a_crew_that_sleeps_is_overtaken,
    duels.two_writers_never_lie,
    duels.a_newcomer_is_never_deceived,
)
