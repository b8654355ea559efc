"""The crew of a torch.distributed world: every rank is a member, and rank 0 leads.

    follower   Arrived ─▶ (Ordered ─▶ Answered)* ─▶ Returned or Raised         leader
               ◀────────────────────── Parted, at any time ──────────────────▶

1. A call is over for everybody: with the value that rank 0's work returned, or with what it raised.
2. Rank 0 sends every order before it performs its own, and collects the answers after that.
3. `timeout_s` is how long members may be apart. Rank 0 waits so long for arrivals once it has arrived, for answers
   once its own order is done. Others wait three times as long for rank 0, which may be waiting for a third. Choose it
   longer than the longest thing that one rank does while the others wait, such as writing the whole model.
4. Whoever is lost is lost for good: rank 0 tells the others before it raises, and from then on every call raises the
   same `Lost`. A rank that leaves says why, and is named at the others' next call, at once.
5. Arrivals and answers are numbered, because an interrupt (Ctrl-C) may end a call on rank 0 before they are in.

Source: seeds 000, "Rank consistency".
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn, Self, TypeVar, cast

import torch.distributed as dist
from attrs import frozen

from milepost.engines.crew import Arrival, Crew
from milepost.engines.crew.failures import Failure, Lost, repeated
from milepost.engines.crew.links import Gone, Link, Parted, connect, packed, ready
from milepost.engines.crew.orders import Answer, Order
from milepost.engines.crew.rounds import Round
from milepost.transitions.errors import Refused

T = TypeVar("T")

_PATIENCE = 3
"""Rule 3."""

_log = logging.getLogger("milepost")


@frozen(kw_only=True)
class _Arrived:
    number: int
    arrival: Arrival


@frozen(kw_only=True)
class _Ordered:
    number: int
    order: Order


@frozen(kw_only=True)
class _Answered:
    number: int
    answer: Answer | Failure


@frozen(kw_only=True)
class _Returned:
    value: object


@frozen(kw_only=True)
class _Raised:
    failure: Failure


class Processes(Crew):
    """One rank's view of the crew. Made by `connect`; calls come from one thread at a time."""

    distributed = True

    def __init__(self, perform: Callable[[Order], Answer], *, links: dict[int, Link], timeout_s: float) -> None:
        self._perform = perform
        self._links = links
        self._timeout_s = timeout_s
        self._index = dist.get_rank()
        self._size = dist.get_world_size()
        self._broken = ""
        self._calls = 0
        self._rounds = 0
        self._caller: int | None = None

    @classmethod
    def connect(cls, perform: Callable[[Order], Answer], *, timeout_s: float) -> Self:
        """The crew of the default process group, which has to be initialised; called by every rank of it.

        `perform` carries out this rank's orders. `Lost` names who does not connect within `timeout_s` seconds.
        """
        return cls(perform, links=connect(timeout_s=timeout_s), timeout_s=timeout_s)

    @property
    def index(self) -> int:
        return self._index

    @property
    def size(self) -> int:
        return self._size

    def called(self, index: int) -> str:
        return f"rank {index}"

    def hears(self, index: int) -> bool:
        return index == 0

    def call(self, arrival: Arrival, work: Callable[[tuple[Arrival, ...]], T]) -> T:
        if self._caller is not None:
            raise Refused(f"{_shown(arrival)} inside another call: let that one return first")
        if self._broken:
            raise Lost(self._broken)
        self._caller = threading.get_ident()
        self._calls += 1
        try:
            return self._lead(arrival, work) if self._index == 0 else cast(T, self._follow(arrival))
        finally:
            self._caller = None

    def each(self, orders: Mapping[int, Order]) -> dict[int, Answer]:
        assert self._index == 0, "only rank 0 gives orders"
        others = [index for index in sorted(orders) if index]
        assert not others or self._caller == threading.get_ident(), "other ranks hear the caller's thread only"
        if others and self._broken:
            raise Lost(self._broken)
        self._rounds += bool(others)
        messages = {index: packed(_Ordered(number=self._rounds, order=orders[index])) for index in others}
        asked = Round(self.called)
        self._send(messages, lost=asked.lost)
        if 0 in orders:
            asked.perform(0, self._perform, orders[0])
        waiting = messages.keys() - asked.lost.keys()
        answers: dict[int, Answer | Failure] = self._collect(waiting, take=self._answered, lost=asked.lost)
        for index, answer in answers.items():
            asked.hear(index, answer)
        if asked.lost:
            self._break(asked.why())
        return asked.result()

    def lost(self, *, within_s: float) -> str:
        links, until_s = dict(self._links), time.monotonic() + within_s
        while not self._broken and (found := ready(links, timeout_s=until_s - time.monotonic())):
            ends = {index: end for index in found if (end := self._end(index)) is not None}
            gone = [f"{self.called(index)} {end}" for index, end in ends.items() if isinstance(end, Gone)]
            told = [end.why for end in ends.values() if isinstance(end, Parted)]
            if ends:
                self._break("; ".join(gone or told))
        return self._broken

    def _end(self, index: int) -> Gone | Parted | None:
        """How this link ended, if what there is to receive says so."""
        try:
            message = self._links[index].receive(timeout_s=0.0)
        except Gone as gone:
            return gone
        return message if isinstance(message, Parted) else None

    def leave(self, failure: BaseException | None) -> None:
        how = "in peace" if failure is None else f"because of {type(failure).__name__}: {failure}"
        why = f"{self.called(self._index)} left {how}"
        for link in self._links.values():
            link.part(why)
        self._broken = self._broken or why

    # ------------------------------------------------------------------------------------------------- rank 0

    def _lead(self, arrival: Arrival, work: Callable[[tuple[Arrival, ...]], T]) -> T:
        try:
            arrivals = self._gathered(arrival)
            _compare(arrivals)
            value = work(arrivals)
            message = packed(_Returned(value=value))
        except BaseException as error:
            self._tell(packed(_Raised(failure=Failure.of(error, member=self.called(0)))))
            raise
        self._tell(message)
        return value

    def _gathered(self, arrival: Arrival) -> tuple[Arrival, ...]:
        """Every rank's arrival; `Lost` as soon as one of them cannot come any more."""
        met = Round(self.called)
        late = f"did not arrive at {_shown(arrival)} within {self._timeout_s:g} s"
        found = self._collect(self._links, take=self._arrived, lost=met.lost, late=late, hurry=True)
        if met.lost:
            self._break(met.why())
            raise Lost(self._broken)
        return (arrival, *(found[index] for index in sorted(found)))

    def _tell(self, message: bytes) -> None:
        """The end of a call, for everybody who is there. Who is found lost only now is named at the next call."""
        if self._broken:
            return
        told = Round(self.called)
        self._send(dict.fromkeys(self._links, message), lost=told.lost)
        if told.lost:
            self._break(told.why())

    def _send(self, messages: Mapping[int, bytes], *, lost: dict[int, str]) -> None:
        """Send to each; who is lost goes to `lost`."""
        for index, message in messages.items():
            try:
                self._links[index].send(message)
            except Gone as gone:
                lost[index] = self._how(index, self._links[index].parting() or gone)

    def _collect(
        self,
        indices: Iterable[int],
        *,
        take: Callable[[object], T | None],
        lost: dict[int, str],
        late: str = "",
        hurry: bool = False,
    ) -> dict[int, T]:
        """What `take` accepts of each of them; who is lost goes to `lost`. In a `hurry` the first loss ends it."""
        until_s = time.monotonic() + self._timeout_s
        waiting = set(indices)
        taken: dict[int, T] = {}
        while waiting and not (hurry and lost):
            found = ready({index: self._links[index] for index in waiting}, timeout_s=until_s - time.monotonic())
            if not found:
                lost.update(dict.fromkeys(sorted(waiting), late or f"did not answer within {self._timeout_s:g} s"))
                break
            for index in found:
                try:
                    message = self._links[index].receive(timeout_s=self._timeout_s)
                except Gone as gone:
                    message = gone
                if isinstance(message, Gone | Parted):
                    lost[index] = self._how(index, message)
                elif (value := take(message)) is not None:
                    taken[index] = value
                else:
                    continue  # what came after its call had been interrupted
                waiting.discard(index)
        return taken

    def _how(self, index: int, end: Gone | Parted) -> str:
        """How a rank was lost, in its own words where it left some; to be put behind its name."""
        return end.why.removeprefix(f"{self.called(index)} ") if isinstance(end, Parted) else str(end)

    def _arrived(self, message: object) -> Arrival | None:
        return message.arrival if isinstance(message, _Arrived) and message.number == self._calls else None

    def _answered(self, message: object) -> Answer | Failure | None:
        return message.answer if isinstance(message, _Answered) and message.number == self._rounds else None

    def _break(self, why: str) -> None:
        """From now on every call raises this, here and, told so, on everyone who is left."""
        self._broken = why
        for link in self._links.values():
            link.part(why)  # also to who was merely late

    # ----------------------------------------------------------------------------------------- every other rank

    def _follow(self, arrival: Arrival) -> object:
        try:
            self._say(_Arrived(number=self._calls, arrival=arrival))
            while True:
                message = self._heard()
                if isinstance(message, _Ordered):
                    self._say(_Answered(number=message.number, answer=self._performed(message.order)))
                elif isinstance(message, _Raised):
                    raise repeated(message.failure)
                else:
                    return cast(_Returned, message).value
        except Exception:
            raise
        except BaseException as interrupt:
            self.leave(interrupt)  # out of step: it could not tell later orders from earlier ones
            raise

    def _performed(self, order: Order) -> Answer | Failure:
        """The answer, proven to be one that can travel."""
        try:
            answer = self._perform(order)
            packed(answer)
        except Exception as error:  # noqa: BLE001 -- it travels to rank 0, which raises it everywhere
            _log.debug("%s could not perform %s", self.called(self._index), type(order).__name__, exc_info=True)
            return Failure.of(error, member=self.called(self._index))
        return answer

    def _say(self, message: _Arrived | _Answered) -> None:
        try:
            self._links[0].send(packed(message))
        except Gone as gone:
            self._lose(self._links[0].parting() or gone)

    def _heard(self) -> object:
        try:
            message = self._links[0].receive(timeout_s=_PATIENCE * self._timeout_s)
        except Gone as gone:
            message = gone
        if isinstance(message, Gone | Parted):
            self._lose(message)
        return message

    def _lose(self, end: Gone | Parted) -> NoReturn:
        self._broken = end.why if isinstance(end, Parted) else f"{self.called(0)} {end}"
        self._links[0].close()
        raise Lost(self._broken)


def _compare(arrivals: tuple[Arrival, ...]) -> None:
    """`Refused` where somebody came to another call than rank 0."""
    first = (arrivals[0].call, arrivals[0].arguments)
    other = [(index, one) for index, one in enumerate(arrivals) if (one.call, one.arguments) != first]
    if other:
        said = ", ".join(f"rank {index} called {_shown(arrival)}" for index, arrival in other)
        wanted = f"while rank 0 called {_shown(arrivals[0])}"
        raise Refused(f"{said} {wanted}: every rank has to make the same calls in the same order")


def _shown(arrival: Arrival) -> str:
    return f"{arrival.call}({', '.join(f'{name}={value!r}' for name, value in arrival.arguments)})"
