"""The log in a bucket: `journal/<slot in 20 digits>.json`, one object per synced batch, slots without a gap from 1.

1. A slot is taken by a conditional create and never changed or deleted. Its object is there whole or not at all, so
   a batch cannot be torn, what was read is durable, and nothing is ever left behind a valid length.
2. A segment is one writer's run of slots. Its header stands in the first of them, and segments count 1, 2, … as on
   a disk: who reads a log sees the same kind of segments, each closed by its successor's header, and needs to know of
   no slot. A segment per slot would need a header in each of them; one segment for all would have no place at which
   a writer's successor says what it built on.
3. `claim` looks for the end of the log and takes nothing. The header's sync is the claim: it creates the slot behind
   that end. Whoever was there first, another opener or a writer that is alive after all, makes this one `Busy`. So
   before that sync an opener touches nothing that a writer may still be using.
4. A writer creates only the slot behind its own last one. So slots are contiguous whoever dies when, a writer whose
   successor took that slot is `Fenced` before anything is acknowledged, and what it sent late changes nothing
   (INV-09, INV-10). An answer that is unknown poisons it: the slot may still be taken by what it sent.
5. The end is found by asking for single slots, in steps that double and then in halves. A listing may be late and is
   believed in one thing only: a slot that it names behind the end means that one is missing before it. Refused.
6. What an object says of itself is checked when it is read (`batches.py`). A bad one is `Corrupt`, the last one too:
   unlike the tail of a file, it was durable when its writer was answered.
7. `journal/slot-cache` holds the first slots once more, joined. It counts only where its last batch is what the store
   has in that slot: sums are chained, so the slots before it are the same too. Lost, damaged, foreign or late, it is
   passed over; deleting it is safe. It ends where it would be too large for one conditional request, and so does
   what is kept in memory for it.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import BinaryIO, cast

from attrs import frozen
from typing_extensions import Buffer

from milepost.engines.buckets import SMALL_BYTES, Answer, Bucket, Committed, Conflict, Version
from milepost.engines.logs.batches import NO_SUM, Batch, Place, follows, split, unpack
from milepost.engines.logs.taking import SlotAppender
from milepost.transitions.errors import Corrupt, MilepostError, NewerVersion
from milepost.transitions.run import ClosedSegment

DEADLINE_S = 120.0
"""How long the create of a slot is repeated while its answer is unclear."""

CACHE_BYTES = SMALL_BYTES
"""What the cache holds at most: one conditional request."""

_NAME = re.compile(r"(\d{20})\.json", re.ASCII)


@frozen(kw_only=True)
class _Span:
    """A segment: its first and last slot and its size in bytes."""

    first: int
    last: int
    size: int


class SlotLog:
    """A `Log` below `folder` of `bucket`. Used from any thread.

    `nonce` makes a new random name for each writer. `numbers` looks for the end of the log; `size` and `open` are of
    the log as it was then, and of what this process wrote since. Beside what `Log` says, reading raises `Corrupt` for
    a slot that is missing, damaged or elsewhere, `NewerVersion` for one of a later milepost, and what the bucket
    raises. `deadline_s` is how long an unclear create is repeated, in seconds. `cache_bytes` bounds the cache, and
    what is held of it in memory.
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        nonce: Callable[[], str],
        folder: str = "journal",
        deadline_s: float = DEADLINE_S,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._bucket = bucket
        self._nonce = nonce
        self._folder = folder
        self._deadline_s = deadline_s
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()
        self._last: Batch | None = None
        self._spans: dict[int, _Span] = {}  # of closed segments
        self._known: list[Batch] = []  # slots 1, 2, …: what the cache holds, and what it will
        self._known_bytes = 0
        self._cached: tuple[Version | None, int] | None = None  # the cache's version, and how many slots it holds

    def key(self, slot: int) -> str:
        """The slot's key in the bucket."""
        return f"{self._folder}/{slot:020d}.json"

    def where(self, number: int) -> str:
        return f"segment {number} of {self._bucket.where(self._folder)}"

    def numbers(self) -> tuple[int, ...]:
        last = self._refresh()
        return tuple(range(1, last.place.segment + 1)) if last else ()

    def size(self, number: int) -> int:
        return self._span(number).size

    def open(self, number: int, *, start: int = 0, stop: int) -> BinaryIO:
        span = self._span(number)
        return cast(BinaryIO, io.BufferedReader(_Window(self._batches(number, span, start), start, stop)))

    def claim(self) -> SlotAppender:
        last = self._refresh()
        place = Place(
            slot=last.place.slot + 1 if last else 1,
            segment=last.place.segment + 1 if last else 1,
            first=last.place.slot + 1 if last else 1,
            offset=0,
            writer=self._nonce(),
            prev=last.sum if last else NO_SUM,
        )
        return SlotAppender(self, place)

    def resync(self, numbers: tuple[int, ...], closes: tuple[ClosedSegment, ...]) -> None:
        """Nothing: what is read from a bucket is durable."""

    def create(self, batch: Batch) -> Answer:
        """Take the batch's slot with it."""
        answer = self._bucket.create(self.key(batch.place.slot), batch.raw, deadline_s=self._deadline_s)
        if isinstance(answer, Committed):
            self._learn(batch)
        return answer

    def taken(self, slot: int) -> bool:
        """Whether there is an object in this slot, whatever is in it."""
        return self._bucket.stat(self.key(slot)) is not None

    def keep(self) -> None:
        """Renew the cache with the slots that were read or written here, from the first on, if that are more.

        A store that fails is none of the caller's concern: the next opening reads what the cache lacks.
        """
        with self._lock:
            known, cached = tuple(self._known), self._cached
        version, count = cached or (None, 0)
        if len(known) <= count:
            return
        key, joined = self._cache_key, b"".join(batch.raw for batch in known)
        with suppress(MilepostError):
            if version is None:
                answer = self._bucket.create(key, joined, deadline_s=0.0)
            else:
                answer = self._bucket.swap(key, joined, expected=version, deadline_s=0.0)
            if isinstance(answer, Committed):
                self._cached = (answer.version, len(known))
            elif isinstance(answer, Conflict):
                self._cached = (answer.version, 0)  # another's: the next call replaces it

    @property
    def _cache_key(self) -> str:
        return f"{self._folder}/slot-cache"

    # --- the end of the log ------------------------------------------------------------------------

    def _refresh(self) -> Batch | None:
        """The last batch of the log as it is now; None for an empty one."""
        if self._cached is None:
            self._load_cache()
        before = self._last
        slot = self._find_end(before.place.slot if before else 0)
        if slot and (before is None or slot > before.place.slot):
            self._learn(self._fetch(slot))
        return self._last

    def _find_end(self, known: int) -> int:
        """The last slot, given one that is taken (rule 5)."""
        while True:
            low, step = known, 1
            while self.taken(low + step):
                low, step = low + step, step * 2
            high = low + step
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self.taken(middle) else (low, middle)
            listed = self._listed_behind(low)
            if listed is None:
                return low
            if not self.taken(low + 1):
                raise Corrupt(
                    f"{self._bucket.where(self.key(low + 1))}: expected a batch of the journal, found nothing, while "
                    f"{listed} is there: slots are taken in order and never deleted. Bring the missing objects back "
                    "from a copy, or resume from a published checkpoint in a new run"
                )
            known = low + 1  # somebody appended meanwhile

    def _listed_behind(self, slot: int) -> str | None:
        # What else is in the folder has names of other kinds; the listing is asked for those of slots only.
        for key in self._bucket.keys(f"{self._folder}/0", after=self.key(slot), limit=1):
            if _NAME.fullmatch(key.rpartition("/")[2]):
                return key
        return None

    def _load_cache(self) -> None:
        try:
            joined, version = self._bucket.read(self._cache_key, limit=CACHE_BYTES)
        except (FileNotFoundError, Corrupt):
            self._cached = (None, 0)
            return
        batches = list(split(joined))
        if batches:
            with suppress(FileNotFoundError):
                last = batches[-1]
                found, _ = self._bucket.read(self.key(last.place.slot), limit=SMALL_BYTES)
                if found == last.raw:
                    self._adopt(batches)
        self._cached = (version, len(self._known))

    def _adopt(self, batches: list[Batch]) -> None:
        with self._lock:
            if len(batches) > len(self._known):
                self._known = batches
                self._known_bytes = sum(len(batch.raw) for batch in batches)
            if self._last is None or batches[-1].place.slot > self._last.place.slot:
                self._last = batches[-1]

    # --- slots -------------------------------------------------------------------------------------

    def _span(self, number: int) -> _Span:
        """The segment's slots, found by going back from the nearest later one that is known."""
        last = self._last or self._refresh()
        assert last is not None and 1 <= number <= last.place.segment, f"no segment {number} in the log"
        above = number
        while above < last.place.segment and above not in self._spans:
            above += 1
        span = self._spans.get(above) or _span_of(last)
        while above > number:
            above -= 1
            batch = self._fetch(span.first - 1)
            if batch.place.segment != above:
                raise self._misplaced(span.first - 1, f"the end of segment {above}", batch)
            span = self._spans[above] = _span_of(batch)
        return span

    def _batches(self, number: int, span: _Span, start: int) -> Iterator[Batch]:
        """The segment's batches from the one that holds byte `start`, each checked against the one before."""
        low, high = span.first, span.last + 1
        while start and high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fetch(middle).place.offset <= start else (low, middle)
        before: Batch | None = None
        for slot in range(low, span.last + 1):
            batch = self._fetch(slot)
            fits = follows(batch, before) if before is not None or slot == 1 else batch.place.slot == slot
            if not fits or (batch.place.segment, batch.place.first) != (number, span.first):
                raise self._misplaced(slot, f"what follows slot {slot - 1} in segment {number}", batch)
            self._learn(batch)
            yield batch
            before = batch

    def _fetch(self, slot: int) -> Batch:
        """The batch in a slot that has to be taken."""
        with self._lock:
            if slot <= len(self._known):
                return self._known[slot - 1]
            if self._last is not None and slot == self._last.place.slot:
                return self._last
        key = self.key(slot)
        again = "bring it back from a copy, or resume from a published checkpoint in a new run"
        try:
            raw, _ = self._bucket.read(key, limit=SMALL_BYTES)
        except FileNotFoundError:
            raise Corrupt(
                f"{self._bucket.where(key)}: expected a batch of the journal, found nothing; {again}"
            ) from None
        try:
            batch = unpack(raw)
        except NewerVersion as error:
            raise NewerVersion(f"{self._bucket.where(key)}: {error}") from None
        if batch is None:
            raise Corrupt(
                f"{self._bucket.where(key)}: expected a batch of the journal as it was written, found {len(raw)} "
                f"bytes that are none or were changed; {again}"
            )
        if batch.place.slot != slot:
            raise self._misplaced(slot, f"the batch of slot {slot}", batch)
        return batch

    def _misplaced(self, slot: int, expected: str, batch: Batch) -> Corrupt:
        place = batch.place
        return Corrupt(
            f"{self._bucket.where(self.key(slot))}: expected {expected}, found the batch of slot {place.slot}, "
            f"segment {place.segment}, byte {place.offset}, behind sum {place.prev}: the object was copied or "
            "replaced; bring the journal back from a copy, or resume from a published checkpoint in a new run"
        )

    def _learn(self, batch: Batch) -> None:
        with self._lock:
            if self._last is None or batch.place.slot > self._last.place.slot:
                self._last = batch
            is_next = follows(batch, self._known[-1] if self._known else None)
            if is_next and self._known_bytes + len(batch.raw) <= self._cache_bytes:
                self._known.append(batch)
                self._known_bytes += len(batch.raw)


class _Window(io.RawIOBase):
    """Bytes `start` to `stop` of a segment, of whose batches the first holds byte `start`."""

    def __init__(self, batches: Iterator[Batch], start: int, stop: int) -> None:
        self._batches = batches
        self._at = start
        self._stop = stop
        self._end = 0
        self._lines = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        view = memoryview(buffer)
        while self._at < self._stop and self._at >= self._end:
            batch = next(self._batches, None)
            if batch is None:
                return 0
            self._lines, self._end = batch.lines, batch.end
        left = min(self._end, self._stop) - self._at
        count = max(min(len(view), left), 0)
        begin = len(self._lines) - (self._end - self._at)
        view[:count] = self._lines[begin : begin + count]
        self._at += count
        return count


def _span_of(batch: Batch) -> _Span:
    """The segment that ends with this batch."""
    return _Span(first=batch.place.first, last=batch.place.slot, size=batch.end)
