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
from tests.crash import marks
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
from tests.crash.promises import keeps, look, need
from tests.crash.world import HOME, Covered, Ended, Opened, Run, Saved, config, promises
from tests.crash.writers import Point, Program, Stage, Writer, idles, judge, saves_once, saves_twice, stage

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


# --- checks: two writers ------------------------------------------------------------------------------------


def two_writers_never_lie() -> None:
    """The older one is paused before each of its operations while the newer one takes over, and saves or does not."""
    explorer = Explorer(renames=("separate",), goes_on=False)
    for program in (idles, saves_once):
        number: int | None = 0
        while number is not None:
            number = _older_paused(number, program, explorer)


def _older_paused(number: int, program: Program, explorer: Explorer) -> int | None:
    """Play it with the first pause from `number` on; where the next one may be, None at the end."""
    with stage() as both:
        older = both.enter("a", saves_twice)
        if not older.go(lambda point: point.number >= number and point.shared and _is_due(point, program)):
            return None
        reached = cast(Point, older.at).number
        newer = both.enter("b", program)
        newer.go()
        older.go()
        settle(both, newest=newer, explorer=explorer)
    return reached + 1


def _is_due(point: Point, program: Program) -> bool:
    return program is idles or point.verb in ("mkdir", "names", "create", "publish", "rename")


def a_newcomer_is_never_deceived() -> None:
    """The newer one is paused before each operation from its claim on, while the older one goes on with its save."""
    explorer = Explorer(renames=("separate",), goes_on=False)
    for verb in ("mkdir", "publish", "rename"):
        number: int | None = 0
        while number is not None:
            number = _newer_paused(verb, number, explorer)


def _newer_paused(verb: str, number: int, explorer: Explorer) -> int | None:
    """The same for the newer one, from its claim on."""
    with stage() as both:
        older = both.enter("a", saves_twice)
        older.go(lambda point: point.verb == verb and _published(both) and "/checkpoints/" in point.path)
        newer = both.enter("b", idles)
        if not newer.go(
            lambda point: point.number >= number and (point.shared if number else point.verb == "create")
        ):
            return None
        reached = cast(Point, newer.at).number
        older.go()
        newer.go()
        settle(both, newest=newer, explorer=explorer)
    return reached + 1


def _published(setting: Stage) -> bool:
    """Whether the first save is through."""
    return any(isinstance(promise, Saved) for promise in promises(setting.disk))


def an_overtaken_sweep_spares_its_successor() -> None:
    """The older one is about to sweep while the newer one has a save in its staging."""
    with stage() as both:
        older = both.enter("a", idles)
        older.go(lambda point: point.verb == "names" and point.name == ".staging")
        newer = both.enter("b", saves_once)
        newer.go(lambda point: point.verb == "publish")
        older.go()
        newer.go()
        settle(both, newest=newer)


def what_is_found_published_is_made_durable_first() -> None:
    """The older one publishes while the newer one is about to look, and never gets to sync what it did."""
    with stage() as both:
        older = both.enter("a", saves_twice)
        older.go(lambda point: point.verb == "publish" and _published(both))
        newer = both.enter("b", idles)
        newer.go(lambda point: point.verb == "rename")
        older.go(lambda point: point.verb == "sync_dir")
        begun = len(both.disk.trace)
        newer.go()
        judge(both, newest=newer)
        Explorer(renames=("separate",), goes_on=False).every_crash(both.disk, start=begun)


def what_is_read_is_made_durable_afterwards() -> None:
    """The older one appends while the newer one is about to read, and never gets to sync the line."""
    with stage() as both:
        older = both.enter("a", saves_twice)
        older.go(lambda point: point.verb == "write" and point.path.endswith(".jsonl") and _published(both))
        newer = both.enter("b", idles)
        newer.go(lambda point: point.verb == "open" and point.path.endswith(".jsonl"))
        older.go(lambda point: point.verb == "sync")
        newer.go()
        settle(both, newest=newer)


def two_first_starts_agree() -> None:
    """Both make the directories that neither found."""
    with stage() as both:
        older, newer = both.enter("a", idles), both.enter("b", idles)
        for writer in (older, newer):
            writer.go(lambda point: point.verb == "mkdir" and point.name == "checkpoints")
        older.go()
        newer.go()
        settle(both, newest=newer)


def two_sweeps_of_one_debris_agree() -> None:
    """An overtaken sweep and its successor's remove the same directory, each paused before each operation."""
    for pausing, going in (("b", "c"), ("c", "b")):
        number = 0
        while _sweeping(pausing, going, number):
            number += 1


def _sweeping(pausing: str, going: str, number: int) -> bool:
    disk = SimulatedDisk()
    first = Run(disk, "a", config=config())
    first.train()
    first.save()
    first.tick()
    first.tick()
    first.process.kill()
    with stage(disk) as both:
        writers = {name: both.enter(name, idles) for name in ("b", "c")}
        for writer in writers.values():
            writer.go(lambda point: point.verb == "names" and point.name == ".staging")
        begun = len(disk.trace)
        if not writers[pausing].go(lambda point: len(disk.trace) >= begun + number):
            return False
        writers[going].go(lambda point: any(o.verb == "unlink" and o.process == going for o in disk.trace[begun:]))
        writers[pausing].go()
        need(
            pausing == "b" or not any("/.staging/" in path for path in disk.tree()),
            "INV-14",
            "debris is left, and was reported gone",
        )
        writers[going].go()
        settle(both, newest=writers["c"])
    return True


def settle(setting: Stage, *, newest: Writer, explorer: Explorer | None = None) -> None:
    """Judge the play, and once more after a power loss that takes all it can. Many plays share an explorer."""
    judge(setting, newest=newest)
    explorer = explorer if explorer is not None else Explorer(renames=("separate",), goes_on=False)
    explorer.poorest(setting.disk)


CHECKS: tuple[Callable[[], None], ...] = (
    a_clean_run_is_promised_everything,
    nothing_is_saved_inside_a_step,
    a_live_run_is_busy,
    damage_is_told_from_a_crash,
    a_stranger_is_left_alone,
    a_cached_pointer_is_not_believed,
    what_a_failed_sync_lost_is_not_built_on,
    doing_it_twice_is_doing_it_once,
    an_overtaken_sweep_spares_its_successor,
    two_sweeps_of_one_debris_agree,
    what_is_found_published_is_made_durable_first,
    what_is_read_is_made_durable_afterwards,
    two_first_starts_agree,
    every_crash_of_a_save_is_survived,
    a_power_loss_after_a_kill_is_survived,
    every_crash_of_an_ending_is_survived,
    every_fault_is_survived,
    two_writers_never_lie,
    a_newcomer_is_never_deceived,
)
