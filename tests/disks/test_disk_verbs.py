"""What every verb of a disk does and refuses, the same on the local and on the simulated disk."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from milepost.engines.disks import Disk, write_all
from tests.disks.bench import Bench

Verb = Callable[[Disk, str], object]


def put(disk: Disk, path: str, data: bytes = b"data") -> None:
    with disk.create(path) as sink:
        write_all(sink, data)


def get(disk: Disk, path: str) -> bytes:
    return disk.read(path, limit=1 << 20)


@pytest.mark.parametrize("path", ["/a", "a/", "a//b", ".", "..", "a/../b", "a/./b", "a\0b"])
def test_a_path_that_is_not_below_the_root_is_a_value_error(disk: Disk, path: str) -> None:
    for verb in EVERY.values():
        with pytest.raises(ValueError, match="name"):
            verb(disk, path)


def test_the_root_can_be_looked_at_and_synced_and_nothing_else(disk: Disk) -> None:
    root = disk.stat("")
    assert root is not None
    assert root.kind == "dir"
    assert disk.names("") == ()
    disk.sync_dir("")
    assert disk.free("") > 0
    for verb in (disk.create, disk.open, disk.mkdir, disk.unlink, disk.rmdir, disk.sync_file, disk.lock):
        with pytest.raises(ValueError, match="root"):
            verb("")


def test_a_created_file_reads_back_what_was_appended(disk: Disk) -> None:
    with disk.create("a") as sink:
        write_all(sink, b"one ")
        write_all(sink, memoryview(b"two"))
        sink.sync()
    assert get(disk, "a") == b"one two"
    with disk.open("a") as source:
        buffer = bytearray(10)
        assert source.size == 7
        assert source.read_into(4, buffer) == 3
        assert buffer[:3] == b"two"
        assert source.read_into(7, buffer) == 0
        assert source.read_into(99, buffer) == 0


def test_a_file_can_be_read_while_it_is_still_open_for_appending(disk: Disk) -> None:
    with disk.create("a") as sink:
        write_all(sink, b"half")
        assert get(disk, "a") == b"half"


@pytest.mark.parametrize("bulk", [False, True])
def test_a_closed_sink_takes_nothing_more_and_closes_twice(disk: Disk, bulk: bool) -> None:
    sink = disk.create("a", bulk=bulk)
    sink.close()
    sink.close()
    for use in (lambda: sink.write(b"x"), sink.sync):
        with pytest.raises(OSError) as caught:
            use()
        assert caught.value.errno == errno.EBADF


@pytest.mark.parametrize("bulk", [False, True])
def test_a_closed_source_reads_nothing_more_and_closes_twice(disk: Disk, bulk: bool) -> None:
    put(disk, "a")
    source = disk.open("a", bulk=bulk)
    source.close()
    source.close()
    with pytest.raises(OSError) as caught:
        source.read_into(0, bytearray(1))
    assert caught.value.errno == errno.EBADF


@pytest.mark.parametrize("kind", ["file", "folder", "symlink"])
def test_nothing_is_created_over_what_exists(bench: Bench, kind: str) -> None:
    disk = bench.disk
    {"file": lambda: put(disk, "a"), "folder": lambda: disk.mkdir("a"), "symlink": lambda: bench.plant_symlink("a")}[
        kind
    ]()
    put(disk, "b", b"other")
    for make in (disk.create, disk.mkdir, lambda path: disk.link("b", path), lambda path: disk.publish("b", path)):
        with pytest.raises(FileExistsError):
            make("a")
    found = disk.stat("a")
    assert found is not None
    assert found.kind == {"folder": "dir"}.get(kind, kind)
    assert get(disk, "b") == b"other"


def test_a_read_above_its_limit_is_refused(disk: Disk) -> None:
    put(disk, "a", b"12345")
    assert disk.read("a", limit=5) == b"12345"
    with pytest.raises(OSError, match="5 bytes where at most 4") as caught:
        disk.read("a", limit=4)
    assert caught.value.errno == errno.EFBIG


def test_stat_tells_kind_size_and_identity(bench: Bench) -> None:
    disk = bench.disk
    put(disk, "a", b"12345")
    disk.mkdir("d")
    disk.link("a", "d/b")
    bench.plant_symlink("s")
    kinds = {}
    for path in ("a", "d", "d/b", "s"):
        found = disk.stat(path)
        assert found is not None
        kinds[path] = found.kind
    assert kinds == {"a": "file", "d": "dir", "d/b": "file", "s": "symlink"}
    first, second, folder = disk.stat("a"), disk.stat("d/b"), disk.stat("d")
    assert first is not None and second is not None and folder is not None
    assert first.size == second.size == 5
    assert first.inode == second.inode != folder.inode
    assert disk.stat("nothing") is None
    assert disk.stat("nothing/below") is None


def test_names_are_sorted(disk: Disk) -> None:
    for name in ("b", "a", "c10", "c9"):
        put(disk, name)
    disk.mkdir("aa")
    assert disk.names("") == ("a", "aa", "b", "c10", "c9")
    assert disk.names("aa") == ()


MISSING: dict[str, Verb] = {
    "open": lambda disk, path: disk.open(path),
    "read": lambda disk, path: disk.read(path, limit=9),
    "names": lambda disk, path: disk.names(path),
    "rename": lambda disk, path: disk.rename(path, "target"),
    "publish": lambda disk, path: disk.publish(path, "target"),
    "link": lambda disk, path: disk.link(path, "target"),
    "unlink": lambda disk, path: disk.unlink(path),
    "rmdir": lambda disk, path: disk.rmdir(path),
    "rewrite": lambda disk, path: disk.rewrite(path, offset=0, data=b"x"),
    "sync_file": lambda disk, path: disk.sync_file(path),
    "sync_dir": lambda disk, path: disk.sync_dir(path),
    "free": lambda disk, path: disk.free(path),
}
MAKING: dict[str, Verb] = {
    "create": lambda disk, path: disk.create(path),
    "mkdir": lambda disk, path: disk.mkdir(path),
    "lock": lambda disk, path: disk.lock(path),
    "rename to": lambda disk, path: disk.rename("there", path),
    "publish to": lambda disk, path: disk.publish("there", path),
    "link to": lambda disk, path: disk.link("there", path),
}
EVERY: dict[str, Verb] = {**MISSING, **MAKING, "stat": lambda disk, path: disk.stat(path)}


@pytest.mark.parametrize("verb", MISSING.values(), ids=MISSING)
def test_what_does_not_exist_is_not_found(disk: Disk, verb: Verb) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        verb(disk, "nothing")
    assert disk.where("nothing") in str(caught.value)


@pytest.mark.parametrize("verb", (MISSING | MAKING).values(), ids=MISSING | MAKING)
def test_a_missing_directory_on_the_way_is_not_found(disk: Disk, verb: Verb) -> None:
    put(disk, "there")
    with pytest.raises(FileNotFoundError):
        verb(disk, "nothing/below")


@pytest.mark.parametrize("verb", EVERY.values(), ids=EVERY)
def test_a_file_on_the_way_is_not_a_directory(disk: Disk, verb: Verb) -> None:
    put(disk, "file")
    put(disk, "there")
    with pytest.raises(NotADirectoryError):
        verb(disk, "file/below")


@pytest.mark.parametrize("path", ["s/inside", "s/inside/deeper", "d/s/inside"])
@pytest.mark.parametrize("verb", EVERY.values(), ids=EVERY)
def test_a_symlink_on_the_way_is_refused_at_every_level(bench: Bench, verb: Verb, path: str) -> None:
    disk = bench.disk
    put(disk, "there")
    disk.mkdir("d")
    bench.plant_symlink("s")
    bench.plant_symlink("d/s")
    with pytest.raises(OSError) as caught:
        verb(disk, path)
    assert caught.value.errno == errno.ELOOP
    assert get(disk, "there") == b"data"


REFUSING_LAST = {name: verb for name, verb in EVERY.items() if name in MISSING or name in ("lock", "rename to")}


@pytest.mark.parametrize("verb", REFUSING_LAST.values(), ids=REFUSING_LAST)
def test_a_symlink_as_the_last_name_is_refused_and_stays(bench: Bench, verb: Verb) -> None:
    put(bench.disk, "there")
    bench.plant_symlink("s")
    with pytest.raises(OSError) as caught:
        verb(bench.disk, "s")
    assert caught.value.errno == errno.ELOOP
    assert bench.disk.names("") == ("s", "there")


@pytest.mark.parametrize("name", ["open", "read", "unlink", "rewrite", "sync_file", "lock"])
def test_a_directory_is_not_a_file(disk: Disk, name: str) -> None:
    disk.mkdir("d")
    with pytest.raises(IsADirectoryError):
        EVERY[name](disk, "d")


@pytest.mark.parametrize("name", ["names", "rmdir", "sync_dir"])
def test_a_file_is_not_a_directory(disk: Disk, name: str) -> None:
    put(disk, "a")
    with pytest.raises(NotADirectoryError):
        EVERY[name](disk, "a")


@pytest.mark.parametrize("name", ["create", "mkdir", "stat", "unlink", "rename to", "link to"])
def test_a_name_above_255_bytes_is_too_long(disk: Disk, name: str) -> None:
    put(disk, "there")
    with pytest.raises(OSError) as caught:
        EVERY[name](disk, "é" * 128)
    assert caught.value.errno == errno.ENAMETOOLONG


def test_rewriting_puts_the_bytes_where_they_are_said_to_be_and_nowhere_else(disk: Disk) -> None:
    put(disk, "a", b"0123456789")
    disk.rewrite("a", offset=3, data=b"345")
    assert get(disk, "a") == b"0123456789"
    disk.rewrite("a", offset=8, data=b"xy")
    assert get(disk, "a") == b"01234567xy"


def test_rename_replaces_a_file(disk: Disk) -> None:
    put(disk, "a", b"new")
    put(disk, "b", b"old")
    disk.rename("a", "b")
    assert disk.names("") == ("b",)
    assert get(disk, "b") == b"new"


def test_rename_moves_a_directory_with_what_it_holds(disk: Disk) -> None:
    disk.mkdir("d")
    disk.mkdir("e")
    put(disk, "d/a", b"inside")
    disk.rename("d", "e/d")
    assert disk.names("") == ("e",)
    assert get(disk, "e/d/a") == b"inside"


def test_rename_of_two_names_of_one_file_changes_nothing(disk: Disk) -> None:
    put(disk, "a")
    disk.link("a", "b")
    disk.rename("a", "b")
    assert disk.names("") == ("a", "b")


@pytest.mark.parametrize(
    ("source", "target", "code"),
    [
        ("file", "empty", errno.EISDIR),
        ("empty", "file", errno.ENOTDIR),
        ("empty", "full", errno.ENOTEMPTY),
        ("full", "full/below", errno.EINVAL),
        ("full/inside", "full", errno.ENOTEMPTY),
    ],
)
def test_rename_refuses_what_the_kernel_refuses(disk: Disk, source: str, target: str, code: int) -> None:
    put(disk, "file")
    disk.mkdir("empty")
    disk.mkdir("full")
    put(disk, "full/inside")
    with pytest.raises(OSError) as caught:
        disk.rename(source, target)
    assert caught.value.errno == code
    assert disk.names("") == ("empty", "file", "full")


def test_rename_replaces_an_empty_directory_with_a_directory(disk: Disk) -> None:
    disk.mkdir("d")
    put(disk, "d/a")
    disk.mkdir("e")
    disk.rename("d", "e")
    assert disk.names("") == ("e",)
    assert disk.names("e") == ("a",)


@pytest.mark.parametrize("target", ["file", "empty", "full", "symlink"])
@pytest.mark.parametrize("source", ["new file", "new folder"])
def test_publish_never_replaces(bench: Bench, source: str, target: str) -> None:
    disk = bench.disk
    put(disk, "new file", b"new")
    disk.mkdir("new folder")
    put(disk, "new folder/a", b"new")
    put(disk, "file", b"old")
    disk.mkdir("empty")
    disk.mkdir("full")
    put(disk, "full/a", b"old")
    bench.plant_symlink("symlink")
    before = disk.stat(target)
    with pytest.raises(FileExistsError):
        disk.publish(source, target)
    assert disk.stat(target) == before
    assert disk.names("empty") == ()
    assert get(disk, "file") == get(disk, "full/a") == b"old"
    assert get(disk, "new file") == get(disk, "new folder/a") == b"new"


def test_publish_moves_a_directory_to_a_free_name(disk: Disk) -> None:
    disk.mkdir("staging")
    disk.mkdir("staging/d")
    put(disk, "staging/d/a", b"inside")
    disk.publish("staging/d", "d")
    assert disk.names("staging") == ()
    assert get(disk, "d/a") == b"inside"


def test_publish_into_itself_is_refused(disk: Disk) -> None:
    disk.mkdir("d")
    with pytest.raises(OSError) as caught:
        disk.publish("d", "d/e")
    assert caught.value.errno == errno.EINVAL


def test_link_gives_a_second_name_that_outlives_the_first(disk: Disk) -> None:
    put(disk, "a", b"kept")
    disk.mkdir("d")
    disk.link("a", "d/b")
    disk.unlink("a")
    assert disk.names("") == ("d",)
    assert get(disk, "d/b") == b"kept"


def test_link_of_a_directory_is_not_permitted(disk: Disk) -> None:
    disk.mkdir("d")
    with pytest.raises(PermissionError):
        disk.link("d", "e")


def test_an_unlinked_file_stays_with_who_has_it_open(disk: Disk) -> None:
    with disk.create("a") as sink:
        write_all(sink, b"12")
        with disk.open("a") as source:
            disk.unlink("a")
            assert disk.stat("a") is None
            write_all(sink, b"34")
            buffer = bytearray(4)
            assert source.read_into(0, buffer) == 4
            assert buffer == b"1234"


def test_rmdir_removes_an_empty_directory_only(disk: Disk) -> None:
    disk.mkdir("d")
    put(disk, "d/a")
    with pytest.raises(OSError) as caught:
        disk.rmdir("d")
    assert caught.value.errno == errno.ENOTEMPTY
    disk.unlink("d/a")
    disk.rmdir("d")
    assert disk.names("") == ()


def test_a_lock_is_held_against_everybody_until_it_is_released(bench: Bench) -> None:
    lock = bench.disk.lock("lock")
    for again in (bench.disk, bench.other):
        with pytest.raises(BlockingIOError):
            again.lock("lock")
    bench.other.lock("another").release()
    lock.release()
    lock.release()
    bench.other.lock("lock").release()
    assert bench.disk.names("") == ("another", "lock")


def test_a_lock_takes_an_existing_file_and_leaves_its_bytes(disk: Disk) -> None:
    put(disk, "lock", b"holder")
    disk.lock("lock").release()
    assert get(disk, "lock") == b"holder"


def test_syncing_takes_what_was_written_under_any_name(disk: Disk) -> None:
    disk.mkdir("d")
    put(disk, "d/a")
    disk.sync_file("d/a")
    disk.sync_dir("d")
    disk.sync_dir("")
    assert get(disk, "d/a") == b"data"
