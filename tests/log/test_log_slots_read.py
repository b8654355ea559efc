"""The log in a bucket, as it is read: where it ends, what is refused, and how few requests that takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from attrs import evolve

from milepost.engines.logs.batches import pack, unpack
from milepost.engines.logs.slots import CACHE_BYTES, SlotLog
from milepost.engines.simulated.bucket import SimulatedBucket, StoreFault
from milepost.engines.simulated.cloud import Cloud
from milepost.journal.log.damage import Damaged
from milepost.journal.log.replay import fold, replay
from milepost.transitions.errors import Corrupt, NewerVersion
from milepost.transitions.values import Witness
from tests.log.slots import Writer, a_newer_mileposts, heads, long_log, named, reheaded, replaced, slots

# --- where the log ends --------------------------------------------------------------------------------------


def test_the_end_is_found_wherever_it_is_and_a_stale_listing_changes_nothing() -> None:
    lines = long_log(33).tree()
    keys = sorted(lines)
    for count, lag in itertools.product(range(34), (0, 1 << 30)):
        bucket = SimulatedBucket()
        for key in keys[:count]:
            bucket.create(key, lines[key], deadline_s=0.0)
        bucket.store.listing_lag = lag
        assert len(bucket.keys("journal/")) == (0 if lag else count)
        folded = fold(SlotLog(bucket, nonce=named("r")))
        assert folded.head.seq == folded.entries == count
        if count:
            told = Writer(bucket, "w").open()
            assert (told.seq, slots(bucket)[-1]) == (count + 1, count + 1)


def test_slots_that_appear_while_the_end_is_looked_for_are_found() -> None:
    bucket = SimulatedBucket()
    writer = Writer(bucket.process("w"), "w")
    writer.open()

    def meanwhile(process: str, verb: str, _key: str) -> None:
        if (process, verb) == ("main", "list") and writer.chain.head.seq < 20:
            writer.train(1)
            writer.acknowledge()

    bucket.store.before = meanwhile
    log = SlotLog(bucket, nonce=named("r"))
    assert log.numbers() == (1,)
    assert fold(log).head.seq == writer.chain.head.seq >= 20


@pytest.mark.parametrize("missing", range(1, 13))
def test_a_slot_that_is_missing_before_the_end_is_refused(missing: int) -> None:
    bucket = long_log(13)
    bucket.delete(f"journal/{missing:020d}.json")
    with pytest.raises(Corrupt, match=f"{missing:020d}.json: expected a batch of the journal, found nothing"):
        fold(SlotLog(bucket, nonce=named("r")))
    before = bucket.tree()
    with pytest.raises(Corrupt):
        Writer(bucket, "w").open()
    assert bucket.tree() == before


@pytest.mark.parametrize("missing", [1, 3, 7, 11])
def test_a_gap_that_looks_like_the_end_is_refused_before_anything_is_read(missing: int) -> None:
    bucket = long_log(13)
    bucket.delete(f"journal/{missing:020d}.json")
    with pytest.raises(Corrupt, match=f"{missing:020d}.json.* while journal/{missing + 1:020d}.json is there"):
        SlotLog(bucket, nonce=named("r")).numbers()
    assert {request.verb for request in bucket.trace} == {"delete", "fetch", "head", "list"}
    assert [request.key for request in bucket.trace if request.verb == "fetch"] == ["journal/slot-cache"]


def test_a_last_slot_that_is_missing_is_known_to_a_witness() -> None:
    bucket = long_log(9)
    told = heads(bucket)
    bucket.delete(f"journal/{9:020d}.json")
    with pytest.raises(Damaged, match="lost-head"):
        fold(SlotLog(bucket, nonce=named("r")), witnesses={"iter_1": told[-1]})


# --- what is damaged -----------------------------------------------------------------------------------------


def test_any_changed_byte_is_refused_in_the_last_slot_too() -> None:
    whole = long_log(4).tree()
    for slot in (1, 3, 4):
        key = f"journal/{slot:020d}.json"
        for at in range(0, len(whole[key]), 7 if slot < 4 else 1):
            changed = bytearray(whole[key])
            changed[at] ^= 1 << at % 8
            bucket = replaced(long_log(4), key, bytes(changed))
            with pytest.raises((Corrupt, NewerVersion), match=key):
                fold(SlotLog(bucket, nonce=named("r")))


def test_a_slot_that_was_cut_copied_or_is_another_logs_is_refused() -> None:
    whole, key = long_log(5).tree(), f"journal/{4:020d}.json"
    other = SimulatedBucket()
    writer = Writer(other, "other")
    writer.open()
    for _ in range(4):
        writer.train(1)
        writer.acknowledge()
    for data in (b"", whole[key][:-1], whole[key][:40], whole[f"journal/{3:020d}.json"], other.tree()[key]):
        with pytest.raises(Corrupt, match=key):
            fold(SlotLog(replaced(long_log(5), key, data), nonce=named("r")))
    last = f"journal/{5:020d}.json"
    with pytest.raises(Corrupt, match=f"{last}: expected the batch of slot 5, found the batch of slot 3"):
        fold(SlotLog(replaced(long_log(5), last, whole[f"journal/{3:020d}.json"]), nonce=named("r")))


def test_a_batch_that_names_another_segment_than_its_neighbours_is_refused() -> None:
    bucket = long_log(3)
    batch = unpack(bucket.tree()[f"journal/{3:020d}.json"])
    assert batch is not None
    for wrong in (evolve(batch.place, first=2), evolve(batch.place, segment=2, first=2)):
        key = f"journal/{3:020d}.json"
        with pytest.raises(Corrupt, match=r"expected .* segment [12], found the batch of slot [12]"):
            fold(SlotLog(replaced(long_log(3), key, pack(wrong, [bytes(batch.lines)]).raw), nonce=named("r")))


def test_a_batch_of_a_newer_milepost_is_called_that() -> None:
    bucket, key = long_log(3), f"journal/{3:020d}.json"
    replaced(bucket, key, a_newer_mileposts(bucket.tree()[key]))
    with pytest.raises(NewerVersion, match=f"{key}: .* of version 2; this milepost knows version 1"):
        heads(bucket)


def test_a_first_line_that_no_writer_makes_is_refused_although_its_sum_is_right() -> None:
    key = f"journal/{3:020d}.json"
    raw = long_log(3).tree()[key]
    for old, new in ((b'"size":', b'"size":1'), (b'"segment":1', b'"segment":"1"'), (b'"v":1', b'"v":1,"more":1')):
        with pytest.raises(Corrupt, match=f"{key}: expected a batch of the journal as it was written"):
            fold(SlotLog(replaced(long_log(3), key, reheaded(raw, old, new)), nonce=named("r")))
    log = SlotLog(
        replaced(long_log(3), key, reheaded(raw, b'"segment":1,"first":1', b'"segment":3,"first":3')),
        nonce=named("r"),
    )
    assert log.numbers() == (1, 2, 3)
    with pytest.raises(Corrupt, match="expected the end of segment 2, found the batch of slot 2, segment 1"):
        log.size(2)


# --- few requests --------------------------------------------------------------------------------------------


def requests(bucket: SimulatedBucket, do: Callable[[], object]) -> list[str]:
    """The verbs of what `do` asks of the store."""
    before = len(bucket.trace)
    do()
    return [request.verb for request in bucket.trace[before:]]


def test_ten_thousand_entries_take_few_requests_to_find_the_end_and_few_to_open_through_the_cache() -> None:
    bucket = long_log(10_000)
    reader = SlotLog(bucket, nonce=named("r"))
    asked = requests(bucket, reader.numbers)
    assert asked == ["fetch", *["head"] * 27, "list", "fetch"]  # no cache; the end; the last slot
    middle = reader.size(1) // 2
    with reader.open(1, start=middle, stop=middle + 1) as stream:
        assert len(requests(bucket, stream.read)) <= 15
    with reader.open(1, stop=reader.size(1)) as stream:
        assert sum(1 for _ in stream) == 10_000
    assert requests(bucket, reader.keep) == ["put"]
    assert requests(bucket, reader.keep) == []
    writer = Writer(bucket, "w")
    asked = requests(bucket, writer.open)
    assert asked == [
        *("fetch", "fetch", "head", "list"),  # claim: the cache, its last slot, the end
        *("head", "list"),  # fold: the end, as it is now
        *("put", "head"),  # the header, and whether there is a successor
    ]
    end = writer.folded.end
    assert (writer.folded.entries, end.head.seq, end.offset) == (10_000, 10_000, reader.size(1))
    writer.train(1)
    writer.acknowledge()
    assert requests(bucket, writer.log.keep) == ["put"]
    assert requests(bucket, SlotLog(bucket, nonce=named("r")).numbers) == ["fetch", "fetch", "head", "list"]


def test_a_cache_that_is_late_spares_what_it_has_and_one_that_does_not_fit_is_passed_over() -> None:
    bucket = long_log(20)
    log = SlotLog(bucket, nonce=named("r"))
    told = [Witness(seq=entry.seq, sum=entry.sum) for entry, _ in replay(log)]
    log.keep()
    kept = bucket.tree()["journal/slot-cache"]
    writer = Writer(bucket, "w")
    writer.open()
    writer.train(2)
    told.append(writer.acknowledge())
    late = SlotLog(bucket, nonce=named("r"))
    asked = requests(bucket, lambda: fold(late))
    assert asked.count("fetch") < 8  # of 22 slots
    other = long_log(30)
    foreign = SlotLog(replaced(other, f"journal/{20:020d}.json", b"x"), nonce=named("r"))
    for bad in (b"", b"{", kept[:-1], kept[1:], kept.replace(b"u", b"v"), kept + kept, kept + b"rest\n"):
        replaced(bucket, "journal/slot-cache", bad)
        found = heads(bucket)
        assert (found[:20], found[-1]) == (told[:20], told[-1])
    other.create("journal/slot-cache", kept, deadline_s=0.0)
    with pytest.raises(Corrupt, match=f"{20:020d}.json"):
        fold(foreign)


def test_a_cache_of_another_log_is_not_believed() -> None:
    bucket, other = SimulatedBucket(), long_log(6)
    for target in (bucket, other):
        log = SlotLog(target, nonce=named("r"))
        fold(log)
        if target is other:
            log.keep()
    writer = Writer(bucket, "w")
    told = [writer.open()]
    for _ in range(6):
        writer.train(1)
        told.append(writer.acknowledge())
    bucket.create("journal/slot-cache", other.tree()["journal/slot-cache"], deadline_s=0.0)
    assert set(told) <= set(heads(bucket))
    assert heads(bucket)[-1] == told[-1]


def test_a_cache_that_is_too_large_or_knows_slots_that_are_gone_is_passed_over() -> None:
    bucket = long_log(9)
    log = SlotLog(bucket, nonce=named("r"))
    fold(log)
    log.keep()
    objects = bucket.store.cloud.objects
    large = objects.insert("journal/slot-cache", bytes(CACHE_BYTES + 1))
    assert len(heads(SimulatedBucket(Cloud(objects=large)))) == 9
    bucket.delete(f"journal/{9:020d}.json")
    assert len(heads(bucket)) == 8


def test_a_cache_ends_where_it_would_be_too_large() -> None:
    bucket = long_log(20)
    size = sum(len(bucket.tree()[f"journal/{slot:020d}.json"]) for slot in range(1, 13))
    log = SlotLog(bucket, nonce=named("r"), cache_bytes=size)
    plain = fold(log)
    log.keep()
    assert len(bucket.tree()["journal/slot-cache"]) == size
    again = SlotLog(bucket, nonce=named("r"), cache_bytes=size)
    assert fold(again).state == plain.state
    assert requests(bucket, again.keep) == []


def test_two_who_keep_a_cache_do_not_hinder_each_other() -> None:
    bucket = long_log(8)
    one, two = SlotLog(bucket, nonce=named("one")), Writer(bucket, "two")
    fold(one)
    two.open()
    two.train(1)
    told = two.acknowledge()
    one.keep()
    held = bucket.tree()["journal/slot-cache"]
    for status in (503, 403):
        bucket.store.faults = lambda _site, status=status: StoreFault(status=status)
        two.log.keep()
        bucket.store.faults = lambda _site: None
        assert bucket.tree()["journal/slot-cache"] == held
    two.log.keep()  # learns that there is another's
    two.log.keep()
    assert bucket.tree()["journal/slot-cache"].startswith(held)
    assert requests(bucket, two.log.keep) == []
    fresh = SlotLog(bucket, nonce=named("r"))
    assert requests(bucket, fresh.numbers) == ["fetch", "fetch", "head", "list"]
    assert fold(fresh).head.seq == told.seq
