"""Roles that live in Ray actors, saved as one by the driver that leads them.

    @ray.remote(max_concurrency=2)
    class Critic:
        def __init__(self):
            self.host = Host(PlainTrainer(model=…, optimizer=…))
        def milepost(self, order):
            return self.host.perform(order)

    critic = Critic.remote()
    journal = Journal.open(config, roles={"policy": trainer, "critic": RayRole(critic)}, …)

An actor writes its own files, on the disk that the run lies on; only small values travel. With `max_concurrency=2` it
may take steps while it writes an asynchronous save; Ray's default of 1 makes the next step wait for that. What is
evaluated is the driver's affair, which may ask its actors.

Ray's own handler ends actors at SIGTERM, before the driver could save through them: give the driver its warning by
`--signal=B:USR1@…` of the batch script (`milepost slurm`).

Source: seeds 000, "Ray-grid run"; https://docs.ray.io, ray.exceptions.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from attrs import frozen

from milepost.engines.crew.failures import Failure
from milepost.engines.crew.links import Gone
from milepost.engines.crew.member import Member
from milepost.engines.crew.orders import Answer, Order
from milepost.engines.crew.remote import Submit
from milepost.engines.trainers import Trainer
from milepost.transitions.errors import Misconfigured, Refused


@frozen
class RayRole:
    """A role whose trainer lives in an actor: its handle, and the method of it that passes orders to a `Host`."""

    handle: Any
    method: str = "milepost"

    def reach(self, role: str) -> Submit:
        """What gives orders to the actor, as this role. `Misconfigured` without Ray, or without such a method."""
        ray = _ray()
        try:
            method = getattr(self.handle, self.method)
        except AttributeError as error:
            raise Misconfigured((f"role {role}: its actor has no method `{self.method}`: {error}",)) from error

        def submit(order: Order) -> _Reply:
            return _Reply(ray, method.remote(_Addressed(role=role, order=order)))

        return submit


class Host:
    """The actor's side: a trainer that performs the orders of the driver."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._role = ""
        self._member: Member | None = None
        self._lock = threading.Lock()  # Ray may give an actor several threads

    def perform(self, order: object) -> Answer | Failure:
        """What the actor's method has to return for what it is given. It raises nothing: failures are answers."""
        try:
            if not isinstance(order, _Addressed):
                raise Refused(f"a Host performs what a RayRole sends, found {type(order).__name__}")
            return self._as(order.role).perform(order.order)
        except Exception as error:  # noqa: BLE001 -- the driver raises it, with its kind
            return Failure.of(error, member="")

    def _as(self, role: str) -> Member:
        with self._lock:
            if self._member is None:
                self._role, self._member = role, Member({role: self._trainer})
                self._member.evaluation = _left_to_the_driver
        if role != self._role:
            raise Refused(f"this actor is role {self._role}, and was called as role {role}: give each role an actor")
        return self._member


@frozen(kw_only=True)
class _Addressed:
    """An order, to the role that the actor is for the driver."""

    role: str
    order: Order


@frozen
class _Reply:
    """An answer that is coming."""

    _ray: Any
    _reference: Any

    def result(self, timeout: float | None = None) -> Answer | Failure:
        try:
            answer: Answer | Failure = self._ray.get(self._reference, timeout=timeout)
        except self._ray.exceptions.RayActorError as error:
            raise Gone(f"is gone: {str(error).partition('.')[0]}") from error
        return answer


def _left_to_the_driver(step: int) -> None: ...


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise Misconfigured(("RayRole needs Ray, which is not installed: pip install 'milepost[ray]'",)) from error
