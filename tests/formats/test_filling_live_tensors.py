"""Reading into a live tree: in place where the bytes fit, fresh where they do not, and never half of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from milepost.engines.formats import stream
from tests.formats.samples import DTYPES, assert_same, filled, raw, read, written


def _saved(tree: object, folder: Path) -> tuple[Path, str]:
    path, done = written(stream({"m": tree})[0], folder)
    return path, done.digest


@pytest.mark.parametrize("with_digest", [False, True])
def test_tensors_at_the_same_path_are_filled_in_place(with_digest: bool, tmp_path: Path) -> None:
    def tree(seed: int) -> dict[str, Any]:
        return {
            "dtypes": [filled((4, 3), dtype, seed=seed) for dtype in DTYPES],
            "parameter": torch.nn.Parameter(filled((3,), seed=seed)),
            "transposed": filled((4, 6), seed=seed).t(),
            "channels last": filled((2, 3, 4, 5), seed=seed).to(memory_format=torch.channels_last),
            "scalar": filled((), seed=seed),
            "large": filled((5 << 20,), seed=seed),
        }

    path, digest = _saved(tree(1), tmp_path)
    live = tree(2)
    result = read(path, into=live, digest=digest if with_digest else None)
    assert result["parameter"] is live["parameter"]
    assert all(one is other for one, other in zip(result["dtypes"], live["dtypes"], strict=True))
    assert all(result[name] is live[name] for name in ("transposed", "channels last", "scalar", "large"))
    assert_same(tree(1), live)


def test_tied_tensors_stay_tied_and_are_filled_once(tmp_path: Path) -> None:
    weight = filled((8,), seed=1)
    path, _ = _saved({"a": weight, "b": weight.view(2, 4)}, tmp_path)
    live = torch.zeros(8)
    into = {"a": live, "b": live.view(2, 4)}
    result = read(path, into=into)
    assert result["a"] is into["a"] and result["b"] is into["b"]
    assert raw(live) == raw(weight)


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(9),
        torch.zeros(8, dtype=torch.int32),
        torch.zeros(2, 4),
        torch.zeros(16)[::2],
        torch.zeros(1).expand(8),
        torch.zeros(8, device="meta"),
        None,
        [1, 2],
    ],
    ids=["shape", "dtype", "rank", "stride", "expanded", "device", "nothing", "a list"],
)
def test_what_does_not_fit_gets_fresh_memory_and_is_left_alone(other: Any, tmp_path: Path) -> None:
    path, _ = _saved({"w": filled((8,), seed=1)}, tmp_path)
    result = read(path, into={"w": other})
    assert result["w"] is not other
    assert_same({"w": filled((8,), seed=1)}, result)
    if isinstance(other, torch.Tensor) and not other.is_meta:
        assert not other.any()


def test_live_tensors_that_overlap_are_not_both_filled(tmp_path: Path) -> None:
    path, _ = _saved({"a": filled((8,), seed=1), "b": filled((8,), seed=2)}, tmp_path)
    live = torch.zeros(12)
    into = {"a": live[:8], "b": live[4:]}
    result = read(path, into=into)
    assert raw(result["a"]) == raw(filled((8,), seed=1)) and raw(result["b"]) == raw(filled((8,), seed=2))
    assert result["a"] is into["a"] and result["b"] is not into["b"]


def test_a_tie_that_the_live_tree_lacks_is_kept_by_fresh_memory(tmp_path: Path) -> None:
    weight = filled((8,), seed=1)
    path, _ = _saved({"a": weight, "b": weight}, tmp_path)
    result = read(path, into={"a": torch.zeros(8), "b": torch.zeros(8)})
    assert result["a"].data_ptr() == result["b"].data_ptr()
    assert raw(result["a"]) == raw(weight)


def test_a_part_of_a_larger_live_tensor_is_filled_and_no_more(tmp_path: Path) -> None:
    path, _ = _saved({"w": filled((8,), seed=1)}, tmp_path)
    live = torch.zeros(24)
    into = {"w": live[8:16]}
    assert read(path, into=into)["w"] is into["w"]
    assert not live[:8].any() and not live[16:].any() and raw(live[8:16]) == raw(filled((8,), seed=1))


def test_the_form_of_the_result_is_that_of_the_file(tmp_path: Path) -> None:
    path, _ = _saved({"w": filled((8,), seed=1), "step": 7, "list": [filled((2,))]}, tmp_path)
    into = {"extra": torch.zeros(3), "w": torch.zeros(8), "step": 1, "list": [torch.zeros(2), torch.zeros(2)]}
    result = read(path, into=into)
    assert list(result) == ["w", "step", "list"] and result["step"] == 7 and len(result["list"]) == 1
    assert result["w"] is into["w"]
