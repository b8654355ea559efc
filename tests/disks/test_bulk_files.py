"""Large files: whatever the sizes and the memory, what was written is what is read, and it goes around the cache."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from milepost.engines.disks import write_all
from milepost.engines.disks.local import LocalDisk

PAGE = 4096
MIB = 1 << 20


@pytest.fixture(params=["file system", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system with direct I/O (if there is one), and one on tmpfs."""
    if request.param == "file system":
        yield tmp_path
        return
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no /dev/shm")
    with TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


NOISE = random.Random(0).randbytes(4 * MIB)


def aligned(size: int) -> mmap.mmap:
    """Page-aligned memory full of noise."""
    memory = mmap.mmap(-1, max(size, 1))
    for start in range(0, size, len(NOISE)):
        memory[start : min(start + len(NOISE), size)] = NOISE[: size - start]
    return memory


SIZES = [
    (0,),
    (1,),
    (PAGE - 1,),
    (PAGE,),
    (PAGE + 1,),
    (3 * PAGE, 2 * PAGE, 5),
    (3 * PAGE, 100, PAGE, 2 * PAGE),
    (MIB + PAGE, 17, PAGE),
]


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_blocks_of_any_size_in_memory_of_any_alignment_read_back_equal(
    root: Path, sizes: tuple[int, ...], shift: int
) -> None:
    disk = LocalDisk(root)
    total = sum(sizes)
    memory = aligned(total + shift)
    view = memoryview(memory)[shift : shift + total]
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    with disk.create("bulk", bulk=True) as sink:
        for start, end in pairwise(edges):
            write_all(sink, view[start:end])
        sink.sync()
    data = bytes(view)
    assert (root / "bulk").read_bytes() == data
    for bulk in (True, False):
        with disk.open("bulk", bulk=bulk) as source:
            assert source.size == total
            for offset in (0, 1, PAGE, max(total - 7, 0), total + PAGE):
                for into_shift in (0, 3):
                    into = memoryview(mmap.mmap(-1, total + PAGE + into_shift))[into_shift:]
                    got = source.read_into(offset, into)
                    assert into[:got] == data[offset:]


def test_read_only_memory_and_wider_elements_can_be_written(root: Path) -> None:
    disk = LocalDisk(root)
    wide = memoryview(aligned(2 * PAGE)).cast("d")
    with disk.create("bulk", bulk=True) as sink:
        write_all(sink, wide)
        write_all(sink, bytes(5 * PAGE))
    assert (root / "bulk").read_bytes() == wide.tobytes() + bytes(5 * PAGE)


def test_a_long_buffered_file_is_whole_after_early_write_back(root: Path) -> None:
    disk = LocalDisk(root)
    memory = aligned(40 * MIB)
    with disk.create("bulk", bulk=True) as sink:
        write_all(sink, b"odd")
        for start in range(0, len(memory), 8 * MIB):
            write_all(sink, memoryview(memory)[start : start + 8 * MIB])
        sink.sync()
    with disk.open("bulk") as source:
        into = bytearray(len(memory))
        assert source.read_into(3, into) == len(memory)
        assert into == memory[:]


def cached(path: Path) -> bool:
    """Whether the first page of a file is in the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


@pytest.fixture
def direct_root(tmp_path: Path) -> Path:
    try:
        os.close(os.open(tmp_path / "probe", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError as error:
        pytest.skip(f"no direct I/O on {tmp_path}: {error}")
    return tmp_path


@pytest.mark.parametrize("shift", [0, 1])
def test_aligned_blocks_go_around_the_page_cache_and_other_files_do_not(direct_root: Path, shift: int) -> None:
    disk = LocalDisk(direct_root)
    view = memoryview(aligned(2 * MIB + shift))[shift:]
    for bulk in (True, False):
        with disk.create(f"bulk {bulk}", bulk=bulk) as sink:
            write_all(sink, view)
            write_all(sink, b"tail")
    assert not cached(direct_root / "bulk True")
    assert cached(direct_root / "bulk False")


def bytes_from_device() -> int:
    """What this process has made the device read so far."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError as error:
        pytest.skip(f"the kernel does not count reads: {error}")
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


@pytest.mark.parametrize("in_cache", [True, False])
def test_a_bulk_read_asks_the_device_for_what_is_not_cached_and_for_nothing_else(
    direct_root: Path, in_cache: bool
) -> None:
    disk = LocalDisk(direct_root)
    with disk.create("bulk", bulk=not in_cache) as sink:
        write_all(sink, aligned(2 * MIB))
        sink.sync()
    with disk.open("bulk", bulk=True) as source:
        before = bytes_from_device()
        source.read_into(0, mmap.mmap(-1, 2 * MIB))
        assert (bytes_from_device() - before >= 2 * MIB) != in_cache


def test_a_direct_read_takes_what_is_not_cached_without_caching_it(direct_root: Path) -> None:
    disk = LocalDisk(direct_root)
    data = aligned(2 * MIB)
    with disk.create("bulk", bulk=True) as sink:
        write_all(sink, data)
    with disk.open("bulk", bulk=True) as source:
        into = mmap.mmap(-1, 2 * MIB)
        assert source.read_into(0, into) == 2 * MIB
        assert into[:] == data[:]
    assert not cached(direct_root / "bulk")
