"""SamplingReplayLedger: the replay ledger by itself, for who keeps checkpoints without a journal.

The decisions are those of `milepost.transitions.sampling`. A sampler state is any value that `copy.deepcopy` copies.
It is copied on its way in and on its way out, and the line knows it by a key.
"""

from __future__ import annotations

import copy
import threading

from milepost.engines.ambient import SystemAmbient
from milepost.journal.sampling.boundaries import SamplingBoundary
from milepost.journal.sampling.live import LiveLine
from milepost.transitions.errors import Refused
from milepost.transitions.sampling import Sampling, SamplingRestored, SamplingToken, issued, on_restored, settled
from milepost.transitions.values import SamplingPoint

_SPARE = 16
"""So many sampler states are kept too long at most, beside as many as are of use."""


class SamplingReplayLedger:
    """Work that was issued and settled since `initial`, and the boundary from which it is safe to sample again.

    The boundary moves over the contiguous settled head only (INV-11): what is settled behind other work stays to be
    replayed, with its budget. Thread-safe. Memory follows the outstanding work.
    """

    def __init__(
        self, initial: SamplingBoundary, *, execution_id: str | None = None, max_outstanding: int | None = None
    ) -> None:
        """Begin at `initial`, as the execution of this id or of a fresh one. `max_outstanding` bounds what waits."""
        if max_outstanding is not None and (type(max_outstanding) is not int or max_outstanding < 1):
            raise Refused(f"max_outstanding: expected an integer of at least 1 or None, found {max_outstanding!r}")
        self._execution_id = execution_id if execution_id is not None else SystemAmbient().execution_id()
        self._limit = max_outstanding or 0
        self._lock = threading.Lock()
        self._states: dict[str, object] = {}
        start = SamplingRestored(boundary=self._keep(initial, 0))
        self._line = LiveLine(on_restored(Sampling(), start))

    @property
    def execution_id(self) -> str:
        """What the tokens are bound to."""
        return self._execution_id

    @property
    def boundary(self) -> SamplingBoundary:
        """The safe boundary, with a copy of its sampler state each time."""
        with self._lock:
            point = self._line.boundary
            assert point is not None, "a ledger begins with a boundary"
            return SamplingBoundary(point.epoch, point.remaining, copy.deepcopy(self._states[point.sampler_state]))

    @property
    def outstanding(self) -> int:
        """How many issues are not wholly settled."""
        return len(self._line.outstanding)

    def issue(self, after: SamplingBoundary, completions: int = 1) -> SamplingToken:
        """A token for work of so many completions, behind which sampling stands at `after`.

        `Refused`, and nothing is issued: for completions that are no integer from 1, where they are not exactly what
        the remaining budget loses, for an epoch that falls, and beyond `max_outstanding`.
        """
        with self._lock:
            number = self._line.issued + 1
            point = SamplingPoint(epoch=after.epoch, remaining=after.remaining_completions, sampler_state=str(number))
            record = issued(self._line, point, completions=completions, limit=self._limit)
            self._keep(after, number)
            self._line.issue(record)
            return SamplingToken(self._execution_id, number, completions)

    def settle(self, token: SamplingToken, index: int = 0) -> bool:
        """Whether this completion is settled by this call, even where the boundary stays.

        False for a token that is unknown, of another execution or retired, whatever its index is, for what is no
        token at all, and for a duplicate. `Refused` for an index outside the token's completions.
        """
        if type(token) is not SamplingToken:
            return False
        with self._lock:
            record = settled(self._line, token, index, execution_id=self._execution_id)
            if record is None:
                return False
            self._line.settle(record)
            self._forget()
            return True

    def _keep(self, boundary: SamplingBoundary, number: int) -> SamplingPoint:
        key = str(number)
        self._states[key] = copy.deepcopy(boundary.sampler_state)
        return SamplingPoint(epoch=boundary.epoch, remaining=boundary.remaining_completions, sampler_state=key)

    def _forget(self) -> None:
        """Drop the sampler states that nothing reaches any more, once they are half of all."""
        line = self._line
        if len(self._states) <= 2 * (len(line.outstanding) + len(line.stretches)) + _SPARE:
            return
        assert line.boundary is not None
        reached = [line.boundary, *(work.after for work in line.outstanding.values())]
        reached += [stretch.after for stretch in line.stretches.values()]
        self._states = {point.sampler_state: self._states[point.sampler_state] for point in reached}
