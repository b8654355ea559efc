"""Segments on a disk: who may create, append, sync and rotate, and what a failure in each leaves."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from milepost.engines.disks import Disk, write_all
from milepost.engines.disks.local import LocalDisk
from milepost.engines.logs.segments import SegmentLog
from milepost.engines.simulated import Fault, Killed, SimulatedDisk, fault_on, halves
from milepost.transitions.errors import Fenced, Unavailable


@pytest.fixture(params=["local", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    made: Disk = LocalDisk(tmp_path) if request.param == "local" else SimulatedDisk()
    made.mkdir("journal")
    return made


@pytest.fixture
def machine() -> SimulatedDisk:
    """A simulated disk with a journal's folder that is durable."""
    made = SimulatedDisk()
    made.mkdir("journal")
    made.sync_dir("")
    return made


def content(log: SegmentLog, number: int) -> bytes:
    with log.open(number, stop=log.size(number)) as stream:
        return stream.read()


def test_a_claim_takes_the_number_after_the_highest(disk: Disk) -> None:
    log = SegmentLog(disk)
    assert log.numbers() == ()
    assert [log.claim().number for _ in range(3)] == [1, 2, 3]
    assert log.numbers() == (1, 2, 3)
    assert disk.names("journal") == ("00000001.jsonl", "00000002.jsonl", "00000003.jsonl")


def test_a_journal_that_is_not_there_has_no_segments_and_cannot_be_claimed(tmp_path: Path) -> None:
    log = SegmentLog(LocalDisk(tmp_path))
    assert log.numbers() == ()
    with pytest.raises(Unavailable, match="claim a segment"):
        log.claim()


def test_other_names_in_the_folder_are_somebody_elses(disk: Disk) -> None:
    for name in (
        "fold-cache",
        "lock",
        "1.jsonl",
        "000000001.jsonl",
        "00000007.json",
        "x00000007.jsonl",
        "٠٠٠٠٠٠٠٧.jsonl",
    ):
        disk.create(f"journal/{name}").close()
    disk.create("journal/00000041.jsonl").close()
    disk.create("journal/123456789.jsonl").close()
    log = SegmentLog(disk)
    assert log.numbers() == (41, 123456789)
    assert log.claim().number == 123456790


def test_lines_are_read_back_in_any_window(disk: Disk) -> None:
    log = SegmentLog(disk)
    appender = log.claim()
    appender.append(b"header\n", seq=1)
    appender.sync()
    appender.append(b"line\n", seq=2)
    assert appender.size == log.size(1) == 12
    assert content(log, 1) == b"header\nline\n"
    with log.open(1, start=7, stop=9) as stream:
        assert (stream.readline(1), stream.read()) == (b"l", b"i")
    with log.open(1, start=12, stop=99) as stream:
        assert stream.readline() == b""


def test_short_writes_lose_nothing(machine: SimulatedDisk) -> None:
    machine.hardware.short_writes = halves
    log = SegmentLog(machine)
    log.claim().append(b"a header of some length\n", seq=1)
    assert content(log, 1) == b"a header of some length\n"


def test_synced_says_what_is_durable(disk: Disk) -> None:
    appender = SegmentLog(disk).claim()
    assert appender.synced == 0
    appender.append(b"header\n", seq=5)
    assert appender.synced == 0
    assert appender.sync() == appender.synced == 5
    appender.append(b"a\n", seq=6)
    appender.append(b"b\n", seq=7)
    assert appender.synced == 5
    assert appender.sync() == 7


def test_nothing_follows_a_header_that_is_not_durable(disk: Disk) -> None:
    appender = SegmentLog(disk).claim()
    appender.append(b"header\n", seq=1)
    with pytest.raises(AssertionError, match="a header is durable before"):
        appender.append(b"line\n", seq=2)


def test_a_sync_without_anything_new_asks_nothing_of_the_disk(machine: SimulatedDisk) -> None:
    appender = SegmentLog(machine).claim()
    appender.append(b"header\n", seq=1)
    appender.sync()
    before = len(machine.trace)
    assert appender.sync() == 1
    assert len(machine.trace) == before


def test_appends_go_on_while_a_sync_waits_for_the_disk(machine: SimulatedDisk) -> None:
    syncing, done = threading.Event(), threading.Event()
    appender = SegmentLog(machine).claim()
    appender.append(b"header\n", seq=1)

    def hold(_process: str, verb: str, _path: str) -> None:
        if verb == "sync":
            syncing.set()
            assert done.wait(10)

    appender.sync()
    machine.hardware.before = hold
    appender.append(b"a\n", seq=2)
    waiting = threading.Thread(target=appender.sync)
    waiting.start()
    assert syncing.wait(10)
    appender.append(b"b\n", seq=3)
    done.set()
    waiting.join(10)
    assert appender.synced == 2
    assert appender.sync() == 3


def test_what_was_synced_survives_a_power_loss_and_a_claimed_name_does(machine: SimulatedDisk) -> None:
    appender = SegmentLog(machine).claim()
    claimed = len(machine.trace)
    appender.append(b"header\n", seq=1)
    appender.sync()
    synced = len(machine.trace)
    appender.append(b"line\n", seq=2)
    assert {SegmentLog(image).numbers() for image in machine.crash_images(claimed)} == {(1,)}
    assert {content(SegmentLog(image), 1) for image in machine.crash_images(synced)} == {b"header\n"}
    after = {content(SegmentLog(image), 1) for image in machine.crash_images()}
    assert {b"header\n", b"header\nline\n"} < after
    assert all(found.startswith(b"header\n") for found in after)


def test_resync_makes_a_killed_writers_tail_durable_in_the_order_given(machine: SimulatedDisk) -> None:
    log = SegmentLog(machine)
    for _ in range(2):
        log.claim().append(b"header\n", seq=1)
    machine.kill()
    after = machine.killed()
    assert b"" in {content(SegmentLog(image), 1) for image in after.crash_images()}
    SegmentLog(after).resync((2, 1), ())
    assert [op.path for op in after.trace if op.verb == "sync_file"] == [f"journal/0000000{n}.jsonl" for n in (2, 1)]
    for image in after.crash_images():
        assert [content(SegmentLog(image), n) for n in (1, 2)] == [b"header\n", b"header\n"]


# --- two writers -------------------------------------------------------------------------------


def test_a_writer_is_fenced_by_its_successor_and_by_nothing_else(disk: Disk) -> None:
    log = SegmentLog(disk)
    first = log.claim()
    assert not first.fenced()
    disk.create("journal/00000003.jsonl").close()
    assert not first.fenced()
    disk.create("journal/00000002.jsonl").close()
    assert first.fenced()
    fourth = log.claim()
    assert (fourth.number, fourth.fenced()) == (4, False)


def test_two_openers_at_once_get_different_segments(machine: SimulatedDisk) -> None:
    rival = machine.process("rival")

    def overtake(process: str, verb: str, _path: str) -> None:
        if (process, verb) == ("main", "create"):
            machine.hardware.before = None
            assert SegmentLog(rival).claim().number == 1

    machine.hardware.before = overtake
    assert SegmentLog(machine).claim().number == 2


def test_rotation_goes_on_in_the_next_segment_and_everything_before_it_is_durable(machine: SimulatedDisk) -> None:
    log = SegmentLog(machine)
    appender = log.claim()
    appender.append(b"header\n", seq=1)
    appender.sync()
    appender.append(b"line\n", seq=2)
    appender.rotate(b"next\n", seq=3)
    assert (appender.number, appender.size, appender.synced) == (2, 5, 3)
    for image in machine.crash_images():
        found = SegmentLog(image)
        assert [content(found, n) for n in found.numbers()] == [b"header\nline\n", b"next\n"]
    appender.append(b"more\n", seq=4)
    assert (appender.sync(), appender.fenced()) == (4, False)


def test_no_power_loss_during_a_rotation_leaves_a_header_without_what_it_closes(machine: SimulatedDisk) -> None:
    appender = SegmentLog(machine).claim()
    appender.append(b"header\n", seq=1)
    appender.sync()
    appender.append(b"line\n", seq=2)
    appender.rotate(b"next\n", seq=3)
    for cut in machine.cuts():
        for image in machine.crash_images(cut):
            log = SegmentLog(image)
            if 2 in log.numbers() and content(log, 2) == b"next\n":
                assert content(log, 1) == b"header\nline\n"


def test_a_rotation_into_a_segment_that_exists_is_fenced_and_ends_the_writer(disk: Disk) -> None:
    log = SegmentLog(disk)
    appender = log.claim()
    appender.append(b"header\n", seq=1)
    appender.sync()
    log.claim()
    with pytest.raises(Fenced, match="segment 2"):
        appender.rotate(b"next\n", seq=2)
    with pytest.raises(Fenced, match="records nothing more"):
        appender.append(b"line\n", seq=2)
    assert content(log, 2) == b""


def test_a_segment_has_room_for_one_line_and_then_up_to_its_size(disk: Disk) -> None:
    appender = SegmentLog(disk, segment_bytes=12).claim()
    assert appender.has_room(100)
    appender.append(b"header\n", seq=1)
    appender.sync()
    assert appender.has_room(100)
    appender.append(b"a\n", seq=2)
    assert appender.has_room(3)
    assert not appender.has_room(4)
    appender.rotate(b"header\n", seq=3)
    assert appender.has_room(100)


# --- failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "error"), [("write", errno.ENOSPC), ("write", errno.EIO), ("sync", errno.EIO), ("sync", errno.EDQUOT)]
)
def test_a_failed_append_or_sync_poisons_the_writer(machine: SimulatedDisk, verb: str, error: int) -> None:
    log = SegmentLog(machine)
    appender = log.claim()
    appender.append(b"header\n", seq=1)
    appender.sync()
    machine.hardware.faults = fault_on(verb, Fault(error=error))
    with pytest.raises(Unavailable, match="what was acknowledged before is safe"):
        appender.append(b"line\n", seq=2)
        appender.sync()
    before = len(machine.trace)
    for again in (lambda: appender.append(b"more\n", seq=3), appender.sync, lambda: appender.rotate(b"n\n", seq=3)):
        with pytest.raises(Unavailable, match="records nothing more"):
            again()
    assert len(machine.trace) == before
    assert appender.synced == 1


@pytest.mark.parametrize("verb", ["create", "sync_dir", "write", "sync", "close"])
def test_a_failed_rotation_poisons_the_writer(machine: SimulatedDisk, verb: str) -> None:
    appender = SegmentLog(machine).claim()
    appender.append(b"header\n", seq=1)
    appender.sync()
    machine.hardware.faults = fault_on(verb, Fault(error=errno.EIO))
    with pytest.raises(Unavailable):
        appender.rotate(b"next\n", seq=2)
    with pytest.raises(Unavailable, match="records nothing more"):
        appender.append(b"line\n", seq=2)


def test_an_interrupted_append_poisons_the_writer(machine: SimulatedDisk) -> None:
    def interrupt(_process: str, verb: str, _path: str) -> None:
        if verb == "write":
            raise KeyboardInterrupt

    appender = SegmentLog(machine).claim()
    machine.hardware.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        appender.append(b"header\n", seq=1)
    machine.hardware.before = None
    with pytest.raises(Unavailable, match="records nothing more"):
        appender.append(b"header\n", seq=1)


def test_a_killed_writer_does_nothing_more(machine: SimulatedDisk) -> None:
    appender = SegmentLog(machine).claim()
    appender.append(b"header\n", seq=1)
    machine.kill()
    with pytest.raises(Killed):
        appender.sync()


@pytest.mark.parametrize("verb", ["names", "create", "sync_dir"])
def test_a_claim_that_fails_is_unavailable(machine: SimulatedDisk, verb: str) -> None:
    machine.hardware.faults = fault_on(verb, Fault(error=errno.EIO))
    with pytest.raises(Unavailable, match=r"cannot (claim|list)"):
        SegmentLog(machine).claim()
    assert SegmentLog(machine).claim().number == (2 if verb == "sync_dir" else 1)


@pytest.mark.parametrize("verb", ["open", "read_into", "sync_file"])
def test_a_disk_that_cannot_be_read_is_unavailable(machine: SimulatedDisk, verb: str) -> None:
    log = SegmentLog(machine)
    write_all(machine.create("journal/00000009.jsonl"), b"line\n")
    machine.hardware.faults = fault_on(verb, Fault(error=errno.EIO))
    with pytest.raises(Unavailable):
        content(log, 9)
        log.resync((9,), ())


def test_a_fence_that_cannot_be_looked_at_is_unavailable(machine: SimulatedDisk) -> None:
    log = SegmentLog(machine)
    appender = log.claim()
    log.claim()
    machine.hardware.faults = fault_on("stat", Fault(error=errno.EIO))
    with pytest.raises(Unavailable, match="look for segment 2"):
        appender.fenced()


def test_closing_twice_is_harmless(disk: Disk) -> None:
    appender = SegmentLog(disk).claim()
    appender.close()
    appender.close()


def test_a_look_for_a_successor_does_not_take_ones_own_next_segment_for_one(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SegmentLog(disk)
    appender = log.claim()
    appender.append(b"header\n", seq=1)
    appender.sync()
    seen: list[bool] = []
    looking = threading.Thread(target=lambda: seen.append(appender.fenced()))
    create = log.create

    def created(number: int) -> object:
        sink = create(number)
        looking.start()  # the writer's thread, while the loop's goes on in the next segment
        looking.join(timeout=0.05)
        return sink

    monkeypatch.setattr(log, "create", created)
    appender.rotate(b"next\n", seq=2)
    looking.join()
    assert seen == [False]
