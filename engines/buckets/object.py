"""The verbs of `Bucket` over single requests: patience, read-backs and checks, the same for every store.

`opening.py` gives it the requests of boto3; `milepost.engines.simulated.bucket` gives it those of a store in memory,
so that the code that retries and looks is the code that the simulator runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from typing_extensions import Buffer

from milepost.engines.buckets import SMALL_BYTES, Answer, Gate, Leftover, Stat, Upload, Version
from milepost.engines.buckets.keys import check_key, check_prefix
from milepost.engines.buckets.patience import Clock, patiently, told
from milepost.engines.buckets.recipe import put_if
from milepost.engines.buckets.uploading import LANES, PART_BYTES, PartedUpload, parting
from milepost.engines.buckets.wire import Condition, Piece, Setback, Wire
from milepost.engines.digests import Digester
from milepost.transitions.errors import Corrupt

T = TypeVar("T")

PATIENCE_S = 120.0
"""How long a request is repeated while the store does not answer: a server that is started anew comes back in it."""

_PAGE = 1000


class ObjectBucket:
    """A `Bucket` over a `Wire`.

    `patience_s` is in seconds. `part_bytes` is the smallest size of a part, `lanes` how many parts are on their way
    at once (`uploading.py`); no lanes at all means that `write` sends each part itself.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        clock: Clock,
        patience_s: float = PATIENCE_S,
        part_bytes: int = PART_BYTES,
        lanes: int = LANES,
    ) -> None:
        self._wire = wire
        self._clock = clock
        self._patience_s = patience_s
        self._part_bytes = part_bytes
        self._lanes = lanes

    def __repr__(self) -> str:
        return f"ObjectBucket({self.where('')})"

    def create(self, key: str, data: bytes, *, deadline_s: float, gate: Gate | None = None) -> Answer:
        return self._put_if(key, data, condition="absent", deadline_s=deadline_s, gate=gate)

    def swap(
        self, key: str, data: bytes, *, expected: Version, deadline_s: float, gate: Gate | None = None
    ) -> Answer:
        return self._put_if(key, data, condition=expected, deadline_s=deadline_s, gate=gate)

    def _put_if(self, key: str, data: bytes, *, condition: Condition, deadline_s: float, gate: Gate | None) -> Answer:
        check_key(key)
        if len(data) > SMALL_BYTES:
            raise ValueError(
                f"{key}: {len(data)} bytes; only {SMALL_BYTES} can be put under a condition: upload them"
            )
        return put_if(self._wire, key, data, condition=condition, deadline_s=deadline_s, clock=self._clock, gate=gate)

    def read(self, key: str, *, limit: int) -> tuple[bytes, Version]:
        check_key(key)
        with told():
            return self._patiently(lambda: self._wire.fetch(key, limit=limit))

    def stat(self, key: str) -> Stat | None:
        check_key(key)
        with told():
            try:
                return self._patiently(lambda: self._wire.head(key))
            except Setback as setback:
                if setback.kind == "absent":
                    return None
                raise

    def read_into(self, key: str, offset: int, buffer: Buffer, *, version: Version) -> int:
        check_key(key)
        if offset < 0:
            raise ValueError(f"{key}: offset {offset} is before the object's first byte")
        view = memoryview(buffer).cast("B")
        with told():
            piece = self._patiently(lambda: self._piece(key, offset, view, version=version))
        if piece.version != version:
            raise Corrupt(
                f"{self.where(key)}: expected version {version.token}, found {piece.version.token}: the object was "
                "replaced while it was read; begin again with the object that is there now"
            )
        rest = max(0, min(len(view), piece.size - offset))
        if piece.count != rest:
            raise Corrupt(f"{self.where(key)}: {piece.count} bytes at {offset} where the object has {rest}")
        return rest

    def _piece(self, key: str, offset: int, view: memoryview, *, version: Version) -> Piece:
        if view:  # no store reads an empty range
            try:
                return self._wire.fetch_range(key, offset=offset, buffer=view, version=version)
            except Setback as setback:
                if setback.kind != "beyond":
                    raise
        stat = self._wire.head(key)
        return Piece(count=0, size=stat.size, version=stat.version)

    def keys(self, prefix: str, *, after: str = "", limit: int = _PAGE) -> tuple[str, ...]:
        check_prefix(prefix)
        if after:
            check_key(after)
        found: list[str] = []
        more = True
        while more and len(found) < limit:
            page, more = self._page(prefix, after=found[-1] if found else after, limit=min(_PAGE, limit - len(found)))
            found.extend(page)
            more = more and bool(page)
        return tuple(found)

    def _page(self, prefix: str, *, after: str, limit: int) -> tuple[tuple[str, ...], bool]:
        with told():
            return self._patiently(lambda: self._wire.list(prefix, after=after, limit=limit))

    def upload(self, key: str, *, size_hint: int, digest: str | None = None) -> Upload:
        check_key(key)
        part_bytes, lanes = parting(size_hint, part_bytes=self._part_bytes, lanes=self._lanes)
        return PartedUpload(
            self._wire,
            key,
            part_bytes=part_bytes,
            lanes=lanes,
            clock=self._clock,
            patience_s=self._patience_s,
            digester=Digester(digest, size=size_hint) if digest else None,
        )

    def uploads(self, prefix: str) -> tuple[Leftover, ...]:
        check_prefix(prefix)
        with told():
            return self._patiently(lambda: self._wire.uploads(prefix))

    def abort_upload(self, leftover: Leftover) -> None:
        self._gone(lambda: self._wire.abort(leftover.key, leftover.upload_id))

    def delete(self, key: str) -> None:
        check_key(key)
        self._gone(lambda: self._wire.delete(key))

    def _gone(self, request: Callable[[], None]) -> None:
        with told():
            try:
                self._patiently(request)
            except Setback as setback:
                if setback.kind != "absent":
                    raise

    def _patiently(self, request: Callable[[], T]) -> T:
        return patiently(request, clock=self._clock, patience_s=self._patience_s)

    def where(self, key: str) -> str:
        return self._wire.where(key)
