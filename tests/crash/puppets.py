"""Several members of a crew in one process, each with its own trainers and its own process on the simulated disk.

1. Member 0 leads. The others are moved by `each`, one behind the other, in an order that a test may choose; with the
   same order everything happens in the same order.
2. What goes to another member and comes back is pickled, as it would be between processes.
3. A member whose process was killed is lost, by the name of its rank or role; the crew is broken then, as those of
   `processes.py` and `remote.py` are.
4. One member alone performs its orders as `Alone` does: what it raises is raised as it is.
5. Ranks hear the caller's thread only. Roles in other processes hear always: then there is one caller, and nobody
   else arrives.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from attrs import evolve, frozen

from milepost.engines.crew import Arrival, Crew
from milepost.engines.crew.failures import Failure, Lost, repeated
from milepost.engines.crew.links import packed
from milepost.engines.crew.member import Member
from milepost.engines.crew.orders import Answer, Order
from milepost.engines.crew.rounds import Round
from milepost.engines.simulated import Killed, Process
from milepost.engines.slots import SteppedSlot
from milepost.engines.termination import Termination
from tests.crash.given import RankTrainer

T = TypeVar("T")

Turns = Callable[[Sequence[int]], Sequence[int]]
"""In which order members perform their orders."""


@frozen(kw_only=True)
class Cast:
    """Who takes part in a run: by member the roles that it has (`""`: the one trainer of a run without names).

    `apart` says that the other members are roles in processes of their own, and not ranks.
    """

    members: tuple[tuple[str, ...], ...]
    apart: bool = False
    turns: Turns = list

    @property
    def roles(self) -> tuple[str, ...]:
        """The names of the roles, sorted; none where the run has one trainer."""
        return tuple(sorted({role for own in self.members for role in own} - {""}))

    def trainers(self, life: int) -> tuple[dict[str, RankTrainer], ...]:
        """By member the trainers of its roles, each with its rank among those of its role."""
        made: list[dict[str, RankTrainer]] = []
        for own in self.members:
            ranks = {role: sum(role in before for before in made) for role in own}
            made.append({role: RankTrainer(life, rank=rank) for role, rank in ranks.items()})
        return tuple(made)


TWO_RANKS = Cast(members=(("",), ("",)))
TWO_ROLES = Cast(members=(("critic", "policy"),))
ROLES_APART = Cast(members=(("critic",), ("policy",)), apart=True)
ROLES_OF_RANKS = Cast(members=(("critic", "policy"), ("critic", "policy")), turns=lambda orders: list(orders)[::-1])
"""The second member of it is always the first to perform."""


class BesideSlot(SteppedSlot):
    """A stepped slot that says whether what happens now happens beside the loop."""

    moving = False

    def step(self) -> bool:
        self.moving = True
        try:
            return super().step()
        finally:
            self.moving = False


class Puppets(Crew):
    """The crew of these members, whose processes are `lives`, in the same order.

    `meanwhile` happens before a member performs an order, with its number: it may raise, or kill. `told` is what the
    other members' watches observed, and `raised` is what they saw the calls of the facade raise.
    """

    def __init__(
        self, members: Sequence[Member], lives: Sequence[Process], *, cast: Cast, beside: Callable[[], bool]
    ) -> None:
        self.members = tuple(members)
        self.told: dict[int, Termination] = {}
        self.raised: list[Exception] = []
        self.meanwhile: Callable[[int, Order], object] = _nothing
        self._lives = tuple(lives)
        self._cast = cast
        self._beside = beside
        self._broken = ""

    @property
    def index(self) -> int:
        return 0

    @property
    def size(self) -> int:
        return len(self.members)

    def called(self, index: int) -> str:
        if self.size == 1 or (self._cast.apart and not index):
            return "this process"
        return f"role {', '.join(self._cast.members[index])}" if self._cast.apart else f"rank {index}"

    def hears(self, index: int) -> bool:
        return self._cast.apart or index == 0

    def call(self, arrival: Arrival, work: Callable[[tuple[Arrival, ...]], T]) -> T:
        if self._broken:
            raise Lost(self._broken)
        if self._cast.apart:
            return work((arrival,))
        gone = Round(self.called)
        for index in range(1, self.size):
            if not self._lives[index].alive:
                gone.lose(index, "is gone")
        if gone.lost:
            self._broken = gone.why()
            raise Lost(self._broken)
        others = [evolve(arrival, told=self.told.get(index)) for index in range(1, self.size)]
        try:
            return work((arrival, *(_carried(one) for one in others)))
        except Exception as error:
            self.raised.append(repeated(_carried(Failure.of(error, member=self.called(0)))))
            raise

    def each(self, orders: Mapping[int, Order]) -> dict[int, Answer]:
        others = [index for index in orders if index]
        deaf = [self.called(index) for index in others if not self.hears(index)]
        assert not (deaf and self._beside()), f"{deaf} hear the caller's thread only"
        if others and self._broken:
            raise Lost(self._broken)
        if self.size == 1:
            return {index: self._perform(order) for index, order in orders.items()}
        asked = Round(self.called)
        for index in self._cast.turns(sorted(orders)):
            if index:
                self._order(asked, index, orders[index])
            else:
                asked.perform(0, self._perform, orders[0])
        if asked.lost:
            self._broken = asked.why()
        return asked.result()

    def _perform(self, order: Order) -> Answer:
        self.meanwhile(0, order)
        return self.members[0].perform(order)

    def _order(self, asked: Round, index: int, order: Order) -> None:
        """Have another member perform an order, in its own process."""
        try:
            self.meanwhile(index, order)
            self._lives[index].check_alive()
            asked.hear(index, _carried(self.members[index].perform(_carried(order))))
        except Killed:
            if self._lives[index].alive:
                raise  # the leader died meanwhile
            asked.lose(index, "is gone")
        except Exception as error:  # noqa: BLE001 - it travels to the leader, whatever it is
            asked.hear(index, _carried(Failure.of(error, member=self.called(index))))

    def leave(self, failure: BaseException | None) -> None:
        self._broken = self._broken or "the leader left"


def _nothing(_index: int, _order: Order) -> None:
    """What happens where nothing is to go wrong."""


def step_slots(member: Member) -> None:
    """Each role's slot moves when it is joined, so that files are written in one order."""
    for role in member._roles.values():
        role.slot = SteppedSlot()


def _carried(value: Any) -> Any:
    """What arrives of it in another process."""
    return pickle.loads(packed(value))
