"""A capture gives the trees that its plan names and walks no other state."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from milepost.engines.trainers import PlainTrainer, join
from milepost.transitions.errors import NotResumable, Refused
from milepost.transitions.values import FULL, Clocks, Component, Plan
from tests.trainers.checkpoints import Checkpoint, Run, save

TREES = {
    Component.MODEL: {"model"},
    Component.OPTIMIZER: {"optim"},
    Component.TRAINING_STATE: {"trainer", "data"},
}
PLANS = [plan for size in (1, 2, 3) for plan in combinations(FULL, size)]


def names(plan: object) -> str:
    assert isinstance(plan, tuple)
    return "+".join(component.value for component in plan)


@pytest.mark.parametrize("plan", PLANS, ids=names)
def test_a_plan_is_captured_as_the_trees_of_its_components_and_no_others(plan: Plan) -> None:
    snapshot = Run().trainer.capture(plan, clocks=Clocks())
    assert snapshot.components == plan
    trees = join(snapshot.trees, [snapshot.local])
    assert set(trees) == set().union(*(TREES[component] for component in plan))


@pytest.mark.parametrize("plan", PLANS[:-1], ids=names)
def test_a_tree_of_a_partial_plan_is_that_of_the_full_one(plan: Plan) -> None:
    run = Run()
    run.train(3)
    whole = save(run.trainer, step=3)
    part = Checkpoint.joined(run.trainer.capture(plan, clocks=Clocks(optimizer_step=3, attempt_id=3)))
    assert part.files == {name: whole.files[name] for name in part.names()}


@pytest.mark.parametrize("plan", PLANS[:-1], ids=names)
def test_what_a_partial_plan_saved_does_not_restore(plan: Plan) -> None:
    run = Run()
    run.train(2)
    artifact = Checkpoint.joined(run.trainer.capture(plan, clocks=Clocks(optimizer_step=2, attempt_id=2)))
    before = run.everything()
    with pytest.raises(NotResumable, match="only a full checkpoint continues exactly"):
        run.trainer.restore(artifact)
    assert run.everything() == before


class _Watched(defaultdict[Any, Any]):
    """Optimizer state that counts whoever goes through it."""

    walks = 0

    def __iter__(self) -> Iterator[Any]:
        self.walks += 1
        return super().__iter__()

    def items(self) -> Any:
        self.walks += 1
        return super().items()


class Counting(AdamW):
    """An optimizer that counts how often its state is asked for."""

    asked = 0

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return super().state_dict()


@pytest.mark.parametrize("plan", PLANS, ids=names)
def test_the_optimizer_state_is_walked_only_by_a_plan_that_names_it(plan: Plan) -> None:
    run = Run(lambda model: Counting(model.parameters(), lr=0.01))
    run.train(2)
    optimizer = run.optimizer
    assert isinstance(optimizer, Counting)
    state = optimizer.state = _Watched(dict, optimizer.state)
    run.trainer.capture(plan, clocks=Clocks(optimizer_step=2, attempt_id=2))
    named = Component.OPTIMIZER in plan
    assert optimizer.asked == (1 if named else 0)
    assert (state.walks > 0) is named


class Parts:
    """Counts which of its parts are asked for their state."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def part(self, name: str) -> Any:
        parts = self

        class Part:
            def state_dict(self) -> dict[str, Any]:
                parts.asked[name] += 1
                return {"value": torch.zeros(1)}

            def load_state_dict(self, state: dict[str, Any]) -> None: ...

        return Part()

    def trainer(self) -> PlainTrainer:
        names = ("model", "optimizer", "scheduler", "data")
        return PlainTrainer(**{name: self.part(name) for name in names}, extra={"ema": self.part("ema")})


@pytest.mark.parametrize(
    ("plan", "asked"),
    [
        ((Component.MODEL,), {"model"}),
        ((Component.OPTIMIZER,), {"optimizer"}),
        ((Component.MODEL, Component.OPTIMIZER), {"model", "optimizer"}),
        ((Component.MODEL, Component.TRAINING_STATE), {"model", "scheduler", "data", "ema"}),
    ],
    ids=["model", "optimizer", "model+optimizer", "model+training_state"],
)
def test_each_part_is_asked_for_its_state_once_and_only_by_a_plan_that_holds_it(plan: Plan, asked: set[str]) -> None:
    parts = Parts()
    parts.trainer().capture(plan, clocks=Clocks())
    assert parts.asked == dict.fromkeys(asked, 1)


@pytest.mark.parametrize("plan", PLANS, ids=names)
def test_no_plan_is_captured_inside_an_accumulation_window(plan: Plan) -> None:
    with pytest.raises(Refused, match="inside an accumulation window"):
        Run().trainer.capture(plan, clocks=Clocks(optimizer_step=3, attempt_id=4))


def test_a_strict_cursor_is_asked_for_only_where_the_training_state_is_saved() -> None:
    trainer = PlainTrainer(model=nn.Linear(1, 1), data=[1, 2, 3])
    weights = trainer.capture((Component.MODEL,), clocks=Clocks(), cursor_resume="strict")
    assert set(weights.trees) == {"model"}
    with pytest.raises(Refused, match=r"data\.cursor_resume=strict"):
        trainer.capture((Component.TRAINING_STATE,), clocks=Clocks(), cursor_resume="strict")
