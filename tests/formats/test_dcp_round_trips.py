"""Directories of shards: what we write torch reads, what torch writes we read, on as many ranks as there are."""

from __future__ import annotations

import io
import pickle
import weakref
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from milepost.engines.formats.dcp import Planner, Shards, plan_together
from milepost.engines.formats.dcp.trees import flatten, unflatten
from milepost.transitions.errors import NotResumable, Refused
from tests.formats.directories import Tree, as_rank, load, save, sharded
from tests.formats.samples import DTYPES, assert_same, filled, raw

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def _tree(seed: int = 0) -> Tree:
    base = filled((20, 10), seed=seed)
    return {
        "dtypes": {str(dtype): filled((3, 2), dtype, seed=seed + at) for at, dtype in enumerate(DTYPES)},
        "views": {"base": base, "row": base[3], "box": base[2:4, 1:3], "turned": base.t(), "every": base[:, ::3]},
        "expanded": filled((1,), seed=seed).expand(5),
        "scalar": filled((), seed=seed),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(filled((2, 2), seed=seed)),
        "lazy": filled((3,), torch.complex64, seed=seed).conj(),
        "state": {"w": {"step": torch.tensor(float(seed)), "exp_avg": filled((4, 3), seed=seed)}},
        "param_groups": [{"lr": 0.5 + seed, "betas": (0.9, 0.999), "params": ["w"], "fused": None}],
        "mixed": [filled((2,), seed=seed), [1, seed], {"deep": "é"}],
        "plain": [1, 2.5, None, "x", (True, b"\0")],
    }


def _plainly(tree: Any) -> Any:
    """The tree as plain contiguous tensors: a directory keeps elements, not parameters and lazy flags."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().resolve_conj().contiguous().clone()
    if isinstance(tree, dict):
        return {key: _plainly(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_plainly(value) for value in tree]
    return tree


def _ours(tree: Tree) -> Callable[[DeviceMesh], Tree]:
    return lambda mesh: tree


def test_torch_reads_what_we_write(tmp_path: Path) -> None:
    save(tmp_path, [_ours(_tree(1))])
    live = _plainly(_tree(2))
    dcp.load(live, checkpoint_id=tmp_path / "model", no_dist=True)
    assert_same(_plainly(_tree(1)), live)
    dcp_to_torch_save(tmp_path / "model", tmp_path / "whole.pt")
    assert_same(_plainly(_tree(1)), _plainly(torch.load(tmp_path / "whole.pt", weights_only=False)))


@pytest.mark.parametrize("theirs", [False, True], ids=["ours", "torch's"])
def test_we_read_what_we_and_what_torch_writes(theirs: bool, tmp_path: Path) -> None:
    if theirs:
        dcp.save(_tree(1), checkpoint_id=tmp_path / "model", no_dist=True)
    else:
        save(tmp_path, [_ours(_tree(1))])
    assert_same(_plainly(_tree(1)), _plainly(load(tmp_path / "model")))
    live = _tree(2)
    del live["expanded"]  # one element under five names takes no five values
    live["expanded"] = torch.zeros(5)
    live = {name: live[name] for name in _tree()}
    live["views"] = _plainly(live["views"])  # the saved ones are apart: each of them would fill the same memory
    result = load(tmp_path / "model", into=live)
    assert_same(_plainly(_tree(1)), _plainly(result))
    assert result["parameter"] is live["parameter"]
    assert result["dtypes"][str(torch.bfloat16)] is live["dtypes"][str(torch.bfloat16)]
    assert raw(live["scalar"]) == raw(_tree(1)["scalar"])


def test_nothing_in_the_metadata_is_of_ours(tmp_path: Path) -> None:
    save(tmp_path, [_ours(_tree())])
    data = (tmp_path / "model/.metadata").read_bytes()
    assert b"milepost" not in data and b"torch.distributed.checkpoint" in data
    found = pickle.loads(data)
    assert found.version == "1.0.0" and found.storage_meta.checkpoint_id is None


def test_int_keys_are_text_on_disk_and_ints_beside_a_live_tree_that_has_them(tmp_path: Path) -> None:
    save(tmp_path, [_ours({"state": {0: {"m": filled((3,), seed=1)}, 1: {"n": 4}}})])
    live = {"state": {0: {"m": torch.zeros(3)}, 1: {"n": 0}}}
    assert_same({"state": {0: {"m": filled((3,), seed=1)}, 1: {"n": 4}}}, load(tmp_path / "model", into=live))
    assert list(load(tmp_path / "model")["state"]) == ["0", "1"]


def test_empty_mappings_and_lists_survive_with_and_without_a_live_tree(tmp_path: Path) -> None:
    tree = {"state": {}, "groups": [{}, [], {"a": {}}], "w": torch.ones(1)}
    save(tmp_path, [_ours(tree)])
    assert_same(tree, load(tmp_path / "model"))
    assert_same(tree, load(tmp_path / "model", into=_plainly(tree)))
    dcp.load(theirs := {"w": torch.zeros(1)}, checkpoint_id=tmp_path / "model", no_dist=True)
    assert theirs["w"] == 1


def test_an_empty_tree_is_a_directory_with_its_metadata_alone(tmp_path: Path) -> None:
    assert list(save(tmp_path, [_ours({})])) == [".metadata"]
    assert load(tmp_path / "model") == {} == load(tmp_path / "model", into={})


_leaves = st.one_of(
    st.integers(), st.none(), st.just((1, 2)), st.builds(lambda n: torch.full((n,), n), st.integers(0, 3))
)
_trees = st.dictionaries(
    st.one_of(st.text("ab", min_size=1, max_size=2), st.integers(0, 2)),
    st.recursive(
        _leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text("ab", min_size=1, max_size=2), inner, max_size=3)
        ),
        max_leaves=12,
    ),
    max_size=4,
)


@given(_trees)
def test_trees_are_taken_apart_as_torch_does_it(tree: Tree) -> None:
    flat = flatten(tree, name="t")
    values, paths = flatten_state_dict(tree)
    assert list(flat.values) == list(values)
    assert all(flat.values[name] is values[name] for name in values)
    assert {name: flat.paths[name] for name in values} == paths
    whole = unflatten(flat.values, flat.paths)
    assert repr(whole) == repr({str(key): value for key, value in tree.items()})


PLACEMENTS: list[list[Placement]] = [[Shard(0)], [Shard(1)], [Replicate()]]


def _wholes(seed: int) -> dict[str, torch.Tensor]:
    """Even and uneven shapes, fewer rows than ranks, a scalar, bytes that no float says."""
    return {
        "even": filled((12, 12), seed=seed),
        "uneven": filled((7, 5), torch.bfloat16, seed=seed),
        "few": filled((1, 2), torch.int64, seed=seed),
        "deep": filled((5, 6, 3), seed=seed),
    }


def _sharded_tree(seed: int, placements: list[Placement]) -> Callable[[DeviceMesh], Tree]:
    return lambda mesh: {
        "shards": {name: sharded(whole, mesh, placements) for name, whole in _wholes(seed).items()},
        "plain": filled((3,), seed=seed),
        "step": seed,
    }


@pytest.mark.parametrize("saved", PLACEMENTS, ids=str)
@pytest.mark.parametrize("read", PLACEMENTS, ids=str)
def test_shards_of_two_ranks_are_read_on_one_three_and_four(
    saved: list[Placement], read: list[Placement], tmp_path: Path
) -> None:
    files = save(tmp_path, [_sharded_tree(1, saved)] * 2)
    assert set(files) == {".metadata", "__0_0.distcp", "__1_0.distcp"}
    assert_same({"shards": _wholes(1), "plain": filled((3,), seed=1), "step": 1}, _plainly(load(tmp_path / "model")))
    for world in (1, 3, 4):
        for rank in range(world):
            with as_rank(rank, of=world) as mesh:
                live, expected = _sharded_tree(2, read)(mesh), _sharded_tree(1, read)(mesh)
                result = load(tmp_path / "model", files=files, into=live, rank=rank, world_size=world)
                assert result["step"] == 1 and raw(live["plain"]) == raw(expected["plain"])
                for name, tensor in live["shards"].items():
                    assert result["shards"][name] is tensor
                    assert raw(tensor.to_local()) == raw(expected["shards"][name].to_local()), (name, world, rank)


def test_replicas_of_a_mesh_of_two_dimensions_are_written_once(tmp_path: Path) -> None:
    whole = filled((64, 8), seed=1)

    def tree(mesh: DeviceMesh) -> Tree:
        return {"w": sharded(whole, init_device_mesh("cpu", (2, 2)), [Replicate(), Shard(0)])}

    files = save(tmp_path, [tree] * 4)
    assert sum(file.size for name, file in files.items() if name != ".metadata") < whole.nbytes + 2 * 1500
    assert_same({"w": whole}, load(tmp_path / "model"))


def test_items_lie_where_they_are_said_to_lie_beyond_the_first_block_too(tmp_path: Path) -> None:
    tree = {str(at): filled((5 << 20,), torch.uint8, seed=at) for at in range(3)} | {"last": torch.ones(3)}
    save(tmp_path, [_ours(tree)])
    assert_same(tree, load(tmp_path / "model"))
    dcp.load(
        live := {name: torch.zeros_like(tensor) for name, tensor in tree.items()},
        checkpoint_id=tmp_path / "model",
        no_dist=True,
    )
    assert_same(tree, live)


def test_every_item_is_a_pt_file_of_its_own_at_a_multiple_of_64_bytes(tmp_path: Path) -> None:
    shards = Shards("m", _tree(1), coordinator=True)
    image = shards.image(plan_together([shards.plan]).plans[0], rank=3)
    whole = b"".join(bytes(block) for block in image.blocks(crc32=True))
    assert image.name == "m/__3_0.distcp" and len(whole) <= image.room <= shards.room
    found = {}
    for entry in image.entries:
        assert entry.file == "__3_0.distcp" and entry.offset % 64 == 0
        item = io.BytesIO(whole[entry.offset : entry.offset + entry.length])
        with zipfile.ZipFile(item) as archive:
            assert archive.testzip() is None
        item.seek(0)
        found[entry.index.fqn] = torch.load(item, weights_only=True)
    assert_same(found["param_groups.0.betas"], (0.9, 0.999))
    assert raw(found["views.box"]) == raw(_tree(1)["views"]["box"])
    assert found.keys() == flatten(_tree(1), name="m").values.keys()


def test_a_rank_that_has_nothing_to_write_writes_no_file(tmp_path: Path) -> None:
    files = save(tmp_path, [_ours({"w": filled((3,), seed=1)}), _ours({"w": filled((3,), seed=1)})])
    assert set(files) == {".metadata", "__0_0.distcp"}
    assert_same({"w": filled((3,), seed=1)}, load(tmp_path / "model"))


def test_a_shard_within_a_padded_buffer_brings_none_of_its_neighbours(tmp_path: Path) -> None:
    buffer = torch.zeros(3000)
    buffer[10:20] = 1.5
    local = buffer[10:20].view(5, 2)

    def tree(mesh: DeviceMesh) -> Tree:
        return {"w": DTensor.from_local(local, mesh, [Shard(0)], run_check=False)}

    files = save(tmp_path, [tree, tree])
    assert files["__0_0.distcp"].size < 2000
    stored = torch.load(tmp_path / "model/__0_0.distcp", weights_only=True)
    assert stored.untyped_storage().nbytes() == local.nbytes and (stored == 1.5).all()


def test_equal_states_give_equal_files(tmp_path: Path) -> None:
    one, other = (save(tmp_path, [_ours(_tree(1))], name=name) for name in ("one", "other"))
    assert {name: file.digest for name, file in one.items()} == {name: file.digest for name, file in other.items()}


def test_the_directory_of_a_role_lies_below_the_role(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    save(tmp_path, [_ours({"w": torch.ones(2)})], name="policy/model")
    assert (tmp_path / "policy/model/__0_0.distcp").is_file()
    assert_same({"w": torch.ones(2)}, load(tmp_path / "policy/model"))


def test_a_planner_plans_again_only_when_the_form_changes_and_keeps_none_of_the_state() -> None:
    planner = Planner()
    with as_rank(0, of=2) as mesh:
        first = Shards("m", _sharded_tree(1, [Shard(0)])(mesh), coordinator=True, planner=planner)
        watched = weakref.ref(first)
        same = Shards("m", _sharded_tree(2, [Shard(0)])(mesh), coordinator=True, planner=planner)
        assert same.plan is first.plan
        other = Shards("m", _sharded_tree(2, [Shard(1)])(mesh), coordinator=True, planner=planner)
        assert other.plan != first.plan
        fresh = Shards("m", _sharded_tree(2, [Shard(0)])(mesh), coordinator=True)
        assert fresh.plan == first.plan and fresh.plan is not first.plan
        assert pickle.loads(pickle.dumps(fresh.plan)).plan == first.plan.plan
        del first
        assert watched() is None


def test_ranks_with_shards_of_one_shape_have_other_plans() -> None:
    plans = []
    for rank in range(2):
        with as_rank(rank, of=2) as mesh:
            tree = {"w": sharded(torch.ones(4, 2), mesh, [Shard(0)])}
            plans.append(Shards("m", tree, coordinator=not rank).plan)
    assert plans[0] != plans[1]
    shared = plan_together(plans)
    assert [tuple(item.index.offset) for plan in shared.plans for item in plan.items] == [(0, 0), (2, 0)]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": {("x", 1): 2}}, "$.m.a: a key of type tuple"),
        ({"a": {"b.c": 1, "b": {"c": 2}}}, "two values have the name 'a.b.c'"),
        ({"a": {1: 1, "1": 2}}, "two values have the name 'a.1'"),
        ({"a": {"s": torch.eye(2).to_sparse()}}, "$.m.a.s: a torch.sparse_coo tensor"),
        ({"a": [torch.empty(2, device="meta")]}, "$.m.a.0: a meta tensor"),
        ({"a": {"f": lambda: 0}}, "$.m.a.f: builtins.function"),
        ([1], "expected a mapping"),
    ],
    ids=["key", "dots", "digits", "sparse", "meta", "function", "list"],
)
def test_what_cannot_be_saved_is_refused_by_its_path(value: Any, words: str) -> None:
    with pytest.raises(Refused) as refused:
        Shards("m", value, coordinator=True)
    assert words in str(refused.value)


def test_a_partial_tensor_and_a_shard_in_a_tuple_are_refused() -> None:
    with as_rank(0, of=2) as mesh:
        partial = DTensor.from_local(torch.ones(2), mesh, [Partial()], run_check=False)
        with pytest.raises(Refused, match=r"\$\.m\.w: the placement Partial.* redistribute it"):
            Shards("m", {"w": partial}, coordinator=True)
        hidden = ({"w": sharded(torch.ones(4), mesh, [Shard(0)])},)
        with pytest.raises(Refused, match=r"\$\.m\.w\[0\]\.w: .*DTensor cannot be read back"):
            Shards("m", {"w": hidden}, coordinator=True)


def _plans(*trees: Tree) -> list[Any]:
    return [Shards("m", tree, coordinator=not rank).plan for rank, tree in enumerate(trees)]


@pytest.mark.parametrize(
    "other",
    [{"w": torch.ones(3)}, {"w": torch.ones(2).half()}, {"w": 1}],
    ids=["shape", "dtype", "value"],
)
def test_ranks_that_have_not_one_state_are_refused_by_name(other: Tree) -> None:
    with pytest.raises(Refused, match=r"w: rank 0 has .* rank 1 has"):
        plan_together(_plans({"w": torch.ones(2)}, other))


def test_shards_that_leave_a_hole_are_refused() -> None:
    with as_rank(0, of=2) as mesh:
        first = Shards("m", {"w": sharded(torch.ones(4), mesh, [Shard(0)])}, coordinator=True).plan
    with pytest.raises(Refused, match="w"):
        plan_together([first, *_plans({"v": 1})])


def test_the_plan_of_another_state_is_refused() -> None:
    (plan,) = plan_together(_plans({"w": torch.ones(2)})).plans
    with pytest.raises(Refused, match=r"\$\.m\.w: planned as .* plan it again"):
        Shards("m", {"w": torch.ones(3)}, coordinator=True).image(plan, rank=0)


@pytest.mark.parametrize(
    ("into", "words"),
    [
        ({"w": torch.zeros(2), "n": 0, "x": 1}, "the checkpoint has no x"),
        ({"w": torch.zeros(2)}, "this run has no n"),
        ({"w": torch.zeros(3), "n": 0}, "shape (2,), this run has torch.float32 of shape (3,)"),
        ({"w": torch.zeros(2).half(), "n": 0}, "this run has torch.float16"),
        ({"w": torch.zeros(2, device="meta"), "n": 0}, "materialise it"),
        ({"w": 1, "n": 0}, "this run has a int"),
        ({"w": torch.zeros(2), "n": torch.zeros(1)}, "n was saved as a plain value"),
    ],
    ids=["missing", "extra", "shape", "dtype", "meta", "value", "tensor"],
)
def test_a_live_tree_of_another_form_is_not_resumable_and_left_alone(into: Tree, words: str, tmp_path: Path) -> None:
    save(tmp_path, [_ours({"w": torch.ones(2), "n": 3})])
    with pytest.raises(NotResumable) as caught:
        load(tmp_path / "model", into=into)
    assert words in str(caught.value)
    assert not any(value.any() for value in into.values() if isinstance(value, torch.Tensor) and not value.is_meta)
