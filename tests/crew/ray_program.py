"""A driver whose critic lives in a Ray actor; the program of `test_ray.py`, in a network namespace of its own.

python ray_program.py FOLDER      prints one JSON object: what the tests look at
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from milepost.journal import Journal, MilepostError
from milepost.journal.adapters.ray import Host, RayRole
from tests.journal.runs import Training, config

_UNTIL = 6
_STOP = 5


@ray.remote(max_concurrency=2)
class Critic:
    """A second training, with data of its own, in a process of its own."""

    def __init__(self) -> None:
        self.training = Training(rows=16)
        self.host = Host(self.training.trainer())

    def milepost(self, order: object) -> object:
        return self.host.perform(order)

    def step(self) -> float:
        return self.training.step()

    def digest(self) -> tuple[float, ...]:
        return self.training.digest()

    def pid(self) -> int:
        return os.getpid()


@ray.remote
class Stranger:
    """An actor that passes no orders on."""


class Crash(Exception):
    """The end of the driver's loop in the middle of a run."""


def train(root: Path, *, crash: bool = False, asynchronous: bool) -> dict[str, object]:
    """Train both roles up to the last step, or crash behind the save before it; where it began, and both digests."""
    policy, critic = Training(), Critic.remote()
    settings = config(root, f"rl.save_async={str(asynchronous).lower()}")
    with Journal.open(settings, roles={"policy": policy.trainer(), "critic": RayRole(critic)}, environ={}) as journal:
        began = journal.resumption.step if journal.resumption else 0
        for step in journal.steps(until=_UNTIL):
            if crash and step == _STOP:
                raise Crash
            policy.step()
            ray.get(critic.step.remote())
    run = {"began": began, "policy": policy.digest(), "critic": ray.get(critic.digest.remote())}
    ray.kill(critic)
    return run


def resume(root: Path, *, asynchronous: bool) -> dict[str, object]:
    """Crash, and train on with fresh processes of both roles."""
    with suppress(Crash):
        train(root, crash=True, asynchronous=asynchronous)
    return train(root, asynchronous=asynchronous)


def lose_the_critic(root: Path) -> list[str]:
    """What the driver says whose actor is killed in front of a save; and again; and what is published then."""
    policy, critic = Training(), Critic.remote()
    roles: dict[str, Any] = {"policy": policy.trainer(), "critic": RayRole(critic)}
    journal = Journal.open(config(root, "rl.save_async=false"), roles=roles, environ={})
    steps = journal.steps(until=_UNTIL)
    for _ in range(3):
        next(steps)
    pid = ray.get(critic.pid.remote())
    next(steps)
    os.kill(pid, signal.SIGKILL)
    said = [_saying(lambda: next(steps)), _saying(lambda: journal.save(4))]
    with suppress(MilepostError):
        journal.close()
    return [*said, *sorted(path.name for path in root.rglob("iter_*"))]


def _saying(do: Callable[[], object]) -> str:
    try:
        return f"returned {do()!r}"
    except MilepostError as error:
        return f"{type(error).__name__}: {error}"


def open_with_one_actor_for_two_roles(root: Path) -> str:
    critic = Critic.options(max_concurrency=1).remote()  # the first order is the first to be heard
    roles: dict[str, Any] = {"critic": RayRole(critic), "policy": RayRole(critic)}
    return _saying(lambda: Journal.open(config(root), roles=roles, environ={}))


def open_with_a_stranger(root: Path) -> str:
    roles: dict[str, Any] = {"policy": Training().trainer(), "critic": RayRole(Stranger.remote())}
    return _saying(lambda: Journal.open(config(root), roles=roles, environ={}))


def main(folder: Path) -> None:
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    found = {
        "whole": train(folder / "whole", asynchronous=False),
        "resumed": resume(folder / "resumed", asynchronous=False),
        "resumed, asynchronous": resume(folder / "asynchronous", asynchronous=True),
        "lost": lose_the_critic(folder / "lost"),
        "shared": open_with_one_actor_for_two_roles(folder / "shared"),
        "stranger": open_with_a_stranger(folder / "stranger"),
    }
    ray.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
