"""Functions on several real processes of a torch.distributed world: gloo, on loopback.

    def ranks(word: str) -> tuple[int, str]:
        return dist.get_rank(), word

    assert run(ranks, 2, "hello") == [(0, "hello"), (1, "hello")]

The function, its arguments and what it returns travel as pickles, so a module has to have them. The default process
group stands when it is called. What it raises anywhere fails the test, with the traceback of its rank; a process that
ends without an answer gives an `Ended`. Nobody goes before everybody has answered.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist
from attrs import frozen


@frozen
class Ended:
    """A process ended without an answer: its exit code, minus the signal's number where one killed it."""

    code: int


@frozen
class _Raised:
    text: str


def run(function: Callable[..., object], size: int = 2, *args: object, limit_s: float = 60.0) -> list[object]:
    """What `function(*args)` returned on each of `size` ranks, within `limit_s` seconds; then all are killed."""
    context = multiprocessing.get_context("spawn")
    # Plain pickles: multiprocessing's own would share the memory of tensors with a process that may be killed.
    work = pickle.dumps((function, args))
    answers: list[Connection] = []
    processes: list[BaseProcess] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for rank in range(size):
                answer, far_end = context.Pipe()
                process = context.Process(target=_child, args=(far_end, folder, rank, size, work))
                process.start()
                far_end.close()
                answers.append(answer)
                processes.append(process)
            results = [_result(answer, process) for answer, process in _as_done(answers, processes, limit_s)]
        finally:
            for process in processes:
                process.kill()
                process.join()
            for answer in answers:
                answer.close()
    raised = [f"rank {rank}: {one.text}" for rank, one in enumerate(results) if isinstance(one, _Raised)]
    assert not raised, "\n".join(raised)
    return results


def _as_done(
    answers: list[Connection], processes: list[BaseProcess], limit_s: float
) -> list[tuple[Connection, BaseProcess]]:
    """All of them, once each has answered or ended."""
    waiting = list(answers)
    until_s = time.monotonic() + limit_s
    while waiting:
        done = wait(waiting, timeout=max(until_s - time.monotonic(), 0.0))
        late = [rank for rank, answer in enumerate(answers) if answer in waiting]
        assert done, f"not done after {limit_s:g} s: ranks {late}"
        waiting = [answer for answer in waiting if answer not in done]
    return list(zip(answers, processes, strict=True))


def _result(answer: Connection, process: BaseProcess) -> object:
    try:
        return pickle.loads(answer.recv_bytes())
    except EOFError:
        process.join()
        return Ended(process.exitcode or 0)


def _child(answer: Connection, folder: str, rank: int, size: int, work: bytes) -> None:
    faulthandler.enable()
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "RANK": str(rank), "WORLD_SIZE": str(size)}
    try:
        meeting = Path(folder, "meeting").as_uri()
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
        function, args = pickle.loads(work)
        message = pickle.dumps(function(*args))
    except Exception:  # noqa: BLE001 -- the test tells it
        message = pickle.dumps(_Raised(traceback.format_exc()))
    sys.stdout.flush()
    answer.send_bytes(message)
    answer.poll(None)  # until the test hangs up
