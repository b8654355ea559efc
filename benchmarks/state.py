"""The training state that is saved and loaded: a bfloat16 transformer with the moments of AdamW.

24 layers of the shape of GPT-2 medium, and a width that gives the size that is asked for: 1,548 tensors from one
number to the embedding. At 2,048 MiB there are about 350 million parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from milepost.engines.trainers import PlainTrainer

LAYERS = 24
_VOCABULARY = 49
"""Rows of the embedding in multiples of the width, so that the tensors keep their proportions at every size."""


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k = nn.Linear(width, width), nn.Linear(width, width)
        self.v, self.o = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)


class Transformer(nn.Module):
    """The parameters of a transformer; nothing here runs it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY * width, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(width)


class State:
    """A model and an optimizer in the middle of a training, and the forms in which the contestants take them."""

    def __init__(self, mib: int) -> None:
        values_per_width_squared = 3 * (12 * LAYERS + _VOCABULARY)  # the weights and two moments of each
        width = max(8, round(((mib << 20) / 2 / values_per_width_squared) ** 0.5 / 8) * 8)
        with torch.device("meta"):
            model = Transformer(width).to(torch.bfloat16)
        self.model = model.to_empty(device="cpu")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
        self._noise = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
        for parameter in self.model.parameters():
            self._fill(parameter.data)
            moments = {name: self._fill(torch.empty_like(parameter.data)) for name in ("exp_avg", "exp_avg_sq")}
            self.optimizer.state[parameter] = {"step": torch.tensor(100.0), **moments}

    def _fill(self, tensor: torch.Tensor) -> torch.Tensor:
        for part in torch.split(tensor.view(-1), len(self._noise)):
            part.copy_(self._noise[: len(part)])
        return tensor

    def trainer(self) -> PlainTrainer:
        """For milepost."""
        return PlainTrainer(model=self.model, optimizer=self.optimizer)

    def tree(self) -> dict[str, Any]:
        """For torch.save: the state dicts as they are."""
        return {"model": self.model.state_dict(), "optim": self.optimizer.state_dict()}

    def named(self) -> dict[str, Any]:
        """For torch.distributed.checkpoint: optimizer state by the name of its parameter."""
        names = [name for name, _ in self.model.named_parameters()]
        optim = self.optimizer.state_dict()
        groups = [{**group, "params": names} for group in optim["param_groups"]]
        state = {names[index]: values for index, values in optim["state"].items()}
        return {"model": self.model.state_dict(), "optim": {"state": state, "param_groups": groups}}

    def flat(self) -> dict[str, torch.Tensor]:
        """For safetensors: every tensor by one name. Live tensors, not copies."""
        return dict(flattened(self.named()))

    @property
    def size(self) -> int:
        """Bytes in all tensors."""
        return sum(tensor.nbytes for tensor in self.flat().values())


def flattened(tree: object, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in nested dicts, with its path."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from flattened(value, f"{path}.{key}" if path else str(key))
