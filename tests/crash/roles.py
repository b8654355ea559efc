"""The checks of several roles that every planted bug has to get past; see `gauntlet.py`.

A policy and a critic in one process, each in a slot of its own, or in two; or each of them on two ranks. They train
by counters of their own, and are saved as one.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from milepost.engines.checkpoints.marker import SUCCESS
from milepost.engines.crew.orders import Capture, Fill, Stage, StoreFiles, StoreShards
from milepost.engines.simulated import Fault, SimulatedDisk, fault_at, fault_on
from milepost.transitions.errors import Corrupt, NotResumable, Unavailable
from tests.crash import histories, marks
from tests.crash.histories import refused
from tests.crash.promised import promises
from tests.crash.promises import keeps, look
from tests.crash.published import Directory, need
from tests.crash.puppets import ROLES_APART, ROLES_OF_RANKS, TWO_ROLES, Cast
from tests.crash.ranks import (
    STAGED,
    dies,
    every_checkpoint_reads_back,
    explorer_of,
    fails,
    loses_a_member,
    once,
    survived,
)
from tests.crash.traces import nothing_goes_back
from tests.crash.world import Form, Run, config

NOW = config(save_async=False)
BESIDE = config()
CASTS: tuple[tuple[Cast, Form], ...] = (
    (TWO_ROLES, "consolidated"),
    (ROLES_APART, "dcp"),
    (ROLES_OF_RANKS, "dcp"),
)


def a_boundary(disk: SimulatedDisk, cast: Cast = TWO_ROLES, form: Form = "consolidated") -> Run:
    """Two roles, of which the policy rests in the first step; saved beside the loop."""
    run = Run(disk, "a", config=config(form=form), cast=cast)
    run.resting = frozenset(("policy",))
    run.train()
    run.resting = frozenset()
    run.train()
    run.save()
    run.finish()
    run.train()
    return run


def boundaries(disk: SimulatedDisk, saves: int = 2, *, cast: Cast = TWO_ROLES, **knobs: Any) -> Run:
    """Boundaries one after the other, while the loop waits."""
    run = Run(disk, "a", config=config(save_async=False, **knobs), cast=cast)
    for _ in range(saves):
        run.train()
        run.save()
    return run


# --- what is saved ------------------------------------------------------------------------------------------


def roles_are_saved_as_one() -> None:
    """Each with all of its state, at its own counter, with what the loop said; and all of that comes back."""
    for cast, form in CASTS:
        disk = SimulatedDisk()
        run = a_boundary(disk, cast, form)
        run.save()
        run.finish()
        steps = {step: one.mark.counters for step, one in _there(run).items() if one.mark is not None}
        need(
            steps == {2: {"critic": 4, "policy": 1}, 3: {"critic": 6, "policy": 2}},
            "INV-15",
            f"the boundaries committed {steps}",
        )
        every_checkpoint_reads_back(disk, cast)
        run.close()
        again = Run(disk, "b", config=config(save_async=False, form=form), cast=cast)
        need(again.values() == run.values(), "restore", f"{again.values()} came back of {run.values()}")
        clocks = again.journal.state.boundary.clocks
        counted = tuple((role, clocks[role].optimizer_step) for role in sorted(clocks))
        need(counted == run.counters, "INV-15", f"the roles go on at {counted}, saved were {run.counters}")
        again.train()
        again.save()
        keeps(look(disk), promises(disk))
        nothing_goes_back(disk)


def a_role_joins_its_save_before_the_next() -> None:
    """INV-04: at each moment there is one open save, of whatever role."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=BESIDE, cast=TWO_ROLES)
    for _ in range(3):
        run.train()
        run.save()
        need(len(run.journal.state.saving.open) == 1, "INV-04", f"open are {run.journal.state.saving.open}")
        run.tick()
    run.finish()
    need(set(_there(run)) == {1, 2, 3}, "INV-04", f"{set(_there(run))} are there")
    nothing_goes_back(disk)
    keeps(look(disk), promises(disk))


def a_boundary_is_of_its_roles() -> None:
    """Other roles, and a trainer without a name, are refused; and a trainer's checkpoint is none of the roles'."""
    disk = SimulatedDisk()
    boundaries(disk, 1).close()
    for cast in (Cast(members=(("critic", "reward"),)), Cast(members=(("policy",),)), None):
        with refused(NotResumable, "INV-15"):
            Run(disk, "b", config=NOW, cast=cast)
    alone = SimulatedDisk()
    run = Run(alone, "a", config=NOW)
    run.train()
    run.save()
    run.close()
    with refused(NotResumable, "INV-15"):
        Run(alone, "b", config=NOW, cast=TWO_ROLES)
    marks.hit("roles of another run refused")
    Run(disk, "c", config=NOW, cast=TWO_ROLES)
    keeps(look(disk), promises(disk))


def a_marker_of_another_boundary_is_refused() -> None:
    """Roles that are not at the counters which their marker commits are no boundary, however whole each one is."""
    for said in ({"counters": {"critic": 2, "policy": 9}}, {"iteration": 2}, {"counters": {"critic": 2}}, None):
        disk = SimulatedDisk()
        run = boundaries(disk, 1)
        run.close()
        path = f"{run.attempt}/checkpoints/iter_000000001/{SUCCESS}"
        there = json.loads(disk.read(path, limit=1 << 20))
        disk.unlink(path)
        if said is not None:
            histories.write(disk, path, json.dumps(there | said).encode())
        with refused(Corrupt, "INV-15"):
            Run(disk, "b", config=NOW, cast=TWO_ROLES)


# --- what goes wrong ----------------------------------------------------------------------------------------


def a_role_that_fails_takes_all_with_it() -> None:
    """Nothing is visible of a boundary without one of its roles; the next attempt is a whole one."""
    for cast, form in CASTS:
        disk = SimulatedDisk()
        run = Run(disk, "a", config=config(save_async=False, form=form), cast=cast)
        run.train()
        run.trainers[-1]["policy"].failing = MemoryError("no room")  # type: ignore[attr-defined]
        need("no room" in fails(run), "INV-15", "the policy's failure was not told")
        disk.hardware.faults = fault_on("create", Fault(error=errno.ENOSPC), path=f"{STAGED}/1.1.1/policy/trainer.pt")
        need("policy/trainer.pt" in fails(run), "INV-15", "the policy's failure was not told")
        disk.hardware.faults = fault_at({})
        need(not _there(run), "INV-15", f"{_there(run)} is visible, and the policy failed")
        run.save()
        newest = run.journal.state.saving.newest
        need(newest is not None and newest.counter == 2, "INV-15", f"the attempt after it is {newest}")
        keeps(look(disk), promises(disk))
        every_checkpoint_reads_back(disk, cast)
    marks.hit("a role that failed, and the boundary after it")


def every_loss_of_a_role_beside_the_loop_is_survived() -> None:
    """A role in a process of its own is killed before an order of each kind, or before one of its operations."""
    for form in ("consolidated", "dcp"):
        for kind in (Capture, Stage, Fill, StoreFiles) + ((StoreShards,) if form == "dcp" else ()):
            disk = SimulatedDisk()
            run = Run(disk, "a", config=config(form=form), cast=ROLES_APART)
            run.crew.meanwhile = dies(run, kind)
            loses_a_member(run, "role policy")
            survived(disk, explorer_of(ROLES_APART, form))
            if kind in (Fill, StoreFiles):
                marks.hit("a role lost beside the loop")
    whole = SimulatedDisk()
    boundaries(whole, cast=ROLES_APART)
    for index, operation in enumerate(whole.trace):
        if operation.process == "a.1" and operation.effect is not None:
            disk = SimulatedDisk()
            run = Run(disk, "a", config=NOW, cast=ROLES_APART)
            run.others[0].kill_at = index
            loses_a_member(run, "role policy")
            survived(disk, explorer_of(ROLES_APART, "consolidated"))


def a_snapshot_that_was_released_is_not_written() -> None:
    """A copy failed and the snapshot was given back: its save finds nothing, which is not a checkpoint of nothing."""
    for cast, index in ((TWO_ROLES, 0), (ROLES_APART, 1)):
        disk = SimulatedDisk()
        run = Run(disk, "a", config=BESIDE, cast=cast)
        run.train()
        run.crew.meanwhile = once(Fill, MemoryError("no room"), index=index)
        need("no room" in fails(run), "INV-01", "the copy that failed was not told")
        with suppress(Unavailable):
            run.finish()
        need(not _there(run), "INV-01", f"{_there(run)} was saved of a snapshot that was gone")
        need(not run.journal.state.saving.open, "INV-04", f"{run.journal.state.saving.open} is open")
        run.train()
        run.save()
        run.finish()
        need(set(_there(run)) == {2}, "INV-15", f"{set(_there(run))} are there")
        every_checkpoint_reads_back(disk, cast)
        keeps(look(disk), promises(disk))
    marks.hit("a snapshot released before it was written")


# --- retention ----------------------------------------------------------------------------------------------


def retention_reaches_into_directories() -> None:
    """The optimizer of every role goes, by file or by directory; and a checkpoint with all of its directories."""
    for cast, form in CASTS:
        disk = SimulatedDisk()
        run = boundaries(disk, 3, cast=cast, form=form, keep_optim=1, keep_model=2)
        there = _there(run)
        need(set(there) == {2, 3}, "INV-08", f"{set(there)} are kept")
        gone = {file.rpartition("optim")[0] for file in there[2].missing}
        need(gone == {"critic/", "policy/"}, "INV-08", f"{there[2].missing} went of a boundary")
        left = [path for path in disk.tree() if "/optim" in path and "iter_000000002" in path]
        need(not left, "INV-08", f"{left} was to be gone")
        nothing_goes_back(disk)
        keeps(look(disk), promises(disk))
        run.close()
        again = Run(disk, "b", config=config(save_async=False, form=form), cast=cast)
        need(again.step == 3, "INV-17", f"resumed from {again.step}")


def every_crash_of_a_release_in_directories_is_survived() -> None:
    """From the publishing of the second boundary on, behind which the first one's optimizers go."""
    for cast, form in CASTS[:2]:
        disk = SimulatedDisk()
        boundaries(disk, cast=cast, form=form, keep_optim=1)
        explorer_of(cast, form).every_crash(disk, start=histories.publishing(disk, 2))


# --- crashes ------------------------------------------------------------------------------------------------


def every_crash_of_a_boundary_is_survived() -> None:
    """From the first of its files on."""
    disk = SimulatedDisk()
    a_boundary(disk)
    explorer_of(TWO_ROLES, "consolidated").every_crash(disk, start=_begun(disk))


def every_crash_of_a_boundary_over_members_is_survived() -> None:
    """Shards of roles, on two ranks each and in processes of their own; around its publishing."""
    for cast, form in CASTS[1:]:
        disk = SimulatedDisk()
        a_boundary(disk, cast, form)
        explorer_of(cast, form).every_crash(disk, start=histories.publishing(disk, 1) - 14)


def every_fault_of_a_boundary_is_survived() -> None:
    """Each operation on its files, its directories and its marker fails once."""
    whole = SimulatedDisk()
    boundaries(whole, 1)
    explorer = explorer_of(TWO_ROLES, "consolidated")
    for index, operation in enumerate(whole.trace):
        if operation.effect is not None and f"{STAGED}/" in operation.path:
            for code in (errno.EIO, errno.ENOSPC):
                disk = SimulatedDisk()
                disk.hardware.faults = fault_at({index: Fault(error=code)})
                with suppress(Unavailable):
                    boundaries(disk, 1)
                survived(disk, explorer)


def _begun(disk: SimulatedDisk) -> int:
    return next(i for i, one in enumerate(disk.trace) if one.path.startswith(f"{STAGED}/"))


def _there(run: Run) -> Mapping[int, Directory]:
    return look(run.disk)[run.attempt].published
