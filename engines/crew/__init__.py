"""The processes that hold live state, and how one of them leads the others.

1. Every decision is taken by the leader, member 0. The others arrive at the same call of the facade, perform the
   orders that it gives, and leave the call with what it returns or raises.
2. An order is performed by a `Member`, each on its own live state. Its answers come back together; a failure of any
   of them is raised everywhere, with the name of the member that failed (`failures.py`).
3. Who does not arrive within the time limit, and who is gone, is named by an `Unavailable`. After that the crew is
   broken: every later call raises the same, and what was published stays.
4. Orders are given by the thread that made the call. Only members that can `hear` in the background may be given one
   by the thread of an asynchronous save.

`orders.py` has the orders and their answers, `member.py` carries them out, `processes.py` is the crew of a
torch.distributed world, and `remote.py` one whose members live behind futures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from attrs import frozen

from milepost.engines.crew.orders import Answer, Order
from milepost.engines.termination import Termination

T = TypeVar("T")


@frozen(kw_only=True)
class Arrival:
    """A member came to a call of the facade. All of them have to have come to the same one, with equal arguments.

    `told` is what this member's own watch observed, and `said` what else it has to tell: neither need be what
    another's is.
    """

    call: str
    arguments: tuple[tuple[str, object], ...] = ()
    told: Termination | None = None
    said: object = None


class Crew(Protocol):
    """The members of one run, as one of them sees them. `distributed`: they are ranks of torch.distributed."""

    distributed: bool = False

    @property
    def index(self) -> int:
        """Which member this process is; 0 leads."""
        ...

    @property
    def size(self) -> int:
        """How many members there are."""
        ...

    def called(self, index: int) -> str:
        """The member as messages name it: `rank 1`, `role critic`."""
        ...

    def call(self, arrival: Arrival, work: Callable[[tuple[Arrival, ...]], T]) -> T:
        """One call of the facade. The leader does `work` once every member has arrived, and may give orders
        meanwhile; the others perform these. Everyone gets what `work` returned, or an error that says what it raised.

        `Refused` where the members came to different calls.
        """
        ...

    def each(self, orders: Mapping[int, Order]) -> dict[int, Answer]:
        """Have each of these members perform its order, beside each other; their answers. By the leader only.

        Raises what `failures.combined` makes of the failures, once all of them have answered or are lost.
        """
        ...

    def hears(self, index: int) -> bool:
        """Whether this member may be given orders by another thread, outside of a call."""
        ...

    def lost(self, *, within_s: float) -> str:
        """Who is lost, in one sentence, if that shows within so many seconds; then the crew is broken.

        For who fails outside of a call and has to know whether another member was the cause.
        """
        ...

    def leave(self, failure: BaseException | None) -> None:
        """This process is done, or goes because of a failure: the others are told so. Leaving twice is harmless."""
        ...


class Alone:
    """One process: its one member performs every order here and now."""

    index = 0
    size = 1
    distributed = False

    def __init__(self, perform: Callable[[Order], Answer]) -> None:
        self._perform = perform

    def called(self, index: int) -> str:
        return "this process"

    def call(self, arrival: Arrival, work: Callable[[tuple[Arrival, ...]], T]) -> T:
        return work((arrival,))

    def each(self, orders: Mapping[int, Order]) -> dict[int, Answer]:
        return {index: self._perform(order) for index, order in orders.items()}

    def hears(self, index: int) -> bool:
        return True

    def lost(self, *, within_s: float) -> str:
        return ""

    def leave(self, failure: BaseException | None) -> None: ...
