"""What may be wrong around a run: another writer, a full disk, a failing disk, values that cannot be saved."""

from __future__ import annotations

import errno
from hashlib import blake2b
from typing import Any

import orjson
import pytest
import torch

from milepost.engines.simulated import Fault, SimulatedDisk, Site
from milepost.engines.trainers import Snapshot
from milepost.journal.forensics.reading import Place
from milepost.journal.forensics.verifying import verify
from milepost.transitions.errors import Busy, MilepostError, NewerVersion, Refused, Unavailable
from milepost.transitions.values import Plan
from tests.crash.world import Run, TinyTrainer
from tests.damage.images import SETTINGS, disk_of, ended, start

CHANGING = (
    "create",
    "write",
    "mkdir",
    "rename",
    "publish",
    "link",
    "unlink",
    "rmdir",
    "sync",
    "sync_file",
    "sync_dir",
)


def visible(disk: SimulatedDisk) -> dict[str, object]:
    return dict(disk.tree())


def test_a_second_writer_is_told_who_holds_the_run_and_touches_nothing() -> None:
    disk = disk_of(ended().files)
    first = Run(disk, "first", config=SETTINGS)
    before = visible(disk)
    with pytest.raises(Busy, match=r"process 1 on host \(epoch 3\)"):
        Run(disk, "second", config=SETTINGS)
    assert visible(disk) == before
    first.train(1)
    first.close()
    assert Run(disk, "third", config=SETTINGS).step == 4


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EIO])
def test_a_disk_that_cannot_be_written_is_one_clear_error_and_nothing_changes(code: int) -> None:
    run = ended()
    disk = disk_of(run.files)
    before = visible(disk)
    disk.hardware.faults = lambda site: Fault(error=code) if site.verb in CHANGING else None
    with pytest.raises(Unavailable, match=r"cannot be used: .*make"):
        Run(disk, "opener", config=SETTINGS)
    assert visible(disk) == before
    disk.hardware.faults = lambda _site: None
    assert Run(disk, "later", config=SETTINGS).step == run.step


@pytest.mark.parametrize("verb", ["read_into", "names", "stat", "open"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_whatever_cannot_be_read_at_a_start_is_one_typed_error(verb: str, code: int) -> None:
    """Each read of a start fails in turn."""
    run = ended()
    disk = disk_of(run.files)
    length = len(disk.trace)
    Run(disk, "opener", config=SETTINGS)
    reads = [index - length for index, one in enumerate(disk.trace) if index >= length and one.verb == verb]
    assert reads
    for index in reads:
        disk = disk_of(run.files)
        disk.hardware.faults = lambda site, at=length + index: Fault(error=code) if site.index == at else None  # type: ignore[misc]
        try:
            opened = Run(disk, "opener", config=SETTINGS)
        except MilepostError:
            continue
        assert (opened.step, opened.trainer.values()) == (run.step, run.values)


def test_a_save_without_room_is_given_up_before_its_first_byte_and_training_goes_on() -> None:
    disk = disk_of(ended().files)
    run = Run(disk, "opener", config=SETTINGS)
    disk.hardware.free_bytes = 1 << 20
    run.train(1)
    with pytest.raises(Unavailable, match="no-space"):
        run.finish()
    assert not [path for path in visible(disk) if "iter_000000004" in path]
    disk.hardware.free_bytes = 1 << 40
    run.train(1)
    run.finish()
    assert sorted(run.journal.state.saving.sealed) == [1, 2, 3, 5]


def test_a_disk_that_fills_up_in_the_middle_of_a_save_leaves_the_checkpoints_before_it() -> None:
    disk = disk_of(ended().files)
    run = Run(disk, "opener", config=SETTINGS)
    disk.hardware.faults = lambda site: _full(site, below="/.staging/")
    run.train(1)
    with pytest.raises(Unavailable, match="ENOSPC"):
        run.finish()
    disk.hardware.faults = lambda _site: None
    run.train(1)
    run.close()
    assert sorted(run.journal.state.saving.sealed) == [1, 2, 3, 5]
    assert Run(disk, "later", config=SETTINGS).step == 5


def test_a_journal_that_cannot_grow_stops_its_writer_and_the_next_start_resumes() -> None:
    run = ended()
    disk = disk_of(run.files)
    writer = Run(disk, "opener", config=SETTINGS)
    disk.hardware.faults = lambda site: _full(site, below="/journal/")
    with pytest.raises(Unavailable):
        writer.train(1)
    disk.hardware.faults = lambda _site: None
    with pytest.raises(Unavailable, match="stopped recording"):
        writer.train(1)
    writer.process.kill()
    assert Run(disk, "later", config=SETTINGS).trainer.values() == run.values


def _full(site: Site, *, below: str) -> Fault | None:
    return Fault(error=errno.ENOSPC) if site.verb == "write" and below in site.path else None


class Unsavable(TinyTrainer):
    """A trainer with a value among its state that no checkpoint can hold."""

    def capture(self, components: Plan, **asked: Any) -> Snapshot:
        snapshot = super().capture(components, **asked)
        layers = {"weight": torch.zeros(1), "hook": object()}
        return Snapshot(components=components, trees={**snapshot.trees, "model": {"layers": layers}})


def test_a_value_that_cannot_be_saved_is_refused_by_its_path_and_nothing_is_created() -> None:
    disk = disk_of(ended().files)
    run = Run(disk, "opener", config=SETTINGS)
    run.journal._member._roles[""].trainer = Unsavable(life=1)
    before = {path for path in visible(disk) if "/checkpoints" in path}
    with pytest.raises(Refused, match=r"model.*layers.*hook"):
        run.train(1)
    assert {path for path in visible(disk) if "/checkpoints" in path} == before
    assert run.journal.state.saving.open == ()
    assert run.journal.state.saving.counter == 0


def test_a_record_of_a_newer_milepost_stops_a_start_and_is_not_called_damage() -> None:
    run = ended()
    newest = run.segments[-1]
    data = run.read(newest)
    head = orjson.loads(data.splitlines()[-1])
    fields = {"seq": head["seq"] + 1, "epoch": head["epoch"], "at": head["at"], "synced": head["seq"]}
    body = orjson.dumps({**fields, "records": [{"kind": "teleported", "v": 1}], "prev": head["sum"]})[:-1]
    line = body + b',"sum":"' + blake2b(body, digest_size=16).hexdigest().encode() + b'"}\n'
    error = start(run.but({newest: data + line}))
    assert isinstance(error, NewerVersion)
    assert "teleported" in str(error)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO])
def test_whatever_cannot_be_read_is_a_finding_of_verify_and_nothing_else_is_lost(code: int) -> None:
    """Each operation of a verify fails in turn; a damage elsewhere is still found."""
    run = ended()
    model = "checkpoints/iter_000000002/model.pt"
    run = run.but({model: run.read(model)[::-1]})
    disk = disk_of(run.files)
    length = len(disk.trace)
    verify(Place(disk=disk, path=run.path))
    for index in range(length, len(disk.trace)):
        disk = disk_of(run.files)
        disk.hardware.faults = lambda site, at=index: Fault(error=code) if site.index == at else None  # type: ignore[misc]
        found = verify(Place(disk=disk, path=run.path))
        failed = disk.trace[index]
        assert found.exit_code in (1, 3, 5), failed
        if failed.verb != "close" and model.rpartition("/")[0] not in failed.path:
            assert "file-digest" in {one.code for one in found.findings}, failed
