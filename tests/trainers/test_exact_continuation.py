"""A run that was interrupted and restored trains on bit for bit like one that was not."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, lr_scheduler

from milepost.engines.trainers import PlainTrainer
from milepost.transitions.values import FULL, Clocks
from tests.trainers.checkpoints import Checkpoint, MakeOptimizer, MakeScheduler, Optimizer, Run, save


def groups(model: nn.Module) -> list[dict[str, object]]:
    """Two groups with options of their own, one of them decayed."""
    first, *rest = model.parameters()
    return [{"params": [first], "lr": 0.02}, {"params": rest, "weight_decay": 0.1}]


OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "plain SGD": lambda model: SGD(model.parameters(), lr=0.05),
    "SGD with momentum": lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True),
    "AdamW": lambda model: AdamW(model.parameters(), lr=0.01),
    "AdamW foreach": lambda model: AdamW(model.parameters(), lr=0.01, foreach=True),
    "AdamW fused": lambda model: AdamW(model.parameters(), lr=0.01, fused=True),
    "Adam amsgrad": lambda model: Adam(model.parameters(), lr=0.01, amsgrad=True),
    "AdamW with groups": lambda model: AdamW(groups(model), lr=0.01),
    "AdamW with a tensor as rate": lambda model: AdamW(model.parameters(), lr=torch.tensor(0.01)),
}

SCHEDULERS: Mapping[str, MakeScheduler] = {
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=8),
    "MultiStepLR": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [3, 7]),
    "CyclicLR": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, total_iters=4), lr_scheduler.ExponentialLR(optimizer, 0.9)],
        [4],
    ),
}


def momentum(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.9)


def assert_continues(interrupted: Run, resumed: Run, *, at: int = 5, steps: int = 9) -> None:
    """9 steps from 5 cross the ends of two epochs of five batches."""
    interrupted.train(at)
    checkpoint = save(interrupted.trainer, step=at)
    losses = interrupted.train(steps)
    end = interrupted.everything()
    restored = resumed.trainer.restore(checkpoint)
    assert restored.clocks == Clocks(optimizer_step=at, attempt_id=at)
    assert restored.notes == ()
    assert resumed.train(steps) == losses
    assert resumed.everything() == end


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_fresh_process_continues_each_optimizer_bit_for_bit(name: str) -> None:
    assert_continues(Run(OPTIMIZERS[name]), Run(OPTIMIZERS[name], seed=1))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_trainer_that_trained_on_is_taken_back_bit_for_bit(name: str) -> None:
    run = Run(OPTIMIZERS[name])
    assert_continues(run, run)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_scheduler_continues_bit_for_bit(name: str) -> None:
    assert_continues(Run(momentum, SCHEDULERS[name]), Run(momentum, SCHEDULERS[name], seed=1))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_scheduler_is_taken_back_in_a_trainer_that_trained_on(name: str) -> None:
    run = Run(momentum, SCHEDULERS[name])
    assert_continues(run, run)


@pytest.mark.parametrize("at", range(12))
def test_it_does_not_matter_after_which_step_the_run_was_interrupted(at: int) -> None:
    assert_continues(Run(), Run(seed=1), at=at)


def test_a_trainer_restored_twice_from_one_checkpoint_is_the_same_both_times() -> None:
    run = Run()
    run.train(3)
    checkpoint = save(run.trainer, step=3)
    first = run.train(4)
    for _ in range(2):
        run.trainer.restore(checkpoint)
        assert run.train(4) == first


def test_weights_are_filled_in_place() -> None:
    run, other = Run(), Run(seed=1)
    run.train(2)
    before = [parameter.data_ptr() for parameter in other.model.parameters()]
    checkpoint = save(run.trainer, step=2)
    other.trainer.restore(checkpoint)
    assert [parameter.data_ptr() for parameter in other.model.parameters()] == before
    assert checkpoint.filled == {"model"}  # a fresh optimizer has nothing to fill


def test_the_state_of_a_live_optimizer_is_filled_in_place() -> None:
    run = Run()
    run.train(2)
    checkpoint = save(run.trainer, step=2)
    run.train(1)
    weight = next(run.model.parameters())
    moment = run.optimizer.state[weight]["exp_avg"]
    run.trainer.restore(checkpoint)
    assert checkpoint.filled == {"model", "optim"}
    assert run.optimizer.state[weight]["exp_avg"] is moment


class WideMoments(SGD):
    """Keeps float32 moments whatever the dtype of the weights, as mixed-precision optimizers do."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                moment = state.setdefault("moment", torch.zeros_like(parameter, dtype=torch.float32))
                moment.mul_(0.9).add_(parameter.grad.float())
                parameter.data.add_(-group["lr"] * moment)


def test_float32_moments_of_bfloat16_weights_lose_no_bit() -> None:
    def make(seed: int) -> Run:
        return Run(lambda model: WideMoments(model.parameters(), lr=0.05), seed=seed, dtype=torch.bfloat16)

    assert_continues(make(0), make(1))


def test_extra_state_continues() -> None:
    def with_average(run: Run) -> torch.optim.swa_utils.AveragedModel:
        average = torch.optim.swa_utils.AveragedModel(run.model)
        run.trainer = PlainTrainer(model=run.model, optimizer=run.optimizer, extra={"ema": average})
        return average

    run, other = Run(), Run(seed=1)
    average, restored = with_average(run), with_average(other)
    run.train(2)
    average.update_parameters(run.model)
    found = other.trainer.restore(save(run.trainer))
    assert found.exact == ("model", "optimizer", "extra.ema", "rng")
    assert int(restored.n_averaged) == 1
    for there, here in zip(average.parameters(), restored.parameters(), strict=True):
        assert torch.equal(there, here)


def test_a_restore_draws_nothing_from_the_streams_that_it_sets() -> None:
    run = Run()
    random.gauss(0, 1)  # leaves its twin for the next call
    np.random.standard_normal()
    checkpoint = save(run.trainer)

    def draw() -> tuple[object, ...]:
        return random.gauss(0, 1), random.random(), np.random.standard_normal(), torch.rand(3).tolist()

    drawn = draw()
    run.trainer.restore(checkpoint)
    assert draw() == drawn


def test_a_snapshot_holds_the_live_tensors_and_not_copies() -> None:
    run = Run()
    run.train(1)
    trees = run.trainer.capture(FULL, clocks=Clocks()).trees
    weight = next(run.model.parameters())
    assert trees["model"]["0.weight"].data_ptr() == weight.data_ptr()  # type: ignore[attr-defined]
    assert trees["optim"]["state"][0]["exp_avg"] is run.optimizer.state[weight]["exp_avg"]  # type: ignore[index]


def test_a_model_alone_is_a_trainer() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    checkpoint = save(PlainTrainer(model=model))
    assert checkpoint.names() == ("model", "trainer")
    restored = PlainTrainer(model=other).restore(checkpoint)
    assert restored.exact == ("model", "rng")
    assert torch.equal(model.weight, other.weight)


def test_a_part_without_state_is_refused_at_construction() -> None:
    with pytest.raises(TypeError, match=r"scheduler: object has no state_dict"):
        PlainTrainer(model=nn.Linear(1, 1), scheduler=object())  # type: ignore[arg-type]


def test_equal_states_give_equal_files() -> None:
    run = Run()
    run.train(3)
    assert save(run.trainer, step=3).files == save(run.trainer, step=3).files
    assert isinstance(save(run.trainer), Checkpoint)
