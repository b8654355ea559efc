"""How much memory a save takes beyond the training state. Each case runs in a process of its own.

The processes are forked from a server that has imported everything and done nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path

from benchmarks import peers
from benchmarks.machine import has_safetensors, remove, reset_peak, status
from benchmarks.measuring import Bar, Case, Figure, Options, Sample
from benchmarks.savers import DcpAsync, Milepost, Saver
from benchmarks.state import State

ASYNCHRONOUS = "milepost save, asynchronous"
SYNCHRONOUS = "milepost save, synchronous"

SAVERS: dict[str, Callable[[State, Path], Saver]] = {
    ASYNCHRONOUS: Milepost,
    SYNCHRONOUS: lambda state, folder: Milepost(state, folder, background=False),
    "DCP async_save": lambda state, folder: DcpAsync(state, folder, reusing=False),
    "DCP async_save, reusing stager": lambda state, folder: DcpAsync(state, folder, reusing=True),
}
WRITERS: dict[str, Callable[[State, Path], None]] = {
    "torch.save (crc32 off)": peers.save_torch,
    **({"safetensors": peers.save_safetensors} if has_safetensors() else {}),
    "DCP save": peers.save_dcp,
}

_SAVES = 3
_SAMPLE_EVERY_S = 0.005


@contextmanager
def memory(options: Options) -> Iterator[Figure]:
    """See the bars."""
    server = get_context("forkserver")
    server.set_forkserver_preload([__name__])
    yield Figure(
        name="memory",
        title="Memory beyond the training state",
        facts={"state_mib": options.mib, "saves": f"the peak over {_SAVES} saves of one process"},
        cases=[_case(name, options, server) for name in (*SAVERS, *WRITERS)],
        bars=[
            Bar(
                says="asynchronous: one copy of the state (1.05 x for what runs beside it), kept and reused",
                case=ASYNCHRONOUS,
                measure="copies",
                at_most=1.05,
            ),
            Bar(says="synchronous: under 256 MiB", case=SYNCHRONOUS, measure="peak_bytes", at_most=float(256 << 20)),
        ],
        warm_bytes=4 * (options.mib << 20),
        profiled=False,
    )


def _case(name: str, options: Options, server: BaseContext) -> Case:
    def run() -> Sample:
        with ProcessPoolExecutor(max_workers=1, mp_context=server) as alone:
            return alone.submit(_peak, name, options.mib, options.scratch / "saved").result()

    return Case(name=name, run=run)


def _peak(name: str, mib: int, folder: Path) -> dict[str, float]:
    """Save a few times; what the process held at most, beyond the training state."""
    state = State(mib)
    resident, anonymous = status("VmRSS"), status("RssAnon")
    reset_peak()
    with _Sampler() as sampler:
        saver = SAVERS[name](state, folder) if name in SAVERS else None
        for _ in range(_SAVES):
            if saver is not None:
                saver.start()
                saver.join()
                saver.clear()
            else:
                WRITERS[name](state, folder)
                remove(folder)
    peak = status("VmHWM") - resident
    if saver is not None:
        saver.close()
    return {"peak_bytes": peak, "anonymous_bytes": sampler.highest - anonymous, "copies": peak / state.size}


class _Sampler:
    """The most anonymous memory seen: unlike the resident peak, the kernel does not keep it."""

    def __init__(self) -> None:
        self.highest = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._done.wait(_SAMPLE_EVERY_S):
            self.highest = max(self.highest, status("RssAnon"))

    def __enter__(self) -> _Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
