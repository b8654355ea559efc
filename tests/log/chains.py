"""Small logs made by hand: a chain of entries, and segments that hold them in memory."""

from __future__ import annotations

import io
from collections.abc import Mapping
from hashlib import blake2b
from typing import BinaryIO

from milepost.journal.log.damage import Damaged
from milepost.journal.log.entries import GENESIS, Head, pack
from milepost.journal.log.replay import Folded, fold
from milepost.transitions.errors import NewerVersion
from milepost.transitions.machine import Record
from milepost.transitions.run import ClosedSegment, RunOpened, RunResumed, SegmentOpened
from milepost.transitions.updates import UpdateApplied, UpdateOpened
from milepost.transitions.values import Clocks, ResumeKind, Witness

AT = "2026-11-29T16:09:04.123456Z"


class MemoryLog:
    """The reading half of a log, over bytes that a test may bend as it likes."""

    def __init__(self, segments: Mapping[int, bytes]) -> None:
        self.segments = dict(segments)

    def numbers(self) -> tuple[int, ...]:
        return tuple(sorted(self.segments))

    def size(self, number: int) -> int:
        return len(self.segments[number])

    def open(self, number: int, *, start: int = 0, stop: int) -> BinaryIO:
        return io.BytesIO(self.segments[number][start:stop])

    def where(self, number: int) -> str:
        return f"segment {number}"

    def but(self, number: int, data: bytes) -> MemoryLog:
        return MemoryLog({**self.segments, number: data})

    def without(self, number: int) -> MemoryLog:
        return MemoryLog({n: data for n, data in self.segments.items() if n != number})


class Chain:
    """A writer's chain of entries: every `line` follows the one before."""

    def __init__(self, head: Head = GENESIS, *, epoch: int = 1) -> None:
        self.head = head
        self.epoch = epoch

    def line(self, *records: Record, synced: int = 0) -> bytes:
        raw, self.head = pack(self.head, records, epoch=self.epoch, at=AT, synced=synced)
        return raw

    def opening(self, number: int, *closes: ClosedSegment) -> bytes:
        """The header with which a new writer begins an epoch in segment `number`."""
        return self.line(SegmentOpened(number=number, closes=closes), run_opened(self.epoch), synced=self.head.seq)

    def closing(self, number: int, length: int, *, left: int = 0) -> ClosedSegment:
        """What a header says of a segment that ends where this chain stands."""
        return ClosedSegment(number=number, length=length, seq=self.head.seq, sum=self.head.sum, left=left)


def run_opened(epoch: int) -> RunOpened:
    return RunOpened(
        epoch=epoch,
        execution_id="job-1",
        run_ts="20261129-160904",
        nonce=f"n{epoch}",
        host="host",
        pid=7,
        milepost="0.1",
        world_size=1,
    )


RESUMED = RunResumed(resume=ResumeKind.FRESH, step=0, source="", save=None, clocks=Clocks(), passed_over=(), notes=())


def opened(attempt: int) -> UpdateOpened:
    return UpdateOpened(attempt=attempt, step=attempt)


def applied(attempt: int) -> UpdateApplied:
    return UpdateApplied(attempt=attempt)


def sample() -> tuple[MemoryLog, list[list[bytes]], dict[str, Witness]]:
    """Three segments, their lines, and a witness of an entry in each.

    The first is cut where its writer was overtaken, with whole entries behind the cut. The third ends in lines that
    were not all known to be durable.
    """
    first = Chain()
    one = [first.opening(1), first.line(RESUMED, synced=1), first.line(opened(1), synced=2)]
    cut = first.closing(1, sum(map(len, one)))
    second = Chain(first.head, epoch=2)
    evidence = first.line(applied(1), synced=2) + first.line(opened(2), synced=4)
    two = [second.opening(2, leaving(cut, len(evidence))), second.line(RESUMED, synced=4)]
    seen = Witness(seq=second.head.seq, sum=second.head.sum)
    two.append(second.line(opened(1), synced=5))
    third = Chain(second.head, epoch=3)
    three = [third.opening(3, second.closing(2, sum(map(len, two))))]
    three += [third.line(RESUMED, synced=7), third.line(opened(1), synced=8)]
    three += [third.line(applied(1), synced=8), third.line(opened(2), synced=9)]
    log = MemoryLog({1: b"".join(one) + evidence, 2: b"".join(two), 3: b"".join(three)})
    return log, [one, two, three], {"iter_000000001": seen}


def leaving(closed: ClosedSegment, left: int) -> ClosedSegment:
    return ClosedSegment(number=closed.number, length=closed.length, seq=closed.seq, sum=closed.sum, left=left)


def answer(log: MemoryLog, witnesses: Mapping[str, Witness] | None = None) -> str:
    """The class of the answer, and the codes that led to it: `clean`, `torn: …`, `corrupt: …`, `lost: …`, `newer`."""
    found = attempt(log, witnesses)
    if isinstance(found, Damaged):
        return f"{found.finding.row.verdict.value}: {found.finding.row.code}"
    if isinstance(found, NewerVersion):
        return "newer"
    return "torn: " + ", ".join(f.row.code for f in found.torn) if found.torn else "clean"


def attempt(log: MemoryLog, witnesses: Mapping[str, Witness] | None = None) -> Folded | Damaged | NewerVersion:
    try:
        return fold(log, witnesses=witnesses or {})
    except (Damaged, NewerVersion) as error:
        return error


def resealed(line: bytes, old: bytes, new: bytes) -> bytes:
    """The line with other content under a right sum: what a faulty or a newer writer would have written."""
    body = line[: line.rindex(b',"sum":')]
    assert body.count(old) == 1
    body = body.replace(old, new)
    return body + b',"sum":"%b"}\n' % blake2b(body, digest_size=16).hexdigest().encode()
