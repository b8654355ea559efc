"""A state tree without its bytes: what `data.pkl` says, frozen at one moment.

1. One walk copies every container and every mutable leaf, so that no later change of the live tree can reach
   the skeleton. Tensors become `TensorLeaf`s over `StorageRecord`s; their bytes stay where they are, named by
   `Live` ranges, until a stager or a stream copies them.
2. What `torch.load(weights_only=True)` could not read back is `Refused`, by its path and before anything is
   created. Exact types only: an `IntEnum`, a `numpy.float64` or a named tuple is not the value it extends.
3. Aliasing is kept: a storage is written once, however many tensors view it; a container or tensor that
   appears twice is written once. Only the bytes that some tensor can reach are written, from a multiple of
   64 bytes on: a small view does not drag a large storage along.
4. Equal trees give equal bytes: strings are canonical, sets are sorted, and nothing that the pickle says
   depends on where an object lies.
"""

from __future__ import annotations

import io
import pickle
from _codecs import encode
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from attrs import define, frozen

from milepost.engines.formats.tensors import flags_of
from milepost.transitions.errors import Refused

Path: TypeAlias = "tuple[Path | None, object]"

_UNTYPED = torch.storage.UntypedStorage
_NEW_DTYPES = torch.storage._new_dtypes()  # torch gives these no storage class of their own
_TYPED = {dtype: getattr(torch, name) for dtype, name in torch.storage._dtype_to_storage_type_map().items()}
_PLAIN = frozenset({type(None), bool, float, torch.dtype})
_SHARED = frozenset({list, dict, OrderedDict, Counter, set, bytearray, torch.Tensor, torch.nn.Parameter})
_INT_LIMIT = 1 << 2039  # beyond 255 bytes pickle takes an opcode that weights_only does not know
_COMPACT_TO = 64


@define(eq=False)
class StorageRecord:
    """One `data/<key>`: bytes `low` to `high` of a live storage, pickled as elements of `kind`."""

    key: str
    kind: type
    itemsize: int
    low: int
    high: int

    @property
    def size(self) -> int:
        return max(self.high - self.low, 0)


@frozen(eq=False)
class Live:
    """The live bytes behind a record; `address` is None for memory that this process cannot address."""

    storage: torch.UntypedStorage
    start: int
    size: int
    address: int | None
    _path: Path

    @property
    def path(self) -> str:
        """Where a tensor over these bytes lies in the tree, for messages."""
        return _shown(self._path)


@frozen(eq=False)
class TensorLeaf:
    """A tensor without its bytes. `offset` counts elements from the start of the live storage."""

    record: StorageRecord
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    flags: object
    attributes: object

    def reduced(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """How torch pickles it: a rebuilding function and its arguments."""
        offset = 0 if 0 in self.size else self.offset - self.record.low // self.dtype.itemsize
        args: tuple[object, ...] = (self.record, offset, self.size, self.stride, self.requires_grad)
        args += (OrderedDict(),)
        rebuild: Callable[..., object] = torch._utils._rebuild_tensor_v2
        if self.dtype in _NEW_DTYPES:
            rebuild = torch._utils._rebuild_tensor_v3
            args += (self.dtype,)
        if self.flags:
            args += (self.flags,)
        if self.attributes:
            return torch._tensor._rebuild_from_type_v2, (rebuild, torch.Tensor, args, self.attributes)
        return rebuild, args


@frozen(eq=False)
class Call:
    """A value that is pickled as a call, where pickle's own way would not be readable or not canonical."""

    function: Callable[..., object]
    args: tuple[object, ...]


@frozen(eq=False)
class Skeleton:
    """The frozen tree and the storages it names, in the order of their keys."""

    tree: object
    records: tuple[StorageRecord, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(record.size for record in self.records)

    def pickled(self) -> bytes:
        """The bytes of `data.pkl` (protocol 2, as torch.save writes it)."""
        out = io.BytesIO()
        _Pickler(out, protocol=2).dump(self.tree)
        return out.getvalue()


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> object:
        if type(value) is StorageRecord:
            return ("storage", value.kind, value.key, "cpu", value.size // value.itemsize)
        return None

    def reducer_override(self, value: object) -> Any:
        if type(value) is TensorLeaf:
            return value.reduced()
        if type(value) is Call:
            return value.function, value.args
        return NotImplemented


def freeze(tree: object, *, name: str) -> tuple[Skeleton, tuple[Live, ...]]:
    """Take a tree apart into its skeleton and its live bytes, one `Live` for each record.

    Raises `Refused` with the path (`$.<name>…`) and the type of the first leaf that a plain
    `torch.load(weights_only=True)` could not read back.
    """
    walk = _Walk()
    try:
        frozen_tree = walk.freeze(tree, (None, name))
    except RecursionError:
        raise Refused(f"$.{name} is nested too deeply to be pickled; flatten it") from None
    return Skeleton(frozen_tree, tuple(walk.records)), tuple(walk.live())


def freeze_all(trees: Mapping[str, object]) -> dict[str, tuple[Skeleton, tuple[Live, ...]]]:
    """`freeze` for each named tree of a snapshot."""
    return {name: freeze(tree, name=name) for name, tree in trees.items()}


class _Walk:
    """One walk over one tree. `memo` holds what was frozen by identity, and the originals, so ids stay taken."""

    def __init__(self) -> None:
        self.records: list[StorageRecord] = []
        self._storages: list[tuple[torch.UntypedStorage, Path]] = []
        self._by_place: dict[tuple[object, ...], StorageRecord] = {}
        self._memo: dict[int, tuple[object, object]] = {}
        self._open: set[int] = set()
        self._canonical = {word: word for word in ("storage", "cpu")}  # the pickler says these itself
        self._freezers: dict[type, Callable[..., object]] = {
            int: self._int,
            str: lambda text, path: self._text(text),
            bytes: lambda data, path: self._bytes(data),
            bytearray: lambda data, path: Call(bytearray, (self._bytes(data),)),
            complex: lambda number, path: Call(complex, (number.real, number.imag)),
            set: self._set,
            tuple: lambda items, path: tuple(self._items(items, path)),
            list: lambda items, path: self._items(items, path),
            dict: self._dict,
            OrderedDict: self._ordered,
            Counter: lambda counts, path: Counter(self._dict(counts, path)),
            torch.Size: lambda size, path: Call(torch.Size, (tuple(size),)),
            torch.device: lambda device, path: Call(torch.device, (self._text(str(device)),)),
            torch.layout: lambda layout, path: Call(torch.serialization._get_layout, (self._text(str(layout)),)),
            torch.Tensor: self._tensor,
            torch.nn.Parameter: self._parameter,
        }

    def freeze(self, value: object, path: Path) -> object:
        kind = type(value)
        if kind in _PLAIN:
            return value
        freezer = self._freezers.get(kind)
        if freezer is None:
            found = f"{kind.__module__}.{kind.__qualname__} cannot be read back with weights_only=True"
            raise _refused(path, found, "convert it to a tensor or to plain Python values")
        if kind not in _SHARED:
            return freezer(value, path)
        known = self._memo.get(id(value))
        if known is not None:
            return known[0]
        if id(value) in self._open:
            raise _refused(path, "a container that holds itself", "break the cycle")
        self._open.add(id(value))
        result = freezer(value, path)
        self._open.discard(id(value))
        self._memo[id(value)] = (result, value)
        return result

    def live(self) -> list[Live]:
        return [
            Live(
                storage=storage,
                start=record.low,
                size=record.size,
                address=storage.data_ptr() + record.low if storage.device.type == "cpu" else None,
                path=path,
            )
            for record, (storage, path) in zip(self.records, self._storages, strict=True)
        ]

    def _int(self, number: int, path: Path) -> int:
        if not -_INT_LIMIT <= number < _INT_LIMIT:
            raise _refused(path, f"an int of {number.bit_length()} bits", "store it as a string")
        return number

    def _text(self, text: str) -> str:
        """The one object for all equal strings: pickle writes an object that it has seen as a reference."""
        return self._canonical.setdefault(text, text)

    def _bytes(self, data: bytes | bytearray) -> Call:
        """As pickle does it, but for empty bytes: there pickle says `bytes()`, which weights_only refuses."""
        return Call(encode, (self._text(data.decode("latin1")), self._text("latin1")))

    def _set(self, items: set[object], path: Path) -> Call:
        frozen_items = [self._key(item, path) for item in items]
        return Call(set, (sorted(frozen_items, key=lambda item: (type(item).__name__, repr(item))),))

    def _items(self, items: list[object] | tuple[object, ...], path: Path) -> list[object]:
        return [self.freeze(item, (path, index)) for index, item in enumerate(items)]

    def _dict(self, items: Mapping[Any, object], path: Path) -> dict[object, object]:
        return {self._key(key, path): self.freeze(value, (path, key)) for key, value in items.items()}

    def _ordered(self, items: OrderedDict[object, object], path: Path) -> OrderedDict[object, object]:
        result = OrderedDict(self._dict(items, path))
        attributes = {self._text(name): self.freeze(value, (path, name)) for name, value in vars(items).items()}
        vars(result).update(attributes)
        return result

    def _key(self, key: object, path: Path) -> object:
        kind = type(key)
        if kind is tuple:
            return tuple(self._key(part, path) for part in key)  # type: ignore[attr-defined]
        if kind in _PLAIN or kind is str or kind is int or kind is bytes:
            return self.freeze(key, path)
        shown = f"{kind.__module__}.{kind.__qualname__} as a dict key or set item"
        raise _refused(path, shown, "use str, int, float, bool, None, bytes or a tuple of these")

    def _parameter(self, parameter: torch.nn.Parameter, path: Path) -> Call:
        data = self._tensor(parameter.data, path)
        args: tuple[object, ...] = (data, parameter.requires_grad, OrderedDict())
        if attributes := self._dict(vars(parameter), path):
            return Call(torch._utils._rebuild_parameter_with_state, (*args, attributes))
        return Call(torch._utils._rebuild_parameter, args)

    def _tensor(self, tensor: torch.Tensor, path: Path) -> TensorLeaf:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
            found = "meta" if tensor.is_meta else str(tensor.layout)
            raise _refused(path, f"a {found} tensor ({tensor.dtype})", "convert it to a dense tensor")
        try:
            storage = tensor.untyped_storage()
            record = self._record(tensor, storage, path)
        except (RuntimeError, NotImplementedError) as error:  # a functorch wrapper has no storage
            raise _refused(path, f"a tensor without bytes of its own ({error})", "unwrap it") from error
        return TensorLeaf(
            record=record,
            dtype=tensor.dtype,
            offset=int(tensor.storage_offset()),
            size=tuple(tensor.shape),
            stride=tensor.stride(),
            requires_grad=tensor.requires_grad,
            flags=self._dict(flags_of(tensor), path),
            attributes=self._dict(attributes, path) if (attributes := vars(tensor)) else None,
        )

    def _record(self, tensor: torch.Tensor, storage: torch.UntypedStorage, path: Path) -> StorageRecord:
        """The record of a tensor's storage, made or widened so that the tensor's extent lies within it."""
        dtype, itemsize, held = tensor.dtype, tensor.element_size(), storage.nbytes()
        kind = _UNTYPED if dtype in _NEW_DTYPES else _TYPED.get(dtype)
        if kind is None:
            raise _refused(path, f"a tensor of {dtype}, which torch does not save", "convert its dtype")
        low = high = 0
        if tensor.numel():
            last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
            low = int(tensor.storage_offset()) * itemsize
            high = low + (last + 1) * itemsize
            low -= low % _COMPACT_TO
        if high > held:
            found = f"a tensor that reaches byte {high} of a storage of {held}"
            raise _refused(path, found, "its storage was freed or resized; save before that")
        place = (storage.device, storage.data_ptr(), held) if held else (storage._cdata,)
        record = self._by_place.get(place)
        if record is None:
            key, typed = self._text(str(len(self.records))), 1 if kind is _UNTYPED else itemsize
            record = self._by_place[place] = StorageRecord(key, kind, typed, low, high)
            self.records.append(record)
            self._storages.append((storage, path))
        elif record.kind is not kind:
            other = _shown(self._storages[int(record.key)][1])
            raise _refused(path, f"{dtype} over bytes that {other} views as another dtype", "clone one of them")
        elif high:
            record.low = min(record.low, low) if record.high else low
            record.high = max(record.high, high)
        return record


def _shown(path: Path) -> str:
    parts = []
    here: Path | None = path
    while here is not None:
        here, key = here
        parts.append(f".{key}" if isinstance(key, str) else f"[{key!r}]")
    return "$" + "".join(reversed(parts))


def _refused(path: Path, found: str, then: str) -> Refused:
    return Refused(f"{_shown(path)}: {found}; {then}")
