"""A bucket as a disk that is only read, on the simulated store and on a real one."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from milepost.engines.ambient import SystemAmbient
from milepost.engines.buckets import Bucket
from milepost.engines.buckets.opening import open_bucket
from milepost.engines.buckets.reading import BucketDisk
from milepost.engines.disks import Disk
from milepost.engines.simulated.bucket import SimulatedBucket
from milepost.transitions.errors import Corrupt
from tests.buckets.servers import SeaweedFS

FILES = {
    "run/a": b"one",
    "run/iter_1/model/__0.distcp": b"shard",
    "run/iter_1/model/__1.distcp": b"other shard",
    "run/iter_1/manifest": b"{}",
    "run/iter_1.txt": b"beside",
    "run/iter_2/manifest": b"{}",
    "run0": b"no part of run",
}


def fill(bucket: Bucket, files: dict[str, bytes]) -> BucketDisk:
    for key, data in files.items():
        with bucket.upload(key, size_hint=len(data)) as upload:
            upload.write(data)
            upload.commit()
    return BucketDisk(bucket)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    with SeaweedFS(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(params=["simulated", pytest.param("seaweedfs", marks=pytest.mark.services)])
def bucket(request: pytest.FixtureRequest) -> Bucket:
    """An empty one; that of the server holds the same files after each test, whose bytes the next one writes anew."""
    if request.param == "simulated":
        return SimulatedBucket()
    server: SeaweedFS = request.getfixturevalue("server")
    return open_bucket(server.bucket, credentials=server.credentials(), ambient=SystemAmbient())


def test_directories_are_what_keys_have_in_common(bucket: Bucket) -> None:
    disk: Disk = fill(bucket, FILES)
    assert disk.names("") == ("run", "run0")
    assert disk.names("run") == ("a", "iter_1", "iter_1.txt", "iter_2")
    assert disk.names("run/iter_1") == ("manifest", "model")
    kinds = {path: stat.kind for path in ("", "run", "run/iter_1", "run/a") if (stat := disk.stat(path)) is not None}
    assert kinds == {"": "dir", "run": "dir", "run/iter_1": "dir", "run/a": "file"}
    assert disk.stat("ru") is None
    assert disk.stat("run/iter_1/model/__0") is None


def test_a_file_is_read_whole_or_in_pieces(bucket: Bucket) -> None:
    disk: Disk = fill(bucket, FILES)
    assert disk.read("run/a", limit=3) == b"one"
    stat = disk.stat("run/iter_1/model/__1.distcp")
    assert stat is not None
    assert stat.size == 11
    with disk.open("run/iter_1/model/__1.distcp", bulk=True) as source:
        assert source.size == 11
        into = bytearray(8)
        assert (source.read_into(6, into), bytes(into[:5])) == (5, b"shard")
        assert source.read_into(11, into) == 0


def test_what_is_not_there_or_too_large_is_told_as_a_disk_tells_it(bucket: Bucket) -> None:
    disk: Disk = fill(bucket, FILES)
    for missing in (
        lambda: disk.open("run/b"),
        lambda: disk.read("run/b", limit=9),
        lambda: disk.names("run/b"),
        lambda: disk.open("run"),
    ):
        with pytest.raises(FileNotFoundError, match="nothing is there"):
            missing()
    with pytest.raises(OSError, match="3 bytes, at most 2") as large:
        disk.read("run/a", limit=2)
    assert large.value.errno == errno.EFBIG


def test_bytes_of_two_versions_are_never_mixed(bucket: Bucket) -> None:
    disk: Disk = fill(bucket, FILES)
    with disk.open("run/a") as source:
        fill(bucket, {"run/a": b"two"})
        with pytest.raises(Corrupt):
            source.read_into(0, bytearray(3))


def test_a_directory_of_many_files_costs_its_parent_one_request() -> None:
    bucket = SimulatedBucket()
    many = {f"run/iter_1/model/{number:04d}": b"x" for number in range(2500)}
    disk = fill(bucket, many | {"run/iter_2/manifest": b"{}"})
    before = len(bucket.trace)
    assert disk.names("run") == ("iter_1", "iter_2")
    assert [request.verb for request in bucket.trace[before:]] == ["list"] * 3
    assert len(disk.names("run/iter_1/model")) == 2500


def test_nothing_is_changed_through_it() -> None:
    disk: Disk = fill(SimulatedBucket(), FILES)
    for change in (
        lambda: disk.create("x"),
        lambda: disk.mkdir("x"),
        lambda: disk.rename("run/a", "x"),
        lambda: disk.publish("run/a", "x"),
        lambda: disk.link("run/a", "x"),
        lambda: disk.rewrite("run/a", offset=0, data=b"o"),
        lambda: disk.unlink("run/a"),
        lambda: disk.rmdir("run"),
        lambda: disk.sync_file("run/a"),
        lambda: disk.sync_dir("run"),
        lambda: disk.free(""),
        lambda: disk.lock("x"),
    ):
        with pytest.raises(OSError, match="only read") as refused:
            change()
        assert refused.value.errno == errno.EROFS
    assert disk.read("run/a", limit=9) == b"one"
