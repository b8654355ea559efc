"""An object of any size on its way into a bucket, in parts that are sent while the next one fills.

1. A part's size follows from the planned size of the object: no store takes more than 10,000 parts. Less than one
   part goes by one plain request.
2. Memory: one buffer more than there are lanes, each of one part's size, and a copy that the SDK makes of each part
   under way (for its signature, and for checksums over TLS), plus whatever the caller passes to `write`. All of
   these together stay within `BUFFER_BYTES`; a very large object has fewer lanes. Bytes are hashed in `write`, where
   the caller holds them, so nothing queues for that.
3. A part is repeated until the patience of the bucket is over, so a server that dies in the middle of one and comes
   back costs time only. The first failure of any part is kept, raised by the next `write` or by `commit`, and stays.
4. `commit` waits for all parts and completes the upload. A Complete whose answer was lost is sent again; if the store
   has forgotten the upload by then, it was done or lost, and only the look at the object afterwards says which.
5. Before an abort the requests under way are waited for: a part that arrives later would stay behind. None of them
   is repeated then, and an exception that leaves `with` waits for no store that stays away.

Source: Amazon S3 user guide, "Multipart upload limits" and "Uploading and copying objects using multipart upload".
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Self, TypeVar

from typing_extensions import Buffer

from milepost.engines.buckets import Version
from milepost.engines.buckets.patience import Clock, patiently, told
from milepost.engines.buckets.wire import Part, Setback, Wire
from milepost.engines.digests import Digester
from milepost.transitions.errors import MilepostError, Unavailable

T = TypeVar("T")

MAX_PARTS = 10_000
PART_BYTES = 16 << 20
LANES = 4
BUFFER_BYTES = 208 << 20
"""The most that one upload buffers; what else a writer needs keeps it under 256 MiB."""

_GRAIN_BYTES = 1 << 20


def parting(size_hint: int, *, part_bytes: int = PART_BYTES, lanes: int = LANES) -> tuple[int, int]:
    """The size of a part in bytes, and the number of lanes, for an object of about `size_hint` bytes.

    Nine parts of ten are planned, so that an object may be a tenth larger than its hint. `ValueError` where even one
    lane would need more memory than `BUFFER_BYTES`.
    """
    if size_hint < 0:
        raise ValueError(f"an object cannot have {size_hint} bytes")
    planned = -(-size_hint // (MAX_PARTS * 9 // 10))
    if planned > part_bytes:
        part_bytes = -(-planned // _GRAIN_BYTES) * _GRAIN_BYTES
    if 3 * part_bytes > BUFFER_BYTES:
        most = BUFFER_BYTES // 3 // _GRAIN_BYTES * _GRAIN_BYTES * (MAX_PARTS * 9 // 10)
        raise ValueError(f"an object of {size_hint} bytes; one upload takes at most {most}: write it as several")
    return part_bytes, min(lanes, (BUFFER_BYTES // part_bytes - 1) // 2)


class PartedUpload:
    """An `Upload`. One thread writes; the lanes are threads of its own."""

    def __init__(
        self,
        wire: Wire,
        key: str,
        *,
        part_bytes: int,
        lanes: int,
        clock: Clock,
        patience_s: float,
        digester: Digester | None,
    ) -> None:
        self._wire = wire
        self._key = key
        self._part_bytes = part_bytes
        self._clock = clock
        self._patience_s = patience_s
        self._digester = digester
        self._lanes = lanes
        self._pool: ThreadPoolExecutor | None = None
        self._spare: SimpleQueue[bytearray] = SimpleQueue()
        self._buffers = 1
        self._filling = bytearray()
        self._filled = 0
        self._written = 0
        self._upload_id: str | None = None
        self._parts: list[Future[Part]] = []
        self._failed: MilepostError | OSError | None = None
        self._committed: Version | None = None
        self._aborted = False

    def write(self, data: Buffer) -> int:
        self._check()
        rest = memoryview(data).cast("B")
        size = len(rest)
        if self._digester is not None:
            self._digester.update(rest)
        while rest:
            if self._filled == self._part_bytes:
                self._ship()
                self._filling = self._empty()
                self._check()
            piece = rest[: self._part_bytes - self._filled]
            self._filling[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            rest = rest[len(piece) :]
        self._written += size
        return size

    def tell(self) -> int:
        return self._written

    @property
    def digest(self) -> str | None:
        return self._digester.digest if self._digester else None

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._aborted or self._committed:
            raise ValueError(f"{self._key}: the upload was {'aborted' if self._aborted else 'committed'} before")

    def _empty(self) -> bytearray:
        """A buffer that may be filled from its start, once there is one. Whatever an earlier part left is replaced.

        The first one grows, so that a small object takes what it needs; the others have the size of a part at once.
        """
        if self._buffers <= self._lanes:
            self._buffers += 1
            return bytearray(self._part_bytes)
        return self._spare.get()

    def _ship(self) -> None:
        """Send what is filled as the next part."""
        number = len(self._parts) + 1
        if number > MAX_PARTS:
            raise ValueError(
                f"{self._key}: more than {MAX_PARTS} parts of {self._part_bytes} bytes; give a size_hint that is "
                "near to the object's size"
            )
        if self._upload_id is None:
            with told():
                self._upload_id = self._patiently(lambda: self._wire.begin(self._key))
        body, self._filling = self._filling, bytearray()
        del body[self._filled :]
        self._filled = 0
        if not self._lanes:
            future: Future[Part] = Future()
            future.set_result(self._send(number, body))
            self._parts.append(future)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._lanes, thread_name_prefix="milepost-upload")
        self._parts.append(self._pool.submit(self._send, number, body))

    def _send(self, number: int, body: bytearray) -> Part:
        upload_id = self._upload_id
        assert upload_id is not None

        def request() -> Part:
            if self._aborted or self._failed is not None:
                raise CancelledError  # nobody waits for this part any more
            return self._wire.part(self._key, upload_id, number=number, data=body)

        try:
            with told():
                return self._held(request)
        except (MilepostError, OSError) as error:
            self._failed = self._failed or error
            raise
        finally:
            self._spare.put(body)

    def commit(self) -> Version:
        if self._committed is not None:
            return self._committed
        self._check()
        try:
            with told():
                self._finish()
            version = self._seen()
        except (MilepostError, OSError) as error:
            self._failed = error  # a second commit would send its last part again
            raise
        self._committed = version
        self._close()
        return version

    def _finish(self) -> None:
        if self._upload_id is None:
            self._patiently(lambda: self._wire.put(self._key, self._filling, condition="any"))
            return
        self._ship()
        wait(self._parts)
        self._check()
        self._complete(self._upload_id)

    def _complete(self, upload_id: str) -> None:
        parts = [future.result() for future in self._parts]
        unclear = False

        def request() -> None:
            nonlocal unclear
            try:
                self._wire.complete(self._key, upload_id, parts=parts)
            except Setback as setback:
                if setback.kind == "absent" and unclear:
                    return  # rule 4
                unclear = True
                raise

        self._held(request)

    def _held(self, request: Callable[[], T]) -> T:
        """A request about an upload that the store has to know."""
        try:
            return self._patiently(request)
        except Setback as setback:
            if setback.kind != "absent":
                raise
            raise self._lost("the store does not know the upload any more") from None

    def _lost(self, found: str) -> Unavailable:
        return Unavailable(f"{self._wire.where(self._key)}: {found}; nothing refers to this object yet: save again")

    def _seen(self) -> Version:
        """The version of the object, which has to be there and as long as what was written."""
        found = "nothing"
        with told():
            try:
                stat = self._patiently(lambda: self._wire.head(self._key))
            except Setback as setback:
                if setback.kind != "absent":
                    raise
            else:
                if stat.size == self._written:
                    return stat.version
                found = f"{stat.size} bytes"
        raise self._lost(f"{self._written} bytes were written and {found} found afterwards")

    def _patiently(self, request: Callable[[], T]) -> T:
        return patiently(request, clock=self._clock, patience_s=self._patience_s)

    def abort(self) -> None:
        self._give_up(patience_s=self._patience_s)

    def _give_up(self, *, patience_s: float) -> None:
        if self._committed is not None or self._aborted:
            return
        self._aborted = True
        for future in self._parts:
            future.cancel()
        self._close()
        upload_id = self._upload_id
        if upload_id is None:
            return
        with told():
            try:
                abort = partial(self._wire.abort, self._key, upload_id)
                patiently(abort, clock=self._clock, patience_s=patience_s)
            except Setback as setback:
                if setback.kind != "absent":
                    raise

    def _close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        self._filling = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is None:
            self.abort()
            return
        # What went wrong first is what is told, and soon; a leftover is found by `uploads`.
        with suppress(MilepostError, OSError):
            self._give_up(patience_s=0.0)
