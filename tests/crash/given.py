"""What a run of the small world is given: trainers of a few numbers, a clock, ids, and a watch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, cast

import torch

from milepost.engines.termination import Termination
from milepost.engines.trainers import Restored, RestoreSource, Snapshot
from milepost.engines.trainers.protocols import CursorResume, Tree
from milepost.transitions.values import Clocks, Component, Plan

Values = tuple[object, ...]
"""What a checkpoint has to bring back: numbers, and with several roles their counters and what the loop said."""


class TinyTrainer:
    """Three small tensors and a counter. `life` is in what it saves: no two processes save the same bytes."""

    def __init__(self, life: int) -> None:
        self.weight = torch.zeros(3, dtype=torch.float64)
        self.momentum = torch.zeros(1, dtype=torch.float64)
        self.trained = 0
        self.life = life

    def train(self, step: int) -> None:
        """Depends on every step before it."""
        self.momentum.mul_(0.25).add_(step)
        self.weight.mul_(0.5).add_(torch.tensor([step, 1.0, -step], dtype=torch.float64)).sub_(self.momentum)
        self.trained += 1

    def values(self) -> Values:
        """Everything that a checkpoint of the present state has to bring back."""
        return (*self.weight.tolist(), *self.momentum.tolist(), float(self.trained))

    def capture(
        self,
        components: Plan,
        *,
        clocks: Clocks,
        cursor_resume: CursorResume = "auto",
        validation: Mapping[str, object] | None = None,
    ) -> Snapshot:
        state = [clocks.attempt_id, clocks.optimizer_step, clocks.skipped_total, clocks.skipped_consecutive]
        trees: dict[Component, tuple[str, dict[str, object]]] = {
            Component.MODEL: ("model", {"weight": self.weight}),
            Component.OPTIMIZER: ("optim", {"momentum": self.momentum}),
            Component.TRAINING_STATE: ("trainer", {"clocks": state, "trained": self.trained, "life": self.life}),
        }
        return Snapshot(components=components, trees=dict(trees[component] for component in components))

    def restore(
        self,
        source: RestoreSource,
        *,
        cursor_resume: CursorResume = "auto",
        validation: Mapping[str, object] | None = None,
    ) -> Restored:
        trainer = cast("dict[str, object]", source.load("trainer"))
        model = cast("dict[str, torch.Tensor]", source.load("model", into={"weight": self.weight}))
        optimizer = cast("dict[str, torch.Tensor]", source.load("optim", into={"momentum": self.momentum}))
        self.weight.copy_(model["weight"])
        self.momentum.copy_(optimizer["momentum"])
        self.trained = cast(int, trainer["trained"])
        return Restored(clocks=_clocks(trainer), exact=("model", "optim", "trained"))


class RankTrainer(TinyTrainer):
    """One rank of a role: state that all of its ranks have alike, and a random stream and a cursor of its own.

    Model and optimizer have two tensors each, so that two ranks have something to write of both. `failing` is raised
    by the next capture, once.
    """

    def __init__(self, life: int, *, rank: int) -> None:
        super().__init__(life)
        self.bias = torch.zeros(2, dtype=torch.float64)
        self.scale = torch.ones(2, dtype=torch.float64)
        self.rank = rank
        self.stream = 0
        self.cursor = 0
        self.failing: Exception | None = None

    def train(self, step: int) -> None:
        """The same on every rank, but for what it draws and what it takes of the data."""
        super().train(step)
        self.scale.add_(self.momentum)
        self.bias.add_(self.scale * (step + 0.5))
        self.stream = (5 * self.stream + 7 * step + self.rank + 1) % 65_521
        self.cursor += self.rank + 1

    def values(self) -> Values:
        alike = (*super().values(), *self.bias.tolist(), *self.scale.tolist())
        return (*alike, self.stream, self.cursor)

    def capture(self, components: Plan, **asked: Any) -> Snapshot:
        failure, self.failing = self.failing, None
        if failure is not None:
            raise failure
        trees = dict(super().capture(components, **asked).trees)
        if Component.MODEL in components:
            trees["model"] = self._model
        if Component.OPTIMIZER in components:
            trees["optim"] = self._optimizer
        local: Tree = {}
        if Component.TRAINING_STATE in components:
            identity = {"class": "numbers", "fingerprint": None}
            local = {"rng": {"stream": self.stream}, "identity": identity, "cursor": {"at": self.cursor}}
        return Snapshot(components=components, trees=trees, local=local)

    def restore(
        self,
        source: RestoreSource,
        *,
        cursor_resume: CursorResume = "auto",
        validation: Mapping[str, object] | None = None,
    ) -> Restored:
        trainer, data = (cast("dict[str, Any]", source.load(name)) for name in ("trainer", "data"))
        source.load("model", into=self._model)
        source.load("optim", into=self._optimizer)
        self.trained = trainer["trained"]
        cursors = data["cursors"] if "cursors" in data else [data["cursor"]]
        self.stream = trainer["rng"]["ranks"][source.rank]["stream"]
        self.cursor = cursors[source.rank]["at"]
        return Restored(clocks=_clocks(trainer), exact=("model", "optim", "trained", "stream", "cursor"))

    @property
    def _model(self) -> Tree:
        return {"weight": self.weight, "bias": self.bias}

    @property
    def _optimizer(self) -> Tree:
        return {"momentum": self.momentum, "scale": self.scale}


def _clocks(trainer: Mapping[str, Any]) -> Clocks:
    attempt, applied, skipped, row = trainer["clocks"]
    return Clocks(attempt_id=attempt, optimizer_step=applied, skipped_total=skipped, skipped_consecutive=row)


class NamedAmbient:
    """A clock that stands still and ids that follow from the process's name."""

    def __init__(self, name: str) -> None:
        self._digest = blake2b(name.encode(), digest_size=16).hexdigest()

    def now(self) -> datetime:
        return datetime(2026, 11, 29, 16, 9, 4, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return 0.0

    def nonce(self) -> str:
        return self._digest

    def execution_id(self) -> str:
        return self._digest[:8]

    def host(self) -> str:
        return "host"

    def pid(self) -> int:
        return 1


class ToldWatch:
    """Says what the test told it."""

    limits: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.told: Termination | None = None

    def observed(self) -> Termination | None:
        return self.told

    def close(self) -> None: ...
