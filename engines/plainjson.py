"""JSON taken at its word: what comes back is what was given, of the same types, or it is refused.

1. A value is None, a bool, an int, a finite float, a string, a list or a dict with string names, of exactly these
   types. A tuple would come back as a list, and a subclass as its base, so neither is one.
2. A name that is there twice is no JSON, nor are NaN and the infinities. Integers stay whole, however long.
3. Equal values have equal bytes: names are sorted. 1, 1.0 and True are three values.
"""

from __future__ import annotations

import json
import math
from typing import NoReturn, TypeAlias, cast

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_DEEP = "values nested this deep"


def write(value: Json) -> bytes:
    """The bytes of a value, in ASCII and on one line without its end."""
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()


def read(data: bytes) -> Json:
    """The value of these bytes; `ValueError` says why they are none."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_object, parse_constant=_refused)
    except RecursionError as error:
        raise ValueError(_DEEP) from error
    return cast("Json", value)


def copied(value: object, *, where: str) -> Json:
    """A copy of a value; `ValueError` names the place below `where` of what is none."""
    try:
        return _copied(value, where)
    except RecursionError as error:
        raise ValueError(f"{where}: {_DEEP}") from error


def same(one: Json, other: Json) -> bool:
    """Whether two values are equal and of the same types throughout."""
    return write(one) == write(other)


def _copied(value: object, where: str) -> Json:
    if value is None or type(value) in (bool, str):
        return cast("Json", value)
    if type(value) is int:
        str(value)  # ValueError: longer than Python writes, so longer than it reads
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}, which JSON does not have")
        return value
    if type(value) is list:
        return [_copied(one, f"{where}[{index}]") for index, one in enumerate(value)]
    if type(value) is dict:
        for name in value:
            if type(name) is not str:
                raise ValueError(f"{where} has the name {name!r}, expected a string")
        return {name: _copied(one, f"{where}.{name}") for name, one in value.items()}
    raise ValueError(f"{where} is a {type(value).__name__}, which JSON does not have")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name is there twice")
    return made


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
