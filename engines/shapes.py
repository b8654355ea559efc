"""Values to JSON and back by their types, exactly.

1. A type is compiled once into a `Shape`: a reader, a writer and a JSON schema.
2. Types are exact in both directions: `"7"` and `True` are not integers, `1` is not a float, a string is not a
   sequence, and a subclass is not its base. A float is finite: JSON has no NaN.
3. An object has every field of its class and no other. A default in the class is no default here.
4. What is written is what reads back equal: a `Mismatch` on the way out is our own bug and keeps bad bytes off the
   disk; on the way in, the caller says where the bytes came from.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Generic, TypeVar, Union

import attrs
from attrs import frozen
from rpds import HashTrieMap

Document = dict[str, object]

K = TypeVar("K")
V = TypeVar("V")


class Mismatch(TypeError):
    """A value is not of the shape that its type declares. `path` leads to it from the outermost value."""

    def __init__(self, expected: str, found: object) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found
        self.path: list[str] = []

    def __str__(self) -> str:
        where = f"{'.'.join(self.path)}: " if self.path else ""
        return f"{where}expected {self.expected}, found {_brief(self.found)}"


class _Map(Generic[K, V]):
    """What a `HashTrieMap[K, V]` hint resolves to: the class itself takes no parameters at run time."""


@frozen(kw_only=True)
class Shape:
    """One type: `read` makes a value of what JSON gave, `write` the reverse; both raise `Mismatch`.

    Values of exactly the type `plain` are the same in JSON and need neither: most fields of a long log are such.
    """

    read: Callable[[object], Any]
    write: Callable[[Any], object]
    schema: Mapping[str, object]
    plain: type | None = None


@cache
def shape_of(hint: Any) -> Shape:
    """The shape of a type: int, float, str, bool, an Enum of strings, an attrs class, `X | None`,
    `tuple[X, ...]` or `HashTrieMap[K, V]` of those. Any other type is a `TypeError`.
    """
    if hint in _SCALARS:
        return _scalar(hint, _SCALARS[hint])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum(hint)
    if isinstance(hint, type) and attrs.has(hint):
        return object_of(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType) and len(arguments) == 2 and arguments[1] is type(None):
        return _optional(shape_of(arguments[0]))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _sequence(shape_of(arguments[0]))
    if origin is _Map:
        return _mapping(*map(shape_of, arguments))
    raise TypeError(f"no JSON shape for {hint!r}")


def object_of(cls: type, *, tags: Mapping[str, object] = types.MappingProxyType({})) -> Shape:
    """The shape of an attrs class: an object of its fields, after `tags` that are written first and constant.

    The reader expects the tags to be there and leaves their values to whoever chose this shape by them.
    """
    hints = typing.get_type_hints(cls, localns={"HashTrieMap": _Map})
    named = {field.name: shape_of(hints[field.name]) for field in attrs.fields(cls)}
    assert not tags.keys() & named.keys(), f"{cls.__name__} has a field named like a tag"
    properties = {name: {"const": tag} for name, tag in tags.items()} | {n: dict(s.schema) for n, s in named.items()}
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return Shape(
        read=_object_reader(cls, named, tuple(properties)), write=_object_writer(cls, named, tags), schema=schema
    )


def _object_reader(cls: type, named: Mapping[str, Shape], keys: tuple[str, ...]) -> Callable[[object], object]:
    readers = tuple((name, shape.plain, shape.read) for name, shape in named.items())
    size = len(keys)

    def read(found: object) -> object:
        if type(found) is not dict:
            raise Mismatch("an object", found)
        values, name = {}, ""
        try:
            for name, plain, read_field in readers:
                value = found[name]
                values[name] = value if type(value) is plain else read_field(value)
        except Mismatch as mismatch:
            mismatch.path.insert(0, name)
            raise
        except KeyError:
            raise _wrong_keys(found, keys) from None
        if len(found) != size:
            raise _wrong_keys(found, keys)
        try:
            return cls(**values)
        except (TypeError, ValueError) as refusal:
            raise Mismatch(f"what {cls.__name__} accepts ({refusal})", found) from refusal

    return read


def _object_writer(cls: type, named: Mapping[str, Shape], tags: Mapping[str, object]) -> Callable[[object], Document]:
    writers = tuple((name, shape.plain, shape.write) for name, shape in named.items())

    def write(value: object) -> Document:
        if type(value) is not cls:
            raise Mismatch(cls.__name__, value)
        document, name = {**tags}, ""
        try:
            for name, plain, write_field in writers:
                field = getattr(value, name)
                document[name] = field if type(field) is plain else write_field(field)
        except Mismatch as mismatch:
            mismatch.path.insert(0, name)
            raise
        return document

    return write


_SCALARS: Mapping[type, str] = {int: "integer", float: "number", str: "string", bool: "boolean"}


def _scalar(kind: type, name: str) -> Shape:
    def exact(value: object) -> object:
        if type(value) is not kind:
            raise Mismatch(kind.__name__, value)
        return value

    def finite(value: object) -> object:
        if type(value) is not float or not math.isfinite(value):
            raise Mismatch("a finite float", value)
        return value

    if kind is float:
        return Shape(read=finite, write=finite, schema={"type": name})
    return Shape(read=exact, write=exact, schema={"type": name}, plain=kind)


def _enum(cls: type[Enum]) -> Shape:
    members = {member.value: member for member in cls}
    assert all(type(value) is str for value in members), f"{cls.__name__} has a member that is not a string"
    expected = f"one of {', '.join(members)}"

    def read(found: object) -> Enum:
        member = members.get(found) if type(found) is str else None
        if member is None:
            raise Mismatch(expected, found)
        return member

    def write(value: Enum) -> object:
        if type(value) is not cls:
            raise Mismatch(cls.__name__, value)
        return value.value

    return Shape(read=read, write=write, schema={"enum": list(members)})


def _optional(inner: Shape) -> Shape:
    return Shape(
        read=lambda found: None if found is None else inner.read(found),
        write=lambda value: None if value is None else inner.write(value),
        schema={"anyOf": [dict(inner.schema), {"type": "null"}]},
    )


def _sequence(item: Shape) -> Shape:
    def read(found: object) -> tuple[object, ...]:
        if type(found) is not list:
            raise Mismatch("an array", found)
        return tuple(_each(item.read, found))

    def write(value: object) -> list[object]:
        if type(value) is not tuple:
            raise Mismatch("tuple", value)
        return _each(item.write, value)

    return Shape(read=read, write=write, schema={"type": "array", "items": dict(item.schema)})


def _mapping(key: Shape, value: Shape) -> Shape:
    """An array of pairs, ordered by key: JSON's own keys are strings only, and a HashTrieMap has no order."""

    def read(found: object) -> HashTrieMap[Any, object]:
        if type(found) is not list or any(type(pair) is not list or len(pair) != 2 for pair in found):
            raise Mismatch("an array of pairs", found)
        return HashTrieMap(_each(lambda pair: (key.read(pair[0]), value.read(pair[1])), found))

    def write(mapping: object) -> list[object]:
        if type(mapping) is not HashTrieMap:
            raise Mismatch("HashTrieMap", mapping)
        return _each(lambda pair: [key.write(pair[0]), value.write(pair[1])], sorted(mapping.items()))

    pair = {"type": "array", "prefixItems": [dict(key.schema), dict(value.schema)], "minItems": 2, "maxItems": 2}
    return Shape(read=read, write=write, schema={"type": "array", "items": pair})


def _each(convert: Callable[[Any], object], items: list[Any] | tuple[Any, ...]) -> list[Any]:
    converted: list[object] = []
    try:
        for item in items:
            converted.append(convert(item))
    except Mismatch as mismatch:
        mismatch.path.insert(0, str(len(converted)))
        raise
    return converted


def _wrong_keys(found: Mapping[str, object], names: tuple[str, ...]) -> Mismatch:
    return Mismatch(f"the keys {', '.join(names)}", ", ".join(map(str, found)))


def _brief(found: object) -> str:
    text = repr(found)
    return f"{type(found).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
