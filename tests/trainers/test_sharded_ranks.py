"""A model spread over two ranks: captured without a word between them, and restored chunk by chunk."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import multiprocessing

from milepost.engines.trainers import ShardedTrainer, ShuffledBatches, Tree
from tests.trainers import ranks
from tests.trainers.checkpoints import Checkpoint
from tests.trainers.directories import Directories

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks went through all cases; what fails there fails here with its rank and its traceback."""
    path = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        multiprocessing.spawn(ranks.work, args=(path,), nprocs=ranks.WORLD)  # type: ignore[no-untyped-call]
    return path


def test_every_case_holds_on_two_ranks(world: Path) -> None:
    for rank in range(ranks.WORLD):
        assert len((world / f"done-{rank}").read_text().splitlines()) == 10


@pytest.mark.parametrize("form", ["whole files", "shards"])
def test_what_two_ranks_saved_is_continued_by_one_process(world: Path, form: str) -> None:
    path = world / "for one process"
    files = {file.stem: file.read_bytes() for file in path.glob("*.pt")}
    source = (
        Checkpoint(files=files)
        if form == "whole files"
        else Directories(
            path=path / "shards", small={name: files[name] for name in ("trainer", "data")}, bulk=("model", "optim")
        )
    )
    model = ranks.network()
    optimizer = ranks.adam(model)
    batches: ShuffledBatches[int] = ShuffledBatches(20, batch_size=4, seed=7)
    restored = ShardedTrainer(model=model, optimizer=optimizer, data=batches).restore(source)
    assert restored.exact == ("model", "optimizer")
    assert restored.notes == (
        "the data cursor is of 2 ranks, 1 are here: the data source restarts",
        "the random streams of 2 ranks were skipped: 1 are here",
    )
    whole = Checkpoint(files=files)
    saved: Tree = whole.tree("optim")["state"]
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, whole.tree("model")[name])
        assert optimizer.state[parameter].keys() == saved[name].keys()  # type: ignore[attr-defined]
        for key, value in optimizer.state[parameter].items():
            assert torch.equal(value, saved[name][key])  # type: ignore[index]
