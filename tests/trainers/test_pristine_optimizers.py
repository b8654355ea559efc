"""An optimizer that was never stepped stays so through a save and a restore, with its options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Optimizer, lr_scheduler

from milepost.engines.trainers import PlainTrainer
from milepost.transitions.errors import Corrupt
from tests.trainers.checkpoints import Checkpoint, Run, save


class FusedLike(Optimizer):
    """Counts steps in its groups, builds master weights when first stepped, and keeps no state of frozen weights."""

    def __init__(self, parameters: Any, *, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.param_groups_master: list[Any] | None = None
        self.steps_taken = 0

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        if self.param_groups_master is None:
            self.param_groups_master = [group["params"] for group in self.param_groups]
            self.master_dtype = torch.float32
        self.steps_taken += 1
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1


def fused(model: nn.Module) -> FusedLike:
    return FusedLike(model.parameters(), lr=0.5)


def is_marked(checkpoint: Checkpoint) -> bool:
    return "optimizer_pristine" in checkpoint.tree("trainer")


def test_the_marker_is_there_exactly_until_the_first_step() -> None:
    run = Run()
    assert is_marked(save(run.trainer))
    run.train(1)
    assert not is_marked(save(run.trainer, step=1))


def test_a_capture_does_not_materialise_state() -> None:
    run = Run()
    save(run.trainer)
    assert not run.optimizer.state
    assert save(run.trainer).tree("optim")["state"] == {}


def test_a_step_without_per_parameter_state_is_a_step() -> None:
    run = Run(fused)
    assert is_marked(save(run.trainer))
    run.train(1)
    assert not run.optimizer.state
    assert not is_marked(save(run.trainer, step=1))


def test_a_trainer_built_around_a_stepped_optimizer_sees_its_counter() -> None:
    run = Run(fused)
    run.train(1)
    assert not is_marked(save(PlainTrainer(model=run.model, optimizer=run.optimizer)))


@pytest.mark.parametrize("trace", ["param_groups_master", "steps_taken", "a new attribute", "a new group key"])
def test_each_trace_alone_ends_it(trace: str) -> None:
    run = Run(fused)
    match trace:
        case "param_groups_master":
            run.optimizer.param_groups_master = []  # type: ignore[attr-defined]
        case "steps_taken":
            run.optimizer.steps_taken = 1  # type: ignore[attr-defined]
        case "a new attribute":
            run.optimizer.master_dtype = torch.float32  # type: ignore[attr-defined]
        case _:
            run.optimizer.param_groups[0]["momentum_buffer"] = None
    assert not is_marked(save(run.trainer))


def test_a_scheduler_that_wraps_the_step_later_is_no_trace_and_stays() -> None:
    run = Run()
    lr_scheduler.StepLR(run.optimizer, 3)
    wrapped = run.optimizer.step
    assert "step" in vars(run.optimizer)
    run.optimizer.param_groups[0].pop("initial_lr")  # a new group key would be a trace
    checkpoint = save(run.trainer)
    assert is_marked(checkpoint)
    run.trainer.restore(checkpoint)
    assert run.optimizer.step is wrapped


def test_a_live_optimizer_becomes_never_stepped_again() -> None:
    run = Run(fused)
    checkpoint = save(run.trainer)
    untouched = set(vars(run.optimizer))
    run.train(2)
    run.optimizer.param_groups[0]["lr"] = 9.0
    run.trainer.restore(checkpoint)
    assert set(vars(run.optimizer)) == untouched
    assert run.optimizer.param_groups_master is None  # type: ignore[attr-defined]
    assert run.optimizer.steps_taken == 0  # type: ignore[attr-defined]
    assert "step" not in run.optimizer.param_groups[0]
    assert run.optimizer.param_groups[0]["lr"] == 0.5
    assert is_marked(save(run.trainer))


def test_the_saved_options_apply_where_the_scheduler_does_not_write_them() -> None:
    """load_state_dict of a scheduler leaves the learning rate of the optimizer alone."""

    def make(rate: float) -> Run:
        return Run(
            lambda model: AdamW(model.parameters(), lr=rate, weight_decay=rate),
            lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.5),
        )

    saved, other = make(0.01), make(0.3)
    other.train(2)
    checkpoint = save(saved.trainer)
    other.trainer.restore(checkpoint)
    assert other.optimizer.param_groups[0]["lr"] == 0.005
    assert other.optimizer.param_groups[0]["weight_decay"] == 0.01
    assert not other.optimizer.state


def test_a_warmup_without_steps_is_independent_of_saves() -> None:
    """The first real update after any number of saves and restores is corrected as the first."""
    straight = Run()
    losses, end = straight.train(3), straight.everything()
    saved = Run()
    for _ in range(3):
        saved.trainer.restore(save(saved.trainer))
    assert saved.train(3) == losses
    assert saved.everything() == end


def test_a_marker_beside_moments_is_corrupt() -> None:
    run = Run()
    run.train(1)

    def mark(tree: Any) -> None:
        tree["optimizer_pristine"] = True

    with pytest.raises(Corrupt, match=r"trainer\.pt says that the optimizer was never stepped"):
        Run().trainer.restore(save(run.trainer, step=1).changed("trainer", mark))


def test_an_optimizer_that_is_not_of_torch_has_no_marker_and_still_restores() -> None:
    class Simple:
        def __init__(self) -> None:
            self.rate = 1.0

        def state_dict(self) -> dict[str, Any]:
            return {"rate": self.rate}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.rate = state["rate"]

    model, optimizer = nn.Linear(1, 1), Simple()
    trainer = PlainTrainer(model=model, optimizer=optimizer)
    checkpoint = save(trainer)
    optimizer.rate = 2.0
    trainer.restore(checkpoint)
    assert optimizer.rate == 1.0
    assert not is_marked(checkpoint)
