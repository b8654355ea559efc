"""The manifest: the last file of a checkpoint, and the one that says it is whole (INV-01).

    {"format":"milepost.manifest.v1","save":…,"components":[…],"witness":{"seq":…,"sum":…},…,"sum":"blake3:…"}

1. It lists every payload file with its size and digest. Paths are relative: a copied checkpoint stays whole.
2. It is one line of JSON. `sum` covers the raw bytes before the field, so a manifest proves itself without a journal.
3. `witness` is the durable head of the journal at the sealing: a journal that ends before it has lost its head.
"""

from __future__ import annotations

from typing import cast

import orjson
from attrs import frozen
from blake3 import blake3

from milepost.engines.disks.paths import split_last
from milepost.engines.shapes import Mismatch, object_of
from milepost.transitions.errors import Corrupt, NewerVersion
from milepost.transitions.values import FileDigest, Plan, SaveId, StoredComponent, Witness

MANIFEST = ".posttrain-manifest.json"
FORMAT = "milepost.manifest.v1"
LIMIT_BYTES = 64 << 20

_FAMILY = "milepost.manifest.v"
_SUM = b',"sum":"blake3:'
_END = b'"}\n'


@frozen(kw_only=True)
class Manifest:
    """What a checkpoint holds and who made it."""

    save: SaveId
    run_ts: str
    plan: Plan
    checkpoint_format: str
    world_size: int
    components: tuple[StoredComponent, ...]
    witness: Witness
    milepost: str

    @property
    def files(self) -> tuple[FileDigest, ...]:
        return tuple(file for part in self.components for file in part.files)


_SHAPE = object_of(Manifest, tags={"format": FORMAT})


def encode(manifest: Manifest) -> bytes:
    """The bytes of the manifest's file."""
    body = orjson.dumps(_SHAPE.write(manifest))[:-1]
    return b"".join((body, _SUM, blake3(body).hexdigest().encode(), _END))


def decode(data: bytes, *, where: str) -> Manifest:
    """The manifest of these bytes; `Corrupt` where one of them is wrong, `NewerVersion` for a later format."""
    body, mark, tail = data.rpartition(_SUM)
    if not mark or not tail.endswith(_END):
        raise Corrupt(f"{where}: expected a manifest that ends with its sum, found {len(data)} bytes that do not")
    expected = blake3(body).hexdigest().encode()
    if tail != expected + _END:
        stated = tail.removesuffix(_END).decode("ascii", "replace")
        raise Corrupt(f"{where}: the manifest's bytes have the sum {expected.decode()}, it states {stated}")
    document = cast("dict[str, object]", orjson.loads(body + b"}"))
    found = document.get("format")
    if found != FORMAT:
        if isinstance(found, str) and found.startswith(_FAMILY):
            raise NewerVersion(f"{where}: a manifest of format {found}; this milepost reads {FORMAT}")
        raise Corrupt(f"{where}: expected the format {FORMAT}, found {found!r}")
    try:
        manifest = cast(Manifest, _SHAPE.read(document))
    except Mismatch as mismatch:
        raise Corrupt(f"{where}: {mismatch}") from mismatch
    for file in manifest.files:
        try:
            split_last(file.path)
        except ValueError as error:
            raise Corrupt(f"{where}: expected paths inside the checkpoint, found {file.path!r}: {error}") from error
    return manifest


def digest_of(data: bytes) -> FileDigest:
    """The manifest's own digest, as `save-sealed` records it."""
    return FileDigest(path=MANIFEST, size=len(data), digest=f"blake3:{blake3(data).hexdigest()}")
