"""An object store in memory that fails on demand: run a program on it, then look at everything it could have left.

    bucket = SimulatedBucket()
    program(bucket)
    for length in bucket.cuts():
        for image in bucket.crash_images(length):
            check(image, bucket.marks(length))    # what was promised by then has to be there

1. The verbs are those of every bucket (`milepost.engines.buckets.object`), retries and read-backs included; what is
   simulated is the store that answers single requests. Every request is one entry of the trace, its index its place.
2. `faults` makes a request fail: not applied; applied, and the answer lost; applied late. `before` may hold a writer
   before any of its requests, while others go on. `listing_lag` is by how many entries of the trace a listing is
   late. `conditions` makes the store break its promises in the three ways that real ones do.
3. After the death of a writer its last request may still be under way. A crash image has landed some of what was
   under way; the rest of it may land in the image at any later time (`land`), or never.
4. Time is the simulation's own and passes while somebody waits.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeAlias, TypeVar

from attrs import evolve, frozen
from typing_extensions import Buffer

from milepost.engines.buckets import Gate, Leftover, Stat, Version
from milepost.engines.buckets.object import ObjectBucket
from milepost.engines.buckets.wire import Condition, Part, Piece, Setback, kind_of
from milepost.engines.simulated.cloud import (
    Abort,
    Begin,
    Change,
    Cloud,
    Complete,
    Declined,
    Delete,
    Put,
    PutPart,
    Tree,
    apply,
    holds,
    land,
    part_of,
    stat_of,
    upload_id_of,
    version_of,
)
from milepost.engines.simulated.faults import Killed, Site
from milepost.transitions.errors import Corrupt, MilepostError, Unavailable

T = TypeVar("T")

FEW_UNDER_WAY = 3
"""Up to so many requests under way, any of them may have landed in any order; of more, none, each one, and all."""

PATIENCE_S = 60.0
PART_BYTES = 8

Conditions: TypeAlias = Literal["kept", "ignored", "at the header", "before the write"]
"""How a store treats conditions: as it should; not at all; looked at when a request begins, before its body is there;
looked at just before the write, but not in one step with it."""

_RACE_S = 0.1


@frozen(kw_only=True)
class StoreFault:
    """The request is answered with `status` (503, 409, 412, 500, …), or not at all (0: the connection broke).

    `applied` says what it did: nothing, its work, or its work later: after `after` more requests, or when a test
    lands it. A read does nothing in any case.
    """

    status: int = 0
    applied: Literal["no", "yes", "late"] = "no"
    after: int | None = None


StoreFaultRule: TypeAlias = Callable[[Site], StoreFault | None]


@frozen(kw_only=True)
class Request:
    """One entry of the trace. `status` is what was answered, 0 where nothing was; `cloud` the store afterwards.

    A mark has the verb `mark` and its values as `note`; a late request that took effect has the verb `landed`.
    """

    process: str
    verb: str
    key: str
    change: Change | None = None
    status: int = 200
    cloud: Cloud
    note: tuple[object, ...] = ()


class Store:
    """What all writers share. Settable at any time: `faults`, `before`, `listing_lag`, `conditions`, `now_s`."""

    def __init__(self, cloud: Cloud) -> None:
        self.first = cloud
        self.cloud = cloud
        self.trace: list[Request] = []
        self.faults: StoreFaultRule = lambda _site: None
        self.before: Callable[[str, str, str], None] | None = None
        self.listing_lag = 0
        self.conditions: Conditions = "kept"
        self.now_s = 0.0
        self._landings: list[tuple[int, Change]] = []
        self._mutex = threading.RLock()
        self._race = threading.Condition(self._mutex)
        self._unchecked: dict[str, int] = {}

    def pause(self, attempt: int, *, until_s: float) -> None:
        with self._mutex:
            self.now_s = min(self.now_s + 0.05 * 2 ** min(attempt - 1, 10), max(until_s, self.now_s))

    def after(self, length: int) -> Cloud:
        """The store after the first `length` entries of the trace."""
        return self.trace[length - 1].cloud if length else self.first

    def land(self, index: int = 0) -> None:
        """A request that is under way arrives now."""
        with self._mutex:
            change = self.cloud.under_way[index]
            self.cloud = land(self.cloud, index, check=self.check)
            self.trace.append(Request(process="", verb="landed", key="", change=change, cloud=self.cloud))

    def write(self, wire: SimulatedWire, verb: str, key: str, change: Change) -> Cloud:
        """A request that changes something: the store after it."""
        return self._perform(wire, verb, key, change, lambda cloud: apply(cloud, change, check=self.check))

    def look(self, wire: SimulatedWire, verb: str, key: str) -> Cloud:
        """A request that changes nothing: the store as it is seen, a listing's perhaps as it was a while ago."""
        seen = self._perform(wire, verb, key, None, lambda cloud: cloud)
        if verb == "list":
            return self.after(max(0, len(self.trace) - 1 - self.listing_lag))
        return seen

    def put(self, wire: SimulatedWire, put: Put, *, gate: Gate | None) -> None:
        """A put, whose last byte may be held back by a gate."""
        wire.check_alive()
        match self.conditions:
            case "kept" | "ignored":
                if gate is not None:
                    gate()
                self.write(wire, "put", put.key, put)
            case "at the header":
                held = holds(self.cloud, put)
                if gate is not None:
                    gate()
                self._put_checked(wire, put, held=held)
            case "before the write":
                with self._race:
                    self._unchecked[put.key] = self._unchecked.get(put.key, 0) + 1
                if gate is not None:
                    gate()
                with self._race:
                    held = holds(self.cloud, put)
                    self._unchecked[put.key] -= 1
                    self._race.notify_all()
                    self._race.wait_for(lambda: not self._unchecked[put.key], timeout=_RACE_S)
                    self._put_checked(wire, put, held=held)

    def _put_checked(self, wire: SimulatedWire, put: Put, *, held: bool) -> None:
        self._perform(wire, "put", put.key, put, lambda cloud: apply(cloud, put, check=lambda _cloud, _put: held))

    def check(self, cloud: Cloud, put: Put) -> bool:
        """Whether this store lets a put happen, in the same step."""
        return self.conditions == "ignored" or holds(cloud, put)

    def _perform(
        self, wire: SimulatedWire, verb: str, key: str, change: Change | None, do: Callable[[Cloud], Cloud]
    ) -> Cloud:
        wire.check_alive()
        if self.before is not None:
            self.before(wire.name, verb, key)
        with self._mutex:
            wire.check_alive()
            self._land_what_is_due()
            index = len(self.trace)
            if wire.kill_at is not None and index >= wire.kill_at:
                wire.alive = False
                raise Killed(f"{wire.name} was killed before request {index}: {verb} {key}")
            fault = self.faults(Site(index=index, process=wire.name, verb=verb, path=key))
            status, after = 200, self.cloud
            try:
                after = do(self.cloud)
            except Declined as declined:
                status = declined.status
            if fault is None:
                self.cloud = after
            else:
                status = fault.status
                self._fail(fault, change, after)
            self.trace.append(
                Request(process=wire.name, verb=verb, key=key, change=change, status=status, cloud=self.cloud)
            )
            if status != 200:
                raise _setback(status, doing=verb, where=wire.where(key))
            return self.cloud

    def _fail(self, fault: StoreFault, change: Change | None, after: Cloud) -> None:
        if fault.applied == "yes":
            self.cloud = after
        elif fault.applied == "late" and change is not None:
            self.cloud = evolve(self.cloud, under_way=(*self.cloud.under_way, change))
            if fault.after is not None:
                self._landings.append((len(self.trace) + fault.after, change))

    def _land_what_is_due(self) -> None:
        due = [change for at, change in self._landings if at < len(self.trace)]
        self._landings = [(at, change) for at, change in self._landings if at >= len(self.trace)]
        for change in due:
            if change in self.cloud.under_way:
                self.land(self.cloud.under_way.index(change))


class SimulatedWire:
    """One process's requests. `kill_at` is the index at which it dies instead of making a request."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.alive = True
        self.kill_at: int | None = None

    def check_alive(self) -> None:
        if not self.alive:
            raise Killed(f"{self.name} is dead")

    def now_s(self) -> float:
        return self.store.now_s

    def pause(self, attempt: int, *, until_s: float) -> None:
        self.check_alive()
        self.store.pause(attempt, until_s=until_s)

    def put(self, key: str, data: Buffer, *, condition: Condition, gate: Gate | None = None) -> Version:
        put = Put(key=key, data=bytes(data), condition=condition)
        self.store.put(self, put, gate=gate)
        return version_of(put.data)

    def fetch(self, key: str, *, limit: int) -> tuple[bytes, Version]:
        data = self._object("fetch", key)
        if len(data) > limit:
            wrong = Corrupt(f"{self.where(key)}: {len(data)} bytes where at most {limit} were expected")
            raise Setback("final", why=f"{len(data)} bytes", error=wrong)
        return data, version_of(data)

    def fetch_range(self, key: str, *, offset: int, buffer: memoryview, version: Version) -> Piece:
        data = self._object("fetch_range", key)
        if offset >= len(data):
            raise _setback(416, doing="fetch_range", where=self.where(key))
        part = data[offset : offset + len(buffer)] if version_of(data) == version else b""
        buffer[: len(part)] = part
        return Piece(count=len(part), size=len(data), version=version_of(data))

    def head(self, key: str) -> Stat:
        return stat_of(self._object("head", key))

    def _object(self, verb: str, key: str) -> bytes:
        data = self.store.look(self, verb, key).objects.get(key)
        if data is None:
            raise _setback(404, doing=verb, where=self.where(key))
        return data

    def list(self, prefix: str, *, after: str, limit: int) -> tuple[tuple[str, ...], bool]:
        cloud = self.store.look(self, "list", prefix)
        found = [key for key in cloud.objects if key.startswith(prefix) and key.encode() > after.encode()]
        return tuple(sorted(found, key=str.encode)[:limit]), len(found) > limit

    def delete(self, key: str) -> None:
        self.store.write(self, "delete", key, Delete(key=key))

    def begin(self, key: str) -> str:
        return upload_id_of(self.store.write(self, "begin", key, Begin(key=key)).begun)

    def part(self, key: str, upload_id: str, *, number: int, data: Buffer) -> Part:
        given = bytes(data)
        self.store.write(self, "part", key, PutPart(upload_id=upload_id, number=number, data=given))
        return part_of(given)

    def complete(self, key: str, upload_id: str, *, parts: Sequence[Part]) -> None:
        self.store.write(self, "complete", key, Complete(upload_id=upload_id, parts=tuple(parts)))

    def abort(self, key: str, upload_id: str) -> None:
        self.store.write(self, "abort", key, Abort(upload_id=upload_id))

    def uploads(self, prefix: str) -> tuple[Leftover, ...]:
        found = self.store.look(self, "uploads", prefix).uploads
        left = (Leftover(key=begun.key, upload_id=upload_id) for upload_id, begun in found.items())
        return tuple(sorted((item for item in left if item.key.startswith(prefix)), key=lambda item: item.upload_id))

    def where(self, key: str) -> str:
        return f"s3://simulated/{key}"


def _setback(status: int, *, doing: str, where: str) -> Setback:
    """What a writer sees of a request that was answered so."""
    said = f"{where}: {doing} was answered with {status}" if status else f"{where}: {doing} was not answered"
    kind = kind_of(status)
    error: MilepostError | OSError = FileNotFoundError(said) if kind == "absent" else Unavailable(said)
    return Setback(kind, why=str(status or "no answer"), error=error)


class BucketProcess(ObjectBucket):
    """A `Bucket`: one process's view of the store. Parts are tiny, and sent in order by `write` itself."""

    def __init__(self, store: Store, name: str) -> None:
        self.wire = SimulatedWire(store, name)
        self.store = store
        super().__init__(self.wire, clock=self.wire, patience_s=PATIENCE_S, part_bytes=PART_BYTES, lanes=0)

    def kill(self) -> None:
        """Die now: every further request raises `Killed`."""
        self.wire.alive = False


class SimulatedBucket(BucketProcess):
    """The store, and its first process at the same time. What is settable is set on `store`."""

    def __init__(self, cloud: Cloud | None = None) -> None:
        super().__init__(Store(cloud or Cloud()), "main")

    def process(self, name: str) -> BucketProcess:
        """Another process with this store, with a death of its own."""
        return BucketProcess(self.store, name)

    @property
    def trace(self) -> Sequence[Request]:
        """Every request since this store was made, oldest first."""
        return self.store.trace

    def mark(self, *note: object) -> None:
        """Note in the trace what was told to the world by now."""
        self.store.trace.append(Request(process="", verb="mark", key="", note=note, cloud=self.store.cloud))

    def marks(self, length: int | None = None) -> tuple[tuple[object, ...], ...]:
        """What was marked in the first `length` entries of the trace (all of it, if None)."""
        return tuple(request.note for request in self.trace[:length] if request.verb == "mark")

    def tree(self) -> Tree:
        """The objects by key; not a request."""
        return dict(self.store.cloud.objects.items())

    def key(self) -> Cloud:
        """Equal for two stores that no program can tell apart, now or later; hashable."""
        return self.store.cloud

    def cuts(self) -> Iterator[int]:
        """The lengths of those prefixes of the trace after which a crash may leave, or break a promise, anew."""
        yield 0
        for length, request in enumerate(self.trace, start=1):
            if request.verb == "mark" or request.cloud is not self.store.after(length - 1):
                yield length

    def land(self, index: int = 0) -> None:
        """Let a request that is under way take effect now; `store.cloud.under_way` has them, oldest first."""
        self.store.land(index)

    def crash_images(self, length: int | None = None) -> Iterator[SimulatedBucket]:
        """Stores as the death of all writers after `length` requests (all, if None) may leave them, each one once.

        Under way is also what each writer asked for next. The first image is the one in which none of it has landed.
        """
        length = len(self.trace) if length is None else length
        cloud = self.store.after(length)
        following: dict[str, Change | None] = {}
        for request in self.trace[length:]:
            if request.process:
                following.setdefault(request.process, request.change)
        sent = (change for change in following.values() if change is not None)
        cloud = evolve(cloud, under_way=(*cloud.under_way, *sent))
        met: set[Cloud] = set()
        for landed in _arrivals(cloud.under_way):
            image = cloud
            for change in landed:
                image = land(image, image.under_way.index(change), check=self.store.check)
            if image not in met:
                met.add(image)
                bucket = SimulatedBucket(image)
                bucket.store.conditions = self.store.conditions
                yield bucket


def _arrivals(under_way: tuple[Change, ...]) -> Iterator[tuple[Change, ...]]:
    """Which of them may have arrived, in which order: a late request may overtake another."""
    if len(under_way) <= FEW_UNDER_WAY:
        for size in range(len(under_way) + 1):
            yield from itertools.permutations(under_way, size)
        return
    yield ()
    yield from ((change,) for change in under_way)
    yield under_way
