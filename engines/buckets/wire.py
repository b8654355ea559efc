"""One request to a store at a time, none of them repeated: what the verbs of `object.py` are made of.

1. A request either returns what its docstring says or raises `Setback`; nothing else that a store does gets out.
2. A setback's kind says what may follow from it:

    | kind     | the store said or did                                | the request        | again?               |
    | passing  | no answer; 408, 409, 429, 5xx; bytes lost on the way | applied, or not    | yes, after a while   |
    | occupied | 412: the condition does not hold                     | not applied by it  | only after a look    |
    | absent   | 404: no such object or upload                        | not applied        | no                   |
    | beyond   | 416: the range starts after the end                  | nothing to read    | no                   |
    | final    | any other refusal: 4xx, 501                          | not applied        | no: somebody must act |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from attrs import frozen
from typing_extensions import Buffer

from milepost.engines.buckets import Gate, Leftover, Stat, Version
from milepost.transitions.errors import MilepostError

Kind: TypeAlias = Literal["passing", "occupied", "absent", "beyond", "final"]

Condition: TypeAlias = Literal["any", "absent"] | Version
"""When a put may happen: always, if there is no object at the key, or if it has this version."""


_PASSING_CODES = frozenset(
    ("RequestTimeout", "IncompleteBody", "BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "Throttling")
)
"""Answered with 400, and yet the same request may succeed: its bytes were late or damaged on their way."""


def kind_of(status: int, code: str = "") -> Kind:
    """What an HTTP status, and the store's code for the error, say of a request that did not succeed."""
    if status == 404 and code != "NoSuchBucket":
        return "absent"
    if status == 412:
        return "occupied"
    if status == 416:
        return "beyond"
    if status in (408, 409, 429) or code in _PASSING_CODES or (status >= 500 and status != 501):
        return "passing"
    # A 2xx that counts as an error is an answer that could not be understood.
    return "passing" if status < 300 else "final"


class Setback(Exception):
    """A request that did not succeed. `why` is short; `error` is what a caller is told where nobody handles it."""

    def __init__(self, kind: Kind, *, why: str, error: MilepostError | OSError) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why
        self.error = error


@frozen(kw_only=True)
class Piece:
    """A range that was read: its length in bytes, and the size and version of the whole object."""

    count: int
    size: int
    version: Version


@frozen(kw_only=True)
class Part:
    """A part that the store holds: its entity tag, and the checksum that the store wants back (or None)."""

    etag: str
    checksum: str | None


class Wire(Protocol):
    """Requests about one bucket; keys are relative to its prefix. Used from several threads."""

    def put(self, key: str, data: Buffer, *, condition: Condition, gate: Gate | None = None) -> Version:
        """One object by one request."""
        ...

    def fetch(self, key: str, *, limit: int) -> tuple[bytes, Version]:
        """A whole object; more than `limit` bytes are a final setback with `Corrupt`, before they are read."""
        ...

    def fetch_range(self, key: str, *, offset: int, buffer: memoryview, version: Version) -> Piece:
        """Fill `buffer`, which is not empty, from `offset`. If the version differs nothing is read: count is 0."""
        ...

    def head(self, key: str) -> Stat: ...

    def list(self, prefix: str, *, after: str, limit: int) -> tuple[tuple[str, ...], bool]:
        """At most `limit` keys, 1000 at the most, and whether there are more."""
        ...

    def delete(self, key: str) -> None: ...
    def begin(self, key: str) -> str: ...
    def part(self, key: str, upload_id: str, *, number: int, data: Buffer) -> Part: ...
    def complete(self, key: str, upload_id: str, *, parts: Sequence[Part]) -> None: ...
    def abort(self, key: str, upload_id: str) -> None: ...
    def uploads(self, prefix: str) -> tuple[Leftover, ...]: ...
    def where(self, key: str) -> str: ...
