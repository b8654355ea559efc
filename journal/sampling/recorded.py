"""`journal.sampling`: the replay ledger of a run, recorded in its journal.

1. A call answers at once and waits for no disk: its record rides on the next entry (`journal/driver.py`, rule 6). A
   crash may lose what was not durable yet, and then no checkpoint rests on it either.
2. Each full save carries the boundary of the moment in which it is opened; who resumes from it samples on from there.
3. Sampler states are JSON values, refused otherwise by the path of the wrong part; what is given back is a copy.
"""

from __future__ import annotations

from milepost.journal.driver import Driver
from milepost.journal.sampling.boundaries import SamplingBoundary, boundary_of, bytes_of, point_of
from milepost.transitions.sampling import SamplingToken


class RecordedLedger:
    """The ledger of one execution of a run. Thread-safe. `limit` bounds what is outstanding; 0: nothing does."""

    def __init__(self, driver: Driver, *, limit: int) -> None:
        self._driver = driver
        self._limit = limit
        opened = driver.state.run.opened
        assert opened is not None, "a run that is led was opened"
        self._execution_id = opened.execution_id

    @property
    def execution_id(self) -> str:
        """What the tokens are bound to: the id of this start."""
        return self._execution_id

    @property
    def boundary(self) -> SamplingBoundary | None:
        """The safe boundary, a copy each time; None where nothing was begun or restored."""
        point = self._driver.state.sampling.boundary
        return None if point is None else boundary_of(point)

    @property
    def outstanding(self) -> int:
        """How many issues are not wholly settled."""
        return len(self._driver.state.sampling.outstanding)

    def begin(self, initial: SamplingBoundary) -> SamplingBoundary:
        """Where this execution begins: at `initial`, or where a boundary was restored or begun with, at that one."""
        point = point_of(initial)
        self._driver.begin_sampling(point, size=bytes_of(point.sampler_state))
        boundary = self.boundary
        assert boundary is not None, "it was begun a moment ago"
        return boundary

    def issue(self, after: SamplingBoundary, completions: int = 1) -> SamplingToken:
        """A token for work of so many completions, behind which sampling stands at `after`.

        The first issue of an execution that has no boundary implies one: epoch 1, what `after` leaves and the
        completions together as the remaining budget, and None as the sampler state, which says: from the beginning.

        `Refused`, and nothing is issued: for completions that are no integer from 1, where they are not exactly what
        the remaining budget loses, for an epoch that falls, for a sampler state that is no JSON or longer than 256
        KiB, and beyond `rl.sampling.max_outstanding`.
        """
        point = point_of(after)
        record = self._driver.issue_work(
            point, completions=completions, limit=self._limit, size=bytes_of(point.sampler_state)
        )
        return SamplingToken(self._execution_id, record.number, completions)

    def settle(self, token: SamplingToken, index: int = 0) -> bool:
        """Whether this completion is settled by this call, even where the boundary stays.

        It is for what was trained on, discarded or filtered; receipt and dispatch settle nothing. False for a token
        that is unknown, of another execution or retired, whatever its index is, for what is no token at all, and for
        a duplicate. `Refused` for an
        index outside the token's completions.
        """
        if type(token) is not SamplingToken:
            return False
        return self._driver.settle_work(token, index=index)
