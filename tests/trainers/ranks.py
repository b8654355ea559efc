"""Runs on two ranks of gloo, each rank a process: what `test_sharded_ranks.py` asks of them, one function a case."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from attrs import evolve
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from milepost.engines.trainers import (
    PlainTrainer,
    RestoreSource,
    ShardedTrainer,
    ShuffledBatches,
    Snapshot,
    join,
)
from milepost.transitions.errors import Corrupt
from milepost.transitions.values import FULL, Clocks
from tests.trainers.checkpoints import Checkpoint, MakeOptimizer, plain, seed_everything
from tests.trainers.directories import Directories
from tests.trainers.optimizers import MasterWeights

WORLD = 2


def adam(model: nn.Module) -> AdamW:
    return AdamW(model.parameters(), lr=0.05)


def network() -> nn.Sequential:
    """Five rows over two ranks are uneven; of one row the second rank has nothing."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


class Rank:
    """One rank of a run: its own batches, its own noise."""

    def __init__(self, make_optimizer: MakeOptimizer = adam, *, mesh: DeviceMesh | None = None) -> None:
        self.rank = dist.get_rank()
        self.model = network()
        fully_shard(self.model[0], mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = make_optimizer(self.model)
        self.batches: ShuffledBatches[int] = ShuffledBatches(20, batch_size=4, seed=7)
        for _ in range(self.rank):
            next(self.batches)
        seed_everything(self.rank)
        self.trainer = ShardedTrainer(model=self.model, optimizer=self.optimizer, data=self.batches)

    def train(self, steps: int) -> list[float]:
        return [self.step() for _ in range(steps)]

    def step(self) -> float:
        inputs = torch.tensor(next(self.batches)).float()[:, None] / 20 + torch.rand(4, 3) + random.random()
        loss = (self.model(inputs) ** 2).mean() + float(np.random.standard_normal())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def capture(self, step: int) -> Snapshot:
        return self.trainer.capture(FULL, clocks=Clocks(optimizer_step=step, attempt_id=step))

    def everything(self) -> dict[str, Any]:
        """All that a later step depends on, as plain values."""
        snapshot = self.capture(0)
        trees = join(gathered(snapshot.trees), [snapshot.local])
        return {name: plain(trees[name]) for name in ("model", "optim", "data", "trainer")}


def gathered(tree: Any) -> Any:
    """Every DTensor as the whole that it is of; all ranks do this together."""
    if isinstance(tree, DTensor):
        return tree.full_tensor()
    if isinstance(tree, dict):
        return {key: gathered(value) for key, value in tree.items()}
    return [gathered(value) for value in tree] if isinstance(tree, list) else tree


def saved(run: Rank, step: int, path: Path) -> list[RestoreSource]:
    """What the ranks save together, as whole files and as shards; the leader's files for both."""
    snapshot = run.capture(step)
    locals_: list[Any] = [None] * WORLD
    dist.all_gather_object(locals_, snapshot.local)
    here = {"world_size": WORLD, "rank": run.rank}
    whole = Checkpoint.of(gathered(join(snapshot.trees, locals_)))
    return [evolve(whole, **here), Directories.of(join(snapshot.trees, locals_), path, **here)]


def no_capture_waits_for_another_rank(path: Path) -> None:
    """Each rank captures while the other one is elsewhere: what communicates would not come back."""
    run = Rank()
    run.train(2)
    for turn in range(WORLD):
        if turn == run.rank:
            trees: Any = run.capture(2).trees
        dist.barrier()
    weight = dict(run.model.named_parameters())["0.weight"]
    assert isinstance(weight, DTensor)
    moment = run.optimizer.state[weight]["exp_avg"]
    assert isinstance(trees["model"]["0.weight"], DTensor)
    assert trees["model"]["0.weight"].to_local().data_ptr() == weight.to_local().data_ptr()
    assert trees["optim"]["state"]["0.weight"]["exp_avg"] is moment
    assert trees["trainer"]["fits"]["model"]["0.weight"] == "float32[5, 3]"
    assert trees["trainer"]["fits"]["optimizer"]["group 0"][0] == "float32[5, 3]"


def continues(make_optimizer: MakeOptimizer, at: int, mesh: DeviceMesh | None = None) -> Callable[[Path], None]:
    def case(path: Path) -> None:
        run = Rank(make_optimizer, mesh=mesh)
        run.train(at)
        sources = saved(run, at, path)
        losses, end = run.train(3), run.everything()
        for source in sources:
            for resumed in (Rank(make_optimizer, mesh=mesh), run):
                restored = resumed.trainer.restore(source, cursor_resume="strict")
                assert restored.exact == ("model", "optimizer", "data", "rng")
                assert resumed.train(3) == losses
                assert resumed.everything() == end

    return case


def names_are_those_of_the_model_without_its_wrapper(path: Path) -> None:
    def built(seed: int) -> tuple[nn.Module, AdamW, ShardedTrainer]:
        torch.manual_seed(seed)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1)))
        optimizer = adam(model)
        return model, optimizer, ShardedTrainer(model=model, optimizer=optimizer)

    def train(model: nn.Module, optimizer: AdamW) -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 3) * (1 + dist.get_rank())).sum().backward()
        optimizer.step()

    model, optimizer, trainer = built(0)
    train(model, optimizer)
    snapshot = trainer.capture(FULL, clocks=Clocks(optimizer_step=1, attempt_id=1))
    trees: Any = snapshot.trees
    assert list(trees["model"]) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert list(trees["optim"]["state"]) == list(trees["model"])
    source = evolve(Checkpoint.joined(snapshot, snapshot), world_size=WORLD, rank=dist.get_rank())
    train(model, optimizer)
    resumed, its_optimizer, its_trainer = built(1)
    its_trainer.restore(source)
    train(resumed, its_optimizer)
    assert all(map(torch.equal, model.parameters(), resumed.parameters()))


def a_plain_checkpoint_is_cut_to_the_chunks_of_each_rank(path: Path) -> None:
    """Its optimizer kept a maximum that this one does not: what nothing live could be filled with is cut, too."""
    model = network()
    optimizer = AdamW(model.parameters(), lr=0.05, amsgrad=True)
    for parameter in model.parameters():
        parameter.grad = torch.arange(1.0, parameter.numel() + 1).view_as(parameter)
    optimizer.step()
    snapshot = PlainTrainer(model=model, optimizer=optimizer).capture(
        FULL, clocks=Clocks(optimizer_step=1, attempt_id=1)
    )
    run = Rank()
    run.train(1)
    checkpoint = evolve(Checkpoint.joined(snapshot), world_size=WORLD, rank=run.rank)
    restored = run.trainer.restore(checkpoint)
    assert "the random streams of 1 ranks were skipped: 2 are here" in restored.notes
    for whole, part in zip(model.parameters(), run.model.parameters(), strict=True):
        assert isinstance(part, DTensor)
        assert torch.equal(part.full_tensor(), whole)
        for key, value in optimizer.state[whole].items():
            here = run.optimizer.state[part][key]
            assert isinstance(here, DTensor) is (key != "step")
            assert torch.equal(here.full_tensor() if isinstance(here, DTensor) else here, value)
    run.train(1)


def a_rejected_load_leaves_no_state_on_any_rank(path: Path) -> None:
    class Damaged(Checkpoint):
        def load(self, name: str, *, into: object | None = None) -> object:
            tree = super().load(name, into=into)
            if name == "optim":
                raise Corrupt("optim: expected another digest")
            return tree

    run = Rank()
    run.train(1)
    whole, shards = saved(run, 1, path)
    assert isinstance(whole, Checkpoint)
    losses = run.train(2)
    try:
        run.trainer.restore(Damaged(files=whole.files, world_size=WORLD, rank=run.rank))
    except Corrupt:
        assert not run.optimizer.state
    else:
        raise AssertionError("nothing was raised")
    run.trainer.restore(shards)
    assert run.train(2) == losses


def leaves_a_checkpoint_for_one_process(path: Path) -> None:
    run = Rank()
    run.train(3)
    whole, _ = saved(run, 3, path / "shards")
    assert isinstance(whole, Checkpoint)
    if run.rank == 0:
        for name, data in whole.files.items():
            (path / f"{name}.pt").write_bytes(data)


def cases() -> dict[str, Callable[[Path], None]]:
    hybrid = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    return {
        "no capture waits": no_capture_waits_for_another_rank,
        "stepped": continues(adam, 3),
        "never stepped": continues(adam, 0),
        "a shared counter": continues(lambda model: MasterWeights(model.parameters(), lr=0.05), 3),
        "a shared counter, never stepped": continues(lambda model: MasterWeights(model.parameters(), lr=0.05), 0),
        "a mesh of two dimensions": continues(adam, 3, hybrid),
        "a wrapper": names_are_those_of_the_model_without_its_wrapper,
        "a plain checkpoint": a_plain_checkpoint_is_cut_to_the_chunks_of_each_rank,
        "a rejected load": a_rejected_load_leaves_no_state_on_any_rank,
        "for one process": leaves_a_checkpoint_for_one_process,
    }


def work(rank: int, path: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(path / "store"), WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    for name, case in cases().items():
        folder = path / name
        folder.mkdir(exist_ok=True)
        case(folder)
        (path / f"done-{rank}").open("a").write(f"{name}\n")
    dist.barrier()
    os._exit(0)  # an interpreter that tears gloo's threads down aborts now and then
