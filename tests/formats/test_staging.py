"""A staged snapshot: frozen, provably apart from the live state, in one arena that is used again."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from milepost.engines.formats import Image, Proven, Stager, Unproven, stream
from milepost.engines.memory import BLOCK, PAGE
from milepost.transitions.errors import Refused
from tests.formats.samples import assert_same, filled, odd_tree, read, written


def test_nothing_that_happens_after_staging_reaches_the_file(tmp_path: Path) -> None:
    state: dict[str, Any] = {
        "w": filled((1000,)),
        "group": [{"lr": 0.1, "betas": [0.9, 0.99]}],
        "raw": bytearray(b"before"),
        "names": {"a"},
    }
    expected = written(stream({"m": state})[0], tmp_path, name="expected.pt")[0].read_bytes()
    staged = Stager().stage({"m": state})
    state["w"].zero_()
    state["group"][0]["lr"] = 0.5
    state["group"][0]["betas"].append(1)
    state["raw"][:] = b"after!"
    state["names"].add("b")
    state["new"] = filled((3,))
    assert written(staged.images[0], tmp_path)[0].read_bytes() == expected


def test_the_room_that_a_file_needs_is_known_before_it_is_written(tmp_path: Path) -> None:
    trees = {"m": odd_tree()}
    images: list[Image] = [*Stager().stage(trees).images, *stream(trees)]
    for image in images:
        _, done = written(image, tmp_path, name=str(id(image)))
        assert done.size <= image.room <= done.size + (1 << 20)


def test_a_file_may_be_written_while_its_snapshot_is_being_taken(tmp_path: Path) -> None:
    trees = {"a": {"w": filled((9 << 20,), torch.uint8)}, "b": {"w": filled((9 << 20,), torch.uint8, seed=2)}}
    expected = [written(image, tmp_path, name=f"{image.name}.x")[0].read_bytes() for image in stream(trees)]
    staged = Stager().begin(trees)
    found: list[bytes] = []

    def write() -> None:
        found.extend(written(image, tmp_path, name=image.name)[0].read_bytes() for image in staged.images)

    writer = threading.Thread(target=write)
    writer.start()
    writer.join(timeout=0.2)
    assert writer.is_alive() and not found
    staged.fill()
    writer.join()
    assert found == expected


def test_what_was_made_only_for_a_snapshot_lives_until_it_is_taken(tmp_path: Path) -> None:
    staged = Stager().begin({"m": {"words": [filled((625,), torch.int64, seed=i) for i in range(40)]}})
    others = [torch.full((625,), -1) for _ in range(80)]  # they take the memory of whatever was let go
    staged.fill()
    words = torch.load(written(staged.images[0], tmp_path)[0], weights_only=True)["words"]
    assert len(others) == 80
    assert all(torch.equal(found, filled((625,), torch.int64, seed=i)) for i, found in enumerate(words))


def test_a_copy_that_is_interrupted_is_told_to_whoever_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = Stager().begin({"m": {"w": filled((100,))}})

    def interrupted(target: int, source: int, size: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("milepost.engines.formats.staging.copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        staged.fill()
    with pytest.raises(Refused, match="not taken: KeyboardInterrupt"):
        list(staged.images[0].blocks())


def test_a_copy_goes_on_quietly_when_its_snapshot_is_given_back_meanwhile() -> None:
    stager = Stager()
    staged = stager.begin({"m": {"w": filled((100,))}})
    staged.release()
    staged.fill()
    stager.stage({"m": {"w": filled((100,))}}).release()


def test_a_snapshot_that_was_given_back_before_it_was_taken_cannot_be_written(tmp_path: Path) -> None:
    staged = Stager().begin({"m": {"w": filled((100,))}})
    blocks = staged.images[0].blocks()
    staged.release()
    with pytest.raises(Refused, match="released"):
        next(blocks)


@pytest.mark.parametrize("side", ["staged", "streamed"])
def test_blocks_are_aligned_in_memory_and_in_the_file(side: str) -> None:
    trees = {"small": {"w": filled((5,))}, "large": {"w": filled((11 << 20,), torch.uint8)}}
    for image in Stager().stage(trees).images if side == "staged" else stream(trees):
        sizes = []
        for block in image.blocks():
            assert np.frombuffer(block, np.uint8).ctypes.data % PAGE == 0
            sizes.append(len(block))
        assert all(size == BLOCK for size in sizes[:-1]) and 0 < sizes[-1] <= BLOCK


def test_the_arena_holds_one_snapshot_until_it_is_released(tmp_path: Path) -> None:
    stager = Stager()
    first = stager.stage({"m": {"w": filled((10,), seed=1)}})
    with pytest.raises(Refused, match="release it first"):
        stager.stage({"m": {"w": filled((10,), seed=2)}})
    first.release()
    second = stager.stage({"m": {"w": filled((10,), seed=2)}})
    with pytest.raises(Refused, match="was released"):
        next(first.images[0].blocks())
    assert_same({"w": filled((10,), seed=2)}, read(written(second.images[0], tmp_path)[0]))


def test_values_change_without_a_new_arena_and_shapes_with_one() -> None:
    stager = Stager()
    stager.prepare({"m": {"w": filled((10,)), "lr": 0.1}})
    address = stager._arena and stager._arena.address
    stager.stage({"m": {"w": filled((10,), seed=2), "lr": 0.2, "more": ["text"] * 1000}}).release()
    assert stager._arena and stager._arena.address == address
    stager.stage({"m": {"w": filled((1 << 20,))}}).release()
    assert stager._arena.size >= 4 << 20


def test_equal_states_give_equal_bytes_whatever_the_arena_held_before(tmp_path: Path) -> None:
    stager = Stager()
    stager.stage({"m": {"w": filled((50_000,), seed=1), "v": filled((7,), seed=2)}}).release()
    again = stager.stage({"m": {"w": filled((50_000,), seed=3), "v": filled((7,), seed=4)}})
    fresh = Stager().stage({"m": {"w": filled((50_000,), seed=3), "v": filled((7,), seed=4)}})
    assert written(again.images[0], tmp_path, name="a")[1] == written(fresh.images[0], tmp_path, name="b")[1]


def test_an_ordinary_state_is_proven() -> None:
    base = filled((100,))
    tree = {
        "views": [base, base[3:9], base.view(10, 10).t()],
        "numpy": torch.from_numpy(np.zeros(5)),
        "e": torch.empty(0),
    }
    assert Stager().stage({"m": tree}).proof == Proven()


def _in_shared_memory(_folder: Path) -> torch.Tensor:
    tensor = filled((5000,))
    tensor.untyped_storage().share_memory_()
    return tensor


def _in_a_shared_mapping(_folder: Path) -> torch.Tensor:
    return torch.frombuffer(mmap.mmap(-1, 8192), dtype=torch.uint8)[100:200]


def _in_a_mapped_file(folder: Path) -> torch.Tensor:
    (folder / "bytes").write_bytes(bytes(8192))
    return torch.from_file(str(folder / "bytes"), shared=False, size=8192, dtype=torch.uint8)


def _in_a_memory_map_of_numpy(folder: Path) -> torch.Tensor:
    return torch.from_numpy(np.memmap(folder / "map", dtype=np.uint8, mode="w+", shape=(8192,)))


@pytest.mark.parametrize(
    "place", [_in_shared_memory, _in_a_shared_mapping, _in_a_mapped_file, _in_a_memory_map_of_numpy]
)
def test_memory_that_others_can_change_is_not_proven(place: Callable[[Path], torch.Tensor], tmp_path: Path) -> None:
    staged = Stager().stage({"m": {"fine": filled((3,)), "w": [place(tmp_path)]}})
    assert isinstance(staged.proof, Unproven)
    assert "$.m.w[0]" in staged.proof.reason


def test_a_source_in_the_arena_itself_is_not_proven() -> None:
    stager = Stager()
    stager.stage({"m": {"w": torch.zeros(5000)}}).release()
    assert stager._arena is not None
    inside = torch.frombuffer(stager._arena.view, dtype=torch.float32, count=5000)
    proof = stager.stage({"m": {"w": inside}}).proof
    assert isinstance(proof, Unproven) and "$.m.w lies in the staging arena" in proof.reason


def test_a_stream_needs_little_memory_beside_the_state(tmp_path: Path) -> None:
    tree = {"w": [torch.ones(25 << 20) for _ in range(3)]}  # 300 MiB
    before = _resident("RssAnon")
    peak = 0
    for block in stream({"m": tree})[0].blocks():
        peak = max(peak, _resident("RssAnon"))
        assert block
    assert peak - before < 64 << 20


def _resident(kind: str) -> int:
    with open(f"/proc/{os.getpid()}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(kind))
