"""The ledger as simply as it can be said: a list of works, and the boundary found anew each time."""

from __future__ import annotations

from attrs import define, field

from milepost.journal import SamplingBoundary, SamplingToken


@define
class Issued:
    """A work of the execution: where it leads, and what of it is settled."""

    token: SamplingToken
    after: SamplingBoundary
    settled: set[int] = field(factory=set)

    @property
    def whole(self) -> bool:
        return len(self.settled) == self.token.completions


@define
class Reference:
    """One execution from `initial` on."""

    initial: SamplingBoundary
    works: list[Issued] = field(factory=list)

    @property
    def boundary(self) -> SamplingBoundary:
        boundary = self.initial
        for work in self.works:
            if not work.whole:
                break
            boundary = work.after
        return boundary

    @property
    def tail(self) -> SamplingBoundary:
        return self.works[-1].after if self.works else self.initial

    @property
    def outstanding(self) -> int:
        return sum(not work.whole for work in self.works)

    def may_issue(self, after: SamplingBoundary, completions: int) -> bool:
        lost = self.tail.remaining_completions - after.remaining_completions
        return completions >= 1 and lost == completions and after.epoch >= self.tail.epoch

    def settle(self, token: SamplingToken, index: int) -> bool | None:
        """What the ledger has to say; None where it has to refuse."""
        retired = 0
        while retired < len(self.works) and self.works[retired].whole:
            retired += 1
        work = next((one for one in self.works[retired:] if one.token == token), None)
        if work is None:
            return False
        if not 0 <= index < token.completions:
            return None
        if index in work.settled:
            return False
        work.settled.add(index)
        return True
