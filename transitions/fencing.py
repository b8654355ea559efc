"""The fence and the agreement of a controller: which report counts, and whether two sides resumed from the same.

A controller that restarts leaves workers of its earlier start behind; what they still send must change nothing.

1. A start has an execution id of its own, never used before (`milepost.engines.ambient`). Workers are told it when
   they register, and every report carries the one that its worker was told.
2. `admit` is asked before anything else: a report with another id, or with none, is stale. It touches no counter, no
   queue and no ownership, so that what the new start resumed from stays what it was (INV-11).
3. The id of this start is not in what `admit` answers: a stale worker must not learn how to go on.
4. `disagreement` compares what both sides resumed from, the identity of the checkpoint included: two checkpoints with
   equal counters are two checkpoints. Types count as much as values. The names of keys come back, never a value.

Nothing here knows a transport. Over HTTP the first is 410 Gone and the second 409 Conflict.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from milepost.transitions.errors import Refused

SHOWN = 64
"""How many characters of a foreign id a message repeats."""


@frozen(kw_only=True)
class Stale:
    """A report that is not of this start. `reported` is the id it came with, shortened; None where it had none."""

    reported: str | None

    def __str__(self) -> str:
        if self.reported is None:
            found = "carries no execution id, which it needs here"
        else:
            found = f"is of execution {self.reported!r}, and another one runs now"
        return f"the report {found}; nothing was changed: end this worker"


def admit(reported: object, *, execution_id: str) -> Stale | None:
    """None for a report of this start; else why it is stale. Ask before the report touches anything.

    `reported` may be whatever arrived: only a string that is `execution_id` to the last character is admitted. An
    empty `execution_id` is `Refused`: it would admit every report that left its own empty.
    """
    if not execution_id:
        raise Refused("a fence needs the execution id of this start, and it is empty: make a fresh one at each start")
    if type(reported) is str and reported == execution_id:
        return None
    return Stale(reported=None if reported is None else str(reported)[:SHOWN])


def disagreement(controller: Mapping[str, object], worker: Mapping[str, object]) -> tuple[str, ...]:
    """The names of the keys in which the two differ, sorted; empty where they agree.

    Equal means the same type and the same value, all the way down: True is not 1, 1 is not 1.0, a tuple is not a
    list, and NaN equals nothing. A key that one side lacks differs. The order of keys means nothing.
    """
    shared = {name for name in controller if name in worker and _is_same(controller[name], worker[name])}
    return tuple(sorted({*controller, *worker} - shared))


def _is_same(one: object, other: object) -> bool:
    """As deep as both go alike, so no deeper than the side that is known."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one == other
