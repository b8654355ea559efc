"""Errors at every site, short writes, kills, several processes, and the trace that remembers all of it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

import pytest

from milepost.engines.disks import Disk, Stat, write_all
from milepost.engines.simulated import (
    Fault,
    Killed,
    SimulatedDisk,
    Site,
    drawn,
    fault_at,
    fault_on,
    halves,
)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def put(disk: Disk, path: str, data: bytes = b"data") -> None:
    with disk.create(path) as sink:
        write_all(sink, data)


def one_of_each(disk: Disk) -> None:
    """Every verb once; `VERBS` names them in order."""
    disk.mkdir("d")
    with disk.create("d/a") as sink:
        sink.write(b"data")
        sink.sync()
    with disk.open("d/a") as source:
        source.read_into(0, bytearray(4))
    disk.read("d/a", limit=4)
    disk.stat("d/a")
    disk.names("d")
    disk.rewrite("d/a", offset=0, data=b"data")
    disk.sync_file("d/a")
    disk.sync_dir("d")
    disk.link("d/a", "d/b")
    disk.rename("d/a", "d/c")
    disk.publish("d/c", "e")
    disk.unlink("d/b")
    disk.rmdir("d")
    disk.free("")
    disk.lock("lock").release()


VERBS = [
    *("mkdir", "create", "write", "sync", "close", "open", "read_into", "read", "stat", "names"),
    *("rewrite", "sync_file", "sync_dir", "link", "rename", "publish", "unlink", "rmdir", "free", "lock", "release"),
]


class TestFaults:
    def test_every_verb_is_one_operation(self, disk: SimulatedDisk) -> None:
        one_of_each(disk)
        assert [operation.verb for operation in disk.trace] == VERBS

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO], ids=errno.errorcode.get)
    @pytest.mark.parametrize("index", range(len(VERBS)), ids=VERBS)
    def test_any_operation_can_fail_with_any_error(self, disk: SimulatedDisk, index: int, code: int) -> None:
        disk.hardware.faults = fault_at({index: Fault(error=code)})
        with pytest.raises(OSError) as caught:
            one_of_each(disk)
        assert caught.value.errno == code
        assert str(caught.value.filename).startswith("simulated:/")
        failed = disk.trace[index]
        assert (failed.verb, failed.error) == (VERBS[index], code)

    @pytest.mark.parametrize(
        ("verb", "act"),
        [
            ("create", lambda disk: disk.create("new")),
            ("mkdir", lambda disk: disk.mkdir("new")),
            ("link", lambda disk: disk.link("a", "new")),
            ("rename", lambda disk: disk.rename("a", "new")),
            ("publish", lambda disk: disk.publish("a", "new")),
            ("unlink", lambda disk: disk.unlink("a")),
            ("rmdir", lambda disk: disk.rmdir("d")),
            ("lock", lambda disk: disk.lock("new")),
        ],
    )
    @pytest.mark.parametrize("done", [False, True])
    def test_a_failed_change_did_nothing_unless_it_was_done(
        self, disk: SimulatedDisk, verb: str, act: Callable[[Disk], object], done: bool
    ) -> None:
        put(disk, "a")
        disk.mkdir("d")
        before = disk.tree()
        disk.hardware.faults = fault_on(verb, Fault(error=errno.EIO, done=done))
        with pytest.raises(OSError):
            act(disk)
        assert (disk.tree() != before) == done

    def test_a_failed_write_wrote_nothing_and_the_next_one_goes_on(self, disk: SimulatedDisk) -> None:
        disk.hardware.faults = fault_on("write", Fault(error=errno.ENOSPC), nth=2)
        with disk.create("a") as sink:
            write_all(sink, b"1")
            with pytest.raises(OSError):
                write_all(sink, b"2")
            write_all(sink, b"3")
        assert disk.read("a", limit=9) == b"13"

    def test_a_sync_that_failed_though_done_made_its_bytes_durable(self, disk: SimulatedDisk) -> None:
        disk.hardware.faults = fault_on("sync_file", Fault(error=errno.EIO, done=True))
        put(disk, "a")
        disk.sync_dir("")
        with pytest.raises(OSError):
            disk.sync_file("a")
        (image,) = disk.crash_images()
        assert image.tree() == {"": None, "a": b"data"}

    def test_a_fault_can_wait_for_its_path(self, disk: SimulatedDisk) -> None:
        disk.hardware.faults = fault_on("create", Fault(error=errno.ENOSPC), path="b", nth=2)
        put(disk, "a")
        put(disk, "b")
        disk.unlink("b")
        with pytest.raises(OSError):
            disk.create("b")

    def test_an_impossible_operation_fails_by_itself_and_spends_no_fault(self, disk: SimulatedDisk) -> None:
        disk.hardware.faults = fault_on("unlink", Fault(error=errno.EIO))
        with pytest.raises(FileNotFoundError):
            disk.unlink("a")
        put(disk, "a")
        with pytest.raises(OSError) as caught:
            disk.unlink("a")
        assert caught.value.errno == errno.EIO

    def test_free_space_is_what_the_test_says(self, disk: SimulatedDisk) -> None:
        disk.hardware.free_bytes = 17
        assert disk.free("") == 17
        assert disk.killed().free("") == 17

    def test_times_come_from_the_disks_clock(self, disk: SimulatedDisk) -> None:
        def modified(path: str) -> float:
            found = disk.stat(path)
            assert isinstance(found, Stat)
            return found.mtime_s

        disk.hardware.now_s = 100.0
        disk.mkdir("d")
        disk.hardware.now_s = 200.0
        sink = disk.create("d/a")
        disk.hardware.now_s = 300.0
        write_all(sink, b"x")
        assert (modified(""), modified("d"), modified("d/a")) == (100.0, 200.0, 300.0)


class TestShortWrites:
    @pytest.mark.parametrize("rule", [halves, drawn(1), lambda _site, _size: 1])
    def test_a_loop_over_short_writes_writes_all(self, disk: SimulatedDisk, rule: Callable[[Site, int], int]) -> None:
        disk.hardware.short_writes = rule
        put(disk, "a", b"0123456789")
        assert disk.read("a", limit=10) == b"0123456789"
        writes = [operation for operation in disk.trace if operation.verb == "write"]
        assert len(writes) > 1

    def test_a_kill_between_short_writes_leaves_the_part(self, disk: SimulatedDisk) -> None:
        disk.hardware.short_writes = halves
        disk.kill_at = 2
        with pytest.raises(Killed):
            put(disk, "a", b"0123456789")
        assert disk.killed().read("a", limit=10) == b"01234"

    def test_an_empty_write_writes_nothing(self, disk: SimulatedDisk) -> None:
        with disk.create("a") as sink:
            assert sink.write(b"") == 0


class TestProcesses:
    def test_a_process_dies_before_the_operation_it_is_told_to_and_stays_dead(self, disk: SimulatedDisk) -> None:
        writer = disk.process("writer")
        writer.kill_at = 3
        sink = writer.create("a")
        source = writer.open("a")
        write_all(sink, b"1")
        with pytest.raises(Killed, match="writer was killed before operation 3: write a"):
            write_all(sink, b"2")
        assert not writer.alive
        for use in (
            lambda: writer.stat("a"),
            lambda: sink.write(b"2"),
            sink.sync,
            sink.close,
            lambda: source.read_into(0, bytearray(1)),
        ):
            with pytest.raises(Killed):
                use()
        assert disk.read("a", limit=9) == b"1"

    @pytest.mark.parametrize("index", range(len(VERBS)), ids=VERBS)
    def test_a_kill_at_any_operation_leaves_exactly_what_came_before(self, disk: SimulatedDisk, index: int) -> None:
        whole = SimulatedDisk()
        one_of_each(whole)
        disk.kill_at = index
        with pytest.raises(Killed):
            one_of_each(disk)
        assert disk.killed().key() == whole.killed(index).key()

    def test_a_killed_process_frees_its_locks_and_nobody_elses(self, disk: SimulatedDisk) -> None:
        first, second = disk.process("first"), disk.process("second")
        first.lock("mine")
        second.lock("yours")
        with pytest.raises(BlockingIOError):
            second.lock("mine")
        first.kill()
        second.lock("mine")
        with pytest.raises(BlockingIOError):
            disk.lock("yours")

    def test_a_test_can_act_between_any_two_operations(self, disk: SimulatedDisk) -> None:
        """The other writer takes the name just before this one does."""
        first, second = disk.process("first"), disk.process("second")

        def overtake(process: str, verb: str, path: str) -> None:
            if (process, verb, path) == ("first", "publish", "done"):
                disk.hardware.before = None
                second.publish("theirs", "done")

        disk.hardware.before = overtake
        first.mkdir("mine")
        second.mkdir("theirs")
        with pytest.raises(FileExistsError):
            first.publish("mine", "done")
        assert disk.names("") == ("done", "mine")

    def test_a_paused_process_can_be_overtaken_and_goes_on(self, disk: SimulatedDisk) -> None:
        slow, fast = disk.process("slow"), disk.process("fast")
        paused, resume = threading.Event(), threading.Event()

        def pause(process: str, verb: str, _path: str) -> None:
            if (process, verb) == ("slow", "rename"):
                paused.set()
                assert resume.wait(5)

        disk.hardware.before = pause
        put(slow, "tmp1", b"1")
        thread = threading.Thread(target=slow.rename, args=("tmp1", "ptr"))
        thread.start()
        assert paused.wait(5)
        put(fast, "tmp2", b"2")
        fast.rename("tmp2", "ptr")
        assert disk.read("ptr", limit=1) == b"2"
        resume.set()
        thread.join()
        assert disk.read("ptr", limit=1) == b"1"

    def test_a_process_that_is_killed_while_it_is_paused_does_nothing_more(self, disk: SimulatedDisk) -> None:
        writer = disk.process("writer")
        disk.hardware.before = lambda *_site: writer.kill()
        with pytest.raises(Killed):
            writer.mkdir("d")
        assert disk.tree() == {"": None}

    def test_stopping_a_run_from_the_hook_leaves_the_operation_undone(self, disk: SimulatedDisk) -> None:
        class StopRunError(Exception):
            pass

        def stop(_process: str, verb: str, _path: str) -> None:
            if verb == "mkdir":
                raise StopRunError

        disk.hardware.before = stop
        put(disk, "a")
        with pytest.raises(StopRunError):
            disk.mkdir("d")
        assert disk.names("") == ("a",)


class TestTrace:
    def test_marks_stand_between_the_operations_they_follow(self, disk: SimulatedDisk) -> None:
        put(disk, "a")
        disk.mark("acked", 10)
        disk.sync_file("a")
        disk.mark("acked", 20)
        places = [i for i, operation in enumerate(disk.trace) if operation.verb == "mark"]
        assert disk.marks() == (("acked", 10), ("acked", 20))
        assert disk.marks(places[1]) == (("acked", 10),)
        assert disk.marks(places[0]) == ()

    def test_only_prefixes_that_change_something_are_cuts(self, disk: SimulatedDisk) -> None:
        disk.mkdir("d")
        disk.stat("d")
        disk.names("d")
        disk.mark("told")
        with pytest.raises(FileExistsError):
            disk.mkdir("d")
        disk.sync_dir("")
        assert tuple(disk.cuts()) == (0, 1, 4, 6)

    def test_any_prefix_can_be_asked_for_in_any_order(self, disk: SimulatedDisk) -> None:
        for name in "abc":
            put(disk, name)
            disk.sync_dir("")
        lengths = [*disk.cuts()]
        rising = [disk.killed(length).key() for length in lengths]
        falling = [disk.killed(length).key() for length in reversed(lengths)]
        assert rising == falling[::-1]
        with pytest.raises(ValueError, match="no prefix of 99"):
            disk.killed(99)

    def test_the_power_may_go_at_any_prefix_of_the_trace(self, disk: SimulatedDisk) -> None:
        put(disk, "a")
        disk.sync_file("a")
        disk.sync_dir("")
        counts = [sum(1 for _image in disk.crash_images(length)) for length in range(len(disk.trace) + 1)]
        assert counts == [1, 2, 6, 6, 2, 1]

    def test_keys_tell_apart_what_a_crash_could_tell_apart(self, disk: SimulatedDisk) -> None:
        put(disk, "a")
        before = disk.key()
        disk.sync_file("a")
        assert disk.killed().tree() == disk.tree()
        assert disk.key() != before
        twin = SimulatedDisk()
        twin.create("a").close()
        before = twin.key()
        twin.hardware.faults = fault_on("sync_dir", Fault(error=errno.EIO))
        with pytest.raises(OSError):
            twin.sync_dir("")
        assert twin.key() != before, "a sync would have helped before"

    def test_keys_of_equal_disks_are_equal_however_they_became_so(self, disk: SimulatedDisk) -> None:
        put(disk, "a")
        twin = SimulatedDisk()
        put(twin, "b")
        twin.rename("b", "a")
        for either in (disk, twin):
            either.sync_file("a")
            either.sync_dir("")
        assert twin.key() == disk.key()

    def test_the_first_image_has_lost_everything_that_was_not_synced(self, disk: SimulatedDisk) -> None:
        put(disk, "a", b"1")
        disk.sync_dir("")
        for name in "bcdefgh":
            put(disk, name)
        assert next(disk.crash_images()).tree() == {"": None, "a": b""}

    def test_many_images_are_enumerated_quickly(self, disk: SimulatedDisk) -> None:
        """A run of some 150 operations on files of a KiB; the bound is ten times what a slow machine takes."""
        for step in range(12):
            disk.mkdir(f"s{step}")
            with disk.create(f"s{step}/a") as sink:
                for _ in range(3):
                    write_all(sink, bytes(1024))
                sink.sync()
            disk.sync_dir(f"s{step}")
            disk.publish(f"s{step}", f"i{step}")
            put(disk, "tmp", b"%d" % step)
            disk.rename("tmp", "ptr")
            if step % 3 == 2:
                disk.sync_dir("")
        assert len(disk.trace) > 140
        started_s = os.times().user
        images = sum(1 for length in disk.cuts() for _image in disk.crash_images(length))
        assert images > 1000
        assert os.times().user - started_s < images / 1000
