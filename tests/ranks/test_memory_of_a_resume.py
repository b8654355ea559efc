"""A sharded model resumes from whole files: each rank reads its own chunks, and no rank holds what it does not keep.

Anonymous memory (RssAnon of proc(5)) is watched by a thread while the run is opened. It grows by the rank's shard of
the moments, which were not there before. At no time does it grow by more than one tensor beside that and what does
not depend on the model: what is under way of a file, and a slack. The whole optimizer file would not
fit into that.
"""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from milepost.engines.trainers import PlainTrainer, ShardedTrainer
from milepost.journal import Journal
from tests.ranks.training import settings, whole
from tests.ranks.worlds import run

pytestmark = pytest.mark.slow

LAYERS, WIDTH = 8, 1472
TENSOR_MIB = WIDTH * WIDTH * 4 / 2**20
MODEL_MIB = LAYERS * TENSOR_MIB
READING_MIB, SLACK_MIB = 64, 12
_M_MMAP_THRESHOLD = -3
"""mallopt(3): from so many bytes on, what is freed is the system's again at once, and no longer counted."""


def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def save_whole(root: Path) -> list[float]:
    """One process, files that hold everything: the sums of weights and moments."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = PlainTrainer(model=model, optimizer=optimizer)
    with Journal.open(settings(root, form="consolidated", save_every=1), trainer=trainer) as journal:
        for _ in journal.steps(until=1):
            model(torch.ones(1, WIDTH)).pow(2).mean().backward()
            optimizer.step()
    return sums(model, optimizer)


def sums(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    tensors = [*model.parameters()]
    tensors += [optimizer.state[parameter][name] for parameter in tensors for name in ("exp_avg", "exp_avg_sq")]
    return [whole(tensor).double().sum().item() for tensor in tensors]


def anonymous_mib() -> float:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) / 1024


def resume_sharded(root: Path) -> tuple[float, float, list[float]]:
    """What the opening took: the most at any time, what is left of it, and the sums of what it restored; in MiB."""
    assert ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 64 << 10) == 1
    model = network()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = ShardedTrainer(model=model, optimizer=optimizer)
    before, peak, done = anonymous_mib(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, anonymous_mib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    # Nothing is saved, so that no memory is laid out for it.
    with Journal.open(settings(root, form="consolidated", save_every=0), trainer=trainer) as journal:
        after = anonymous_mib()
        done.set()
        watcher.join()
        assert (journal.resumption.kind, journal.resumption.step) == ("exact", 1)
    return peak - before, after - before, sums(model, optimizer)


def test_a_rank_that_resumes_from_whole_files_holds_its_shard_and_at_most_one_tensor_more(tmp_path: Path) -> None:
    (saved,) = run(save_whole, 1, tmp_path)
    moments_mib, whole_mib = MODEL_MIB, 2 * MODEL_MIB
    most_mib = moments_mib + TENSOR_MIB + READING_MIB + SLACK_MIB
    assert most_mib < moments_mib + whole_mib
    for peak_mib, kept_mib, restored in run(resume_sharded, 2, tmp_path):
        print(f"at most {peak_mib:.0f} MiB, {kept_mib:.0f} MiB are kept, of which {moments_mib:.0f} MiB are moments")
        assert restored == saved
        assert peak_mib <= most_mib
        assert kept_mib <= moments_mib + SLACK_MIB
