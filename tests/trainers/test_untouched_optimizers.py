"""What torch does to an optimizer to learn what state it has leaves no trace in it, whichever optimizer it is."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.optim import SGD, Adam, AdamW, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from milepost.engines.trainers.pristine import untouched
from tests.trainers.checkpoints import MakeOptimizer, Run
from tests.trainers.optimizers import MasterWeights


def master_weights(model: nn.Module) -> MasterWeights:
    return MasterWeights(model.parameters(), lr=0.05)


OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "stateless": lambda model: SGD(model.parameters(), lr=0.05),
    "SGD with momentum": lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9),
    "AdamW": lambda model: AdamW(model.parameters(), lr=0.01),
    "AdamW foreach": lambda model: AdamW(model.parameters(), lr=0.01, foreach=True),
    "AdamW fused": lambda model: AdamW(model.parameters(), lr=0.01, fused=True),
    "AdamW amsgrad": lambda model: AdamW(model.parameters(), lr=0.01, amsgrad=True),
    "Adam with a tensor as rate": lambda model: Adam(model.parameters(), lr=torch.tensor(0.01)),
    "a shared counter and master weights": master_weights,
}
MOVED_BY_A_PROBE = [name for name in OPTIMIZERS if "SGD" not in name and name != "stateless"]


def probe(run: Run) -> None:
    get_optimizer_state_dict(run.model, run.optimizer)


@pytest.mark.parametrize("trained", [0, 2], ids=["never stepped", "stepped"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_that_was_probed_trains_on_bit_for_bit(name: str, trained: int) -> None:
    straight = Run(OPTIMIZERS[name])
    straight.train(trained)
    losses, end = straight.train(3), straight.everything()
    probed = Run(OPTIMIZERS[name])
    probed.train(trained)
    for _ in range(2):
        with untouched(probed.optimizer):
            probe(probed)
    assert probed.train(3) == losses
    assert probed.everything() == end


@pytest.mark.parametrize("name", MOVED_BY_A_PROBE)
def test_a_probe_that_is_not_undone_shows_in_the_weights(name: str) -> None:
    """Why all of this is needed: the first update would be corrected as if it were the second."""
    straight = Run(OPTIMIZERS[name])
    straight.train(2)
    probed = Run(OPTIMIZERS[name])
    probe(probed)
    probed.train(2)
    assert not all(map(torch.equal, straight.model.parameters(), probed.model.parameters()))


@pytest.mark.parametrize("name", MOVED_BY_A_PROBE)
def test_within_the_block_the_optimizer_has_the_state_of_one_step(name: str) -> None:
    run = Run(OPTIMIZERS[name])
    run.train(3)
    with untouched(run.optimizer):
        assert not run.optimizer.state
        probe(run)
        assert set(run.optimizer.state) == set(run.model.parameters())


@pytest.mark.parametrize("fails", [False, True], ids=["that ends", "that fails"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_after_a_block_everything_is_the_very_object_of_before(name: str, fails: bool) -> None:
    run = Run(OPTIMIZERS[name])
    run.train(2)
    optimizer = run.optimizer
    attributes, state = dict(vars(optimizer)), optimizer.state
    groups = [(group, dict(group)) for group in optimizer.param_groups]
    moments = {id(parameter): dict(inner) for parameter, inner in state.items()}
    gradients = [parameter.grad for parameter in run.model.parameters()]
    try:
        with untouched(optimizer):
            probe(run)
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert vars(optimizer).keys() == attributes.keys()
    assert all(vars(optimizer)[key] is value for key, value in attributes.items())
    for group, options in groups:
        assert group.keys() == options.keys()
        assert all(group[key] is value for key, value in options.items())
    for parameter, inner in optimizer.state.items():
        assert all(value is moments[id(parameter)][key] for key, value in inner.items())
    assert all(map(lambda now, then: now is then, [p.grad for p in run.model.parameters()], gradients))


def test_what_a_step_changes_in_place_is_changed_on_the_stand_in() -> None:
    run = Run(master_weights)
    optimizer = run.optimizer
    assert isinstance(optimizer, MasterWeights)
    optimizer.lists = {"inner": [1]}  # type: ignore[attr-defined]
    optimizer.param_groups[0]["counter"] = torch.zeros(())
    with untouched(optimizer):
        probe(run)
        assert int(optimizer.steps_taken) == 1
        assert optimizer.param_groups[0]["step"] == 1
        optimizer.lists["inner"].append(2)  # type: ignore[attr-defined]
        optimizer.param_groups[0]["counter"] += 1
    assert int(optimizer.steps_taken) == 0
    assert optimizer.param_groups_master is None
    assert not hasattr(optimizer, "master_dtype")
    assert "step" not in optimizer.param_groups[0]
    assert optimizer.lists == {"inner": [1]}  # type: ignore[attr-defined]
    assert float(optimizer.param_groups[0]["counter"]) == 0.0


def test_no_hook_fires_and_no_scheduler_learns_of_the_step() -> None:
    fired: list[str] = []
    run = Run(make_scheduler=lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.5))
    handles = [
        run.optimizer.register_step_pre_hook(lambda *args: fired.append("own pre")),  # type: ignore[func-returns-value]
        run.optimizer.register_step_post_hook(lambda *args: fired.append("own post")),
        register_optimizer_step_pre_hook(lambda *args: fired.append("global pre")),  # type: ignore[func-returns-value]
        register_optimizer_step_post_hook(lambda *args: fired.append("global post")),
    ]
    try:
        with untouched(run.optimizer):
            probe(run)
            assert run.optimizer.state
        assert fired == []
        assert not getattr(run.optimizer, "_opt_called", False)
        run.step()
        assert fired == ["global pre", "own pre", "own post", "global post"]
        assert run.optimizer._opt_called  # type: ignore[attr-defined]
    finally:
        for handle in handles:
            handle.remove()
