"""A run through the facade: what is saved when, what a start continues from, and that nothing differs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from milepost.engines.disks.local import LocalDisk
from milepost.engines.formats import Staged
from milepost.engines.simulated import Fault, SimulatedDisk, fault_on
from milepost.engines.slots import SteppedSlot, ThreadSlot
from milepost.engines.termination import Termination
from milepost.journal import Busy, Corrupt, Journal, Misconfigured, NotResumable, Refused, Unavailable
from milepost.transitions.emergency import EmergencyStage
from milepost.transitions.run import RunStage
from milepost.transitions.values import Mode, Outcome, Reason
from tests.journal.runs import FakeWatch, StillAmbient, Training, config, train

KEEP_ALL = "keep_optim_last=0"


class Interrupted(Exception):
    """What ends a training loop from inside in these tests."""


def checkpoints(journal: Journal) -> list[int]:
    return sorted(journal.state.saving.sealed)


def test_a_run_saves_by_cadence_and_its_last_step(tmp_path: Path) -> None:
    _, journal = train(config(tmp_path), until=5)
    assert checkpoints(journal) == [2, 4, 5]
    sealed = journal.state.saving.sealed
    assert [sealed[step].reason for step in (2, 4, 5)] == [Reason.CADENCE, Reason.CADENCE, Reason.FINAL]
    assert [sealed[step].mode for step in (2, 4, 5)] == [Mode.ASYNCHRONOUS, Mode.ASYNCHRONOUS, Mode.SYNCHRONOUS]
    run = Path(journal.run_dir)
    assert (run / "checkpoints" / "latest_checkpoint.txt").read_text() == "iter_000000005\n"
    assert journal.state.run.stage is RunStage.ENDED


def test_the_files_of_a_checkpoint_are_read_by_plain_torch(tmp_path: Path) -> None:
    training, journal = train(config(tmp_path), until=2)
    folder = Path(journal.run_dir) / "checkpoints" / "iter_000000002"
    assert sorted(path.name for path in folder.iterdir()) == [
        ".posttrain-manifest.json",
        "data.pt",
        "model.pt",
        "optim.pt",
        "trainer.pt",
    ]
    model = torch.load(folder / "model.pt", weights_only=True)
    for name, tensor in training.model.state_dict().items():
        assert torch.equal(model[name], tensor)
    optimizer = torch.load(folder / "optim.pt", weights_only=True)
    assert optimizer["state"].keys() == training.optimizer.state_dict()["state"].keys()


@pytest.mark.parametrize("at", [1, 2, 3, 5, 6])
def test_an_interrupted_run_continues_as_if_nothing_had_happened(tmp_path: Path, at: int) -> None:
    whole, _ = train(config(tmp_path / "whole"), until=8)

    def interrupt(journal: Journal, step: int) -> None:
        if step == at:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(config(tmp_path / "cut"), until=8, each=interrupt)
    rest, journal = train(config(tmp_path / "cut"), until=8)
    assert journal.resumption.step == (at - 1) // 2 * 2
    assert rest.digest() == whole.digest()
    assert rest.losses == whole.losses[journal.resumption.step :]


def test_the_default_slot_writes_in_a_thread_and_gives_the_same_run(tmp_path: Path) -> None:
    stepped, _ = train(config(tmp_path / "stepped"), until=6)
    threaded, journal = train(config(tmp_path / "threaded"), until=6, slot=ThreadSlot())
    assert threaded.digest() == stepped.digest()
    assert checkpoints(journal) == [2, 4, 6]


def test_a_finished_run_started_again_trains_no_further_step(tmp_path: Path) -> None:
    train(config(tmp_path), until=4)
    again, journal = train(config(tmp_path), until=4)
    assert again.losses == []
    assert journal.resumption.kind == "exact"
    assert checkpoints(journal) == [2, 4]


def test_resume_auto_says_why_it_passed_over_each_other_checkpoint(tmp_path: Path) -> None:
    _, first = train(config(tmp_path, KEEP_ALL), until=4)
    stray = Path(first.run_dir) / "checkpoints" / "iter_000000099"
    stray.mkdir()
    _, journal = train(config(tmp_path, KEEP_ALL), until=4)
    assert {one.name: one.reason for one in journal.resumption.passed_over} == {
        "iter_000000002": "older",
        "iter_000000099": "unrecorded",
    }
    assert list(stray.iterdir()) == []


def test_resume_off_mints_a_sibling_and_touches_nothing(tmp_path: Path) -> None:
    _, first = train(config(tmp_path), until=4)
    before = {path: path.read_bytes() for path in Path(first.run_dir).rglob("*") if path.is_file()}
    _, second = train(config(tmp_path, "resume=off"), until=2)
    assert second.resumption.kind == "fresh"
    assert second.run_ts > first.run_ts
    assert {path: path.read_bytes() for path in before} == before


def test_resume_auto_adopts_the_newest_attempt(tmp_path: Path) -> None:
    train(config(tmp_path), until=4)
    _, second = train(config(tmp_path, "resume=off"), until=2)
    _, third = train(config(tmp_path), until=2)
    assert third.run_ts == second.run_ts
    assert third.resumption.step == 2


def test_run_ts_pins_an_attempt(tmp_path: Path) -> None:
    _, first = train(config(tmp_path), until=4)
    train(config(tmp_path, "resume=off"), until=2)
    _, pinned = train(config(tmp_path, f"run_ts='{first.run_ts}'"), until=4)
    assert pinned.run_dir == first.run_dir


def test_a_path_resumes_that_checkpoint_of_another_run(tmp_path: Path) -> None:
    _, donor = train(config(tmp_path / "donor", KEEP_ALL), until=4)
    path = f"{donor.run_dir}/checkpoints/iter_000000002"
    branch, journal = train(config(tmp_path / "branch", f"resume={path}"), until=4)
    assert (journal.resumption.kind, journal.resumption.step, journal.resumption.source) == ("exact", 2, path)
    assert len(branch.losses) == 2
    assert checkpoints(journal) == [4]


def test_a_path_behind_the_newest_checkpoint_of_its_own_run_is_refused(tmp_path: Path) -> None:
    _, journal = train(config(tmp_path, KEEP_ALL), until=4)
    path = f"{journal.run_dir}/checkpoints/iter_000000002"
    with pytest.raises(NotResumable, match=r"iter_000000004.*resume=auto"):
        train(config(tmp_path, f"resume={path}"), until=4)


def test_a_path_to_nothing_is_refused_and_never_a_fresh_start(tmp_path: Path) -> None:
    with pytest.raises(NotResumable, match="must exist"):
        train(config(tmp_path, f"resume={tmp_path}/iter_000000002"), until=4)


def test_a_half_written_checkpoint_is_refused_by_path(tmp_path: Path) -> None:
    _, journal = train(config(tmp_path / "donor"), until=2)
    folder = Path(journal.run_dir) / "checkpoints" / "iter_000000002"
    (folder / ".posttrain-manifest.json").unlink()
    with pytest.raises(NotResumable, match="half-written"):
        train(config(tmp_path / "new", f"resume={folder}"), until=4)


def test_a_single_file_from_before_directories_resumes_by_path(tmp_path: Path) -> None:
    whole, donor = train(config(tmp_path / "donor", KEEP_ALL), until=4)
    folder = Path(donor.run_dir) / "checkpoints" / "iter_000000002"
    trees = {name: torch.load(folder / f"{name}.pt", weights_only=True) for name in ("optim", "trainer", "data")}
    trees["net"] = torch.load(folder / "model.pt", weights_only=True)
    torch.save(trees, tmp_path / "state.pt")
    rest, journal = train(config(tmp_path / "new", f"resume={tmp_path}/state.pt"), until=4)
    assert journal.resumption.step == 2
    assert rest.digest() == whole.digest()


@pytest.mark.parametrize("name", ["model.pt", "optim.pt", "trainer.pt", "data.pt"])
def test_a_flipped_byte_in_the_newest_checkpoint_refuses_the_start(tmp_path: Path, name: str) -> None:
    _, journal = train(config(tmp_path), until=2)
    target = Path(journal.run_dir) / "checkpoints" / "iter_000000002" / name
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 1
    target.write_bytes(data)
    with pytest.raises(Corrupt, match=name):
        train(config(tmp_path), until=4)


def test_a_vanished_newest_checkpoint_refuses_the_start_and_names_the_way_out(tmp_path: Path) -> None:
    _, journal = train(config(tmp_path, KEEP_ALL), until=4)
    newest = Path(journal.run_dir) / "checkpoints" / "iter_000000004"
    newest.rename(tmp_path / "elsewhere")
    with pytest.raises(Corrupt, match=r"iter_000000004.*iter_000000002"):
        train(config(tmp_path), until=6)


def test_a_second_writer_is_told_who_holds_the_run(tmp_path: Path) -> None:
    training = Training()
    first = Journal.open(
        config(tmp_path), trainer=training.trainer(), watch=FakeWatch(), ambient=StillAmbient(), environ={}
    )
    with pytest.raises(Busy, match=r"process 4242 on host \(epoch 1\)"):
        train(config(tmp_path), until=2)
    first.close()
    train(config(tmp_path), until=2)


def test_a_launcher_of_several_processes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="WORLD_SIZE=2"):
        Journal.open(config(tmp_path), trainer=Training().trainer(), environ={"WORLD_SIZE": "2"})


def test_a_termination_saves_everything_and_stops(tmp_path: Path) -> None:
    watch = FakeWatch()

    def terminate(journal: Journal, step: int) -> None:
        if step == 3:
            watch.seen = Termination(reason="signal SIGTERM", detail="a test")

    stopped, journal = train(config(tmp_path), until=8, watch=watch, each=terminate)
    assert len(stopped.losses) == 3
    assert journal.state.emergency.stage is EmergencyStage.COVERED
    assert journal.state.saving.sealed[3].reason is Reason.EMERGENCY
    assert journal.state.run.ended is not None and journal.state.run.ended.outcome is Outcome.STOPPED
    assert watch.closed
    whole, _ = train(config(tmp_path / "whole"), until=8)
    rest, journal = train(config(tmp_path), until=8)
    assert journal.resumption.step == 3
    assert rest.digest() == whole.digest()


def test_a_termination_at_a_step_that_is_saved_already_saves_nothing_more(tmp_path: Path) -> None:
    watch = FakeWatch()

    def terminate(journal: Journal, step: int) -> None:
        if step == 4:
            watch.seen = Termination(reason="sentinel", detail="a test")

    train(config(tmp_path), until=4)
    watch.seen = Termination(reason="sentinel", detail="a test")
    _, journal = train(config(tmp_path), until=8, watch=watch, each=terminate)
    assert checkpoints(journal) == [2, 4]
    assert journal.state.run.ended is not None and journal.state.run.ended.outcome is Outcome.STOPPED


def test_an_emergency_saves_although_cadence_is_off(tmp_path: Path) -> None:
    watch = FakeWatch()

    def terminate(journal: Journal, step: int) -> None:
        if step == 2:
            watch.seen = Termination(reason="deadline", detail="a test")

    _, journal = train(config(tmp_path, "save_every=0"), until=8, watch=watch, each=terminate)
    assert checkpoints(journal) == [2]


def test_without_cadence_nothing_is_saved_at_the_end(tmp_path: Path) -> None:
    _, journal = train(config(tmp_path, "save_every=0"), until=3)
    assert checkpoints(journal) == []


def test_leaving_the_loop_inside_a_step_takes_the_step_back(tmp_path: Path) -> None:
    training = Training()
    with Journal.open(
        config(tmp_path), trainer=training.trainer(), watch=FakeWatch(), ambient=StillAmbient(), environ={}
    ) as journal:
        for step in journal.steps(until=8):
            training.step()
            if step == 3:
                break
    assert checkpoints(journal) == [2]
    assert journal.state.run.ended is not None and journal.state.run.ended.detail == "left inside a step"
    assert journal.state.updates.clocks.optimizer_step == 2


def test_a_skipped_update_moves_the_skip_counters_and_is_restored(tmp_path: Path) -> None:
    def skip(journal: Journal, step: int) -> None:
        if step in (1, 2):
            journal.skip("nonfinite_loss")

    train(config(tmp_path), until=2, each=skip)
    _, journal = train(config(tmp_path), until=2)
    clocks = journal.state.updates.clocks
    assert (clocks.attempt_id, clocks.optimizer_step) == (2, 0)
    assert (clocks.skipped_total, clocks.skipped_consecutive) == (2, 2)


def test_a_save_inside_a_step_is_refused(tmp_path: Path) -> None:
    def save(journal: Journal, step: int) -> None:
        journal.save(step)

    with pytest.raises(Refused, match="INV-12"):
        train(config(tmp_path), until=2, each=save)


def test_the_same_step_asked_for_twice_is_saved_once(tmp_path: Path) -> None:
    training = Training()
    with Journal.open(
        config(tmp_path), trainer=training.trainer(), watch=FakeWatch(), ambient=StillAmbient(), environ={}
    ) as journal:
        for _ in journal.steps(until=2):
            training.step()
        journal.finalize()
        first = journal.state.saving.newest
        journal.save(2)
        journal.finalize()
        assert journal.state.saving.newest == first
        with pytest.raises(Refused, match=r"step 2 is published.*ever move back"):
            journal.save(1)


def test_validation_runs_at_its_steps_and_its_failure_spares_the_save_beside_it(tmp_path: Path) -> None:
    seen: list[int] = []

    def evaluate(step: int) -> None:
        seen.append(step)
        if step == 4:
            raise Interrupted

    training = Training()
    settings = config(tmp_path, "validation.every_steps=2")
    with (
        pytest.raises(Interrupted),
        Journal.open(
            settings, trainer=training.trainer(), watch=FakeWatch(), ambient=StillAmbient(), environ={}
        ) as journal,
    ):
        for _ in journal.steps(until=8, validate=evaluate):
            training.step()
    assert seen == [2, 4]
    assert checkpoints(journal) == [2, 4]


def test_a_failed_asynchronous_save_surfaces_at_the_next_call_and_the_run_goes_on() -> None:
    disk = SimulatedDisk()
    process = disk.process("trainer")
    training = Training()
    slot = SteppedSlot()
    with Journal.open(
        config("simulated"),
        trainer=training.trainer(),
        disk=process,
        slot=slot,
        watch=FakeWatch(),
        ambient=StillAmbient(),
        environ={},
    ) as journal:
        disk.hardware.faults = fault_on(
            "write", Fault(error=28), path=f"{run_path(journal)}/checkpoints/.staging/2.1.1/optim.pt"
        )
        steps = journal.steps(until=4)
        next(steps)
        training.step()
        next(steps)
        training.step()
        next(steps)
        training.step()
        with pytest.raises(Unavailable, match=r"save 2\.1\.1 was given up \(ENOSPC.*nothing yet"):
            journal.finalize()
        assert list(steps) == [4]
        training.step()
    assert checkpoints(journal) == [4]
    assert process.names(f"{run_path(journal)}/checkpoints/.staging") == ()


def test_the_last_step_is_saved_even_where_the_save_before_it_failed() -> None:
    disk = SimulatedDisk()
    staged = "milepost/default/run/20260102030405/checkpoints/.staging/2.1.1/model.pt"
    disk.hardware.faults = fault_on("write", Fault(error=28), path=staged)
    with pytest.raises(Unavailable, match=r"save 2\.1\.1 was given up"):
        train(config("simulated"), until=3, disk=disk.process("first"))
    _, journal = train(config("simulated"), until=3, disk=disk.process("second"))
    assert journal.resumption.step == 3


def test_an_interrupt_while_a_snapshot_is_copied_ends_the_run_and_the_next_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = train(config(tmp_path / "whole"), until=4)

    def interrupted(staged: Staged) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Staged, "fill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(config(tmp_path / "cut"), until=4, slot=ThreadSlot())
    rest, journal = train(config(tmp_path / "cut"), until=4)
    assert journal.resumption.kind == "fresh"
    assert rest.digest() == whole.digest()


def run_path(journal: Journal) -> str:
    return journal.run_dir.removeprefix("simulated:/")


def test_a_disk_that_forgets_stops_the_writer_and_the_next_start_goes_on() -> None:
    disk = SimulatedDisk()
    whole, _ = train(config("whole"), until=4, disk=SimulatedDisk().process("trainer"))
    disk.hardware.faults = fault_on("sync", Fault(error=5), nth=8)
    with pytest.raises(Unavailable):
        train(config("simulated"), until=4, disk=disk.process("first"))
    rest, journal = train(config("simulated"), until=4, disk=disk.process("second"))
    assert rest.digest() == whole.digest()
    assert checkpoints(journal)[-1] == 4


def test_no_space_is_known_before_a_byte_is_written() -> None:
    disk = SimulatedDisk()
    disk.hardware.free_bytes = 1000
    with pytest.raises(Unavailable, match=r"no-space.*1000"):
        train(config("simulated"), until=2, disk=disk.process("trainer"))


def test_the_history_folds_to_the_live_state(tmp_path: Path) -> None:
    training = Training()
    with Journal.open(
        config(tmp_path), trainer=training.trainer(), watch=FakeWatch(), ambient=StillAmbient(), environ={}
    ) as journal:
        for _ in journal.steps(until=3):
            training.step()
        journal.finalize()
        *_, (entry, state) = journal.history()
        assert state == journal.state
        assert entry.epoch == 1


def test_an_output_root_that_is_a_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="output_root"):
        train(config(tmp_path / "file" / "below"), until=2)


def test_a_run_directory_that_is_a_symlink_is_refused(tmp_path: Path) -> None:
    _, journal = train(config(tmp_path), until=2)
    run = Path(journal.run_dir)
    run.rename(tmp_path / "elsewhere")
    run.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match="cannot be used"):
        train(config(tmp_path), until=4)


def test_local_and_simulated_disks_give_the_same_bytes(tmp_path: Path) -> None:
    real = LocalDisk(str(tmp_path))
    simulated = SimulatedDisk().process("trainer")
    for disk in (real, simulated):
        train(config("same"), until=4, disk=disk)

    def tree(disk: LocalDisk, path: str) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name in disk.names(path):
            below = f"{path}/{name}" if path else name
            stat = disk.stat(below)
            assert stat is not None
            if stat.kind == "dir":
                found |= tree(disk, below)
            else:
                found[below] = disk.read(below, limit=1 << 20)
        return found

    assert tree(real, "") == tree(simulated, "")  # type: ignore[arg-type]
