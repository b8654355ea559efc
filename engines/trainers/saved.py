"""Reading a saved tree strictly: every field has one type, and what is wrong is named by its path."""

from __future__ import annotations

from typing import Self, TypeVar

from attrs import frozen

from milepost.engines.trainers.protocols import RestoreSource, Tree
from milepost.transitions.errors import Corrupt, NewerVersion, NotResumable

T = TypeVar("T")


@frozen
class Saved:
    """A mapping that came from a file. `where` is the path to it, as messages show it."""

    where: str
    tree: Tree

    @classmethod
    def read(cls, where: str, value: object) -> Self:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise malformed(where, expected="a dict with string keys", found=value)
        return cls(where, value)

    def __contains__(self, name: str) -> bool:
        return name in self.tree

    def need(self, name: str, kind: type[T]) -> T:
        """The field, of this very type: True is not an int, a subclass of dict is a dict."""
        place = f"{self.where}.{name}"
        if name not in self.tree:
            raise Corrupt(f"{place}: missing; expected {kind.__name__}")
        value = self.tree[name]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise malformed(place, expected=kind.__name__, found=value)
        return value

    def count(self, name: str) -> int:
        """A whole number, zero or more."""
        value = self.need(name, int)
        if value < 0:
            raise malformed(f"{self.where}.{name}", expected="a count, zero or more", found=value)
        return value

    def inner(self, name: str) -> Saved:
        """A nested mapping."""
        return Saved.read(f"{self.where}.{name}", self.need(name, dict))


def read_filling(source: RestoreSource, name: str, *, into: Tree | None, where: str) -> Saved:
    """The tree `name`, filled into the live tensors of `into` as far as these have its form."""
    try:
        tree = source.load(name, into=into)
    except NotResumable:
        if into is None:
            raise
        # Shards fill a tree of exactly their form or, before anything is touched, nothing. But an optimizer may have
        # made state late, and the extra state of a module may have another size.
        tree = source.load(name)
    return Saved.read(where, tree)


def require_format(saved: Saved, *, expected: str) -> None:
    """`expected` is a name and a version, `milepost.data.v1`; a later version of the name is `NewerVersion`."""
    found = saved.need("format", str)
    if found == expected:
        return
    name = expected.rstrip("0123456789")
    kind = NewerVersion if found.startswith(name) and found.removeprefix(name).isdecimal() else Corrupt
    raise kind(f"{saved.where}.format: expected {expected}, found {found!r}")


def malformed(where: str, *, expected: str, found: object) -> Corrupt:
    shown = repr(found) if isinstance(found, (int, float, str, type(None))) else f"a {type(found).__name__}"
    return Corrupt(f"{where}: expected {expected}, found {shown[:200]}")
