"""A fold is the same with and without its cache, and a cache that does not fit is as if it were not there."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from attrs import evolve

from milepost.engines.disks import Disk, write_all
from milepost.engines.disks.local import LocalDisk
from milepost.engines.simulated import Fault, SimulatedDisk, fault_on
from milepost.journal.log import foldcache
from milepost.journal.log.damage import Damaged
from milepost.journal.log.replay import fold, replay
from milepost.transitions.machine import initial
from milepost.transitions.values import Witness
from tests.log.chains import opened, sample
from tests.log.runs import Run

CACHE = "journal/fold-cache"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "journal").mkdir()
    made = Run(LocalDisk(tmp_path))
    made.open()
    made.train(3)
    return made


def test_every_step_of_a_replay_is_what_a_fold_of_its_prefix_comes_to() -> None:
    log, _, witnesses = sample()
    steps = list(replay(log, witnesses=witnesses))
    assert [entry.seq for entry, _ in steps] == list(range(1, 12))
    assert steps[-1][1] == fold(log).state
    assert steps[0][1] != initial()
    data = log.segments[1]
    first = log.without(2).without(3).but(1, data[: data.index(b"\n") + 1])
    assert fold(first).state == steps[0][1]


def test_a_replay_stops_at_the_entry_that_is_refused() -> None:
    log, lines, _ = sample()
    bad = lines[2][1].replace(b"run-resumed", b"run-refused")
    steps = []
    with pytest.raises(Damaged):
        for entry, _ in replay(log.but(3, lines[2][0] + bad + lines[2][2])):
            steps.append(entry.seq)
    assert steps == [1, 2, 3, 4, 5, 6, 7]


def test_a_log_of_many_segments_folds_through_writers_and_rotations(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    run = Run(LocalDisk(tmp_path), segment_bytes=2_000)
    for _ in range(3):
        run.open()
        run.train(8)
    assert len(run.log.numbers()) > 6
    folded = fold(run.log)
    assert (folded.state.run.epoch, folded.state.updates.clocks.optimizer_step) == (3, 8)
    assert folded.entries == folded.head.seq == run.chain.head.seq
    assert run.agree() == 0


def test_an_opener_looks_only_below_its_own_segment(run: Run) -> None:
    number = run.log.claim().number
    folded = fold(run.log, below=number)
    assert folded.read == (1,)
    assert [closed.number for closed in folded.closes] == [1]
    assert fold(run.log).read == (2, 1)


# --- the cache ---------------------------------------------------------------------------------


def test_a_cache_spares_what_it_covers_and_the_rest_is_folded(run: Run) -> None:
    run.save(2)
    kept = run.keep()
    assert run.agree() == kept
    run.train(4)
    assert run.agree() == kept
    run.open(cached=True)
    run.train(2)
    assert run.agree() == kept
    assert fold(run.log, cache=run.cache).state.saving.sealed.keys()


def test_a_cache_is_replaced_by_a_newer_one(run: Run) -> None:
    run.keep()
    run.train(4)
    assert run.agree() < run.keep() == run.agree()
    assert sorted(run.disk.names("journal")) == ["00000001.jsonl", "fold-cache"]


def test_a_cache_in_a_segment_that_was_closed_since_still_fits(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    run = Run(LocalDisk(tmp_path), segment_bytes=2_000)
    run.open()
    run.train(2)
    kept = run.keep()
    run.train(20)
    assert len(run.log.numbers()) > 3
    assert run.agree() == kept


def test_witnesses_behind_the_cache_are_compared_and_a_lost_head_is_found(run: Run) -> None:
    run.keep()
    run.train(1)
    head = fold(run.log).head
    fold(run.log, cache=run.cache, witnesses={"iter": Witness(seq=head.seq, sum=head.sum)})
    for wrong in (Witness(seq=head.seq, sum="0" * 32), Witness(seq=head.seq + 1, sum="0" * 32)):
        with pytest.raises(Damaged, match="iter"):
            fold(run.log, cache=run.cache, witnesses={"iter": wrong})


def test_a_witness_of_the_very_entry_that_the_cache_stands_behind_is_compared(run: Run) -> None:
    seq = run.keep()
    with pytest.raises(Damaged, match="witness-differs"):
        fold(run.log, cache=run.cache, witnesses={"iter": Witness(seq=seq, sum="0" * 32)})


def test_damage_before_the_cache_is_found_only_by_a_replay_but_for_headers(run: Run, tmp_path: Path) -> None:
    run.keep()
    run.train(2)
    path = tmp_path / "journal/00000001.jsonl"
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"kind":"run-resumed"', b'"kind":"run-refused"'))
    assert fold(run.log, cache=run.cache).entries == 4
    with pytest.raises(Damaged, match="synced-line"):
        list(replay(run.log))
    path.write_bytes(data.replace(b'"kind":"run-opened"', b'"kind":"run-closed"'))
    with pytest.raises(Damaged, match="headless"):
        fold(run.log, cache=run.cache)


def test_damage_behind_the_cache_is_found(run: Run, tmp_path: Path) -> None:
    run.keep()
    run.train(1)
    run.appender.sync()
    run.train(1)
    path = tmp_path / "journal/00000001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join((*lines[:-4], lines[-4].replace(b"update", b"upwind"), *lines[-3:])))
    with pytest.raises(Damaged, match="synced-line"):
        fold(run.log, cache=run.cache)


def rewrite(disk: Disk, data: bytes) -> None:
    disk.unlink(CACHE)
    with disk.create(CACHE) as sink:
        write_all(sink, data)


def test_a_torn_or_bent_cache_is_passed_over(run: Run) -> None:
    run.keep()
    data = run.disk.read(CACHE, limit=1 << 20)
    wrong = [data[:length] for length in range(0, len(data), 7)]
    wrong += [data[:k] + bytes([data[k] ^ 1]) + data[k + 1 :] for k in range(0, len(data), 7)]
    wrong += [b"", b"\0" * len(data), data + b"\n"]
    for bad in wrong:
        rewrite(run.disk, bad)
        assert run.agree() == 0


def test_a_cache_of_another_milepost_is_passed_over(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = run.keep()
    assert run.agree() == kept
    monkeypatch.setattr(foldcache, "_sources", lambda: "another")
    assert run.agree() == 0


def test_a_cache_of_another_log_is_passed_over(run: Run, tmp_path: Path) -> None:
    other_root = tmp_path / "other"
    (other_root / "journal").mkdir(parents=True)
    other = Run(LocalDisk(other_root))
    other.open()
    other.train(2)
    other.save(1)
    other.keep()
    run.keep()
    rewrite(run.disk, other.disk.read(CACHE, limit=1 << 20))
    assert run.agree() == 0


def test_a_cache_behind_another_entry_or_behind_a_bent_one_is_passed_over(run: Run, tmp_path: Path) -> None:
    run.keep()
    folded = fold(run.log)
    path = tmp_path / "journal/00000001.jsonl"
    data = path.read_bytes()
    last = data.rindex(b'"at":"2')
    path.write_bytes(data[:last] + b'"at":"3' + data[last + 7 :])
    assert run.agree() == 0
    path.write_bytes(data)
    assert run.agree() == folded.entries
    other = evolve(folded.end, head=evolve(folded.head, sum="0" * 32))
    run.cache.store(other, folded.state)
    assert run.agree() == 0


def test_a_cache_of_a_tail_that_was_lost_is_passed_over(run: Run, tmp_path: Path) -> None:
    run.keep()
    path = tmp_path / "journal/00000001.jsonl"
    data = path.read_bytes()
    for length in (len(data) - 1, data.rindex(b"\n", 0, -1) + 1):
        path.write_bytes(data[:length])
        assert run.agree() == 0
    path.write_bytes(data)
    assert run.agree() > 0


def test_a_cache_of_what_a_successor_cut_off_is_passed_over(run: Run) -> None:
    overtaken, chain = run.appender, run.chain
    overtaken.sync()
    run.open()
    overtaken.append(chain.line(opened(4), synced=1), seq=chain.head.seq)
    alone = fold(run.log, below=2)
    run.cache.store(alone.end, alone.state)
    assert run.agree() == 0


def test_a_cache_that_cannot_be_written_or_read_hurts_nobody() -> None:
    disk = SimulatedDisk()
    disk.mkdir("journal")
    run = Run(disk)
    run.open()
    run.train(2)
    kept = run.keep()
    run.train(1)
    for verb in ("create", "write", "close", "rename", "stat"):
        disk.hardware.faults = fault_on(verb, Fault(error=errno.ENOSPC))
        run.keep()
        assert run.agree() in (0, kept)
    run.keep()
    disk.hardware.faults = fault_on("read", Fault(error=errno.EIO), path=CACHE)
    assert fold(run.log, cache=run.cache).entries == fold(run.log).entries


def test_no_power_loss_makes_a_cache_lie() -> None:
    disk = SimulatedDisk()
    disk.mkdir("journal")
    disk.sync_dir("")
    run = Run(disk)
    run.open()
    run.train(2)
    run.keep()
    run.train(1)
    run.keep()
    images = 0
    for cut in disk.cuts():
        for image in disk.crash_images(cut):
            after = Run(image)
            assert answer_of(after) in ("clean", "torn")
            after.agree()
            images += 1
    assert images > 50


def answer_of(run: Run) -> str:
    return "torn" if fold(run.log).torn else "clean"
