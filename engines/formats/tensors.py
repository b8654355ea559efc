"""What torch keeps beside a tensor's bytes, and its bytes as such."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch


def tensors_in(tree: object) -> Iterator[torch.Tensor]:
    """Every tensor of nested mappings, lists and tuples."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from tensors_in(value)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            yield from tensors_in(value)


def bytes_in(tree: object) -> int:
    """The bytes of every tensor of the tree, whole; a DTensor counts with all of its shards."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(tree))


def flags_of(tensor: torch.Tensor) -> dict[str, bool]:
    """The lazy flags of a tensor that are set: `conj`, `neg`."""
    flags: dict[str, bool] = torch._utils.get_tensor_metadata(tensor)  # type: ignore[no-untyped-call]
    return flags


def set_flags(tensor: torch.Tensor, flags: dict[str, bool]) -> None:
    torch._utils.set_tensor_metadata(tensor, flags)  # type: ignore[no-untyped-call]


def storage_bytes(storage: torch.UntypedStorage, start: int, size: int) -> torch.Tensor:
    """`size` bytes of a storage from byte `start` as a uint8 tensor on the storage's device, sharing it."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, start, (size,), (1,))
