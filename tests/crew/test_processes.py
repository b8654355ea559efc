"""A crew of three real processes: calls, orders, failures, and members that come late or go.

Every rank runs `transcript` once and writes down what each call said to it; each test reads one line of that.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import NoReturn

import pytest
import torch.distributed as dist

from milepost.engines.checkpoints import GivenUp
from milepost.engines.crew import Arrival
from milepost.engines.crew.orders import Answer, Enlist, Enlisted, Evaluate, Order, Stage
from milepost.engines.crew.processes import Processes
from milepost.transitions.errors import Corrupt, Refused
from tests.crew.spawn import run

_SIZE = 3
_BIG = "x" * (4 << 20)

Saying = tuple[str, str]
"""The kind of an error and its text; or `value` and what was returned."""

Said = Callable[[str], list[Saying]]
"""What a line of the transcript says, rank by rank."""


def saying(do: Callable[[], object]) -> Saying:
    try:
        return "value", repr(do())
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 -- what it is, is what the tests look at
        return type(error).__name__, str(error)


def perform(order: Order) -> Answer:
    """`Evaluate(step=n)` is the n-th kind of trouble, `Stage` is answered as large as it is, all else in peace."""
    rank = dist.get_rank()
    if isinstance(order, Stage):
        return Enlisted(roles=(str(order.locals[""][0]["said"]),))
    if isinstance(order, Evaluate):
        if (order.step, rank) == (3, 0):
            raise KeyboardInterrupt
        trouble = {
            (1, 1): Refused("a refusal"),
            (1, 2): GivenUp("disk-full", "no room"),
            (2, 0): KeyError("own"),
            (2, 2): Corrupt("bad bytes"),
        }
        if error := trouble.get((order.step, rank)):
            raise error
        if (order.step, rank) == (4, 1):
            return Enlisted(roles=(lambda: None,))  # type: ignore[arg-type] -- it cannot travel
    return Enlisted(roles=(f"role of {rank}",))


def transcript() -> dict[str, Saying]:
    """One rank's part in the long lives of several crews."""
    rank = dist.get_rank()
    said: dict[str, Saying] = {}
    crew = Processes.connect(perform, timeout_s=60)

    def call(line: str, work: Callable[[], object], *, of: str = "", **arguments: object) -> None:
        arrival = Arrival(call=of or line, arguments=tuple(arguments.items()))
        said[line] = saying(lambda: crew.call(arrival, lambda arrivals: work()))

    def each(order: Order) -> dict[int, Answer]:
        return crew.each(dict.fromkeys(range(_SIZE), order))

    said["arrivals"] = saying(
        lambda: crew.call(Arrival(call="open"), lambda arrivals: [one.call for one in arrivals])
    )
    call("different", lambda: None, of="save" if rank == 1 else "boundary", step=3)
    call("ours", lambda: _raise(Corrupt("model.pt: bad")))
    call("foreign", lambda: _raise(KeyError("odd")))
    call("interrupted", lambda: _raise(KeyboardInterrupt()))
    said["interrupted before it came"] = _interrupted_before_rank_2(crew)
    call("value that cannot travel", lambda: lambda: None)
    call("answers", lambda: each(Enlist()))
    call("two failures", lambda: each(Evaluate(step=1)))
    call("own failure", lambda: each(Evaluate(step=2)))
    call("own interrupt", lambda: each(Evaluate(step=3)))
    call(
        "orders after an interrupt",
        lambda: _after_interrupt(lambda: each(Evaluate(step=3)), lambda: each(_staging("next"))),
    )
    call("answer that cannot travel", lambda: each(Evaluate(step=4)))
    call("after all that", lambda: each(Enlist()))
    call("cause", lambda: _cause(lambda: each(Evaluate(step=2))))
    call("big", lambda: [answer == Enlisted(roles=(_BIG,)) for answer in each(_staging(_BIG)).values()])
    call("nested", lambda: crew.call(Arrival(call="inner"), lambda again: None))
    if rank == 0:
        said["another thread"] = _in_thread(lambda: crew.each({0: Enlist()}))
        said["another thread's order"] = _in_thread(lambda: crew.each({1: Enlist()}))
    said["forked"] = "value", repr(_held_by_a_fork(crew))
    dist.barrier()
    crew.leave(None)
    crew.leave(None)

    crew = Processes.connect(perform, timeout_s=60)
    call("second crew", lambda: "works")
    crew.leave(None)

    crew = Processes.connect(perform, timeout_s=2)
    if rank == 2:
        dist.barrier()
    call("late", lambda: None, step=7)
    if rank != 2:
        dist.barrier()
    call("after the loss", lambda: None)
    said["orders after the loss"] = saying(lambda: crew.each({0: Enlist()})) if rank == 0 else ("", "")
    crew.leave(None)

    for line, who, failure in (
        ("left with a failure", 1, ValueError("boom")),
        ("left in peace", 2, None),
        ("leader left", 0, OSError("no disk")),
    ):
        crew = Processes.connect(perform, timeout_s=60)
        if rank == who:
            crew.leave(failure)
        call(line, lambda: None)
        crew.leave(None)
    return said


def _staging(said: str) -> Stage:
    return Stage(locals={"": ({"said": said},)}, background=False)


def _raise(error: BaseException) -> NoReturn:
    raise error


def _after_interrupt(do: Callable[[], object], then: Callable[[], object]) -> object:
    try:
        do()
    except KeyboardInterrupt:
        return then()
    raise AssertionError("not interrupted")


def _interrupted_before_rank_2(crew: Processes) -> Saying:
    """Rank 0 is interrupted while it waits for rank 2, which comes when the others have left the call."""
    rank = dist.get_rank()
    if rank == 2:
        dist.barrier()
    if rank == 0:
        signal.signal(signal.SIGALRM, lambda *_: _raise(KeyboardInterrupt()))
        signal.setitimer(signal.ITIMER_REAL, 0.5)
    heard = saying(lambda: crew.call(Arrival(call="interrupted"), lambda arrivals: None))
    if rank != 2:
        dist.barrier()
    return heard


def _cause(do: Callable[[], object]) -> str:
    try:
        do()
    except Exception as error:  # noqa: BLE001 -- looked at
        return repr(error.__cause__)
    return ""


def _in_thread(do: Callable[[], object]) -> Saying:
    heard: list[Saying] = []
    thread = threading.Thread(target=lambda: heard.append(saying(do)))
    thread.start()
    thread.join()
    return heard[0]


def _held_by_a_fork(crew: Processes) -> int:
    """How many of the crew's sockets are open in a forked child."""
    descriptors = [link.waitable.fileno() for link in crew._links.values()]
    child = os.fork()
    if child == 0:
        os._exit(sum(os.path.exists(f"/proc/self/fd/{one}") for one in descriptors))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(scope="module")
def said() -> Said:
    transcripts = run(transcript, _SIZE)
    return lambda line: [one.get(line, ("", "")) for one in transcripts]  # type: ignore[attr-defined]


def test_rank_0_works_once_all_have_arrived_and_everybody_returns_its_value(said: Said) -> None:
    assert said("arrivals") == [("value", "['open', 'open', 'open']")] * 3


def test_ranks_that_make_different_calls_are_refused_everywhere(said: Said) -> None:
    text = (
        "rank 1 called save(step=3) while rank 0 called boundary(step=3): "
        "every rank has to make the same calls in the same order"
    )
    assert said("different") == [("Refused", text)] * 3


def test_an_error_of_ours_is_the_same_error_on_every_rank(said: Said) -> None:
    assert said("ours") == [("Corrupt", "model.pt: bad")] * 3


def test_any_other_error_of_the_work_is_unavailable_on_the_other_ranks(said: Said) -> None:
    assert said("foreign") == [("KeyError", "'odd'"), *[("Unavailable", "KeyError: 'odd'")] * 2]


def test_an_interrupt_on_rank_0_ends_the_call_on_every_rank(said: Said) -> None:
    kinds = ["KeyboardInterrupt", "Unavailable", "Unavailable"]
    assert [kind for kind, _ in said("interrupted")] == kinds
    assert [kind for kind, _ in said("own interrupt")] == kinds
    assert [kind for kind, _ in said("interrupted before it came")] == kinds


def test_a_value_that_cannot_travel_fails_on_every_rank(said: Said) -> None:
    own, *others = said("value that cannot travel")
    assert own[0] in ("AttributeError", "PicklingError")
    assert others == [("Unavailable", f"{own[0]}: {own[1]}")] * 2


def test_what_an_interrupted_order_was_answered_is_no_answer_to_the_next(said: Said) -> None:
    answers = repr({rank: Enlisted(roles=("next",)) for rank in range(3)})
    assert said("orders after an interrupt") == [("value", answers)] * 3


def test_answers_come_back_by_rank_also_after_calls_that_failed(said: Said) -> None:
    answers = repr({rank: Enlisted(roles=(f"role of {rank}",)) for rank in range(3)})
    assert said("answers") == said("after all that") == [("value", answers)] * 3


def test_several_failures_are_one_error_of_the_gravest_kind_that_names_each_rank(said: Said) -> None:
    text = "disk-full: rank 1: a refusal; rank 2: no room"
    assert said("two failures") == [("GivenUp", text)] * 3


def test_rank_0_hears_the_others_out_when_its_own_part_failed(said: Said) -> None:
    text = "rank 0: KeyError: 'own'; rank 2: bad bytes"
    assert said("own failure") == [("Corrupt", text)] * 3
    assert said("cause") == [("value", repr("KeyError('own')"))] * 3


def test_an_answer_that_cannot_travel_is_that_ranks_failure(said: Said) -> None:
    for kind, text in said("answer that cannot travel"):
        assert kind == "Unavailable"
        assert text.startswith("rank 1: ")


def test_megabytes_travel_both_ways_at_once(said: Said) -> None:
    assert said("big") == [("value", "[True, True, True]")] * 3


def test_a_call_inside_a_call_is_refused(said: Said) -> None:
    assert said("nested") == [("Refused", "inner() inside another call: let that one return first")] * 3


def test_another_thread_may_give_orders_to_its_own_process_only(said: Said) -> None:
    assert said("another thread")[0] == ("value", repr({0: Enlisted(roles=("role of 0",))}))
    assert said("another thread's order")[0] == ("AssertionError", "other ranks hear the caller's thread only")


def test_a_forked_child_holds_none_of_the_sockets(said: Said) -> None:
    assert said("forked") == [("value", "0")] * 3


def test_a_crew_may_follow_another_one(said: Said) -> None:
    assert said("second crew") == [("value", "'works'")] * 3


def test_a_rank_that_does_not_arrive_is_named_everywhere_also_to_itself(said: Said) -> None:
    late = [("Lost", "rank 2 did not arrive at late(step=7) within 2 s")] * 3
    assert said("late") == late
    assert said("after the loss") == late
    assert said("orders after the loss")[0] == ("value", repr({0: Enlisted(roles=("role of 0",))}))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("left with a failure", "rank 1 left because of ValueError: boom"),
        ("left in peace", "rank 2 left in peace"),
        ("leader left", "rank 0 left because of OSError: no disk"),
    ],
)
def test_a_rank_that_left_is_named_with_its_reason_at_the_next_call(said: Said, line: str, why: str) -> None:
    assert said(line) == [("Lost", why)] * 3
