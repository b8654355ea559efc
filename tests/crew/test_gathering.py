"""The whole of what is spread over three ranks, next to what torch itself makes of it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

from milepost.engines.crew.gathering import Gatherer
from milepost.engines.formats.tensors import tensors_in
from milepost.transitions.errors import Refused, Unavailable
from tests.crew.spawn import run

_SIZE = 3


class Tied(nn.Module):
    """Uneven rows, fewer rows than ranks, bfloat16, a tied weight, more bytes than one piece, and a plain buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.narrow = nn.Linear(4, 2)
        self.brain = nn.Linear(5, 5, dtype=torch.bfloat16)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.wide = nn.Parameter(torch.arange(9 * (1 << 20), dtype=torch.float32).view(9, -1))
        self.register_buffer("seen", torch.arange(3))


def gather_next_to_torch() -> None:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (_SIZE,))
    model = Tied()
    fully_shard(model, mesh=mesh)
    lead = dist.get_rank() == 0
    gatherer = Gatherer.prepare(range(_SIZE))
    addresses = []
    for _ in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        expected = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        whole = gatherer.gather("model", model.state_dict(), lead=lead)
        if whole is None:
            assert not lead
            continue
        assert lead
        assert list(whole) == list(model.state_dict())
        for name, tensor in expected.items():
            _same(whole[name], tensor)
        addresses.append([tensor.data_ptr() for tensor in tensors_in(whole)])
        assert whole["embedding.weight"].data_ptr() == whole["head.weight"].data_ptr()
        assert whole["seen"].data_ptr() != model.seen.data_ptr()
    assert not lead or addresses[0] == addresses[1]


def gather_every_sort() -> None:
    everyone = init_device_mesh("cpu", (_SIZE,))
    lead = dist.get_rank() == 0
    rows = torch.arange(20.0).view(5, 4)
    nothing = torch.zeros(0, 4)
    loose = {1, 2}
    listed = [1, {"deep": (2, "three")}]
    tree = {
        "columns": distribute_tensor(rows, everyone, (Shard(1),)),
        "everywhere": distribute_tensor(rows, everyone, (Replicate(),)),
        "flags": distribute_tensor(rows > 7, everyone, (Shard(0),)),
        "nothing": distribute_tensor(nothing, everyone, (Shard(0),)),
        "transposed": rows.t(),
        "listed": listed,
        "set": loose,
        "grid": DTensor.from_local(torch.full((1, 2), float(dist.get_rank())), everyone, (Shard(0),)),
    }
    for gatherer in (Gatherer(), Gatherer.prepare(range(_SIZE))):
        whole = gatherer.gather("optim", tree, lead=lead)
        if whole is None:
            continue
        _same(whole["columns"], rows)
        _same(whole["everywhere"], rows)
        _same(whole["flags"], rows > 7)
        _same(whole["nothing"], nothing)
        _same(whole["transposed"], rows.t())
        _same(whole["grid"], torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]))
        assert whole["listed"] == listed
        assert whole["set"] == loose
        assert whole["set"] is not loose
        assert whole["listed"][1] is not listed[1]


def gather_on_two_of_three() -> None:
    rank = dist.get_rank()
    group = Gatherer.prepare((2, 1))
    stubborn = Gatherer.prepare((0, 1, 2), timeout_s=4)
    pair = dist.new_group([1, 2])
    if rank:
        mesh = DeviceMesh.from_group(pair, "cpu")
        tree = {"rows": DTensor.from_local(torch.full((2, 1), float(rank)), mesh, (Shard(0),))}
        whole = group.gather("model", tree, lead=rank == 2)
        assert (whole is None) == (rank == 1)
        if whole is not None:
            _same(whole["rows"], torch.tensor([[1.0], [1.0], [2.0], [2.0]]))
        with pytest.raises(Refused, match="rank 0 writes the checkpoint of ranks"):
            stubborn.gather("model", tree, lead=False)
    everyone = init_device_mesh("cpu", (_SIZE,))
    tree = {"layer": {"rows": distribute_tensor(torch.ones(3, 1), everyone, (Shard(0),))}}
    if rank == 0:
        with pytest.raises(Unavailable, match=r"the part of layer\.rows that rank 1 holds did not reach"):
            stubborn.gather("model", tree, lead=True)
    dist.barrier()


def gather_everything() -> None:
    gather_next_to_torch()
    gather_every_sort()
    gather_on_two_of_three()


@pytest.mark.slow
def test_the_whole_is_what_torch_makes_of_it_whatever_the_placement_and_the_ranks() -> None:
    run(gather_everything, _SIZE)


def _same(found: object, expected: torch.Tensor) -> None:
    assert type(found) is torch.Tensor
    assert (found.dtype, found.device.type) == (expected.dtype, "cpu")
    assert torch.equal(found, expected)
