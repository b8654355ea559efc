"""The kinds of value that a knob may have.

1. A kind takes exact types: `"7"` is not 7, `True` is not 1, `"abc"` is not a list.
2. `read` answers with the value in its one canonical form and raises `ValueError` for everything else, whatever
   it is handed; the text of the error, where it has one, says what is wrong beyond "not of this kind". Reading what
   was read changes nothing.
3. What is accepted beside the canonical form is listed here and nowhere else: `""` for a `resume` of `off`, a
   number for a `run_ts` (that is how YAML reads unquoted digits), a `PathLike` for a path, a list of names for
   a plan.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from attrs import frozen

from milepost.transitions.values import FULL, Component, union

_LARGEST = 2**63 - 1
_COMPONENTS: Mapping[str, Component] = {component.value: component for component in FULL}
_SEGMENT = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_.+=,@-]{0,127}")
_BUCKET = re.compile(r"(?:[a-z0-9][a-z0-9._-]{1,220}[a-z0-9])?")
_RUN_TS = re.compile(r"(?:[0-9]{14})?")


@frozen(kw_only=True)
class Kind:
    """What a knob takes: `type` and `allowed` say it to people, `read` decides it."""

    type: str
    allowed: str
    read: Callable[[object], object]

    def settled(self, value: object) -> object:
        """The canonical form of `value`; a value that `read` refuses is left as it is, for the check to name."""
        try:
            return self.read(value)
        except ValueError:
            return value


def _where(accepts: Callable[[Any], bool]) -> Callable[[object], object]:
    def read(value: object) -> object:
        if not accepts(value):
            raise ValueError
        return value

    return read


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _is_text(value: object) -> bool:
    return type(value) is str and value.isprintable()


def _matches(pattern: re.Pattern[str]) -> Callable[[object], bool]:
    return lambda value: type(value) is str and pattern.fullmatch(value) is not None


def _is_prefix(value: Any) -> bool:
    return _is_text(value) and (not value or not {"", ".", ".."} & set(value.split("/")))


def _read_path(value: object) -> object:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not _is_text(path) or not path:
        raise ValueError
    return path


def _read_resume(value: object) -> object:
    if not _is_text(value):
        raise ValueError
    return value or "off"


def _read_run_ts(value: object) -> object:
    text = str(value) if _is_count(value) else value
    if type(text) is not str or not _RUN_TS.fullmatch(text):
        raise ValueError
    try:
        if text:
            datetime.strptime(text, "%Y%m%d%H%M%S")
    except ValueError:
        raise ValueError("there is no such time") from None
    return text


def _read_component(value: object) -> Component:
    if isinstance(value, Component):
        return value
    if type(value) is not str:
        raise ValueError(f"{shown(value)} is not a name")
    if value not in _COMPONENTS:
        raise ValueError(f"there is no component {shown(value)}")
    return _COMPONENTS[value]


def _read_plan(value: object) -> object:
    if not isinstance(value, list | tuple):
        raise ValueError
    plan = tuple(map(_read_component, value))
    if not plan:
        raise ValueError("a plan without a component saves nothing")
    if doubled := [component.value for component in FULL if plan.count(component) > 1]:
        raise ValueError(f"{' and '.join(doubled)} more than once")
    return union(plan)


def choice(*values: str) -> Kind:
    """One of `values`, spelled exactly so."""
    return Kind(
        type="str",
        allowed=f"{', '.join(values[:-1])} or {values[-1]}",
        read=_where(lambda value: type(value) is str and value in values),
    )


def group(cls: type, names: Sequence[str]) -> Kind:
    """A group of knobs: an instance of `cls`."""
    return Kind(
        type="group",
        allowed=f"a group of {', '.join(names)}",
        read=_where(lambda value: isinstance(value, cls)),
    )


COUNT = Kind(type="int", allowed="a whole number, 0 or more (64-bit)", read=_where(_is_count))
POSITIVE = Kind(
    type="int",
    allowed="a whole number, 1 or more (64-bit)",
    read=_where(lambda value: _is_count(value) and value > 0),
)
OPTIONAL_COUNT = Kind(
    type="int or null",
    allowed="null or a whole number, 0 or more (64-bit)",
    read=_where(lambda value: value is None or _is_count(value)),
)
SWITCH = Kind(type="bool", allowed="true or false", read=_where(lambda value: type(value) is bool))
SEGMENT = Kind(
    type="str",
    allowed=(
        "text (quote a number) that is one path segment: up to 128 of A-Z a-z 0-9 _ . + = , @ -, "
        "first a letter, a digit or _, and no '..'"
    ),
    read=_where(_matches(_SEGMENT)),
)
PATH = Kind(type="str", allowed="a path, not empty", read=_read_path)
TEXT = Kind(type="str", allowed="printable text, perhaps empty", read=_where(_is_text))
BUCKET = Kind(
    type="str",
    allowed="the bare name of a bucket (a-z 0-9 . _ -, no s3://), or empty",
    read=_where(_matches(_BUCKET)),
)
PREFIX = Kind(
    type="str",
    allowed="a key prefix a/b/c without an empty, '.' or '..' part, or empty",
    read=_where(_is_prefix),
)
RUN_TS = Kind(type="str", allowed="a time YYYYmmddHHMMSS, or empty", read=_read_run_ts)
RESUME = Kind(type="str", allowed="auto, off, or the path or s3:// address of a checkpoint", read=_read_resume)
PLAN = Kind(
    type="list of str",
    allowed=f"a non-empty list of different names out of {', '.join(one.value for one in FULL)}",
    read=_read_plan,
)

_short = reprlib.Repr()
_short.maxlevel = 3
_short.maxstring = _short.maxother = 100


def shown(value: object) -> str:
    """`value` as a message or a table spells it, shortened: YAML words for null, booleans and plans."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple) and value and all(isinstance(one, Component) for one in value):
        return f"[{', '.join(one.value for one in value)}]"
    try:
        return _short.repr(value)
    except ValueError:  # CPython refuses to print an int of more than 4300 digits
        return "an int of thousands of digits"
