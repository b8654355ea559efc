"""Ranks of a torch.distributed world (gloo, on loopback) that hold one FSDP2 training state, and do what they are
told.

Every task runs on all ranks between two barriers; what is reported is the time of the slowest. A rank has one thread,
as under torchrun.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import torch
from torch import distributed as dist

from benchmarks import peers
from benchmarks.machine import evict, fill_cache, remove, sync_tree
from benchmarks.measuring import Sample
from benchmarks.state import State
from milepost.engines.checkpoints.source import CheckpointSource
from milepost.engines.disks.local import LocalDisk
from milepost.engines.trainers import ShardedTrainer
from milepost.journal import Config, Journal
from milepost.journal.restoring import read_manifest

FORMATS = ("dcp", "consolidated")


class World:
    """The ranks, seen from outside. `run` has all of them do one task."""

    def __init__(self, size: int, *, mib: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._links: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, rank, size, mib, str(folder)), daemon=True)
            process.start()
            theirs.close()
            self._links.append(ours)
            self._processes.append(process)
        self.facts: Mapping[str, float] = self.run("facts")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.run("close")
        for process in self._processes:
            process.join(timeout=60)
            process.kill()

    def run(self, task: str, *arguments: object) -> Sample:
        """What the slowest rank measured of each; rank 0 alone measures what is not a time."""
        for link in self._links:
            link.send((task, arguments))
        answers: list[Sample | BaseException] = [link.recv() for link in self._links]
        samples: list[Sample] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            samples.append(answer)
        return {name: max(one[name] for one in samples if name in one) for name in samples[0]}


class Rank:
    """One rank: the sharded state, a journal for each format, and the peers' ways to save it."""

    def __init__(self, mib: int, folder: Path) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        state = State(mib)
        self.size = state.size
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in (*state.model.layers, state.model):
            fully_shard(layer, mesh=mesh)
        self.model = state.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        del state
        gc.collect()
        self.folder = folder
        self.trainer = ShardedTrainer(model=self.model, optimizer=self.optimizer)
        self.step = dict.fromkeys(FORMATS, 0)
        self.journals: dict[str, Journal] = {}

    def open(self, form: str) -> Journal:
        """The journal that saves in this format."""
        if form not in self.journals:
            knobs = {"checkpoint_format": form, "save_async": False, "keep_optim_last": 0}
            config = Config.load({"run": {"output_root": str(self.folder / form)}, "rl": knobs})
            self.journals[form] = Journal.open(config, trainer=self.trainer)
        return self.journals[form]

    def facts(self) -> Sample:
        return {"state_bytes": self.size}

    def save(self, form: str) -> Sample:
        """One synchronous save through the journal, and what of it the journal's own file took."""
        journal = self.open(form)
        self.step[form] += 1
        with _counted(journal) as spent:
            taken = _timed(lambda: journal.save(self.step[form]))
        return {"durable_s": taken, "journal_s": spent["s"], "journal_share": spent["s"] / taken}

    def peer(self, name: str) -> Sample:
        """One save by a peer, durable at the end."""
        saves: Mapping[str, Callable[[Path], None]] = {"dcp": self._dcp, "gathered": self._gathered}
        return {"durable_s": _timed(lambda: saves[name](self.folder / f"peer-{name}"))}

    def _dcp(self, path: Path) -> None:
        peers.save_sharded(self.model, self.optimizer, path)
        if dist.get_rank() == 0:
            sync_tree(path)
        dist.barrier()

    def _gathered(self, path: Path) -> None:
        peers.save_gathered(self.model, self.optimizer, path)
        if dist.get_rank() == 0:
            sync_tree(path)
        dist.barrier()

    def load(self, who: str, where: str) -> Sample:
        """One load into the live tensors, from the disk or from the page cache, of an optimizer that never stepped.

        A process that resumes starts with one, so the peer has to make its moments as well.
        """
        path = self.folder / "peer-dcp" if who == "peer" else self._newest(who.partition(" ")[0])
        if dist.get_rank() == 0:
            (evict if where == "cold" else fill_cache)(path)
        self.optimizer.state.clear()
        dist.barrier()
        if who == "peer":
            return {"load_s": _timed(lambda: peers.load_sharded(self.model, self.optimizer, path))}
        disk = LocalDisk(path.parent)
        source = CheckpointSource(
            disk=disk,
            path=path.name,
            manifest=read_manifest(disk, path.name),
            role="",
            world_size=dist.get_world_size(),
            rank=dist.get_rank(),
            verify=who.endswith("checked"),
        )
        return {"load_s": _timed(lambda: self.trainer.restore(source))}

    def _newest(self, form: str) -> Path:
        return max(self.folder.glob(f"{form}/**/checkpoints/iter_*"))

    def clear(self, *names: str) -> Sample:
        """Remove what was saved."""
        if dist.get_rank() == 0:
            for name in names:
                for path in self.folder.glob(name):
                    remove(path)
        dist.barrier()
        return {}

    def close(self) -> Sample:
        for journal in self.journals.values():
            journal.close()
        return {}


def _work(link: Connection, rank: int, size: int, mib: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    worker: Any = Rank(mib, Path(folder))
    task = ""
    while task != "close":
        task, arguments = link.recv()
        try:
            link.send(getattr(worker, task)(*arguments))
        except BaseException as error:  # noqa: BLE001 - raised where the task was given
            link.send(RuntimeError(f"rank {rank}: {type(error).__name__}: {error}"))
    dist.destroy_process_group()


def _timed(run: Callable[[], object]) -> float:
    """Seconds from everybody's start to everybody's end."""
    gc.collect()
    dist.barrier()
    begun = time.perf_counter()
    run()
    dist.barrier()
    return time.perf_counter() - begun


@contextmanager
def _counted(journal: Journal) -> Iterator[dict[str, float]]:
    """The seconds that rank 0 spends in the journal's file meanwhile."""
    spent = {"s": 0.0}
    lead = journal._lead
    if lead is None:
        yield spent
        return
    appender = lead._driver._appender
    names = ("append", "sync", "fenced")
    kept = {name: getattr(appender, name) for name in names}

    def clocked(call: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object, **named: object) -> object:
            begun = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                spent["s"] += time.perf_counter() - begun

        return run

    for name, call in kept.items():
        setattr(appender, name, clocked(call))
    try:
        yield spent
    finally:
        for name in names:
            delattr(appender, name)
