"""What must hold of a disk: at any moment, and against what was promised.

`look` reads a disk as it is, with no process on it, and checks what needs no promise; `keeps` compares what it found
with the promises. Both serve the raw image that a crash left, before anything heals it, and the disk after recovery.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from attrs import frozen
from blake3 import blake3

from milepost.engines.checkpoints.manifest import MANIFEST, Manifest, decode, digest_of
from milepost.engines.logs.segments import SegmentLog
from milepost.engines.simulated import SimulatedDisk
from milepost.journal.log.replay import replay
from milepost.transitions.emergency import EmergencyCovered
from milepost.transitions.errors import MilepostError
from milepost.transitions.invariants import violations
from milepost.transitions.machine import State, initial
from milepost.transitions.run import RunEnded, RunOpened, RunResumed
from milepost.transitions.saving import SaveOpened
from milepost.transitions.values import SaveId, Witness, parse_iteration
from tests.crash.world import HOME, Covered, Ended, Offered, Opened, Promises, Saved, Values

LATEST = "latest_checkpoint.txt"


class Violation(AssertionError):
    """A promise was broken or an invariant does not hold; the message begins with its number."""


def need(holds: bool, number: str, why: str) -> None:
    if not holds:
        raise Violation(f"{number}: {why}")


@frozen(kw_only=True)
class Seen:
    """One attempt as a look found it. `published` maps a step to the digest of its manifest."""

    published: Mapping[int, str]
    latest: int | None
    state: State
    epochs: Mapping[int, str]
    resumed: Mapping[int, int]
    covered: frozenset[tuple[int, int]]
    ended: frozenset[int]


def look(disk: SimulatedDisk) -> dict[str, Seen]:
    """Every attempt on the disk, by its path. Changes nothing and leaves no trace."""
    disk = disk.killed()
    files = disk.tree()
    attempts = [path for path in files if path.startswith(f"{HOME}/") and path.count("/") == HOME.count("/") + 1]
    return {attempt: _look_at(disk, files, attempt) for attempt in attempts}


def _look_at(disk: SimulatedDisk, files: Mapping[str, object], attempt: str) -> Seen:
    manifests = dict(_manifests(files, f"{attempt}/checkpoints/"))
    latest = _latest(files, f"{attempt}/checkpoints/{LATEST}")
    witnesses = {f"step {step}": manifest.witness for step, (manifest, _) in manifests.items()}
    log = _Log(disk, attempt, witnesses)
    state = log.state
    need(
        latest is None or latest in state.saving.sealed, "INV-03", f"latest names step {latest}, which is not sealed"
    )
    for step, (manifest, _) in manifests.items():
        need(manifest.save in log.saves, "INV-09", f"{manifest.save} is published and the journal has no word of it")
        known = state.saving.sealed.get(step)
        pending = [save.id for save in state.saving.open]
        need(
            manifest.save in pending or (known is not None and known.id == manifest.save),
            "INV-01",
            f"{manifest.save} is published and was abandoned",
        )
    for step, save in state.saving.sealed.items():
        there = manifests[step][1] if step in manifests else "nothing"
        need(
            save.manifest is not None and there == save.manifest.digest,
            "INV-02",
            f"{save.id} is sealed, and there is {there}",
        )
    return Seen(
        published={step: digest for step, (_, digest) in manifests.items()},
        latest=latest,
        state=state,
        epochs=log.epochs,
        resumed=log.resumed,
        covered=frozenset(log.covered),
        ended=frozenset(log.ended),
    )


class _Log:
    """The log of an attempt, replayed from its first byte with every invariant checked behind every entry."""

    def __init__(self, disk: SimulatedDisk, attempt: str, witnesses: Mapping[str, Witness]) -> None:
        self.state = initial()
        self.saves: set[SaveId] = set()
        self.epochs: dict[int, str] = {}
        self.resumed: dict[int, int] = {}
        self.covered: set[tuple[int, int]] = set()
        self.ended: set[int] = set()
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


def _manifests(files: Mapping[str, object], root: str) -> list[tuple[int, tuple[Manifest, str]]]:
    """INV-01: whatever has a manifest under its final name is whole, with nothing beside it."""
    found = []
    for path, data in files.items():
        folder, _, name = path.removeprefix(root).rpartition("/")
        step = parse_iteration(folder)
        if not path.startswith(root) or name != MANIFEST or step is None:
            continue
        assert isinstance(data, bytes)
        try:
            manifest = decode(data, where=path)
        except MilepostError as error:
            raise Violation(f"INV-01: {error}") from error
        need(manifest.save.step == step, "INV-01", f"{folder} carries the manifest of {manifest.save}")
        for file in manifest.files:
            content = files.get(f"{root}{folder}/{file.path}")
            need(isinstance(content, bytes), "INV-01", f"{folder} lists {file.path}, which is not there")
            assert isinstance(content, bytes)
            need(
                (len(content), _digest(content)) == (file.size, file.digest),
                "INV-01",
                f"{folder}/{file.path} is not what its manifest says",
            )
        listed = {MANIFEST, *(file.path for file in manifest.files)}
        beside = {one.rpartition("/")[2] for one in files if one.startswith(f"{root}{folder}/")}
        need(beside == listed, "INV-01", f"{folder} holds {beside - listed} beside what its manifest lists")
        found.append((step, (manifest, digest_of(data).digest)))
    return found


@lru_cache(maxsize=512)
def _digest(data: bytes) -> str:
    return f"blake3:{blake3(data).hexdigest()}"


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
    for promise in promised:
        if isinstance(promise, Offered):
            continue
        need(promise.attempt in seen, "INV-02", f"{promise} was promised and its attempt is gone")
        found = seen[promise.attempt]
        match promise:
            case Opened(epoch=epoch, execution=execution, step=step):
                need(found.epochs.get(epoch) == execution, "INV-10", f"{promise}, but {found.epochs}")
                need(found.resumed.get(epoch) == step, "INV-17", f"{promise}, but {found.resumed}")
            case Saved(save=save, manifest=manifest):
                need(found.published.get(save.step) == manifest, "INV-02", f"{promise}, but {found.published}")
                sealed = found.state.saving.sealed.get(save.step)
                need(sealed is not None and sealed.id == save, "INV-02", f"{promise}, but sealed is {sealed}")
                need(found.latest is not None and found.latest >= save.step, "INV-03", f"{promise}: {found.latest}")
            case Covered(epoch=epoch, step=step):
                need((epoch, step) in found.covered, "emergency", f"{promise}, but {found.covered}")
                need(step in found.state.saving.sealed, "emergency", f"{promise}, but it is not sealed")
            case Ended(epoch=epoch):
                need(epoch in found.ended, "INV-09", f"{promise}, but ended are {found.ended}")


def values_of(promised: Promises) -> dict[SaveId, Values]:
    """What each save was offered: whatever became of it holds these values."""
    return {promise.save: promise.values for promise in promised if isinstance(promise, Offered)}
