"""How long until a save is durable under its final name, digests included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks import peers
from benchmarks.bounds import MappedCopy, write_and_sync, write_direct_with_digest
from benchmarks.machine import has_safetensors, remove, sync_tree
from benchmarks.measuring import Bar, Case, Figure, Options, Sample, timed
from benchmarks.savers import Milepost, once
from benchmarks.state import State

ASYNCHRONOUS = "milepost save, asynchronous"
SYNCHRONOUS = "milepost save, synchronous"
DIRECT = "raw O_DIRECT write, blake3 beside it"
BUFFERED = "write + fdatasync"
TORCH = "torch.save (crc32 off) + fsync"
SAFETENSORS = "safetensors + fsync"
DCP = "DCP save"


@contextmanager
def durable(options: Options) -> Iterator[Figure]:
    """See the bars."""
    state = State(options.mib)
    size, path = state.size, options.scratch / "peer"
    raw = MappedCopy(list(state.flat().values()))
    raw.run()
    writers: dict[str, Callable[[], object]] = {
        DIRECT: lambda: write_direct_with_digest(path, raw.memory),
        BUFFERED: lambda: write_and_sync(path, raw.memory),
        TORCH: lambda: peers.save_torch(state, path),
        **({SAFETENSORS: lambda: peers.save_safetensors(state, path)} if has_safetensors() else {}),
        DCP: lambda: peers.save_dcp(state, path),
    }
    with ExitStack() as undo:
        savers = {
            ASYNCHRONOUS: Milepost(state, options.scratch / "asynchronous"),
            SYNCHRONOUS: Milepost(state, options.scratch / "synchronous", background=False),
        }
        for saver in savers.values():
            undo.callback(saver.close)
            once(saver)
        yield Figure(
            name="durable",
            title="How long until a save is durable",
            facts={"state_bytes": size, "digest": "blake3; the peers compute none"},
            cases=[
                *(_saver_case(name, saver, size) for name, saver in savers.items()),
                *(_writer_case(name, write, path, size) for name, write in writers.items()),
            ],
            bars=[*_bars("asynchronous", ASYNCHRONOUS, 0.85, 0.55), *_bars("synchronous", SYNCHRONOUS, 0.95, 0.65)],
            warm_bytes=2 * size,
        )


def _saver_case(name: str, saver: Milepost, size: int) -> Case:
    def save() -> None:
        saver.start()
        saver.join()

    return Case(name=name, run=partial(_sample, save, size), after=saver.clear)


def _writer_case(name: str, write: Callable[[], object], path: Path, size: int) -> Case:
    def save() -> None:
        write()
        sync_tree(path)

    return Case(name=name, run=partial(_sample, save, size), after=partial(remove, path))


def _sample(save: Callable[[], None], size: int) -> Sample:
    durable_s, _ = timed(save)
    return {"durable_s": durable_s, "written_bytes_per_s": size / durable_s}


def _bars(kind: str, case: str, of_torch: float, of_dcp: float) -> list[Bar]:
    limits = {TORCH: of_torch, DCP: of_dcp, DIRECT: 1.3}
    return [
        Bar(says=f"{kind}: at most {limit} x {peer}", case=case, measure="durable_s", against=(peer,), at_most=limit)
        for peer, limit in limits.items()
    ]
