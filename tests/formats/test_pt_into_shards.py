"""A whole `.pt` file into sharded tensors: each rank reads its own chunk of each tensor, and nothing twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from attrs import define, field
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from typing_extensions import Buffer

from milepost.engines.disks.local import LocalDisk
from milepost.engines.formats import read_pt, stream
from milepost.transitions.errors import Corrupt, NotResumable
from tests.formats.directories import as_rank, sharded
from tests.formats.samples import DTYPES, filled, raw, read, written

PLACEMENTS: list[list[Placement]] = [[Shard(0)], [Shard(1)], [Replicate()]]


def _tree(seed: int) -> dict[str, Any]:
    base = filled((40, 6), seed=seed)
    return {
        "even": filled((12, 12), seed=seed),
        "uneven": filled((7, 5), torch.bfloat16, seed=seed),
        "few": filled((1, 2), torch.int64, seed=seed),
        "deep": filled((5, 6, 3), seed=seed),
        "turned": filled((9, 8), seed=seed).t(),
        "last": filled((2, 8, 4, 5), seed=seed).to(memory_format=torch.channels_last),
        "view": base[3:30, 1:5],
        "tied": base,
        "lazy": filled((8, 4), torch.complex64, seed=seed).conj(),
        "dtypes": {str(dtype): filled((6, 4), dtype, seed=seed) for dtype in DTYPES},
    }


def _sharded(tree: Any, mesh: DeviceMesh, placements: Sequence[Placement]) -> Any:
    if isinstance(tree, torch.Tensor):
        return sharded(tree.resolve_conj().contiguous(), mesh, placements)
    return {key: _sharded(value, mesh, placements) for key, value in tree.items()}


def _saved(tree: object, folder: Path) -> tuple[Path, str]:
    path, done = written(stream({"m": tree})[0], folder)
    return path, done.digest


def _shards(tree: dict[str, Any]) -> dict[str, DTensor]:
    flat = {name: tensor for name, tensor in tree.items() if isinstance(tensor, DTensor)}
    return flat | tree.get("dtypes", {})


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_rank_fills_its_own_chunk(placements: list[Placement], world: int, tmp_path: Path) -> None:
    path, digest = _saved({**_tree(1), "step": 7, "plain": filled((3,), seed=1)}, tmp_path)
    for rank in range(world):
        with as_rank(rank, of=world) as mesh:
            live = {**_sharded(_tree(2), mesh, placements), "step": 0, "plain": torch.zeros(3)}
            result = read(path, into=live, digest=digest if rank == 0 else None)
            assert result["step"] == 7 and result["plain"] is live["plain"]
            assert raw(live["plain"]) == raw(filled((3,), seed=1))
            expected = _shards(_sharded(_tree(1), mesh, placements))
            for name, tensor in _shards(live).items():
                assert _shards(result)[name] is tensor
                assert raw(tensor.to_local()) == raw(expected[name].to_local()), (name, rank)


def test_shards_of_a_mesh_of_two_dimensions_are_filled(tmp_path: Path) -> None:
    whole = filled((16, 12), seed=1)
    path, _ = _saved({"both": whole, "rows": whole, "strided": whole}, tmp_path)
    covered = torch.zeros(16, 12)
    for rank in range(4):
        with as_rank(rank, of=4):
            mesh = init_device_mesh("cpu", (2, 2))
            row, column = mesh.get_local_rank(0), mesh.get_local_rank(1)
            strided = DTensor.from_local(
                torch.zeros(4, 12), mesh, [_StridedShard(0, split_factor=2), Shard(0)],
                run_check=False, shape=whole.shape, stride=whole.stride(),
            )  # fmt: skip
            live = {
                "both": sharded(torch.zeros(16, 12), mesh, [Shard(0), Shard(1)]),
                "rows": sharded(torch.zeros(16, 12), mesh, [Replicate(), Shard(0)]),
                "strided": strided,
            }
            read(path, into=live)
            assert raw(live["both"].to_local()) == raw(whole[8 * row : 8 * row + 8, 6 * column : 6 * column + 6])
            assert raw(live["rows"].to_local()) == raw(whole[8 * column : 8 * column + 8])
            at = 8 * column + 4 * row  # tensor parallelism cuts first, FSDP cuts what it left
            assert raw(strided.to_local()) == raw(whole[at : at + 4])
            covered[at : at + 4] += 1
    assert (covered == 1).all()


def test_placements_that_are_no_box_or_no_part_are_refused_by_path(tmp_path: Path) -> None:
    path, _ = _saved({"a": [filled((9, 2), seed=1)]}, tmp_path)
    with as_rank(0, of=4):
        mesh = init_device_mesh("cpu", (2, 2))
        for placements in ([_StridedShard(0, split_factor=2), Shard(0)], [Partial(), Replicate()]):
            live = DTensor.from_local(
                torch.zeros(3, 2), mesh, placements, run_check=False, shape=torch.Size((9, 2)), stride=(2, 1)
            )
            with pytest.raises(NotResumable, match=r"\$\['a'\]\[0\]: "):
                read(path, into={"a": [live]})


@pytest.mark.parametrize(
    ("whole", "words"),
    [
        (torch.zeros(8, 3), "shape (8, 3)"),
        (torch.zeros(8, 2).half(), "torch.float16"),
        (torch.zeros(8, 2, device="meta"), "on meta"),
    ],
    ids=["shape", "dtype", "meta"],
)
def test_a_shard_of_another_tensor_is_not_resumable_and_left_alone(
    whole: torch.Tensor, words: str, tmp_path: Path
) -> None:
    path, _ = _saved({"v": filled((4, 2), seed=1), "w": filled((8, 2), seed=1)}, tmp_path)
    with as_rank(0, of=2) as mesh:
        live = {"v": sharded(torch.zeros(4, 2), mesh, [Shard(0)]), "w": sharded(whole, mesh, [Shard(0)])}
        with pytest.raises(NotResumable) as caught:
            read(path, into=live)
        assert "$['w'] was saved as torch.float32 of shape (8, 2)" in str(caught.value)
        assert words in str(caught.value)
        assert not live["v"].to_local().any()


@define
class _Counting:
    """A file that counts the bytes that are asked of it."""

    inner: Any
    asked: int = field(default=0, init=False)

    @property
    def size(self) -> int:
        return int(self.inner.size)

    def read_into(self, offset: int, buffer: Buffer) -> int:
        self.asked += memoryview(buffer).nbytes
        return int(self.inner.read_into(offset, buffer))

    def close(self) -> None: ...
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(("placement", "with_digest"), [(Shard(0), False), (Shard(1), False), (Shard(0), True)])
def test_a_rank_reads_no_more_than_it_has_to(placement: Placement, with_digest: bool, tmp_path: Path) -> None:
    whole = filled((4096, 1024), torch.uint8, seed=1)
    path, digest = _saved({"w": whole}, tmp_path)
    with as_rank(1, of=4) as mesh, LocalDisk(tmp_path).open(path.name) as source:
        live = {"w": sharded(torch.zeros_like(whole), mesh, [placement])}
        counting = _Counting(source)
        read_pt(counting, into=live, digest=digest if with_digest else None, where="x")
        assert raw(live["w"].to_local()) == raw(sharded(whole, mesh, [placement]).to_local())
    share = 1 if with_digest or placement == Shard(1) else 4  # a column is in every row
    assert whole.nbytes // share - 1024 < counting.asked < whole.nbytes // share + 20_000


def test_a_damaged_chunk_of_another_rank_is_seen_by_who_has_the_digest(tmp_path: Path) -> None:
    whole = filled((16 << 20,), torch.uint8, seed=1)
    path, digest = _saved({"w": whole}, tmp_path)
    data = bytearray(path.read_bytes())
    data[15 << 20] ^= 1
    path.write_bytes(data)
    with as_rank(0, of=4) as mesh:
        live = {"w": sharded(torch.zeros_like(whole), mesh, [Shard(0)])}
        read(path, into=live)
        assert raw(live["w"].to_local()) == raw(whole[: 4 << 20])
        with pytest.raises(Corrupt, match=digest):
            read(path, into=live, digest=digest)


_MEASURED = """
import sys, torch
from pathlib import Path
from milepost.engines.disks.local import LocalDisk
from milepost.engines.formats import read_pt
from torch.distributed.tensor import Replicate, Shard
from tests.formats.directories import as_rank, sharded

def anonymous():
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10

import threading
folder, dimension, digest = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] or None
with as_rank(1, of=2) as mesh, LocalDisk(folder).open("x.pt", bulk=True) as source:
    live = {str(at): sharded(torch.ones(2048, 2560), mesh, [Shard(dimension)]) for at in range(10)}
    before, peak, over = anonymous(), 0, threading.Event()
    def watch():
        global peak
        while not over.wait(0.001):
            peak = max(peak, anonymous())
    thread = threading.Thread(target=watch); thread.start()
    read_pt(source, into=live, digest=digest, where="x")
    over.set(); thread.join()
    assert all(bool((tensor.to_local() == 2).all()) for tensor in live.values())
print(max(peak, anonymous()) - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("dimension", "with_digest"), [(0, False), (0, True), (1, False), (1, True)])
def test_reading_a_chunk_takes_the_memory_of_one_tensor_beside_the_shard(
    dimension: int, with_digest: bool, tmp_path: Path
) -> None:
    path, digest = _saved({str(at): torch.full((2048, 2560), 2.0) for at in range(10)}, tmp_path)
    assert path.stat().st_size > 200 << 20
    command = [sys.executable, "-c", _MEASURED, str(tmp_path), str(dimension), digest if with_digest else ""]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd(), env=os.environ)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 << 20, "less than a third of the file"
