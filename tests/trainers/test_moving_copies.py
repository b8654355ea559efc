"""An old policy and a reference that training refreshes are training state: saved, and put back in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from milepost.engines.trainers import BaseTrainer, PlainTrainer, ShardedTrainer
from milepost.transitions.errors import NotResumable
from milepost.transitions.values import Clocks, Component
from tests.trainers.checkpoints import Checkpoint, save

KINDS = [PlainTrainer, ShardedTrainer]
Kind = type[PlainTrainer] | type[ShardedTrainer]


class Parts:
    """A policy with an old policy and a reference, all of other values."""

    def __init__(self, kind: Kind, *, seed: int = 0, width: int = 3, **without: None) -> None:
        torch.manual_seed(seed)
        self.model, self.old, self.ref = nn.Linear(2, 3), nn.Linear(2, width), nn.Linear(2, 3)
        parts: dict[str, Any] = {"old": self.old, "ref": self.ref, **without}
        self.trainer: BaseTrainer = kind(model=self.model, **parts)

    def weights(self) -> list[torch.Tensor]:
        return [part.weight.detach().clone() for part in (self.model, self.old, self.ref)]


def assert_refused(there: Parts, here: Parts, said: str) -> None:
    checkpoint, before = save(there.trainer), here.weights()
    with pytest.raises(NotResumable) as refusal:
        here.trainer.restore(checkpoint)
    assert said in str(refusal.value)
    assert all(map(torch.equal, here.weights(), before))
    assert checkpoint.filled == set()


@pytest.mark.parametrize("kind", KINDS)
def test_moving_copies_are_trees_of_the_training_state(kind: Kind) -> None:
    trainer = Parts(kind).trainer
    assert save(trainer).names() == ("model", "old", "ref", "trainer")
    state = trainer.capture((Component.TRAINING_STATE,), clocks=Clocks())
    assert set(state.trees) == {"old", "ref", "trainer"}
    assert set(trainer.capture((Component.MODEL,), clocks=Clocks()).trees) == {"model"}


@pytest.mark.parametrize("kind", KINDS)
def test_moving_copies_come_back_in_place(kind: Kind) -> None:
    there, here = Parts(kind), Parts(kind, seed=1)
    before = [part.weight.data_ptr() for part in (here.old, here.ref)]
    checkpoint = save(there.trainer)
    restored = here.trainer.restore(checkpoint)
    assert restored.exact == ("model", "old", "ref", "rng")
    assert all(map(torch.equal, here.weights(), there.weights()))
    assert [part.weight.data_ptr() for part in (here.old, here.ref)] == before
    assert checkpoint.filled == {"model", "old", "ref"}


def test_a_snapshot_of_a_moving_copy_is_a_reference() -> None:
    parts = Parts(PlainTrainer)
    weight: Any = parts.trainer.capture((Component.TRAINING_STATE,), clocks=Clocks()).trees["old"]["weight"]
    assert weight.data_ptr() == parts.old.weight.data_ptr()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["old", "ref"])
def test_a_moving_copy_is_neither_gained_nor_lost_by_a_restore(kind: Kind, name: str) -> None:
    assert_refused(Parts(kind, **{name: None}), Parts(kind), f"lacks {name}; only a full checkpoint")
    assert_refused(Parts(kind), Parts(kind, **{name: None}), f"has {name}, a moving copy of the policy that")


@pytest.mark.parametrize("kind", KINDS)
def test_a_moving_copy_of_another_shape_is_refused_before_the_model_is_touched(kind: Kind) -> None:
    assert_refused(Parts(kind), Parts(kind, width=4), "weight (saved float32[3, 2], here float32[4, 2])")


def test_a_frozen_reference_is_not_passed_and_leaves_no_trace() -> None:
    parts = Parts(PlainTrainer, old=None, ref=None)
    checkpoint = save(parts.trainer)
    assert checkpoint.names() == ("model", "trainer")
    assert list(checkpoint.tree("trainer")["fits"]) == ["model", "optimizer"]


def test_a_copy_that_is_stateful_and_no_module_is_taken_by_either() -> None:
    class Weights:
        def __init__(self, value: float) -> None:
            self.value = torch.tensor([value])

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.value = state["value"]

    for kind in KINDS:
        there, here = Weights(1.0), Weights(2.0)
        kind(model=nn.Linear(1, 1), old=here).restore(save(kind(model=nn.Linear(1, 1), old=there)))
        assert here.value.tolist() == [1.0]


def test_a_copy_without_state_is_refused_at_construction() -> None:
    with pytest.raises(TypeError, match=r"old: object has no state_dict"):
        PlainTrainer(model=nn.Linear(1, 1), old=object())  # type: ignore[arg-type]


def test_a_checkpoint_from_before_the_inventories_restores_its_copies_after_comparing_them() -> None:
    def legacy(checkpoint: Checkpoint) -> Checkpoint:
        def change(tree: Any) -> None:
            step = tree["iter"]
            tree.clear()
            tree["iter"] = step

        return checkpoint.changed("trainer", change)

    there, here = Parts(PlainTrainer), Parts(PlainTrainer, seed=1)
    here.trainer.restore(legacy(save(there.trainer)))
    assert all(map(torch.equal, here.weights(), there.weights()))
    with pytest.raises(NotResumable, match=r"old\.pt does not fit"):
        Parts(PlainTrainer, width=4).trainer.restore(legacy(save(there.trainer)))
