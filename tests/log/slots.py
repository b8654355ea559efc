"""A log in a simulated bucket, and writers that follow one another on it: open, train, acknowledge, recover."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from hashlib import blake2b

from rpds import HashTrieMap

from milepost.engines.buckets import Bucket
from milepost.engines.logs.batches import NO_SUM, Batch, Place, pack, unpack
from milepost.engines.logs.slots import SlotLog
from milepost.engines.simulated.bucket import SimulatedBucket
from milepost.engines.simulated.cloud import Cloud
from milepost.journal.log.replay import Folded, fold, replay
from milepost.transitions.errors import Busy, Fenced
from milepost.transitions.machine import Record
from milepost.transitions.values import Witness
from tests.log.chains import RESUMED, Chain, applied, opened

PATIENCE = 5
"""A writer that finds a late request of a dead one at its slot opens again; more than so many are never late."""


def named(name: str) -> Callable[[], str]:
    """Nonces that say whose they are: `a-1`, `a-2`, …"""
    counted = itertools.count(1)
    return lambda: f"{name}-{next(counted)}"


class Writer:
    """One process with a log in a bucket."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        self.name = name
        self.log = SlotLog(bucket, nonce=named(name))
        self.chain = Chain()

    def look(self) -> Folded:
        """All of an opening before its first line."""
        self.appender = self.log.claim()
        folded = fold(self.log, below=self.appender.number)
        self.log.resync(folded.read, folded.closes)
        self.folded = folded
        return folded

    def begin(self) -> Witness:
        """Own the run: the header, and what an opening is told of it."""
        self.chain = Chain(self.folded.head, epoch=self.folded.state.run.epoch + 1)
        self.append(self.chain.opening(self.appender.number, *self.folded.closes))
        told = self.acknowledge()
        self.put(RESUMED)
        self.attempts = 0
        return told

    def open(self) -> Witness:
        self.look()
        return self.begin()

    def append(self, line: bytes) -> None:
        self.appender.append(line, seq=self.chain.head.seq)

    def put(self, *records: Record) -> None:
        self.append(self.chain.line(*records, synced=self.appender.synced))

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.attempts += 1
            self.put(opened(self.attempts))
            self.put(applied(self.attempts))

    def acknowledge(self) -> Witness:
        """A barrier; what the world may be told after it."""
        head = self.chain.head
        self.appender.sync()
        if self.appender.fenced():
            raise Fenced(f"{self.name} was overtaken")
        return Witness(seq=head.seq, sum=head.sum)


def open_at_last(bucket: Bucket, name: str) -> Writer:
    """A writer that opens again while late requests of the dead are in its way."""
    for attempt in range(PATIENCE):
        writer = Writer(bucket, f"{name}{attempt}")
        try:
            writer.open()
        except Busy:
            continue
        return writer
    raise AssertionError(f"{PATIENCE} times busy, and nobody is alive")


def heads(bucket: Bucket) -> list[Witness]:
    """Every entry of the log, as a fresh reader finds it."""
    log = SlotLog(bucket, nonce=named("reader"))
    return [Witness(seq=entry.seq, sum=entry.sum) for entry, _ in replay(log)]


def slots(bucket: SimulatedBucket) -> list[int]:
    """The slots that are taken; not a request."""
    keys = (key.removeprefix("journal/") for key in bucket.tree())
    return sorted(int(key.removesuffix(".json")) for key in keys if key.endswith(".json"))


def long_log(entries: int) -> SimulatedBucket:
    """A store whose log has so many entries, each in a slot of its own, by one writer."""
    chain = Chain()
    lines = [chain.opening(1), chain.line(RESUMED, synced=1)]
    while len(lines) < entries:
        attempt = len(lines) // 2
        record = opened(attempt) if len(lines) % 2 == 0 else applied(attempt)
        lines.append(chain.line(record, synced=len(lines)))
    objects: dict[str, bytes] = {}
    before: Batch | None = None
    for slot, line in enumerate(lines, start=1):
        offset, prev = (before.end, before.sum) if before else (0, NO_SUM)
        before = pack(Place(slot=slot, segment=1, first=1, offset=offset, writer="w", prev=prev), [line])
        objects[f"journal/{slot:020d}.json"] = before.raw
    return SimulatedBucket(Cloud(objects=HashTrieMap(objects)))


def replaced(bucket: SimulatedBucket, key: str, data: bytes) -> SimulatedBucket:
    """The store with other bytes at a key."""
    bucket.delete(key)
    bucket.create(key, data, deadline_s=0.0)
    return bucket


def reheaded(raw: bytes, old: bytes, new: bytes) -> bytes:
    """The batch with something else in its first line, under a right sum."""
    batch = unpack(raw)
    assert batch is not None
    opening = raw[: raw.index(b',"sum":"', 0, batch.start)]
    assert opening.count(old) == 1
    opening = opening.replace(old, new)
    digest = blake2b(opening + batch.lines, digest_size=16).hexdigest().encode()
    return opening + b',"sum":"' + digest + b'"}\n' + batch.lines


def a_newer_mileposts(raw: bytes) -> bytes:
    """The batch as version 2."""
    return reheaded(raw, b'"v":1', b'"v":2')
