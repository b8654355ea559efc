"""What must hold of a disk: at any moment, and against what was promised.

`look` reads a disk as it is, with no process on it, and checks what needs no promise; `keeps` compares what it found
with the promises. Both serve the raw image that a crash left, before anything heals it, and the disk after recovery.
How one published directory has to look is in `published.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from attrs import frozen

from milepost.engines.logs.segments import SegmentLog
from milepost.engines.simulated import SimulatedDisk
from milepost.journal import SamplingBoundary
from milepost.journal.log.replay import replay
from milepost.transitions.boundary import BoundaryOpened
from milepost.transitions.emergency import EmergencyCovered
from milepost.transitions.errors import MilepostError
from milepost.transitions.invariants import violations
from milepost.transitions.machine import State, initial
from milepost.transitions.retention import Part
from milepost.transitions.run import RunEnded, RunOpened, RunResumed
from milepost.transitions.saving import Save, SaveOpened
from milepost.transitions.validation import (
    EvaluationPassed,
    EvaluationPended,
    Generation,
    PublicationCompleted,
    PublicationPended,
)
from milepost.transitions.values import SaveId, Witness, parse_iteration
from tests.crash.promised import Announced, Covered, Ended, Evaluating, Made, Offered, Opened, Promises, Saved
from tests.crash.published import ARTIFACTS, CHECKPOINTS, Directory, Violation, need, published
from tests.crash.world import HOME, Values

LATEST = "latest_checkpoint.txt"

_GENERATIONS = tuple(Generation)

_MAY_COME_BACK: ContextVar[bool] = ContextVar("_MAY_COME_BACK", default=False)


@contextmanager
def after_a_release_that_was_not_synced() -> Iterator[None]:
    """A directory whose sync failed once may bring back a file that was unlinked before, whatever is synced later.

    Its release marker lists it, so that nobody relies on it: `spec/durability.md`.
    """
    token = _MAY_COME_BACK.set(True)
    try:
        yield
    finally:
        _MAY_COME_BACK.reset(token)


@frozen(kw_only=True)
class Seen:
    """One attempt as a look found it. `published` and `artifacts` map a step to what is there."""

    published: Mapping[int, Directory]
    artifacts: Mapping[int, Directory]
    latest: int | None
    state: State
    epochs: Mapping[int, str]
    resumed: Mapping[int, int]
    covered: frozenset[tuple[int, int]]
    ended: frozenset[int]
    passed: frozenset[SaveId]
    completed: frozenset[SaveId]


def look(disk: SimulatedDisk) -> dict[str, Seen]:
    """Every attempt on the disk, by its path. Changes nothing and leaves no trace."""
    disk = disk.killed()
    files = disk.tree()
    attempts = [path for path in files if path.startswith(f"{HOME}/") and path.count("/") == HOME.count("/") + 1]
    return {attempt: _look_at(disk, files, attempt) for attempt in attempts}


def _look_at(disk: SimulatedDisk, files: Mapping[str, object], attempt: str) -> Seen:
    full = published(files, f"{attempt}/checkpoints/", CHECKPOINTS)
    partial = published(files, f"{attempt}/checkpoint_artifacts/", ARTIFACTS)
    latest = _latest(files, f"{attempt}/checkpoints/{LATEST}")
    log = _log(disk, files, attempt, {one.path: one.manifest.witness for one in (*full.values(), *partial.values())})
    state = log.state
    need(
        latest is None or latest in state.saving.sealed, "INV-03", f"latest names step {latest}, which is not sealed"
    )
    _agree(full, state.saving.sealed, log)
    _agree(partial, state.saving.artifacts, log)
    _retained(full, state)
    _validated(full, log)
    _joined({**partial, **full}, log)
    return Seen(
        published=full,
        artifacts=partial,
        latest=latest,
        state=state,
        epochs=log.epochs,
        resumed=log.resumed,
        covered=frozenset(log.covered),
        ended=frozenset(log.ended),
        passed=frozenset(log.passed),
        completed=frozenset(log.completed),
    )


def _agree(found: Mapping[int, Directory], sealed: Mapping[int, Save], log: _Log) -> None:
    """What is published the journal knows of, and what it sealed is published, but for what retention took."""
    pending = [save.id for save in log.state.saving.open]
    for step, one in found.items():
        save = one.manifest.save
        need(save in log.saves, "INV-09", f"{save} is published and the journal has no word of it")
        mine = sealed.get(step)
        need(
            save in pending or (mine is not None and mine.id == save),
            "INV-01",
            f"{save} is published at {one.path} and was abandoned, or is another one",
        )
    for step, known in sealed.items():
        may_go = sealed is log.state.saving.sealed and log.state.retention.lost(step) is Part.CHECKPOINT
        if step not in found and may_go:
            continue
        there = found[step].digest if step in found else "nothing"
        need(
            known.manifest is not None and there == known.manifest.digest,
            "INV-02",
            f"{known.id} is sealed, and there is {there}",
        )


def _retained(found: Mapping[int, Directory], state: State) -> None:
    """INV-08: retention took what it said and nothing else, and nothing that somebody rests on."""
    for step, one in found.items():
        lost = state.retention.lost(step)
        need(
            not one.released or lost is not None, "INV-08", f"{one.path} is released, and the journal does not say so"
        )
        need(step not in state.retention.removed, "INV-08", f"{one.path} was removed, and there it is")
        gone = step in state.retention.released
        back = one.missing != one.released and not _MAY_COME_BACK.get()
        need(not gone or not back, "INV-08", f"{one.path} was released, and is there still")
        need(not gone or bool(one.released), "INV-08", f"{one.path} was released, and does not say so")
    resumed = state.run.resumed.save if state.run.resumed is not None else None
    for save, why in (
        (state.saving.newest, "the newest"),
        (state.validation.pending, "pending"),
        (resumed, "what was resumed from"),
    ):
        if save is not None:
            there = found.get(save.step)
            need(there is not None and not there.released, "INV-08", f"{save} is {why} and is not whole: {there}")


def _validated(found: Mapping[int, Directory], log: _Log) -> None:
    """INV-07: what a checkpoint says of its validation is what the journal had recorded before."""
    for one in found.values():
        save = one.manifest.save
        said = 0 if one.generation is None else 1 + _GENERATIONS.index(one.generation)
        need(
            (said > 0) is (save in log.pended),
            "INV-07",
            f"{one.path} says {one.generation}; {log.pended} were pended",
        )
        need(said < 2 or save in log.passed, "INV-07", f"{one.path} says {one.generation} before it was evaluated")
        need(said < 3 or save in log.publishing, "INV-07", f"{one.path} is published before it said it would be")
        least = 3 if save in log.completed else 2 if save in log.publishing else 0
        need(said >= least, "INV-07", f"{one.path} says {one.generation}; the journal is further")


def _joined(found: Mapping[int, Directory], log: _Log) -> None:
    """INV-15: what a marker says is what the journal had recorded of the boundary, and there is none without that."""
    for one in found.values():
        boundary = log.joined.get(one.manifest.save)
        if boundary is None:
            need(one.mark is None, "INV-15", f"{one.path} has the marker {one.mark}, and no boundary is recorded")
            continue
        counters = {role.role: role.clocks.optimizer_step for role in boundary.roles}
        said = {value.name: json.loads(value.value) for value in boundary.loop_state}
        mark = one.mark
        same = mark is not None and (mark.counters, mark.loop_state) == (counters, said)
        need(same, "INV-15", f"{one.path} says {mark}, recorded are {counters} and {said}")


_LOGS: dict[object, _Log] = {}


def forget() -> None:
    """Read every log anew: the product is not what it was."""
    _LOGS.clear()


def _log(disk: SimulatedDisk, files: Mapping[str, object], attempt: str, witnesses: Mapping[str, Witness]) -> _Log:
    """The log of an attempt; thousands of images have the same bytes of it."""
    folder = f"{attempt}/journal/"
    segments = frozenset((p, data) for p, data in files.items() if p.startswith(folder) and p.endswith(".jsonl"))
    key = (segments, frozenset(witnesses.items()))
    if key not in _LOGS:
        _LOGS[key] = _Log(disk, attempt, witnesses)
    return _LOGS[key]


class _Log:
    """The log of an attempt, replayed from its first byte with every invariant checked behind every entry."""

    def __init__(self, disk: SimulatedDisk, attempt: str, witnesses: Mapping[str, Witness]) -> None:
        self.state = initial()
        self.saves: set[SaveId] = set()
        self.epochs: dict[int, str] = {}
        self.resumed: dict[int, int] = {}
        self.covered: set[tuple[int, int]] = set()
        self.ended: set[int] = set()
        self.pended: set[SaveId] = set()
        self.passed: set[SaveId] = set()
        self.publishing: set[SaveId] = set()
        self.completed: set[SaveId] = set()
        self.joined: dict[SaveId, BoundaryOpened] = {}
        seq = 0
        try:
            for entry, state in replay(SegmentLog(disk, folder=f"{attempt}/journal"), witnesses=witnesses):
                seq += 1
                need(entry.seq == seq, "INV-09", f"entry {entry.seq} where {seq} belongs")
                found = violations(self.state, state)
                need(not found, "INV-09", f"behind entry {seq}: {found}")
                self.state = state
                for record in entry.records:
                    self._note(record, entry.epoch)
        except MilepostError as error:
            raise Violation(f"INV-09: the journal is refused: {error}") from error

    def _note(self, record: object, epoch: int) -> None:
        need(epoch == self.state.run.epoch, "INV-10", f"an entry of epoch {epoch} in epoch {self.state.run.epoch}")
        match record:
            case SaveOpened(save=save):
                self.saves.add(save)
            case BoundaryOpened(save=save):
                self.joined[save] = record
            case EvaluationPended(save=save):
                self.pended.add(save)
            case EvaluationPassed(save=save):
                self.passed.add(save)
            case PublicationPended(save=save):
                self.publishing.add(save)
            case PublicationCompleted(save=save):
                self.completed.add(save)
            case RunOpened(epoch=opened, execution_id=execution):
                self.epochs[opened] = execution
            case RunResumed(step=step):
                self.resumed[epoch] = step
            case EmergencyCovered(step=step):
                self.covered.add((epoch, step))
            case RunEnded():
                self.ended.add(epoch)
            case _:
                pass


def _latest(files: Mapping[str, object], path: str) -> int | None:
    data = files.get(path)
    if data is None:
        return None
    assert isinstance(data, bytes)
    step = parse_iteration(data.decode("ascii", "replace").removesuffix("\n"))
    need(step is not None and data.endswith(b"\n"), "INV-03", f"latest holds {data!r}")
    return step


def keeps(seen: Mapping[str, Seen], promised: Promises) -> None:
    """Everything that was promised is there."""
    offered: dict[tuple[str, SaveId], Offered] = {}
    for promise in promised:
        if isinstance(promise, Offered):
            offered[promise.attempt, promise.save] = promise
            continue
        need(promise.attempt in seen, "INV-02", f"{promise} was promised and its attempt is gone")
        found = seen[promise.attempt]
        saving, retention = found.state.saving, found.state.retention
        match promise:
            case Opened(epoch=epoch, execution=execution, step=step):
                need(found.epochs.get(epoch) == execution, "INV-10", f"{promise}, but {found.epochs}")
                need(found.resumed.get(epoch) == step, "INV-17", f"{promise}, but {found.resumed}")
            case Saved(save=save, manifest=manifest):
                there, sealed = found.published.get(save.step), saving.sealed.get(save.step)
                need(sealed is not None and sealed.id == save, "INV-02", f"{promise}, but sealed is {sealed}")
                pruned = there is None and retention.lost(save.step) is Part.CHECKPOINT
                same = there is not None and there.digest == manifest
                need(pruned or same, "INV-02", f"{promise}, but there is {there}")
                need(found.latest is not None and found.latest >= save.step, "INV-03", f"{promise}: {found.latest}")
            case Made(save=save, manifest=manifest):
                there, made = found.artifacts.get(save.step), saving.artifacts.get(save.step)
                need(made is not None and made.id == save, "INV-16", f"{promise}, but sealed is {made}")
                need(there is not None and there.digest == manifest, "INV-16", f"{promise}, but there is {there}")
            case Evaluating(step=step, due=due):
                need(not due or saving.holds(step, due) is not None, "INV-06", f"{promise}, and nothing holds it")
            case Announced(save=save):
                need(save in found.completed, "INV-07", f"{promise}, but only {found.completed} were completed")
            case Covered(epoch=epoch, step=step, plan=plan):
                need((epoch, step) in found.covered, "emergency", f"{promise}, but {found.covered}")
                need(saving.holds(step, plan) is not None, "emergency", f"{promise}, but nothing holds it")
            case Ended(epoch=epoch):
                need(epoch in found.ended, "INV-09", f"{promise}, but ended are {found.ended}")
    for last in offered.values():
        _as_offered(seen, last)


def _as_offered(seen: Mapping[str, Seen], offered: Offered) -> None:
    """INV-15: the marker of what became of it has the counters of every role, and what the loop had said."""
    there = seen[offered.attempt].published.get(offered.save.step) if offered.attempt in seen else None
    if there is None or there.manifest.save != offered.save or not offered.counters:
        return
    mark = there.mark
    same = mark is not None and (mark.counters, mark.loop_state) == (dict(offered.counters), dict(offered.loop))
    need(same, "INV-15", f"{there.path} says {mark}, offered were {offered.counters} and {offered.loop}")


def sampling_of(promised: Promises) -> dict[SaveId, SamplingBoundary | None]:
    """Where each save has to bring sampling back to."""
    return {promise.save: promise.sampling for promise in promised if isinstance(promise, Offered)}


def values_of(promised: Promises) -> dict[SaveId, Values]:
    """What each save was offered: whatever became of it holds these values."""
    return {promise.save: promise.values for promise in promised if isinstance(promise, Offered)}
