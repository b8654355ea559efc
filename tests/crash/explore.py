"""Every crash that a history may meet: each is looked at raw, recovered from, looked at again, and crashed again.

    for every prefix of the trace, and both kinds of rename:
        for every image that a power loss leaves, and the one that a kill leaves:
            the raw image keeps the promises · Journal.open · the same again, at rest · the run goes on

1. States that no program can tell apart are visited once, with the most that was promised before them.
2. A crash during recovery is a crash like any other (INV-14): with `depth` the recovery's own trace is explored.
3. The first violation ends the exploration; its message tells the way there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from attrs import define, field, frozen

from milepost.engines.simulated import LOSSES, Key, Loss, SimulatedDisk
from milepost.engines.simulated.medium import Renames
from milepost.journal import SamplingBoundary
from milepost.transitions.errors import MilepostError, NotResumable
from milepost.transitions.machine import State, due
from milepost.transitions.validation import ValidationStage
from milepost.transitions.values import SaveId, parse_iteration
from tests.crash import marks
from tests.crash.promised import Offered, Promise, Promises, Saved, promises
from tests.crash.promises import Seen, keeps, look, sampling_of, values_of
from tests.crash.published import Violation, need
from tests.crash.puppets import Cast
from tests.crash.traces import nothing_goes_back
from tests.crash.world import Form, Run, Values, config

Kind = Literal["power loss", "poorest power loss", "kill"]
Kinds = tuple[Kind, ...]

DEEP = ("a crash during recovery", "a crash during the recovery from a crash during recovery")
KINDS: Kinds = ("power loss", "kill")
RENAMES: tuple[Renames, ...] = ("atomic", "separate")


@frozen(kw_only=True)
class Recovered:
    """What recovery made of an image: it ends after `length` entries of the disk's trace.

    `save` is what was resumed from, with its `values` and where sampling goes on; None where nothing was, and where
    an artifact refused it.
    """

    length: int
    seen: Mapping[str, Seen]
    save: SaveId | None
    values: Values
    sampling: SamplingBoundary | None = None


@frozen(kw_only=True)
class _Crash:
    """An image that a crash leaves, with the most that was promised before it."""

    key: Key
    image: SimulatedDisk
    renames: Renames
    told: Promises
    how: str


@define
class Explorer:
    """Visits crash states. `losses` says how unsynced bytes survive in part.

    With `goes_on` each run is asked for one more save, unless it crashed in a recovery. Runs are recovered with the
    `cast` and in the format in which they were saved.
    """

    goes_on: bool = True
    cast: Cast | None = None
    form: Form = "consolidated"
    renames: Sequence[Renames] = RENAMES
    losses: Sequence[Loss] = LOSSES
    visited: int = 0
    _met: dict[Key, list[tuple[int, frozenset[Promise]]]] = field(factory=dict)

    def every_crash(self, disk: SimulatedDisk, *, depth: int = 0, start: int = 0) -> None:
        """Visit every crash behind the entries of the trace from `start` on, and `depth` more in each recovery."""
        nothing_goes_back(disk)
        for renames in self.renames:
            for crash in self._crashes(disk, renames, range(start, len(disk.trace) + 1), told=()):
                self._visit(crash, depth)

    def every_kill(self, disk: SimulatedDisk, *, start: int = 0) -> None:
        """Visit every kill in the trace from entry `start` on, and in its recovery the power losses that take all."""
        for renames in self.renames:
            lengths = range(start, len(disk.trace) + 1)
            for crash in self._crashes(disk, renames, lengths, told=(), kinds=("kill",)):
                self._visit(crash, 1, kinds=("poorest power loss",))

    def poorest(self, disk: SimulatedDisk, *, told: Promises = ()) -> None:
        """Visit the end of the trace: with everything lost that may be, and with nothing lost."""
        for renames in self.renames:
            end = range(len(disk.trace), len(disk.trace) + 1)
            for crash in self._crashes(disk, renames, end, told, ("poorest power loss", "kill")):
                self._visit(crash, 0)

    def some_crashes(
        self, disk: SimulatedDisk, lengths: Sequence[int], *, told: Promises = (), depth: int = 0, at_most: int = 8
    ) -> None:
        """Visit up to `at_most` crashes behind each of these lengths of the trace, the poorest image among them."""
        for renames in self.renames:
            for length in lengths:
                crashes = list(self._crashes(disk, renames, range(length, length + 1), told))
                for crash in crashes[:: max(1, len(crashes) // at_most)]:
                    self._visit(crash, depth)

    def _visit(self, crash: _Crash, depth: int, *, level: int = 0, kinds: Kinds = KINDS) -> None:
        checked = frozenset(promise for promise in crash.told if not isinstance(promise, Offered))
        met = self._met.setdefault(crash.key, [])
        if any(depth <= deep and checked <= more for deep, more in met):
            return
        met.append((depth, checked))
        self.visited += 1
        if level:
            marks.hit(DEEP[min(level, len(DEEP)) - 1])
        try:
            raw = look(crash.image)
            keeps(raw, crash.told)
            goes_on = self.goes_on and not level
            recovered = recover(crash.image, before=raw, goes_on=goes_on, cast=self.cast, form=self.form)
            keeps(recovered.seen, crash.told)
            if recovered.save is not None:
                offered = values_of(crash.told).get(recovered.save)
                need(offered in (None, recovered.values), "restore", f"{recovered.values}, saved were {offered}")
                carried = sampling_of(crash.told).get(recovered.save, recovered.sampling)
                need(carried == recovered.sampling, "INV-11", f"{recovered.sampling}, saved was {carried}")
            nothing_goes_back(crash.image)
            if depth:
                lengths = range(recovered.length + 1)
                for again in self._crashes(crash.image, crash.renames, lengths, crash.told, kinds):
                    self._visit(again, depth - 1, level=level + 1, kinds=kinds)
        except Violation as violation:
            raise Violation(f"{violation}\n  after {crash.how}") from violation.__cause__

    def _crashes(
        self, disk: SimulatedDisk, renames: Renames, lengths: range, told: Promises, kinds: Kinds = KINDS
    ) -> Iterable[_Crash]:
        """Every image once. Promises only grow along a trace: whoever keeps the last ones keeps them all."""
        found: dict[Key, _Crash] = {}
        for length in lengths if len(lengths) == 1 else filter(lengths.__contains__, disk.cuts()):
            last = disk.trace[length - 1] if length else None
            where = f"{length} ({last.verb} {last.path.rpartition('/')[2]})" if last else "0"
            images: list[tuple[Kind, SimulatedDisk]] = []
            if "poorest power loss" in kinds:
                images.append(("poorest power loss", next(disk.crash_images(length, renames=renames))))
            if "power loss" in kinds:
                images += [
                    ("power loss", image) for image in disk.crash_images(length, renames=renames, losses=self.losses)
                ]
            if "kill" in kinds:
                images.append(("kill", disk.killed(length, renames=renames)))
            for what, image in images:
                found[image.key()] = _Crash(
                    key=image.key(),
                    image=image,
                    renames=renames,
                    told=(*told, *promises(disk, length)),
                    how=f"{what} after {where}, {renames} renames",
                )
        return found.values()


def recover(
    image: SimulatedDisk,
    *,
    before: Mapping[str, Seen] | None = None,
    goes_on: bool = True,
    cast: Cast | None = None,
    form: Form = "consolidated",
) -> Recovered:
    """Open the run that a crash left, and require that it is at rest and can go on. `before` is a look at it raw."""
    before = look(image) if before is None else before
    try:
        run = Run(image, f"after-{_segments(image)}", config=config(save_async=False, form=form), cast=cast)
    except NotResumable as error:
        return _kept_out(image, error, goes_on=goes_on)
    except MilepostError as error:
        raise Violation(f"INV-14: recovery refused: {type(error).__name__}: {error}") from error
    seen = look(image)
    state, found = run.journal.state, seen[run.attempt]
    _at_rest(image, run.attempt, found)
    _resumed(run, found)
    marks.of_recovery(image, run.attempt, state.run.segment)
    _joined(before.get(run.attempt), state)
    recovered = Recovered(
        length=len(image.trace),
        seen=seen,
        save=state.saving.newest,
        values=run.values(),
        sampling=run.journal.resumption.sampling,
    )
    _validates(run, before.get(run.attempt))
    if goes_on:
        _goes_on(run, image)
    return recovered


def _joined(before: Seen | None, state: State) -> None:
    """INV-15: of a boundary that was open all roles are there now, or none."""
    joined = before.state.boundary.open if before is not None else None
    if joined is None:
        return
    sealed = state.saving.sealed.get(joined.save.step)
    need(state.boundary.open is None, "INV-15", f"the boundary of {joined.save} is open still")
    marks.of_boundary(joined.save, sealed.id if sealed is not None else None)


def _segments(image: SimulatedDisk) -> int:
    return sum(path.endswith(".jsonl") for path in image.tree())


def _kept_out(image: SimulatedDisk, error: NotResumable, *, goes_on: bool) -> Recovered:
    """An artifact that is newer than every checkpoint refuses the start (INV-16); a new attempt is the way out."""
    seen = look(image)
    attempt = max(seen)
    saving = seen[attempt].state.saving
    newer = saving.newest_artifact is not None and saving.newest_artifact.step == saving.newest_step
    newer = newer and (saving.newest is None or saving.newest.step < saving.newest_step)  # type: ignore[operator]
    need(newer, "INV-14", f"the start was refused, and nothing is newer than {saving.newest}: {error}")
    _at_rest(image, attempt, seen[attempt])
    marks.hit("a start kept out by a newer artifact")
    marks.of_recovery(image, attempt, seen[attempt].state.run.segment)
    length = len(image.trace)
    if goes_on:
        run = Run(image, "beside", config=config(save_async=False, resume="off"))
        need(run.step == 0 and run.attempt not in seen, "INV-05", f"{run.attempt} goes on from {run.step}")
    return Recovered(length=length, seen=seen, save=None, values=())


def _at_rest(image: SimulatedDisk, attempt: str, seen: Seen) -> None:
    """INV-14: nothing is left to do, and nothing lies about."""
    state = seen.state
    newest = state.saving.newest
    step = newest.step if newest is not None else None
    need(due(state) == () and not state.saving.open, "INV-14", f"work is left: {due(state)}, {state.saving.open}")
    there = set(state.saving.sealed) - set(state.retention.removed)
    need(seen.published.keys() == there, "INV-01", f"{seen.published} vs {there}")
    need(
        seen.artifacts.keys() == set(state.saving.artifacts),
        "INV-05",
        f"{seen.artifacts} vs {state.saving.artifacts}",
    )
    need(seen.latest == step, "INV-03", f"latest is {seen.latest}, the newest is {newest}")
    need(
        state.pointer.at == newest, "INV-03", f"the journal has latest at {state.pointer.at}, the newest is {newest}"
    )
    for path in image.tree():
        folder, _, name = path.rpartition("/")
        if folder == f"{attempt}/checkpoints/.staging":
            _second_name(name, state)
        elif folder == f"{attempt}/checkpoints":
            known = name in ("latest_checkpoint.txt", ".staging") or parse_iteration(name) is not None
            need(known, "INV-14", f"debris: {path}")
        elif folder == f"{attempt}/checkpoint_artifacts":
            need(parse_iteration(name) is not None, "INV-14", f"debris: {path}")


def _second_name(name: str, state: State) -> None:
    """Torn apart, a rename leaves what is published a second name; who removes that loses what is published."""
    save = SaveId.parse(name.removeprefix("revoked-").removeprefix("pruned-").partition("~")[0])
    saving = state.saving
    there = [one.id for one in (saving.sealed.get(save.step), saving.artifacts.get(save.step)) if one is not None]
    need(save in there and save.step not in state.retention.removed, "INV-14", f"debris: {name}")
    marks.hit("a second name of what is published left alone")


def _resumed(run: Run, seen: Seen) -> None:
    """The run says what the disk says, continues from the newest checkpoint, and explains each other one."""
    state, newest = run.journal.state, run.journal.state.saving.newest
    need(seen.state == state, "INV-09", f"the log replays to {seen.state}, the run is at {state}")
    artifact = state.saving.newest_artifact
    need(artifact is None or artifact.step <= run.step, "INV-16", f"resumed from {run.step}, behind {artifact}")
    need(run.step == (newest.step if newest is not None else 0), "INV-17", f"resumed from {run.step}, not {newest}")
    explained = {one.name for one in run.journal.resumption.passed_over}
    others = {
        save.id.directory
        for step, save in state.saving.sealed.items()
        if save.id != newest and step not in state.retention.removed
    }
    need(explained >= others, "INV-17", f"{others - explained} were passed over without a reason")


def _validates(run: Run, before: Seen | None) -> None:
    """INV-07: what was pending is evaluated before anything else, once; what passed never is again."""
    state, newest = run.journal.state, run.journal.state.saving.newest
    pending = state.validation.pending
    need(pending in (None, newest), "INV-07", f"{pending} is pending, and was not resumed from")
    need((run.journal.resumption.pending == "evaluation") is (pending is not None), "INV-07", "the start hides it")
    if before is not None:
        was = before.state.validation
        waits = was.stage is ValidationStage.EVALUATING and was.save == newest
        need(not waits or pending == newest, "INV-07", f"the evaluation of {was.save} was forgotten")
        need(pending not in before.passed, "INV-07", f"{pending} was evaluated, and is to be again")
        finished = was.stage in (ValidationStage.PASSED, ValidationStage.PUBLISHING)
        need(not finished or state.validation.completed == was.save, "INV-07", f"{was.save} is still not published")
        if finished:
            marks.hit("a publication finished by the next start")
    run.settle()
    evaluated = [step for step, _ in run.evaluated]
    need(evaluated == ([pending.step] if pending is not None else []), "INV-07", f"{evaluated} instead of {pending}")
    if pending is not None:
        marks.hit("a pending evaluation done by the next start")
        done = run.journal.state.validation
        need(done.completed == pending and done.save is None, "INV-07", f"{pending} was evaluated: {done}")


def _goes_on(run: Run, image: SimulatedDisk) -> None:
    """INV-16 and the point of it all: what is there is not written again, and the next save is."""
    if run.step:
        before = len(image.trace)
        run.save()
        written = [o for o in image.trace[before:] if o.verb in ("create", "mkdir", "publish", "rename")]
        need(not written, "INV-16", f"step {run.step} was saved a second time: {written}")
    run.train()
    run.save()
    run.finish()
    saved = [p for p in promises(image) if isinstance(p, Saved)]
    need(bool(saved) and saved[-1].save.step == run.step, "INV-14", f"the next save was not acknowledged: {saved}")
    run.close()
