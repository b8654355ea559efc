"""A state tree as torch.distributed.checkpoint takes it apart, and put together again.

1. Every value has a name, its path joined by dots. Mappings are taken apart, and lists that hold a tensor or a
   mapping somewhere; everything else is one value: numbers, strings, tuples, lists of such. The rule is that of
   torch/distributed/checkpoint/_traverse.py, and the names are the ones that plain `dcp.load` looks for.
2. Names are text: an int key becomes its digits, and comes back as an int only beside a live tree that has it so.
   Two keys that would get one name are refused, and so is a key that is neither text nor an int.
3. An empty mapping holds no value and has no name for torch. Its path is noted beside the others, where torch's
   readers pass over it, so that the whole tree can be rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch
from attrs import field, frozen

from milepost.transitions.errors import Refused

Path: TypeAlias = tuple[str | int, ...]
"""Text for a key of a mapping, a number for an index of a list."""


@frozen
class Flat:
    """The values of a tree by name, in its order, and the paths of these and of its empty mappings."""

    values: dict[str, object] = field(factory=dict)
    paths: dict[str, Path] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        assert self.values.keys() <= self.paths.keys()


def flatten(tree: object, *, name: str) -> Flat:
    """Take a tree apart. `Refused`, with the path from `$.<name>`, for what has no place in such a checkpoint."""
    if not isinstance(tree, Mapping):
        raise Refused(f"$.{name}: expected a mapping of names to state, found a {type(tree).__name__}")
    flat = Flat()
    try:
        for path, value in _walk(tree, ()):
            called = ".".join(map(str, path))
            if called in flat.paths:
                raise Refused(f"$.{name}: two values have the name {called!r}; rename one of their keys")
            flat.paths[called] = path
            if not (isinstance(value, Mapping) and not value):
                flat.values[called] = value
    except _BadKey as error:
        raise Refused(f"$.{name}.{error}") from None
    except RecursionError:
        raise Refused(f"$.{name} is nested too deeply to be saved; flatten it") from None
    return flat


class _BadKey(Exception):
    """A key that has no name."""


def _walk(node: object, path: Path) -> Iterator[tuple[Path, object]]:
    if isinstance(node, Mapping) and (node or not path):
        for key, child in node.items():
            if type(key) not in (str, int):
                shown = ".".join(map(str, path))
                raise _BadKey(f"{shown}: a key of type {type(key).__name__}; use text or an int")
            yield from _walk(child, (*path, str(key)))
    elif isinstance(node, list) and not _is_value(node):
        for index, child in enumerate(node):
            yield from _walk(child, (*path, index))
    else:
        yield path, node


def _is_value(items: list[object]) -> bool:
    """Whether a list is one value: nowhere in it, through lists alone, is there a tensor or a mapping."""
    return not any(
        isinstance(item, torch.Tensor | Mapping) or (isinstance(item, list) and not _is_value(item)) for item in items
    )


def put_together(tree: object, values: Mapping[str, object]) -> object:
    """A live tree's form and keys with other values; `values` has one for each of the tree's names."""
    return _beside(tree, (), values)


def _beside(node: object, path: Path, values: Mapping[str, object]) -> object:
    if isinstance(node, Mapping) and (node or not path):
        return {key: _beside(child, (*path, str(key)), values) for key, child in node.items()}
    if isinstance(node, list) and not _is_value(node):
        return [_beside(child, (*path, index), values) for index, child in enumerate(node)]
    return values[".".join(map(str, path))] if not isinstance(node, Mapping) else {}


def unflatten(values: Mapping[str, object], paths: Mapping[str, Path]) -> dict[str, object]:
    """The whole tree from values by name and their paths; a path without a value is an empty mapping.

    `ValueError` where the paths do not make a tree.
    """
    root: dict[Any, Any] = {}
    for name, path in paths.items():
        if not path or any(type(part) not in (str, int) for part in path):
            raise ValueError(f"the path of {name!r} is {path!r}")
        node = root
        for part in path[:-1]:
            node = node.setdefault(part, _Node())
            if type(node) is not _Node:
                raise ValueError(f"{name!r} lies within another value")
        there = node.setdefault(path[-1], values[name] if name in values else _Node())
        if (name in values) == (type(there) is _Node):
            raise ValueError(f"{name!r} is a value and holds others")
    return {key: _as_list(child) for key, child in root.items()}


class _Node(dict[Any, Any]):
    """A mapping or a list that is being rebuilt, and no value that a file holds."""


def _as_list(node: object) -> object:
    if type(node) is not _Node:
        return node
    children = {key: _as_list(child) for key, child in node.items()}
    if any(type(key) is int for key in children):
        if set(children) != set(range(len(children))):
            raise ValueError(f"a list of {len(children)} items with the indices {list(children)[:8]!r}")
        return [children[index] for index in range(len(children))]
    return children
