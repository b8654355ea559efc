"""Reading `data.pkl` without trusting it.

A small machine for the pickle opcodes that torch.save writes (protocol 2). It knows plain values, plain containers
and a closed list of names; it imports nothing, calls nothing that a file could choose, and allocates no more than
the pickle holds. A tensor becomes a `TensorRef`: what to build once its storage is there. Any other name, opcode or
shape is `Corrupt`. The list of names is that of `torch.load(weights_only=True)` for dense tensors and containers:
torch/_weights_only_unpickler.py.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Callable
from pickle import decode_long
from typing import Any

import attrs
import torch
from attrs import frozen

from milepost.engines.formats.archive import corrupt


@frozen
class StorageRef:
    """A storage that the pickle names: `data/<key>`, `size` bytes of `dtype` (None: untyped)."""

    key: str
    dtype: torch.dtype | None
    size: int


@frozen(eq=False)
class TensorRef:
    """A tensor to build over a storage; offset, size and stride in elements, checked against the storage."""

    storage: StorageRef
    dtype: torch.dtype
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    metadata: dict[str, bool]
    is_parameter: bool = False
    attributes: dict[str, object] = attrs.field(factory=dict)


@frozen(eq=False)
class _Function:
    """A name that may be called. `_Kind` and dtypes are names that may only be passed on."""

    call: Callable[..., object]


@frozen
class _Kind:
    dtype: torch.dtype | None


def unpickle(data: bytes, *, where: str) -> object:
    """The tree that `data.pkl` describes, with a `TensorRef` in each tensor's place."""
    machine = _Machine(data)
    try:
        return machine.run()
    except _Unknown as unknown:
        corrupt(where, "plain containers and tensors in data.pkl", f"the global {unknown}")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, struct.error) as error:
        corrupt(where, "a pickle that torch.save wrote", f"{error!r} before byte {machine.at} of data.pkl")


class _Unknown(Exception):
    """A global that is not on the list."""


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, object] = {}

    def run(self) -> object:
        """Run to the end. The opcodes that make up nine tenths of a state's pickle are spelled out here."""
        data, memo, stack, at = self._data, self._memo, self._stack, 0
        while (opcode := data[at]) != _STOP:
            at += 1
            if opcode == _BINPUT:
                memo[data[at]] = stack[-1]
                at += 1
            elif opcode == _LONG_BINPUT:
                memo[int.from_bytes(data[at : at + 4], "little")] = stack[-1]
                at += 4
            elif opcode == _BINGET:
                stack.append(memo[data[at]])
                at += 1
            elif opcode == _LONG_BINGET:
                stack.append(memo[int.from_bytes(data[at : at + 4], "little")])
                at += 4
            elif opcode == _BININT1:
                stack.append(data[at])
                at += 1
            else:
                self.at = at
                _OPCODES[opcode](self)
                stack, at = self._stack, self.at
        (result,) = stack
        if self._marks:
            raise ValueError("an open mark")
        return result

    def take(self, size: int) -> bytes:
        """The next `size` bytes of the pickle."""
        start, self.at = self.at, self.at + size
        if self.at > len(self._data):
            raise ValueError(f"{size} bytes expected, {len(self._data) - start} left")
        return self._data[start : self.at]

    def number(self, form: struct.Struct) -> Any:
        start, self.at = self.at, self.at + form.size
        return form.unpack_from(self._data, start)[0]

    def line(self) -> str:
        start = self.at
        self.at = self._data.index(b"\n", start) + 1
        return self._data[start : self.at - 1].decode()

    def push(self, value: object) -> None:
        self._stack.append(value)

    def pop(self) -> Any:
        return self._stack.pop()

    def mark(self) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marks.pop()
        return items

    def top(self, *kinds: type) -> Any:
        value = self._stack[-1]
        if type(value) not in kinds:
            raise TypeError(f"{type(value).__name__} where one of {[kind.__name__ for kind in kinds]} was due")
        return value

    def tuple_of(self, count: int) -> None:
        if len(self._stack) < count:
            raise ValueError("a tuple of more than there is")
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def extend(self, items: list[Any]) -> None:
        self.top(list).extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.top(dict, OrderedDict, Counter)
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[_checked_key(key)] = value

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def global_name(self) -> None:
        name = f"{self.line()}.{self.line()}".replace("__builtin__.", "builtins.")
        known = _NAMES.get(name)
        if known is None:
            raise _Unknown(name)
        self.push(known)

    def reduce(self) -> None:
        args = self.pop()
        function = self.top(_Function)
        self._stack[-1] = function.call(*args)

    def build(self) -> None:
        state = self.pop()
        vars(self.top(OrderedDict)).update(_names(state))

    def persistent(self) -> None:
        """`("storage", class, key, location, number of elements)`, as torch/serialization.py pickles it."""
        word, kind, key, _, count = self.pop()
        if word != "storage" or type(kind) is not _Kind or type(key) is not str or type(count) is not int:
            raise TypeError(f"storage {key!r} of {count!r} elements")
        self.push(StorageRef(key, kind.dtype, count * (kind.dtype.itemsize if kind.dtype else 1)))


_STOP, _BINPUT, _LONG_BINPUT, _BINGET, _LONG_BINGET, _BININT1 = b".qrhjK"
_U16, _I32, _U32, _F64 = (struct.Struct(form) for form in ("<H", "<i", "<I", ">d"))

_OPCODES: dict[int, Callable[[_Machine], object]] = {
    ord(code): action
    for code, action in {
        "\x80": lambda m: m.take(1),
        "}": lambda m: m.push({}),
        "]": lambda m: m.push([]),
        ")": lambda m: m.push(()),
        "\x8f": lambda m: m.push(set()),
        "N": lambda m: m.push(None),
        "\x88": lambda m: m.push(True),
        "\x89": lambda m: m.push(False),
        "J": lambda m: m.push(m.number(_I32)),
        "M": lambda m: m.push(m.number(_U16)),
        "\x8a": lambda m: m.push(decode_long(m.take(m.take(1)[0]))),
        "G": lambda m: m.push(m.number(_F64)),
        "X": lambda m: m.push(m.take(m.number(_U32)).decode("utf-8", "surrogatepass")),
        "(": _Machine.mark,
        "t": lambda m: m.push(tuple(m.since_mark())),
        "\x85": lambda m: m.tuple_of(1),
        "\x86": lambda m: m.tuple_of(2),
        "\x87": lambda m: m.tuple_of(3),
        "a": lambda m: m.extend([m.pop()]),
        "e": lambda m: m.extend(m.since_mark()),
        "s": _Machine.set_item,
        "u": lambda m: m.set_items(m.since_mark()),
        "c": _Machine.global_name,
        "R": _Machine.reduce,
        "b": _Machine.build,
        "Q": _Machine.persistent,
    }.items()
}


def _checked_key(key: object) -> object:
    parts = key if type(key) is tuple else (key,)
    for part in parts:
        if type(part) is tuple:
            _checked_key(part)
        elif type(part) not in _KEYS:
            raise TypeError(f"{type(part).__name__} as a dict key")
    return key


_FLAGS = frozenset({"conj", "neg"})
_KEYS = frozenset({str, int, float, bool, bytes, complex, type(None), torch.dtype, torch.device, torch.Size})


def _names(state: object) -> dict[str, object]:
    if type(state) is not dict or not all(type(name) is str for name in state):
        raise TypeError("attributes that are no dict of names")
    return state


def _encode(text: str, encoding: str) -> bytes:
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise ValueError(f"bytes as {text!r:.40} in {encoding!r}")
    return text.encode("latin1")


def _bytearray(data: bytes | str = b"", encoding: str = "latin-1") -> bytearray:
    return bytearray(data if isinstance(data, bytes) else _encode(data, encoding))  # never from a number


def _ints(values: object) -> tuple[int, ...]:
    numbers = values if type(values) is tuple else tuple(values) if type(values) is torch.Size else (None,)
    for number in numbers:
        if type(number) is not int or number < 0:
            raise TypeError(f"sizes or strides {values!r}")
    return numbers


def _tensor_v2(
    storage: StorageRef,
    offset: int,
    size: object,
    stride: object,
    requires_grad: bool,
    _hooks: object,
    metadata: dict[str, bool] | None = None,
) -> TensorRef:
    if type(storage) is not StorageRef or storage.dtype is None:
        raise TypeError(f"a typed storage expected, not {storage!r}")
    return _tensor(storage, storage.dtype, offset, size, stride, requires_grad, metadata)


def _tensor_v3(
    storage: StorageRef,
    offset: int,
    size: object,
    stride: object,
    requires_grad: bool,
    _hooks: object,
    dtype: torch.dtype,
    metadata: dict[str, bool] | None = None,
) -> TensorRef:
    if type(storage) is not StorageRef or type(dtype) is not torch.dtype:
        raise TypeError(f"a storage and a dtype expected, not {storage!r} and {dtype!r}")
    return _tensor(storage, dtype, offset, size, stride, requires_grad, metadata)


def _tensor(
    storage: StorageRef,
    dtype: torch.dtype,
    offset: int,
    size: object,
    stride: object,
    requires_grad: bool,
    metadata: dict[str, bool] | None,
) -> TensorRef:
    """A reference whose every element lies within its storage."""
    sizes, strides, (last,) = _ints(size), _ints(stride), _ints((offset,))
    if len(sizes) != len(strides):
        raise ValueError(f"{len(sizes)} sizes and {len(strides)} strides")
    if 0 not in sizes:
        for n, step in zip(sizes, strides, strict=True):
            last += (n - 1) * step
        if (last + 1) * dtype.itemsize > storage.size:
            raise ValueError(f"a tensor that reaches element {last} of a storage of {storage.size} bytes")
    flags = metadata or {}
    if not _FLAGS.issuperset(_names(flags)) or type(requires_grad) is not bool:
        raise TypeError(f"tensor flags {flags!r}, {requires_grad!r}")
    return TensorRef(storage, dtype, offset, sizes, strides, requires_grad, flags)


def _parameter(data: TensorRef, requires_grad: bool, _hooks: object, state: object = None) -> TensorRef:
    if type(data) is not TensorRef or type(requires_grad) is not bool:
        raise TypeError("a parameter over a tensor expected")
    attributes = _names(state or {})
    return attrs.evolve(data, requires_grad=requires_grad, is_parameter=True, attributes=attributes)


def _from_type(rebuild: _Function, kind: object, args: tuple[object, ...], state: object) -> TensorRef:
    if kind is not _TENSOR or rebuild not in (_V2, _V3):
        raise TypeError("a plain tensor with attributes expected")
    reference = rebuild.call(*args)
    assert isinstance(reference, TensorRef)
    return attrs.evolve(reference, attributes=_names(state))


def _layout(name: str) -> torch.layout:
    if name not in ("torch.strided", "torch.sparse_coo"):
        raise ValueError(f"layout {name!r}")
    layout: torch.layout = getattr(torch, name.removeprefix("torch."))
    return layout


def _set(items: list[object]) -> set[object]:
    return {_checked_key(item) for item in items}


def _counter(counts: object) -> Counter[object]:
    if type(counts) is not dict:
        raise TypeError(f"counts in a {type(counts).__name__}")
    return Counter(counts)


def _complex(real: float, imag: float) -> complex:
    return complex(float(real), float(imag))


_TENSOR = object()
_V2, _V3 = _Function(_tensor_v2), _Function(_tensor_v3)
_NAMES: dict[str, object] = {
    "collections.OrderedDict": _Function(lambda: OrderedDict()),
    "collections.Counter": _Function(_counter),
    "torch.Size": _Function(lambda size: torch.Size(_ints(size))),
    "torch.device": _Function(lambda *args: torch.device(*args)),
    "torch.serialization._get_layout": _Function(_layout),
    "_codecs.encode": _Function(_encode),
    "builtins.bytearray": _Function(_bytearray),
    "builtins.set": _Function(_set),
    "builtins.complex": _Function(_complex),
    "torch.Tensor": _TENSOR,
    "torch.storage.UntypedStorage": _Kind(None),
    "torch._utils._rebuild_tensor_v2": _V2,
    "torch._utils._rebuild_tensor_v3": _V3,
    "torch._utils._rebuild_parameter": _Function(_parameter),
    "torch._utils._rebuild_parameter_with_state": _Function(_parameter),
    "torch._tensor._rebuild_from_type_v2": _Function(_from_type),
    **{
        f"torch.{name}": _Kind(dtype)
        for dtype, name in torch.storage._dtype_to_storage_type_map().items()
        if not name.startswith("Q")
    },
    **{str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)},
}
