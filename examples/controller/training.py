"""One rank of the canary: what it trains, what it saves, and how it compares what it restored to what it had.

1. The trainer's state is the application's own: one file for each rank, in a directory of its own for each save. The
   ranks are equal in model, momentum and schedule; each draws its own numbers.
2. `save`: every rank writes its file, then all say at which update they did, and only then rank 0 publishes the
   manifest of all the files. A directory without a manifest is no checkpoint, whatever is in it.
3. Each rank keeps a witness outside of the checkpoint. What is restored has to be equal to that, bit by bit.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from milepost.engines.applications import MANIFEST
from milepost.journal import CheckpointManifest, shard_names
from milepost.journal.controller import ResumeMetadata

from .client import Worker, ask

RANKS, SEED = 2, 7
SHARDS = shard_names("trainer", world_size=RANKS)
COMPATIBILITY: Mapping[str, object] = {"dataset": "letters", "ranks": RANKS}
PARTS = ("model", "momentum", "schedule", "rng")


class Trainer:
    """A small model, SGD with momentum, and a learning rate that halves at each update."""

    def __init__(self, *, rank: int, device: torch.device) -> None:
        torch.manual_seed(SEED)  # the same first weights everywhere
        self.device = device
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.5)
        self.updates = 0
        torch.manual_seed(SEED + 1 + rank)  # and each rank its own rollouts

    def generate(self, item: str) -> Tensor:
        """A rollout of the item, float32[4, 8]: this rank's own."""
        return (ord(item) / 64 + torch.randn(4, 8)).to(self.device)

    def update(self, rollout: Tensor) -> None:
        """One update with the rollouts of all ranks."""
        self.optimizer.zero_grad()
        self.model(rollout).square().mean().backward()
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
        self.optimizer.step()
        self.schedule.step()
        self.updates += 1

    def state(self) -> dict[str, Any]:
        rng = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if self.device.type == "cuda" else ())]
        return {
            "model": self.model.state_dict(),
            "momentum": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "rng": rng,
            "updates": self.updates,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["momentum"])
        self.schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["rng"][0].cpu())
        if self.device.type == "cuda":
            torch.cuda.set_rng_state_all([one.cpu() for one in state["rng"][1:]])
        self.updates = state["updates"]


# --- checkpoints ----------------------------------------------------------------------------------------------


def newest(folder: Path) -> Path | None:
    """The checkpoint of the latest update; None where nothing was published."""
    return max((manifest.parent for manifest in folder.glob(f"update-*/{MANIFEST}")), default=None)


def metadata_of(checkpoint: Path) -> ResumeMetadata:
    """What the checkpoint says of itself, once it is found whole. Its identity is that of its manifest."""
    manifest = CheckpointManifest.load(checkpoint, artifacts=SHARDS, compatibility=COMPATIBILITY)
    return ResumeMetadata.from_json({**manifest.metadata, "checkpoint_identity": manifest.identity})


def save(trainer: Trainer, folder: Path, *, rank: int, url: str) -> None:
    """Make the checkpoint of this update; all ranks call it behind the same one."""
    checkpoint = folder / f"update-{trainer.updates:06}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    torch.save(trainer.state(), checkpoint / SHARDS[rank])
    require_alike(trainer.updates)
    if rank == 0:
        said = {
            "schema_version": 1,
            "training_commands": trainer.updates,
            "optimizer_updates": trainer.updates,
            "sampling_owner": "sampler",
            **ask(f"{url}/boundary"),
        }
        CheckpointManifest.publish(checkpoint, artifacts=SHARDS, metadata=said, compatibility=COMPATIBILITY)
    dist.barrier()


# --- comparing ------------------------------------------------------------------------------------------------


def require_alike(mine: object) -> None:
    """All ranks have this; else all of them end."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if not all(same(everyone[0], other) for other in everyone):
        raise SystemExit(f"the ranks differ: {everyone}")


def same(one: Any, other: Any) -> bool:
    """To the last bit, in types as in values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        alike = (one.dtype, one.shape) == (other.dtype, other.shape)
        return alike and one.cpu().numpy().tobytes() == other.cpu().numpy().tobytes()
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


# --- the two starts -------------------------------------------------------------------------------------------


def first_start(trainer: Trainer, worker: Worker, folder: Path, *, rank: int) -> None:
    """Own three items, train the first and the third, and save while the second is out."""
    first, out, third = items(worker, 3, rank=rank)
    for item in (first, third):
        train(trainer, worker, item, rank=rank)
    save(trainer, folder, rank=rank, url=worker.url)
    torch.save(trainer.state(), folder / f"witness-{rank}.pt")
    say(f"saved update {trainer.updates} while {out} is out")
    threading.Event().wait()  # for the end that comes with SIGKILL


def second_start(trainer: Trainer, worker: Worker, folder: Path, *, rank: int) -> None:
    """Find everything as it was, and go on from the boundary."""
    witness = torch.load(folder / f"witness-{rank}.pt", weights_only=True)
    state = trainer.state()
    if wrong := [part for part in (*PARTS, "updates") if not same(state[part], witness[part])]:
        raise SystemExit(f"not what was saved: {', '.join(wrong)}")
    require_alike({part: state[part] for part in PARTS if part != "rng"})
    say(f"{', '.join(PARTS)} are as they were saved")
    for item in items(worker, 2, rank=rank):
        train(trainer, worker, item, rank=rank)
    require_alike({part: value for part, value in trainer.state().items() if part != "rng"})
    if rank == 0:
        worker.end()
    say(f"ends behind update {trainer.updates}")


def items(worker: Worker, count: int, *, rank: int) -> list[str]:
    """What rank 0 took from the controller, on every rank."""
    taken: list[Any] = [worker.rollout() if rank == 0 else None for _ in range(count)]
    dist.broadcast_object_list(taken)
    return taken


def train(trainer: Trainer, worker: Worker, item: str, *, rank: int) -> None:
    trainer.update(trainer.generate(item))
    if rank == 0:
        worker.completion(item)
    say(f"generated and trained {item}")


def say(line: str) -> None:
    print(line, flush=True)


def run(folder: Path, *, rank: int, url: str, meeting: Path) -> None:
    """A rank from its start to its end. It goes on from the newest checkpoint, where there is one."""
    torch.set_num_threads(1)
    gpus = torch.cuda.device_count()
    device = torch.device("cuda", rank % gpus) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    backend = "cuda:nccl,cpu:gloo" if gpus >= RANKS else "gloo"  # two ranks on one GPU are none of NCCL's
    limit = timedelta(seconds=60)  # for whoever waits for a rank that is gone
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=RANKS, timeout=limit)
    trainer, worker = Trainer(rank=rank, device=device), Worker(url, f"rank-{rank}")
    checkpoint = newest(folder)
    if checkpoint is None:
        worker.register()
        first_start(trainer, worker, folder, rank=rank)
    else:
        metadata = metadata_of(checkpoint)
        trainer.restore(torch.load(checkpoint / SHARDS[rank], map_location=device, weights_only=True))
        worker.register(metadata.to_json())
        second_start(trainer, worker, folder, rank=rank)
    dist.destroy_process_group()
    sys.stderr.flush()
    # gloo's threads outlive the group, and one of them may abort the process while the interpreter is torn down.
    os._exit(0)
