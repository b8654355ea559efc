"""Partial plans: artifacts beside the checkpoints, never resumed from, never written again."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from milepost.engines.termination import Termination
from milepost.journal import Config, Journal, NotResumable, Refused
from milepost.transitions.values import Component, Reason
from tests.journal.runs import FakeWatch, Training, config, train

MODEL_ONLY = "checkpoint_components=[model]"


def artifacts(journal: Journal) -> list[int]:
    return sorted(journal.state.saving.artifacts)


@pytest.mark.filterwarnings("ignore:.*artifact.*:UserWarning")
def test_a_partial_plan_saves_artifacts_beside_the_checkpoints(tmp_path: Path) -> None:
    training, journal = train(config(tmp_path, MODEL_ONLY), until=5)
    run = Path(journal.run_dir)
    assert artifacts(journal) == [2, 4, 5] and not journal.state.saving.sealed
    folder = run / "checkpoint_artifacts" / "iter_000000005"
    assert sorted(path.name for path in folder.iterdir()) == [".posttrain-checkpoint-artifact.json", "model.pt"]
    model = torch.load(folder / "model.pt", weights_only=True)
    assert all(torch.equal(model[name], tensor) for name, tensor in training.model.state_dict().items())
    assert not (run / "checkpoints" / "latest_checkpoint.txt").exists()
    assert not list((run / "checkpoints").glob("iter_*"))


@pytest.mark.parametrize("plan", ["[model, training_state]", "[optimizer]", "[training_state, optimizer]"])
@pytest.mark.filterwarnings("ignore:.*artifact.*:UserWarning")
def test_an_artifact_holds_the_files_of_its_plan_alone(tmp_path: Path, plan: str) -> None:
    _, journal = train(config(tmp_path, f"checkpoint_components={plan}"), until=2)
    files = {
        "model": {"model.pt"},
        "optimizer": {"optim.pt"},
        "training_state": {"trainer.pt", "data.pt"},
    }
    expected = set().union(*(files[name] for name in files if name in plan))
    folder = Path(journal.run_dir) / "checkpoint_artifacts" / "iter_000000002"
    assert {path.name for path in folder.iterdir()} == expected | {".posttrain-checkpoint-artifact.json"}


def test_an_active_partial_plan_warns_once_and_an_inactive_one_never(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="model") as seen:
        train(config(tmp_path / "a", MODEL_ONLY), until=4)
    assert len([one for one in seen if "artifact" in str(one.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(config(tmp_path / "b", "validation.checkpoint_components=[model]"), until=2)


@pytest.mark.filterwarnings("ignore:.*artifact.*:UserWarning")
def test_auto_refuses_to_start_below_a_newer_artifact_and_touches_nothing(tmp_path: Path) -> None:
    _, journal = train(config(tmp_path, MODEL_ONLY), until=4)
    before = {path: path.read_bytes() for path in Path(journal.run_dir).rglob("iter_*/*")}
    with pytest.raises(NotResumable, match=r"iter_000000004.*resume=off"):
        train(config(tmp_path), until=8)
    assert {path: path.read_bytes() for path in before} == before
    _, fresh = train(config(tmp_path, "resume=off"), until=2)
    assert fresh.resumption.kind == "fresh"


@pytest.mark.filterwarnings("ignore:.*artifact.*:UserWarning")
def test_a_checkpoint_of_the_artifacts_step_can_be_continued(tmp_path: Path) -> None:
    def save_whole(journal: Journal, step: int) -> None:
        if step == 5:
            journal.save(4, reason="emergency")

    settings = config(tmp_path, MODEL_ONLY)
    training = Training()
    with Journal.open(settings, trainer=training.trainer(), watch=FakeWatch(), environ={}) as journal:
        for _ in journal.steps(until=4):
            training.step()
        journal.save(4, reason=Reason.EMERGENCY)
    assert artifacts(journal) == [2, 4] and sorted(journal.state.saving.sealed) == [4]
    _, again = train(config(tmp_path), until=6)
    assert (again.resumption.kind, again.resumption.step) == ("exact", 4)


@pytest.mark.filterwarnings("ignore:.*artifact.*:UserWarning")
def test_an_explicit_checkpoint_behind_the_newest_artifact_is_refused(tmp_path: Path) -> None:
    _, donor = train(config(tmp_path / "donor"), until=2)
    _, journal = train(config(tmp_path, MODEL_ONLY), until=4)
    path = f"{donor.run_dir}/checkpoints/iter_000000002"
    with pytest.raises(NotResumable, match="artifact iter_000000004"):
        train(config(tmp_path, f"resume={path}", f"run_ts='{journal.run_ts}'"), until=6)


@pytest.mark.filterwarnings("ignore:.*artifact.*:UserWarning")
def test_an_artifact_is_refused_as_a_resume_source(tmp_path: Path) -> None:
    _, journal = train(config(tmp_path, MODEL_ONLY), until=2)
    path = f"{journal.run_dir}/checkpoint_artifacts/iter_000000002"
    with pytest.raises(NotResumable, match="partial artifact"):
        train(config(tmp_path / "other", f"resume={path}"), until=4)


@pytest.mark.filterwarnings("ignore:.*artifact.*:UserWarning")
def test_a_second_artifact_of_a_step_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    settings = config(tmp_path, MODEL_ONLY)
    training = Training()
    with Journal.open(settings, trainer=training.trainer(), watch=FakeWatch(), environ={}) as journal:
        for _ in journal.steps(until=2):
            training.step()
        journal.save(2)  # the same plan: it is there
        entries = len(list(journal.history()))
        wider = (Component.MODEL, Component.TRAINING_STATE)
        with pytest.raises(Refused, match=r"step 2 holds model.*INV-16"):
            journal._lead._saves.save(2, plan=wider, reason=Reason.REQUESTED)
        assert len(list(journal.history())) == entries
    staging = Path(journal.run_dir) / "checkpoints" / ".staging"
    assert list(staging.iterdir()) == []


# --- emergencies ----------------------------------------------------------------------------------------


def stopped(settings: Config, *, at: int) -> Journal:
    watch = FakeWatch()

    def stop(journal: Journal, step: int) -> None:
        if step == at:
            watch.seen = Termination(reason="signal SIGUSR1", detail="")

    return train(settings, until=10, watch=watch, each=stop)[1]


@pytest.mark.filterwarnings("ignore:.*artifact.*:UserWarning")
@pytest.mark.parametrize("at", [3, 4])
def test_an_emergency_of_a_partial_run_is_full_by_default_and_the_requeued_run_continues(
    tmp_path: Path, at: int
) -> None:
    journal = stopped(config(tmp_path, MODEL_ONLY), at=at)
    assert sorted(journal.state.saving.sealed) == [at]
    _, again = train(config(tmp_path, MODEL_ONLY), until=6)
    assert again.resumption.step == at


@pytest.mark.filterwarnings("ignore:.*artifact.*:UserWarning")
def test_emergency_run_writes_the_runs_own_plan_and_the_model(tmp_path: Path) -> None:
    settings = config(tmp_path, "checkpoint_components=[training_state]", "emergency_checkpoint_components=run")
    journal = stopped(settings, at=3)
    assert not journal.state.saving.sealed
    assert journal.state.saving.artifacts[3].plan == (Component.MODEL, Component.TRAINING_STATE)
    assert journal.state.emergency.save == journal.state.saving.artifacts[3].id
    assert journal.state.saving.artifacts[3].reason is Reason.EMERGENCY


@pytest.mark.filterwarnings("ignore:.*artifact.*:UserWarning")
def test_emergency_run_skips_what_a_cadence_save_would_have_covered(tmp_path: Path) -> None:
    settings = config(tmp_path, MODEL_ONLY, "emergency_checkpoint_components=run")
    journal = stopped(settings, at=3)
    assert artifacts(journal) == [2, 3]
    assert journal.state.saving.artifacts[3].plan == (Component.MODEL,)
