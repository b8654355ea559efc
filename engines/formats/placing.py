"""Which bytes of a file go where: a file's tree beside a live one.

A storage is placed in live memory when every tensor over it is the whole of it, meets at its path a live CPU tensor
of the same dtype, shape and order of elements, and all of these live tensors are one piece of memory that no other
storage was placed in. So tied weights stay tied, and no byte is written twice. Any other storage gets fresh memory.

A tensor that meets a sharded one (a DTensor) of the same dtype and shape fills this rank's chunk of it, wherever that
lies, and needs no memory of its own; one of another dtype or shape is `NotResumable`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from milepost.engines.formats.archive import corrupt
from milepost.engines.formats.chunks import InPlace, Target, box_targets, chunk_of, dense_order, is_dtensor, local_of
from milepost.engines.formats.tensors import flags_of, set_flags, storage_bytes
from milepost.engines.formats.unpickling import StorageRef, TensorRef
from milepost.transitions.errors import NotResumable

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_Pairs = list[tuple[TensorRef, object]]

_CONTAINERS = (tuple, list, dict, OrderedDict, Counter)


class Placing:
    """The storages of `tree`, the memory of each, and in the end the tree itself, built in place."""

    def __init__(self, tree: object, *, into: object | None, where: str) -> None:
        self._tree = tree
        self._into = into
        self._where = where
        self._pairs: dict[StorageRef, _Pairs] = {}
        self._sharded: list[tuple[TensorRef, DTensor]] = []
        self._visited: set[tuple[int, int]] = set()
        self._visit(tree, into)
        self._live = _placed(self._pairs)
        self._fresh: dict[StorageRef, torch.UntypedStorage] = {}
        self._built: dict[int, torch.Tensor] = {}
        self._entered: set[int] = set()

    def storages(self) -> tuple[StorageRef, ...]:
        """Every storage that some tensor of the tree uses."""
        return tuple(dict.fromkeys((*self._pairs, *(reference.storage for reference, _ in self._sharded))))

    def targets(self, starts: Mapping[StorageRef, int]) -> list[Target]:
        """What to fill before `build`, given where each storage starts in the file."""
        targets: list[Target] = [InPlace(starts[storage], self._bytes_of(storage)) for storage in self._pairs]
        for reference, live in self._sharded:
            targets += self._chunk(reference, live, start=starts[reference.storage])
        return targets

    def _bytes_of(self, reference: StorageRef) -> torch.Tensor:
        """The memory of a storage as a flat uint8 tensor."""
        live = self._live.get(reference)
        if live is None:
            return storage_bytes(self._storage(reference), 0, reference.size)
        start = int(live.storage_offset()) * live.element_size()
        return storage_bytes(live.untyped_storage(), start, reference.size)

    def _chunk(self, reference: TensorRef, live: DTensor, *, start: int) -> Iterator[Target]:
        """This rank's part of a sharded tensor, read from the whole one."""
        try:
            chunk = chunk_of(live)
        except ValueError as error:
            raise NotResumable(f"{self._where}: {_path_to(self._tree, reference)}: {error}") from error
        if live.is_meta or (live.dtype, tuple(live.shape)) != (reference.dtype, reference.size):
            raise NotResumable(
                f"{self._where}: {_path_to(self._tree, reference)} was saved as {reference.dtype} of shape "
                f"{reference.size}, this run has {live.dtype} of shape {tuple(live.shape)} on {live.device.type}"
            )
        if chunk is not None:
            yield from box_targets(
                start + reference.offset * reference.dtype.itemsize,
                stride=reference.stride,
                offsets=chunk.offsets,
                live=local_of(live),
                flags=reference.metadata,
            )

    def build(self) -> object:
        """The tree, with the live tensor wherever its storage was placed there. To be called once."""
        return self._resolve(self._tree, self._into)

    def _visit(self, node: object, live: object) -> None:
        if type(node) is TensorRef:
            if is_dtensor(live):
                self._sharded.append((node, live))
            else:
                self._pairs.setdefault(node.storage, []).append((node, live))
            self._visit(node.attributes, None)
        elif type(node) in _CONTAINERS and (id(node), id(live)) not in self._visited:
            self._visited.add((id(node), id(live)))
            for _, child, beside in _children(node, live):
                self._visit(child, beside)
            if type(node) is OrderedDict:
                self._visit(vars(node), None)

    def _resolve(self, node: Any, live: object) -> Any:
        if type(node) is TensorRef:
            return live if is_dtensor(live) or node.storage in self._live else self._tensor(node)
        if type(node) is tuple:
            return tuple(self._resolve(child, beside) for _, child, beside in _children(node, live))
        if type(node) in _CONTAINERS and id(node) not in self._entered:
            self._entered.add(id(node))
            for key, child, beside in list(_children(node, live)):
                node[key] = self._resolve(child, beside)
            if type(node) is OrderedDict:
                self._resolve(vars(node), None)
        return node

    def _storage(self, reference: StorageRef) -> torch.UntypedStorage:
        if reference not in self._fresh:
            self._fresh[reference] = torch.UntypedStorage(reference.size)  # type: ignore[no-untyped-call]
        return self._fresh[reference]

    def _tensor(self, reference: TensorRef) -> torch.Tensor:
        known = self._built.get(id(reference))
        if known is not None:
            return known
        try:
            tensor = _built(reference, self._storage(reference.storage))
        except RuntimeError as error:  # flags or sizes that torch does not take
            corrupt(self._where, "tensors that torch can build", f"{reference} ({error})")
        self._built[id(reference)] = tensor
        vars(tensor).update(self._resolve(reference.attributes, None))
        return tensor


def _built(reference: TensorRef, storage: torch.UntypedStorage) -> torch.Tensor:
    """The tensor over its storage; `RuntimeError` for what torch does not take."""
    tensor = torch.empty(0, dtype=reference.dtype)
    tensor.set_(storage, reference.offset, reference.size, reference.stride)
    if reference.metadata:
        set_flags(tensor, reference.metadata)
    if reference.is_parameter:
        return torch.nn.Parameter(tensor, reference.requires_grad)
    return tensor.requires_grad_(reference.requires_grad)


def _children(node: Any, live: object) -> Iterator[tuple[Any, object, object]]:
    """Key, child, and what lies at that key of the live container (None where there is nothing)."""
    if isinstance(node, dict):
        beside = live if isinstance(live, Mapping) else {}
        for key, child in node.items():
            yield key, child, beside.get(key)
    else:
        row = live if isinstance(live, list | tuple) and len(live) == len(node) else [None] * len(node)
        for index, child in enumerate(node):
            yield index, child, row[index]


def _placed(pairs: Mapping[StorageRef, _Pairs]) -> dict[StorageRef, torch.Tensor]:
    """The live tensor of each storage that is filled in place."""
    wanted = []
    for reference, uses in pairs.items():
        lives = [live for tensor, live in uses if isinstance(live, torch.Tensor) and _fits(tensor, live)]
        starts = {live.data_ptr() for live in lives}
        if reference.size and len(lives) == len(uses) and len(starts) == 1:
            wanted.append((starts.pop(), reference, lives[0]))
    placed = {}
    taken = 0
    for start, reference, live in sorted(wanted, key=lambda want: want[0]):
        if start >= taken:
            placed[reference] = live
            taken = start + reference.size
    return placed


def _fits(reference: TensorRef, live: torch.Tensor) -> bool:
    """Whether the bytes of the reference's storage, as they are, are those of the live tensor."""
    whole = reference.offset == 0 and prod(reference.size) * reference.dtype.itemsize == reference.storage.size
    return (
        whole
        and type(live) in (torch.Tensor, torch.nn.Parameter)
        and live.device.type == "cpu"
        and live.layout is torch.strided
        and live.dtype == reference.dtype
        and tuple(live.shape) == reference.size
        and dense_order(live.shape, live.stride()) == dense_order(reference.size, reference.stride) is not None
        and flags_of(live) == reference.metadata
    )


def _path_to(tree: object, reference: TensorRef) -> str:
    """Where a tensor lies in the file's tree, for messages."""
    ways: list[tuple[str, object]] = [("$", tree)]
    seen: set[int] = set()
    while ways:
        path, node = ways.pop()
        if node is reference:
            return path
        if type(node) in _CONTAINERS and id(node) not in seen:
            seen.add(id(node))
            ways += [(f"{path}[{key!r}]", child) for key, child, _ in _children(node, None)]
    return "$"
