"""One rank's part of a tree as one file: computed `.pt` files in a row, streamed.

1. Every tensor chunk and every plain value is a whole `.pt` file of its own, at a multiple of 64 bytes, as torch's
   writer would have saved it: `torch.load` of the range reads it, and so does `torch.distributed.checkpoint.load`.
2. Plain values are frozen when `Shards` is made, tensors are read while the file is written, block by block and
   without a copy; the state must not change until then. Only a tensor that leaves gaps in its memory is copied, by
   itself, when its turn comes.
3. What could not be read back is `Refused` by path when `Shards` is made, before anything is created.
4. A rank for which nothing is left to write writes no file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from attrs import define, field, frozen
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from milepost.engines.formats.chunks import check_placements, dense_order, is_dtensor, local_of
from milepost.engines.formats.dcp.planning import LocalPlan, Planner
from milepost.engines.formats.dcp.trees import flatten
from milepost.engines.formats.layout import ALIGNMENT, Layout, lay_out
from milepost.engines.formats.skeleton import Live, Skeleton, freeze
from milepost.engines.formats.streaming import Ring, put_pt
from milepost.engines.formats.tensors import flags_of
from milepost.engines.relay import DEPTH
from milepost.transitions.errors import Refused


@frozen
class Entry:
    """Where an item lies: `length` bytes from byte `offset` of `file`, a name within the directory. Picklable."""

    index: MetadataIndex
    file: str
    offset: int
    length: int


class Shards:
    """One state tree on one rank, ready to be planned and written.

    `name` is that of its directory, such as `model` or `policy/model`. Keep a `Planner` for each tree as long as its
    trainer lives: planning 1,500 tensors takes half a second, and next to nothing where the state has kept its form.
    Communicates with nobody. Raises `Refused` with the path of what cannot be saved.
    """

    def __init__(self, name: str, tree: object, *, coordinator: bool, planner: Planner | None = None) -> None:
        self.name = name
        flat = flatten(tree, name=name)
        self._contents = {called: _content(value, f"{name}.{called}") for called, value in flat.values.items()}
        self.plan: LocalPlan = (planner or Planner()).plan(flat, name=name, coordinator=coordinator)
        """What this rank could write, for `plan_together`."""

    @property
    def room(self) -> int:
        """Bytes that this rank writes at most: those of everything it holds, replicas too."""
        return sum(content.layout.room for content in self._contents.values())

    def image(self, plan: SavePlan, *, rank: int, prefix: str = "") -> ShardImage:
        """This rank's file under the common plan; its name starts with `prefix`, and so do those in `entries`.

        `Refused` where the plan was made for another state.
        """
        items = []
        for item in plan.items:
            content = self._contents.get(item.index.fqn)
            if content is None or content.shape != _shape(item):
                found = "nothing" if content is None else f"{content.shape}"
                raise Refused(
                    f"$.{self.name}.{item.index.fqn}: planned as {_shape(item)}, found {found}: the state "
                    "changed its form after it was planned; plan it again"
                )
            items.append((item.index, content))
        return ShardImage(folder=self.name, file=f"{prefix}__{rank}_0.distcp", items=tuple(items))


@define(eq=False)
class ShardImage:
    """One rank's file of a directory; see `Image`. `empty` says that there is nothing to write: write no file."""

    _folder: str
    _file: str
    _items: tuple[tuple[MetadataIndex, _Content], ...]
    _entries: tuple[Entry, ...] | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return f"{self._folder}/{self._file}"

    @property
    def empty(self) -> bool:
        return not self._items

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Where every item lies, for `metadata_file`: known once all blocks were asked for."""
        if self.empty:
            return ()
        assert self._entries is not None, f"{self.name} was not written to its end"
        return self._entries

    @property
    def room(self) -> int:
        return sum(content.layout.room for _, content in self._items)

    @property
    def depth(self) -> int:
        return DEPTH

    def blocks(self, *, crc32: bool = False) -> Iterator[memoryview]:
        """See `Image`."""
        ring = Ring(self.room)
        entries = []
        for index, content in self._items:
            yield from ring.put(bytes(-ring.at % ALIGNMENT))
            start = ring.at
            skeleton, lives = content.open()
            yield from put_pt(ring, content.layout, skeleton, lives, crc32=crc32)
            entries.append(Entry(index, self._file, start, ring.at - start))
        yield from ring.rest()
        self._entries = tuple(entries)


@define(eq=False)
class _Content:
    """A value as a `.pt` file to be. `shape` is the dtype and shape of a tensor, None for anything else.

    `scattered` is a tensor that leaves gaps in its memory: a copy of it is written.
    """

    shape: tuple[torch.dtype, tuple[int, ...]] | None
    _path: str
    _frozen: tuple[Skeleton, tuple[Live, ...]] | None
    _scattered: torch.Tensor | None

    @cached_property
    def layout(self) -> Layout:
        if self._frozen is not None:
            return lay_out(self._frozen[0].sizes)
        assert self._scattered is not None
        return lay_out([self._scattered.numel() * self._scattered.element_size()])

    def open(self) -> tuple[Skeleton, tuple[Live, ...]]:
        if self._frozen is not None:
            return self._frozen
        assert self._scattered is not None
        plain = self._scattered.resolve_conj().resolve_neg()
        return freeze(plain.clone(memory_format=torch.contiguous_format), name=self._path)


def _content(value: object, path: str) -> _Content:
    if not isinstance(value, torch.Tensor):
        return _Content(None, path, freeze(value, name=path), None)
    if is_dtensor(value):
        try:
            check_placements(value)
        except ValueError as error:
            raise Refused(f"$.{path}: {error}") from error
        value = local_of(value)
    tensor = value.detach()
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise Refused(f"$.{path}: a {type(value).__name__} has no bytes of its own; convert it to a plain tensor")
    shape = (tensor.dtype, tuple(tensor.shape))
    checked = freeze(tensor, name=path)
    if _is_whole(tensor):
        return _Content(shape, path, checked, None)
    if dense_order(shape[1], tensor.stride()) is None or flags_of(tensor) or not tensor.numel():
        return _Content(shape, path, None, tensor)
    return _Content(shape, path, freeze(_alone(tensor), name=path), None)


def _is_whole(tensor: torch.Tensor) -> bool:
    return (
        not flags_of(tensor)
        and tensor.nbytes == tensor.untyped_storage().nbytes()
        and dense_order(tuple(tensor.shape), tensor.stride()) is not None
    )


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a tensor whose storage is no larger: a shard within a padded buffer brings no neighbours."""
    start = int(tensor.storage_offset()) * tensor.element_size()
    part = tensor.untyped_storage()[start : start + tensor.nbytes]
    assert isinstance(part, torch.UntypedStorage)
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(part, 0, tensor.shape, tensor.stride())


def _shape(item: WriteItem) -> tuple[torch.dtype, tuple[int, ...]] | None:
    data = item.tensor_data
    return None if data is None else (data.properties.dtype, tuple(data.chunk.sizes))
