"""A driver whose journal is in a bucket, and those that follow it."""

from __future__ import annotations

import pytest

from milepost.engines.attempts import make_directories
from milepost.engines.checkpoints.local import LocalCheckpoints
from milepost.engines.logs.slots import SlotLog
from milepost.engines.perform import Engines
from milepost.engines.simulated import SimulatedDisk
from milepost.engines.simulated.bucket import SimulatedBucket, StoreFault
from milepost.journal.driver import Driver
from milepost.journal.log.foldcache import FoldCache
from milepost.journal.log.replay import fold
from milepost.transitions.errors import Fenced, Unavailable
from milepost.transitions.run import AdoptResume, OpenRun
from milepost.transitions.updates import ApplyUpdate, OpenUpdate
from milepost.transitions.values import Clocks, ResumeKind
from tests.journal.runs import StillAmbient
from tests.log.slots import heads, named


class Process:
    """A process that opens a run whose journal is in a bucket: what `journal.opening` does, over a `SlotLog`."""

    def __init__(self, bucket: SimulatedBucket, disk: SimulatedDisk, name: str) -> None:
        ambient = StillAmbient()
        self.log = SlotLog(bucket.process(name), nonce=named(name))
        appender = self.log.claim()
        checkpoints = LocalCheckpoints(
            disk=disk,
            root="checkpoints",
            artifacts="checkpoint_artifacts",
            fence=lambda: None,
            algorithm="blake3",
            crc32=False,
        )
        checkpoints.prepare()
        folded = fold(self.log, below=appender.number, cache=FoldCache(disk, folder="kept"))
        engines = Engines(
            checkpoints=checkpoints,
            run_ts="20261129-160904",
            checkpoint_format="consolidated",
            world_size=1,
            milepost="0",
        )
        self.folded = folded
        self.driver = Driver(
            appender=appender, engines=engines, ambient=ambient, state=folded.state, head=folded.head
        )
        self.driver.submit(
            OpenRun(
                segment=appender.number,
                closes=folded.closes,
                execution_id="job",
                run_ts="20261129-160904",
                nonce=ambient.nonce(),
                host="host",
                pid=7,
                milepost="0",
                world_size=1,
            )
        )
        self.driver.drain()
        clocks = Clocks()
        self.driver.submit(
            AdoptResume(resume=ResumeKind.FRESH, step=0, source="", save=None, clocks=clocks, passed_over=())
        )
        self.step = 0

    def train(self) -> None:
        self.step += 1
        self.driver.submit(OpenUpdate(step=self.step))
        self.driver.submit(ApplyUpdate())


@pytest.fixture
def disk() -> SimulatedDisk:
    made = SimulatedDisk()
    make_directories(made, "kept")
    return made


def test_a_driver_writes_to_a_bucket_and_the_next_one_goes_on(disk: SimulatedDisk) -> None:
    bucket = SimulatedBucket()
    one = Process(bucket, disk, "one")
    for _ in range(3):
        one.train()
        told = one.driver.barrier()
    assert told == heads(bucket)[-1]
    assert fold(SlotLog(bucket, nonce=named("r"))).state == one.driver.state
    durable = one.driver.durable
    assert durable is not None
    FoldCache(disk, folder="kept").store(*durable)
    two = Process(bucket, disk, "two")
    assert (two.folded.head.seq, two.folded.entries) == (told.seq, 0)
    two.train()
    assert two.driver.state.run.epoch == 2
    assert two.driver.barrier() == heads(bucket)[-1]
    with pytest.raises(Fenced, match="another writer"):
        one.driver.barrier()
    with pytest.raises(Fenced, match="stopped recording"):
        one.train()
    assert fold(SlotLog(bucket, nonce=named("r"))).state == two.driver.state


def test_a_driver_that_was_overtaken_records_nothing_of_what_it_did_since(disk: SimulatedDisk) -> None:
    bucket = SimulatedBucket()
    one = Process(bucket, disk, "one")
    one.train()
    one.driver.barrier()
    two = Process(bucket, disk, "two")
    two.driver.barrier()
    before = bucket.tree()
    one.train()
    with pytest.raises(Fenced, match=r"taken by another writer \(two-1, segment 2\)"):
        one.driver.barrier()
    assert bucket.tree() == before
    assert one.driver.durable is not None
    assert one.driver.durable[0].head.seq < one.driver.head.seq


def test_a_driver_that_cannot_tell_whether_it_recorded_stops(disk: SimulatedDisk) -> None:
    bucket = SimulatedBucket()
    one = Process(bucket, disk, "one")
    told = one.driver.barrier()
    one.train()
    bucket.store.faults = lambda site: (
        StoreFault(applied="late") if site.verb == "put" else StoreFault(status=500) if site.verb == "fetch" else None
    )
    with pytest.raises(Unavailable, match="not known"):
        one.driver.barrier()
    bucket.store.faults = lambda _site: None
    with pytest.raises(Unavailable, match="stopped recording"):
        one.train()
    assert heads(bucket)[-1] == told
    bucket.land()
    assert len(heads(bucket)) == told.seq + 2
    two = Process(bucket, disk, "two")
    assert (two.folded.head.seq, two.folded.state.updates.clocks.attempt_id) == (told.seq + 2, 1)
