"""Finding the records of a `.pt` file: ours, and any that torch.save wrote.

1. Nothing that the file claims is believed before it is checked against the file's size: every record lies
   within the file, and no two overlap, so that all of them together hold no more than the file does.
2. Payload offsets follow from the central directory by the arithmetic of `layout`; a record for which the
   arithmetic does not meet the next header is looked up in its local header instead.
3. Whatever is wrong is one `Corrupt`: where, what was expected, what was found.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import NoReturn

from attrs import frozen

from milepost.engines.disks import Source
from milepost.engines.formats.layout import LIMIT_32, place
from milepost.transitions.errors import Corrupt

_END = struct.Struct("<4sHHHHIIH")
_END_64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")


@frozen
class Record:
    """`size` bytes of payload from byte `start` of the file."""

    start: int
    size: int


@frozen
class _Entry:
    at: int
    size: int
    name: bytes


def read_exactly(source: Source, offset: int, size: int, *, where: str) -> bytes:
    """`size` bytes at `offset`, which must lie within the file."""
    if offset < 0 or size < 0 or offset + size > source.size:
        corrupt(where, f"{size} bytes at offset {offset}", f"a file of {source.size} bytes")
    data = bytearray(size)
    found = source.read_into(offset, data)
    if found != size:
        corrupt(where, f"{size} bytes at offset {offset}", f"{found}: the file was cut while it was read")
    return bytes(data)


def find_records(source: Source, *, where: str) -> dict[str, Record]:
    """The records of a `.pt` file by name, without the archive's own prefix: `data.pkl`, `data/0`, …"""
    at, size, count = _directory(source, where)
    entries = _entries(read_exactly(source, at, size, where=where), count, where)
    nexts = [*(entry.at for entry in entries), at][1:]
    located = [_locate(source, entry, follower, where) for entry, follower in zip(entries, nexts, strict=True)]
    in_order = sorted(located, key=lambda record: record.start)
    for first, second in pairwise(in_order):
        if first.start + first.size > second.start:
            corrupt(where, "records that do not overlap", f"two that share byte {second.start}")
    if in_order and in_order[-1].start + in_order[-1].size > at:
        corrupt(where, f"records before the directory at byte {at}", "one that reaches beyond it")
    prefix = next((e.name[: -len(b"data.pkl")] for e in entries if e.name.endswith(b"/data.pkl")), None)
    if prefix is None:
        corrupt(where, "a torch.save archive", "a zip archive without data.pkl")
    return {
        entry.name.removeprefix(prefix).decode("utf-8", "replace"): record
        for entry, record in zip(entries, located, strict=True)
    }


def _directory(source: Source, where: str) -> tuple[int, int, int]:
    """Offset, size and number of entries of the central directory."""
    end_at = source.size - _END.size
    if end_at < 0:
        corrupt(where, "a zip archive", f"a file of {source.size} bytes")
    mark, _, _, _, count, size, at, _ = _END.unpack(read_exactly(source, end_at, _END.size, where=where))
    if mark != b"PK\5\6":
        corrupt(where, "a zip end record at the end of the file", f"{mark!r}: cut short, or not a .pt file")
    locator_at = end_at - _LOCATOR.size
    if LIMIT_32 in (size, at) or count == 0xFFFF:
        mark, _, end_64_at, _ = _LOCATOR.unpack(read_exactly(source, locator_at, _LOCATOR.size, where=where))
        if mark != b"PK\6\7":
            corrupt(where, f"a zip64 locator at byte {locator_at}", repr(mark))
        end_64 = _END_64.unpack(read_exactly(source, end_64_at, _END_64.size, where=where))
        if end_64[0] != b"PK\6\6":
            corrupt(where, f"a zip64 end record at byte {end_64_at}", repr(end_64[0]))
        count, size, at = end_64[7:]
    return at, size, count


def _entries(directory: bytes, count: int, where: str) -> list[_Entry]:
    """The central directory's entries in file order."""
    found: list[_Entry] = []
    at = 0
    while at + _CENTRAL.size <= len(directory):
        head = _CENTRAL.unpack_from(directory, at)
        mark, method, packed, size, name_size, extra_size, comment_size, header_at = (
            head[0], head[4], head[8], head[9], head[10], head[11], head[12], head[16]
        )  # fmt: skip
        name_at = at + _CENTRAL.size
        at = name_at + name_size + extra_size + comment_size
        if mark != b"PK\1\2" or at > len(directory):
            corrupt(where, f"entry {len(found)} of the zip directory", f"{mark!r} or an entry that is cut")
        extra = directory[name_at + name_size : name_at + name_size + extra_size]
        size, packed, header_at = _widened(extra, (size, packed, header_at), where)
        if method or size != packed:
            corrupt(where, "stored records", f"a compressed one (method {method})")
        found.append(_Entry(header_at, size, directory[name_at : name_at + name_size]))
    if len(found) != count or at != len(directory):
        corrupt(where, f"{count} entries in the zip directory", f"{len(found)} and {len(directory) - at} bytes")
    return sorted(found, key=lambda entry: entry.at)


def _widened(extra: bytes, fields: tuple[int, int, int], where: str) -> tuple[int, int, int]:
    """Size, packed size and header offset, each from the zip64 extra field where the classic one is full."""
    if LIMIT_32 not in fields:
        return fields
    wide: list[int] = []
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            whole = min(size, len(extra) - at - 4) // 8 * 8
            wide = [value for (value,) in struct.iter_unpack("<Q", extra[at + 4 : at + 4 + whole])]
        at += 4 + size
    if len(wide) < fields.count(LIMIT_32):
        corrupt(where, "a zip64 field for a record beyond 4 GiB", f"{len(wide)} numbers in the directory")
    numbers = iter(wide)
    first, second, third = (next(numbers) if part == LIMIT_32 else part for part in fields)
    return first, second, third


def _locate(source: Source, entry: _Entry, follower: int, where: str) -> Record:
    """The payload of an entry whose local header is followed, after the payload, by byte `follower`."""
    slot = place(entry.name, entry.at, entry.size)
    if slot.end == follower:
        return Record(slot.start, entry.size)
    head = _LOCAL.unpack(read_exactly(source, entry.at, _LOCAL.size, where=where))
    if head[0] != b"PK\3\4":
        corrupt(where, f"a zip header at byte {entry.at}", repr(head[0]))
    return Record(entry.at + _LOCAL.size + head[9] + head[10], entry.size)


def corrupt(where: str, expected: str, found: str) -> NoReturn:
    raise Corrupt(f"{where}: expected {expected}, found {found}; take another checkpoint or a copy of this file")
