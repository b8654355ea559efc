"""A trainer by names, in one process: what it saves, what it reads, and what becomes of its optimizer."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import LBFGS, SGD, Adam, AdamW, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

from milepost.engines.trainers import BaseTrainer, RestoreSource, ShardedTrainer, join
from milepost.transitions.errors import Corrupt, NotResumable, Refused
from milepost.transitions.values import FULL, Clocks, Component
from tests.trainers.checkpoints import Checkpoint, MakeOptimizer, MakeScheduler, Optimizer, Run, plain, save
from tests.trainers.directories import Directories
from tests.trainers.optimizers import MasterWeights

Save = Callable[[BaseTrainer, int], RestoreSource]


def sharded(make_optimizer: MakeOptimizer, *, seed: int = 0, make_scheduler: MakeScheduler | None = None) -> Run:
    run = Run(make_optimizer, make_scheduler, seed=seed)
    run.trainer = ShardedTrainer(model=run.model, optimizer=run.optimizer, scheduler=run.scheduler, data=run.batches)
    return run


@pytest.fixture(params=["whole files", "shards"])
def save_as(request: pytest.FixtureRequest, tmp_path: Path) -> Save:
    """Either format; the shards are written and strictly read by torch."""

    def files(trainer: BaseTrainer, step: int) -> RestoreSource:
        return save(trainer, step=step)

    def shards(trainer: BaseTrainer, step: int) -> RestoreSource:
        snapshot = trainer.capture(FULL, clocks=Clocks(optimizer_step=step, attempt_id=step))
        return Directories.of(join(snapshot.trees, [snapshot.local]), tmp_path / f"{len(list(tmp_path.iterdir()))}")

    return files if request.param == "whole files" else shards


def frozen_first(model: nn.Module) -> Optimizer:
    """The first weight is frozen and in the optimizer all the same."""
    first, *_ = model.parameters()
    first.requires_grad_(False)
    return AdamW(model.parameters(), lr=0.01)


def groups(model: nn.Module) -> list[dict[str, Any]]:
    first, *rest = model.parameters()
    return [{"params": [first], "lr": 0.02}, {"params": rest, "weight_decay": 0.1}]


class OtherMake(AdamW):
    """One whose state nobody knows the form of, but for what a step makes."""


OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "plain SGD": lambda model: SGD(model.parameters(), lr=0.05),
    "SGD with momentum": lambda model: SGD(model.parameters(), lr=0.05, momentum=0.9),
    "AdamW": lambda model: AdamW(model.parameters(), lr=0.01),
    "AdamW foreach": lambda model: AdamW(model.parameters(), lr=0.01, foreach=True),
    "AdamW fused": lambda model: AdamW(model.parameters(), lr=0.01, fused=True),
    "Adam amsgrad": lambda model: Adam(model.parameters(), lr=0.01, amsgrad=True),
    "AdamW with groups": lambda model: AdamW(groups(model), lr=0.01),
    "AdamW with a tensor as rate": lambda model: AdamW(model.parameters(), lr=torch.tensor(0.01)),
    "AdamW beside a frozen weight": frozen_first,
    "an AdamW of another make": lambda model: OtherMake(model.parameters(), lr=0.01),
    "a shared counter and master weights": lambda model: MasterWeights(model.parameters(), lr=0.05),
}
BY_BOTH_WAYS = ("AdamW", "an AdamW of another make")
"""The state to be filled is made like the parameters, or by the step of a stand-in."""


@pytest.mark.parametrize("at", [0, 3], ids=["never stepped", "stepped"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_continues_bit_for_bit(name: str, at: int, save_as: Save) -> None:
    run = sharded(OPTIMIZERS[name])
    run.train(at)
    checkpoint = save_as(run.trainer, at)
    losses, end = run.train(3), values(run)
    for resumed in (run, sharded(OPTIMIZERS[name], seed=1)):
        restored = resumed.trainer.restore(checkpoint)
        assert restored.exact == ("model", "optimizer", "data", "rng")
        assert resumed.train(3) == losses
        assert values(resumed) == end
    assert_nothing_was_read_whole(checkpoint)


def assert_nothing_was_read_whole(source: RestoreSource) -> None:
    """What is asked for has exactly the form of what the shards hold: all of it goes to where it belongs."""
    assert not isinstance(source, Directories) or source.whole == []


def values(run: Run) -> list[object]:
    """All that a later step depends on."""
    checkpoint = save(run.trainer)
    return [plain(checkpoint.tree(name)) for name in checkpoint.names()]


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if "frozen" not in name])
def test_a_capture_gives_the_official_trees_as_references(name: str) -> None:
    run = sharded(OPTIMIZERS[name])
    run.train(2)
    trees = run.trainer.capture(FULL, clocks=Clocks(optimizer_step=2, attempt_id=2)).trees
    official: Any = get_optimizer_state_dict(run.model, run.optimizer)
    tree: Any = trees["optim"]
    assert list(tree) == ["state", "param_groups"]
    assert tree["param_groups"] == official["param_groups"]
    assert {name: list(state) for name, state in tree["state"].items()} == {
        name: list(state) for name, state in official["state"].items()
    }
    for name, state in official["state"].items():
        for key, value in state.items():
            assert tree["state"][name][key] is value
    weights = get_model_state_dict(run.model)
    assert {key: value.data_ptr() for key, value in trees["model"].items()} == {  # type: ignore[attr-defined]
        key: value.data_ptr()  # type: ignore[union-attr]
        for key, value in weights.items()
    }


def test_a_program_that_knows_only_torch_loads_the_optimizer() -> None:
    run, other = sharded(OPTIMIZERS["AdamW"]), Run(seed=1)
    run.train(3)
    tree = torch.load(io.BytesIO(save(run.trainer).files["optim"]), weights_only=True)
    set_optimizer_state_dict(other.model, other.optimizer, tree)
    for here, there in zip(other.model.parameters(), run.model.parameters(), strict=True):
        assert torch.equal(other.optimizer.state[here]["exp_avg"], run.optimizer.state[there]["exp_avg"])
        assert other.optimizer.state[here]["step"] == 3


def test_weights_and_fresh_moments_are_filled_in_place(save_as: Save) -> None:
    run, other = sharded(OPTIMIZERS["AdamW"]), sharded(OPTIMIZERS["AdamW"], seed=1)
    run.train(2)
    before = [parameter.data_ptr() for parameter in other.model.parameters()]
    checkpoint = save_as(run.trainer, 2)
    other.trainer.restore(checkpoint)
    assert [parameter.data_ptr() for parameter in other.model.parameters()] == before
    if isinstance(checkpoint, Checkpoint):
        assert checkpoint.filled == {"model", "optim"}


def test_parameters_without_state_stay_without(save_as: Save) -> None:
    run = sharded(frozen_first)
    run.train(2)
    checkpoint = save_as(run.trainer, 2)
    other = sharded(frozen_first, seed=1)
    other.trainer.restore(checkpoint)
    assert_nothing_was_read_whole(checkpoint)
    first, *rest = other.model.parameters()
    assert first not in other.optimizer.state
    assert all(parameter in other.optimizer.state for parameter in rest)


class Tied(nn.Module):
    """Two layers with one weight, and extra state that grows."""

    def __init__(self, *, seed: int, extra: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.extra = torch.ones(extra)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.second(torch.tanh(self.first(inputs)))
        return hidden

    def get_extra_state(self) -> torch.Tensor:
        return self.extra

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.extra = state


def test_tied_weights_stay_tied_and_extra_state_may_have_another_size(save_as: Save) -> None:
    def built(seed: int, extra: int) -> tuple[Tied, Optimizer, ShardedTrainer]:
        model = Tied(seed=seed, extra=extra)
        optimizer = AdamW(model.parameters(), lr=0.1)
        return model, optimizer, ShardedTrainer(model=model, optimizer=optimizer)

    def train(model: nn.Module, optimizer: Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.eye(3)).square().sum().backward()
        optimizer.step()

    model, optimizer, trainer = built(0, 3)
    train(model, optimizer)
    checkpoint = save_as(trainer, 1)
    train(model, optimizer)
    other, its_optimizer, its_trainer = built(1, 5)
    its_trainer.restore(checkpoint)
    assert other.second.weight is other.first.weight
    assert other.extra.tolist() == [1.0, 1.0, 1.0]
    train(other, its_optimizer)
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def test_a_weight_that_no_gradient_ever_reached_stays_without_state(save_as: Save) -> None:
    """It is trainable, so that a step on the stand-in makes state for it."""
    run, other = sharded(OPTIMIZERS["AdamW"]), sharded(OPTIMIZERS["AdamW"], seed=1)
    first, *rest = run.model.parameters()
    for parameter in rest:
        parameter.grad = torch.ones_like(parameter)
    run.optimizer.step()
    checkpoint = save_as(run.trainer, 1)
    other.trainer.restore(checkpoint)
    assert_nothing_was_read_whole(checkpoint)
    there, *others = other.model.parameters()
    assert first not in run.optimizer.state
    assert there not in other.optimizer.state
    assert all(parameter in other.optimizer.state for parameter in others)


def test_a_weight_that_was_frozen_since_keeps_its_moments(save_as: Save) -> None:
    run, other = sharded(OPTIMIZERS["AdamW"]), sharded(OPTIMIZERS["AdamW"], seed=1)
    run.train(2)
    checkpoint, saved = save_as(run.trainer, 2), save(run.trainer).tree("optim")["state"]["0.weight"]
    first, *_ = other.model.parameters()
    first.requires_grad_(False)
    other.trainer.restore(checkpoint)
    assert_nothing_was_read_whole(checkpoint)
    assert not first.requires_grad
    assert torch.equal(other.optimizer.state[first]["exp_avg"], saved["exp_avg"])


def test_the_saved_options_shape_the_state(save_as: Save) -> None:
    run, other = sharded(OPTIMIZERS["Adam amsgrad"]), sharded(lambda m: Adam(m.parameters(), lr=0.5), seed=1)
    run.train(2)
    checkpoint = save_as(run.trainer, 2)
    losses = run.train(3)
    other.trainer.restore(checkpoint)
    assert_nothing_was_read_whole(checkpoint)
    assert other.optimizer.param_groups[0]["amsgrad"] is True
    assert other.train(3) == losses


@pytest.mark.parametrize("name", ["plain SGD", "SGD with momentum", "AdamW", "AdamW with groups"])
@pytest.mark.parametrize("at", [0, 3], ids=["never stepped", "stepped"])
def test_what_a_plain_trainer_saved_is_continued(name: str, at: int, save_as: Save) -> None:
    run, other = Run(OPTIMIZERS[name]), sharded(OPTIMIZERS[name], seed=1)
    run.train(at)
    checkpoint = save_as(run.trainer, at)
    losses = run.train(3)
    other.trainer.restore(checkpoint)
    assert other.train(3) == losses


def legacy(checkpoint: Checkpoint) -> Checkpoint:
    def change(tree: Any) -> None:
        step = tree["iter"]
        tree.clear()
        tree["iter"] = step

    return checkpoint.changed("trainer", change)


@pytest.mark.parametrize("make", [sharded, Run], ids=["by names", "by numbers"])
def test_a_legacy_checkpoint_is_read_whichever_keys_it_has(make: Callable[..., Run]) -> None:
    run, other = make(OPTIMIZERS["AdamW"]), sharded(OPTIMIZERS["AdamW"], seed=1)
    run.train(3)
    checkpoint = legacy(save(run.trainer, step=3))
    other.trainer.restore(checkpoint)
    assert "optim" in checkpoint.filled
    for here, there in zip(other.model.parameters(), run.model.parameters(), strict=True):
        assert torch.equal(here, there)
        assert torch.equal(other.optimizer.state[here]["exp_avg"], run.optimizer.state[there]["exp_avg"])


def test_a_plain_trainer_names_the_one_that_reads_names() -> None:
    run, other = sharded(OPTIMIZERS["AdamW"]), Run(seed=1)
    run.train(1)
    checkpoint, before = save(run.trainer, step=1), other.everything()
    with pytest.raises(NotResumable, match=r"trainer\.pt\.named_optimizer: .* build a ShardedTrainer"):
        other.trainer.restore(checkpoint)
    assert other.everything() == before
    with pytest.raises(NotResumable, match=r"optim\.pt: .* build a ShardedTrainer"):
        other.trainer.restore(legacy(checkpoint))
    assert not other.optimizer.state


def test_a_plain_trainer_reads_its_own_shards(tmp_path: Path) -> None:
    run, other = Run(), Run(seed=1)
    run.train(2)
    snapshot = run.trainer.capture(FULL, clocks=Clocks(optimizer_step=2, attempt_id=2))
    shards = Directories.of(join(snapshot.trees, [snapshot.local]), tmp_path)
    losses = run.train(3)
    for resumed in (other, run):
        assert resumed.trainer.restore(shards).exact == ("model", "optimizer", "data", "rng")
        assert resumed.train(3) == losses


def test_a_plain_trainer_takes_a_never_stepped_optimizer_from_shards(tmp_path: Path) -> None:
    """They keep no empty container: there is no `state` in them."""
    run = Run()
    snapshot = run.trainer.capture(FULL, clocks=Clocks())
    shards = Directories.of(join(snapshot.trees, [snapshot.local]), tmp_path)
    losses = run.train(3)
    for resumed in (Run(seed=1), run):
        resumed.trainer.restore(shards)
        assert not resumed.optimizer.state
        assert resumed.train(3) == losses


def failing(checkpoint: Checkpoint) -> RestoreSource:
    """The optimizer turns out to be damaged once half of it was read into live memory."""

    class Damaged(Checkpoint):
        def load(self, name: str, *, into: object | None = None) -> object:
            tree = super().load(name, into=into)
            if name == "optim":
                raise Corrupt("optim: expected another digest")
            return tree

    return Damaged(files=checkpoint.files)


@pytest.mark.parametrize("trained", [0, 2], ids=["a fresh optimizer", "a live optimizer"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rejected_load_leaves_the_optimizer_without_state(name: str, trained: int) -> None:
    run, other = sharded(OPTIMIZERS[name]), sharded(OPTIMIZERS[name], seed=1)
    run.train(2)
    other.train(trained)
    with pytest.raises(Corrupt, match="another digest"):
        other.trainer.restore(failing(save(run.trainer, step=2)))
    assert not other.optimizer.state
    checkpoint = save(run.trainer, step=2)
    run.trainer.restore(checkpoint)
    losses = run.train(2)
    other.trainer.restore(checkpoint)
    assert other.train(2) == losses


def test_an_optimizer_of_torch_is_restored_without_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = sharded(OPTIMIZERS["AdamW"]), sharded(OPTIMIZERS["AdamW"], seed=1)
    run.train(2)
    saved = save(run.trainer, step=2)
    losses = run.train(2)

    def unwanted(*args: object, **named: object) -> None:
        raise AssertionError("stepped")

    with monkeypatch.context() as patch:
        patch.setattr(AdamW, "step", unwanted)
        other.trainer.restore(saved)
    assert other.train(2) == losses


@pytest.mark.parametrize("name", BY_BOTH_WAYS)
def test_no_hook_and_no_scheduler_learns_of_saves_and_restores(name: str) -> None:
    fired: list[object] = []
    run = sharded(
        OPTIMIZERS[name], make_scheduler=lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    )
    other = sharded(
        OPTIMIZERS[name], make_scheduler=lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    )
    run.train(2)
    everywhere = register_optimizer_step_post_hook(lambda *args: fired.append(args))
    try:
        other.optimizer.register_step_pre_hook(lambda *args: fired.append(args))  # type: ignore[arg-type, func-returns-value]
        save(other.trainer)
        other.trainer.restore(save(run.trainer, step=2))
        assert fired == []
        assert not getattr(other.optimizer, "_opt_called", False)
        other.train(1)
        assert len(fired) == 2
    finally:
        everywhere.remove()


@pytest.mark.parametrize("name", BY_BOTH_WAYS)
def test_gradients_that_lie_about_are_left_alone(name: str) -> None:
    """With one of them about, torch makes no state at all."""
    run, other = sharded(OPTIMIZERS[name]), sharded(OPTIMIZERS[name], seed=1)
    run.train(2)
    gradients = []
    for parameter in other.model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
        gradients.append(parameter.grad)
    checkpoint = save(run.trainer, step=2)
    other.trainer.restore(checkpoint)
    assert "optim" in checkpoint.filled
    for parameter, gradient in zip(other.model.parameters(), gradients, strict=True):
        assert parameter.grad is gradient
        assert bool((gradient == 3.0).all())


def test_an_optimizer_that_no_step_without_closure_initialises_is_read_afresh(save_as: Save) -> None:
    def closure(run: Run) -> Callable[[], torch.Tensor]:
        def loss() -> torch.Tensor:
            run.optimizer.zero_grad()
            value: torch.Tensor = ((run.model.eval()(run.inputs) - run.targets) ** 2).mean()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        return loss

    run, other = (sharded(lambda model: LBFGS(model.parameters(), max_iter=2), seed=seed) for seed in (0, 1))
    run.optimizer.step(closure(run))
    other.trainer.restore(save_as(run.trainer, 1))
    for one in (run, other):
        one.optimizer.step(closure(one))
    assert all(map(torch.equal, run.model.parameters(), other.model.parameters()))


def test_state_that_a_first_step_does_not_make_is_read_all_the_same(save_as: Save) -> None:
    class Late(SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            super().step()
            for parameter, state in self.state.items():
                state["steps"] = state.get("steps", 0) + 1
                if state["steps"] > 1:
                    state["late"] = torch.full_like(parameter, float(state["steps"]))

    run, other = (sharded(lambda model: Late(model.parameters(), lr=0.1, momentum=0.5), seed=n) for n in (0, 1))
    run.train(2)
    other.trainer.restore(save_as(run.trainer, 2))
    assert values(other) == values(run)


def test_other_groups_are_refused_by_name_before_anything_is_touched() -> None:
    def regrouped(model: nn.Module) -> Optimizer:
        weights = [parameter for parameter in model.parameters() if parameter.dim() == 2]
        rest = [parameter for parameter in model.parameters() if parameter.dim() != 2]
        return AdamW([{"params": [*weights, *rest]}])

    checkpoint = save(sharded(OPTIMIZERS["AdamW"]).trainer)
    other = sharded(regrouped, seed=1)
    before = other.everything()
    with pytest.raises(NotResumable, match="optim does not fit"):
        other.trainer.restore(checkpoint)
    assert other.everything() == before


def test_a_parameter_of_another_name_is_refused_before_anything_is_touched() -> None:
    run = sharded(OPTIMIZERS["AdamW"])
    checkpoint = save(run.trainer).changed(
        "trainer", lambda tree: tree["named_optimizer"]["param_groups"][0]["params"].__setitem__(0, "9.weight")
    )
    other = sharded(OPTIMIZERS["AdamW"], seed=1)
    before = other.everything()
    with pytest.raises(NotResumable, match=r"only in the checkpoint: 9\.weight; only here: 0\.weight"):
        other.trainer.restore(checkpoint)
    assert other.everything() == before


MALFORMED: Mapping[str, tuple[Callable[[Any], object], str]] = {
    "no groups": (lambda saved: saved.pop("param_groups"), "param_groups: missing; expected list"),
    "a group of another kind": (lambda saved: saved.update(param_groups=[3]), "param_groups[0]: expected a dict"),
    "mixed keys": (
        lambda saved: saved["param_groups"][0]["params"].append(3),
        "param_groups: expected parameters by number, or by name",
    ),
    "no list of those without state": (lambda saved: saved.pop("without_state"), "without_state: missing"),
    "numbers without state": (lambda saved: saved.update(without_state=[[1]]), "without_state: expected names"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_outline_is_corrupt_and_nothing_is_touched(name: str) -> None:
    change, said = MALFORMED[name]
    run, other = sharded(OPTIMIZERS["AdamW"]), sharded(OPTIMIZERS["AdamW"], seed=1)
    checkpoint = save(run.trainer).changed("trainer", lambda tree: change(tree["named_optimizer"]))
    before = other.everything()
    with pytest.raises(Corrupt) as refusal:
        other.trainer.restore(checkpoint)
    assert said in str(refusal.value)
    assert other.everything() == before


@pytest.mark.parametrize("name", ["model", "optim"])
def test_bulk_of_another_save_is_corrupt(name: str) -> None:
    run, other = sharded(OPTIMIZERS["AdamW"]), sharded(OPTIMIZERS["AdamW"])
    run.train(1)

    def change(tree: Any) -> None:
        (tree if name == "model" else tree["state"]).pop("0.weight")

    with pytest.raises(Corrupt, match=f"{name} does not hold what trainer.pt describes"):
        other.trainer.restore(save(run.trainer, step=1).changed(name, change))


def test_a_marker_beside_moments_is_corrupt() -> None:
    run, other = sharded(OPTIMIZERS["AdamW"]), sharded(OPTIMIZERS["AdamW"])
    run.train(1)
    checkpoint = save(run.trainer, step=1).changed("trainer", lambda tree: tree.update(optimizer_pristine=True))
    with pytest.raises(Corrupt, match=r"trainer\.pt says that the optimizer was never stepped"):
        other.trainer.restore(checkpoint)


class Simple:
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_parts_that_are_not_of_torch_are_refused_at_construction() -> None:
    with pytest.raises(TypeError, match="model: expected a torch Module, found Simple"):
        ShardedTrainer(model=Simple())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="optimizer: expected a torch Optimizer, found Simple"):
        ShardedTrainer(model=nn.Linear(1, 1), optimizer=Simple())  # type: ignore[arg-type]


def test_a_parameter_that_is_not_of_the_model_is_refused_at_construction() -> None:
    with pytest.raises(Refused, match="parameter 0 of group 0 of the optimizer is none of the model's"):
        ShardedTrainer(model=nn.Linear(1, 1), optimizer=SGD(nn.Linear(1, 1).parameters()))


def test_state_that_the_official_form_has_no_place_for_is_refused_by_its_name() -> None:
    class Wide(SGD):
        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), "masters": []}

    model = nn.Linear(1, 1)
    with pytest.raises(Refused, match="Wide keeps masters beside state and param_groups"):
        save(ShardedTrainer(model=model, optimizer=Wide(model.parameters())))


def test_a_model_alone_is_a_trainer() -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    checkpoint = save(ShardedTrainer(model=model))
    assert checkpoint.names() == ("model", "trainer")
    assert ShardedTrainer(model=other).restore(checkpoint).exact == ("model", "rng")
    assert torch.equal(model.weight, other.weight)


def test_the_training_state_alone_does_not_walk_the_optimizer() -> None:
    class Counting(AdamW):
        asked = 0

        def state_dict(self) -> dict[str, Any]:
            self.asked += 1
            return super().state_dict()

    run = sharded(lambda model: Counting(model.parameters()))
    run.train(1)
    whole = save(run.trainer, step=1)
    assert run.optimizer.asked == 1  # type: ignore[attr-defined]
    part = run.trainer.capture((Component.TRAINING_STATE,), clocks=Clocks(optimizer_step=1, attempt_id=1))
    assert run.optimizer.asked == 1  # type: ignore[attr-defined]
    assert Checkpoint.joined(part).files["trainer"] == whole.files["trainer"]


def test_a_shape_that_depends_on_the_number_of_ranks_asks_for_the_topology_it_was_saved_with() -> None:
    checkpoint = save(ShardedTrainer(model=nn.Linear(6, 1)))
    with pytest.raises(NotResumable) as refusal:
        ShardedTrainer(model=nn.Linear(8, 1)).restore(evolve(checkpoint, world_size=4))
    assert str(refusal.value) == (
        "iter_000000005/model does not fit: different: weight (saved float32[1, 6], here float32[1, 8]). It was "
        "saved by 1 ranks and 4 are here: a shape that depends on the number of ranks, such as a padded one, needs "
        "the topology that it was saved with. Build the trainer as the run that saved it did; nothing was changed"
    )
    with pytest.raises(NotResumable) as refusal:
        ShardedTrainer(model=nn.Linear(8, 1)).restore(checkpoint)
    assert "ranks" not in str(refusal.value)
