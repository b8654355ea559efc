"""From a log to a state: all at once, or step by step.

1. Folding is `evolve` over the records of the entries that count, in their order, and nothing else: the same bytes
   give the same state on any machine at any time (INV-09).
2. A record that cannot follow the ones before it is a finding like any other, with its place.
3. A fold may start from a cached state (`foldcache`); a replay never does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import fields, frozen

from milepost.engines.logs import Log
from milepost.journal.log import damage
from milepost.journal.log.codec import CODEC, Codec
from milepost.journal.log.damage import Finding
from milepost.journal.log.entries import Entry, Head
from milepost.journal.log.foldcache import FoldCache
from milepost.journal.log.scan import NO_WITNESSES, Mark, Scan, survey
from milepost.transitions.errors import IllegalTransition
from milepost.transitions.machine import EVOLVE, State, evolve, initial
from milepost.transitions.run import ClosedSegment
from milepost.transitions.values import Witness


@frozen(kw_only=True)
class Folded:
    """What a log comes to.

    `read` are the segments that were looked at, newest first: what an opener makes durable (`resync`) before it
    writes its header, which lists `closes`. `torn` was set aside. `entries` counts those folded now: fewer than the
    head's seq where a cache held the beginning.
    """

    state: State
    end: Mark
    closes: tuple[ClosedSegment, ...]
    torn: tuple[Finding, ...]
    read: tuple[int, ...]
    entries: int

    @property
    def head(self) -> Head:
        """The last entry that counts."""
        return self.end.head


def fold(
    log: Log,
    *,
    witnesses: Mapping[str, Witness] = NO_WITNESSES,
    below: int | None = None,
    cache: FoldCache | None = None,
    codec: Codec = CODEC,
) -> Folded:
    """The state that the log comes to.

    An opener passes its own segment's number as `below`: what lies there or behind it is none of its past.
    `witnesses` are those of the published manifests, by manifest. Raises `Damaged` or `NewerVersion`, both `Corrupt`.
    """
    surveyed = survey(log, below=below, codec=codec)
    cached = cache.load(log, surveyed) if cache is not None else None
    start, state = cached if cached is not None else (None, initial())
    scan = Scan(log, surveyed, witnesses=witnesses, start=start, codec=codec)
    # As `evolve` does, but the parts are joined to a state once and not for each record: that halves the time.
    parts = {field.name: getattr(state, field.name) for field in fields(State)}
    count = 0
    try:
        for entry in scan:
            for record in entry.records:
                for part, move in EVOLVE[type(record)]:
                    parts[part] = move(parts[part], record)
            count += 1
    except IllegalTransition as error:
        scan.refuse(damage.ILLEGAL, expected="a record that may follow", found=str(error))
    result = scan.result
    return Folded(
        state=State(**parts),
        end=result.end,
        closes=result.closes,
        torn=result.torn,
        read=surveyed.numbers,
        entries=count,
    )


def replay(
    log: Log, *, witnesses: Mapping[str, Witness] = NO_WITNESSES, codec: Codec = CODEC
) -> Iterator[tuple[Entry, State]]:
    """Every entry with the state behind it, oldest first, from the first byte. Raises as `fold` does, on the way."""
    scan = Scan(log, survey(log, codec=codec), witnesses=witnesses, codec=codec)
    state = initial()
    for entry in scan:
        try:
            for record in entry.records:
                state = evolve(state, record)
        except IllegalTransition as error:
            scan.refuse(damage.ILLEGAL, expected="a record that may follow", found=str(error))
        yield entry, state
