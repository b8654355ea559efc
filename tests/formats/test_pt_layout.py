"""The computed layout against torch's own arithmetic, and beyond 4 GiB against zipfile."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.serialization import config

from milepost.engines.disks.local import LocalDisk
from milepost.engines.formats import Stager, stream
from milepost.engines.formats.archive import find_records
from milepost.engines.formats.layout import Layout, lay_out, tail
from tests.formats.samples import filled, odd_tree, written

GIB = 1 << 30


def test_torch_computes_the_same_offsets_as_we_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = written(stream({"m": odd_tree()})[0], tmp_path)
    monkeypatch.setenv("TORCH_SERIALIZATION_DEBUG", "1")  # torch then checks its arithmetic against each header
    with config.patch({"load.calculate_storage_offsets": True}):  # type: ignore[attr-defined]
        torch.load(path, weights_only=True, mmap=True)


def test_the_records_that_we_find_are_those_that_zipfile_finds(tmp_path: Path) -> None:
    path, _ = written(stream({"m": odd_tree()})[0], tmp_path, crc32=True)
    with LocalDisk(tmp_path).open(path.name) as source:
        records = find_records(source, where="x.pt")
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = [name.removeprefix("archive/") for name in archive.namelist()]
        assert names == list(records)
        for name, record in records.items():
            assert data[record.start : record.start + record.size] == archive.read(f"archive/{name}")
    assert all(record.start % 64 == 0 for record in records.values())


def test_a_zip_that_was_packed_anew_is_still_found(tmp_path: Path) -> None:
    tree = {"w": filled((10,)), "v": filled((3,))}
    path, _ = written(stream({"m": tree})[0], tmp_path, crc32=True)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(tmp_path / "again.pt", "w") as again:
        for name in reversed(archive.namelist()):
            again.writestr(name, archive.read(name))
    with LocalDisk(tmp_path).open("again.pt") as source:
        record = find_records(source, where="again.pt")["data/0"]
    data = (tmp_path / "again.pt").read_bytes()
    assert data[record.start : record.start + record.size] == bytes(tree["w"].untyped_storage())


def test_checksums_are_written_only_on_request_and_leave_no_trace(tmp_path: Path) -> None:
    staged = Stager().stage({"m": {"w": filled((1000,))}})
    plain = written(staged.images[0], tmp_path, name="a.pt")[1]
    summed = written(staged.images[0], tmp_path, name="b.pt", crc32=True)[1]
    again = written(staged.images[0], tmp_path, name="c.pt")[1]
    streamed = written(stream({"m": {"w": filled((1000,))}})[0], tmp_path, name="d.pt", crc32=True)[1]
    assert plain == again and summed == streamed and plain != summed


@pytest.mark.parametrize(
    "sizes",
    [
        (5 * GIB, 10),
        (10, 5 * GIB, 0, 7),
        (4 * GIB - 1, 1),
        (4 * GIB - 2, 1),
        (2 * GIB, 2 * GIB - 400, 64, 64, 64),
        (0,) * 70_000,
    ],
    ids=["large first", "large, empty, small", "at the limit", "below it", "only offsets", "many records"],
)
def test_zipfile_finds_every_record_of_a_file_beyond_the_classic_limits(
    sizes: tuple[int, ...], tmp_path: Path
) -> None:
    layout = lay_out(sizes)
    path = tmp_path / "sparse.pt"
    _sparse(path, layout)
    with LocalDisk(tmp_path).open(path.name) as source:
        records = find_records(source, where=path.name)
    with zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if "/data/" in info.filename]
        assert [info.file_size for info in infos] == list(sizes)
        for slot, info in zip(layout.slots, infos, strict=True):
            assert info.header_offset == slot.at
        for slot, info in [*zip(layout.slots, infos, strict=True)][-3:]:
            if slot.size < 100:
                assert archive.read(info) == b"\0" * slot.size  # checks the header, and the crc of zeros
    assert [records[f"data/{key}"].start for key in range(len(sizes))] == [slot.start for slot in layout.slots]


def test_the_reader_of_torch_meets_our_zip64_fields(tmp_path: Path) -> None:
    path = tmp_path / "sparse.pt"
    layout = lay_out((5 * GIB, 8))
    _sparse(path, layout)
    reader = torch._C.PyTorchFileReader(str(path))
    starts = [reader.get_record_offset(f"data/{key}") for key in (0, 1)]  # type: ignore[attr-defined]
    assert starts == [slot.start for slot in layout.slots]


def _sparse(path: Path, layout: Layout) -> None:
    """A file of this layout whose payload is zeros that take no room."""
    crcs: list[Any] = [zlib.crc32(bytes(slot.size)) if slot.size < 100 else 0 for slot in layout.slots]
    with path.open("wb") as file:
        for slot, crc in zip(layout.slots, crcs, strict=True):
            file.seek(slot.at)
            file.write(slot.header)
            file.seek(slot.start + slot.size)
            file.write(slot.descriptor(crc))
        file.seek(layout.end)
        file.write(tail(layout, pickled=b"\x80\x02}.", crcs=crcs))
