"""The log in a bucket: whatever a crash or an unclear answer leaves, what was told is kept."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Literal

import pytest

from milepost.engines.simulated import Site
from milepost.engines.simulated.bucket import SimulatedBucket, StoreFault
from milepost.transitions.errors import Busy, MilepostError, Unavailable
from milepost.transitions.values import Witness
from tests.log.chains import opened
from tests.log.slots import Writer, heads, open_at_last, slots


def history(bucket: SimulatedBucket) -> None:
    """Two writers, the second of which takes over from the first, which does not know it. Marks what was told."""
    old, new = Writer(bucket.process("old"), "old"), Writer(bucket.process("new"), "new")
    bucket.mark(old.open())
    for _ in range(2):
        old.train(1)
        bucket.mark(old.acknowledge())
    old.train(1)
    bucket.mark(new.open())
    try:
        bucket.mark(old.acknowledge())
    except MilepostError:
        with pytest.raises(MilepostError):
            old.put(opened(9))
    new.train(1)
    bucket.mark(new.acknowledge())


def keeps_what_was_told(bucket: SimulatedBucket, told: list[Witness]) -> None:
    """A recovery finds all of it, goes on behind it, and is not disturbed by what arrives late."""
    writer = open_at_last(bucket, "next")
    found = heads(bucket)
    assert set(told) <= set(found)
    assert slots(bucket) == list(range(1, len(slots(bucket)) + 1))
    for _ in range(len(bucket.store.cloud.under_way)):
        bucket.land()
        assert heads(bucket) == found
    writer.train(1)
    assert heads(bucket)[: len(found)] == found
    assert writer.acknowledge() == heads(bucket)[-1]


def marked(bucket: SimulatedBucket, length: int | None = None) -> list[Witness]:
    return [told for (told,) in bucket.marks(length) if isinstance(told, Witness)]


def test_whatever_a_crash_leaves_what_was_told_is_there_and_late_requests_change_nothing() -> None:
    bucket = SimulatedBucket()
    history(bucket)
    assert len(marked(bucket)) == 5
    images = 0
    for length in bucket.cuts():
        for image in bucket.crash_images(length):
            keeps_what_was_told(image, marked(bucket, length))
            images += 1
    assert images > len(list(bucket.cuts()))


def overtaken_before(bucket: SimulatedBucket, request: int) -> bool:
    """A writer's history, within which another one comes, stays and goes before a request; whether it noticed."""
    old, new = Writer(bucket.process("old"), "old"), Writer(bucket.process("new"), "new")
    left = iter(range(request))

    def pause(process: str, _verb: str, _key: str) -> None:
        if process == "old" and next(left, None) is None:
            bucket.store.before = None
            bucket.mark(new.open())
            new.train(1)
            bucket.mark(new.acknowledge())

    bucket.store.before = pause
    try:
        bucket.mark(old.open())
        for _ in range(2):
            old.train(1)
            bucket.mark(old.acknowledge())
    except Busy:
        return True
    return False


def test_a_writer_that_is_paused_before_any_of_its_requests_and_overtaken_there_takes_nothing_back() -> None:
    alone = SimulatedBucket()
    assert not overtaken_before(alone, 1 << 30)
    length = len([request for request in alone.trace if request.process == "old"])
    noticed = []
    for request in range(length):
        bucket = SimulatedBucket()
        noticed.append(overtaken_before(bucket, request))
        keeps_what_was_told(bucket, marked(bucket))
    # While it still looks for the end it comes after the other one; from its first put on it is told.
    first_put = next(at for at, request in enumerate(alone.trace) if request.verb == "put")
    assert all(noticed[first_put:])
    assert not noticed[0]


ANSWERS = [(status, effect) for status in (0, 409, 412, 503) for effect in ("no", "yes", "late-1", "late")]


def faulted(status: int, effect: str) -> StoreFault:
    kind: Literal["no", "yes", "late"] = "late" if effect.startswith("late") else "yes" if effect == "yes" else "no"
    after = int(effect.removeprefix("late-")) if effect.startswith("late-") else None
    return StoreFault(status=status, applied=kind, after=after)


def puts(bucket: SimulatedBucket) -> list[int]:
    return [index for index, request in enumerate(bucket.trace) if request.verb == "put"]


@pytest.mark.parametrize(("status", "effect"), ANSWERS)
def test_an_unclear_answer_is_cleared_up_wherever_it_comes(status: int, effect: str) -> None:
    plain = SimulatedBucket()
    history(plain)
    for index in puts(plain):
        bucket = SimulatedBucket()
        bucket.store.faults = lambda site, at=index: faulted(status, effect) if site.index == at else None
        history(bucket)
        assert marked(bucket) == marked(plain)
        keeps_what_was_told(bucket, marked(bucket))


@pytest.mark.parametrize(
    ("status", "effect"), [(0, "no"), (0, "yes"), (0, "late-1"), (0, "late"), (412, "late"), (503, "yes")]
)
def test_a_store_that_stays_unclear_poisons_the_writer_and_nothing_told_is_lost(status: int, effect: str) -> None:
    """From some request on no put of the old writer is answered well and no look either: its outcome is unknown."""
    plain = SimulatedBucket()
    history(plain)
    poisoned = 0
    for start in puts(plain):
        bucket = SimulatedBucket()
        fault = faulted(status, effect)

        def stays(site: Site, start: int = start, fault: StoreFault = fault) -> StoreFault | None:
            hit = site.process == "old" and site.index >= start and site.verb in ("put", "fetch")
            return fault if hit and site.verb == "put" else StoreFault(status=503) if hit else None

        bucket.store.faults = stays
        with suppress(Unavailable):
            history(bucket)
        poisoned += len(marked(bucket)) < len(marked(plain))
        bucket.store.faults = lambda _site: None
        keeps_what_was_told(bucket, marked(bucket))
    assert poisoned == 3  # the old writer's three batches that were acknowledged


def test_an_unknown_outcome_poisons_for_good_and_the_next_opening_decides() -> None:
    for done in (False, True):
        bucket = SimulatedBucket()
        writer = Writer(bucket.process("a"), "a")
        told = writer.open()
        writer.train(1)
        kind: Literal["no", "yes"] = "yes" if done else "no"
        bucket.store.faults = lambda site, kind=kind: (
            StoreFault(applied=kind)
            if site.verb == "put"
            else StoreFault(status=500)
            if site.verb == "fetch"
            else None
        )
        with pytest.raises(Unavailable, match="whether slot 2 of the journal was written is not known"):
            writer.acknowledge()
        bucket.store.faults = lambda _site: None
        for attempt in (writer.appender.sync, writer.appender.fenced, lambda writer=writer: writer.put(opened(7))):
            with pytest.raises(Unavailable, match="an earlier failure; this writer records nothing more"):
                attempt()
        found = heads(bucket)
        assert (len(found) > 1, found[0]) == (done, told)
        again = Writer(bucket.process("b"), "b")
        again.open()
        assert again.appender.number == 2


def test_a_refusal_poisons_too_and_drops_no_line_in_silence() -> None:
    bucket = SimulatedBucket()
    writer = Writer(bucket.process("a"), "a")
    told = writer.open()
    writer.train(1)
    bucket.store.faults = lambda site: StoreFault(status=403) if site.verb == "put" else None
    with pytest.raises(Unavailable, match="403"):
        writer.acknowledge()
    bucket.store.faults = lambda _site: None
    with pytest.raises(Unavailable, match="an earlier failure; this writer records nothing more"):
        writer.acknowledge()
    assert heads(bucket) == [told]


@pytest.mark.parametrize("verb", ["fetch", "head", "list"])
def test_a_look_that_is_not_answered_is_made_again(verb: str) -> None:
    bucket = SimulatedBucket()
    failing = itertools.cycle([StoreFault(status=503), None])
    bucket.store.faults = lambda site: next(failing) if site.verb == verb else None
    history(bucket)
    assert len(marked(bucket)) == 5
    assert heads(bucket)[-1] == marked(bucket)[-1]
