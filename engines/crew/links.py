"""Sockets of our own between the ranks of a job: a star around rank 0.

1. Rank 0 listens and every other rank connects. Where to, and the key, go over the default process group once; from
   then on no collective of torch is used, so that a rank that is gone is seen at once and by its name.
2. Nothing is unpickled from who has not shown the key (HMAC, both ways). Who has it is a process of this very job.
3. A message is a plain pickle. multiprocessing's own pickler would share tensors through file descriptors, which end
   at the edge of a machine.
4. Nobody waits without a limit: not for a message, and not inside one, sending or receiving. Who was cut short inside
   one hangs up, since what follows could not be told apart.
5. A forked child (a worker of a DataLoader) holds none of the sockets: the end of its parent would not be seen.

A lost link is a `Gone`, which says why; who was at the other end is known to the caller.

Source: the protocol of multiprocessing.connection; tcp(7); socket(7) for SO_RCVTIMEO and SO_SNDTIMEO.
"""

from __future__ import annotations

import os
import pickle
import secrets
import socket
import struct
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge, wait

import torch.distributed as dist
from attrs import frozen

from milepost.engines.crew.failures import Lost
from milepost.transitions.errors import Unavailable

_HANDSHAKE_S = 10.0
_KEY_BYTES = 32


class Gone(Exception):
    """The other end of a link is lost; the text says how, to be put behind a name."""


@frozen(kw_only=True)
class Parted:
    """The last message of who hangs up on purpose: why, as a sentence that names who is to be blamed."""

    why: str


class Link:
    """One connection, for one thread at a time."""

    def __init__(self, connected: socket.socket, *, timeout_s: float) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setblocking(True)
        _limit(connected, timeout_s)
        self._connection: Connection = Connection(connected.detach())
        _ALIVE.add(self)

    def challenge(self, key: bytes, *, first: bool) -> None:
        """Prove to each other that both have the key; `OSError`, `EOFError` or `AuthenticationError` otherwise."""
        steps = (deliver_challenge, answer_challenge) if first else (answer_challenge, deliver_challenge)
        for step in steps:
            step(self._connection, key)

    def allow(self, timeout_s: float) -> None:
        """How long one message may be without any progress on its way."""
        with socket.socket(fileno=os.dup(self._connection.fileno())) as same:
            same.setblocking(True)
            _limit(same, timeout_s)

    def send(self, message: bytes) -> None:
        """Send what `packed` made."""
        try:
            self._connection.send_bytes(message)
        except ConnectionError as error:
            raise Gone(_told(error)) from error  # not closed: why may still be there to be read
        except OSError as error:
            self.close()
            raise Gone(_told(error)) from error
        except BaseException:
            self.close()
            raise

    def receive(self, *, timeout_s: float) -> object:
        """The next message."""
        try:
            if not self._connection.poll(max(timeout_s, 0.0)):
                raise Gone(f"was not heard of for {timeout_s:g} s")
            message = self._connection.recv_bytes()
        except (OSError, EOFError) as error:
            self.close()
            raise Gone(_told(error)) from error
        except Gone:
            raise
        except BaseException:
            self.close()
            raise
        try:
            return pickle.loads(message)
        except Exception as error:
            self.close()
            raise Gone(f"sent what this process cannot read ({type(error).__name__}: {error})") from error

    def parting(self) -> Parted | None:
        """Why the other end has hung up, where it said so."""
        with suppress(Gone):
            while not isinstance(message := self.receive(timeout_s=0.0), Parted):
                pass
            return message
        return None

    def close(self) -> None:
        """Hang up. Closing twice is harmless."""
        with suppress(OSError):
            self._connection.close()

    def part(self, why: str) -> None:
        """Say why, and hang up so that it arrives: bytes left unread would make the system reset the connection."""
        with suppress(Gone, OSError, EOFError):
            self.send(packed(Parted(why=why)))
            with socket.socket(fileno=os.dup(self._connection.fileno())) as same:
                same.shutdown(socket.SHUT_WR)
            while self._connection.poll(0.0):
                self._connection.recv_bytes()
        self.close()

    @property
    def closed(self) -> bool:
        return bool(self._connection.closed)

    @property
    def waitable(self) -> Connection:
        return self._connection


def ready(links: Mapping[int, Link], *, timeout_s: float) -> tuple[int, ...]:
    """Those whose link has something to receive, be it its end; none where the time was over first."""
    if closed := tuple(rank for rank, link in links.items() if link.closed):
        return closed
    waitables = {link.waitable: rank for rank, link in links.items()}
    found = wait(list(waitables), timeout=max(timeout_s, 0.0))
    return tuple(sorted(waitables[one] for one in found if isinstance(one, Connection)))


def packed(message: object) -> bytes:
    """The bytes of a message; raises what pickle raises where it cannot travel."""
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def connect(*, timeout_s: float) -> dict[int, Link]:
    """Link up with the other ranks of the default process group: rank 0 with all, each other one with rank 0.

    Every rank has to call it. `Lost` names who did not connect within `timeout_s` seconds, `Unavailable`
    says why this rank could not.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank:
        return {0: _call(_shared(None), timeout_s=timeout_s)}
    try:
        listening, hosts = _listen(backlog=size)
    except OSError as error:
        why = f"rank 0 cannot listen for the other ranks: {error}"
        _shared(_Meeting(hosts=(), port=0, key=b"", refused=why))
        raise Unavailable(why) from error
    with listening:
        key = secrets.token_bytes(_KEY_BYTES)
        _shared(_Meeting(hosts=hosts, port=listening.getsockname()[1], key=key, refused=""))
        return _answer(listening, key, ranks=range(1, size), timeout_s=timeout_s)


@frozen(kw_only=True)
class _Meeting:
    """Where rank 0 listens, or why it does not."""

    hosts: tuple[str, ...]
    port: int
    key: bytes
    refused: str


def _shared(meeting: _Meeting | None) -> _Meeting:
    """What rank 0 said. Over the process group, whose backend may be gloo, MPI or NCCL."""
    given: list[_Meeting | None] = [meeting]
    try:
        dist.broadcast_object_list(given, src=0)
    except RuntimeError as error:
        raise Unavailable(
            f"rank {dist.get_rank()} cannot meet the other ranks, one of them may be gone: {error}"
        ) from error
    shared = given[0]
    assert shared is not None
    return shared


def _listen(*, backlog: int) -> tuple[socket.socket, tuple[str, ...]]:
    """A listening socket on a free port, and the hosts to try in order to reach it."""
    named = os.environ.get("MASTER_ADDR", "")
    hosts = (socket.gethostname(), named) if named else (socket.gethostname(),)
    for family, _, _, _, address in _resolved(named):
        if str(address[0]).startswith(("127.", "::1")) and named not in (address[0], "localhost"):
            hosts = (named,)  # this machine's name stands for loopback here, and for something else everywhere else
            break
        with suppress(OSError):  # it leads here through something in between, or not at all
            return socket.create_server((str(address[0]), 0), family=family, backlog=backlog), (named,)
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return _everywhere(socket.AF_INET6, backlog=backlog), hosts
    return _everywhere(socket.AF_INET, backlog=backlog), hosts


def _everywhere(family: socket.AddressFamily, *, backlog: int) -> socket.socket:
    both = family == socket.AF_INET6
    return socket.create_server(("", 0), family=family, backlog=backlog, dualstack_ipv6=both)


def _resolved(host: str) -> Sequence[tuple[socket.AddressFamily, object, object, object, tuple[object, ...]]]:
    if not host:
        return ()
    try:
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return ()


def _call(meeting: _Meeting, *, timeout_s: float) -> Link:
    """Connect to rank 0 and say who this is."""
    if meeting.refused:
        raise Unavailable(meeting.refused)
    refusals = []
    for host in meeting.hosts:
        link = None
        try:
            connected = socket.create_connection((host, meeting.port), timeout=timeout_s / len(meeting.hosts))
            link = Link(connected, timeout_s=timeout_s)
            link.challenge(meeting.key, first=False)
            link.send(packed(dist.get_rank()))
        except (OSError, EOFError, AuthenticationError, Gone) as error:
            refusals.append(f"{host} port {meeting.port} ({type(error).__name__}: {error})")
            if link is not None:
                link.close()
        else:
            return link
    raise Unavailable(
        f"rank {dist.get_rank()} cannot reach rank 0 at {' nor at '.join(refusals)}: "
        "the ranks of a job need to reach each other by TCP, on any port"
    )


def _answer(listening: socket.socket, key: bytes, *, ranks: Sequence[int], timeout_s: float) -> dict[int, Link]:
    """The links to all these ranks. What connects without the key is hung up on."""
    links: dict[int, Link] = {}
    until_s = time.monotonic() + timeout_s
    while missing := [rank for rank in ranks if rank not in links]:
        listening.settimeout(max(until_s - time.monotonic(), 0.001))
        try:
            connected, _ = listening.accept()
        except OSError as error:
            names = ", ".join(f"rank {rank}" for rank in missing)
            why = f"{names} did not connect to rank 0 within {timeout_s:g} s"
            for link in links.values():
                link.part(why)
            raise Lost(why) from error
        link = Link(connected, timeout_s=min(_HANDSHAKE_S, timeout_s))
        try:
            link.challenge(key, first=True)
            rank = link.receive(timeout_s=_HANDSHAKE_S)
        except (OSError, EOFError, AuthenticationError, Gone):
            link.close()
            continue
        assert isinstance(rank, int) and rank in missing
        link.allow(timeout_s)
        links[rank] = link
    return links


def _limit(connected: socket.socket, timeout_s: float) -> None:
    """Transfers that make no progress for so long fail with EAGAIN.

    A send that has begun returns after its limit, and only the next one fails: hence halves. Zero would mean forever.
    """
    half_s = max(timeout_s / 2, 0.001)
    value = struct.pack("ll", int(half_s), int(half_s % 1 * 1_000_000))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, value)


def _told(error: BaseException) -> str:
    if isinstance(error, BlockingIOError):
        return "stopped in the middle of a message"
    if isinstance(error, EOFError | ConnectionError) or (isinstance(error, OSError) and error.errno is None):
        return "is gone: its process has ended or cannot be reached"
    return f"cannot be reached ({error})"


_ALIVE: weakref.WeakSet[Link] = weakref.WeakSet()


def _close_in_child() -> None:
    for link in list(_ALIVE):
        link.close()


os.register_at_fork(after_in_child=_close_in_child)
