"""What others do to save and load the same state, called as their documentation says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.distributed import get_rank
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from benchmarks.state import State, flattened


def save_torch(state: State, path: Path) -> None:
    """torch.save without the checksums that torch.load never looks at. Syncs nothing."""
    computed = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state.tree(), path)
    finally:
        torch.serialization.set_crc32_options(computed)


def save_safetensors(state: State, path: Path) -> None:
    """Tensors only. Syncs nothing."""
    from safetensors.torch import save_file

    save_file(state.flat(), path)


def save_dcp(state: State, path: Path) -> None:
    """DCP syncs its files and not its directory."""
    save(state.named(), checkpoint_id=path, no_dist=True)


def load_torch(state: State, path: Path, *, mmap: bool) -> None:
    """torch.load, then every tensor copied to the live one."""
    loaded = torch.load(path, mmap=mmap, weights_only=True)
    for (_, live), (_, saved) in zip(flattened(state.tree()), flattened(loaded), strict=True):
        live.copy_(saved)


def load_safetensors(state: State, path: Path) -> None:
    """Each tensor taken out of the mapped file and copied to the live one."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        for name, live in state.flat().items():
            live.copy_(file.get_tensor(name))


def load_dcp(state: State, path: Path) -> None:
    """DCP reads into the live tensors."""
    load(state.named(), checkpoint_id=path, no_dist=True)


def save_sharded(model: torch.nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """DCP, every rank its shards. Called by all ranks."""
    save(_sharded(model, optimizer), checkpoint_id=path)


def save_gathered(model: torch.nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """Everything gathered on rank 0, and torch.save there. Called by all ranks. Syncs nothing."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    tree = {
        "model": get_model_state_dict(model, options=options),
        "optim": get_optimizer_state_dict(model, optimizer, options=options),
    }
    if get_rank() == 0:
        torch.save(tree, path)


def load_sharded(model: torch.nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    """DCP reads each rank's shards into the live tensors. Called by all ranks."""
    load(_sharded(model, optimizer), checkpoint_id=path)


def _sharded(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}
