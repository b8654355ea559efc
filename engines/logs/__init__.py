"""A run's log as raw bytes: segments that are read, and one that is appended to.

What the bytes mean is decided elsewhere (`milepost.journal`); here a line is opaque and has a number, its `seq`.
The rules that every log keeps, on a disk or in a bucket:

1. A segment has one writer, the one that created it; nobody appends to another's (INV-10).
2. Opening goes in this order, each step after the one before: `claim` (create the next segment, make its name
   durable) · read what came before, newest segment first, which fixes each one's valid length · `resync` what was
   read, for a killed writer's tail may be readable and not durable · `append` the header · `sync` · `fenced`.
3. Before anything is acknowledged: `sync`, then `fenced`. A claim that comes after that look reads what was synced.
4. In a bucket (`slots.py`) `claim` creates nothing: the sync of the header is the claim, and `Busy` where another
   writer was first. What was read is durable there, so that `resync` has nothing to do.
5. An append or sync that failed, or whose outcome is unknown, poisons the appender: it takes nothing more, and what
   is there is decided by opening the log again.
"""

from __future__ import annotations

from typing import BinaryIO, Protocol

from milepost.transitions.run import ClosedSegment

SEGMENT_BYTES = 64 << 20
"""No segment grows beyond this; what would not fit goes to the next."""


class Appender(Protocol):
    """The writer's end of a log. `append` and `sync` may be called from different threads."""

    @property
    def number(self) -> int:
        """The segment that is being written."""
        ...

    @property
    def size(self) -> int:
        """Bytes in that segment: its valid length, should it be closed now."""
        ...

    @property
    def synced(self) -> int:
        """The seq of the last line that is known to be durable, 0 for none."""
        ...

    def has_room(self, size: int) -> bool:
        """Whether a line of `size` bytes still belongs in this segment; if not, `rotate` first."""
        ...

    def append(self, line: bytes, *, seq: int) -> None:
        """Write a line, buffered. The first line of a segment is its header: it is synced before a second one.

        `Unavailable` when it failed or the appender is poisoned.
        """
        ...

    def sync(self) -> int:
        """Make durable what was appended before this call, and answer with `synced`.

        Appends go on meanwhile; concurrent calls share one sync where they can. `Unavailable` as for `append`; in a
        bucket, where a successor's claim is met here, `Fenced` for it, and `Busy` for a header that came second.
        """
        ...

    def fenced(self) -> bool:
        """Whether a successor has claimed the next segment; nothing may be acknowledged from then on."""
        ...

    def rotate(self, header: bytes, *, seq: int) -> None:
        """Go on in segment `number + 1`, whose header closes this one at its present `size`.

        This segment is made durable first, and the header before the call returns. `Fenced` where that segment
        exists; `Unavailable` as for `append`. The caller lets no `append` come between making the header and this.
        """
        ...

    def close(self) -> None:
        """Close the file; syncs nothing. Closing twice is harmless."""
        ...


class Log(Protocol):
    """The segments of one run."""

    def numbers(self) -> tuple[int, ...]:
        """The numbers of all segments, ascending; empty where there is no log yet."""
        ...

    def size(self, number: int) -> int:
        """Bytes in a segment at this moment."""
        ...

    def open(self, number: int, *, start: int = 0, stop: int) -> BinaryIO:
        """A segment's bytes from `start` to `stop`, or to its end where that comes first, as a buffered stream."""
        ...

    def where(self, number: int) -> str:
        """The segment's place as a person would name it; for messages only."""
        ...

    def claim(self) -> Appender:
        """Create the segment after the highest one and make its name durable. See rule 2 for what comes next.

        In a bucket the segment is chosen, and the sync of its header creates it (rule 4).
        """
        ...

    def resync(self, numbers: tuple[int, ...], closes: tuple[ClosedSegment, ...]) -> None:
        """Make every byte of these segments durable, in the order given.

        Of those that nobody closed before, what `closes` says is valid is written once more: where their writer met
        an fsync that failed, the bytes are in the cache, count as clean, and are not on the disk.
        """
        ...
