"""Directories of shards for tests: saved by our code or by torch, on ranks that are there one after the other.

`as_rank` is a process group of torch's own that talks to nobody: a DTensor made under it is that rank's, and a
collective would be a no-op that leaves wrong values behind. So a world of any size fits in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement
from torch.testing._internal.distributed.fake_pg import FakeStore

from milepost.engines.digests import digest_of
from milepost.engines.disks.local import LocalDisk
from milepost.engines.formats import write_image
from milepost.engines.formats.dcp import Planner, Shards, metadata_file, plan_together, read_dcp
from milepost.transitions.values import FileDigest

Tree = dict[Any, Any]
Make = Callable[[DeviceMesh], Tree]


@contextmanager
def as_rank(rank: int, *, of: int) -> Iterator[DeviceMesh]:
    """Be this rank of a world of `of`, and its mesh."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=of)
    try:
        yield init_device_mesh("cpu", (of,))
    finally:
        dist.destroy_process_group()


def sharded(whole: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> DTensor:
    """This rank's DTensor of a tensor that every rank has whole, without a word to the others."""
    local = whole
    for dimension, placement in enumerate(placements):
        if placement.is_shard():
            local = _chunks(local, placement, mesh.size(dimension))[mesh.get_local_rank(dimension)]
    return DTensor.from_local(
        local.clone(), mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def _chunks(tensor: torch.Tensor, placement: Any, count: int) -> list[torch.Tensor]:
    """As torch cuts: full chunks, then a smaller one, then empty ones."""
    parts = list(tensor.chunk(count, placement.dim))
    empty = tensor.narrow(placement.dim, 0, 0)
    return parts + [empty] * (count - len(parts))


def save(folder: Path, trees: Sequence[Make], *, name: str = "model") -> dict[str, FileDigest]:
    """Write a tree, of which `trees[rank]` makes each rank's part, and say what was written, by name."""
    disk, world = LocalDisk(folder), len(trees)
    at = ""
    for part in name.split("/"):
        at = f"{at}/{part}".lstrip("/")
        disk.mkdir(at)
    shards = []
    for rank, make in enumerate(trees):
        with as_rank(rank, of=world) as mesh:
            shards.append(Shards(name, make(mesh), coordinator=rank == 0, planner=Planner()))
    together = plan_together([own.plan for own in shards])
    entries = []
    for rank, own in enumerate(shards):
        image = own.image(together.plans[rank], rank=rank)
        if not image.empty:
            write_image(disk, image.name, image)
        entries.append(image.entries)
    (folder / name / ".metadata").write_bytes(metadata_file(together, entries))
    return files_of(folder / name)


def files_of(directory: Path) -> dict[str, FileDigest]:
    """The files of a directory as a manifest lists them, by their name within it."""
    disk, found = LocalDisk(directory), {}
    for name in disk.names(""):
        with disk.open(name) as source:
            found[name] = FileDigest(path=f"{directory.name}/{name}", size=source.size, digest=digest_of(source))
    return found


def load(directory: Path, *, files: dict[str, FileDigest] | None = None, **options: Any) -> Any:
    """`read_dcp`; without `files` as they are now."""
    return read_dcp(LocalDisk(directory.parent), directory.name, files=files or files_of(directory), **options)
