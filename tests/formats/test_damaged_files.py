"""Damage of every kind ends in the right tree or in one `Corrupt`, and never costs more memory than the file."""

from __future__ import annotations

import io
import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from attrs import define
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import Buffer

from milepost.engines.formats import Digester, read_pt, stream
from milepost.engines.formats.layout import lay_out, tail
from milepost.transitions.errors import Corrupt
from tests.formats.samples import assert_same, filled, odd_tree, read, written


@define
class _Bytes:
    """A file that is in memory."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    def read_into(self, offset: int, buffer: Buffer) -> int:
        target = memoryview(buffer).cast("B")
        part = self.data[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)

    def close(self) -> None: ...
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


def _tree() -> dict[str, Any]:
    return {"w": filled((3, 2)), "group": [{"lr": 0.1, "betas": (0.9, 0.99)}], "names": {"a": b"b"}, "n": 300}


def _image(tree: object) -> bytes:
    return b"".join(bytes(block) for block in stream({"m": tree})[0].blocks())


def _digest(data: bytes) -> str:
    digester = Digester("blake3")
    digester.update(data)
    return digester.digest


def test_every_flipped_byte_is_found_by_the_digest() -> None:
    data = _image(_tree())
    digest = _digest(data)
    for at in range(len(data)):
        bad = data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        with pytest.raises(Corrupt, match=r"x\.pt: .*expected"):
            read_pt(_Bytes(bad), digest=digest, where="x.pt")


def test_every_flipped_bit_gives_a_tree_or_corrupt_without_a_digest() -> None:
    data = _image(_tree())
    outcomes = set()
    for at in range(len(data)):
        bad = data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]
        try:
            read_pt(_Bytes(bad), into=_tree(), where="x.pt")
        except Corrupt:
            outcomes.add("corrupt")
        else:
            outcomes.add("read")
    assert outcomes == {"corrupt", "read"}


def test_a_file_cut_at_any_length_is_corrupt() -> None:
    data = _image(_tree())
    for size in range(len(data)):
        with pytest.raises(Corrupt, match=r"x\.pt"):
            read_pt(_Bytes(data[:size]), where="x.pt")


@given(
    patches=st.lists(st.tuples(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8)), min_size=1, max_size=6)
)
def test_scribbles_over_an_odd_file_give_a_tree_or_corrupt(patches: list[tuple[int, bytes]]) -> None:
    data = bytearray(_ODD)
    for place, patch in patches:
        at = place % len(data)
        data[at : at + len(patch)] = patch[: len(data) - at]
    try:
        read_pt(_Bytes(bytes(data)), where="x.pt")
    except Corrupt as error:
        assert "x.pt" in str(error)


_ODD = _image(odd_tree())


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 5000, b"not a zip archive at all" * 10, pickle.dumps({"w": 1}), b"PK\5\6" + bytes(18)],
    ids=["empty", "zeros", "text", "a bare pickle", "an empty zip"],
)
def test_what_is_no_pt_file_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match=r"runs/model\.pt"):
        read_pt(_Bytes(data), where="runs/model.pt")


def test_a_compressed_archive_is_corrupt(tmp_path: Path) -> None:
    path, _ = written(stream({"m": _tree()})[0], tmp_path, crc32=True)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "z", "w", zipfile.ZIP_DEFLATED) as again:
        for name in archive.namelist():
            again.writestr(name, archive.read(name))
    with pytest.raises(Corrupt, match="method 8"):
        read(tmp_path / "z")


def test_a_wrong_digest_says_what_was_expected_and_found() -> None:
    data = _image(_tree())
    with pytest.raises(Corrupt) as caught:
        read_pt(_Bytes(data), digest="blake3:00", where="x.pt")
    assert "blake3:00" in str(caught.value) and _digest(data) in str(caught.value)
    with pytest.raises(Corrupt, match="md5"):
        read_pt(_Bytes(data), digest="md5:00", where="x.pt")


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/must-not-be-there",)


def _pickled(value: object) -> bytes:
    return pickle.dumps(value, protocol=2)


@pytest.mark.parametrize(
    ("pickled", "said"),
    [
        (_pickled({"a": _Evil()}), "system"),
        (b"\x80\x02cbuiltins\neval\nX\x01\0\0\x001\x85R.", r"builtins\.eval"),
        (_pickled(Path("x")), "pathlib"),
        (b"\x80\x02}q\0(X\1\0\0\0ar\xff\xff\xff\xffK\1u.", None),
        (b"\x80\x02X\xff\xff\xff\xffa.", "left"),
        (b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.", "pickle"),
        (b"\x80\x02]q\0h\0a.", None),
        (b"\x80\x02" + b"(" * 1000 + b".", "pickle"),
        (b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".", "deeply"),
        (b"\x80\x04\x95\0\0\0\0\0\0\0\0.", "pickle"),
        (b"\x80\x02}", "pickle"),
    ],
    ids=["a command", "eval", "a path", "a huge memo", "a huge string", "a huge bytearray", "a cycle", "marks",
         "deep", "protocol 4", "no end"],
)  # fmt: skip
def test_a_pickle_that_was_made_to_harm_does_nothing(pickled: bytes, said: str | None) -> None:
    data = tail(lay_out(()), pickled=pickled, crcs=())
    tracemalloc.start()
    try:
        if said is None:
            read_pt(_Bytes(data), where="x.pt")
        else:
            with pytest.raises(Corrupt, match=said):
                read_pt(_Bytes(data), where="x.pt")
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()
    assert not Path("/tmp/must-not-be-there").exists()


def test_a_tensor_that_claims_more_than_its_storage_is_corrupt() -> None:
    class Liar(pickle.Pickler):
        def persistent_id(self, value: object) -> object:
            return ("storage", torch.FloatStorage, "0", "cpu", claimed) if value is ... else None

        def reducer_override(self, value: object) -> Any:
            if value is torch:
                return torch._utils._rebuild_tensor_v2, (..., 0, shape, stride, False, {})
            return NotImplemented

    layout = lay_out((16,))
    for claimed, shape, stride in (  # noqa: B007 - read by the pickler
        (1 << 40, (4,), (1,)),
        (4, (1 << 40,), (1,)),
        (4, (5,), (1,)),
        (4, (2, 2), (3, 1)),
        (4, (1,), (-1,)),
        (4, (2, 2), (1,)),
        (4, (1 << 62, 1 << 62), (0, 0)),
    ):
        out = io.BytesIO()
        Liar(out, protocol=2).dump({"w": torch})
        header = layout.slots[0].header + bytes(16) + layout.slots[0].descriptor(0)
        data = header + tail(layout, pickled=out.getvalue(), crcs=(0,))
        with pytest.raises(Corrupt):
            read_pt(_Bytes(data), where="x.pt")


def test_a_flag_that_a_dtype_cannot_have_is_corrupt() -> None:
    data = _image({"w": torch.arange(3)})
    pickled = data.index(b"_rebuild_tensor_v2")
    flag = data.index(b"\x89", pickled)  # requires_grad=False
    with pytest.raises(Corrupt, match="tensors that torch can build"):
        read_pt(_Bytes(data[:flag] + b"\x88" + data[flag + 1 :]), where="x.pt")


def test_a_file_that_shrinks_while_it_is_read_is_corrupt() -> None:
    class Shrinking(_Bytes):
        def read_into(self, offset: int, buffer: Buffer) -> int:
            return super().read_into(offset, buffer) if offset >= 20_000 else 0

    with pytest.raises(Corrupt, match="cut while it was read"):
        read_pt(Shrinking(_image({"w": filled((10_000,))})), where="x.pt")


def test_an_error_of_the_disk_comes_through_as_it_is() -> None:
    class Failing(_Bytes):
        def read_into(self, offset: int, buffer: Buffer) -> int:
            if offset < 20_000:
                raise OSError(5, "input/output error")
            return super().read_into(offset, buffer)

    with pytest.raises(OSError, match="input/output error"):
        read_pt(Failing(_image({"w": filled((10_000,))})), where="x.pt")


def test_an_undamaged_file_is_read_from_memory_as_from_disk() -> None:
    tree = odd_tree()
    data = _image(tree)
    assert_same(tree, read_pt(_Bytes(data), digest=_digest(data), where="x.pt"))
