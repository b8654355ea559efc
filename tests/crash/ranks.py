"""The checks of ranks that every planted bug has to get past; see `gauntlet.py`.

Two ranks have one trainer's state alike, and streams and cursors of their own. Each writes a part of every tree that
lies in a directory of shards; rank 0 writes the rest.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from attrs import evolve

from milepost.engines.checkpoints.source import CheckpointSource
from milepost.engines.crew.orders import Capture, Evaluate, Order, StoreShards
from milepost.engines.simulated import Fault, SimulatedDisk, fault_at
from milepost.engines.termination import Termination
from milepost.engines.trainers import Restored, RestoreSource
from milepost.transitions.errors import Corrupt, Unavailable
from milepost.transitions.values import FULL, Clocks, SaveId
from tests.crash import marks
from tests.crash.explore import Explorer, recover
from tests.crash.given import RankTrainer
from tests.crash.histories import refused
from tests.crash.promised import Saved, promises
from tests.crash.promises import keeps, look
from tests.crash.published import Violation, need
from tests.crash.puppets import TWO_RANKS, Cast
from tests.crash.traces import nothing_goes_back
from tests.crash.world import HOME, Form, Run, Values, config

STAGED = f"{HOME}/20261129160904/checkpoints/.staging"
SHARDS = config(save_async=False, form="dcp")
BESIDE = config(form="dcp")
BOTH_RANKS = ("__0_0.distcp", "__1_0.distcp", ".metadata")


def a_save(disk: SimulatedDisk, cast: Cast = TWO_RANKS, form: Form = "dcp") -> Run:
    """Shards while the loop waits, the rest beside it; and a step behind that."""
    run = Run(disk, "a", config=config(form=form), cast=cast)
    run.train()
    run.save()
    run.finish()
    run.train()
    return run


def two_saves_of_ranks(disk: SimulatedDisk) -> None:
    """One after the other; the second is what may go wrong."""
    run = Run(disk, "a", config=SHARDS, cast=TWO_RANKS)
    for _ in range(2):
        run.train()
        run.save()


# --- what is saved ------------------------------------------------------------------------------------------


def every_rank_gets_back_its_own() -> None:
    """Streams and cursors by rank, and one and the same model; from a checkpoint and from any that is there."""
    disk = SimulatedDisk()
    run = a_save(disk)
    run.save()
    run.finish()
    seen = look(disk)[run.attempt].published
    for step in (1, 2):
        files = {file.path for file in seen[step].manifest.files}
        expected = {f"{tree}/{name}" for tree in ("model", "optim") for name in BOTH_RANKS}
        need(files == {*expected, "trainer.pt", "data.pt"}, "INV-01", f"a save of two ranks holds {files}")
    every_checkpoint_reads_back(disk, TWO_RANKS)
    run.close()
    again = Run(disk, "b", config=SHARDS, cast=TWO_RANKS)
    need(again.values() == run.values(), "restore", f"{again.values()} came back of {run.values()}")
    own = [own[""].values()[-2:] for own in again.trainers]
    need(own[0] != own[1], "restore", f"both ranks go on with {own[0]}")
    keeps(look(disk), promises(disk))


def every_checkpoint_reads_back(disk: SimulatedDisk, cast: Cast) -> None:
    """What was acknowledged and is there still, read by every rank of every role: it is what was offered."""
    for promise in promises(disk):
        if isinstance(promise, Saved):
            there = look(disk)[promise.attempt].published.get(promise.save.step)
            if there is not None and not there.released:
                found = _read_back(disk, there.path, promise.save, cast)
                need(promise.values[: len(found)] == found, "restore", f"{found} instead of {promise}")


def _read_back(disk: SimulatedDisk, path: str, save: SaveId, cast: Cast) -> Values:
    image = disk.killed()
    manifest = look(image)[path.rpartition("/checkpoints/")[0]].published[save.step].manifest
    found: list[object] = []
    for own in cast.trainers(life=0):
        for role, trainer in sorted(own.items()):
            source = CheckpointSource(
                disk=image,
                path=path,
                manifest=manifest,
                role=role,
                world_size=sum(role in other for other in cast.members),
                rank=trainer.rank,
                verify=True,
            )
            trainer.restore(source)
            found += trainer.values()
    return tuple(found)


def every_rank_evaluates() -> None:
    """An evaluation is that of all ranks; where one of them fails, it is still pending."""
    disk = SimulatedDisk()
    knobs = config(save_async=False, form="dcp", validate_every=1, validation=FULL)
    run = Run(disk, "a", config=knobs, cast=TWO_RANKS)
    run.train(validate=True)
    run.crew.meanwhile = once(Evaluate, MemoryError("no room"))
    with refused(Unavailable, "INV-07"):
        run.train(validate=True)
    need(run.elsewhere == [(1, 1)], "INV-07", f"rank 1 evaluated {run.elsewhere}")
    waits = run.journal.state.validation.pending
    need(waits is not None and waits.step == 2, "INV-07", f"rank 1 failed to evaluate, and pending is {waits}")
    run.process.kill()
    after = Run(disk, "b", config=knobs, cast=TWO_RANKS)
    after.train(validate=True)
    need(after.elsewhere == [(1, 2), (1, 3)], "INV-07", f"rank 1 evaluated {after.elsewhere}")
    keeps(look(disk), promises(disk))
    nothing_goes_back(disk)


def what_one_rank_is_told_stops_all() -> None:
    """Its watch observed the signal, and no other: the step is covered, and everybody stops."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=BESIDE, cast=TWO_RANKS)
    run.train()
    run.crew.told[1] = Termination(reason="signal SIGTERM", detail="told")
    need(run.journal.boundary(run.step).stop, "emergency", "rank 1 was told to stop, and the run goes on")
    covered = run.journal.state.saving.holds(run.step, FULL)
    need(covered is not None, "emergency", "the run stops, and nothing covers its last step")
    recover(disk.killed(), cast=TWO_RANKS, form="dcp")
    marks.hit("a stop that another rank was told of")


def what_ranks_restore_is_compared() -> None:
    """A rank that sees another checkpoint under the same name does not go on with it."""
    disk = SimulatedDisk()
    a_save(disk).close()
    restores = RankTrainer.restore

    def behind(self: RankTrainer, source: RestoreSource, **asked: Any) -> Restored:
        restored = restores(self, source, **asked)
        return evolve(restored, clocks=Clocks()) if source.rank else restored

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RankTrainer, "restore", behind)
        with refused(Corrupt, "INV-15"):
            Run(disk, "b", config=SHARDS, cast=TWO_RANKS)
    Run(disk, "c", config=SHARDS, cast=TWO_RANKS)


# --- what goes wrong ----------------------------------------------------------------------------------------


def a_failure_of_a_rank_is_everyones() -> None:
    """Whatever it was to do: nothing is visible of the save, everybody is told who failed, and the next one works."""
    for kind in (Capture, StoreShards):
        disk = SimulatedDisk()
        run = Run(disk, "a", config=SHARDS, cast=TWO_RANKS)
        run.train()
        run.crew.meanwhile = once(kind, MemoryError("no room"))
        failure = fails(run)
        need("rank 1" in failure and "no room" in failure, "INV-15", f"{kind.__name__} of rank 1 failed: {failure}")
        need([str(one) for one in run.crew.raised] == [failure], "INV-15", f"rank 1 was told {run.crew.raised}")
        need(not look(disk)[run.attempt].published, "INV-01", f"{kind.__name__} of rank 1 failed, and it is there")
        run.save()
        keeps(look(disk), promises(disk))
        every_checkpoint_reads_back(disk, TWO_RANKS)
    marks.hit("a failure of another rank")


def once(kind: type[object], failure: Exception, *, index: int = 1) -> Callable[[int, Order], None]:
    """This member fails at its first order of this kind."""
    left = [failure]

    def meanwhile(member: int, order: Order) -> None:
        if member == index and isinstance(order, kind) and left:
            raise left.pop()

    return meanwhile


def fails(run: Run) -> str:
    """What the run's save fails with; of one member alone that is the error itself."""
    try:
        run.save()
    except (Unavailable, MemoryError) as failure:
        return str(failure)
    raise Violation("INV-15: a save that one of them could not make was acknowledged")


def every_fault_of_another_rank_is_survived() -> None:
    """Each of its operations fails once. Without space the save is given up, and the next one is a save."""
    whole = SimulatedDisk()
    two_saves_of_ranks(whole)
    explorer = explorer_of(TWO_RANKS, "dcp")
    for index in of_another(whole):
        for code in (errno.ENOSPC, errno.EIO):
            disk = SimulatedDisk()
            disk.hardware.faults = fault_at({index: Fault(error=code)})
            run = Run(disk, "a", config=SHARDS, cast=TWO_RANKS)
            for _ in range(3):
                with suppress(Unavailable):  # behind EIO nothing more is recorded
                    run.train()
                    run.save()
            goes_on = run.journal.state.saving.newest
            need((goes_on == SaveId(3, 1, 3)) is (code == errno.ENOSPC), "INV-15", f"{goes_on} behind {code}")
            survived(disk, explorer)
            marks.hit("a disk of another rank that failed")


def every_loss_of_a_rank_is_survived() -> None:
    """Killed at each of its operations: the others give the save up, and what was acknowledged stays."""
    whole = SimulatedDisk()
    two_saves_of_ranks(whole)
    explorer = explorer_of(TWO_RANKS, "dcp")
    for index in of_another(whole):
        disk = SimulatedDisk()
        run = Run(disk, "a", config=SHARDS, cast=TWO_RANKS)
        run.others[0].kill_at = index
        loses_a_member(run, "rank 1")
        survived(disk, explorer)
        marks.hit("a rank lost inside its write")


def a_rank_that_is_gone_before_an_order_is_named() -> None:
    """Whatever it was to do next; beside the loop as well as while that waits."""
    for kind in (Capture, StoreShards):
        disk = SimulatedDisk()
        run = Run(disk, "a", config=BESIDE, cast=TWO_RANKS)
        run.crew.meanwhile = dies(run, kind)
        loses_a_member(run, "rank 1")
        survived(disk, explorer_of(TWO_RANKS, "dcp"))


def dies(run: Run, kind: type[object]) -> Callable[[int, Order], None]:
    """Member 1 is killed before its order of this kind, at the first save behind one that is published."""

    def meanwhile(index: int, order: Order) -> None:
        if index == 1 and isinstance(order, kind) and run.journal.state.saving.newest is not None:
            run.others[0].kill()

    return meanwhile


def loses_a_member(run: Run, name: str) -> None:
    """The run saves until it has lost this member, and ends as a loop does that raised."""
    said = ""
    with suppress(Unavailable), run.journal:
        try:
            for _ in range(3):
                run.train()
                run.save()
                run.finish()
        except Unavailable as failure:
            said = str(failure)
            raise
    need(name in said, "INV-15", f"{name} was lost, and the run said {said!r}")
    state = run.journal.state
    need(not state.saving.open, "INV-04", f"{name} was lost, and {state.saving.open} is open")
    there = set(look(run.disk)[run.attempt].published)
    acknowledged = {promise.save.step for promise in promises(run.disk) if isinstance(promise, Saved)}
    need(there == acknowledged, "INV-15", f"{there} are visible, acknowledged were {acknowledged}")


def of_another(disk: SimulatedDisk) -> Iterator[int]:
    """The operations of rank 1 that do something."""
    return (i for i, one in enumerate(disk.trace) if one.process == "a.1" and one.effect is not None)


def survived(disk: SimulatedDisk, explorer: Explorer) -> None:
    """Whatever a crash takes now: what was promised is there, and the next start goes on from it."""
    disk.hardware.faults = fault_at({})
    nothing_goes_back(disk)
    explorer.poorest(disk)
    disk.drop_caches()
    explorer.poorest(disk)


def explorer_of(cast: Cast, form: Form, *, goes_on: bool = False) -> Explorer:
    """Of unsynced bytes all survive or none: how a log is torn, other histories tell."""
    return Explorer(renames=("separate",), losses=(), goes_on=goes_on, cast=cast, form=form)


# --- crashes ------------------------------------------------------------------------------------------------


def every_crash_of_a_save_of_ranks_is_survived() -> None:
    """From the first shard on."""
    disk = SimulatedDisk()
    a_save(disk)
    begun = next(i for i, one in enumerate(disk.trace) if one.path.startswith(f"{STAGED}/"))
    explorer_of(TWO_RANKS, "dcp").every_crash(disk, start=begun)
