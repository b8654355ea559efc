"""An image to a file: whole, hashed as it lies there, and no error lost on the way."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import blake3
import pytest
import torch
from attrs import define
from typing_extensions import Buffer

from milepost.engines.digests import Digester
from milepost.engines.disks import Sink
from milepost.engines.disks.local import LocalDisk
from milepost.engines.formats import Image, Stager, digest_of, stream, write_image
from milepost.engines.niceness import be_nicer
from milepost.engines.relay import DEPTH
from tests.formats.samples import assert_same, filled, read, written


def _images() -> list[Image]:
    trees = {"m": {"w": filled((20 << 20,), torch.uint8), "v": filled((3,)), "step": 4}}
    return [*Stager().stage(trees).images, *stream(trees)]


@pytest.mark.parametrize("algorithm", ["blake3", "sha256"])
def test_the_digest_is_that_of_the_bytes_on_disk(algorithm: str, tmp_path: Path) -> None:
    for at, image in enumerate(_images()):
        path, done = written(image, tmp_path, name=f"{at}.pt", algorithm=algorithm)
        data = path.read_bytes()
        direct = hashlib.sha256(data).hexdigest() if algorithm == "sha256" else blake3.blake3(data).hexdigest()
        assert done.digest == f"{algorithm}:{direct}" and done.size == len(data)
        with LocalDisk(tmp_path).open(path.name, bulk=True) as source:
            assert digest_of(source, algorithm=algorithm) == done.digest  # type: ignore[arg-type]


def test_an_existing_file_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        written(stream({"m": {}})[0], tmp_path)
    assert (tmp_path / "x.pt").read_bytes() == b"mine"


@define
class _Sink:
    """A sink of a real file that is slow to take bytes, or fails at one verb."""

    inner: Sink
    at_most: int = 1 << 30
    fails: str = ""
    writes: int = 0
    thread: str = ""
    niceness: int = 0

    def write(self, data: Buffer) -> int:
        self.writes += 1
        self.thread = threading.current_thread().name
        self.niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        if self.fails == "write" and self.writes == 3:
            raise OSError(28, "no space left")
        return self.inner.write(memoryview(data).cast("B")[: self.at_most])

    def sync(self) -> None:
        if self.fails == "sync":
            raise OSError(5, "input/output error")
        self.inner.sync()

    def close(self) -> None:
        self.inner.close()
        if self.fails == "close":
            raise OSError(122, "quota exceeded")

    def __enter__(self) -> _Sink:
        return self

    def __exit__(self, *_: object) -> None:
        self.inner.close()


class _Disk(LocalDisk):
    """A local disk with one such sink."""

    def __init__(self, root: Path, *, at_most: int = 1 << 30, fails: str = "") -> None:
        super().__init__(root)
        self.at_most, self.fails = at_most, fails

    def create(self, path: str, *, bulk: bool = False) -> Sink:
        assert bulk
        self.sink = _Sink(super().create(path, bulk=False), at_most=self.at_most, fails=self.fails)
        return self.sink


def test_short_writes_are_taken_up_where_they_ended(tmp_path: Path) -> None:
    disk = _Disk(tmp_path, at_most=100_003)
    done = write_image(disk, "x.pt", _images()[1])
    assert disk.sink.writes > 200
    with disk.open("x.pt") as source:
        assert digest_of(source) == done.digest


@pytest.mark.parametrize(("verb", "number"), [("write", 28), ("sync", 5), ("close", 122)])
@pytest.mark.parametrize("side", [0, 1], ids=["staged", "streamed"])
def test_an_error_of_the_disk_is_raised_here(verb: str, number: int, side: int, tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(OSError) as caught:
        write_image(_Disk(tmp_path, fails=verb), "x.pt", _images()[side])
    assert caught.value.errno == number
    assert threading.active_count() == before


def test_the_threads_that_write_are_as_nice_as_who_asked(tmp_path: Path) -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    disk = _Disk(tmp_path)
    write_image(disk, "hurried", _images()[0])
    assert (disk.sink.thread, disk.sink.niceness) == ("milepost-write", mine)

    def politely() -> None:
        be_nicer(by=2)
        write_image(disk, "polite", _images()[0])

    thread = threading.Thread(target=politely)
    thread.start()
    thread.join()
    assert (disk.sink.thread, disk.sink.niceness) == ("milepost-write", min(mine + 2, 19))
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine


def test_a_digest_that_falls_behind_does_not_hold_up_the_disk_of_a_staged_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, update = _Disk(tmp_path), Digester.update
    whole = threading.Event()

    def late(digester: Digester, data: Buffer) -> None:
        while disk.sink.writes <= DEPTH and not whole.wait(0.01) and time.monotonic() < deadline:
            pass
        whole.set()
        update(digester, data)

    monkeypatch.setattr(Digester, "update", late)
    deadline = time.monotonic() + 20
    write_image(disk, "x.pt", _images()[0])
    assert time.monotonic() < deadline, "the disk waited for the digest"


def test_an_empty_tree_is_a_file_too(tmp_path: Path) -> None:
    path, done = written(stream({"m": {}})[0], tmp_path)
    assert torch.load(path, weights_only=True) == {}
    assert_same({}, read(path, digest=done.digest))
