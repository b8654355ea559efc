"""Where the bytes of a file go: whole ranges into live memory, boxes of a larger tensor by its rows.

1. Bytes that lie in the file as they lie in CPU memory are read in place. All others pass through temporary memory:
   what a device holds, and boxes that are no single range of the file (a part of every row, another stride order).
2. Temporary memory is asked for when the reading of its bytes begins and given back when they were taken: no more
   than a row of the tensor or `SLAB` bytes each, whichever is more.
3. The chunk of a sharded tensor is what this rank holds of it, a box; a placement that gives a rank anything but a
   box is a `ValueError`. Asking communicates with nobody.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeGuard

import torch
from attrs import define, frozen

from milepost.engines.formats.tensors import flags_of, set_flags, storage_bytes, tensors_in

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

SLAB = 8 << 20


class Target(Protocol):
    """`size` bytes of a file from byte `start`, and what becomes of them."""

    @property
    def start(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def temporary(self) -> bool:
        """Whether `memory` is there for the reading alone."""
        ...

    def memory(self) -> memoryview:
        """The memory to fill, asked for once, when the reading begins."""
        ...

    def finish(self) -> None:
        """All bytes are there."""
        ...


@frozen(eq=False)
class InPlace:
    """Bytes of a live CPU tensor, as a flat uint8 tensor."""

    start: int
    _bytes: torch.Tensor
    temporary: ClassVar[bool] = False

    @property
    def size(self) -> int:
        return self._bytes.numel()

    def memory(self) -> memoryview:
        return memoryview(self._bytes.numpy())  # type: ignore[arg-type]

    def finish(self) -> None: ...


@define(eq=False)
class Through:
    """Bytes that `take` puts where they belong, given as a flat uint8 CPU tensor."""

    start: int
    size: int
    _take: Callable[[torch.Tensor], object]
    _held: torch.Tensor | None = None
    temporary: ClassVar[bool] = True

    def memory(self) -> memoryview:
        self._held = torch.empty(self.size, dtype=torch.uint8)
        return memoryview(self._held.numpy())  # type: ignore[arg-type]

    def finish(self) -> None:
        held, self._held = self._held, None
        assert held is not None, "finished before it was read"
        self._take(held)


def box_targets(
    at: int,
    *,
    stride: Sequence[int],
    offsets: Sequence[int],
    live: torch.Tensor,
    flags: dict[str, bool] | None = None,
) -> Iterator[Target]:
    """Fill `live`, of any device and strides, with a box of a tensor in a file.

    The file's tensor has its first element at byte `at`, `stride` in elements and the dtype of `live`; the box begins
    at `offsets` and has the shape of `live`. `flags` are the lazy flags (`conj`, `neg`) that the file's tensor has.
    """
    if 0 in live.shape:
        return
    live, stride, flags = live.detach(), tuple(stride), flags or {}
    width = live.element_size()
    start = at + width * sum(offset * step for offset, step in zip(offsets, stride, strict=True))
    order = dense_order(tuple(live.shape), stride)
    if order is not None and dense_order(tuple(live.shape), live.stride()) == order and flags_of(live) == flags:
        yield from _range_targets(start, live)
        return
    widest = max(range(live.dim()), key=lambda at: (live.shape[at] > 1, stride[at]), default=None)
    if widest is None:  # one element, with other flags
        yield Through(start, width, partial(_put_box, live, stride, flags))
        return
    rows = max(1, SLAB // max(stride[widest] * width, 1))
    for first in range(0, live.shape[widest], rows):
        slab = live.narrow(widest, first, min(rows, live.shape[widest] - first))
        reach = sum((n - 1) * step for n, step in zip(slab.shape, stride, strict=True)) + 1
        yield Through(start + first * stride[widest] * width, reach * width, partial(_put_box, slab, stride, flags))


def _range_targets(start: int, live: torch.Tensor) -> Iterator[Target]:
    flat = storage_bytes(live.untyped_storage(), int(live.storage_offset()) * live.element_size(), live.nbytes)
    if live.device.type == "cpu":
        yield InPlace(start, flat)
        return
    for done in range(0, live.nbytes, SLAB):
        part = flat[done : done + SLAB]
        yield Through(start + done, part.numel(), part.copy_)


def _put_box(live: torch.Tensor, stride: tuple[int, ...], flags: dict[str, bool], held: torch.Tensor) -> None:
    box = held.view(live.dtype).as_strided(live.shape, stride)
    if flags:
        set_flags(box, flags)
    live.copy_(box)


def dense_order(size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[tuple[int, int], ...] | None:
    """The dimensions that matter, if they fill their memory without gap or overlap; otherwise None.

    Two tensors of one dtype and shape with equal orders are the same bytes in the same sequence.
    """
    dimensions = tuple((step, n) for n, step in zip(size, stride, strict=True) if n != 1)
    expected = 1
    for step, n in sorted(dimensions):
        if step != expected:
            return None
        expected *= n
    return dimensions


@frozen
class Chunk:
    """The box of a sharded tensor that this rank holds: where it begins in the whole tensor, and its shape."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Whether this is a DTensor. Costs no import: where torch's module is not loaded, there is none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def is_sharded(tree: object) -> bool:
    """Whether some tensor of the tree is spread over ranks, or placed on a mesh of them."""
    return any(map(is_dtensor, tensors_in(tree)))


def chunk_of(tensor: DTensor) -> Chunk | None:
    """What this rank holds of `tensor`; None outside its mesh; `ValueError`, with the reason, if that is no box."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    if tensor.device_mesh.get_coordinate() is None:
        return None
    check_placements(tensor)
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    held = tuple(local_of(tensor).shape)
    if held != tuple(sizes):
        raise ValueError(f"this rank holds a shard of shape {held} where its placements give it {tuple(sizes)}")
    return Chunk(tuple(offsets), tuple(sizes))


def local_of(tensor: DTensor) -> torch.Tensor:
    """The shard that this rank holds, sharing its memory."""
    with torch.no_grad():
        local: torch.Tensor = tensor.to_local()
        return local


def check_placements(tensor: DTensor) -> None:
    """`ValueError`, with the reason, unless every rank holds one box of the tensor.

    Plain shards and replicas are boxes; strided shards (FSDP over tensor parallelism) where they are even.
    """
    from torch.distributed.tensor import Replicate, Shard

    for at, placement in enumerate(tensor.placements):
        if type(placement) in (Replicate, Shard):
            continue
        factor = getattr(placement, "split_factor", None)
        if factor is None or not isinstance(dim := getattr(placement, "dim", None), int):
            raise ValueError(f"the placement {placement!r} holds no part of the tensor as it is; redistribute it")
        splits = [tensor.device_mesh.size(later) for later, other in enumerate(tensor.placements)
                  if later >= at and getattr(other, "dim", None) == dim]  # fmt: skip
        before = [other for other in tensor.placements[:at] if getattr(other, "dim", None) == dim]
        if before or factor != prod(splits[1:]) or tensor.shape[dim] % prod(splits):
            raise ValueError(f"the strided placements {tensor.placements} cut shape {tuple(tensor.shape)} unevenly")
