"""How long until a saved state is in the live tensors, from the disk and from the page cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import peers
from benchmarks.machine import evict, fill_cache, has_safetensors
from benchmarks.measuring import Bar, Case, Figure, Options, Sample, timed
from benchmarks.savers import Milepost
from benchmarks.state import State
from milepost.journal import Config, Journal

OURS = "milepost resume"
CHECKED = "milepost resume, digests checked"
MAPPED = "torch.load (mmap), copied to live"
READ = "torch.load, copied to live"
SAFETENSORS = "safetensors, copied to live"
DCP = "DCP load"
PEERS = (MAPPED, READ, SAFETENSORS, DCP)

Load = Callable[[], None]


@contextmanager
def load(options: Options) -> Iterator[Figure]:
    """See the bars. Ours is a whole `Journal.open`: lock, journal, checkpoint, trainer."""
    state = State(options.mib)
    loaders = _loaders(state, options.scratch)
    yield Figure(
        name="load",
        title="How long until a saved state is in the live tensors",
        facts={"state_bytes": state.size, OURS: "a whole Journal.open; the peers check no digest either"},
        cases=[
            *(_case(f"cold: {name}", run, path, evict) for name, (run, path) in loaders.items()),
            *(_case(f"warm: {name}", run, path, fill_cache) for name, (run, path) in loaders.items()),
        ],
        bars=[
            Bar(
                says="from the disk: at most 0.85 x the fastest peer",
                case=f"cold: {OURS}",
                measure="load_s",
                against=tuple(f"cold: {name}" for name in PEERS),
                at_most=0.85,
            ),
            Bar(
                says="from the page cache: not slower than the fastest peer",
                case=f"warm: {OURS}",
                measure="load_s",
                against=tuple(f"warm: {name}" for name in PEERS),
                at_most=1.0,
            ),
        ],
        warm_bytes=2 * state.size,
    )


def _loaders(state: State, scratch: Path) -> dict[str, tuple[Load, Path]]:
    """Save the state in every form; how each is loaded again, and where it lies."""
    ours, torch_file, tensors, shards = (scratch / name for name in ("run", "torch.pt", "tensors", "dcp"))
    run = Milepost(state, ours)
    run.start()
    run.journal.close()
    peers.save_torch(state, torch_file)
    peers.save_dcp(state, shards)
    loaders: dict[str, tuple[Load, Path]] = {
        OURS: (partial(_resume, state, ours, verify=False), ours),
        CHECKED: (partial(_resume, state, ours, verify=True), ours),
        MAPPED: (partial(peers.load_torch, state, torch_file, mmap=True), torch_file),
        READ: (partial(peers.load_torch, state, torch_file, mmap=False), torch_file),
        DCP: (partial(peers.load_dcp, state, shards), shards),
    }
    if has_safetensors():
        peers.save_safetensors(state, tensors)
        loaders[SAFETENSORS] = (partial(peers.load_safetensors, state, tensors), tensors)
    return loaders


def _resume(state: State, folder: Path, *, verify: bool) -> None:
    config = Config.load({"run": {"output_root": str(folder)}, "rl": {"verify_on_resume": verify}})
    journal = Journal.open(config, trainer=state.trainer())
    assert journal.resumption.kind == "exact", f"nothing was loaded: {journal.resumption}"
    journal.close()


def _case(name: str, run: Load, path: Path, bring: Callable[[Path], None]) -> Case:
    def load_once() -> Sample:
        load_s, _ = timed(run)
        return {"load_s": load_s}

    return Case(name=name, run=load_once, before=partial(bring, path))
