"""The trainer of one process whose model and optimizer give their whole state: plain `state_dict`."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from milepost.engines.trainers.base import BaseTrainer
from milepost.engines.trainers.inventory import require_fit, tensors
from milepost.engines.trainers.protocols import RestoreSource, Tree
from milepost.engines.trainers.saved import Saved
from milepost.transitions.errors import Corrupt, NotResumable


class PlainTrainer(BaseTrainer):
    """Model, optimizer, scheduler and data as they are.

        trainer = PlainTrainer(model=model, optimizer=optimizer, scheduler=scheduler, data=batches)

    Weights are restored in place: references to parameters stay good. `TypeError` for a part that is not
    Stateful.
    """

    def model_tree(self) -> Tree:
        return self.model.state_dict()

    def optimizer_tree(self) -> Tree:
        assert self.optimizer is not None
        return self.optimizer.state_dict()

    def load_model(self, source: RestoreSource, *, fits: bool) -> None:
        live = self.model_tree()
        where = f"{source.where}/model.pt"
        tree = Saved.read(where, source.load("model", into=live if fits else None)).tree
        if not fits:
            require_fit(where, saved=tensors(tree), here=tensors(live))
        elif tensors(tree) != tensors(live):
            raise Corrupt(f"{where} does not hold what trainer.pt describes: they are not of one save")
        self.model.load_state_dict(tree)

    def load_optimizer(self, source: RestoreSource, *, fits: bool, pristine: bool) -> None:
        assert self.optimizer is not None
        live = self.optimizer_tree()
        fill = fits and live.get("state")
        saved = Saved.read(f"{source.where}/optim.pt", source.load("optim", into=live if fill else None))
        if pristine and self.traces is not None:
            if saved.need("state", dict):
                raise Corrupt(f"{saved.where}.state: trainer.pt says that the optimizer was never stepped")
            self.traces.reset(saved.need("param_groups", list))
            return
        try:
            self.optimizer.load_state_dict(saved.tree)
        except (KeyError, TypeError, ValueError) as error:
            raise NotResumable(f"{saved.where} does not fit the optimizer: {error}") from error
        if isinstance(self.optimizer, Optimizer):
            _undo_casts(self.optimizer, saved.tree)


def _undo_casts(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """torch casts floating state to its parameter's dtype: float32 moments of bfloat16 weights would lose bits."""
    names = [name for group in saved["param_groups"] for name in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, parameter in zip(names, parameters, strict=True):
        live = optimizer.state.get(parameter, {})
        for key, value in saved["state"].get(name, {}).items():
            if isinstance(value, torch.Tensor) and value.dtype != live[key].dtype:
                live[key] = value.to(live[key].device)
