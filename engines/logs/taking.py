"""Taking slots: the writer's end of a log in a bucket.

1. Lines wait in memory for the next `sync`, which creates one slot for all of them. The lock under which lines are
   appended is not held while a store is asked, but in `rotate`.
2. A slot is the writer's when its create was answered with Committed, and only then the next one is asked for. Every
   other answer, and whatever interrupts the create, ends the writer (INV-10): `Busy` while it is still opening,
   `Fenced` from then on, `Unavailable` where nobody can say what became of the slot.
3. That a slot was committed says that nobody had claimed the run by then. `fenced` always looks at the slot behind:
   a barrier with nothing to sync has no other way to learn of a successor.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

from attrs import evolve

from milepost.engines.buckets import Answer, Committed, Conflict, Unknown
from milepost.engines.logs.batches import Batch, Place, pack, unpack
from milepost.transitions.errors import Busy, Fenced, MilepostError, NewerVersion, Unavailable

BATCH_BYTES = 8 << 20
"""Lines that were appended since the last sync go to one slot up to here, to several, one after the other, above."""


class Slots(Protocol):
    """What a writer asks of the log."""

    def create(self, batch: Batch) -> Answer:
        """Take the batch's slot with it."""
        ...

    def taken(self, slot: int) -> bool:
        """Whether there is an object in this slot, whatever is in it."""
        ...


class SlotAppender:
    """The `Appender` of a segment whose first slot is still to be taken.

    Two locks as on a disk: `_appending` is held while lines are kept, and `_syncing` lets one create run at a time,
    so that those who waited for it find their lines durable already. `_syncing` is taken first.
    """

    def __init__(self, log: Slots, place: Place) -> None:
        self._log = log
        self._place = place
        self._size = 0
        self._pending: list[bytes] = []
        self._appended = 0
        self._synced = 0
        self._dead: MilepostError | None = None
        self._appending = threading.Lock()
        self._syncing = threading.Lock()

    @property
    def number(self) -> int:
        return self._place.segment

    @property
    def size(self) -> int:
        return self._size

    @property
    def synced(self) -> int:
        return self._synced

    def has_room(self, size: int) -> bool:
        """Always: no slot is found slower in a long segment, so one writer's is never cut."""
        return True

    def append(self, line: bytes, *, seq: int) -> None:
        with self._appending:
            self._require_alive()
            assert not self._size or self._synced, "a header is durable before anything follows it"
            assert seq > self._appended, f"entry {seq} after entry {self._appended}"
            self._pending.append(line)
            self._size += len(line)
            self._appended = seq

    def sync(self) -> int:
        with self._syncing:
            with self._appending:
                self._require_alive()
                lines, self._pending = self._pending, []
                appended = self._appended
            self._take_slots(lines)
            self._synced = appended
            return appended

    def fenced(self) -> bool:
        with self._syncing:  # a create under way is one's own
            if isinstance(self._dead, Busy):
                return True
            self._require_alive()
            return self._log.taken(self._place.slot)

    def rotate(self, header: bytes, *, seq: int) -> None:
        with self._syncing, self._appending:
            self._require_alive()
            lines, self._pending = self._pending, []
            self._take_slots(lines)
            place = self._place
            self._place = evolve(place, segment=place.segment + 1, first=place.slot, offset=0)
            self._take_slots([header])
            self._size = len(header)
            self._appended = self._synced = seq

    def close(self) -> None:
        with self._syncing, self._appending:
            self._pending = []
            self._dead = self._dead or Unavailable("this writer of the journal was closed; open the run again")

    def _take_slots(self, lines: list[bytes]) -> None:
        for part in _cut(lines):
            batch = pack(self._place, part)
            try:
                answer = self._log.create(batch)
            except BaseException as error:
                self._dead = self._unclear(repr(error))
                raise
            match answer:
                case Committed():
                    self._place = evolve(self._place, slot=self._place.slot + 1, offset=batch.end, prev=batch.sum)
                case Conflict(found=found):
                    self._dead = self._overtaken(found)
                    raise self._dead
                case Unknown(why=why):
                    self._dead = self._unclear(why)
                    raise self._dead

    def _overtaken(self, found: bytes | None) -> MilepostError:
        slot = self._place.slot
        by = _writer_of(found)
        if self._synced:
            return Fenced(f"slot {slot} of the journal was taken by {by}, who owns the run now; stop this writer")
        return Busy(
            f"slot {slot} of the journal was taken by {by} while this one was opening the run: it is being written. "
            "Wait for that writer or stop it, then open the run again"
        )

    def _unclear(self, why: str) -> MilepostError:
        return Unavailable(
            f"whether slot {self._place.slot} of the journal was written is not known: {why}; what was acknowledged "
            "before is safe, open the run again to find out about the rest"
        )

    def _require_alive(self) -> None:
        if self._dead is not None:
            raise type(self._dead)(f"{self._dead} (an earlier failure; this writer records nothing more)")


def _cut(lines: list[bytes]) -> Iterator[list[bytes]]:
    """The lines in parts that fit a slot."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        if part and size + len(line) > BATCH_BYTES:
            yield part
            part, size = [], 0
        part.append(line)
        size += len(line)
    if part:
        yield part


def _writer_of(found: bytes | None) -> str:
    batch = None
    with suppress(NewerVersion):
        batch = unpack(found) if found is not None else None
    if batch is None:
        return "an object that is no batch which this milepost can read"
    return f"another writer ({batch.place.writer}, segment {batch.place.segment})"
