"""Runs that sample: the tiny run of the tests of the journal, with a ledger in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from milepost.engines.buckets.remote import OpenRemote
from milepost.engines.disks import Disk
from milepost.engines.slots import SteppedSlot
from milepost.journal import Config, Journal, SamplingBoundary
from milepost.journal.driver import Driver
from tests.journal.runs import FakeWatch, StillAmbient, Training, config

START = SamplingBoundary(1, 100, {"offset": 0})


def at(remaining: int, epoch: int = 1) -> SamplingBoundary:
    return SamplingBoundary(epoch, remaining, {"offset": 100 - remaining})


def settings(root: Path | str, *overrides: str) -> Config:
    return config(root, "save_async=false", *overrides)


@contextmanager
def opened(
    settings: Config, *, disk: Disk | None = None, remotes: OpenRemote | None = None
) -> Iterator[tuple[Journal, Training]]:
    """A journal that is open, its trainer, and no step trained."""
    training = Training()
    with Journal.open(
        settings,
        trainer=training.trainer(),
        disk=disk,
        slot=SteppedSlot(),
        watch=FakeWatch(),
        ambient=StillAmbient(),
        remotes=remotes,
        environ={},
    ) as journal:
        yield journal, training


def train_to(journal: Journal, training: Training, until: int) -> None:
    for _ in journal.steps(until=until):
        training.step()


def driver_of(journal: Journal) -> Driver:
    lead = journal._lead
    assert lead is not None
    return lead._driver


def lines(journal: Journal) -> int:
    """How many entries are in the log, synced or not."""
    return sum(path.read_bytes().count(b"\n") for path in Path(journal.run_dir).glob("journal/*.jsonl"))


def carried(root: Path) -> dict[int, bytes]:
    """The sampling file of each checkpoint below this folder, by step."""
    return {int(path.parent.name[5:]): path.read_bytes() for path in root.glob("**/iter_*/sampling.json")}
