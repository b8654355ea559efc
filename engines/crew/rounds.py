"""One round of orders on the leader: what it performs itself, what the others answer, and what is to be raised.

Whoever failed is heard out together with the others, so that one error names them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from attrs import define, evolve, field

from milepost.engines.crew.failures import Failure, Lost, combined
from milepost.engines.crew.orders import Answer, Order

T = TypeVar("T")


@define
class Round:
    """Made for one `Crew.each`; `called` names a member."""

    _called: Callable[[int], str]
    lost: dict[int, str] = field(factory=dict)
    _answers: dict[int, Answer] = field(factory=dict)
    _failures: dict[int, Failure] = field(factory=dict)
    _cause: Exception | None = None

    def perform(self, index: int, do: Callable[[Order], Answer], order: Order) -> None:
        """Have this process do its own part; an interrupt is nobody's failure and goes on."""
        try:
            self._answers[index] = do(order)
        except Exception as error:  # noqa: BLE001 -- raised by `result`, with what the others answer
            self.fail(index, error)

    def fail(self, index: int, error: Exception) -> None:
        """This member failed with an error that arose or arrived here."""
        self._cause = self._cause or error
        self._failures[index] = Failure.of(error, member=self._called(index))

    def hear(self, index: int, answer: Answer | Failure) -> None:
        """This member answered."""
        if isinstance(answer, Failure):
            self._failures[index] = evolve(answer, member=self._called(index))
        else:
            self._answers[index] = answer

    def lose(self, index: int, how: str) -> None:
        """This member is lost, and how: a text to be put behind its name."""
        self.lost[index] = how

    def why(self) -> str:
        """Who is lost, in one sentence."""
        return "; ".join(f"{self._called(index)} {self.lost[index]}" for index in sorted(self.lost))

    def result(self) -> dict[int, Answer]:
        """The answers, or else what `combined` makes of failures and losses; a mere loss reads as it does later."""
        if self.lost and not self._failures:
            raise Lost(self.why())
        failures = dict(self._failures)
        for index, how in self.lost.items():
            failures[index] = Failure.lost(member=self._called(index), why=how)
        if failures:
            raise combined([failures[index] for index in sorted(failures)]) from self._cause
        return {index: self._answers[index] for index in sorted(self._answers)}
