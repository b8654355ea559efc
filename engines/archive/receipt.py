"""The receipt of an archive, `.uploaded`: what was archived and where, beside the manifest of the local copy.

1. It is written once everything was seen at its destination, and durable before anybody is told. Nothing local goes
   without it.
2. `posttrain.archive-marker.v1` holds the destination, without any secret, and the inventory. One line of text, as
   earlier programs wrote, says that there is an archive and binds nothing: no destination, no digest.
3. It is created and never replaced (INV-02), but for such a line of text by a receipt.
4. `.uploaded.tmp` is a small file on its way to its name. It belongs to no checkpoint and may be removed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeAlias

from attrs import frozen

from milepost.engines.buckets.remote import Destination
from milepost.engines.checkpoints.manifest import LIMIT_BYTES, require_inside
from milepost.engines.checkpoints.proven import Form
from milepost.engines.checkpoints.released import RECEIPT
from milepost.engines.disks import Disk, write_all
from milepost.transitions.errors import Corrupt
from milepost.transitions.values import FileDigest

TEMPORARY = ".uploaded.tmp"
FORMAT = "posttrain.archive-marker.v1"


@frozen(kw_only=True)
class Receipt:
    """`declaration` and `manifest` are those two files at the destination, `files` all others; digests are sha256."""

    destination: Destination
    declaration: FileDigest
    manifest: FileDigest
    files: tuple[FileDigest, ...]

    @property
    def objects(self) -> tuple[FileDigest, ...]:
        """Everything that was recorded."""
        return (self.declaration, *self.files, self.manifest)


@frozen(kw_only=True)
class TextMarker:
    """A marker of one line of text: something was archived somewhere."""

    text: str


Marked: TypeAlias = Receipt | TextMarker

_FORM = Form(content=Receipt, tag=FORMAT, called="the receipt of an archive")


def encode(receipt: Receipt) -> bytes:
    """The bytes of the receipt's file; equal receipts have equal bytes."""
    return _FORM.encode(receipt)


def decode(data: bytes, *, where: str) -> Marked:
    """What these bytes are; `Corrupt` for a damaged receipt, `NewerVersion` for a later format."""
    if data.strip() and not data.lstrip().startswith(b"{"):
        return TextMarker(text=data.decode(errors="replace").strip())
    receipt = _FORM.decode(data, where=where)
    require_inside((file.path for file in receipt.objects), where=where)
    return receipt


def find(disk: Disk, path: str) -> Marked | None:
    """What the directory `path` says of its archive; None: nothing. Raises as `decode`, or `OSError`."""
    file = f"{path}/{RECEIPT}"
    if disk.stat(file) is None:
        return None
    return decode(disk.read(file, limit=LIMIT_BYTES), where=disk.where(file))


def write(disk: Disk, path: str, receipt: Receipt) -> None:
    """Put the receipt beside the manifest, durable on return. `Corrupt` where another one is there, or `OSError`."""
    join(disk, path, RECEIPT, encode(receipt), instead_of_text=True)


def join(disk: Disk, path: str, name: str, data: bytes, *, instead_of_text: bool = False) -> None:
    """Give the directory `path` a small file, durable on return, where nothing is or equal bytes are; else `Corrupt`.

    With `instead_of_text` it may take the place of a marker of text.
    """
    file, temporary = f"{path}/{name}", f"{path}/{TEMPORARY}"
    with suppress(FileNotFoundError):  # of an attempt that was interrupted
        disk.unlink(temporary)
    with disk.create(temporary) as sink:
        write_all(sink, data)
        sink.sync()
    try:
        disk.link(temporary, file)
    except FileExistsError:
        found = disk.read(file, limit=LIMIT_BYTES)
        text = instead_of_text and isinstance(decode(found, where=disk.where(file)), TextMarker)
        if found != data and not text:
            raise Corrupt(
                f"{disk.where(file)}: expected {len(data)} bytes of this archive, found {len(found)} other bytes. "
                "Nothing was changed; look at it, and move it away if it is wrong"
            ) from None
        # After a sync that failed the next one succeeds and writes nothing: only a new entry is one to be synced.
        disk.rename(temporary, file)
    with suppress(FileNotFoundError):  # it became the name
        disk.unlink(temporary)
    disk.sync_dir(path)
