"""The verbs of an object store, one each, and nothing clever.

Everything above a bucket is written against `Bucket` and runs unchanged on a real store (`opening.py`) and on the
one in memory (`milepost.engines.simulated.bucket`). Rules that both keep:

1. Keys are relative, `/`-separated and below the bucket's prefix (`keys.py`); any other key is a `ValueError`.
2. Only small objects are conditional (`create`, `swap`). Their answer has three ways: Committed, Conflict, Unknown.
   Whatever did not succeed was read back first: equal bytes are one's own, so what is written carries a nonce or is
   the same for everybody who may write it. After Unknown the object may still appear, minutes later. Of several
   writers exactly one is Committed, if the store keeps the promises that `probe.py` tries (INV-02, INV-10).
3. Payload is uploaded without a condition, under a key that no other attempt uses: a late request of a paused
   writer replaces whatever lies at its key. Nothing is at the key before `commit`.
4. A version names the bytes of an object; some stores give equal bytes the same version.
5. Every other verb is repeated for a while when the store does not answer or asks for patience, and then raises
   `Unavailable`. What waiting cannot cure is raised at once: `Misconfigured` for credentials, permissions, a missing
   bucket; `Corrupt` for bytes that are not what they should be.
6. No message, error, repr or record holds a credential.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from attrs import frozen
from typing_extensions import Buffer

SMALL_BYTES = 16 << 20
"""The largest object that may be created or swapped, and be read back for it."""

Gate: TypeAlias = Callable[[], None]
"""Called when all but the last byte of a body has gone out, each time it is sent; the last byte waits for it."""


@frozen(kw_only=True)
class Version:
    """What the store calls these bytes at this key (an entity tag, a generation); opaque."""

    token: str


@frozen(kw_only=True)
class Stat:
    """An object's size in bytes and its version."""

    size: int
    version: Version


@frozen(kw_only=True)
class Committed:
    """The bytes are at the key, durable, as this version."""

    version: Version


@frozen(kw_only=True)
class Conflict:
    """Something else is at the key: these bytes, or nothing at all (None) where a swap expected something."""

    found: bytes | None
    version: Version | None


@frozen(kw_only=True)
class Unknown:
    """Whether the bytes are at the key, or will be, cannot be said. Delete nothing that they speak of."""

    why: str


Answer: TypeAlias = Committed | Conflict | Unknown


@frozen(kw_only=True)
class Leftover:
    """An upload that was begun and neither committed nor aborted. `upload_id` is the store's name for it."""

    key: str
    upload_id: str


class Upload(Protocol):
    """An object on its way. Leaving `with` before `commit`, for whatever reason, aborts; closing commits nothing."""

    def write(self, data: Buffer) -> int:
        """Take all of `data` and say how many bytes that were. The first failure of any part is raised here."""
        ...

    def tell(self) -> int:
        """How many bytes were written."""
        ...

    @property
    def digest(self) -> str | None:
        """`<algorithm>:<hex>` of what was written so far; None where none was asked for."""
        ...

    def commit(self) -> Version:
        """Make the object visible, whole and at once; its size was looked up afterwards and is what was written.

        `Unavailable` where that cannot be said; the object may then be there or not.
        """
        ...

    def abort(self) -> None:
        """Give the upload up and free what the store holds of it. Harmless after `commit` and a second time."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Bucket(Protocol):
    """The verbs. See the rules at the top of this module."""

    def create(self, key: str, data: bytes, *, deadline_s: float, gate: Gate | None = None) -> Answer:
        """Put a small object where there is none.

        `deadline_s` is how long an attempt that is not clear is repeated; a request under way is not cut short.
        `gate` is for the probe.
        """
        ...

    def swap(
        self, key: str, data: bytes, *, expected: Version, deadline_s: float, gate: Gate | None = None
    ) -> Answer:
        """Replace a small object if it still has the version `expected`.

        Conflict says what is there now; bytes of an unclear attempt may have been there in between.
        """
        ...

    def read(self, key: str, *, limit: int) -> tuple[bytes, Version]:
        """A small object, whole. `FileNotFoundError` if there is none, `Corrupt` above `limit` bytes."""
        ...

    def stat(self, key: str) -> Stat | None:
        """Size and version, or None where there is no such object."""
        ...

    def read_into(self, key: str, offset: int, buffer: Buffer, *, version: Version) -> int:
        """Fill `buffer` from `offset`: the bytes read, fewer than asked only at the object's end.

        `Corrupt` if the object is not of this version any more: bytes of two versions are never mixed.
        """
        ...

    def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """At most `limit` keys that start with `prefix` and follow `after`, in the store's order.

        The next page follows the last key of this one; an empty page is the end. A listing is a hint, never the
        truth: it may be late, and does not prove that a key is absent.
        """
        ...

    def upload(self, key: str, *, size_hint: int, digest: str | None = None) -> Upload:
        """Begin an object of about `size_hint` bytes (0 where nobody knows), whatever lies at the key.

        `digest` is the algorithm of a digest to take on the way: `blake3` or `sha256`.
        """
        ...

    def uploads(self, prefix: str) -> tuple[Leftover, ...]:
        """Uploads under way or left over below `prefix`."""
        ...

    def abort_upload(self, leftover: Leftover) -> None:
        """Free what the store holds of it; one that is gone is fine."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object: the probe's own, and debris. One that is gone is fine."""
        ...

    def where(self, key: str) -> str:
        """The object's address for people, without any credential."""
        ...
