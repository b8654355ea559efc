"""Ranks that are killed or stopped: everyone who is left says who it was, long before the time limit."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch.distributed as dist

from milepost.engines.crew import Arrival
from milepost.engines.crew.failures import Lost
from milepost.engines.crew.orders import Answer, Done, Enlist, Order, Stage
from milepost.engines.crew.processes import Processes
from tests.crew.spawn import Ended, run

pytestmark = pytest.mark.kills

_GENEROUS_S = 20.0
_GONE = "is gone: its process has ended or cannot be reached"
_MORE_THAN_SOCKETS_HOLD = "x" * (32 << 20)


def survive(victim: int, where: str) -> list[str]:
    """Call twice; the victim is killed in the first call or before it. What the calls said to a survivor."""
    rank = dist.get_rank()

    def die(here: str) -> None:
        if (rank, where) == (victim, here):
            os.kill(os.getpid(), signal.SIGKILL)

    def perform(order: Order) -> Answer:
        die("order")
        return Done()

    def work(arrivals: object) -> object:
        die("work")
        return crew.each({0: Enlist(), 1: Enlist(), 2: Enlist()})

    crew = Processes.connect(perform, timeout_s=120)
    die("outside")
    began_s = time.monotonic()
    texts = []
    for _ in range(2):
        with pytest.raises(Lost) as lost:
            crew.call(Arrival(call="boundary"), work)
        texts.append(str(lost.value))
    assert time.monotonic() - began_s < _GENEROUS_S
    crew.leave(None)
    return texts


@pytest.mark.parametrize(("victim", "where"), [(1, "order"), (2, "outside"), (0, "work"), (0, "outside")])
def test_the_survivors_of_a_killed_rank_name_it_at_once(victim: int, where: str) -> None:
    results = run(survive, 3, victim, where)
    assert results.pop(victim) == Ended(-signal.SIGKILL)
    assert results == [[f"rank {victim} {_GONE}"] * 2] * 2


def send_to_a_stopped_rank() -> str:
    rank = dist.get_rank()
    crew = Processes.connect(lambda order: Done(), timeout_s=2)
    big = Stage(locals={"": ({"big": _MORE_THAN_SOCKETS_HOLD},)}, background=False)

    def work(arrivals: object) -> object:
        os.kill(others[1], signal.SIGSTOP)
        return crew.each({1: big, 2: big})

    others = [0] * 3
    dist.all_gather_object(others, os.getpid())
    with pytest.raises(Lost) as lost:
        crew.call(Arrival(call="boundary"), work)
    if rank == 0:
        os.kill(others[1], signal.SIGCONT)
    return str(lost.value)


def test_a_rank_that_stops_inside_a_message_is_named() -> None:
    leader, stopped, other = run(send_to_a_stopped_rank, 3)
    assert leader == other == "rank 1 stopped in the middle of a message"
    assert stopped == f"rank 0 {_GONE}"
