"""How fast a journal is folded, and how long a run of a certain age takes to open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import orjson
import torch

from benchmarks.machine import fill_cache, remove
from benchmarks.measuring import Bar, Case, Figure, Options, Sample, timed
from milepost.engines.disks.local import LocalDisk
from milepost.engines.logs.segments import SegmentLog
from milepost.engines.trainers import PlainTrainer
from milepost.journal import Config, Journal
from milepost.journal.log.replay import fold

_CACHE = "fold-cache"


@contextmanager
def replay(options: Options) -> Iterator[Figure]:
    """See the bars."""
    runs = {entries: options.scratch / f"{entries}-entries" for entries in options.entries}
    journals = {entries: _grow(folder, entries) for entries, folder in runs.items()}
    largest = max(runs)
    yield Figure(
        name="replay",
        title="How fast a journal is folded, and a run opened",
        facts={
            f"bytes of {entries:,} entries": sum(file.stat().st_size for file in journal.glob("*.jsonl"))
            for entries, journal in journals.items()
        },
        cases=[
            Case(
                name=f"JSON alone, {largest:,} entries",
                run=partial(_parsed, journals[largest], largest),
                before=partial(fill_cache, journals[largest]),
            ),
            *(case for entries, folder in runs.items() for case in _cases(entries, folder, journals[entries])),
        ],
        bars=[
            Bar(
                says=f"over 150,000 entries a second are folded, of {largest:,}",
                case=f"fold {largest:,} entries",
                measure="entries_per_s",
                at_least=150_000.0,
            ),
            Bar(
                says=f"a run of {largest:,} entries opens in under 0.5 s through its fold cache",
                case=f"open {largest:,} entries, fold cache",
                measure="open_s",
                at_most=0.5,
            ),
        ],
    )


def _grow(folder: Path, entries: int) -> Path:
    """A run with this many entries, made by a loop; the folder of its journal."""
    with _open(folder) as journal:
        for _ in journal.steps(until=entries // 2):
            pass
    return next(folder.glob("**/journal"))


def _open(folder: Path) -> Journal:
    config = Config.load({"run": {"output_root": str(folder)}})
    return Journal.open(config, trainer=PlainTrainer(model=torch.nn.Linear(1, 1)))


def _cases(entries: int, folder: Path, journal: Path) -> Iterator[Case]:
    warm = partial(fill_cache, journal)
    yield Case(name=f"fold {entries:,} entries", run=partial(_folded, journal), before=warm)
    yield Case(name=f"open {entries:,} entries, fold cache", run=partial(_opened, folder), before=warm)
    yield Case(
        name=f"open {entries:,} entries, no fold cache",
        run=partial(_opened, folder),
        before=partial(remove, journal / _CACHE),
    )


def _folded(journal: Path) -> Sample:
    log = SegmentLog(LocalDisk(journal.parent), folder=journal.name)
    fold_s, folded = timed(partial(fold, log))
    return {"fold_s": fold_s, "entries_per_s": folded.entries / fold_s}


def _opened(folder: Path) -> Sample:
    open_s, journal = timed(partial(_open, folder))
    journal.close()
    return {"open_s": open_s}


def _parsed(journal: Path, entries: int) -> Sample:
    """What reading the lines and parsing them costs: no sum, no record, no state."""

    def parse() -> None:
        for segment in sorted(journal.glob("*.jsonl")):
            with segment.open("rb") as stream:
                for line in stream:
                    orjson.loads(line)

    fold_s, _ = timed(parse)
    return {"fold_s": fold_s, "entries_per_s": entries / fold_s}
