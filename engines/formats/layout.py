"""Where every byte of a `.pt` file lies, computed from the sizes alone.

The file is what torch's own writer (miniz) would write, with the records in another order:

1. Storages come first, `archive/data/<k>` in the order in which the pickle names them; `data.pkl`, the small
   records and the central directory follow. So the offset of a storage depends on storage sizes only, and a
   changed step or learning rate moves nothing.
2. Payload starts at a multiple of 64 bytes, padded by an extra field `FB` of `Z`s, and is followed by a data
   descriptor (16 bytes, 24 with zip64; none behind an empty record).
3. zip64 fields appear when a size or a header's offset reaches 4 GiB - 1, in exactly the cases of miniz.
4. No times, no names of users or hosts: equal sizes give equal headers.

Format: APPNOTE.TXT 6.3 (PKWARE) and `caffe2/serialize/inline_container.cc` of PyTorch.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterable, Sequence

from attrs import frozen

ALIGNMENT = 64
LIMIT_32 = 0xFFFFFFFF

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_FLAGS_UTF8 = 0x800
_FLAG_DESCRIPTOR = 0x8


@frozen
class Slot:
    """A record's place: its header at `at`, its payload of `size` bytes at `start`, the next header at `end`."""

    name: bytes
    at: int
    size: int
    start: int
    end: int

    @property
    def header(self) -> bytes:
        extra = _zip64(self, local=True)
        pad = self.start - self.at - _LOCAL.size - len(self.name) - len(extra) - 4
        extra += struct.pack("<HH", 0x4246, pad) + b"Z" * pad
        sizes = LIMIT_32 if self.size >= LIMIT_32 else 0
        head = (b"PK\3\4", 0, _flags(self.size), 0, 0, 0, 0, sizes, sizes, len(self.name), len(extra))
        return _LOCAL.pack(*head) + self.name + extra

    def descriptor(self, crc: int) -> bytes:
        form = {0: "", 16: "<4sIII", 24: "<4sIQQ"}[descriptor_size(self.at, self.size)]
        return struct.pack(form, b"PK\7\x08", crc, self.size, self.size) if form else b""

    def central(self, crc: int) -> bytes:
        extra = _zip64(self, local=False)
        size, at = min(self.size, LIMIT_32), min(self.at, LIMIT_32)
        head = (b"PK\1\2", 0, 0, _flags(self.size), 0, 0, 0, crc, size, size, len(self.name), len(extra))
        return _CENTRAL.pack(*head, 0, 0, 0, 0, at) + self.name + extra


@frozen
class Layout:
    """The slots of all storages, in file order, and where the last one ends."""

    slots: tuple[Slot, ...]
    end: int

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(slot.size for slot in self.slots)

    @property
    def room(self) -> int:
        """Bytes of a whole file, a little more rather than less: its tail is not known before it is pickled."""
        return self.end + 1024 * (len(self.slots) + 64)


def payload_start(at: int, name_size: int, size: int) -> int:
    """Where torch's writer puts the payload of a record whose local header is at `at`."""
    zip64 = 16 * (size >= LIMIT_32) + 8 * (at >= LIMIT_32)
    head = at + _LOCAL.size + name_size + (zip64 + 4 if zip64 else 0) + 4
    return -(-head // ALIGNMENT) * ALIGNMENT


def descriptor_size(at: int, size: int) -> int:
    """Bytes of the data descriptor behind a payload of `size` bytes whose header is at `at`."""
    if size == 0:
        return 0
    return 24 if size >= LIMIT_32 or at >= LIMIT_32 else 16


def place(name: bytes, at: int, size: int) -> Slot:
    """The slot of a record whose local header begins at `at`."""
    start = payload_start(at, len(name), size)
    return Slot(name, at, size, start, start + size + descriptor_size(at, size))


def lay_out(sizes: Iterable[int]) -> Layout:
    """Place storages of `sizes` bytes one behind the other, from offset 0."""
    at = 0
    slots = []
    for key, size in enumerate(sizes):
        slot = place(b"archive/data/%d" % key, at, size)
        slots.append(slot)
        at = slot.end
    return Layout(tuple(slots), at)


def tail(layout: Layout, *, pickled: bytes, crcs: Sequence[int]) -> bytes:
    """Everything behind the storages: the pickle, the small records and the central directory."""
    records = (
        (b"archive/data.pkl", pickled),
        (b"archive/.format_version", b"1"),
        (b"archive/.storage_alignment", b"%d" % ALIGNMENT),
        (b"archive/byteorder", sys.byteorder.encode()),
        (b"archive/version", b"3\n"),
    )
    out = bytearray()
    central = bytearray().join(slot.central(crc) for slot, crc in zip(layout.slots, crcs, strict=True))
    for name, payload in records:
        slot = place(name, layout.end + len(out), len(payload))
        crc = zlib.crc32(payload)
        out += slot.header + payload + slot.descriptor(crc)
        central += slot.central(crc)
    directory_at = layout.end + len(out)
    return bytes(out + central + _end(directory_at, len(layout.slots) + len(records), len(central)))


def _end(at: int, count: int, size: int) -> bytes:
    """The zip64 end record, its locator and the classic end record, as miniz always writes them."""
    zip64 = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 0x31E, 0x2D, 0, 0, count, count, size, at)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, at + size, 1)
    few = min(count, 0xFFFF)
    classic = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, few, few, min(size, LIMIT_32), min(at, LIMIT_32), 0)
    return zip64 + locator + classic


def _zip64(slot: Slot, *, local: bool) -> bytes:
    """The zip64 extra field, or nothing. A local header leaves sizes to the descriptor behind the payload."""
    body = b""
    if slot.size >= LIMIT_32:
        body += struct.pack("<QQ", 0, 0) if local else struct.pack("<QQ", slot.size, slot.size)
    if slot.at >= LIMIT_32:
        body += struct.pack("<Q", slot.at)
    return struct.pack("<HH", 1, len(body)) + body if body else b""


def _flags(size: int) -> int:
    return _FLAGS_UTF8 | _FLAG_DESCRIPTOR if size else _FLAGS_UTF8
