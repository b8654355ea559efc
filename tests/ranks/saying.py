"""What a rank says of a call: a value, or an error by its kind and its text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from milepost.engines.checkpoints.manifest import MANIFEST
from milepost.journal.forensics.reading import locate
from milepost.journal.forensics.verifying import verify
from milepost.journal.log.entries import Entry
from milepost.transitions.errors import MilepostError
from milepost.transitions.machine import State

T = TypeVar("T")

Saying = tuple[str, str]
"""The public kind of the error and its text; or `value` and what was returned."""


def saying(do: Callable[[], object]) -> Saying:
    try:
        return "value", repr(do())
    except MilepostError as error:
        kinds = [kind for kind in type(error).__mro__ if kind.__module__ == MilepostError.__module__]
        return kinds[0].__name__, str(error)


def records(history: Iterable[tuple[Entry, State]], kind: type[T]) -> list[T]:
    """All records of this kind, oldest first."""
    return [record for entry, _ in history for record in entry.records if isinstance(record, kind)]


def visible(root: Path) -> tuple[int, ...]:
    """The steps of the published checkpoints below `root`, each of them proven whole and what the journal says."""
    logs = root.glob("milepost/default/run/*/journal/*.jsonl")
    runs = {log.parent.parent for log in logs}
    if not runs:  # it died before its first record
        assert not list(root.glob("**/iter_*"))
        return ()
    (run,) = runs
    verified = verify(locate(str(run)))
    assert verified.exit_code == 0, verified.findings
    found = sorted((run / "checkpoints").glob(f"iter_*/{MANIFEST}"))
    return tuple(int(path.parent.name.removeprefix("iter_")) for path in found)
