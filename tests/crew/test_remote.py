"""A driver whose members are reached through futures: answers, failures of several, and members that are lost."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest

from milepost.engines.crew import Arrival
from milepost.engines.crew.failures import Failure, Lost
from milepost.engines.crew.links import Gone
from milepost.engines.crew.orders import Answer, Done, Enlist, Enlisted, Evaluate, Order
from milepost.engines.crew.remote import Pending, Remote, Submit
from milepost.journal.adapters.ray import RayRole
from milepost.transitions.errors import Corrupt, Misconfigured, Refused


def driver(order: Order) -> Answer:
    if isinstance(order, Evaluate):
        raise KeyError("own")
    return Enlisted(roles=("policy",))


def critic(order: Order) -> Answer | Failure:
    if isinstance(order, Evaluate):
        return Failure.of(Corrupt("bad bytes"), member="whoever I am")
    return Enlisted(roles=("critic",))


def killed(order: Order) -> Answer:
    os.kill(os.getpid(), signal.SIGKILL)
    return Done()


def in_threads(pool: ThreadPoolExecutor) -> Submit:
    return lambda order: pool.submit(critic, order)


def refusing(order: Order) -> Pending:
    raise Refused("not now")


def never(order: Order) -> Pending:
    return Future()


def gone(order: Order) -> Pending:
    raise Gone("is gone: nobody is there")


def test_every_member_performs_its_order_and_is_called_by_its_role() -> None:
    with ThreadPoolExecutor(1) as pool:
        crew = Remote(driver, roles={"critic": in_threads(pool)}, timeout_s=60)
        answers = crew.each({0: Enlist(), 1: Enlist()})
    assert answers == {0: Enlisted(roles=("policy",)), 1: Enlisted(roles=("critic",))}
    assert [crew.called(index) for index in range(crew.size)] == ["this process", "role critic"]
    assert [crew.hears(index) for index in range(crew.size)] == [True, True]
    assert crew.call(Arrival(call="save"), lambda arrivals: arrivals) == (Arrival(call="save"),)


def test_failures_of_the_driver_and_of_roles_are_one_error_that_names_them_all() -> None:
    with ThreadPoolExecutor(1) as pool:
        crew = Remote(driver, roles={"critic": in_threads(pool), "reward": refusing}, timeout_s=60)
        with pytest.raises(Corrupt) as raised:
            crew.each(dict.fromkeys(range(3), Evaluate(step=1)))
        assert str(raised.value) == "this process: KeyError: 'own'; role critic: bad bytes; role reward: not now"
        assert isinstance(raised.value.__cause__, KeyError | Refused)
        assert crew.each({1: Enlist()}) == {1: Enlisted(roles=("critic",))}


@pytest.mark.parametrize(
    ("role", "text"),
    [(never, "role critic did not answer within 0 s"), (gone, "role critic is gone: nobody is there")],
)
def test_a_member_that_does_not_answer_is_lost_for_good(role: Submit, text: str) -> None:
    crew = Remote(driver, roles={"critic": role}, timeout_s=0)
    for do in (
        lambda: crew.each({0: Enlist(), 1: Enlist()}),
        lambda: crew.each({1: Enlist()}),
        lambda: crew.call(Arrival(call="save"), lambda arrivals: None),
    ):
        with pytest.raises(Lost) as lost:
            do()
        assert str(lost.value) == text
    assert crew.each({0: Enlist()}) == {0: Enlisted(roles=("policy",))}


@pytest.mark.kills
def test_a_killed_process_behind_a_future_is_named_by_its_role() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        crew = Remote(driver, roles={"critic": lambda order: pool.submit(killed, order)}, timeout_s=60)
        with pytest.raises(Lost, match=r"^role critic is gone: its process has ended$"):
            crew.each({0: Enlist(), 1: Enlist()})


def test_a_role_in_ray_says_what_to_install_where_ray_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Misconfigured, match=r"pip install 'milepost\[ray\]'"):
        RayRole(object()).reach("critic")
