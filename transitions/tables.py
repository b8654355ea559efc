"""A lifecycle as a table: from a stage, by a record, to a stage. What the table lacks is refused."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from milepost.transitions.errors import IllegalTransition


class Stage(StrEnum):
    """The stages of one lifecycle. Strings, so that looking one up in a table costs a replay next to nothing."""


S = TypeVar("S", bound=Stage)

Table = Mapping[tuple[S, type], S]


def follow(table: Table[S], stage: S, record: object, *, of: str) -> S:
    """The next stage, or `IllegalTransition` that names what was found and what the table allows."""
    found = table.get((stage, type(record)))
    if found is None:
        allowed = sorted(kind.__name__ for at, kind in table if at is stage)
        raise IllegalTransition(
            f"{of} in stage {stage.name} has no {type(record).__name__}; "
            f"the table allows {', '.join(allowed) if allowed else 'nothing more'}"
        )
    return found
