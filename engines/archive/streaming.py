"""Bytes in blocks, from objects and files, with their digests and how fast they come.

1. An object is read in ranges of one version, a few of them at a time, and given out in order: a change under way is
   `Corrupt`, never a mixture.
2. Memory: one block more than there are lanes, each of `BLOCK_BYTES`.
3. A block that was given out is valid until the next one is asked for.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from attrs import frozen

from milepost.engines.ambient import Ambient
from milepost.engines.buckets import Stat, Version
from milepost.engines.buckets.remote import Remote
from milepost.engines.digests import Digester
from milepost.engines.disks import Disk, Source
from milepost.engines.memory import BLOCK, Arena
from milepost.engines.relay import DEPTH, Relay
from milepost.transitions.errors import Corrupt
from milepost.transitions.values import FileDigest

BLOCK_BYTES = 8 << 20
LANES = 4


@frozen(kw_only=True)
class Progress:
    """How far a stage is: `done` of `total` bytes, at `bytes_per_s` since it began; `path` is under way."""

    doing: str
    path: str
    done: int
    total: int
    bytes_per_s: float


Told: TypeAlias = Callable[[Progress], None]


def untold(_progress: Progress) -> None:
    """Nobody wants to know."""


class Meter:
    """Counts the bytes of one stage and tells of each block. Several threads may add; one at a time is told of."""

    def __init__(self, told: Told, *, doing: str, total: int, ambient: Ambient) -> None:
        self._told = told
        self._doing = doing
        self._total = total
        self.ambient = ambient
        self._since_s = ambient.monotonic_s()
        self._done = 0
        self._mutex = threading.Lock()

    def add(self, count: int, *, path: str) -> None:
        """`count` more bytes of `path` are done."""
        with self._mutex:
            self._done += count
            took_s = self.ambient.monotonic_s() - self._since_s
            rate = self._done / took_s if took_s > 0 else 0.0
            self._told(Progress(doing=self._doing, path=path, done=self._done, total=self._total, bytes_per_s=rate))


def object_blocks(remote: Remote, path: str, stat: Stat) -> Iterator[memoryview]:
    """The bytes of the object of this size and version, in order. `Corrupt` where it is not that one any more."""
    key, size = remote.key(path), stat.size
    count = -(-size // BLOCK_BYTES)
    ring = [memoryview(bytearray(min(size, BLOCK_BYTES))) for _ in range(min(LANES + 1, count))]

    def read(index: int) -> memoryview:
        offset = index * BLOCK_BYTES
        block = ring[index % len(ring)][: size - offset]
        if remote.bucket.read_into(key, offset, block, version=stat.version) != len(block):
            raise Corrupt(f"{remote.where(path)}: expected {size} bytes, found fewer; the object was replaced")
        return block

    if count <= 1:
        yield from map(read, range(count))
        return
    with ThreadPoolExecutor(LANES, thread_name_prefix="milepost-archive") as pool:
        under_way: deque[Future[memoryview]] = deque(pool.submit(read, index) for index in range(min(LANES, count)))
        for index in range(count):
            block = under_way.popleft().result()
            if index + LANES < count:  # into the block that was given out before this one
                under_way.append(pool.submit(read, index + LANES))
            yield block


def file_blocks(source: Source) -> Iterator[memoryview]:
    """The bytes of a file, in order; one that shrinks meanwhile is `OSError` EIO."""
    ring = Arena(min(source.size, BLOCK_BYTES))
    for offset in range(0, source.size, BLOCK_BYTES):
        block = ring.view[: min(BLOCK_BYTES, source.size - offset)]
        if source.read_into(offset, block) != len(block):
            raise OSError(errno.EIO, "the file became shorter while it was read")
        yield block


def object_digests(
    remote: Remote, path: str, stat: Stat, *, algorithms: Iterable[str], meter: Meter
) -> tuple[str, ...]:
    """The digest of the object by each algorithm, in their order. Raises as the verbs of a bucket do."""
    digesters = [Digester(algorithm, size=stat.size) for algorithm in algorithms]
    for block in object_blocks(remote, path, stat):
        for digester in digesters:
            digester.update(block)
        meter.add(len(block), path=path)
    return tuple(digester.digest for digester in digesters)


def file_digests(disk: Disk, path: str, *, algorithms: Iterable[str], meter: Meter) -> tuple[str, ...]:
    """The digest of the file by each algorithm, in their order, all taken beside one reading."""
    with disk.open(path, bulk=True) as source:
        digesters = [Digester(algorithm, size=source.size) for algorithm in algorithms]
        ring = Arena(min(source.size, (DEPTH + 1) * BLOCK))
        with Relay({f"milepost-hash-{index}": one.update for index, one in enumerate(digesters)}) as relay:
            for index, offset in enumerate(range(0, source.size, BLOCK)):
                slot = index % (DEPTH + 1) * BLOCK
                block = ring.view[slot : slot + min(BLOCK, source.size - offset)]
                if source.read_into(offset, block) != len(block):
                    raise OSError(errno.EIO, "the file became shorter while it was read", disk.where(path))
                relay.put(block)
                meter.add(len(block), path=path)
    return tuple(digester.digest for digester in digesters)


def require_object(remote: Remote, file: FileDigest, *, also: tuple[str, ...] = (), meter: Meter) -> Version:
    """The version of the object that has the size and the digest of `file`, and all digests `also`, by its bytes.

    `Corrupt` where there is none, or another one.
    """
    stat = remote.bucket.stat(remote.key(file.path))
    if stat is None or stat.size != file.size:
        found = "nothing" if stat is None else f"{stat.size} bytes"
        raise Corrupt(
            f"{remote.where(file.path)}: expected {file.size} bytes with digest {file.digest}, found {found}"
        )
    wanted = (file.digest, *also)
    found_digests = object_digests(remote, file.path, stat, algorithms=map(algorithm_of, wanted), meter=meter)
    require_digests(remote.where(file.path), wanted, found_digests)
    return stat.version


def require_digests(where: str, wanted: Iterable[str], found: Iterable[str]) -> None:
    """`Corrupt` where a digest that was found is not the one that was wanted in its place."""
    for expected, digest in zip(wanted, found, strict=True):
        if digest != expected:
            raise Corrupt(f"{where}: expected the digest {expected}, found {digest}")


def algorithm_of(digest: str) -> str:
    """`sha256` of `sha256:<hex>`."""
    return digest.partition(":")[0]
