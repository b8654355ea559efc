"""Issued and settled work as a live writer has it: the line of the state, in dictionaries.

1. A decision is that of `milepost.transitions.sampling`, which looks at a line as it looks at a state. What it says
   is applied here without another look: nothing else makes such records.
2. `fold` gives the state that folding the same records gives. Work that was issued and settled since the fold before
   leaves nothing to do: that is why this is several times cheaper than folding each record.
"""

from __future__ import annotations

from attrs import evolve
from rpds import HashTrieMap

from milepost.transitions.sampling import Sampling, Stretch, WorkIssued, WorkSettled
from milepost.transitions.values import SamplingPoint


class LiveLine:
    """The line of `base`, and everything that was applied to it since. Not for several threads."""

    def __init__(self, base: Sampling) -> None:
        self.boundary: SamplingPoint | None = base.boundary
        self.tail: SamplingPoint | None = base.tail
        self.issued = base.issued
        self.head = base.head
        self.outstanding: dict[int, WorkIssued] = dict(base.outstanding)
        self.partly: dict[int, set[int]] = {number: set(indices) for number, indices in base.partly.items()}
        self.stretches: dict[int, Stretch] = dict(base.stretches)

    def issue(self, record: WorkIssued) -> None:
        """Apply what `issued` decided."""
        self.tail, self.issued = record.after, record.number
        self.outstanding[record.number] = record

    def settle(self, record: WorkSettled) -> None:
        """Apply what `settled` decided: the boundary moves over the settled head only (INV-11)."""
        number = record.number
        work = self.outstanding[number]
        if work.completions > 1:
            indices = self.partly.setdefault(number, set())
            indices.add(record.index)
            if len(indices) < work.completions:
                return
            del self.partly[number]
        del self.outstanding[number]
        behind = self._take(number + 1) if self.stretches else None
        last, after = (number, work.after) if behind is None else (behind.last, behind.after)
        if number == self.head:
            self.boundary, self.head = after, last + 1
            return
        front = self._take(number - 1)
        first = number if front is None else front.first
        # Its ends are the work itself, or ends of what was taken.
        self.stretches[first] = self.stretches[last] = Stretch(first=first, last=last, after=after)

    def _take(self, number: int) -> Stretch | None:
        """The stretch that begins or ends with this number, taken out."""
        stretch = self.stretches.get(number)
        if stretch is not None:
            self.stretches.pop(stretch.first)
            self.stretches.pop(stretch.last, None)
        return stretch


class FoldingLine(LiveLine):
    """A line that becomes a state again, by what was touched since it was one."""

    def __init__(self, base: Sampling) -> None:
        super().__init__(base)
        self._base = base
        self._touched: set[int] = set()

    @property
    def moved(self) -> bool:
        """Whether there is more here than in the state of the last `fold`."""
        return bool(self._touched)

    def issue(self, record: WorkIssued) -> None:
        super().issue(record)
        self._touched.add(record.number)

    def settle(self, record: WorkSettled) -> None:
        super().settle(record)
        self._touched.add(record.number)

    def _take(self, number: int) -> Stretch | None:
        stretch = super()._take(number)
        if stretch is not None:
            self._touched.update((stretch.first, stretch.last))
        return stretch

    def fold(self) -> Sampling:
        """The state behind everything that was applied."""
        if not self._touched:
            return self._base
        outstanding, partly, stretches = self._base.outstanding, self._base.partly, self._base.stretches
        for number in self._touched:
            work, indices, stretch = self.outstanding.get(number), self.partly.get(number), self.stretches.get(number)
            outstanding = outstanding.discard(number) if work is None else outstanding.insert(number, work)
            stretches = stretches.discard(number) if stretch is None else stretches.insert(number, stretch)
            if indices is not None:
                partly = partly.insert(number, HashTrieMap(dict.fromkeys(indices, True)))
            else:
                partly = partly.discard(number)
        self._base = evolve(
            self._base,
            boundary=self.boundary,
            tail=self.tail,
            issued=self.issued,
            head=self.head,
            outstanding=outstanding,
            partly=partly,
            stretches=stretches,
        )
        self._touched = set()
        return self._base

    def behind(self, sampling: Sampling) -> FoldingLine:
        """The line of a state that came behind that of the last `fold`: this one, where no issued work moved."""
        base = self._base
        if sampling.boundary is base.boundary and sampling.outstanding is base.outstanding:
            self._base = sampling
            return self
        return FoldingLine(sampling)
