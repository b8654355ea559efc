"""Two ranks save and resume: what is interrupted goes on bit by bit as what was not, on each rank."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from milepost.engines.trainers import ShardedTrainer
from milepost.journal import Journal
from milepost.transitions.values import ResumeKind
from tests.ranks.training import STEPS, Kind, State, Training, require_equal, settings
from tests.ranks.worlds import run

pytestmark = pytest.mark.slow


class Cut(Exception):
    """What interrupts the training of a test."""


def train(root: Path, form: str, kind: Kind, *, seed: int, cut_in: int = 0) -> tuple[State, str, int, list[float]]:
    """To the end, or into the body of step `cut_in`; how it was resumed, and the losses by this start."""
    training = Training.begin(kind, seed=seed)
    losses = []
    with Journal.open(settings(root, form=form), trainer=training.trainer()) as journal:
        for step in journal.steps(until=STEPS):
            losses.append(training.step())
            if step == cut_in:
                raise Cut
    resumption = journal.resumption
    assert not resumption.notes
    return training.state(), resumption.kind, resumption.step, losses


def continued(root: Path, form: str, kind: Kind) -> tuple[State, list[float], State, list[float]]:
    """In peace; and cut within step 5, then by everything built anew from other seeds."""
    peaceful, how, _, losses = train(root / "peace", form, kind, seed=7)
    assert how == ResumeKind.FRESH.value
    with pytest.raises(Cut):
        train(root / "cut", form, kind, seed=7, cut_in=5)
    resumed, how, step, more = train(root / "cut", form, kind, seed=8)
    assert (how, step) == (ResumeKind.EXACT.value, 4)
    return peaceful, losses, resumed, more


@pytest.mark.parametrize(
    ("form", "kind"), [("dcp", "sharded"), ("consolidated", "sharded"), ("dcp", "plain"), ("consolidated", "plain")]
)
def test_an_interrupted_training_of_two_ranks_goes_on_to_the_same_bits(tmp_path: Path, form: str, kind: Kind) -> None:
    ranks = run(continued, 2, tmp_path, form, kind)
    for rank in ranks:
        assert isinstance(rank, tuple)
        peaceful, losses, resumed, more = rank
        require_equal(resumed.full, peaceful.full)
        assert resumed.own == peaceful.own
        assert more == losses[4:]
    assert ranks[0][1] != ranks[1][1] and ranks[0][0].own.batch != ranks[1][0].own.batch


def save_without_moments(root: Path) -> None:
    """Whole runs of an optimizer without state, and of artifacts that are a model alone."""
    for name, components in (("run", ["model", "optimizer", "training_state"]), ("artifact", ["model"])):
        model = Training.begin().model
        trainer = ShardedTrainer(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        config = settings(root / name, form="consolidated", checkpoint_components=components)
        with Journal.open(config, trainer=trainer) as journal:
            for _ in journal.steps(until=4):
                pass


def test_a_spread_model_is_saved_whole_where_nothing_else_is_spread(tmp_path: Path) -> None:
    run(save_without_moments, 2, tmp_path)
    home = "milepost/default/run/*"
    for step in (2, 4):
        (checkpoint,) = tmp_path.glob(f"run/{home}/checkpoints/iter_{step:09}")
        assert {path.name for path in checkpoint.glob("*.pt")} == {"model.pt", "optim.pt", "trainer.pt"}
        (artifact,) = tmp_path.glob(f"artifact/{home}/checkpoint_artifacts/iter_{step:09}*")
        assert {path.name for path in artifact.glob("*.pt")} == {"model.pt"}
