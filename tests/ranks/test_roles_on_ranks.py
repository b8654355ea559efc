"""A policy on rank 0 and a critic on rank 1, as plain processes: saved as one, resumed as one, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from milepost.engines.trainers import PlainTrainer
from milepost.journal import Journal
from milepost.transitions.boundary import BoundaryOpened
from tests.ranks.saying import Saying, records, saying, visible
from tests.ranks.training import settings
from tests.ranks.worlds import run

pytestmark = pytest.mark.slow

STEPS, WARM_UP = 6, 2
ROLES = ("policy", "critic")


class Part:
    """The model of one role, which steps by itself."""

    def __init__(self, *, seed: int) -> None:
        torch.manual_seed(seed + dist.get_rank())
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def trainer(self) -> PlainTrainer:
        return PlainTrainer(model=self.model, optimizer=self.optimizer)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(3, 4)).pow(2).mean().backward()
        self.optimizer.step()

    def weights(self) -> list[Tensor]:
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return [tensor.detach().clone() for tensor in (*self.model.parameters(), *moments)]


def train(root: Path, form: str, *, until: int, seed: int = 1) -> tuple[str, object, list[Tensor]]:
    """The policy stands still while the critic warms up. Where it began, the loop state there, and the weights."""
    role, part = ROLES[dist.get_rank()], Part(seed=seed)
    config = settings(root, form=form)
    with Journal.open(config, roles={role: part.trainer()}, loop_state={"kl": 0.25}) as journal:
        for step in journal.steps(until=until):
            for name in ROLES if step > WARM_UP else ("critic",):
                journal.updated(name, applied=1)
                if name == role:
                    part.step()
        if dist.get_rank() == 0:
            clocks = journal.state.boundary.clocks
            counters = {name: clocks[name].optimizer_step for name in ROLES}
            assert counters == {"policy": max(until - WARM_UP, 0), "critic": until}
            opened = records(list(journal.history()), BoundaryOpened)
            assert all([one.role for one in record.roles] == sorted(ROLES) for record in opened)
    return f"{journal.resumption.kind} {journal.resumption.step}", journal.committed_loop_state(), part.weights()


def continued(root: Path, form: str) -> list[tuple[str, object, list[Tensor]]]:
    """In peace; then in two starts."""
    return [
        train(root / "peace", form, until=STEPS),
        train(root / "twice", form, until=4),
        train(root / "twice", form, until=STEPS, seed=5),
    ]


@pytest.mark.parametrize("form", ["dcp", "consolidated"])
def test_roles_on_two_ranks_are_saved_and_resumed_together(tmp_path: Path, form: str) -> None:
    for rank in run(continued, 2, tmp_path, form):
        peace, first, second = rank
        assert (peace[:2], first[:2], second[:2]) == (("fresh 0", None), ("fresh 0", None), ("exact 4", {"kl": 0.25}))
        assert all(map(torch.equal, second[2], peace[2]))
        assert not all(map(torch.equal, first[2], peace[2]))
    assert visible(tmp_path / "twice") == (2, 4, 6)
    (checkpoint,) = (tmp_path / "twice").glob("milepost/default/run/*/checkpoints/iter_000000006")
    assert {path.name for path in checkpoint.iterdir()} >= {"policy", "critic", "_SUCCESS"}
    assert (checkpoint / "critic" / "model").is_dir() == (form == "dcp")


def strangers(root: Path) -> list[Saying]:
    """Other roles than those that were saved, and names on one rank only."""
    train(root, "consolidated", until=2)
    rank, config = dist.get_rank(), settings(root, form="consolidated")
    trainer = Part(seed=1).trainer()
    return [
        saying(lambda: Journal.open(config, roles={("policy", "reward")[rank]: trainer}, loop_state={"kl": 0.25})),
        saying(lambda: Journal.open(config, trainer=trainer)),
        saying(lambda: Journal.open(config, trainer=trainer) if rank else Journal.open(config, roles={"a": trainer})),
    ]


def test_other_roles_than_those_that_were_saved_are_refused_on_every_rank(tmp_path: Path) -> None:
    first, second = run(strangers, 2, tmp_path)
    assert first == second
    others, unnamed, mixed = first
    assert others[0] == unnamed[0] == "NotResumable" and mixed[0] == "Misconfigured"
    assert "holds critic, policy, this run has policy, reward" in others[1]
    assert "holds critic, policy, this run has one trainer without a name" in unnamed[1]
    assert "one trainer on every rank, or names for all of them" in mixed[1]
    assert visible(tmp_path) == (2,)
