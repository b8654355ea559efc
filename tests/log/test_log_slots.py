"""The log in a bucket: who takes which slot, who is busy, who is fenced, and a driver that writes to it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from milepost.engines.ambient import SystemAmbient
from milepost.engines.buckets.opening import open_bucket
from milepost.engines.logs.batches import unpack
from milepost.engines.logs.slots import SlotLog
from milepost.engines.logs.taking import BATCH_BYTES
from milepost.engines.simulated.bucket import SimulatedBucket, StoreFault
from milepost.journal.log.replay import fold, replay
from milepost.transitions.errors import Busy, Fenced, Unavailable
from milepost.transitions.run import RunOpened, SegmentOpened
from tests.buckets.servers import SeaweedFS
from tests.log.slots import Writer, a_newer_mileposts, heads, named, replaced, slots

# --- one writer after another --------------------------------------------------------------------------------


def test_a_batch_is_one_object_and_slots_have_no_gap() -> None:
    bucket = SimulatedBucket()
    writer = Writer(bucket, "a")
    writer.open()
    writer.train(3)
    assert slots(bucket) == [1]
    told = writer.acknowledge()
    assert slots(bucket) == [1, 2]
    assert writer.acknowledge() == told
    assert slots(bucket) == [1, 2]
    batch = unpack(bucket.tree()["journal/00000000000000000002.json"])
    assert batch is not None
    assert bytes(batch.lines).count(b"\n") == 7
    assert heads(bucket)[-1] == told


def test_a_line_that_was_not_synced_is_not_there() -> None:
    bucket = SimulatedBucket()
    writer = Writer(bucket, "a")
    told = writer.open()
    writer.train(1)
    assert writer.appender.synced == told.seq
    writer.appender.close()
    writer.appender.close()
    assert heads(bucket) == [told]
    with pytest.raises(Unavailable, match="closed"):
        writer.acknowledge()


def test_a_segment_is_one_writers_run_of_slots_and_its_successors_header_closes_it() -> None:
    bucket = SimulatedBucket()
    for name, batches in (("a", 3), ("b", 1), ("c", 2)):
        writer = Writer(bucket, name)
        writer.open()
        for _ in range(batches):
            writer.train(1)
            writer.acknowledge()
    log = SlotLog(bucket, nonce=named("r"))
    assert log.numbers() == (1, 2, 3)
    headers = [entry.records for entry, _ in replay(log) if isinstance(entry.records[0], SegmentOpened)]
    closed = [first.closes for first, *_ in headers if isinstance(first, SegmentOpened)]
    assert [len(closes) for closes in closed] == [0, 1, 1]
    assert [(one.number, one.length, one.left) for (one,) in closed[1:]] == [(1, log.size(1), 0), (2, log.size(2), 0)]
    assert [second.epoch for _, second in headers if isinstance(second, RunOpened)] == [1, 2, 3]
    assert fold(log).state.run.epoch == 3


def test_a_segment_is_read_in_any_window() -> None:
    bucket = SimulatedBucket()
    for name in ("a", "b"):
        appender = SlotLog(bucket, nonce=named(name)).claim()
        for seq, line in enumerate((b"header\n", b"one\n", b"two\nthree\n"), start=1):
            appender.append(line, seq=seq)
            appender.sync()
    whole = b"header\none\ntwo\nthree\n"
    log = SlotLog(bucket, nonce=named("r"))
    assert log.numbers() == (1, 2)
    for number, start, stop in itertools.product((1, 2), range(len(whole) + 1), range(len(whole) + 3)):
        with log.open(number, start=start, stop=stop) as stream:
            assert stream.read() == whole[start:stop], (number, start, stop)
    assert [log.size(number) for number in (1, 2)] == [len(whole)] * 2


def test_a_rotation_begins_a_segment_in_the_next_slot() -> None:
    bucket = SimulatedBucket()
    appender = SlotLog(bucket, nonce=named("a")).claim()
    appender.append(b"header\n", seq=1)
    appender.sync()
    appender.append(b"line\n", seq=2)
    appender.rotate(b"next\n", seq=3)
    assert (appender.number, appender.size, appender.synced, slots(bucket)) == (2, 5, 3, [1, 2, 3])
    appender.append(b"more\n", seq=4)
    appender.sync()
    log = SlotLog(bucket, nonce=named("r"))
    assert [log.size(number) for number in log.numbers()] == [12, 10]
    with log.open(2, stop=10) as stream:
        assert stream.read() == b"next\nmore\n"


def test_more_than_fits_a_slot_goes_to_several_and_counts_when_all_are_there() -> None:
    bucket = SimulatedBucket()
    appender = SlotLog(bucket, nonce=named("a")).claim()
    appender.append(b"header\n", seq=1)
    appender.sync()
    size = BATCH_BYTES // 4
    for seq in range(2, 8):
        appender.append(bytes([64 + seq]) * (size - 1) + b"\n", seq=seq)
    assert appender.sync() == 7
    assert slots(bucket) == [1, 2, 3]
    log = SlotLog(bucket, nonce=named("r"))
    log.numbers()
    with log.open(1, start=7, stop=appender.size) as stream:
        assert [line[:1] for line in stream] == [b"B", b"C", b"D", b"E", b"F", b"G"]


# --- two writers ---------------------------------------------------------------------------------------------


def test_of_two_that_open_at_once_the_second_is_busy_and_changes_nothing() -> None:
    bucket = SimulatedBucket()
    one, two = Writer(bucket.process("one"), "one"), Writer(bucket.process("two"), "two")
    one.look()
    two.look()
    told = one.begin()
    tree = bucket.tree()
    with pytest.raises(Busy, match=r"slot 1 .*another writer \(one-1, segment 1\).*being written") as refused:
        two.begin()
    assert not isinstance(refused.value, Fenced)
    assert two.appender.fenced()
    assert bucket.tree() == tree
    one.train(1)
    assert one.acknowledge().seq > told.seq


def test_who_opens_beside_a_writer_that_is_alive_is_busy() -> None:
    bucket = SimulatedBucket()
    alive, other = Writer(bucket.process("alive"), "alive"), Writer(bucket.process("other"), "other")
    alive.open()
    other.look()
    alive.train(1)
    alive.acknowledge()
    with pytest.raises(Busy, match="slot 2"):
        other.begin()
    alive.train(1)
    alive.acknowledge()


def test_what_a_live_writer_appends_between_a_claim_and_its_reading_makes_the_opener_busy() -> None:
    bucket = SimulatedBucket()
    alive, other = Writer(bucket.process("alive"), "alive"), Writer(bucket.process("other"), "other")
    alive.open()
    other.appender = other.log.claim()
    alive.train(1)
    told = alive.acknowledge()
    other.folded = fold(other.log, below=other.appender.number)
    assert other.folded.head.seq == told.seq
    with pytest.raises(Busy, match="slot 2"):
        other.begin()
    assert heads(bucket)[-1] == told


@pytest.mark.parametrize("with_lines", [True, False], ids=["with lines to sync", "with nothing to sync"])
def test_an_overtaken_writer_is_fenced_at_its_next_barrier(with_lines: bool) -> None:
    bucket = SimulatedBucket()
    old, new = Writer(bucket.process("old"), "old"), Writer(bucket.process("new"), "new")
    old.open()
    old.train(1)
    old.acknowledge()
    told = new.open()
    tree = bucket.tree()
    if with_lines:
        old.train(1)
    with pytest.raises(Fenced):
        old.acknowledge()
    assert bucket.tree() == tree
    assert heads(bucket)[-1] == told
    if with_lines:
        with pytest.raises(Fenced, match=r"new-1.*earlier failure"):
            old.append(b"more\n")
        assert old.appender.fenced()


def test_a_paused_writer_that_wakes_after_it_was_overtaken_changes_nothing() -> None:
    """It is held before the very request that would take the slot, and comes back when its successor has gone on."""
    bucket = SimulatedBucket()
    old = Writer(bucket.process("old"), "old")
    old.open()
    old.train(1)
    new = Writer(bucket.process("new"), "new")

    def meanwhile(process: str, verb: str, _key: str) -> None:
        if (process, verb) == ("old", "put"):
            bucket.store.before = None
            new.open()
            new.train(2)
            new.acknowledge()

    bucket.store.before = meanwhile
    with pytest.raises(Fenced):
        old.acknowledge()
    assert new.appender.number == 2
    assert {entry.epoch for entry, _ in replay(SlotLog(bucket, nonce=named("r")))} == {1, 2}
    assert slots(bucket) == [1, 2, 3]
    new.train(1)
    new.acknowledge()


def test_equal_lines_of_two_writers_are_not_taken_for_ones_own() -> None:
    bucket = SimulatedBucket()
    one, two = (SlotLog(bucket.process(name), nonce=named(name)).claim() for name in ("one", "two"))
    for appender in (one, two):
        appender.append(b"the same header\n", seq=1)
    one.sync()
    with pytest.raises(Busy):
        two.sync()


def test_a_slot_that_a_newer_milepost_took_overtakes_as_well() -> None:
    bucket = SimulatedBucket()
    old, new = Writer(bucket.process("old"), "old"), Writer(bucket.process("new"), "new")
    old.open()
    new.open()
    key = f"journal/{2:020d}.json"
    replaced(bucket, key, a_newer_mileposts(bucket.tree()[key]))
    old.train(1)
    for _ in range(2):
        with pytest.raises(Fenced, match="slot 2 of the journal was taken by an object"):
            old.acknowledge()


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    if reason := SeaweedFS.unavailable():
        pytest.skip(reason)
    with SeaweedFS(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.mark.services
def test_two_writers_on_a_real_store_are_told_apart(seaweedfs: SeaweedFS) -> None:
    one, two, three = (
        Writer(
            open_bucket(
                seaweedfs.bucket, prefix="slots/", credentials=seaweedfs.credentials(), ambient=SystemAmbient()
            ),
            name,
        )
        for name in ("one", "two", "three")
    )
    one.open()
    one.train(2)
    one.acknowledge()
    two.look()
    three.look()
    told = two.begin()
    with pytest.raises(Busy, match="slot 3"):
        three.begin()
    one.train(1)
    with pytest.raises(Fenced, match="slot 3"):
        one.acknowledge()
    two.log.keep()
    assert (three.look().head.seq, three.folded.head.sum) == (told.seq, told.sum)


# --- threads -------------------------------------------------------------------------------------------------


def test_lines_are_appended_while_a_batch_is_under_way_and_ones_own_batch_is_no_successor() -> None:
    bucket = SimulatedBucket()
    writer = Writer(bucket.process("a"), "a")
    writer.open()
    first = writer.chain.head.seq
    under_way, go_on = threading.Event(), threading.Event()

    def hold(_process: str, verb: str, _key: str) -> None:
        if verb == "fetch":  # the batch is there, and its writer does not know yet
            under_way.set()
            assert go_on.wait(20)

    bucket.store.before = hold
    bucket.store.faults = lambda site: StoreFault(applied="yes") if site.verb == "put" else None
    synced: list[int] = []
    overtaken: list[bool] = []
    syncing = threading.Thread(target=lambda: synced.append(writer.appender.sync()))
    syncing.start()
    assert under_way.wait(20)
    assert slots(bucket) == [1, 2]
    looking = threading.Thread(target=lambda: overtaken.append(writer.appender.fenced()))
    looking.start()
    writer.train(1)
    assert writer.appender.synced < first
    looking.join(0.1)  # it waits for the batch, or is wrong at once
    go_on.set()
    syncing.join()
    looking.join()
    assert (synced, overtaken) == ([first], [False])
    assert writer.appender.sync() == first + 2
