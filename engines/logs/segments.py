"""The log on a disk: `journal/00000001.jsonl`, `journal/00000002.jsonl`, … below the run's directory.

A name is the segment's number in at least eight digits; every other name in the folder is somebody else's. The rules
are those of the package. Every failure of the disk is `Unavailable`.
"""

from __future__ import annotations

import io
import re
import threading
from contextlib import suppress
from types import TracebackType
from typing import BinaryIO, cast

from typing_extensions import Buffer

from milepost.engines.disks import Disk, Sink, Source, write_all
from milepost.engines.logs import SEGMENT_BYTES
from milepost.transitions.errors import Fenced, MilepostError, Unavailable
from milepost.transitions.run import ClosedSegment

_NAME = re.compile(r"(\d{8,})\.jsonl", re.ASCII)
_READ_AHEAD_BYTES = 1 << 18
_REWRITE_BYTES = 4 << 20


class SegmentLog:
    """A `Log` in `folder` of `disk`. A claim needs the folder to be there."""

    def __init__(self, disk: Disk, *, folder: str = "journal", segment_bytes: int = SEGMENT_BYTES) -> None:
        self._disk = disk
        self._folder = folder
        self._segment_bytes = segment_bytes

    def path(self, number: int) -> str:
        """The segment's path on the disk."""
        return f"{self._folder}/{number:08d}.jsonl"

    def where(self, number: int) -> str:
        return self._disk.where(self.path(number))

    def numbers(self) -> tuple[int, ...]:
        with _Reaching("list the journal"):
            try:
                names = self._disk.names(self._folder)
            except FileNotFoundError:
                return ()
        digits = [match[1] for match in map(_NAME.fullmatch, names) if match]
        return tuple(sorted(int(text) for text in digits if f"{int(text):08d}" == text))

    def size(self, number: int) -> int:
        with _Reaching(f"open segment {number}"), self._disk.open(self.path(number)) as source:
            return source.size

    def open(self, number: int, *, start: int = 0, stop: int) -> BinaryIO:
        with _Reaching(f"open segment {number}"):
            source = self._disk.open(self.path(number))
        return cast(BinaryIO, io.BufferedReader(_Window(source, start, stop), _READ_AHEAD_BYTES))

    def claim(self) -> SegmentAppender:
        with _Reaching("claim a segment of the journal"):
            while True:
                number = max(self.numbers(), default=0) + 1
                # Another opener may be faster; then the next number is tried.
                with suppress(FileExistsError):
                    return SegmentAppender(self, number, self.create(number))

    def resync(self, numbers: tuple[int, ...], closes: tuple[ClosedSegment, ...]) -> None:
        valid = {closed.number: closed.length for closed in closes}
        for number in numbers:
            with _Reaching(f"make segment {number} durable"):
                self._write_again(number, valid.get(number, 0))
                self._disk.sync_file(self.path(number))

    def _write_again(self, number: int, length: int) -> None:
        for offset in range(0, length, _REWRITE_BYTES):
            part = bytearray(min(_REWRITE_BYTES, length - offset))
            with self._disk.open(self.path(number)) as source:
                count = source.read_into(offset, part)
            self._disk.rewrite(self.path(number), offset=offset, data=memoryview(part)[:count])

    def create(self, number: int) -> Sink:
        """Create exactly this segment and make its name durable; `OSError` as the disk has it."""
        sink = self._disk.create(self.path(number))
        try:
            self._disk.sync_dir(self._folder)
        except BaseException:
            sink.close()
            raise
        return sink

    def exists(self, number: int) -> bool:
        """Whether there is a segment of this number, whatever is in it."""
        with _Reaching(f"look for segment {number}"):
            return self._disk.stat(self.path(number)) is not None

    @property
    def segment_bytes(self) -> int:
        """The size that no segment exceeds, but for one that holds a single line behind its header."""
        return self._segment_bytes


class SegmentAppender:
    """The `Appender` of a segment that was just created.

    Two locks: `_appending` is held while bytes are written and never while a disk syncs; `_syncing` lets one sync run
    at a time, so that those who waited for it find their lines durable already. `_syncing` is taken first.
    """

    def __init__(self, log: SegmentLog, number: int, sink: Sink) -> None:
        self._log = log
        self._number = number
        self._sink = sink
        self._size = 0
        self._lines = 0
        self._appended = 0
        self._synced = 0
        self._dead: MilepostError | None = None
        self._appending = threading.Lock()
        self._syncing = threading.Lock()

    @property
    def number(self) -> int:
        return self._number

    @property
    def size(self) -> int:
        return self._size

    @property
    def synced(self) -> int:
        return self._synced

    def has_room(self, size: int) -> bool:
        return self._lines < 2 or self._size + size <= self._log.segment_bytes

    def append(self, line: bytes, *, seq: int) -> None:
        with self._appending:
            self._require_alive()
            assert self._lines == 0 or self._synced, "a header is durable before anything follows it"
            assert seq > self._appended, f"entry {seq} after entry {self._appended}"
            with _OrDie(self, f"append entry {seq}"):
                write_all(self._sink, line)
            self._size += len(line)
            self._lines += 1
            self._appended = seq

    def sync(self) -> int:
        with self._syncing:
            with self._appending:
                self._require_alive()
                appended = self._appended
            self._sync_up_to(appended)
            return self._synced

    def fenced(self) -> bool:
        with self._appending:  # or the segment that another thread rotates to would pass for a successor's
            return self._log.exists(self._number + 1)

    def rotate(self, header: bytes, *, seq: int) -> None:
        with self._syncing, self._appending:
            self._require_alive()
            self._sync_up_to(self._appended)
            with _OrDie(self, f"go on in segment {self._number + 1}"):
                sink = self._log.create(self._number + 1)
                write_all(sink, header)
                sink.sync()
                self._sink.close()
            self._sink, self._number = sink, self._number + 1
            self._size, self._lines = len(header), 1
            self._appended = self._synced = seq

    def close(self) -> None:
        with _Reaching(f"close segment {self._number}"):
            self._sink.close()

    def _sync_up_to(self, appended: int) -> None:
        if appended > self._synced:
            with _OrDie(self, f"make entry {appended} durable"):
                self._sink.sync()
            self._synced = appended

    def _require_alive(self) -> None:
        if self._dead is not None:
            raise type(self._dead)(f"{self._dead} (an earlier failure; this writer records nothing more)")

    def die(self, what: str, error: BaseException) -> MilepostError:
        """Take nothing more; what a caller is told from now on."""
        if isinstance(error, FileExistsError):
            self._dead = Fenced(f"cannot {what}: another writer has claimed it and owns the run now; stop this one")
        else:
            self._dead = Unavailable(
                f"cannot {what} in {self._log.where(self._number)}: {error!r}; what was acknowledged before is safe, "
                "open the run again to find out about the rest"
            )
        return self._dead


class _Window(io.RawIOBase):
    """Bytes `start` to `stop` of a source, as a stream that owns it."""

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self._source = source
        self._at = start
        self._stop = stop

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        room = memoryview(buffer)[: max(self._stop - self._at, 0)]
        with _Reaching(f"read the journal at byte {self._at}"):
            count = self._source.read_into(self._at, room) if room else 0
        self._at += count
        return count

    def close(self) -> None:
        super().close()
        self._source.close()


class _Reaching:
    """An `OSError` inside becomes `Unavailable`. A class: a generator costs more than what most blocks do."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise Unavailable(
                f"cannot {self._what}: {error}; what was acknowledged is safe, look at the disk and try again"
            ) from error


class _OrDie:
    """Whatever interrupts the block leaves the file in a state that only reading it again can tell."""

    def __init__(self, appender: SegmentAppender, what: str) -> None:
        self._appender = appender
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        death = self._appender.die(self._what, error)
        if isinstance(error, OSError):
            raise death from error
