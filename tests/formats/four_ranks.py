"""One of four real ranks: FSDP2 trains on two of them and saves; one, three and four of them read it back.

python -m tests.formats.four_ranks <folder> <rank>
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from milepost.engines.disks.local import LocalDisk
from milepost.engines.formats import read_pt, stream, write_image
from milepost.engines.formats.dcp import Shards, metadata_file, plan_together
from tests.formats.directories import files_of, load
from tests.formats.samples import filled, raw

WORLD = 4


def _trained(mesh: DeviceMesh, *, seed: int) -> dict[str, Any]:
    """Model, optimizer and other sharded state after two steps: shapes that no number of ranks here divides."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Tanh(), torch.nn.Linear(7, 5, bias=False))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    other = {
        "columns": distribute_tensor(filled((3, 7), seed=seed), mesh, [Shard(1)]),
        "copies": distribute_tensor(filled((4,), torch.bfloat16, seed=seed), mesh, [Replicate()]),
        "plain": filled((2, 2), seed=seed),
        "numbers": {"seed": seed},
    }
    return {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer), "other": other}


def _whole(tree: Any) -> Any:
    """The tree with every tensor whole; a collective of its ranks."""
    if isinstance(tree, torch.Tensor):
        return (tree.full_tensor() if isinstance(tree, DTensor) else tree).detach().clone()
    if isinstance(tree, dict):
        return {key: _whole(value) for key, value in tree.items()}
    return [_whole(value) for value in tree] if isinstance(tree, list) else tree


def _assert_equal(found: Any, expected: Any, path: str = "$") -> None:
    if isinstance(expected, torch.Tensor):
        assert raw(found) == raw(expected), path
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        for key, value in expected.items():
            _assert_equal(found[key], value, f"{path}.{key}")
    elif isinstance(expected, list):
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            _assert_equal(one, other, f"{path}[{index}]")
    else:
        assert found == expected, path


def _save(tree: Any, name: str, folder: Path, mesh: DeviceMesh) -> None:
    """What a crew does: plans to the first rank, the common plan back, files, entries, and `.metadata` last."""
    rank, group, disk = mesh.get_local_rank(), mesh.get_group(), LocalDisk(folder)
    shards = Shards(name, tree, coordinator=rank == 0)
    plans: list[Any] = [None] * mesh.size()
    dist.all_gather_object(plans, shards.plan, group=group)
    together = plan_together(plans)
    if rank == 0:
        disk.mkdir(name)
    dist.barrier(group=group)
    image = shards.image(together.plans[rank], rank=rank)
    if not image.empty:
        write_image(disk, image.name, image)
    entries: list[Any] = [None] * mesh.size()
    dist.all_gather_object(entries, image.entries, group=group)
    if rank == 0:
        (folder / name / ".metadata").write_bytes(metadata_file(together, entries))


def main(folder: Path, rank: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    meshes = {size: DeviceMesh("cpu", list(range(size))) for size in (1, 2, 3, 4)}
    expected: list[Any] = [None]
    if rank < 2:
        state = _trained(meshes[2], seed=1)
        expected = [_whole(state)]
        for name, tree in state.items():
            _save(tree, name, folder, meshes[2])
    dist.broadcast_object_list(expected, src=0)
    (whole,) = expected
    if rank == 0:
        write_image(LocalDisk(folder), "model.pt", stream({"model": whole["model"]})[0])
    dist.barrier()
    for size in (1, 3, 4):
        if rank < size:
            mine = {"rank": rank, "world_size": size}
            state = _trained(meshes[size], seed=2)
            found = {name: load(folder / name, into=tree, **mine) for name, tree in state.items()}
            assert found["model"]["0.weight"] is state["model"]["0.weight"]
            _assert_equal(_whole(found), whole)
            again = _trained(meshes[size], seed=3)["model"]
            with LocalDisk(folder).open("model.pt") as source:
                _assert_equal(_whole(read_pt(source, into=again, where="model.pt")), whole["model"])
    state = _trained(meshes[4], seed=4)
    dcp.load(state["optim"], checkpoint_id=folder / "optim")
    _assert_equal(_whole(state["optim"]), whole["optim"])
    dcp.save(state["model"], checkpoint_id=folder / "theirs")
    theirs = _whole(state["model"])
    dist.barrier()
    if rank < 3:
        state = _trained(meshes[3], seed=5)
        load(folder / "theirs", into=state["model"], rank=rank, world_size=3)
        _assert_equal(_whole(state["model"]), theirs)
    if rank == 0:
        _assert_equal(load(folder / "theirs", files=files_of(folder / "theirs")), theirs)
    dist.barrier()
    os._exit(0)  # gloo's threads may abort an interpreter that is torn down


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
