"""What torch could not read back is refused by path, on both sides and before anything is created."""

from __future__ import annotations

import enum
import warnings
from collections import defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from milepost.engines.formats import Stager, stream
from milepost.transitions.errors import Refused

Pair = namedtuple("Pair", "a b")


class Colour(enum.IntEnum):
    RED = 1


class Marked(torch.Tensor):
    pass


def _cyclic() -> list[Any]:
    cycle: list[Any] = []
    cycle.append((cycle,))
    return cycle


def _freed() -> torch.Tensor:
    tensor = torch.zeros(100)
    tensor.untyped_storage().resize_(0)  # as FSDP frees a parameter: the shape stays
    return tensor


def _quantized() -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):  # torch means to remove them
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def _deep() -> list[Any]:
    tree: list[Any] = []
    for _ in range(100_000):
        tree = [tree]
    return tree


@pytest.mark.parametrize(
    ("leaf", "said"),
    [
        (np.zeros(3), "numpy.ndarray"),
        (np.float64(1.0), "numpy.float64"),
        (Colour.RED, "Colour"),
        (Pair(1, 2), "Pair"),
        (defaultdict(int), "defaultdict"),
        (object(), "builtins.object"),
        (lambda: None, "function"),
        (torch.zeros(3).as_subclass(Marked), "Marked"),
        (torch.eye(3).to_sparse(), "sparse"),
        (torch.empty(3, device="meta"), "meta"),
        (_quantized(), "qint8"),
        (FakeTensorMode().from_tensor(torch.ones(3)), "FakeTensor"),
        (1 << 3000, "3001 bits"),
        (_cyclic(), "holds itself"),
        (_freed(), "reaches byte 400 of a storage of 0"),
        (_deep(), "too deep"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("side", ["staged", "streamed"])
def test_a_leaf_that_could_not_be_read_back_is_refused_by_path(leaf: Any, said: str, side: str) -> None:
    trees = {"optim": {"state": {3: {"foo": leaf}}}}
    with pytest.raises(Refused, match=said) as caught:
        Stager().stage(trees) if side == "staged" else stream(trees)
    assert "$.optim" in str(caught.value)
    if said != "too deep":
        assert "$.optim.state[3].foo" in str(caught.value)


def test_bytes_under_two_dtypes_are_refused_as_torch_refuses_them() -> None:
    base = torch.zeros(4)
    with pytest.raises(Refused, match=r"\$\.m\.b.*\$\.m\.a"):
        stream({"m": {"a": base, "b": base.view(torch.int32)}})


@pytest.mark.parametrize("key", [Pair(1, 2), object(), torch.zeros(1), Colour.RED])
def test_a_key_that_could_not_be_read_back_is_refused(key: Any) -> None:
    with pytest.raises(Refused, match="dict key"):
        stream({"m": {"inner": {key: 1}}})


def test_a_functorch_wrapper_is_refused() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(Refused, match=r"\$\.m\.x"):
            stream({"m": {"x": x}})
        return x

    torch.func.vmap(inside)(torch.zeros(3, 2))
