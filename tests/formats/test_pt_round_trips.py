"""What is written is what plain torch reads, and what torch writes is what we read."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.engines.formats import Stager, stream
from tests.formats.samples import DTYPES, aliases, assert_same, filled, odd_tree, read, written


@pytest.mark.parametrize("side", ["staged", "streamed"])
def test_torch_load_reads_back_every_oddity(side: str, tmp_path: Path) -> None:
    tree = odd_tree()
    trees = {"model": tree}
    (image,) = Stager().stage(trees).images if side == "staged" else stream(trees)
    path, _ = written(image, tmp_path)
    loaded = torch.load(path, weights_only=True)
    assert_same(tree, loaded)
    assert aliases(tree) == aliases(loaded)
    mapped = torch.load(path, weights_only=True, mmap=True)
    assert_same(tree, mapped)


def test_our_reader_reads_our_files_as_torch_does(tmp_path: Path) -> None:
    tree = odd_tree()
    path, done = written(stream({"model": tree})[0], tmp_path)
    loaded = read(path, digest=done.digest)
    assert_same(tree, loaded)
    assert aliases(tree) == aliases(loaded)


def test_our_reader_reads_what_torch_save_writes(tmp_path: Path) -> None:
    tree = odd_tree()
    tree["bytes"] = tree["bytes"][1:]  # torch.save writes b"" so that weights_only cannot read it
    torch.save(tree, tmp_path / "t.pt")
    loaded = read(tmp_path / "t.pt")
    assert_same(torch.load(tmp_path / "t.pt", weights_only=True), loaded)
    assert aliases(tree) == aliases(loaded)


def test_a_small_view_does_not_drag_its_storage_into_the_file(tmp_path: Path) -> None:
    large = filled((1_000_000,))
    path, done = written(stream({"m": {"few": large[500_000:500_010]}})[0], tmp_path)
    assert done.size < 4096
    assert_same({"few": large[500_000:500_010]}, torch.load(path, weights_only=True))


def test_several_trees_become_several_files_that_stand_alone(tmp_path: Path) -> None:
    shared = filled((64,))
    images = Stager().stage({"model": {"w": shared}, "optim": {"w": shared}, "trainer": {"step": 3}}).images
    assert [image.name for image in images] == ["model.pt", "optim.pt", "trainer.pt"]
    loaded = [torch.load(written(image, tmp_path, name=image.name)[0], weights_only=True) for image in images]
    assert_same([{"w": shared}, {"w": shared}, {"step": 3}], loaded)


def test_a_state_larger_than_many_blocks_survives_both_paths(tmp_path: Path) -> None:
    tree = {"large": filled((9 << 20,), torch.uint8), "odd": filled((5_000_001,), torch.int8), "last": filled((3,))}
    staged, done = written(Stager().stage({"m": tree}).images[0], tmp_path, name="a.pt")
    streamed, again = written(stream({"m": tree})[0], tmp_path, name="b.pt")
    assert done == again
    assert_same(tree, torch.load(staged, weights_only=True))
    assert_same(tree, read(streamed, digest=done.digest))


def test_equal_trees_give_equal_files_wherever_their_objects_lie(tmp_path: Path) -> None:
    tree = odd_tree()
    path, first = written(stream({"m": tree})[0], tmp_path, name="a.pt")
    _, again = written(stream({"m": torch.load(path, weights_only=True)})[0], tmp_path, name="b.pt")
    assert first == again


_NAMES = st.text(max_size=4)
_LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    *(st.binary(max_size=5), st.complex_numbers(allow_nan=False)),
)
_TENSORS = st.builds(
    filled,
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
_TREES = st.recursive(
    _LEAVES | _TENSORS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(_NAMES | st.integers(-9, 9), inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        inner.map(lambda one: [one, one]),
    ),
    max_leaves=12,
)


@given(tree=_TREES)
@settings(max_examples=80)
def test_any_drawn_tree_is_read_back_by_torch_and_by_us(tmp_path_factory: Any, tree: object) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    path, done = written(stream({"m": tree})[0], folder)
    staged = b"".join(bytes(block) for block in Stager().stage({"m": tree}).images[0].blocks())
    assert staged == path.read_bytes()
    by_torch = torch.load(io.BytesIO(staged), weights_only=True)
    assert_same(tree, by_torch)
    assert_same(tree, read(path, digest=done.digest))
    assert aliases(tree) == aliases(by_torch)
