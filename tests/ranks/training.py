"""A small training on every rank of a world: sharded by FSDP2 or whole on each, with all that a resume restores.

Every rank draws from random streams of its own and reads its own share of the data. So a step depends on everything
that is saved: a stream, a cursor, a moment or a rate that is not restored shows in the weights.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from attrs import define, frozen
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from milepost.engines.trainers import BaseTrainer, PlainTrainer, ShardedTrainer, Tree
from milepost.journal import Config

Kind = Literal["sharded", "plain"]

STEPS, SAVE_EVERY = 8, 2
_EXAMPLES, _WIDTH, _BATCH = 60, 8, 3


class Shares:
    """Endless batches of indices, of which each rank takes its own: its cursor says where it is."""

    def __init__(self, *, rank: int, size: int) -> None:
        self._at, self._size = rank, size

    def take(self) -> list[int]:
        taken = [(self._at * _BATCH + one) % _EXAMPLES for one in range(_BATCH)]
        self._at += self._size
        return taken

    def state_dict(self) -> Tree:
        return {"at": self._at}

    def load_state_dict(self, state_dict: Tree) -> None:
        self._at = int(state_dict["at"])  # type: ignore[call-overload]

    def fingerprint(self) -> str:
        return f"{_EXAMPLES} examples"


def network() -> nn.Sequential:
    """Sizes that two, three and four ranks divide evenly, unevenly, and into nothing for some."""
    return nn.Sequential(nn.Linear(_WIDTH, 10), nn.Dropout(0.2), nn.GELU(), nn.Linear(10, 3))


def sharded(model: nn.Sequential) -> nn.Sequential:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@define
class Training:
    """One rank's part. `losses` are those of the steps that were made here."""

    model: nn.Sequential
    optimizer: Optimizer
    scheduler: OneCycleLR
    data: Shares
    examples: Tensor

    @classmethod
    def begin(cls, kind: Kind = "sharded", *, seed: int = 7) -> Training:
        """Anew, as at the start of a process; `seed` is of what a resume overwrites."""
        rank, size = dist.get_rank(), dist.get_world_size()
        examples = torch.randn(_EXAMPLES, _WIDTH, generator=torch.Generator().manual_seed(1))
        torch.manual_seed(seed)
        model = sharded(network()) if kind == "sharded" else network()
        optimizer = AdamW(model.parameters(), lr=0.01)
        scheduler = OneCycleLR(optimizer, max_lr=0.02, total_steps=STEPS)
        for seed_stream in (torch.manual_seed, random.seed, np.random.seed):
            seed_stream(100 * seed + rank)
        return cls(model, optimizer, scheduler, Shares(rank=rank, size=size), examples)

    def trainer(self) -> BaseTrainer:
        kind = ShardedTrainer if isinstance(next(self.model.parameters()), DTensor) else PlainTrainer
        return kind(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, data=self.data)

    def step(self) -> float:
        """One step of all ranks; the loss of this one."""
        batch = self.examples[self.data.take()] + 0.1 * random.random() + 0.1 * float(np.random.random())
        self.optimizer.zero_grad()
        loss = self.model(batch).pow(2).mean()
        loss.backward()
        for parameter in self.model.parameters():
            if not isinstance(parameter, DTensor) and parameter.grad is not None:
                dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.scheduler.step()
        return float(loss.item())

    def state(self) -> State:
        """What a continued run must have in common with one that was never interrupted. Takes all ranks."""
        full = {f"model {name}": whole(value) for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                full[f"{key} {name}"] = whole(value)
        drawn = (random.random(), float(np.random.random()), float(torch.rand(())))
        rate = float(self.optimizer.param_groups[0]["lr"])
        return State(full=full, own=Own(drawn=drawn, batch=tuple(self.data.take()), rate=rate))


def whole(value: Tensor) -> Tensor:
    """The full tensor, in memory of its own."""
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


@frozen(kw_only=True)
class Own:
    """What one rank has for itself: the next draw of each stream, its next batch; and the learning rate."""

    drawn: tuple[float, ...]
    batch: tuple[int, ...]
    rate: float


@frozen(kw_only=True, eq=False)
class State:
    """Full tensors by name, weights and moments, and the rank's own."""

    full: dict[str, Tensor]
    own: Own


def require_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Every tensor, bit by bit."""
    assert found.keys() == expected.keys()
    different = [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)]
    assert not different, f"these differ: {', '.join(different)}"


def settings(root: Path | str, *, form: str, timeout_s: int = 20, **knobs: object) -> Config:
    """A configuration of a run below `root`; `knobs` are of the section rl."""
    rl = {"checkpoint_format": form, "save_every": SAVE_EVERY, "rank_timeout_s": timeout_s, "keep_optim_last": 0}
    return Config.load({"run": {"output_root": str(root)}, "rl": rl | knobs}, environ={})
