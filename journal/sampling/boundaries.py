"""A sampling boundary as callers have it, and as records do.

1. Callers have any sampler state that `copy.deepcopy` copies; a journal has JSON values only: None, bool, int, finite
   float, str, list, and dict with str keys, each of exactly that type. What comes back is equal to what was given.
2. In records it is one canonical JSON text, with its keys sorted and without spaces: equal states have equal texts.
   Nothing below looks into it.
"""

from __future__ import annotations

import json
import math
from typing import Any

import orjson
from attrs import field, frozen

from milepost.transitions.errors import Refused
from milepost.transitions.sampling import LARGEST
from milepost.transitions.values import SamplingPoint

LIMIT_BYTES = 256 << 10
"""The longest sampler state in a journal. Quoted in a record it is at most twice as long; a line holds 1 MiB."""

_SCALARS = frozenset((type(None), bool, int, str))
_dumps = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


@frozen
class SamplingBoundary:
    """A place from which sampling loses nothing: the epoch from 1, what remains to be completed, the sampler's state.

    `Refused` where epoch or `remaining_completions` is no integer in its range; a bool is none.
    """

    epoch: int = field()
    remaining_completions: int = field()
    sampler_state: object

    def __attrs_post_init__(self) -> None:
        for name, least in (("epoch", 1), ("remaining_completions", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise Refused(
                    f"{name} of a sampling boundary: expected an integer of at least {least}, found {value!r}"
                )


def point_of(boundary: SamplingBoundary) -> SamplingPoint:
    """The boundary as records have it; `Refused` for what a journal cannot hold, a sampler state by its path."""
    if max(boundary.epoch, boundary.remaining_completions) > LARGEST:
        raise Refused(f"a sampling boundary in a journal has numbers of 64 bits, found {boundary}")
    return SamplingPoint(
        epoch=boundary.epoch,
        remaining=boundary.remaining_completions,
        sampler_state=text_of(boundary.sampler_state),
    )


def boundary_of(point: SamplingPoint) -> SamplingBoundary:
    """The inverse of `point_of`; a sampler state of its own each time."""
    return SamplingBoundary(point.epoch, point.remaining, json.loads(point.sampler_state))


def text_of(state: object) -> str:
    """The canonical JSON text of a sampler state."""
    try:
        _require_json(state, "sampler_state")
        text = _text(state)
    except (RecursionError, ValueError) as error:  # a cycle too; an integer may have too many digits
        raise Refused(f"sampler_state: expected JSON values that are not nested so deep, found {error}") from error
    if (size := bytes_of(text)) > LIMIT_BYTES:
        raise Refused(
            f"sampler_state: expected at most {LIMIT_BYTES} bytes of JSON, found {size}; record where the "
            "sampler stands and not what it draws"
        )
    return text


def bytes_of(text: str) -> int:
    """The size of a sampler state in a journal, before it is quoted."""
    return len(text) if text.isascii() else len(text.encode())


def _text(state: object) -> str:
    """What orjson cannot write, an integer of more than 64 bits or half of a surrogate pair, `json` writes slowly."""
    try:
        return orjson.dumps(state, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return _dumps(state)


def _require_json(value: Any, path: str) -> None:
    kind = type(value)
    if kind in _SCALARS or (kind is float and math.isfinite(value)):
        return
    if kind is list:
        for index, item in enumerate(value):
            _require_json(item, f"{path}[{index}]")
        return
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise Refused(f"{path}: expected keys that are strings, found {key!r}")
            _require_json(item, f"{path}.{key}")
        return
    raise Refused(
        f"{path}: expected None, a bool, an int, a finite float, a str, a list or a dict, found {kind.__name__} "
        f"{_brief(value)}; a journal holds JSON values only"
    )


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
