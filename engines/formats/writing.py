"""An image to a durable file, hashed beside the write.

Three threads: the caller's, which composes the blocks; `milepost-write`, which hands them to the disk; and
`milepost-hash`. None of them holds the GIL over a block, and none waits for a slower one before `Image.depth` blocks
lie between them. They are as nice as the caller: the thread of an asynchronous save made itself so, in order not to
compete with the loop.
"""

from __future__ import annotations

from attrs import frozen

from milepost.engines.digests import Algorithm, Digester
from milepost.engines.disks import Disk, write_all
from milepost.engines.formats.images import Image
from milepost.engines.relay import Relay


@frozen(kw_only=True)
class Written:
    """What was written: `size` in bytes and the digest, such as `blake3:6437b3ac…`."""

    size: int
    digest: str


def write_image(
    disk: Disk, path: str, image: Image, *, algorithm: Algorithm = "blake3", crc32: bool = False
) -> Written:
    """Create `path`, write the whole image, sync and close; the name is durable when its directory is synced.

    Errors of the disk (`OSError`) and of the image are raised here, from whichever thread met them; what was
    created stays where it is, for the caller to clear.
    """
    digester = Digester(algorithm, size=image.room)
    size = 0
    with disk.create(path, bulk=True) as sink:
        followers = {"milepost-write": lambda block: write_all(sink, block), "milepost-hash": digester.update}
        with Relay(followers, depth=image.depth) as relay:
            for block in image.blocks(crc32=crc32):
                size += len(block)
                relay.put(block)
        sink.sync()
        sink.close()
    return Written(size=size, digest=digester.digest)
