"""Small files that prove themselves: one line of JSON that ends with the sum of its own bytes.

    {"format":"milepost.manifest.v1",…,"sum":"blake3:…"}

1. `sum` covers the raw bytes before the field, so that checking serialises nothing again and needs no journal.
2. `format` says what the file is. A later version of the same format is `NewerVersion`, any other one `Corrupt`.
3. Equal content gives equal bytes: who finds a file that he was about to write compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar, cast

import orjson
from attrs import field, frozen
from blake3 import blake3

from milepost.engines.shapes import Mismatch, Shape, object_of
from milepost.transitions.errors import Corrupt, NewerVersion

T = TypeVar("T")

_SUM = b',"sum":"blake3:'
_END = b'"}\n'


@frozen(kw_only=True)
class Form(Generic[T]):
    """One format of such files: the attrs class that they hold, their tag, and what a person calls one."""

    content: type[T]
    tag: str
    called: str
    shape: Shape = field(init=False, eq=False, repr=False)

    @shape.default
    def _tagged(self) -> Shape:
        return object_of(self.content, tags={"format": self.tag})

    def encode(self, content: T) -> bytes:
        """The bytes of the file."""
        return with_sum(orjson.dumps(self.shape.write(content)))

    def decode(self, data: bytes, *, where: str) -> T:
        """What these bytes hold; `Corrupt` where one of them is wrong, `NewerVersion` for a later format."""
        return decode_one_of((self,), data, where=where)[1]


def with_sum(document: bytes) -> bytes:
    """The bytes of a file that holds this object of JSON and proves itself."""
    body = document[:-1]
    return b"".join((body, _SUM, blake3(body).hexdigest().encode(), _END))


def without_sum(data: bytes, *, where: str, called: str) -> bytes:
    """The object of JSON that the file holds, once its sum is found to be right; else `Corrupt`."""
    body, mark, tail = data.rpartition(_SUM)
    if not mark or not tail.endswith(_END):
        raise Corrupt(f"{where}: expected {called} that ends with its sum, found {len(data)} bytes that do not")
    expected = blake3(body).hexdigest().encode()
    if tail != expected + _END:
        stated = tail.removesuffix(_END).decode("ascii", "replace")
        raise Corrupt(f"{where}: the bytes of {called} have the sum {expected.decode()}, it states {stated}")
    return body + b"}"


def decode_one_of(forms: Sequence[Form[T]], data: bytes, *, where: str) -> tuple[Form[T], T]:
    """The one of these formats that the bytes are of, and what they hold; `Corrupt` or `NewerVersion`."""
    called = forms[0].called
    document: dict[str, object] = orjson.loads(without_sum(data, where=where, called=called))
    found = document.get("format")
    form = next((form for form in forms if form.tag == found), None)
    if form is None:
        read = " or ".join(form.tag for form in forms)
        if isinstance(found, str) and any(found.startswith(form.tag.rstrip("0123456789")) for form in forms):
            raise NewerVersion(f"{where}: {called} of format {found}; this milepost reads {read}")
        raise Corrupt(f"{where}: expected the format {read}, found {found!r}")
    try:
        return form, cast(T, form.shape.read(document))
    except Mismatch as mismatch:
        raise Corrupt(f"{where}: {mismatch}") from mismatch
