"""The checks of artifacts, validations and retention that every planted bug has to get past; see `gauntlet.py`."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

from milepost.engines.simulated import Fault, Operation, SimulatedDisk, fault_at, fault_on, no_fault
from milepost.journal import Config
from milepost.transitions.errors import Corrupt, MilepostError, NotResumable, Refused, Unavailable
from milepost.transitions.validation import Generation
from milepost.transitions.values import FULL, Component, Plan, SaveId, union
from tests.crash import histories, marks
from tests.crash.explore import Explorer, recover
from tests.crash.histories import RELEASES, REMOVES, STATE, UNITES, VALIDATES, WEIGHTS, refused
from tests.crash.promised import Evaluating, Offered, promises
from tests.crash.promises import Seen, after_a_release_that_was_not_synced, keeps, look
from tests.crash.published import need
from tests.crash.traces import nothing_goes_back
from tests.crash.world import HOME, ROOT, BrokenEvaluation, Run, Values, config

OPTIMIZER = (Component.OPTIMIZER,)

# --- artifacts ----------------------------------------------------------------------------------------------


def an_artifact_stays_apart() -> None:
    """INV-05: nothing points at it, nothing resumes from it, and it keeps out who would come to its step again."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config(save_every=1, plan=WEIGHTS))
    run.train(2)
    run.finish()
    seen = _seen(run)
    need(set(seen.artifacts) == {1, 2} and not seen.published, "INV-05", f"{seen.artifacts} and {seen.published}")
    need(seen.latest is None, "INV-05", f"latest is {seen.latest}")
    run.close()
    for resume in ("auto", f"{ROOT}/{run.attempt}/checkpoint_artifacts/iter_000000002"):
        with refused(NotResumable, "INV-05"):
            Run(disk, "b", config=config(resume=resume))
    recover(disk.killed())
    keeps(look(disk), promises(disk))


def an_artifact_keeps_out_who_is_behind_it() -> None:
    """A checkpoint of an earlier step is there, and by its path as well the start is refused."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config(save_async=False))
    run.train()
    run.save()
    run.close()
    again = Run(disk, "b", config=config(save_async=False, save_every=2, plan=WEIGHTS))
    again.train()
    again.close()
    for resume in ("auto", f"{ROOT}/{run.attempt}/checkpoints/iter_000000001"):
        with refused(NotResumable, "INV-16"):
            Run(disk, "c", config=config(resume=resume))


def an_artifact_is_written_once() -> None:
    """INV-16: the second save of its step is none where it asks for nothing more, and else refused."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config(save_async=False, plan=WEIGHTS, validate_every=1, validation=STATE))
    run.train(validate=True)
    before = len(disk.trace)
    with refused(Refused, "INV-16"):
        run.save()
    need(not _published(disk, before), "INV-16", "the artifact was touched")
    run.train()
    run.save()
    before = len(disk.trace)
    run.save()
    need(not _published(disk, before), "INV-16", "what holds the plan was saved again")
    again = Run(SimulatedDisk(), "a", config=config(save_async=False, plan=WEIGHTS))
    again.train(2)
    again.save()
    with refused(Refused, "INV-16"):
        again.save(1)
    keeps(look(disk), promises(disk))


def _published(disk: SimulatedDisk, since: int) -> list[Operation]:
    return [
        operation for operation in disk.trace[since:] if operation.verb in ("mkdir", "create", "publish", "rename")
    ]


def a_stranger_among_the_artifacts_is_left_alone() -> None:
    """What lies at the place of an artifact, and the journal has no word of, is never replaced."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config(save_async=False, plan=WEIGHTS))
    run.train()
    stranger = f"{run.attempt}/checkpoint_artifacts/iter_000000001"
    disk.mkdir(f"{run.attempt}/checkpoint_artifacts")
    disk.mkdir(stranger)
    histories.write(disk, f"{stranger}/model.pt", b"somebody else's")
    with refused(Unavailable, "INV-02"):
        run.save()
    there = {path for path in disk.tree() if path.startswith(f"{stranger}/")}
    need(there == {f"{stranger}/model.pt"}, "INV-02", f"the stranger changed: {there}")


def an_artifact_is_a_witness() -> None:
    """A journal that ends before what an artifact knew of it has lost its head."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config(save_async=False, plan=WEIGHTS))
    run.train()
    run.save()
    run.process.kill()
    segment = f"{run.attempt}/journal/00000001.jsonl"
    lines = cast(bytes, disk.tree()[segment]).splitlines(keepends=True)
    disk.unlink(segment)
    histories.write(disk, segment, b"".join(lines[:4]))
    with refused(Corrupt, "INV-09"):
        Run(disk, "b", config=config())


def a_stop_is_covered_by_what_it_asks_for() -> None:
    """What is published of the step covers the stop where it holds every component, and only then."""
    _stop(config(save_async=False, save_every=1, plan=WEIGHTS), plan=FULL, beside=WEIGHTS)
    _stop(config(save_async=False, save_every=1, plan=WEIGHTS, emergency="run"), plan=WEIGHTS, beside=())
    marks.hit("an artifact standing in for an emergency")
    _stop(config(save_async=False, save_every=2, plan=STATE, emergency="run"), plan=union(WEIGHTS, STATE), beside=())
    _stop(config(save_async=False, save_every=1, plan=STATE, emergency="run"), plan=FULL, beside=STATE)


def _stop(knobs: Config, *, plan: Plan, beside: Plan) -> None:
    """Train a step, be told to stop: `plan` of it is published, and `beside` as an artifact where that is full."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=knobs)
    run.train()
    run.terminate()
    run.close()
    seen = _seen(run)
    there = [one[1].manifest.plan for one in (seen.published, seen.artifacts) if 1 in one]
    need(
        there == [one for one in (plan, beside) if one], "emergency", f"{there} were saved, due were {plan}, {beside}"
    )
    keeps(look(disk), promises(disk))
    recover(disk.killed())


def a_stop_joins_the_save_before_it() -> None:
    """One that is still being written covers the stop; where it was given up, the emergency is a save of its own."""
    for faults, attempt in ((no_fault, 1), (fault_on("mkdir", Fault(error=errno.ENOSPC), path=_staged("1.1.1")), 2)):
        disk = SimulatedDisk()
        disk.hardware.faults = faults
        run = Run(disk, "a", config=config(save_every=1))
        run.train()
        run.terminate()
        run.close()
        newest = run.journal.state.saving.newest
        need(newest == SaveId(1, 1, attempt), "emergency", f"the newest is {newest}, saved as attempt {attempt}")
        keeps(look(disk), promises(disk))


def _staged(save: str) -> str:
    return f"{HOME}/20261129160904/checkpoints/.staging/{save}"


# --- validations --------------------------------------------------------------------------------------------


def a_validation_goes_in_its_order() -> None:
    """Published, evaluated, announced; and nothing of it is done twice."""
    disk = SimulatedDisk()
    histories.a_validation(disk)
    said = [type(promise).__name__ for promise in promises(disk) if not isinstance(promise, Offered)]
    need(said == ["Opened", *["Saved", "Evaluating", "Announced"] * 2], "INV-07", f"{said} were promised")
    nothing_goes_back(disk)
    keeps(look(disk), promises(disk))
    after = Run(disk.killed(), "b", config=VALIDATES)
    after.train(validate=True)
    need(after.evaluated == [(3, 3)], "INV-07", f"{after.evaluated} were evaluated")


def a_pending_evaluation_comes_before_any_step() -> None:
    """A start that finds one evaluates it with the very tensors of its checkpoint, and is refused without."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=VALIDATES)
    run.meanwhile = _broken
    with suppress(BrokenEvaluation):
        run.train(validate=True)
    marks.hit("a validation that failed")
    need(_seen(run).published[1].generation is Generation.EVALUATION_PENDING, "INV-07", "it does not say so itself")
    values = run.trainer.values()
    run.process.kill()
    after = Run(disk, "b", config=VALIDATES)
    with refused(Refused, "INV-07"):
        after.train()
    need(after.trainer.trained == 1, "INV-07", "a step was trained first")
    after.train(validate=True)
    need(after.evaluated == [(1, 1), (2, 2)], "INV-07", f"{after.evaluated} were evaluated")
    need(values_evaluated(disk) == [values, values, after.trainer.values()], "INV-07", "other tensors were evaluated")
    keeps(look(disk), promises(disk))
    nothing_goes_back(disk)


def values_evaluated(disk: SimulatedDisk) -> list[Values]:
    """What each evaluation of the trace saw."""
    return [promise.values for promise in promises(disk) if isinstance(promise, Evaluating)]


def _broken(_step: int) -> None:
    raise BrokenEvaluation


def what_is_due_beside_a_validation_is_joined() -> None:
    """INV-06: one save of the union; before the evaluation, unless validation alone asked for an artifact."""
    both = union(WEIGHTS, STATE)
    for run, plan, there in (
        (_fails_at(UNITES), both, True),
        (_fails_at(config(save_every=1, plan=WEIGHTS, validate_every=1)), WEIGHTS, True),
        (_fails_at(config(save_async=False, validate_every=1, validation=WEIGHTS)), WEIGHTS, False),
        (
            _fails_at(config(save_async=False, save_every=1, plan=both, validate_every=1, validation=OPTIMIZER)),
            FULL,
            True,
        ),
    ):
        seen = _seen(run)
        saved = [one.manifest.plan for tree in (seen.published, seen.artifacts) for one in tree.values()]
        need(saved == ([plan] if there else []), "INV-06", f"{saved} were saved beside a validation; due was {plan}")
        durable = plan == FULL
        need((seen.state.validation.pending is not None) is durable, "INV-07", f"pending: {seen.state.validation}")
        keeps(look(run.disk), promises(run.disk))


def _fails_at(knobs: Config) -> Run:
    """A run whose first validation failed."""
    run = Run(SimulatedDisk(), "a", config=knobs)
    run.meanwhile = _broken
    with suppress(BrokenEvaluation):
        run.train(validate=True)
    return run


def a_stop_with_a_validation_due_is_full_and_pending() -> None:
    disk = SimulatedDisk()
    histories.a_stop_before_a_validation(disk)
    marks.hit("a termination with a validation due")
    seen = look(disk)[next(iter(look(disk)))]
    need(set(seen.published) == {1} and seen.published[1].generation is Generation.PUBLISHED, "INV-07", f"{seen}")
    keeps(look(disk), promises(disk))
    nothing_goes_back(disk)


# --- retention ----------------------------------------------------------------------------------------------


def retention_takes_what_it_may_and_no_more() -> None:
    """INV-08, by counts, beside what is pending, and beside what the run was resumed from."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config(save_async=False, keep_optim=1, keep_model=2))
    for _ in range(4):
        run.train()
        run.save()
    _kept(run, whole={4}, models={3})
    run.close()
    again = Run(disk, "b", config=config(save_async=False, keep_model=1))
    for _ in range(3):
        again.train()
        again.save()
    _kept(again, whole={4, 7}, models=set())
    again.close()
    last = Run(disk, "c", config=config(save_async=False, keep_model=1))
    for _ in range(2):
        last.train()
        last.save()
        last.journal.protect(8)
    _kept(last, whole={7, 8, 9}, models=set())
    keeps(look(disk), promises(disk))
    nothing_goes_back(disk)


def retention_does_not_count_what_is_pending() -> None:
    """INV-07: with an evaluation that failed in between, as many announced ones stay as without it."""
    disk = SimulatedDisk()
    knobs = config(save_async=False, validate_every=3, validation=FULL, keep_optim=2)
    run = Run(disk, "a", config=knobs)
    for _ in range(2):
        run.train()
        run.save()
    run.meanwhile = _broken
    with suppress(BrokenEvaluation):
        run.train(validate=True)
    _kept(run, whole={1, 2, 3}, models=set())
    run.step = 4
    run.save()
    _kept(run, whole={2, 3, 4}, models={1})
    keeps(look(disk), promises(disk))
    nothing_goes_back(disk)


def retention_asks_nobody_about_what_is_protected() -> None:
    """INV-08: a `keep_fn` that keeps nothing gets all but the newest, the pending, and what was resumed from."""
    disk = SimulatedDisk()
    knobs = config(save_async=False, validate_every=3, validation=FULL)
    run = Run(disk, "a", config=knobs, keep_fn=lambda _names: ())
    for _ in range(2):
        run.train()
        run.save()
    _kept(run, whole={2}, models={1})
    run.close()
    again = Run(disk, "b", config=knobs, keep_fn=lambda _names: ())
    again.meanwhile = _broken
    with suppress(BrokenEvaluation):
        again.train(validate=True)
    for step in (4, 5):
        again.step = step
        again.save()
    _kept(again, whole={2, 3, 5}, models={1, 4})
    keeps(look(disk), promises(disk))
    nothing_goes_back(disk)


def what_cannot_be_deleted_stops_nobody() -> None:
    """The disk refuses once: the run goes on, and the next save's retention takes it."""
    for history, verb, refusing, saves in (
        (histories.releases, "unlink", "iter_000000001/optim.pt", 2),
        (histories.releases, "unlink", "iter_000000001/optim.pt", 3),
        (histories.removes, "rename", ".staging/pruned-1.1.1", 3),
    ):
        disk = SimulatedDisk()
        disk.hardware.faults = fault_on(verb, Fault(error=errno.EIO), path=_checkpoints(refusing))
        history(disk, saves)
        (seen,) = look(disk).values()
        if saves == 2:
            need(seen.state.retention.open != (), "INV-08", "a prune that failed was forgotten")
            continue
        need(seen.state.retention.open == (), "INV-08", f"{seen.state.retention.open} was not tried again")
        need(1 not in seen.published or bool(seen.published[1].missing), "INV-08", f"{seen.published}")
        keeps(look(disk), promises(disk))
        nothing_goes_back(disk)
    marks.hit("a prune that failed")


def _checkpoints(name: str) -> str:
    return f"{HOME}/20261129160904/checkpoints/{name}"


def artifacts_are_not_counted() -> None:
    """INV-05: retention knows checkpoints only."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config(save_async=False, save_every=1, plan=WEIGHTS, keep_model=1))
    run.train(3)
    run.terminate()
    run.close()
    seen = _seen(run)
    need(set(seen.artifacts) == {1, 2, 3} and set(seen.published) == {3}, "INV-05", f"{seen.artifacts}")
    again = Run(disk, "b", config=config(save_async=False, keep_model=1))
    again.train()
    again.save()
    need(set(_seen(again).artifacts) == {1, 2, 3}, "INV-05", f"{_seen(again).artifacts}")
    keeps(look(disk), promises(disk))


def what_was_released_is_no_resume_source() -> None:
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config(save_async=False, keep_optim=1))
    for _ in range(2):
        run.train()
        run.save()
    run.close()
    recover(disk.killed())
    with refused(NotResumable, "INV-08"):
        Run(disk, "b", config=config(resume=f"{ROOT}/{run.attempt}/checkpoints/iter_000000001"))
    interrupted, elsewhere = SimulatedDisk(), SimulatedDisk()
    histories.killed_inside_a_prune(interrupted, RELEASES, "unlink")
    elsewhere.mkdir("copy")
    elsewhere.mkdir("copy/iter_000000001")
    for path, data in interrupted.tree().items():
        folder, _, name = path.rpartition("/")
        if folder.endswith("checkpoints/iter_000000001"):
            histories.write(elsewhere, f"copy/iter_000000001/{name}", cast(bytes, data))
    with refused(NotResumable, "INV-08"):  # although the file is in the copy still
        Run(elsewhere, "b", config=config(resume=f"{ROOT}/copy/iter_000000001"))


def a_prune_that_fails_is_tried_again() -> None:
    """The disk fails once inside it; the run goes on, nothing that is left looks complete, and the next save's
    retention takes it. A power loss behind it loses nothing that was promised."""
    explorer = _explorer()
    for history in (histories.releases, histories.removes):
        whole = SimulatedDisk()
        history(whole)
        for index in range(histories.publishing(whole, 2), len(whole.trace)):
            if _of_retention(whole.trace[index]):
                with after_a_release_that_was_not_synced():
                    _fails_once(partial(history, saves=3), index, errno.EIO, explorer)


def _of_retention(operation: Operation) -> bool:
    name = operation.path.rpartition("/")[2]
    small = name.startswith(("note-", "pruned-", ".posttrain-released")) or "/pruned-" in operation.path
    folder = operation.verb in ("sync_dir", "names") and "/checkpoints" in operation.path
    return operation.effect is not None and (small or folder or operation.verb in ("unlink", "rmdir", "link"))


def every_fault_of_a_validation_is_survived() -> None:
    """Each operation of the generations fails once."""
    whole = SimulatedDisk()
    Run(whole, "a", config=VALIDATES).train(validate=True)
    explorer = Explorer(renames=("separate",), losses=(), goes_on=False)
    for index, operation in enumerate(whole.trace):
        small = "/note-" in operation.path or ".posttrain-validation" in operation.path
        if small or (operation.verb == "sync_dir" and "/iter_" in operation.path):
            _fails_once(histories.a_validation, index, errno.EIO, explorer)


def _fails_once(history: Callable[[SimulatedDisk], None], index: int, code: int, explorer: Explorer) -> None:
    disk = SimulatedDisk()
    disk.hardware.faults = fault_at({index: Fault(error=code)})
    with suppress(MilepostError):
        history(disk)
    disk.hardware.faults = fault_at({})
    nothing_goes_back(disk)
    explorer.poorest(disk)
    disk.drop_caches()
    explorer.poorest(disk)


def _kept(run: Run, *, whole: set[int], models: set[int]) -> None:
    """What is on the disk: these checkpoints whole, and these without their optimizer."""
    seen = _seen(run).published
    need({step for step, one in seen.items() if not one.released} == whole, "INV-08", f"{seen}, not {whole} whole")
    need({step for step, one in seen.items() if one.missing} == models, "INV-08", f"{seen}, not {models} as models")
    left = [path for path in run.disk.tree() if "/.staging/" in path]
    need(not left, "INV-08", f"{left} was to be gone")


def _seen(run: Run) -> Seen:
    return look(run.disk)[run.attempt]


# --- crashes ------------------------------------------------------------------------------------------------


def every_crash_of_a_validation_is_survived() -> None:
    """From the publishing of the pending checkpoint on: what is before is as with any save."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=VALIDATES)
    run.train(validate=True)
    _explorer().every_crash(disk, start=histories.publishing(disk, 1) - 8)


def every_crash_behind_a_death_in_an_evaluation_is_survived() -> None:
    disk = SimulatedDisk()
    histories.a_death_in_an_evaluation(disk)
    begun = len(disk.trace)
    Run(disk, "b", config=VALIDATES).settle()
    _explorer().every_crash(disk, start=begun)


def every_crash_of_a_stop_before_a_validation_is_survived() -> None:
    disk = SimulatedDisk()
    histories.a_stop_before_a_validation(disk)
    _explorer().every_crash(disk, start=histories.publishing(disk, 1))


def every_crash_of_artifacts_is_survived() -> None:
    for history in (histories.artifacts, histories.a_union):
        disk = SimulatedDisk()
        history(disk)
        _explorer().every_crash(disk, start=histories.publishing(disk, 1) - 8)


def every_crash_of_retention_is_survived() -> None:
    """From the publishing of the second checkpoint on, behind which the first is pruned."""
    for history in (histories.releases, histories.removes):
        disk = SimulatedDisk()
        history(disk)
        _explorer().every_crash(disk, start=histories.publishing(disk, 2))


def every_crash_of_a_prune_that_a_later_start_finishes_is_survived() -> None:
    for knobs, verb in ((RELEASES, "unlink"), (REMOVES, "rename")):
        disk = SimulatedDisk()
        histories.killed_inside_a_prune(disk, knobs, verb)
        begun = len(disk.trace)
        Run(disk, "b", config=config(save_async=False))
        _explorer().every_crash(disk, start=begun)


def _explorer() -> Explorer:
    """Of unsynced bytes all survive or none: how a log is torn, other histories tell."""
    return Explorer(renames=("separate",), losses=(), goes_on=False)
