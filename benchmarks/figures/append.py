"""What one entry of the journal costs, buffered and durable."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from attrs import frozen

from benchmarks.machine import remove
from benchmarks.measuring import Bar, Case, Figure, Options, Sample
from milepost.engines.ambient import SystemAmbient
from milepost.engines.attempts import resolve
from milepost.engines.disks.local import LocalDisk
from milepost.journal import Config
from milepost.journal.driver import Driver
from milepost.journal.opening import Opened, open_attempt
from milepost.transitions.run import AdoptResume
from milepost.transitions.updates import ApplyUpdate, OpenUpdate
from milepost.transitions.values import Clocks, ResumeKind

BUFFERED = "milepost"
DURABLE = "milepost, durable"
WRITE = "write of the same bytes"
SYNCED = "write + fdatasync of the same bytes"
FULL = "SQLite WAL, synchronous=FULL"
NORMAL = "SQLite WAL, synchronous=NORMAL"

_BUFFERED_ENTRIES = 5_000
_DURABLE_ENTRIES = 500


@contextmanager
def append(options: Options) -> Iterator[Figure]:
    """See the bars. Ours is the driver's `submit`: decided, folded, encoded, chained and written."""
    run = BareRun.begin(options.scratch / "run")
    lines = run.lines(_BUFFERED_ENTRIES)
    path = options.scratch / "peer"
    yield Figure(
        name="append",
        title="What an entry of the journal costs",
        facts={"bytes_of_an_entry": sum(map(len, lines)) / len(lines)},
        cases=[
            Case(name=BUFFERED, run=partial(_each, run.submit, _BUFFERED_ENTRIES)),
            Case(name=DURABLE, run=partial(_each, run.submit_durably, _DURABLE_ENTRIES)),
            Case(name=WRITE, run=partial(_written, path, lines), after=partial(remove, path)),
            Case(
                name=SYNCED,
                run=partial(_written, path, lines[:_DURABLE_ENTRIES], then=os.fdatasync),
                after=partial(remove, path),
            ),
            *(
                Case(name=name, run=partial(_inserted, options.scratch / "sqlite", lines[:count], level=level))
                for name, level, count in (
                    (FULL, "FULL", _DURABLE_ENTRIES),
                    (NORMAL, "NORMAL", _BUFFERED_ENTRIES),
                )
            ),
        ],
        bars=[
            Bar(says="buffered: under 25 us", case=BUFFERED, measure="median_us", at_most=25.0),
            Bar(
                says="durable: within 1.3 x write + fdatasync",
                case=DURABLE,
                measure="median_us",
                against=(SYNCED,),
                at_most=1.3,
            ),
            Bar(
                says="durable: below SQLite WAL with synchronous=FULL",
                case=DURABLE,
                measure="median_us",
                against=(FULL,),
                at_most=1.0,
            ),
        ],
    )
    run.opened.close()


@frozen(kw_only=True)
class BareRun:
    """A run that is open, without a trainer: only its journal is of interest."""

    opened: Opened
    folder: Path

    @classmethod
    def begin(cls, folder: Path) -> BareRun:
        folder.mkdir()
        disk, ambient = LocalDisk(folder), SystemAmbient()
        attempt = resolve(disk, "run", resume="off", run_ts="", ambient=ambient)
        opened = open_attempt(Config(), attempt, disk=disk, ambient=ambient, world_size=1)
        fresh = AdoptResume(resume=ResumeKind.FRESH, step=0, source="", save=None, clocks=Clocks(), passed_over=())
        opened.driver.submit(fresh)
        return cls(opened=opened, folder=folder)

    @property
    def driver(self) -> Driver:
        return self.opened.driver

    def submit(self, index: int) -> None:
        self.driver.submit(OpenUpdate(step=index // 2 + 1) if index % 2 == 0 else ApplyUpdate())

    def submit_durably(self, index: int) -> None:
        self.submit(index)
        self.driver.barrier()

    def size(self) -> int:
        """Bytes in the log so far."""
        return self.opened.log.size(self.opened.log.numbers()[-1])

    def lines(self, count: int) -> list[bytes]:
        """The newest `count` lines, after as many were appended."""
        for index in range(count):
            self.submit(index)
        segment = next(self.folder.glob("**/journal/*.jsonl"))
        return segment.read_bytes().splitlines(keepends=True)[-count:]


def _each(run: Callable[[int], object], count: int) -> Sample:
    """The median and the 99th percentile over `count` calls, in microseconds."""
    taken = []
    for index in range(count):
        begun = time.perf_counter()
        run(index)
        taken.append(time.perf_counter() - begun)
    taken.sort()
    return {"median_us": taken[count // 2] * 1e6, "p99_us": taken[count * 99 // 100] * 1e6}


def _written(path: Path, lines: list[bytes], *, then: Callable[[int], object] = lambda _: None) -> Sample:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)

    def write(index: int) -> None:
        os.write(descriptor, lines[index])
        then(descriptor)

    try:
        return _each(write, len(lines))
    finally:
        os.close(descriptor)


def _inserted(folder: Path, lines: list[bytes], *, level: str) -> Sample:
    folder.mkdir()
    database = sqlite3.connect(folder / "journal.db", isolation_level=None)
    database.execute("pragma journal_mode=WAL")
    database.execute(f"pragma synchronous={level}")
    database.execute("create table journal (seq integer primary key, entry blob)")

    def insert(index: int) -> None:
        database.execute("insert into journal values (?, ?)", (index, lines[index]))

    try:
        return _each(insert, len(lines))
    finally:
        database.close()
        remove(folder)
