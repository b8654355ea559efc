"""Optimizers that keep their state in unusual places."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer


class MasterWeights(Optimizer):
    """Momentum over float32 master weights that are built when first stepped, with one step counter for each group.

    The rate of the update depends on the counter, so a counter that is off shows in the weights.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], *, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.param_groups_master: list[list[torch.Tensor]] | None = None
        self.steps_taken = torch.zeros((), dtype=torch.int64)

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        if self.param_groups_master is None:
            self.param_groups_master = [
                [parameter.float().clone() for parameter in group["params"]] for group in self.param_groups
            ]
            self.master_dtype = torch.float32
        self.steps_taken += 1
        for group, masters in zip(self.param_groups, self.param_groups_master, strict=True):
            group["step"] = group.get("step", 0) + 1
            for parameter, master in zip(group["params"], masters, strict=True):
                if parameter.grad is not None:
                    self._update(parameter, master, group)

    def _update(self, parameter: torch.Tensor, master: torch.Tensor, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        state = self.state[parameter]
        moment = state.setdefault("exp_avg", torch.zeros_like(parameter))
        moment.mul_(0.9).add_(parameter.grad, alpha=0.1)
        master.add_(moment, alpha=-group["lr"] / (1 - 0.9 ** group["step"]))
        parameter.copy_(master)
