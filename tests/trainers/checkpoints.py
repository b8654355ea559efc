"""Checkpoints in memory, written by torch.save and read by a weights-only torch.load, and parts to train."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from attrs import evolve, field, frozen
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor

from milepost.engines.trainers import BaseTrainer, CursorResume, PlainTrainer, ShuffledBatches, Snapshot, Tree, join
from milepost.transitions.values import FULL, Clocks


@frozen(kw_only=True)
class Checkpoint:
    """A `RestoreSource`: the bytes of each file."""

    files: Mapping[str, bytes]
    world_size: int = 1
    rank: int = 0
    where: str = "iter_000000005"
    filled: set[str] = field(factory=set)
    """Names of the trees that were read into live tensors."""

    @classmethod
    def of(cls, trees: Mapping[str, Tree]) -> Checkpoint:
        return cls(files={name: to_bytes(tree) for name, tree in trees.items()})

    @classmethod
    def joined(cls, *snapshots: Snapshot) -> Checkpoint:
        """What a world saves whose ranks captured these; the first is the leader."""
        return cls.of(join(snapshots[0].trees, [snapshot.local for snapshot in snapshots]))

    def names(self) -> tuple[str, ...]:
        return tuple(self.files)

    def forms(self, name: str) -> object:
        return torch.load(io.BytesIO(self.files[name]), weights_only=True)

    def load(self, name: str, *, into: object | None = None) -> object:
        tree = torch.load(io.BytesIO(self.files[name]), weights_only=True)
        if into is not None:
            self.filled.add(name)
        return fill(tree, into)

    def tree(self, name: str) -> Any:
        return self.load(name)

    def changed(self, name: str, change: Callable[[Any], object]) -> Checkpoint:
        """The same checkpoint with one tree changed in place by `change`."""
        tree = self.tree(name)
        change(tree)
        return evolve(self, files={**self.files, name: to_bytes(tree)}, filled=set())

    def without(self, *names: str) -> Checkpoint:
        kept = {name: data for name, data in self.files.items() if name not in names}
        return evolve(self, files=kept, filled=set())


def save(
    trainer: BaseTrainer,
    *,
    step: int = 0,
    cursor_resume: CursorResume = "auto",
    validation: Mapping[str, object] | None = None,
) -> Checkpoint:
    clocks = Clocks(optimizer_step=step, attempt_id=step)
    snapshot = trainer.capture(FULL, clocks=clocks, cursor_resume=cursor_resume, validation=validation)
    return Checkpoint.joined(snapshot)


def to_bytes(tree: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(tree, buffer)
    return buffer.getvalue()


def fill(tree: Any, into: Any) -> Any:
    """Tensors of `into` filled in place where dtype and shape allow it, as the formats engine does."""
    if isinstance(tree, torch.Tensor):
        if isinstance(into, DTensor) and (into.dtype, into.shape) == (tree.dtype, tree.shape):
            into.to_local().copy_(chunk_of(tree, into))
            return into
        if isinstance(into, torch.Tensor) and (into.dtype, into.shape) == (tree.dtype, tree.shape):
            with torch.no_grad():
                return into.copy_(tree)
        return tree
    if isinstance(tree, dict):
        for key in tree:
            tree[key] = fill(tree[key], into.get(key) if isinstance(into, dict) else None)
    elif isinstance(tree, list):
        tree = [fill(leaf, into[at] if isinstance(into, list) else None) for at, leaf in enumerate(tree)]
    return tree


def chunk_of(whole: torch.Tensor, like: DTensor) -> torch.Tensor:
    """What this rank holds of a tensor that is laid out like `like`, cut from the whole."""
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None).to_local()


def plain(tree: Any) -> Any:
    """A tree in values that compare bit by bit, NaN aside."""
    if isinstance(tree, torch.Tensor):
        return str(tree.dtype), tree.tolist()
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    return [plain(value) for value in tree] if isinstance(tree, list | tuple) else tree


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


Optimizer = torch.optim.Optimizer
MakeOptimizer = Callable[[nn.Module], Optimizer]
MakeScheduler = Callable[[Optimizer], Any]


class Run:
    """A small training run: dropout, noise from every global stream, shuffled batches."""

    def __init__(
        self,
        make_optimizer: MakeOptimizer = lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        make_scheduler: MakeScheduler | None = None,
        *,
        width: int = 6,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        seed_everything(seed)
        layers = [nn.Linear(3, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 1)]
        self.model = nn.Sequential(*layers).to(dtype)
        dataset = torch.Generator().manual_seed(99)
        self.inputs = torch.randn(22, 3, generator=dataset).to(dtype)
        self.targets = torch.randn(22, 1, generator=dataset).to(dtype)
        self.optimizer = make_optimizer(self.model)
        self.scheduler = make_scheduler(self.optimizer) if make_scheduler else None
        self.batches: ShuffledBatches[int] = ShuffledBatches(22, batch_size=4, seed=7)
        self.trainer = PlainTrainer(
            model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, data=self.batches
        )

    def train(self, steps: int) -> list[float]:
        return [self.step() for _ in range(steps)]

    def step(self) -> float:
        chosen = next(self.batches)
        noise = 0.01 * (random.gauss(0, 1) + float(np.random.standard_normal()) + float(torch.randn(())))
        loss = ((self.model(self.inputs[chosen]) + noise - self.targets[chosen]) ** 2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        return float(loss.detach())

    def everything(self) -> bytes:
        """All that a later step depends on, as bytes."""
        return b"".join(save(self.trainer).files[name] for name in ("model", "optim", "trainer", "data"))
