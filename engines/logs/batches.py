"""What an object of a log in a bucket holds: one synced batch of lines, behind one line that says where it belongs.

    {"v":1,"slot":12,"segment":2,"first":9,"offset":4711,"size":812,"writer":"…","prev":"…","sum":"…"}

1. `sum` is blake2b-128 over the bytes of that line before the field and over all lines behind it. What follows the
   field is constant, so every byte of the object is covered.
2. `prev` is the sum of the batch in the slot before, so one sum speaks for every slot up to its own.
3. `writer` is a nonce of its own for each writer: equal bytes are one's own, whatever is in the lines.
4. `first` is the slot in which the segment begins, `offset` the bytes of the segment before this batch: from any one
   object its segment is found, and from an offset its slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import orjson
from attrs import frozen

from milepost.engines.shapes import Mismatch, shape_of
from milepost.transitions.errors import NewerVersion

VERSION = 1
NO_SUM = "0" * 32
"""The `prev` of the first slot."""

_SUM_FIELD = b',"sum":"'
_END = b'"}\n'
_TAIL = len(_SUM_FIELD) + len(NO_SUM) + len(_END)
_HEADING_LIMIT_BYTES = 1024


@frozen(kw_only=True)
class Place:
    """Where a batch belongs. Slots and segments count from 1; `offset` is in bytes."""

    slot: int
    segment: int
    first: int
    offset: int
    writer: str
    prev: str


@frozen(kw_only=True)
class _Heading:
    v: int
    slot: int
    segment: int
    first: int
    offset: int
    size: int
    writer: str
    prev: str
    sum: str


@frozen(kw_only=True)
class Batch:
    """A whole object: its bytes, of which `lines` start at `start`, and what its first line says."""

    place: Place
    sum: str
    raw: bytes
    start: int

    @property
    def lines(self) -> memoryview:
        """The lines as their writer appended them."""
        return memoryview(self.raw)[self.start :]

    @property
    def end(self) -> int:
        """Bytes of the segment up to the end of this batch."""
        return self.place.offset + len(self.raw) - self.start


def pack(place: Place, lines: Iterable[bytes]) -> Batch:
    """The object that holds `lines` at `place`."""
    body = b"".join(lines)
    assert body.endswith(b"\n"), "a batch holds whole lines"
    fields = {
        "v": VERSION,
        "slot": place.slot,
        "segment": place.segment,
        "first": place.first,
        "offset": place.offset,
        "size": len(body),
        "writer": place.writer,
        "prev": place.prev,
    }
    opening = orjson.dumps(fields)[:-1]
    digest = _sum_of(opening, memoryview(body))
    heading = opening + _SUM_FIELD + digest.encode() + _END
    return Batch(place=place, sum=digest, raw=heading + body, start=len(heading))


def unpack(raw: bytes) -> Batch | None:
    """The batch that these bytes are; None where they are not one as it was written.

    `NewerVersion` for one whose sum is right and whose first line a later milepost wrote.
    """
    start = raw.find(b"\n", 0, _HEADING_LIMIT_BYTES) + 1
    if start <= _TAIL or not raw.endswith(b"\n"):
        return None
    digest = _sum_of(raw[: start - _TAIL], memoryview(raw)[start:])
    if raw[start - _TAIL : start] != _SUM_FIELD + digest.encode() + _END:
        return None
    try:
        document = orjson.loads(raw[:start])
        if document["v"] != VERSION:
            raise NewerVersion(
                f"a batch of the journal of version {document['v']!r}; this milepost knows version {VERSION}: read "
                "this journal with the milepost that wrote it or a later one"
            )
        heading: _Heading = shape_of(_Heading).read(document)
    except (Mismatch, orjson.JSONDecodeError, KeyError, TypeError):
        return None
    if heading.size != len(raw) - start:
        return None
    place = Place(
        slot=heading.slot,
        segment=heading.segment,
        first=heading.first,
        offset=heading.offset,
        writer=heading.writer,
        prev=heading.prev,
    )
    return Batch(place=place, sum=heading.sum, raw=raw, start=start)


def follows(batch: Batch, before: Batch | None) -> bool:
    """Whether `batch` is what belongs into the slot behind `before` (None: into the first slot)."""
    place = batch.place
    if before is None:
        return (place.slot, place.segment, place.first, place.offset, place.prev) == (1, 1, 1, 0, NO_SUM)
    last = before.place
    if (place.slot, place.prev) != (last.slot + 1, before.sum):
        return False
    if place.segment == last.segment:
        return (place.first, place.offset, place.writer) == (last.first, before.end, last.writer)
    return (place.segment, place.first, place.offset) == (last.segment + 1, place.slot, 0)


def split(joined: bytes) -> Iterator[Batch]:
    """The batches of slots 1, 2, … that were joined; ends at the first bytes that are not the next one."""
    at, before = 0, None
    while at < len(joined):
        start = joined.find(b"\n", at, at + _HEADING_LIMIT_BYTES) + 1
        try:
            stop = start + int(orjson.loads(joined[at:start])["size"])
            batch = unpack(joined[at:stop])
        except (ValueError, KeyError, TypeError, NewerVersion):
            return
        if batch is None or not follows(batch, before):
            return
        yield batch
        at, before = stop, batch


def _sum_of(opening: bytes, lines: memoryview) -> str:
    digest = blake2b(opening, digest_size=len(NO_SUM) // 2)
    digest.update(lines)
    return digest.hexdigest()
