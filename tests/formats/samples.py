"""State trees with every oddity that a `.pt` file has to keep, and what it means for two of them to be equal."""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import torch

from milepost.engines.disks.local import LocalDisk
from milepost.engines.formats import Image, Written, read_pt, write_image
from milepost.engines.formats.tensors import storage_bytes

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    *(
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.bool,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e8m0fnu,
    ),
)


def filled(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, *, seed: int = 0) -> torch.Tensor:
    """A tensor of any dtype with bytes drawn at random (0 and 1 for bool)."""
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.empty(shape, dtype=dtype)
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (tensor.nbytes,), generator=generator)
    tensor.untyped_storage().copy_(raw.to(torch.uint8).untyped_storage())
    return tensor


def odd_tree() -> dict[Any, Any]:
    """One of everything."""
    base = filled((20, 10))
    shared_list = [1, {"deep": (2.5, None)}]
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    moments = {at: {"step": torch.tensor(3.0), "exp_avg": filled((4, 3), seed=at)} for at in range(4)}
    group = {"lr": 1e-3, "betas": (0.9, 0.999), "fused": None, "params": [0, 1, 2, 3]}
    marked = filled((2,))
    marked.note = {"kept": [1, 2]}  # type: ignore[attr-defined]
    return {
        "dtypes": {str(dtype): filled((3, 2), dtype, seed=at) for at, dtype in enumerate(DTYPES)},
        "views": [base, base[3], base[2:4, 1:3], base.t(), base.expand(2, 20, 10), base[:, ::3], base[5:5]],
        "alone": [filled((100,))[40:60], filled((4, 6)).t(), filled((1,)).expand(5), filled((2, 3, 4, 5))],
        "channels last": filled((2, 3, 4, 5)).to(memory_format=torch.channels_last),
        "empty": [torch.empty(0), torch.empty(3, 0, 2), torch.tensor(7), torch.empty(0, dtype=torch.uint16)],
        "lazy": [filled((3,), torch.complex64).conj(), filled((3,), torch.complex64).conj().imag],
        "parameter": torch.nn.Parameter(filled((2, 2))),
        "frozen parameter": torch.nn.Parameter(filled((2,)), requires_grad=False),
        "grad": filled((2,)).requires_grad_(),
        "marked": marked,
        "tied": base,
        "module": module.state_dict(),
        "optimizer": {"state": moments, "param_groups": [group, dict(group)]},
        "lists": [shared_list, shared_list],
        "plain": [True, False, None, 0, -1, 1 << 31, -(1 << 40), 1 << 200, 0.1, float("inf"), -0.0, 1j, "é\n", ""],
        "bytes": [b"", b"\0\xff", bytearray(b"xy"), bytearray()],
        "sets": [set(), {1, "a", None, (2, "b")}],
        "counter": Counter({10: 2, 20: 1}),
        "torch": [torch.float8_e5m2, torch.uint16, torch.Size([1, 2]), torch.device("cpu"), torch.strided],
        "keys": {7: "int", 1.5: "float", None: "none", (1, "x"): "tuple", b"b": "bytes", True: "bool"},
        "ordered": OrderedDict([("z", 1), ("a", 2)]),
        "storage": "cpu",
    }


def assert_same(one: Any, other: Any, path: str = "$") -> None:
    """Equal in type, value, order and, for tensors, dtype, shape, strides, flags and every byte."""
    assert type(one) is type(other), path
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad), path
        assert one.stride() == other.stride() or not one.numel(), path
        assert (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg()), path
        assert raw(one) == raw(other), path
        assert_same(dict(vars(one)), dict(vars(other)), path + " attributes")
    elif isinstance(one, dict):
        assert list(one) == list(other), path
        for key in one:
            assert_same(one[key], other[key], f"{path}[{key!r}]")
        if isinstance(one, OrderedDict):
            assert_same(dict(vars(one)), dict(vars(other)), path + " attributes")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same(left, right, f"{path}[{index}]")
    else:
        assert repr(one) == repr(other) or one == other, path


def raw(tensor: torch.Tensor) -> bytes:
    """The elements' bytes in row-major order, lazy flags ignored (compare them apart)."""
    whole = torch.empty(0, dtype=tensor.dtype).set_(
        tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )
    flat = torch.empty(whole.shape, dtype=whole.dtype).copy_(whole)
    return storage_bytes(flat.untyped_storage(), 0, flat.nbytes).numpy().tobytes()


def aliases(tree: Any) -> list[list[str]]:
    """The groups of tensors (by path) that share a storage, and of containers that are one object."""
    groups: dict[Any, list[str]] = {}

    def visit(node: Any, path: str) -> None:
        if isinstance(node, torch.Tensor):
            if node.untyped_storage().nbytes():
                groups.setdefault(node.untyped_storage().data_ptr(), []).append(path)
        elif isinstance(node, dict | list):
            groups.setdefault(id(node), []).append(path)
            for key, child in node.items() if isinstance(node, dict) else enumerate(node):
                visit(child, f"{path}[{key!r}]")

    visit(tree, "$")
    return sorted(paths for paths in groups.values() if len(paths) > 1)


def written(image: Image, folder: Path, *, name: str = "x.pt", **options: Any) -> tuple[Path, Written]:
    """Write an image to a local disk."""
    return folder / name, write_image(LocalDisk(folder), name, image, **options)


def read(path: Path, **options: Any) -> Any:
    """`read_pt` from a local disk."""
    with LocalDisk(path.parent).open(path.name) as source:
        return read_pt(source, where=path.name, **options)
