"""Damage to a directory of shards ends in one `Corrupt` or in the right tree, runs nothing and spares live state."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from milepost.engines.formats import Digester
from milepost.transitions.errors import Corrupt, NotResumable
from milepost.transitions.values import FileDigest
from tests.formats.directories import Tree, as_rank, files_of, load, save, sharded
from tests.formats.samples import assert_same, filled


def _tree(seed: int = 1) -> Tree:
    return {"w": filled((4, 3), seed=seed), "v": filled((2,), torch.bfloat16, seed=seed), "groups": [{"lr": 0.1}]}


def _live() -> Tree:
    return {"w": torch.zeros(4, 3), "v": torch.zeros(2, dtype=torch.bfloat16), "groups": [{"lr": 0.0}]}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, FileDigest]:
    return save(tmp_path, [lambda mesh: _tree(), lambda mesh: _tree()])


def _put(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def test_a_flipped_byte_anywhere_is_corrupt(files: dict[str, FileDigest], tmp_path: Path) -> None:
    for name in files:
        path = tmp_path / "model" / name
        whole = path.read_bytes()
        for at in range(0, len(whole), 13):
            _put(path, whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            with pytest.raises(Corrupt):
                load(tmp_path / "model", files=files, into=_live())
        _put(path, whole)
    assert_same(_tree(), load(tmp_path / "model", files=files, into=_live()))


@pytest.mark.slow
def test_without_digests_a_flipped_byte_is_corrupt_or_another_value_and_nothing_else(
    files: dict[str, FileDigest], tmp_path: Path
) -> None:
    for name in files:
        path = tmp_path / "model" / name
        whole = path.read_bytes()
        for at in range(0, len(whole), 11):
            _put(path, whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            for into in (None, _live()):
                try:
                    load(tmp_path / "model", files=files, into=into, verify=False)
                except (Corrupt, NotResumable):
                    continue
        _put(path, whole)


def test_a_file_that_is_cut_is_corrupt_before_live_state_is_touched(
    files: dict[str, FileDigest], tmp_path: Path
) -> None:
    for name in files:
        path = tmp_path / "model" / name
        whole = path.read_bytes()
        for size in (0, 1, len(whole) // 2, len(whole) - 1):
            _put(path, whole[:size])
            live = _live()
            for listed in (files, files_of(tmp_path / "model")):  # the manifest knows the size, or does not
                with pytest.raises(Corrupt):
                    load(tmp_path / "model", files=listed, into=live, verify=False)
            assert not live["w"].any() and not live["v"].any()
        _put(path, whole)


@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp"])
def test_every_file_is_verified_by_one_rank_and_no_other(
    name: str, files: dict[str, FileDigest], tmp_path: Path
) -> None:
    path = tmp_path / "model" / name
    data = bytearray(path.read_bytes())
    data[45] ^= 1  # in the padding before the first tensor: only a digest sees it
    _put(path, bytes(data))
    outcomes = []
    for rank in range(3):
        try:
            load(tmp_path / "model", files=files, into=_live(), rank=rank, world_size=3)
            outcomes.append("whole")
        except Corrupt as error:
            assert name in str(error) and files[name].digest in str(error)
            outcomes.append("corrupt")
    assert sorted(outcomes) == ["corrupt", "whole", "whole"]


def test_the_metadata_is_verified_by_every_rank_before_it_is_read(
    files: dict[str, FileDigest], tmp_path: Path
) -> None:
    path = tmp_path / "model/.metadata"
    _put(path, path.read_bytes().replace(b"1.0.0", b"1.0.1"))
    for rank in range(3):
        with pytest.raises(Corrupt, match=r"\.metadata: expected digest"):
            load(tmp_path / "model", files=files, into=_live(), rank=rank, world_size=3)


class _Runs:
    """Pickled, it asks for a call."""

    def __init__(self, call: Callable[..., Any], *args: object) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> Any:
        return self.call, self.args


def _refuse(tmp_path: Path, found: object) -> str:
    path = tmp_path / "model/.metadata"
    _put(path, found if isinstance(found, bytes) else pickle.dumps(found, protocol=4))
    with pytest.raises(Corrupt) as caught:
        load(tmp_path / "model")
    return str(caught.value)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_metadata_that_names_a_function_runs_nothing(
    protocol: int, files: dict[str, FileDigest], tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    for call in (
        _Runs(os.system, f"touch {ran}"),
        _Runs(os.mkdir, str(ran)),
        _Runs(eval, f"open({str(ran)!r}, 'w')"),
    ):
        message = _refuse(tmp_path, pickle.dumps(Metadata({}, storage_data={"x": call}), protocol=protocol))
        assert protocol == 0 or "the global " in message
    assert not ran.exists()


def test_metadata_reaches_no_attribute_and_changes_no_class(files: dict[str, FileDigest], tmp_path: Path) -> None:
    before = dict(vars(MetadataIndex))
    index = b"ctorch.distributed.checkpoint.metadata\nMetadataIndex\n"
    for attack in (
        b"cbuiltins\ngetattr\n(" + index + b"X\x08\x00\x00\x00__init__tR.",
        index + b"(NX\x03\x00\x00\x00fqnX\x01\x00\x00\x00x" + b"\x86b.",
        index + b"N}X\x03\x00\x00\x00fqnX\x01\x00\x00\x00xs\x86b.",
        b"cbuiltins\nobject\n)\x81.",
        b"c__main__\nanything\n.",
        b"X\x01\x00\x00\x00a.",
    ):
        _refuse(tmp_path, b"\x80\x04" + attack)
    assert dict(vars(MetadataIndex)) == before


def test_metadata_that_asks_for_memory_is_corrupt(files: dict[str, FileDigest], tmp_path: Path) -> None:
    for attack in (
        b"]r\xff\xff\xff\xff.",  # a memo of four billion places
        b"\x95" + b"\xff" * 7 + b"\x0f].",  # a frame of 2**60 bytes
        b"\x8e" + b"\xff" * 7 + b"\x0f.",  # bytes of that size
        b"\x96" + b"\xff" * 7 + b"\x0f.",  # and a bytearray
        b"(" * 100_000,
    ):
        _refuse(tmp_path, b"\x80\x05" + attack)


def _metadata(tmp_path: Path) -> Any:
    return pickle.loads((tmp_path / "model/.metadata").read_bytes())


def _first(metadata: Any) -> tuple[MetadataIndex, _StorageInfo]:
    return next((index, info) for index, info in metadata.storage_data.items() if index.fqn == "w")


def _moved(**changes: Any) -> Callable[[Any], None]:
    return lambda metadata: vars(_first(metadata)[1]).update(changes)


def _sized(*shape: int) -> Callable[[Any], None]:
    def change(metadata: Any) -> None:
        form = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size(shape), [])
        form.chunks = [ChunkStorageMetadata(torch.Size([0] * len(shape)), torch.Size(shape))]
        metadata.state_dict_metadata["w"] = form

    return change


def _vanished(metadata: Any) -> None:
    del metadata.storage_data[_first(metadata)[0]]


def _holed(metadata: Any) -> None:
    metadata.state_dict_metadata["w"].chunks[0].sizes = torch.Size([3, 3])


def _twice(metadata: Any) -> None:
    other = next(info for index, info in metadata.storage_data.items() if index.fqn == "v")
    vars(other).update(vars(_first(metadata)[1]))


def _retyped(metadata: Any) -> None:
    metadata.state_dict_metadata["w"].properties.dtype = torch.int32


@pytest.mark.parametrize(
    "change",
    [
        *(_moved(offset=1 << 60), _moved(offset=-64), _moved(length=1 << 60), _moved(length=0), _moved(offset=64)),
        *(_moved(offset=True), _moved(relative_path="../w"), _moved(relative_path="__9_0.distcp")),
        *(_moved(relative_path=".metadata"), _moved(transform_descriptors=["zstd"])),
        *(
            _sized(1 << 40),
            _sized(1 << 20, 1 << 20),
            _sized(4, 4),
            _sized(12),
            _vanished,
            _holed,
            _twice,
            _retyped,
        ),
        lambda metadata: metadata.planner_data.update(w=("list", 1 << 60)),
        lambda metadata: metadata.planner_data.update(w=("groups", 0, "lr", "x")),
        lambda metadata: metadata.planner_data.update(w=("groups",)),
        lambda metadata: metadata.planner_data.pop("w"),
        lambda metadata: vars(metadata).update(storage_data=None),
        lambda metadata: vars(metadata).update(state_dict_metadata=[1]),
    ],
)
def test_metadata_that_does_not_fit_its_files_is_corrupt(
    change: Callable[[Any], None], files: dict[str, FileDigest], tmp_path: Path
) -> None:
    metadata = _metadata(tmp_path)
    change(metadata)
    _refuse(tmp_path, metadata)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"offset": True}, "a bool as offset of a _StorageInfo"),
        ({"length": 1.0}, "a float as length of a _StorageInfo"),
        ({"relative_path": 7}, "a int as relative_path"),
        ({"offset": 1 << 60}, f"bytes at offset {1 << 60}, found a file of "),
        ({"offset": -64}, "bytes at offset -64"),
    ],
)
def test_a_place_is_checked_before_it_is_looked_at(
    changes: dict[str, Any], words: str, files: dict[str, FileDigest], tmp_path: Path
) -> None:
    metadata = _metadata(tmp_path)
    _moved(**changes)(metadata)
    assert words in _refuse(tmp_path, metadata)


def test_two_names_for_one_place_are_corrupt(tmp_path: Path) -> None:
    save(tmp_path, [lambda mesh: {"w": torch.ones(3), "v": torch.zeros(3)}])
    metadata = _metadata(tmp_path)
    _twice(metadata)
    assert "pieces that do not overlap" in _refuse(tmp_path, metadata)


def test_chunks_that_lie_upon_each_other_leave_some_rank_short(tmp_path: Path) -> None:
    def tree(mesh: DeviceMesh) -> Tree:
        return {"w": sharded(filled((4, 3), seed=1), mesh, [Shard(0)])}

    save(tmp_path, [tree, tree])
    metadata = _metadata(tmp_path)
    second = metadata.state_dict_metadata["w"].chunks[1]
    second.offsets = torch.Size([1, 0])
    place = metadata.storage_data.pop(MetadataIndex("w", [2, 0]))
    metadata.storage_data[MetadataIndex("w", [1, 0])] = place
    _put(tmp_path / "model/.metadata", pickle.dumps(metadata, protocol=4))
    with (
        as_rank(1, of=2) as mesh,
        pytest.raises(Corrupt, match="chunks of w that cover its 6 elements here, found 3"),
    ):
        load(tmp_path / "model", into=tree(mesh), rank=1, world_size=2)


def test_a_file_that_has_grown_is_corrupt_without_a_digest_too(files: dict[str, FileDigest], tmp_path: Path) -> None:
    path = tmp_path / "model/__0_0.distcp"
    _put(path, path.read_bytes() + b"\0")
    with pytest.raises(Corrupt, match=f"expected {files[path.name].size} bytes"):
        load(tmp_path / "model", files=files, verify=False)


def test_a_file_that_the_manifest_does_not_list_is_not_read(files: dict[str, FileDigest], tmp_path: Path) -> None:
    del files["__1_0.distcp"]
    with pytest.raises(Corrupt, match=r"'__1_0\.distcp', of which the checkpoint does not know"):
        load(tmp_path / "model", files=files)
    del files[".metadata"]
    with pytest.raises(Corrupt, match=r"expected a file \.metadata"):
        load(tmp_path / "model", files=files)


def test_a_missing_file_is_an_error_of_the_disk(files: dict[str, FileDigest], tmp_path: Path) -> None:
    (tmp_path / "model/__0_0.distcp").unlink()
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "model", files=files)


def test_a_digest_of_an_unknown_kind_is_corrupt(files: dict[str, FileDigest], tmp_path: Path) -> None:
    files["__0_0.distcp"] = evolve(files["__0_0.distcp"], digest="md9:00")
    with pytest.raises(Corrupt, match="md9"):
        load(tmp_path / "model", files=files)


def test_digests_may_be_of_either_algorithm(files: dict[str, FileDigest], tmp_path: Path) -> None:
    for name, file in files.items():
        digester = Digester("sha256")
        digester.update((tmp_path / "model" / name).read_bytes())
        files[name] = evolve(file, digest=digester.digest)
    assert_same(_tree(), load(tmp_path / "model", files=files))
