"""Names in a checkpoint in a bucket, and the tombstone that stands where a manifest must never appear.

    model/<save id>__<rank>_0.distcp            a shard: who plans it gives it this name
    model/.metadata                             under one key for every attempt, conditional
    .posttrain/generations/<save id>/data.pt    a small file

1. The key of payload has the save's id in it: a late request of a paused writer replaces whatever lies at its key, so
   no two attempts share one.
2. A tombstone has a format of its own, and no reader takes it for a manifest. Its bytes follow from the save that it
   revokes, so that two writers which revoke one save write the same. It is replaced only by a writer that looked at
   its fence since it read it, so one that was replaced does not come back.
"""

from __future__ import annotations

from contextlib import suppress

from attrs import frozen
from typing_extensions import Buffer

from milepost.engines.buckets import Upload
from milepost.engines.buckets.reading import BucketDisk
from milepost.engines.checkpoints.parts import GENERATIONS
from milepost.engines.checkpoints.proven import Form
from milepost.engines.disks import Sink
from milepost.transitions.errors import Corrupt, NewerVersion
from milepost.transitions.values import SaveId

METADATA = ".metadata"
FORMAT = "milepost.revoked.v1"


@frozen(kw_only=True)
class Revoked:
    """This save is never published."""

    save: SaveId


_FORM = Form(content=Revoked, tag=FORMAT, called="a tombstone")


def encode(save: SaveId) -> bytes:
    """The bytes of the tombstone of this save."""
    return _FORM.encode(Revoked(save=save))


def revoked(data: bytes, *, where: str) -> SaveId | None:
    """The save that these bytes revoke; None where they are no tombstone, `NewerVersion` for that of a later one."""
    try:
        return _FORM.decode(data, where=where).save
    except NewerVersion:
        raise
    except Corrupt:
        return None


def path_of(save: SaveId, name: str) -> str:
    """Where in the checkpoint the payload file lies that is called so."""
    above, _, last = name.rpartition("/")
    if not above:
        return f"{GENERATIONS}/{save}/{name}"
    assert last == METADATA or last.startswith(f"{save}__"), f"{name} would have the same key in another attempt"
    return name


def save_of(path: str) -> SaveId | None:
    """The save in the name of a payload file, by its path in the checkpoint; None where it has none."""
    inner = path.removeprefix(f"{GENERATIONS}/")
    text = inner.partition("/")[0] if inner != path else path.rpartition("/")[2].partition("__")[0]
    with suppress(ValueError):
        return SaveId.parse(text)
    return None


@frozen
class UploadDisk(BucketDisk):
    """A bucket as the disk on which one image of about `size_hint` bytes is written; nothing else is."""

    size_hint: int

    def create(self, path: str, *, bulk: bool = False) -> Sink:
        return _UploadSink(self._bucket.upload(path, size_hint=self.size_hint))


@frozen
class _UploadSink:
    """An upload as a `Sink`: the sync commits it, and who leaves without one aborts it."""

    _upload: Upload

    def write(self, data: Buffer) -> int:
        return self._upload.write(data)

    def sync(self) -> None:
        self._upload.commit()

    def close(self) -> None:
        """Nothing is held behind the commit."""

    def __enter__(self) -> _UploadSink:
        return self

    def __exit__(self, kind: object, value: BaseException | None, trace: object) -> None:
        self._upload.__exit__(None if value is None else type(value), value, None)
