"""A checkpoint whose bulk lies in directories of torch.distributed.checkpoint, written and read by torch itself."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from attrs import evolve, field, frozen
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from milepost.engines.trainers import Tree
from milepost.transitions.errors import NotResumable
from tests.trainers.checkpoints import to_bytes

SMALL = ("trainer", "data")


@frozen(kw_only=True)
class Directories:
    """A `RestoreSource` that is strict: what a load asks for is exactly what the checkpoint has."""

    path: Path
    small: Mapping[str, bytes]
    bulk: tuple[str, ...]
    world_size: int = 1
    rank: int = 0
    where: str = "iter_000000005"
    whole: list[str] = field(factory=list)
    """Names of the bulk trees that were read into fresh memory."""

    @classmethod
    def of(cls, trees: Mapping[str, Tree], path: Path, *, world_size: int = 1, rank: int = 0) -> Directories:
        """Every rank of a process group calls this together."""
        bulk = tuple(name for name in trees if name not in SMALL)
        for name in bulk:
            dcp.save(trees[name], checkpoint_id=path / name)
        small = {name: to_bytes(trees[name]) for name in SMALL if name in trees}
        return cls(path=path, small=small, bulk=bulk, world_size=world_size, rank=rank)

    def names(self) -> tuple[str, ...]:
        return (*self.bulk, *self.small)

    def forms(self, name: str) -> object:
        return evolve(self, whole=[]).load(name)

    def load(self, name: str, *, into: object | None = None) -> object:
        if name in self.small:
            return torch.load(io.BytesIO(self.small[name]), weights_only=True)
        if into is not None:
            assert isinstance(into, dict)
            saved = set(dcp.FileSystemReader(self.path / name).read_metadata().state_dict_metadata)
            if saved != set(flatten_state_dict(into)[0]):
                raise NotResumable(f"{name}: other names than {sorted(saved)}")
            try:
                dcp.load(into, checkpoint_id=self.path / name)
            except CheckpointException as error:
                raise NotResumable(f"{name}: {error}") from error
            return into
        self.whole.append(name)
        tree: Tree = {}
        reader = dcp.FileSystemReader(self.path / name)
        _load_state_dict(tree, reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)  # type: ignore[arg-type]
        return tree
