"""What a simulated object store holds, and what each request that changes it does: pure values.

1. A request takes effect whole and at once, or not at all. What was answered with success is durable.
2. A version is made of the object's bytes, as the entity tags of most stores are: equal bytes have equal versions.
3. A request may be under way: it was sent, nobody knows its answer, and it takes effect late or never. Its condition
   is looked at when it takes effect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TypeAlias, assert_never

from attrs import evolve, frozen
from rpds import HashTrieMap

from milepost.engines.buckets import Stat, Version
from milepost.engines.buckets.wire import Condition, Part

Tree: TypeAlias = dict[str, bytes]
"""The objects by key."""


@frozen(kw_only=True)
class Put:
    key: str
    data: bytes
    condition: Condition


@frozen(kw_only=True)
class Delete:
    key: str


@frozen(kw_only=True)
class Begin:
    key: str


@frozen(kw_only=True)
class PutPart:
    upload_id: str
    number: int
    data: bytes


@frozen(kw_only=True)
class Complete:
    upload_id: str
    parts: tuple[Part, ...]


@frozen(kw_only=True)
class Abort:
    upload_id: str


Change: TypeAlias = Put | Delete | Begin | PutPart | Complete | Abort


@frozen(kw_only=True)
class Begun:
    """An upload: its key and the parts that arrived."""

    key: str
    parts: HashTrieMap[int, bytes]


@frozen(kw_only=True)
class Cloud:
    """The store. `under_way` are changes that may still take effect, oldest first."""

    objects: HashTrieMap[str, bytes] = HashTrieMap()
    uploads: HashTrieMap[str, Begun] = HashTrieMap()
    begun: int = 0
    under_way: tuple[Change, ...] = ()


class Declined(Exception):
    """The store does not do it; `status` is that of HTTP."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


Check: TypeAlias = Callable[[Cloud, Put], bool]


def holds(cloud: Cloud, put: Put) -> bool:
    """Whether a put's condition holds."""
    match put.condition:
        case "any":
            return True
        case "absent":
            return put.key not in cloud.objects
        case Version() as version:
            found = cloud.objects.get(put.key)
            return found is not None and version_of(found) == version
        case _:
            assert_never(put.condition)


def version_of(data: bytes) -> Version:
    return Version(token=f'"{hashlib.blake2b(data, digest_size=16).hexdigest()}"')


def stat_of(data: bytes) -> Stat:
    return Stat(size=len(data), version=version_of(data))


def apply(cloud: Cloud, change: Change, *, check: Check = holds) -> Cloud:
    """The store after `change`; `Declined` where it does nothing."""
    match change:
        case Put(key=key, data=data):
            if not check(cloud, change):
                missing = isinstance(change.condition, Version) and key not in cloud.objects
                raise Declined(404 if missing else 412)
            return evolve(cloud, objects=cloud.objects.insert(key, data))
        case Delete(key=key):
            return evolve(cloud, objects=cloud.objects.discard(key))
        case Begin(key=key):
            begun = cloud.begun + 1
            upload = Begun(key=key, parts=HashTrieMap())
            return evolve(cloud, begun=begun, uploads=cloud.uploads.insert(upload_id_of(begun), upload))
        case PutPart(upload_id=upload_id, number=number, data=data):
            upload = _upload(cloud, upload_id)
            upload = evolve(upload, parts=upload.parts.insert(number, data))
            return evolve(cloud, uploads=cloud.uploads.insert(upload_id, upload))
        case Complete(upload_id=upload_id, parts=parts):
            upload = _upload(cloud, upload_id)
            held = [upload.parts.get(number) for number in range(1, len(parts) + 1)]
            if [data is not None and part_of(data) for data in held] != list(parts):
                raise Declined(400)
            data = b"".join(data for data in held if data is not None)
            return evolve(
                cloud,
                objects=cloud.objects.insert(upload.key, data),
                uploads=cloud.uploads.remove(upload_id),
            )
        case Abort(upload_id=upload_id):
            _upload(cloud, upload_id)
            return evolve(cloud, uploads=cloud.uploads.remove(upload_id))
        case _:
            assert_never(change)


def land(cloud: Cloud, index: int, *, check: Check) -> Cloud:
    """The store after a change that was under way arrived, to whatever effect it has by now."""
    change = cloud.under_way[index]
    cloud = evolve(cloud, under_way=cloud.under_way[:index] + cloud.under_way[index + 1 :])
    try:
        return apply(cloud, change, check=check)
    except Declined:
        return cloud


def upload_id_of(number: int) -> str:
    return f"upload-{number}"


def part_of(data: bytes) -> Part:
    return Part(etag=version_of(data).token, checksum=None)


def _upload(cloud: Cloud, upload_id: str) -> Begun:
    if (upload := cloud.uploads.get(upload_id)) is None:
        raise Declined(404)
    return upload
