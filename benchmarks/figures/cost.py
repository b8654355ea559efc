"""What an asynchronous save costs a training loop: the stall, and what the steps beside it lose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch

from benchmarks.measuring import Bar, Case, Figure, Options, Sample, timed
from benchmarks.savers import DcpAsync, Milepost, Saver, once
from benchmarks.state import State

OURS = "milepost save"
DEFAULT = "DCP async_save"
REUSING = "DCP async_save, reusing stager"

_IDLE_S = 0.6
"""How long a loop runs alone, to tell how fast it is."""


@contextmanager
def cost(options: Options) -> Iterator[Figure]:
    """See the bars."""
    state = State(options.mib)
    with ExitStack() as undo:
        savers: dict[str, Saver] = {
            OURS: Milepost(state, options.scratch / "milepost"),
            DEFAULT: DcpAsync(state, options.scratch / "dcp", reusing=False),
            REUSING: DcpAsync(state, options.scratch / "dcp-reusing", reusing=True),
        }
        for saver in savers.values():
            undo.callback(saver.close)
            once(saver)
        loops: Mapping[str, Callable[[], object]] = {"matmul loop": _matmul(), "Python loop": _python()}
        yield Figure(
            name="cost",
            title="What an asynchronous save costs the training loop",
            facts={
                "state_bytes": state.size,
                "threads_of_torch": torch.get_num_threads(),
                "cost": "the stall and what the steps beside the save lost against the same loop alone",
                "late": "what the slowest of these steps lost",
            },
            cases=[
                Case(name=f"{loop}: {name}", run=_beside(step, saver), after=saver.clear)
                for loop, step in loops.items()
                for name, saver in savers.items()
            ],
            bars=[
                Bar(
                    says=f"{loop}: a save costs at most half of DCP async_save's",
                    case=f"{loop}: {OURS}",
                    measure="cost_s",
                    against=(f"{loop}: {DEFAULT}", f"{loop}: {REUSING}"),
                    at_most=0.5,
                )
                for loop in loops
            ],
            warm_bytes=3 * state.size,
        )


def _matmul() -> Callable[[], object]:
    """A step that wants every core and no interpreter."""
    left, right = torch.randn(768, 768), torch.randn(768, 768)
    return lambda: torch.mm(left, right)


def _python() -> Callable[[], object]:
    """A step that wants the interpreter: small tensors and arithmetic."""
    small = [torch.zeros(8) for _ in range(50)]

    def step() -> int:
        for tensor in small:
            tensor.add_(1.0)
        return sum(number * number for number in range(1000))

    return step


def _beside(step: Callable[[], object], saver: Saver) -> Callable[[], Sample]:
    """Run the loop alone, then save, then run it until the save is durable."""

    def run() -> Sample:
        alone, alone_s, _ = _loop(step, while_=lambda elapsed_s: elapsed_s < _IDLE_S)
        stall_s, _ = timed(saver.start)
        beside, beside_s, worst_s = _loop(step, while_=lambda _: saver.busy)
        saver.join()
        lost_s = max(0.0, beside_s - beside * alone_s / alone)
        return {
            "cost_s": stall_s + lost_s,
            "stall_s": stall_s,
            "lost_s": lost_s,
            "beside_s": beside_s,
            "late_s": max(0.0, worst_s - alone_s / alone),
        }

    return run


def _loop(step: Callable[[], object], *, while_: Callable[[float], bool]) -> tuple[int, float, float]:
    """How many steps ran, in how many seconds, and how long the slowest took."""
    count, worst_s = 0, 0.0
    begun = now = time.perf_counter()
    while while_(now - begun):
        step()
        before, now = now, time.perf_counter()
        worst_s = max(worst_s, now - before)
        count += 1
    return count, now - begun, worst_s
