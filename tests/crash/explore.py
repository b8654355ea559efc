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

from milepost.engines.simulated import Key, SimulatedDisk
from milepost.engines.simulated.medium import Renames
from milepost.transitions.errors import MilepostError
from milepost.transitions.machine import due
from milepost.transitions.values import SaveId, parse_iteration
from tests.crash import marks
from tests.crash.promises import LATEST, Seen, Violation, keeps, look, need, values_of
from tests.crash.world import Offered, Promise, Promises, Run, Saved, Values, config, promises

Kind = Literal["power loss", "poorest power loss", "kill"]
Kinds = tuple[Kind, ...]

DEEP = ("a crash during recovery", "a crash during the recovery from a crash during recovery")
KINDS: Kinds = ("power loss", "kill")
RENAMES: tuple[Renames, ...] = ("atomic", "separate")


@frozen(kw_only=True)
class Recovered:
    """What recovery made of an image: it ends after `length` entries of the disk's trace."""

    length: int
    seen: Mapping[str, Seen]
    save: SaveId | None
    values: Values


@define
class Explorer:
    """Visits crash states. With `goes_on` each run is asked for one more save, unless it crashed in a recovery."""

    goes_on: bool = True
    renames: Sequence[Renames] = RENAMES
    visited: int = 0
    _met: dict[Key, list[tuple[int, frozenset[Promise]]]] = field(factory=dict)

    def every_crash(self, disk: SimulatedDisk, *, depth: int = 0, start: int = 0) -> None:
        """Visit every crash behind the entries of the trace from `start` on, and `depth` more in each recovery."""
        nothing_goes_back(disk)
        for renames in self.renames:
            for crash in _crashes(disk, renames, range(start, len(disk.trace) + 1), told=()):
                self._visit(crash, depth)

    def every_kill(self, disk: SimulatedDisk, *, start: int = 0) -> None:
        """Visit every kill in the trace from entry `start` on, and in its recovery the power losses that take all."""
        for renames in self.renames:
            for crash in _crashes(disk, renames, range(start, len(disk.trace) + 1), told=(), kinds=("kill",)):
                self._visit(crash, 1, kinds=("poorest power loss",))

    def poorest(self, disk: SimulatedDisk, *, told: Promises = ()) -> None:
        """Visit the end of the trace: with everything lost that may be, and with nothing lost."""
        for renames in self.renames:
            end = range(len(disk.trace), len(disk.trace) + 1)
            for crash in _crashes(disk, renames, end, told, ("poorest power loss", "kill")):
                self._visit(crash, 0)

    def some_crashes(
        self, disk: SimulatedDisk, lengths: Sequence[int], *, told: Promises = (), depth: int = 0, at_most: int = 8
    ) -> None:
        """Visit up to `at_most` crashes behind each of these lengths of the trace, the poorest image among them."""
        for renames in self.renames:
            for length in lengths:
                crashes = list(_crashes(disk, renames, range(length, length + 1), told))
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
            keeps(look(crash.image), crash.told)
            recovered = recover(crash.image, goes_on=self.goes_on and not level)
            keeps(recovered.seen, crash.told)
            if recovered.save is not None:
                offered = values_of(crash.told).get(recovered.save)
                need(offered in (None, recovered.values), "restore", f"{recovered.values}, saved were {offered}")
            if depth:
                nothing_goes_back(crash.image)
                for again in _crashes(crash.image, crash.renames, range(recovered.length + 1), crash.told, kinds):
                    self._visit(again, depth - 1, level=level + 1, kinds=kinds)
        except Violation as violation:
            raise Violation(f"{violation}\n  after {crash.how}") from violation.__cause__


@frozen(kw_only=True)
class _Crash:
    """An image that a crash leaves, with the most that was promised before it."""

    key: Key
    image: SimulatedDisk
    renames: Renames
    told: Promises
    how: str


def _crashes(
    disk: SimulatedDisk, renames: Renames, lengths: range, told: Promises, kinds: Kinds = KINDS
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
            images += [("power loss", image) for image in disk.crash_images(length, renames=renames)]
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


def recover(image: SimulatedDisk, *, goes_on: bool = True) -> Recovered:
    """Open the run that a crash left, and require that it is at rest and can go on."""
    try:
        run = Run(image, f"after-{_segments(image)}", config=config(save_async=False))
    except MilepostError as error:
        raise Violation(f"INV-14: recovery refused: {type(error).__name__}: {error}") from error
    seen = look(image)
    _at_rest(run, image, seen[run.attempt])
    marks.of_recovery(run)
    recovered = Recovered(
        length=len(image.trace),
        seen=seen,
        save=run.journal.state.saving.newest,
        values=run.trainer.values(),
    )
    if goes_on:
        _goes_on(run, image)
    return recovered


def _segments(image: SimulatedDisk) -> int:
    return sum(path.endswith(".jsonl") for path in image.tree())


def _at_rest(run: Run, image: SimulatedDisk, seen: Seen) -> None:
    """INV-14: nothing is left to do, nothing lies about, and the journal says what the disk says."""
    state = run.journal.state
    newest = state.saving.newest
    step = newest.step if newest is not None else None
    need(due(state) == () and not state.saving.open, "INV-14", f"work is left: {due(state)}, {state.saving.open}")
    need(seen.state == state, "INV-09", f"the log replays to {seen.state}, the run is at {state}")
    need(seen.published.keys() == set(state.saving.sealed), "INV-01", f"{seen.published} vs {state.saving.sealed}")
    need(seen.latest == step, "INV-03", f"latest is {seen.latest}, the newest is {newest}")
    need(
        state.pointer.at == newest, "INV-03", f"the journal has latest at {state.pointer.at}, the newest is {newest}"
    )
    need(run.step == (step or 0), "INV-17", f"resumed from {run.step}, the newest is {newest}")
    explained = {one.name for one in run.journal.resumption.passed_over}
    others = {save.id.directory for save in state.saving.sealed.values() if save.id != newest}
    need(explained >= others, "INV-17", f"{others - explained} were passed over without a reason")
    root = f"{run.attempt}/checkpoints"
    for path in image.tree():
        folder, _, name = path.rpartition("/")
        if folder == f"{root}/.staging":
            # Torn apart, a rename leaves what is published a second name; who removes that loses the checkpoint.
            save = SaveId.parse(name.removeprefix("revoked-"))
            sealed = state.saving.sealed.get(save.step)
            need(sealed is not None and sealed.id == save, "INV-14", f"debris: {path}")
            marks.hit("a second name of what is published left alone")
        elif folder == root:
            known = name in ("latest_checkpoint.txt", ".staging") or parse_iteration(name) is not None
            need(known, "INV-14", f"debris: {path}")


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


def nothing_goes_back(disk: SimulatedDisk) -> None:
    """INV-02 and INV-03 along a trace without crashes: what is published stays as it is, latest only moves on."""
    before: dict[str, object] = {}
    latest: dict[str, str] = {}
    for length, operation in enumerate(disk.trace, 1):
        telling = "/checkpoints/iter_" in operation.path or operation.path.endswith(LATEST)
        if operation.effect is None or not (telling or operation.verb in ("publish", "rename")):
            continue
        now = {p: d for p, d in disk.killed(length).tree().items() if "/checkpoints/iter_" in p or p.endswith(LATEST)}
        where = f"{operation.verb} {operation.path} by {operation.process}"
        for path, data in before.items():
            if path.endswith(LATEST):
                continue
            need(path in now and now[path] == data, "INV-02", f"{path} changed by {where}")
        for path, data in now.items():
            if path.endswith(LATEST):
                assert isinstance(data, bytes)
                need(data.decode() >= latest.get(path, ""), "INV-03", f"latest moved back by {where}")
                latest[path] = data.decode()
        need(latest.keys() <= now.keys(), "INV-03", f"latest went away by {where}")
        before = dict(now)
