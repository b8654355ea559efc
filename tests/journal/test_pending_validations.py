"""Durable validations through the facade: published first, evaluated next, announced last, across every death."""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.engines.simulated import Fault, SimulatedDisk, fault_on
from milepost.engines.termination import Termination
from milepost.journal import Config, Journal, NotResumable, Refused, Unavailable
from milepost.transitions.validation import ValidationStage
from milepost.transitions.values import Component, Reason
from tests.journal.runs import FakeWatch, Training, config, train

SAVING = ("validation.every_steps=2", "validation.save_checkpoint=true")


class Died(Exception):
    """The evaluation, or the loop, ends here."""


def settings(root: Path, *overrides: str) -> Config:
    """No cadence: what is saved, validation asked for."""
    return config(root, "save_every=0", *SAVING, *overrides)


def noting(steps: list[int]) -> Callable[[int], object]:
    return steps.append


def dying(step: int) -> object:
    raise Died


def checkpoint(journal: Journal, step: int) -> Path:
    return Path(journal.run_dir) / "checkpoints" / f"iter_{step:09d}"


def test_a_validation_that_saves_publishes_first_and_is_completed_behind_the_evaluation(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []
    training = Training()

    with Journal.open(settings(tmp_path), trainer=training.trainer(), watch=FakeWatch(), environ={}) as journal:

        def validate(step: int) -> None:
            published = step in journal.state.saving.sealed
            seen.append((step, journal.state.validation.stage.value if published else "unpublished"))

        for _ in journal.steps(until=5, validate=validate):
            training.step()
    assert seen == [(2, "evaluating"), (4, "evaluating"), (5, "evaluating")]
    assert journal.state.validation.stage is ValidationStage.IDLE
    assert sorted(journal.state.saving.sealed) == [2, 4, 5]
    assert {save.reason for save in journal.state.saving.sealed.values()} == {Reason.VALIDATION}
    names = {path.name for path in checkpoint(journal, 4).iterdir()}
    assert {f".posttrain-validation.{number}.json" for number in range(3)} <= names


def test_a_validation_that_does_not_save_leaves_no_record(tmp_path: Path) -> None:
    seen: list[int] = []
    _, journal = train(config(tmp_path, "save_every=0", "validation.every_steps=2"), until=4, validate=noting(seen))
    assert seen == [2, 4]
    assert {record.KIND for entry, _ in journal.history() for record in entry.records}.isdisjoint(
        {"save-opened", "evaluation-pended", "evaluation-passed"}
    )


def test_a_regular_full_save_at_the_same_step_makes_the_validation_durable(tmp_path: Path) -> None:
    _, journal = train(config(tmp_path, "validation.every_steps=4"), until=4, validate=noting([]))
    assert journal.state.validation.completed == journal.state.saving.sealed[4].id
    assert journal.state.saving.sealed[4].reason is Reason.CADENCE
    assert not (checkpoint(journal, 2) / ".posttrain-validation.0.json").exists()


def test_an_evaluation_that_failed_is_run_again_by_the_next_start_before_it_trains(tmp_path: Path) -> None:
    with pytest.raises(Died):
        train(settings(tmp_path), until=6, validate=dying)
    seen: list[int] = []
    rest, journal = train(settings(tmp_path), until=6, validate=noting(seen))
    assert (journal.resumption.step, journal.resumption.pending) == (2, "evaluation")
    assert seen == [2, 4, 6]
    assert len(rest.losses) == 4


def test_a_pending_evaluation_is_not_skipped_by_a_loop_without_one(tmp_path: Path) -> None:
    with pytest.raises(Died):
        train(settings(tmp_path), until=6, validate=dying)
    with pytest.raises(Refused, match=r"iter_000000002.*validate="):
        train(settings(tmp_path), until=6)


def test_a_pending_checkpoint_is_not_announced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="milepost")
    with pytest.raises(Died):
        train(settings(tmp_path), until=6, validate=dying)
    assert "published checkpoint iter_000000002" not in caplog.text
    assert "its validation is pending" in caplog.text
    train(settings(tmp_path), until=2, validate=noting([]))
    assert "published checkpoint iter_000000002" in caplog.text


@pytest.mark.parametrize("generation", [1, 2])
def test_what_was_evaluated_is_published_by_the_next_start_and_never_evaluated_again(
    generation: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="milepost")
    disk, seen = SimulatedDisk(), list[int]()
    disk.hardware.faults = fault_on("link", Fault(error=errno.EIO), nth=generation)
    with pytest.raises(Unavailable):
        train(settings(Path("runs")), until=6, disk=disk.process("first"), validate=noting(seen))
    assert seen == [2] and "published checkpoint" not in caplog.text
    _, journal = train(settings(Path("runs")), until=4, disk=disk.process("second"), validate=noting(seen))
    assert journal.resumption.pending is None
    assert seen == [2, 4]
    assert "published checkpoint iter_000000002" in caplog.text


def test_a_regular_partial_save_survives_the_failure_of_the_validation_beside_it(tmp_path: Path) -> None:
    partial = config(tmp_path, "checkpoint_components=[model]", "validation.every_steps=2")
    with pytest.warns(UserWarning), pytest.raises(Died):
        train(partial, until=4, validate=dying)
    folder = next(tmp_path.glob("**/checkpoint_artifacts/iter_000000002"))
    assert (folder / ".posttrain-checkpoint-artifact.json").exists()


def test_plans_that_fall_due_together_are_one_artifact(tmp_path: Path) -> None:
    both = config(
        tmp_path,
        "checkpoint_components=[model]",
        "validation.checkpoint_components=[training_state]",
        *SAVING,
    )
    with pytest.warns(UserWarning):
        _, journal = train(both, until=2, validate=noting([]))
    assert journal.state.saving.artifacts[2].plan == (Component.MODEL, Component.TRAINING_STATE)
    assert len(journal.state.saving.artifacts) == 1


def test_a_partial_save_that_validation_alone_asked_for_is_made_behind_it(tmp_path: Path) -> None:
    alone = settings(tmp_path, "validation.checkpoint_components=[model]")
    with pytest.warns(UserWarning), pytest.raises(Died):
        train(alone, until=4, validate=dying)
    assert not list(tmp_path.glob("**/checkpoint_artifacts/iter_*"))
    with pytest.warns(UserWarning):
        _, journal = train(alone, until=2, validate=noting([]))
    assert sorted(journal.state.saving.artifacts) == [2]


# --- when ---------------------------------------------------------------------------------------------------


def test_the_pass_before_training_belongs_to_a_fresh_run_with_steps_to_go_and_never_saves(tmp_path: Path) -> None:
    before = settings(tmp_path, "validation.before_training=true")
    seen: list[int] = []
    _, journal = train(before, until=2, validate=noting(seen))
    assert seen == [0, 2]
    assert sorted(journal.state.saving.sealed) == [2]
    seen.clear()
    train(before, until=4, validate=noting(seen))
    assert seen == [4]


def test_the_end_is_validated_off_cadence_unless_that_is_off(tmp_path: Path) -> None:
    seen: list[int] = []
    train(settings(tmp_path / "on"), until=3, validate=noting(seen))
    assert seen == [2, 3]
    seen.clear()
    _, journal = train(settings(tmp_path / "off", "validation.at_end=false"), until=3, validate=noting(seen))
    assert seen == [2] and sorted(journal.state.saving.sealed) == [2]


def test_a_run_of_no_step_makes_its_final_validation_and_saves_step_zero(tmp_path: Path) -> None:
    seen: list[int] = []
    _, journal = train(settings(tmp_path), until=0, validate=noting(seen))
    assert seen == [0] and sorted(journal.state.saving.sealed) == [0]
    _, again = train(settings(tmp_path), until=0, validate=noting(seen))
    assert seen == [0], "the validation of this step was completed before"
    assert again.resumption.step == 0 and again.resumption.kind == "exact"


def test_the_final_save_is_made_before_the_final_validation_can_fail(tmp_path: Path) -> None:
    regular = config(tmp_path, "validation.every_steps=100")
    with pytest.raises(Died):
        train(regular, until=3, validate=dying)
    _, journal = train(regular, until=3, validate=noting([]))
    assert sorted(journal.state.saving.sealed) == [2, 3]
    assert journal.resumption.pending == "evaluation"


# --- emergencies --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*artifact.*:UserWarning")
@pytest.mark.parametrize("plan", ["full", "run"])
def test_a_stop_before_a_validation_publishes_a_full_pending_checkpoint_whatever_the_plans(
    tmp_path: Path, plan: str
) -> None:
    watch, seen = FakeWatch(), list[int]()
    partial = settings(
        tmp_path,
        "checkpoint_components=[model]",
        "validation.checkpoint_components=[model]",
        f"emergency_checkpoint_components={plan}",
    )

    def stop(journal: Journal, step: int) -> None:
        if step == 2:
            watch.seen = Termination(reason="deadline", detail="")

    _, stopped = train(partial, until=6, watch=watch, each=stop, validate=noting(seen))
    assert seen == [] and stopped.state.validation.pending == stopped.state.saving.sealed[2].id
    _, journal = train(partial, until=2, validate=noting(seen))
    assert seen == [2] and journal.state.validation.stage is ValidationStage.IDLE


def test_a_stop_before_the_first_step_saves_nothing(tmp_path: Path) -> None:
    watch, seen = FakeWatch(), list[int]()
    watch.seen = Termination(reason="deadline", detail="")
    _, journal = train(
        settings(tmp_path, "validation.before_training=true"), until=4, watch=watch, validate=noting(seen)
    )
    assert seen == [] and not journal.state.saving.sealed


# --- copies ---------------------------------------------------------------------------------------------------


def test_a_copy_of_a_pending_checkpoint_is_promoted_and_evaluated_in_the_run_that_resumes_it(tmp_path: Path) -> None:
    with pytest.raises(Died):
        train(settings(tmp_path / "donor"), until=4, validate=dying)
    source = next((tmp_path / "donor").glob("**/iter_000000002"))
    shutil.copytree(source, tmp_path / "copy" / "iter_000000002")
    before = {path: path.read_bytes() for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    seen: list[int] = []
    resumed = settings(tmp_path / "branch", f"resume={tmp_path}/copy/iter_000000002")
    _, journal = train(resumed, until=4, validate=noting(seen))
    assert journal.resumption.pending == "evaluation"
    assert seen == [2, 4]
    assert sorted(journal.state.saving.sealed) == [2, 4]
    assert {path: path.read_bytes() for path in before} == before


def test_a_changed_validation_is_refused_on_an_exact_resume(tmp_path: Path) -> None:
    train(settings(tmp_path, "validation.source=held-out-1"), until=2, validate=noting([]))
    with pytest.raises(NotResumable, match=r"held-out-1.*held-out-2"):
        train(settings(tmp_path, "validation.source=held-out-2"), until=4, validate=noting([]))
