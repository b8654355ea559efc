"""An application with checkpoints of its own: directories with a manifest, and samplers of torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
)

from milepost.engines.applications import CheckpointManifest
from milepost.journal.controller import (
    ControllerResume,
    ResumableBatchSampler,
    ResumableSampler,
    ResumeMetadata,
    Samplers,
    SamplingOwner,
)
from milepost.transitions.errors import NotACheckpoint

SAMPLES = 23
BATCH = 4
ARTIFACTS = ("model.pt",)
KINDS = ("random", "sequential", "distributed")


def sampler_of(kind: str, *, seed: int = 7, rank: int = 0) -> Sampler[int]:
    """A sampler of torch over the numbers below `SAMPLES`; a distributed one is of two ranks."""
    if kind == "random":
        return RandomSampler(range(SAMPLES), generator=torch.Generator().manual_seed(seed))
    if kind == "sequential":
        return SequentialSampler(range(SAMPLES))
    return DistributedSampler(TensorDataset(torch.arange(SAMPLES)), num_replicas=2, rank=rank, seed=seed)


def samplers_of(kind: str, owner: SamplingOwner) -> Samplers:
    inner = sampler_of(kind)
    if owner == "sampler":
        return Samplers(sampler=ResumableSampler(inner))
    return Samplers(sampler=inner, batch_sampler=ResumableBatchSampler(BatchSampler(inner, BATCH, drop_last=False)))


def loader_of(samplers: Samplers, *, workers: int = 0) -> DataLoader[int]:
    more: dict[str, Any] = {"num_workers": workers, "prefetch_factor": 4} if workers else {}
    if samplers.batch_sampler is None:
        return DataLoader(range(SAMPLES), batch_size=BATCH, sampler=samplers.sampler, **more)  # type: ignore[arg-type]
    return DataLoader(range(SAMPLES), batch_sampler=samplers.batch_sampler, **more)  # type: ignore[arg-type]


def numbers(batch: Any) -> list[int]:
    return [int(number) for number in batch]


def taken(samplers: Samplers, batch: Any) -> None:
    """The application took this batch off the loader."""
    samplers.effective.advance(1 if samplers.batch_sampler is not None else len(batch))


class Application:
    """A `ControllerAdapter`; `asked` is what it was asked, in order."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []

    def save(self, step: int, *, owner: SamplingOwner = "sampler", epoch: int = 1, state: object = None) -> Path:
        """A checkpoint after this many updates, published."""
        directory = self.root / f"step-{step}"
        directory.mkdir()
        (directory / ARTIFACTS[0]).write_bytes(b"%d" % step)
        metadata: Mapping[str, object] = {
            "schema_version": 1,
            "training_commands": step + 1,
            "optimizer_updates": step,
            "remaining_completions": 100 - step,
            "epoch": epoch,
            "sampling_owner": owner,
            "sampler_state": state,
        }
        CheckpointManifest.publish(directory, artifacts=ARTIFACTS, metadata=metadata)
        return directory

    def discover(self) -> Path | None:
        self.asked.append("discover")
        found = sorted(self.root.glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
        for path in reversed(found):
            try:
                CheckpointManifest.load(path, artifacts=ARTIFACTS)
            except NotACheckpoint:
                continue  # never published
            return path
        return None

    def load_metadata(self, path: str) -> ResumeMetadata:
        self.asked.append(f"load {Path(path).name}")
        manifest = CheckpointManifest.load(path, artifacts=ARTIFACTS)
        return ResumeMetadata.from_json({**manifest.metadata, "checkpoint_identity": manifest.identity})

    def restore(self, sampler: Any, metadata: ResumeMetadata) -> None:
        self.asked.append(f"restore at epoch {sampler.epoch}")
        sampler.load_state_dict(metadata.sampler_state)


def started(resume: ControllerResume, kind: str = "random", owner: SamplingOwner = "sampler") -> Samplers:
    """Take every step but the last one."""
    samplers = resume.build_samplers(lambda: samplers_of(kind, owner))
    resume.select()
    resume.restore()
    resume.build_loader(loader_of)
    return samplers
