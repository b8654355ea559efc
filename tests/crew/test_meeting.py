"""How ranks find rank 0: by the master's address or the host's name, past strangers, or with a reason why not."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch.distributed as dist

from milepost.engines.crew import Arrival
from milepost.engines.crew.failures import Lost
from milepost.engines.crew.orders import Done
from milepost.engines.crew.processes import Processes
from milepost.transitions.errors import Unavailable
from tests.crew.spawn import run

pytestmark = pytest.mark.services

_SIZE = 3
_ELSEWHERE = "192.0.2.7"
"""An address for documentation (RFC 5737): no machine has it."""


def meet(*, timeout_s: float = 20.0) -> str:
    """What the ranks say to each other once they are linked up, or why they are not."""
    try:
        crew = Processes.connect(lambda order: Done(), timeout_s=timeout_s)
        met = crew.call(Arrival(call="open"), lambda arrivals: f"{len(arrivals)} met")
        crew.leave(None)
    except (Lost, Unavailable) as error:
        return f"{type(error).__name__}: {error}"
    return met


def meet_in_every_way() -> dict[str, str]:
    said = {}
    for host in ("localhost", "127.0.0.1", socket.gethostname(), "no.such.host.invalid", _ELSEWHERE, ""):
        os.environ["MASTER_ADDR"] = host
        said[f"by {host}"] = meet()
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    with _patched("create_connection", _behind_a_stranger):
        said["stranger"] = meet()
    with _patched("create_connection", _unreachable if dist.get_rank() == 2 else socket.create_connection):
        said["unreachable"] = meet(timeout_s=3.0)
    with _patched("create_server", _unreachable):
        said["deaf"] = meet()
    return said


@contextmanager
def _patched(name: str, function: Callable[..., socket.socket]) -> Iterator[None]:
    original = getattr(socket, name)
    setattr(socket, name, function)
    try:
        yield
    finally:
        setattr(socket, name, original)


def _behind_a_stranger(
    address: tuple[str, int], timeout: float, *, connect: Callable[..., socket.socket] = socket.create_connection
) -> socket.socket:
    """A connection after somebody else's, who speaks another language."""
    stranger = connect(address, timeout=timeout)
    stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    _STRANGERS.append(stranger)
    return connect(address, timeout=timeout)


_STRANGERS: list[socket.socket] = []


def _unreachable(*arguments: object, **others: object) -> socket.socket:
    raise OSError(101, "Network is unreachable")


@pytest.fixture(scope="module")
def said() -> Callable[[str], list[str]]:
    answers = run(meet_in_every_way, _SIZE)
    return lambda line: [one[line] for one in answers]  # type: ignore[index]


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", socket.gethostname(), "no.such.host.invalid", _ELSEWHERE, ""]
)
def test_ranks_meet_whatever_the_master_address_is(said: Callable[[str], list[str]], host: str) -> None:
    assert said(f"by {host}") == ["3 met"] * 3


def test_who_does_not_have_the_key_is_hung_up_on(said: Callable[[str], list[str]]) -> None:
    assert said("stranger") == ["3 met"] * 3


def test_a_rank_that_cannot_connect_says_why_and_is_named_to_the_others(said: Callable[[str], list[str]]) -> None:
    leader, other, unreachable = said("unreachable")
    assert leader == other == "Lost: rank 2 did not connect to rank 0 within 3 s"
    assert unreachable.startswith("Unavailable: rank 2 cannot reach rank 0 at 127.0.0.1 port ")


def test_rank_0_says_to_everybody_that_it_cannot_listen(said: Callable[[str], list[str]]) -> None:
    why = "Unavailable: rank 0 cannot listen for the other ranks: [Errno 101] Network is unreachable"
    assert said("deaf") == [why] * 3
