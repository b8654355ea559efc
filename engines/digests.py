"""Digests that name their algorithm: `blake3:<hex>` and `sha256:<hex>`.

blake3 keeps up with a disk on one core and is the default of a training save; sha256 is what archives declare.
"""

from __future__ import annotations

import hashlib
from typing import Literal, Protocol

import blake3
from typing_extensions import Buffer

from milepost.engines.disks import Source
from milepost.engines.memory import BLOCK, Arena
from milepost.engines.relay import DEPTH, Relay

Algorithm = Literal["blake3", "sha256"]

_LARGE_BYTES = 64 << 20
"""From here on a second thread earns its pool."""


class Hash(Protocol):
    def update(self, data: Buffer, /) -> object: ...


class Digester:
    """A digest under way: `update` in file order, then `digest`. `size` is about how many bytes will come.

    Many bytes are hashed by two threads at once, as nice as who makes the digester: a training step that runs on
    every core loses the time of the slower one, so half the time on both costs it half as much as all on one.
    """

    def __init__(self, algorithm: str, *, size: int = 0) -> None:
        if algorithm not in ("blake3", "sha256"):
            raise ValueError(f"digest algorithm {algorithm!r}: expected blake3 or sha256")
        self._algorithm = algorithm
        self._state = (
            blake3.blake3(max_threads=2 if size >= _LARGE_BYTES else 1) if algorithm == "blake3" else hashlib.sha256()
        )

    def update(self, data: Buffer) -> None:
        self._state.update(data)

    @property
    def digest(self) -> str:
        return f"{self._algorithm}:{self._state.hexdigest()}"


def digest_of(source: Source, *, algorithm: Algorithm = "blake3") -> str:
    """The digest of a whole file, hashed beside reading; a file that shrinks meanwhile is `OSError` EIO."""
    digester = Digester(algorithm, size=source.size)
    ring = Arena(min(source.size, (DEPTH + 1) * BLOCK))
    with Relay({"milepost-hash": digester.update}) as relay:
        for index, offset in enumerate(range(0, source.size, BLOCK)):
            slot = index % (DEPTH + 1) * BLOCK
            block = ring.view[slot : slot + BLOCK]
            relay.put(block[: source.read_into(offset, block)])
    return digester.digest
