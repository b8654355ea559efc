"""Worlds of torch.distributed ranks, each a real process that starts in a fraction of a second: gloo, on loopback.

    with World(train, 2, str(root)) as world:
        world.kill(1)
        assert world.answers() == ["rank 1 is gone", Ended(-9)]

Ranks are forked from a server that has imported torch and milepost, which takes seconds. The function, its arguments
and its answer travel as pickles. What a rank raises fails the test with its traceback; one that ends without an
answer gives an `Ended`. Nobody goes before everybody has answered: a rank that ends must not look like a loss.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Self

import torch
import torch.distributed as dist

from tests.crew.spawn import Ended

_IMPORTED = (
    "pytest",
    "torch._dynamo",  # what the first step of a sharded model imports
    "torch._inductor.utils",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "milepost.journal",
    "milepost.journal.facade",
    "milepost.engines.crew.company",
    "milepost.engines.crew.gathering",
    "milepost.engines.crew.processes",
    "milepost.engines.formats.dcp",
    "milepost.engines.trainers.sharded",
)

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(_IMPORTED))


class World:
    """`function(*args)` on each of `size` ranks, started at once. Leaving the `with` block kills what is left."""

    def __init__(self, function: Callable[..., object], size: int, *args: object) -> None:
        self._meeting = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun's agent
        # Plain pickles: multiprocessing's own would share the memory of tensors with a process that may be killed.
        work = pickle.dumps((function, args))
        self._answers: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(size):
            answer, far_end = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_rank, args=(far_end, self._meeting.port, rank, size, work))
            process.start()
            far_end.close()
            self._answers.append(answer)
            self._processes.append(process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for answer in self._answers:
            answer.close()

    def kill(self, rank: int) -> None:
        """SIGKILL, if it still lives."""
        process = self._processes[rank]
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGKILL)

    def answered(self) -> bool:
        """Whether a rank has answered or ended."""
        return bool(wait(self._answers, timeout=0))

    def answers(self, *, limit_s: float = 60.0) -> list[Any]:
        """What each rank returned, or how it `Ended`, within so many seconds."""
        until_s = time.monotonic() + limit_s
        waiting = list(self._answers)
        while waiting:
            done = wait(waiting, timeout=max(until_s - time.monotonic(), 0.0))
            if not done:
                raise AssertionError(f"not done after {limit_s:g} s: ranks {self._show(waiting)}")
            waiting = [answer for answer in waiting if answer not in done]
        results = [_result(*one) for one in zip(self._answers, self._processes, strict=True)]
        raised = [f"rank {rank}: {one}" for rank, one in enumerate(results) if isinstance(one, _Raised)]
        assert not raised, "\n".join(raised)
        return results

    def _show(self, waiting: list[Connection]) -> list[int]:
        """The ranks that are waited for, once they have written where they stand to stderr."""
        late = [rank for rank, answer in enumerate(self._answers) if answer in waiting]
        for rank in late:
            pid = self._processes[rank].pid
            assert pid is not None
            os.kill(pid, signal.SIGUSR2)
        time.sleep(0.5)
        return late


def run(function: Callable[..., object], size: int, *args: object, limit_s: float = 60.0) -> list[Any]:
    """What `function(*args)` returned on each of `size` ranks."""
    with World(function, size, *args) as world:
        return world.answers(limit_s=limit_s)


class _Raised(str):
    """The traceback of a rank."""


def _result(answer: Connection, process: BaseProcess) -> Any:
    try:
        return pickle.loads(answer.recv_bytes())
    except (EOFError, ConnectionResetError):
        process.join()
        return Ended(process.exitcode or 0)


def _rank(answer: Connection, port: int, rank: int, size: int, work: bytes) -> None:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "RANK": str(rank), "WORLD_SIZE": str(size)}
    try:
        dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", port), rank=rank, world_size=size)
        function, args = pickle.loads(work)
        message = pickle.dumps(function(*args))
    except Exception:  # noqa: BLE001 -- the test tells it
        message = pickle.dumps(_Raised(traceback.format_exc()))
    sys.stdout.flush()
    answer.send_bytes(message)
    answer.poll(None)  # until the test hangs up
