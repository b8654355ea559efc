"""Which bytes of a log count: segments and witnesses in, a verified chain of entries out. No effect, no clock.

1. `survey` goes from the newest segment back. The newest valid header closes what it lists, at the lengths it states;
   each closed segment's own header, if it lies within that length, closes what came before. A segment is closed by a
   successor's valid header, not by a successor's existence, and what lies behind a stated length is evidence and is
   never folded, even if it chains (INV-10).
2. At most one surveyed segment with a valid header is open: the newest such. Its end is fixed when it is surveyed.
   Segments after it have no valid header and count for nothing.
3. `Scan` then goes forward, oldest first, line by line with bounded memory, and checks every sum, every link, every
   stated end and every witness.
4. What is found that should not be there is a row of `damage.TABLE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import BinaryIO, NoReturn

from attrs import frozen

from milepost.engines.logs import Log
from milepost.journal.log import damage
from milepost.journal.log.codec import CODEC, Codec
from milepost.journal.log.damage import Damaged, Finding, Row
from milepost.journal.log.entries import BEGINNING, GENESIS, LINE_LIMIT_BYTES, Entry, Head, is_whole, peek, unpack
from milepost.transitions.errors import Corrupt, NewerVersion
from milepost.transitions.run import ClosedSegment, SegmentOpened
from milepost.transitions.values import Witness

NO_WITNESSES: Mapping[str, Witness] = MappingProxyType({})


@frozen(kw_only=True)
class Span:
    """Bytes 0 to `stop` of a segment that count, or may: `closed` is what a successor's header states of it."""

    number: int
    stop: int
    closed: ClosedSegment | None


@frozen(kw_only=True)
class Survey:
    """Who closes whom. `spans` oldest first; `half_born` are the segments behind them that count for nothing."""

    spans: tuple[Span, ...]
    half_born: tuple[ClosedSegment, ...]
    torn: tuple[Finding, ...]
    numbers: tuple[int, ...]


@frozen(kw_only=True)
class Mark:
    """A place between two entries: in segment `number`, `offset` bytes from its start, behind the entry `head`."""

    number: int
    offset: int
    head: Head


@frozen(kw_only=True)
class Scanned:
    """What a pass over the log came to.

    `end` is where the log ends (in segment 0 for an empty one); `closes` belongs in the next segment's header; `torn`
    is what was set aside.
    """

    end: Mark
    closes: tuple[ClosedSegment, ...]
    torn: tuple[Finding, ...]


def survey(log: Log, *, below: int | None = None, codec: Codec = CODEC) -> Survey:
    """Fix which bytes of which segments count, newest first; only segments before `below` are looked at.

    Raises `Damaged` for a segment that does not fit its successors' headers, `NewerVersion` for a header that this
    version cannot read.
    """
    numbers = tuple(number for number in log.numbers() if below is None or number < below)
    stated: dict[int, ClosedSegment] = {}
    spans: list[Span] = []
    half_born: list[ClosedSegment] = []
    torn: list[Finding] = []
    for number in reversed(numbers):
        place = _Place(log, number)
        closed = stated.get(number)
        if closed is None and spans:
            place.refuse(damage.UNCLOSED, expected="a later header that closes it", found="none that lists it")
        if closed is not None and closed.length == 0:
            continue
        size = log.size(number)
        if closed is not None and size < closed.length:
            place.refuse(damage.CLOSED_OTHERWISE, expected=f"{closed.length} bytes", found=f"{size}")
        stop = size if closed is None else closed.length
        with log.open(number, stop=stop) as stream:
            line = stream.readline(LINE_LIMIT_BYTES + 1)
            if is_whole(line):
                stated |= _closed_by(place, line, numbers, stated, codec)
                spans.append(Span(number=number, stop=stop, closed=closed))
                continue
            if closed is not None:
                place.refuse(damage.CLOSED_LINE, expected="a header", found=_describe(line))
            if next(_entries_behind(line, stream), None) is not None:
                place.refuse(damage.HEADLESS, expected="a header", found=_describe(line))
        half_born.append(ClosedSegment(number=number, length=0, seq=0, sum="", left=size))
        if size:
            torn.append(place.finding(damage.HALF_BORN, expected="a header", found=_describe(line)))
    return Survey(
        spans=tuple(reversed(spans)),
        half_born=tuple(reversed(half_born)),
        torn=tuple(reversed(torn)),
        numbers=tuple(reversed(numbers)),
    )


class Scan:
    """One pass over the entries that a survey found to count, oldest first; `result` once it is through.

    `witnesses` are keyed by the manifest that carries each. A pass that begins at a mark checks nothing before it,
    witnesses included. Iterating raises `Damaged` or `NewerVersion` at the first finding that is not torn.
    """

    def __init__(
        self,
        log: Log,
        surveyed: Survey,
        *,
        witnesses: Mapping[str, Witness] = NO_WITNESSES,
        start: Mark | None = None,
        codec: Codec = CODEC,
    ) -> None:
        self._log = log
        self._survey = surveyed
        self._codec = codec
        self._mark = start or Mark(number=0, offset=0, head=GENESIS)
        by_seq = sorted(((w.seq, w.sum, name) for name, w in witnesses.items()), reverse=True)
        self._witnesses = [witness for witness in by_seq if witness[0] >= self._mark.head.seq]
        self._torn: list[Finding] = []
        self._result: Scanned | None = None
        self._yielded = (0, 0, 0)

    def __iter__(self) -> Iterator[Entry]:
        mark = self._mark
        self._check_witnesses(_Place(self._log, mark.number, mark.offset, mark.head.seq), mark.head)
        for span in self._survey.spans:
            if span.number >= self._mark.number:
                yield from self._entries_of(span)
        self._finish()

    @property
    def result(self) -> Scanned:
        """What the pass came to; only when the iteration has ended by itself."""
        assert self._result is not None, "the log was not read to its end"
        return self._result

    def refuse(self, row: Row, *, expected: str, found: str) -> NoReturn:
        """Refuse the entry that was yielded last, for what its reader found in it."""
        _Place(self._log, *self._yielded).refuse(row, expected=expected, found=found)

    def _entries_of(self, span: Span) -> Iterator[Entry]:
        log, codec = self._log, self._codec
        head = self._mark.head
        offset = self._mark.offset if span.number == self._mark.number else 0
        seq, digest, epoch = head.seq, head.sum, head.epoch
        next_witness = self._next_witness()
        with log.open(span.number, start=offset, stop=span.stop) as stream:
            while line := stream.readline(LINE_LIMIT_BYTES + 1):
                if not is_whole(line):
                    self._judge(span, _Place(log, span.number, offset, seq + 1), line, stream)
                    break
                try:
                    entry = unpack(line, codec=codec)
                except Corrupt as error:
                    _Place(log, span.number, offset, seq + 1).refuse_entry(error)
                if entry.seq != seq + 1 or entry.prev != digest:
                    _refuse_link(_Place(log, span.number, offset, seq + 1), entry, digest)
                seq, digest, epoch = entry.seq, entry.sum, entry.epoch
                if seq == next_witness:
                    self._check_witnesses(_Place(log, span.number, offset, seq), entry.head)
                    next_witness = self._next_witness()
                self._yielded = (span.number, offset, seq)
                yield entry
                offset += len(line)
        stated = span.closed
        if stated is not None and (offset, seq, digest) != (stated.length, stated.seq, stated.sum):
            _Place(log, span.number, offset, seq).refuse(
                damage.CLOSED_OTHERWISE,
                expected=f"the end at byte {stated.length} behind entry {stated.seq} with sum {stated.sum}",
                found=f"the end at byte {offset} behind entry {seq} with sum {digest}",
            )
        self._mark = Mark(number=span.number, offset=offset, head=Head(seq=seq, sum=digest, epoch=epoch))

    def _judge(self, span: Span, place: _Place, line: bytes, stream: BinaryIO) -> None:
        """A bad line: refuse it, or set it aside as torn with all that follows it."""
        expected = f"entry {place.seq}"
        if span.closed is not None:
            place.refuse(damage.CLOSED_LINE, expected=expected, found=_describe(line))
        found = _describe(line)
        for later, synced in _entries_behind(line, stream):
            if synced >= place.seq:
                found = f"{found}, and entry {later} behind it, which knew entry {synced} to be durable"
                place.refuse(damage.SYNCED_LINE, expected=expected, found=found)
        self._torn.append(place.finding(damage.TORN_TAIL, expected=expected, found=found))

    def _next_witness(self) -> int:
        return self._witnesses[-1][0] if self._witnesses else 0

    def _check_witnesses(self, place: _Place, head: Head) -> None:
        while self._witnesses and self._witnesses[-1][0] == head.seq:
            _, digest, name = self._witnesses.pop()
            if digest != head.sum:
                place.refuse(damage.WITNESS_DIFFERS, expected=f"sum {digest} as {name} says", found=f"sum {head.sum}")

    def _finish(self) -> None:
        end, surveyed = self._mark, self._survey
        torn = (*self._torn, *surveyed.torn)
        if self._witnesses:
            seq, digest, name = self._witnesses[0]
            expected = f"entries up to {seq} with sum {digest}, which {name} saw durable"
            if torn:
                _Place(self._log, torn[0].segment, torn[0].offset, end.head.seq + 1).refuse(
                    damage.WITNESSED_LINE, expected=expected, found=torn[0].found
                )
            _Place(self._log, end.number, end.offset, end.head.seq + 1).refuse(
                damage.LOST_HEAD, expected=expected, found=f"the end of the log behind entry {end.head.seq}"
            )
        closes = surveyed.half_born
        if surveyed.spans:
            left = surveyed.spans[-1].stop - end.offset
            last = ClosedSegment(number=end.number, length=end.offset, seq=end.head.seq, sum=end.head.sum, left=left)
            closes = (last, *closes)
        self._result = Scanned(end=end, closes=closes, torn=torn)


@frozen
class _Place:
    """Where something is found, and which entry should be there."""

    log: Log
    number: int
    offset: int = 0
    seq: int = 0

    def finding(self, row: Row, *, expected: str, found: str) -> Finding:
        where = self.log.where(self.number) if self.number else "the journal"
        return Finding(
            row=row,
            segment=self.number,
            where=where,
            offset=self.offset,
            seq=self.seq,
            expected=expected,
            found=found,
        )

    def refuse(self, row: Row, *, expected: str, found: str) -> NoReturn:
        raise Damaged(self.finding(row, expected=expected, found=found))

    def refuse_entry(self, error: Corrupt) -> NoReturn:
        """A whole line that cannot be read."""
        if isinstance(error, NewerVersion):
            finding = self.finding(damage.NEWER, expected="an entry that this version knows", found=str(error))
            raise NewerVersion(str(finding)) from error
        finding = self.finding(damage.UNREADABLE, expected="an entry of its form", found=str(error))
        raise Damaged(finding) from error


def _closed_by(
    place: _Place, line: bytes, numbers: tuple[int, ...], stated: Mapping[int, ClosedSegment], codec: Codec
) -> dict[int, ClosedSegment]:
    """What the segment's header closes, by number."""
    try:
        header = unpack(line, codec=codec)
    except Corrupt as error:
        place.refuse_entry(error)
    first = header.records[0] if header.records else None
    if not isinstance(first, SegmentOpened) or first.number != place.number:
        place.refuse(damage.MISPLACED, expected=f"the header of segment {place.number}", found=_brief(first))
    closed: dict[int, ClosedSegment] = {}
    for segment in first.closes:
        if segment.number >= place.number or segment.number in stated or segment.number in closed:
            place.refuse(damage.MISPLACED, expected="earlier segments, each closed once", found=_brief(segment))
        if segment.length and segment.number not in numbers:
            found = f"no segment {segment.number}"
            place.refuse(damage.CLOSED_OTHERWISE, expected=f"{segment.length} bytes of it", found=found)
        closed[segment.number] = segment
    return closed


def _refuse_link(place: _Place, entry: Entry, digest: str) -> NoReturn:
    if entry.seq != place.seq:
        place.refuse(damage.GAP, expected=f"entry {place.seq}", found=f"entry {entry.seq}")
    place.refuse(damage.SPLICED, expected=f"prev {digest}", found=f"prev {entry.prev}")


def _entries_behind(line: bytes, stream: BinaryIO) -> Iterator[tuple[int, int]]:
    """`seq` and `synced` of every whole entry from a bad line to the end of the stream.

    A hole or a lost newline may have glued an entry to what is before it, so each line is searched for the last place
    at which an entry begins. At most two lines' worth of bytes is held, whatever the stream holds.
    """
    while line:
        if line.endswith(b"\n"):
            starts = [match.start() for match in BEGINNING.finditer(line)]
            entry = line[starts[-1] :] if starts else b""
            if is_whole(entry) and (found := peek(entry)):
                yield found
            line = b""
        rest = stream.readline(LINE_LIMIT_BYTES + 1)
        line = line[-LINE_LIMIT_BYTES:] + rest if rest else b""


def _describe(line: bytes) -> str:
    if not line:
        return "nothing"
    if len(line) > LINE_LIMIT_BYTES:
        return f"a line of more than {LINE_LIMIT_BYTES} bytes"
    if not line.strip(b"\0\n"):
        return f"{len(line)} NUL bytes"
    if not line.endswith(b"\n"):
        return f"{len(line)} bytes without a newline"
    return f"a line of {len(line)} bytes whose sum differs"


def _brief(record: object) -> str:
    text = str(record)
    return text if len(text) <= 200 else f"{text[:200]}…"
