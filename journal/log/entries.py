"""The envelope: one line of the log, one atomic batch of records, one link of the chain.

    {"seq":12,"epoch":3,"at":"2026-11-29T16:09:04.123456Z","synced":11,"records":[…],"prev":"…","sum":"…"}

1. `sum` is blake2b-128 over the raw bytes of the line before the field, `prev` included. Checking it slices bytes and
   never serialises again. What follows the field is constant, so every byte of a line is covered.
2. `prev` is the sum of the entry before; the first entry's is `GENESIS.sum`. Order is `seq`, from 1 without a gap
   (INV-09); `at` is evidence for people.
3. `synced` is the seq that the writer knew to be durable when it wrote the line, 0 for none.
4. `"crit":false` stands after `synced` and lets an older milepost pass over records that it does not know.
5. A line is at most 1 MiB with its newline, which is its last byte and its only one.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from operator import itemgetter
from typing import NamedTuple

import orjson
from attrs import frozen

from milepost.journal.log.codec import CODEC, Codec
from milepost.transitions.errors import Corrupt, NewerVersion, Refused
from milepost.transitions.machine import Record

LINE_LIMIT_BYTES = 1 << 20

BEGINNING = re.compile(rb'\{"seq":\d+,"epoch":')
"""How every line begins, and nothing in it: JSON escapes quotes in strings, and no record nests such an object."""

_DIGEST_BYTES = 16
_FRESH = blake2b(digest_size=_DIGEST_BYTES)  # copied: cheaper than made anew for each line
_SUM_FIELD = ',"sum":"'
_END = '"}\n'
_TAIL = len(_SUM_FIELD) + 2 * _DIGEST_BYTES + len(_END)
_KEYS = ("seq", "epoch", "at", "synced", "records", "prev", "sum")
_FIELDS = itemgetter(*_KEYS)


@frozen(kw_only=True)
class Head:
    """Where a chain of entries stands: the seq, sum and epoch of its last entry."""

    seq: int
    sum: str
    epoch: int


GENESIS = Head(seq=0, sum="0" * 2 * _DIGEST_BYTES, epoch=0)
"""The head of an empty log."""


class Entry(NamedTuple):
    """One line of the log. `unread` are the tags of uncritical records that this version does not know.

    A named tuple and not an attrs class: a replay makes one per line, and a frozen attrs class of this size costs
    three times as much.
    """

    seq: int
    epoch: int
    at: str
    synced: int
    crit: bool
    records: tuple[Record, ...]
    unread: tuple[str, ...]
    prev: str
    sum: str

    @property
    def head(self) -> Head:
        """The chain's head once this entry is its last."""
        return Head(seq=self.seq, sum=self.sum, epoch=self.epoch)


def pack(
    head: Head,
    records: tuple[Record, ...],
    *,
    epoch: int,
    at: str,
    synced: int,
    crit: bool = True,
    codec: Codec = CODEC,
) -> tuple[bytes, Head]:
    """The line that follows `head`, newline included, and the head that it makes.

    `at` is UTC as `2026-11-29T16:09:04.123456Z`. A batch whose line would exceed 1 MiB is `Refused`.
    """
    assert records, "an entry holds at least one record"
    assert epoch >= head.epoch and 0 <= synced <= head.seq, f"epoch {epoch}, synced {synced} after {head}"
    body = orjson.dumps(
        {
            "seq": head.seq + 1,
            "epoch": epoch,
            "at": at,
            "synced": synced,
            **({} if crit else {"crit": False}),
            "records": [codec.encode(record) for record in records],
            "prev": head.sum,
        }
    )[:-1]
    if len(body) + _TAIL > LINE_LIMIT_BYTES:
        raise Refused(
            f"an entry of {len(body) + _TAIL} bytes was not recorded: a line of the journal holds at most "
            f"{LINE_LIMIT_BYTES}; record less at once"
        )
    digest = _sum_of(body)
    return body + f"{_SUM_FIELD}{digest}{_END}".encode(), Head(seq=head.seq + 1, sum=digest, epoch=epoch)


def is_whole(line: bytes) -> bool:
    """Whether these are the bytes of one line as it was written: length, sum, and what stands around the sum."""
    if not _TAIL < len(line) <= LINE_LIMIT_BYTES:
        return False
    return line.endswith(f"{_SUM_FIELD}{_sum_of(line[:-_TAIL])}{_END}".encode())


def unpack(line: bytes, *, codec: Codec = CODEC) -> Entry:
    """The entry of a line that is whole. What its writer should not have written is `Corrupt` or `NewerVersion`."""
    try:
        document = orjson.loads(line)
        seq, epoch, at, synced, records, prev, digest = _FIELDS(document)
    except (ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"a line that is no entry although its sum is right: {error!r}") from None
    crit = len(document) == len(_KEYS)
    if not crit and (document.keys() != {*_KEYS, "crit"} or document["crit"] is not False):
        raise NewerVersion(
            f"an entry with the keys {', '.join(document)}, which this milepost does not know; read this journal "
            "with the milepost that wrote it or a later one"
        )
    if not (type(seq) is type(epoch) is type(synced) is int and 0 <= synced < seq):
        raise Corrupt(f"an entry with seq {seq!r}, epoch {epoch!r} and synced {synced!r}")
    if not (type(at) is type(prev) is str and type(records) is list and records):
        raise Corrupt(f"entry {seq} whose at or prev is no text, or which holds no array of records")
    known, unread = (tuple(map(codec.decode, records)), ()) if crit else _known(records, codec)
    return tuple.__new__(Entry, (seq, epoch, at, synced, crit, known, unread, prev, digest))


def peek(line: bytes) -> tuple[int, int] | None:
    """`seq` and `synced` of a line that is whole and has them; its records are not looked at."""
    try:
        document = orjson.loads(line)
        seq, synced = document["seq"], document["synced"]
    except (ValueError, TypeError, KeyError):
        return None
    return (seq, synced) if type(seq) is type(synced) is int else None


def _sum_of(body: bytes) -> str:
    digest = _FRESH.copy()
    digest.update(body)
    return digest.hexdigest()


def _known(documents: list[object], codec: Codec) -> tuple[tuple[Record, ...], tuple[str, ...]]:
    """The records of an uncritical entry that this version knows, and the tags of the others."""
    known: list[Record] = []
    unread: list[str] = []
    for document in documents:
        try:
            known.append(codec.decode(document))
        except NewerVersion:
            assert isinstance(document, dict)
            unread.append(document["kind"])
    return tuple(known), tuple(unread)
