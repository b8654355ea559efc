"""What must hold along a trace without crashes: nothing that was published changes, latest only moves on.

Retention is the exception, and its order is checked here: a file goes behind the marker that names it, a checkpoint
goes all at once, out of its namespace.
"""

from __future__ import annotations

from collections.abc import Mapping

from milepost.engines.checkpoints import released
from milepost.engines.simulated import Operation, SimulatedDisk
from milepost.transitions.errors import MilepostError
from milepost.transitions.values import SaveId
from tests.crash.promised import Evaluating
from tests.crash.promises import LATEST, look
from tests.crash.published import ARTIFACTS, CHECKPOINTS, need, published

_CHECKPOINT, _ARTIFACT = "/checkpoints/iter_", "/checkpoint_artifacts/iter_"

Tree = Mapping[str, object]


def nothing_goes_back(disk: SimulatedDisk) -> None:
    """INV-01 to INV-03, INV-08 and INV-16 along a trace; INV-07 at each evaluation that began in it."""
    _one_save_at_a_time(disk)
    before: Tree = {}
    for length, operation in enumerate(disk.trace, 1):
        if operation.verb == "mark" and isinstance(operation.note[0], Evaluating):
            _evaluates_what_waits(disk, length, operation.note[0])
        if not _tells(operation):
            continue
        now = {path: data for path, data in disk.killed(length).tree().items() if _matters(path)}
        where = f"{operation.verb} {operation.path} by {operation.process}"
        _only_forward(before, now, where)
        _whole(now)
        before = now


def _one_save_at_a_time(disk: SimulatedDisk) -> None:
    """INV-04: nothing is written of a save once the next one of its writer has begun, of whichever role."""
    newest: dict[tuple[str, int], SaveId] = {}
    for operation in disk.trace:
        run, staging, inside = operation.path.partition("/checkpoints/.staging/")
        if not staging or operation.verb not in ("mkdir", "create", "write"):
            continue
        try:
            save = SaveId.parse(inside.partition("/")[0])
        except ValueError:
            continue  # a note, or what was taken away
        last = newest.setdefault((run, save.epoch), save)
        need(last.counter <= save.counter, "INV-04", f"{operation.path} is written while {last} is under way")
        newest[run, save.epoch] = save


def _tells(operation: Operation) -> bool:
    moves = operation.verb in ("publish", "rename")
    changes = _matters(operation.path) and not operation.verb.startswith("sync")
    return operation.effect is not None and (moves or changes)


def _matters(path: str) -> bool:
    return _CHECKPOINT in path or _ARTIFACT in path or path.endswith(LATEST)


def _only_forward(before: Tree, now: Tree, where: str) -> None:
    for path, data in before.items():
        if path.endswith(LATEST):
            need(path in now, "INV-03", f"latest went away by {where}")
            newer, older = now[path], data
            assert isinstance(newer, bytes) and isinstance(older, bytes)
            need(newer.decode() >= older.decode(), "INV-03", f"latest moved back by {where}")
        elif path in now:
            need(now[path] == data, "INV-02", f"{path} changed by {where}")
        else:
            number = "INV-16" if _ARTIFACT in path else "INV-02"
            need(_may_go(path, before, now), number, f"{path} went away by {where}")


def _whole(now: Tree) -> None:
    """INV-01: at no moment anything is visible that is not whole."""
    for place, manifest in ((_CHECKPOINT, CHECKPOINTS), (_ARTIFACT, ARTIFACTS)):
        for root in {path.partition(place)[0] for path in now if place in path}:
            published(now, f"{root}{place.removesuffix('iter_')}", manifest)


def _may_go(path: str, before: Tree, now: Tree) -> bool:
    """Whether retention may have taken it: behind its release marker, or with all of its checkpoint."""
    if _ARTIFACT in path:
        return False
    root, _, inside = path.partition(_CHECKPOINT)
    number, _, name = inside.partition("/")
    folder = f"{root}{_CHECKPOINT}{number}"
    if folder not in now and not any(other.startswith(f"{folder}/") for other in now):
        return True
    marker = before.get(f"{folder}/{released.RELEASED}")
    if not isinstance(marker, bytes):
        return False
    try:
        files = released.decode(marker, where=folder).files
    except MilepostError:
        return False
    return name in files or any(file.startswith(f"{name}/") for file in files)


def _evaluates_what_waits(disk: SimulatedDisk, length: int, began: Evaluating) -> None:
    """INV-07: when an evaluation begins, nothing says yet that it passed. Who was overtaken cannot know."""
    seen = look(disk.killed(length))[began.attempt]
    there = seen.published.get(began.step)
    if there is None or there.generation is None or seen.state.run.epoch != began.epoch:
        return
    need(there.manifest.save not in seen.passed, "INV-07", f"{there.path} passed, and is evaluated again")
