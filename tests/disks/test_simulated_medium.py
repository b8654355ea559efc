"""What a crash keeps and what it may take: the model, rule by rule, on cases small enough to list every image."""

from __future__ import annotations

import errno

import pytest

from milepost.engines.disks import Disk, write_all
from milepost.engines.simulated import Fault, Loss, SimulatedDisk, fault_on

EIO = Fault(error=errno.EIO)


def put(disk: Disk, path: str, *parts: bytes, sync: bool = False) -> None:
    with disk.create(path) as sink:
        for part in parts:
            write_all(sink, part)
        if sync:
            sink.sync()


def show(disk: SimulatedDisk) -> str:
    """The tree in one line: `a=bytes d/`."""
    files = {path: data for path, data in disk.tree().items() if isinstance(data, bytes)}
    shown = (
        f"{path}={files[path].decode()}" if path in files else f"{path}/" for path in sorted(disk.tree()) if path
    )
    return " ".join(shown)


def images(
    disk: SimulatedDisk, length: int | None = None, *, losses: tuple[Loss, ...] = (), separate: bool = False
) -> set[str]:
    """Every image of a power loss; of unsynced bytes all or nothing survives, unless `losses` says more."""
    crashed = disk.crash_images(length, losses=losses, renames="separate" if separate else "atomic")
    found = [show(image) for image in crashed]
    assert len(found) == len(set(found)), "an image was given twice"
    return set(found)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


class TestBytesAndNames:
    def test_a_new_file_may_vanish_or_be_empty_or_whole_before_any_sync(self, disk: SimulatedDisk) -> None:
        put(disk, "a", b"data")
        assert images(disk) == {"", "a=", "a=data"}

    def test_synced_bytes_stay_but_their_name_may_go(self, disk: SimulatedDisk) -> None:
        put(disk, "a", b"data", sync=True)
        assert images(disk) == {"", "a=data"}

    def test_a_synced_name_stays_but_its_bytes_may_go(self, disk: SimulatedDisk) -> None:
        put(disk, "a", b"data")
        disk.sync_dir("")
        assert images(disk) == {"a=", "a=data"}

    def test_bytes_and_name_synced_leave_one_image(self, disk: SimulatedDisk) -> None:
        put(disk, "a", b"data", sync=True)
        disk.sync_dir("")
        assert images(disk) == {"a=data"}

    def test_sync_file_does_what_the_sinks_sync_does(self, disk: SimulatedDisk) -> None:
        put(disk, "a", b"data")
        disk.sync_file("a")
        disk.sync_dir("")
        assert images(disk) == {"a=data"}

    def test_a_sync_covers_what_was_written_before_it_and_nothing_after(self, disk: SimulatedDisk) -> None:
        with disk.create("a") as sink:
            disk.sync_dir("")
            write_all(sink, b"1")
            sink.sync()
            write_all(sink, b"2")
            assert images(disk) == {"a=1", "a=12"}

    def test_a_file_in_a_new_directory_needs_the_directorys_own_name(self, disk: SimulatedDisk) -> None:
        disk.mkdir("d")
        put(disk, "d/a", b"x", sync=True)
        disk.sync_dir("d")
        assert images(disk) == {"", "d/ d/a=x"}
        disk.sync_dir("")
        assert images(disk) == {"d/ d/a=x"}

    def test_names_of_one_directory_survive_independently(self, disk: SimulatedDisk) -> None:
        for name in ("a", "b"):
            put(disk, name)
        disk.mkdir("d")
        both = {"", "a=", "b=", "a= b="}
        assert images(disk) == both | {f"{image} d/".strip() for image in both}

    def test_removed_names_may_come_back(self, disk: SimulatedDisk) -> None:
        put(disk, "a")
        disk.mkdir("d")
        disk.sync_dir("")
        disk.unlink("a")
        disk.rmdir("d")
        assert images(disk) == {"a= d/", "a=", "d/", ""}
        disk.sync_dir("")
        assert images(disk) == {""}

    def test_a_link_is_a_name_like_any_other(self, disk: SimulatedDisk) -> None:
        put(disk, "a", b"x", sync=True)
        disk.sync_dir("")
        disk.link("a", "b")
        assert images(disk) == {"a=x", "a=x b=x"}

    def test_unsynced_bytes_differ_independently_from_file_to_file(self, disk: SimulatedDisk) -> None:
        put(disk, "a", b"1")
        put(disk, "b", b"2")
        disk.sync_dir("")
        assert images(disk) == {"a= b=", "a=1 b=", "a= b=2", "a=1 b=2"}


class TestRenames:
    @pytest.fixture
    def renamed(self, disk: SimulatedDisk) -> SimulatedDisk:
        """`tmp` was renamed over `ptr`, both synced before."""
        put(disk, "ptr", b"old", sync=True)
        put(disk, "tmp", b"new", sync=True)
        disk.sync_dir("")
        disk.rename("tmp", "ptr")
        return disk

    @pytest.mark.parametrize("separate", [False, True])
    def test_a_rename_within_a_directory_is_whole_or_lost(self, renamed: SimulatedDisk, separate: bool) -> None:
        assert images(renamed, separate=separate) == {"ptr=old tmp=new", "ptr=new"}
        renamed.sync_dir("")
        assert images(renamed, separate=separate) == {"ptr=new"}

    def test_a_rename_over_a_file_does_not_sync_what_it_renames(self, disk: SimulatedDisk) -> None:
        put(disk, "ptr", b"old", sync=True)
        put(disk, "tmp", b"new")
        disk.sync_dir("")
        disk.rename("tmp", "ptr")
        assert images(disk) == {"ptr=old tmp=", "ptr=old tmp=new", "ptr=", "ptr=new"}

    @pytest.fixture
    def moved(self, disk: SimulatedDisk) -> SimulatedDisk:
        """`s/a` was moved to `t/a`, everything else is synced."""
        disk.mkdir("s")
        disk.mkdir("t")
        disk.sync_dir("")
        put(disk, "s/a", b"x", sync=True)
        disk.sync_dir("s")
        disk.publish("s/a", "t/a")
        return disk

    def test_a_journal_commits_both_sides_of_a_rename_by_either_sync(self, moved: SimulatedDisk) -> None:
        assert images(moved) == {"s/ s/a=x t/", "s/ t/ t/a=x"}
        moved.sync_dir("s")
        assert images(moved) == {"s/ t/ t/a=x"}

    def test_without_a_journal_the_name_may_be_in_both_or_in_neither(self, moved: SimulatedDisk) -> None:
        neither, both = "s/ t/", "s/ s/a=x t/ t/a=x"
        assert images(moved, separate=True) == {neither, both, "s/ s/a=x t/", "s/ t/ t/a=x"}
        moved.sync_dir("t")
        assert images(moved, separate=True) == {both, "s/ t/ t/a=x"}
        moved.sync_dir("s")
        assert images(moved, separate=True) == {"s/ t/ t/a=x"}

    def test_a_disk_may_be_made_without_a_journal(self) -> None:
        disk = SimulatedDisk(renames="separate")
        disk.mkdir("d")
        put(disk, "a")
        disk.sync_dir("")
        disk.rename("a", "d/a")
        disk.sync_dir("d")
        assert {show(image) for image in disk.crash_images()} == {"a= d/ d/a=", "d/ d/a="}
        assert next(disk.crash_images()).hardware.first.renames == "separate"

    def test_a_durable_removal_is_not_undone_by_the_older_creation(self, disk: SimulatedDisk) -> None:
        """`s/a` was created and moved away; the sync of `t` makes the move durable, and with it the creation moot."""
        disk.mkdir("s")
        disk.mkdir("t")
        disk.sync_dir("")
        put(disk, "s/a", b"x", sync=True)
        disk.rename("s/a", "t/a")
        disk.sync_dir("t")
        assert images(disk) == {"s/ t/ t/a=x"}

    def test_what_still_pends_keeps_its_order_when_another_directory_is_synced(self, disk: SimulatedDisk) -> None:
        disk.mkdir("t")
        for name in "xy":
            put(disk, name, name.encode(), sync=True)
        disk.sync_dir("")
        disk.link("x", "p")
        disk.rename("y", "p")
        expected = {"t/ x=x y=y", "p=x t/ x=x y=y", "p=y t/ x=x"}
        assert images(disk) == expected
        put(disk, "t/a", sync=True)
        disk.sync_dir("t")
        assert images(disk) == {image.replace("t/", "t/ t/a=") for image in expected}

    def test_torn_renames_that_close_a_circle_of_directories_end(self, disk: SimulatedDisk) -> None:
        disk.mkdir("a")
        disk.mkdir("a/b")
        disk.sync_dir("a")
        disk.sync_dir("")
        disk.rename("a/b", "b")
        disk.rename("a", "b/a")
        assert "a/ a/b/ b/" in images(disk, separate=True)
        assert any("b/a/b/a/b" in image for image in images(disk, separate=True))

    def test_a_renamed_directory_takes_its_own_pending_entries_along(self, disk: SimulatedDisk) -> None:
        disk.mkdir("d")
        disk.sync_dir("")
        put(disk, "d/a", sync=True)
        disk.rename("d", "e")
        assert images(disk) == {"d/", "d/ d/a=", "e/", "e/ e/a="}


class TestTornBytes:
    @pytest.fixture
    def lines(self, disk: SimulatedDisk) -> SimulatedDisk:
        """A log with one synced line and three that are not."""
        with disk.create("log") as sink:
            disk.sync_dir("")
            write_all(sink, b"0000")
            sink.sync()
            for line in (b"1111", b"2222", b"3333"):
                write_all(sink, line)
        return disk

    def survivors(self, disk: SimulatedDisk, *losses: Loss) -> list[str]:
        return [show(image).removeprefix("log=0000").replace("\0", ".") for image in disk.crash_images(losses=losses)]

    def test_all_or_nothing_is_always_possible(self, lines: SimulatedDisk) -> None:
        assert self.survivors(lines) == ["", "111122223333"]

    def test_a_prefix_of_the_writes(self, lines: SimulatedDisk) -> None:
        assert self.survivors(lines, "prefix") == ["", "1111", "11112222", "111122223333"]

    def test_a_torn_last_write_in_the_middle_and_one_byte_short(self, lines: SimulatedDisk) -> None:
        assert self.survivors(lines, "torn") == ["", "1111222233", "11112222333", "111122223333"]

    def test_the_size_without_the_bytes(self, lines: SimulatedDisk) -> None:
        assert self.survivors(lines, "nul") == ["", "............", "11112222....", "111122223333"]

    def test_an_earlier_write_lost_while_a_later_one_survives(self, lines: SimulatedDisk) -> None:
        assert self.survivors(lines, "hole") == ["", "....22223333", "1111....3333", "111122223333"]

    def test_a_page_lost_in_the_middle_of_one_write(self, disk: SimulatedDisk) -> None:
        page = 4096
        data = b"a" * 100 + b"b" * page + b"c" * page + b"d" * 50
        put(disk, "a", data)
        disk.sync_dir("")
        found = {image.read("a", limit=1 << 20) for image in disk.crash_images(losses=("hole",))}
        assert found == {b"", data, data[:page] + bytes(page) + data[2 * page :], bytes(page) + data[page:]}

    def test_the_losses_of_one_file_are_bounded_however_many_writes_it_has(self, disk: SimulatedDisk) -> None:
        put(disk, "a", *(b"%04d" % i for i in range(1000)))
        disk.sync_dir("")
        assert len(images(disk, losses=("prefix", "torn", "nul", "hole"))) == 12


class TestFailedSyncs:
    def test_a_second_sync_lies(self, disk: SimulatedDisk) -> None:
        with disk.create("a") as sink:
            disk.sync_dir("")
            write_all(sink, b"data")
            disk.hardware.faults = fault_on("sync", EIO)
            with pytest.raises(OSError) as caught:
                sink.sync()
            assert caught.value.errno == errno.EIO
            sink.sync()
            disk.sync_file("a")
        assert disk.read("a", limit=9) == b"data", "the page cache still has it"
        assert images(disk) == {"a=", "a=data"}, "no sync ever makes it durable"

    def test_bytes_that_are_written_again_are_taken_by_the_next_sync(self, disk: SimulatedDisk) -> None:
        with disk.create("a") as sink:
            disk.sync_dir("")
            write_all(sink, b"data")
            disk.hardware.faults = fault_on("sync", EIO)
            with pytest.raises(OSError):
                sink.sync()
        disk.rewrite("a", offset=0, data=disk.read("a", limit=9))
        disk.sync_file("a")
        assert images(disk) == {"a=data"}

    def test_a_page_that_is_written_again_and_lost_reads_as_it_was(self, disk: SimulatedDisk) -> None:
        put(disk, "a", b"old")
        disk.sync_file("a")
        disk.sync_dir("")
        disk.rewrite("a", offset=0, data=b"new!")
        assert images(disk, losses=("nul", "hole")) == {"a=old", "a=old\0", "a=new!"}

    def test_what_a_failed_sync_lost_is_seen_when_the_caches_are_dropped(self, disk: SimulatedDisk) -> None:
        disk.hardware.faults = fault_on("sync_file", EIO)
        put(disk, "a", b"1")
        disk.sync_dir("")
        with pytest.raises(OSError):
            disk.sync_file("a")
        disk.drop_caches()
        assert disk.read("a", limit=9) == b""
        assert images(disk) == {"a="}

    def test_dropping_the_caches_keeps_what_is_dirty(self, disk: SimulatedDisk) -> None:
        put(disk, "a", b"1")
        disk.mkdir("d")
        disk.drop_caches()
        assert show(disk) == "a=1 d/"
        disk.sync_file("a")
        disk.sync_dir("")
        assert images(disk) == {"a=1 d/"}

    def test_bytes_written_after_a_failed_sync_come_behind_a_hole(self, disk: SimulatedDisk) -> None:
        disk.hardware.faults = fault_on("sync", EIO)
        with disk.create("a") as sink:
            disk.sync_dir("")
            write_all(sink, b"1")
            with pytest.raises(OSError):
                sink.sync()
            write_all(sink, b"2")
            sink.sync()
        assert images(disk) == {"a=\x002", "a=12"}

    def test_a_name_whose_directory_sync_failed_is_seen_and_never_made_durable(self, disk: SimulatedDisk) -> None:
        disk.hardware.faults = fault_on("sync_dir", EIO)
        put(disk, "a")
        with pytest.raises(OSError):
            disk.sync_dir("")
        disk.sync_dir("")
        assert images(disk) == {"", "a="}
        disk.drop_caches()
        assert show(disk) == ""

    def test_a_name_that_is_written_again_becomes_durable_after_a_failed_directory_sync(
        self, disk: SimulatedDisk
    ) -> None:
        disk.hardware.faults = fault_on("sync_dir", EIO)
        put(disk, "new1", b"1", sync=True)
        disk.rename("new1", "ptr")
        with pytest.raises(OSError):
            disk.sync_dir("")
        put(disk, "new2", b"2", sync=True)
        disk.rename("new2", "ptr")
        disk.sync_dir("")
        assert images(disk) == {"ptr=2", "new1=1 ptr=2"}

    def test_a_close_that_fails_loses_what_was_not_synced(self, disk: SimulatedDisk) -> None:
        disk.hardware.faults = fault_on("close", Fault(error=errno.EDQUOT))
        with pytest.raises(OSError) as caught:
            put(disk, "a", b"1")
        assert caught.value.errno == errno.EDQUOT
        disk.sync_file("a")
        disk.sync_dir("")
        assert images(disk) == {"a=", "a=1"}

    def test_a_close_that_fails_takes_nothing_that_was_synced(self, disk: SimulatedDisk) -> None:
        disk.hardware.faults = fault_on("close", EIO)
        with pytest.raises(OSError):
            put(disk, "a", b"1", sync=True)
        disk.sync_dir("")
        assert images(disk) == {"a=1"}


class TestKills:
    def test_a_kill_keeps_what_the_page_cache_shows(self, disk: SimulatedDisk) -> None:
        put(disk, "a", b"data")
        assert show(disk.killed()) == "a=data"

    def test_a_power_loss_after_the_kill_still_takes_what_nobody_synced(self, disk: SimulatedDisk) -> None:
        put(disk, "a", b"data")
        left = disk.killed()
        assert images(left) == {"", "a=", "a=data"}
        left.sync_file("a")
        left.sync_dir("")
        assert images(left) == {"a=data"}

    def test_a_kill_frees_every_lock(self, disk: SimulatedDisk) -> None:
        disk.lock("lock")
        disk.killed().lock("lock")

    def test_crashed_disks_share_nothing_with_the_one_they_came_from(self, disk: SimulatedDisk) -> None:
        put(disk, "a", b"1", sync=True)
        disk.sync_dir("")
        (image,) = disk.crash_images()
        for other in (image, disk.killed()):
            other.unlink("a")
            put(other, "b", b"2")
        assert show(disk) == "a=1"
        assert image.trace[0].verb == "unlink"

    def test_a_crash_of_a_crashed_disk_is_a_crash_like_any_other(self, disk: SimulatedDisk) -> None:
        put(disk, "a", b"1", sync=True)
        first = next(disk.crash_images())
        assert show(first) == ""
        put(first, "b", b"2")
        assert images(first) == {"", "b=", "b=2"}
