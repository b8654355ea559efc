"""Where a configuration comes from: a YAML file and dotlist overrides, read strictly.

1. Plain scalars follow YAML 1.2: only `true` and `false` are booleans, so `resume: off` says off, not false; a
   number is decimal and has no leading zero.
2. A key that is there twice is refused, and so are tags. Anchors, aliases and `<<` merges are taken.
3. Whatever the bytes are, the answer is a value or `Misconfigured` with the line and the column.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from milepost.journal.config.kinds import shown
from milepost.transitions.errors import Misconfigured

_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """SafeLoader by rules 1 and 2; both checks sit in the composer, before merges are expanded."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs leave it untyped
        if getattr(event, "tag", None) is not None:
            raise yaml.composer.ComposerError(
                None, None, f"the tag {event.tag!r} is not taken here; write a plain value", event.start_mark
            )
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                raise yaml.composer.ComposerError(
                    None, None, f"the key {key.value!r} is there twice; keep one of them", key.start_mark
                )
            seen.add((key.tag, key.value))
        return node


_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver(f"{_TAG}null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(r"[-+]?(?:0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$"),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver(f"{_TAG}merge", re.compile(r"<<$"), ["<"])


def _parsed(text: str, where: str) -> object:
    """The one value that `text` is in YAML; `where` opens the message of what is wrong with it."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise Misconfigured((f"{where}: {place}{error.problem}",)) from error
    except (yaml.YAMLError, ValueError) as error:
        raise Misconfigured((f"{where}: not YAML: {' '.join(str(error).split())}",)) from error
    except RecursionError as error:
        raise Misconfigured((f"{where}: nested too deeply to be a configuration",)) from error


def _mapping(given: object, where: str) -> Mapping[object, object]:
    if not isinstance(given, Mapping):
        raise Misconfigured((f"{where}: found {shown(given)}, expected a mapping with the sections run and rl",))
    return given


def read_source(source: str | os.PathLike[str] | Mapping[str, object] | None) -> Mapping[object, object]:
    """The mapping that `source` is or that the YAML file at that path holds; nothing is the empty mapping."""
    if source is None:
        return {}
    if not isinstance(source, str | os.PathLike):
        return _mapping(source, "the configuration")
    try:
        text = Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise Misconfigured((f"{source}: cannot be read: {error.strerror}",)) from error
    except ValueError as error:
        raise Misconfigured((f"{str(source)!r}: cannot be read as UTF-8 text: {error}",)) from error
    return _mapping(_parsed(text, str(source)), f"{source}: line 1, column 1")


def read_overrides(overrides: Sequence[str]) -> tuple[dict[str, object], list[str]]:
    """The values of a dotlist by full key (`rl.` is added where a key names no section), and what is wrong.

    A later override of a key wins. A value is a YAML scalar or list; nothing after `=` is the empty text, since
    that is what a shell leaves of `rl.resume=""`.
    """
    if isinstance(overrides, str):
        return {}, [f"overrides: found {shown(overrides)}, expected a list of KEY=VALUE strings"]
    values: dict[str, object] = {}
    problems = []
    for override in overrides:
        key, equals, text = override.partition("=") if isinstance(override, str) else ("", "", "")
        if not equals:
            problems.append(f"overrides: found {shown(override)}, expected KEY=VALUE, such as rl.save_every=100")
            continue
        full = key if key.startswith(("run.", "rl.")) else f"rl.{key}"
        try:
            values[full] = _parsed(text, f"{full}: the value {shown(text)}") if text else ""
        except Misconfigured as error:
            problems.extend(error.problems)
    return values, problems
