"""A disposable copy of the folded state, so that a long run opens without reading all of its log.

1. The cache is never authoritative. Absent, torn, foreign or written by another milepost, it is passed over in
   silence and the log is folded from its first byte. Deleting it is always safe; nothing of it is made durable.
2. It is taken behind an entry that is durable: a power loss then keeps every byte that it stands for.
3. It counts only where it fits the log: its place lies within the valid length of its segment as the survey fixed it,
   the line that ends there is whole and is the very entry that it was taken behind, and the chain goes on from that
   sum. A fenced writer's cache of what its successor cut off fails the first; a log that lost its tail the second.
4. The bytes before its place are not read again. Damage there is found by `verify` and `replay`, which use no cache,
   and by nothing else; witnesses from before it are not compared either.
5. The file is a blake2b-128 sum and one JSON document: what the fold depends on (a digest of the sources of
   `milepost.transitions`), the place and the state. It is written under another name and renamed.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from hashlib import blake2b
from importlib.resources import files

import orjson
from attrs import frozen

from milepost.engines.disks import Disk, write_all
from milepost.engines.logs import Log
from milepost.engines.shapes import Mismatch, shape_of
from milepost.journal.log.entries import LINE_LIMIT_BYTES, Head, is_whole
from milepost.journal.log.scan import Mark, Survey
from milepost.transitions.machine import State

_LIMIT_BYTES = 256 << 20
_SUM_BYTES = 32


@frozen(kw_only=True)
class _Cached:
    """The document. `fold` is the digest of the sources, the rest a mark and the state behind it."""

    fold: str
    number: int
    offset: int
    seq: int
    sum: str
    epoch: int
    state: State


class FoldCache:
    """The cache of the log in `folder` of `disk`."""

    def __init__(self, disk: Disk, *, folder: str = "journal") -> None:
        self._disk = disk
        self._path = f"{folder}/fold-cache"

    def load(self, log: Log, surveyed: Survey) -> tuple[Mark, State] | None:
        """A place in the log and the state there, or None where there is no cache that fits."""
        try:
            raw = self._disk.read(self._path, limit=_LIMIT_BYTES)
        except OSError:
            return None
        cached = _decode(raw)
        if cached is None:
            return None
        head = Head(seq=cached.seq, sum=cached.sum, epoch=cached.epoch)
        mark = Mark(number=cached.number, offset=cached.offset, head=head)
        return (mark, cached.state) if _fits(log, surveyed, mark) else None

    def store(self, mark: Mark, state: State) -> None:
        """Keep the state behind an entry that is durable. A disk that fails is none of the caller's concern."""
        raw = _encode(mark, state)
        fresh = f"{self._path}.new"
        with suppress(OSError):
            if self._disk.stat(fresh) is not None:
                self._disk.unlink(fresh)
            with self._disk.create(fresh) as sink:
                write_all(sink, raw)
            self._disk.rename(fresh, self._path)


def _encode(mark: Mark, state: State) -> bytes:
    cached = _Cached(
        fold=_sources(),
        number=mark.number,
        offset=mark.offset,
        seq=mark.head.seq,
        sum=mark.head.sum,
        epoch=mark.head.epoch,
        state=state,
    )
    document = orjson.dumps(shape_of(_Cached).write(cached))
    return _sum(document) + document


def _decode(raw: bytes) -> _Cached | None:
    document = raw[_SUM_BYTES:]
    if raw[:_SUM_BYTES] != _sum(document):
        return None
    try:
        cached: _Cached = shape_of(_Cached).read(orjson.loads(document))
    except (Mismatch, orjson.JSONDecodeError):
        return None
    return cached if cached.fold == _sources() else None


def _fits(log: Log, surveyed: Survey, mark: Mark) -> bool:
    stops = {span.number: span.stop for span in surveyed.spans}
    if not 0 < mark.offset <= stops.get(mark.number, 0):
        return False
    with log.open(mark.number, start=max(mark.offset - LINE_LIMIT_BYTES, 0), stop=mark.offset) as stream:
        tail = stream.read()
    line = tail[tail.rfind(b"\n", 0, -1) + 1 :]
    return is_whole(line) and orjson.loads(line)["sum"] == mark.head.sum


def _sum(document: bytes) -> bytes:
    return blake2b(document, digest_size=_SUM_BYTES // 2).hexdigest().encode()


@cache
def _sources() -> str:
    """A digest of every source that a fold runs: another one may fold the same records to another state."""
    digest = blake2b(digest_size=_SUM_BYTES // 2)
    for source in sorted(files("milepost.transitions").iterdir(), key=lambda source: source.name):
        if source.name.endswith(".py"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()
