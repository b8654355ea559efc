"""Reading the pickle in `.metadata` without trusting it.

A pickle machine of few opcodes builds torch's metadata classes, sizes and dtypes and nothing else. It imports
nothing, calls nothing that the file could choose, sets no field but those that a class has here, each of its type,
and holds no more than the pickle does. Any other name, opcode or shape is `Corrupt`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as forms
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from milepost.engines.formats.archive import corrupt


def unpickle(data: bytes, *, where: str) -> object:
    """What the pickle describes; a caller looks at what of its classes was filled in."""
    expected = "the metadata of torch.distributed.checkpoint"
    try:
        return _Machine(io.BytesIO(data)).load()
    except _Unknown as unknown:
        corrupt(where, expected, f"the global {unknown}")
    except (
        *(ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError),
        *(EOFError, AssertionError, pickle.UnpicklingError),
    ) as error:
        corrupt(where, expected, f"{type(error).__name__}: {error!s:.200}")


class _Unknown(Exception):
    """A global that is not on the list."""


@frozen(eq=False)
class _Class:
    """A name that may be built, with the types that its fields may have."""

    kind: type
    fields: Mapping[str, tuple[type, ...]]


@frozen(eq=False)
class _Function:
    """A name that may be called with plain values."""

    call: Callable[..., object]


_NONE = type(None)
_INDEX = _Class(MetadataIndex, {"fqn": (str,), "offset": (torch.Size, _NONE), "index": (int, _NONE)})
_CLASSES = (
    _Class(
        Metadata,
        {
            "state_dict_metadata": (dict,),
            "planner_data": (dict, _NONE),
            "storage_data": (dict,),
            "storage_meta": (StorageMeta, _NONE),
            "version": (str, _NONE),
        },
    ),
    _Class(TensorStorageMetadata, {"properties": (TensorProperties,), "size": (torch.Size,), "chunks": (list,)}),
    _Class(BytesStorageMetadata, {}),
    _Class(ChunkStorageMetadata, {"offsets": (torch.Size,), "sizes": (torch.Size,)}),
    _Class(TensorProperties, {}),
    _INDEX,
    _Class(
        filesystem._StorageInfo,
        {"relative_path": (str,), "offset": (int,), "length": (int,), "transform_descriptors": (list, tuple, _NONE)},
    ),
    _Class(StorageMeta, {}),
)
_BY_KIND = {known.kind: known for known in _CLASSES}


def _size(sizes: object) -> torch.Size:
    if type(sizes) is not tuple or not all(type(size) is int and 0 <= size < 1 << 62 for size in sizes):
        raise TypeError("a size that is no tuple of numbers")
    return torch.Size(sizes)


def _member(kind: object, name: object) -> Enum:
    """What a pickle says by `getattr` of an enum and a name: that, and no other attribute of anything."""
    if kind is not _ENCODING or type(name) is not str:
        raise TypeError("an attribute")
    return forms._MEM_FORMAT_ENCODING[name]


_ENCODING = _Function(forms._MEM_FORMAT_ENCODING)
_NAMES: dict[str, object] = {
    **{f"{known.kind.__module__}.{known.kind.__qualname__}": known for known in _CLASSES},
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING": _ENCODING,
    "builtins.getattr": _Function(_member),
    "torch.serialization._get_layout": _Function(str),
    "torch.Size": _Function(_size),
    **{
        f"{module}.{kind}": _Function(lambda *parts: None)  # where it was saved: of no use here
        for module in ("pathlib", "pathlib._local")
        for kind in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")
    },
    **{str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)},
}


class _Machine(pickle._Unpickler):
    """Python's own pickle machine, in Python, with the opcodes that plain data takes and none that acts by itself."""

    stack: list[Any]
    append: Callable[[object], None]
    pop_mark: Callable[[], list[Any]]

    def find_class(self, module: str, name: str) -> object:
        known = _NAMES.get(f"{module}.{name}")
        if known is None:
            raise _Unknown(f"{module}.{name}")
        return known

    def persistent_load(self, found: object) -> object:
        raise _Unknown("by a persistent id")

    def new(self) -> None:
        args, known = self.stack.pop(), self.stack.pop()
        if type(known) is not _Class or args != ():
            raise TypeError("an object of no known class")
        self.append(object.__new__(known.kind))

    def call(self) -> None:
        args, known = self.stack.pop(), self.stack.pop()
        if type(known) is not _Function or type(args) is not tuple:
            raise TypeError("a call of no known function")
        self.append(known.call(*args))

    def build(self) -> None:
        """Give the object on the stack its fields: those that its class has here, each of its type."""
        state, made = self.stack.pop(), self.stack[-1]
        if type(made) is TensorProperties:
            object.__setattr__(made, "dtype", _dtype(state))
            return
        known = _BY_KIND.get(type(made))
        if known is None or type(state) is not dict:
            raise TypeError("fields for no object of a known class")
        for name, types in known.fields.items():
            if name in state:
                if type(state[name]) not in types:
                    raise TypeError(f"a {type(state[name]).__name__} as {name} of a {known.kind.__name__}")
                object.__setattr__(made, name, state[name])

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or not all(type(key) in (str, MetadataIndex) for key in items[::2]):
            raise TypeError("a mapping of anything but names and indices")
        target.update(zip(items[::2], items[1::2], strict=True))

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise TypeError("items for no list")
        self.stack[-1].extend(items)

    dispatch: ClassVar[dict[int, Any]] = {
        **{
            code[0]: pickle._Unpickler.dispatch[code[0]]
            for code in (
                *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.MEMOIZE, pickle.GLOBAL),
                *(pickle.STACK_GLOBAL, pickle.BINGET, pickle.LONG_BINGET, pickle.BINPUT, pickle.LONG_BINPUT),
                *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2),
                *(pickle.LONG1, pickle.BINFLOAT, pickle.BINUNICODE, pickle.SHORT_BINUNICODE),
                *(pickle.EMPTY_DICT, pickle.EMPTY_LIST, pickle.EMPTY_TUPLE),
                *(pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
            )
        },
        pickle.NEWOBJ[0]: new,
        pickle.REDUCE[0]: call,
        pickle.BUILD[0]: build,
        pickle.SETITEM[0]: set_item,
        pickle.SETITEMS[0]: lambda self: self.set_items(self.pop_mark()),
        pickle.APPEND[0]: lambda self: self.extend([self.stack.pop()]),
        pickle.APPENDS[0]: lambda self: self.extend(self.pop_mark()),
    }


def _dtype(state: object) -> torch.dtype:
    if type(state) is not tuple or not state or type(state[0]) is not torch.dtype:
        raise TypeError("properties of a tensor that begin with no dtype")
    if len(state) > 1 and state[1] != "torch.strided":
        raise ValueError(f"a tensor of layout {state[1]!r:.40}")
    return state[0]
