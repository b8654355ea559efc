"""What the world outside was told: promises, marked in the trace of the disk where they were made."""

from __future__ import annotations

from typing import cast

from attrs import frozen

from milepost.engines.simulated import SimulatedDisk
from milepost.journal import SamplingBoundary
from milepost.transitions.values import Plan, SaveId
from tests.crash.given import Values


@frozen(kw_only=True)
class Opened:
    """`Journal.open` returned: this epoch and what it continues from are durable."""

    attempt: str
    epoch: int
    execution: str
    step: int


@frozen(kw_only=True)
class Offered:
    """A save was begun with these values. Nothing is promised; whatever becomes of it must hold them.

    With several roles `counters` are what each of them had trained, and `loop` is what the loop said. `sampling` is
    where sampling has to go on from it.
    """

    attempt: str
    save: SaveId
    values: Values
    counters: tuple[tuple[str, int], ...] = ()
    loop: tuple[tuple[str, object], ...] = ()
    sampling: SamplingBoundary | None = None


@frozen(kw_only=True)
class Saved:
    """A checkpoint was acknowledged: published, durable, and latest names it or a later one."""

    attempt: str
    save: SaveId
    manifest: str
    values: Values


@frozen(kw_only=True)
class Made:
    """An artifact was acknowledged: published and durable beside the checkpoints, for ever (INV-16)."""

    attempt: str
    save: SaveId
    manifest: str


@frozen(kw_only=True)
class Evaluating:
    """The evaluation of a step began, with these values. What was due of the step, `due`, is published (INV-06)."""

    attempt: str
    epoch: int
    step: int
    due: Plan
    values: Values


@frozen(kw_only=True)
class Announced:
    """People were told that this checkpoint is validated and published."""

    attempt: str
    save: SaveId


@frozen(kw_only=True)
class Covered:
    """The order to stop came with the word that `plan` of everything up to this step is saved."""

    attempt: str
    epoch: int
    step: int
    plan: Plan


@frozen(kw_only=True)
class Ended:
    """`close` returned: the end of the epoch is durable."""

    attempt: str
    epoch: int


Promise = Opened | Offered | Saved | Made | Evaluating | Announced | Covered | Ended
Promises = tuple[Promise, ...]


def promises(disk: SimulatedDisk, length: int | None = None) -> Promises:
    """What was promised in the first `length` entries of the trace."""
    return cast(Promises, tuple(note[0] for note in disk.marks(length)))
