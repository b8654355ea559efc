"""One checkpoint between a disk and a store: by milepost, and by boto3's own transfer manager with sha256 beside it.

The peer gets the client that milepost makes, and its size of a part and number of lanes. It proves nothing: the pass
of sha256 over the same bytes stands for the digests that an archive declares. What it downloads is synced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from boto3.s3.transfer import TransferConfig  # type: ignore[import-untyped]

from benchmarks.machine import files_below, fill_cache, remove, sync_tree
from benchmarks.measuring import Sample, timed
from milepost.engines.ambient import SystemAmbient
from milepost.engines.archive.publisher import publish
from milepost.engines.archive.reader import fetch
from milepost.engines.archive.streaming import BLOCK_BYTES
from milepost.engines.archive.streaming import LANES as READ_LANES
from milepost.engines.buckets.boto import BotoWire
from milepost.engines.buckets.clients import connect, read_credentials
from milepost.engines.buckets.probe import Promises
from milepost.engines.buckets.remote import Remote, open_remote
from milepost.engines.buckets.uploading import LANES, PART_BYTES
from milepost.engines.checkpoints.released import RECEIPT
from milepost.engines.disks.local import LocalDisk

_BLOCK = 8 << 20
_KEPT, _SENT, _PEER = "kept", "sent", "peer"
AMBIENT = SystemAmbient()


class Transfers:
    """A store and a checkpoint. `promises` is what a probe of the store said: a run probes once, not at each save.

    What is downloaded is sent once at first, unless `sends` says that it lies there.
    """

    def __init__(
        self,
        *,
        bucket: str,
        credentials: Path,
        checkpoint: Path,
        scratch: Path,
        promises: Promises,
        sends: bool = True,
    ) -> None:
        self._bucket = bucket
        self._credentials = credentials
        self._client: Any = connect(read_credentials(credentials)).plain
        alike = connect(read_credentials(credentials))
        BotoWire(alike, name=bucket, prefix="")  # which chooses how this client signs parts
        self._alike: Any = alike.plain
        self._checkpoint = checkpoint
        self._disk = LocalDisk(checkpoint.parent)
        self._target = scratch / "fetched"
        self._promises = promises
        self._files = [path for path in files_below(checkpoint) if path.name != RECEIPT]
        self.size = sum(path.stat().st_size for path in self._files)
        self._into = self.remote(_SENT)  # a run makes its clients once
        self._archive = self.remote(f"{_KEPT}/{checkpoint.name}")
        if sends:
            self._publish(self.remote(_KEPT))

    def remote(self, prefix: str) -> Remote:
        return open_remote(f"s3://{self._bucket}/{prefix}", credentials=self._credentials, ambient=AMBIENT)

    def _publish(self, into: Remote) -> None:
        (self._checkpoint / RECEIPT).unlink(missing_ok=True)
        publish(self._disk, self._checkpoint.name, into, ambient=AMBIENT, promises=self._promises)

    def before_upload(self) -> None:
        self.clear()
        fill_cache(self._checkpoint)

    def clear(self) -> None:
        """Remove what a case sent or fetched."""
        remove(self._target)
        for prefix in (_SENT, _PEER):
            listed = self._client.list_objects_v2(Bucket=self._bucket, Prefix=f"{prefix}/").get("Contents", ())
            for item in listed:
                self._client.delete_object(Bucket=self._bucket, Key=item["Key"])

    def upload(self) -> Sample:
        return self._rated("upload", lambda: self._publish(self._into))

    def peer_upload(self, *, alike: bool = False) -> Sample:
        """By the client as it is made, or by one that also signs parts as milepost does."""
        client = self._alike if alike else self._client
        config = TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=LANES)

        def run() -> None:
            for path in self._files:
                _sha256(path)
                client.upload_file(str(path), self._bucket, f"{_PEER}/{self._name(path)}", Config=config)

        return self._rated("upload", run)

    def download(self) -> Sample:
        self._target.mkdir()
        disk = LocalDisk(self._target)
        return self._rated("download", lambda: fetch(self._archive, disk, self._checkpoint.name, ambient=AMBIENT))

    def peer_download(self) -> Sample:
        config = TransferConfig(
            multipart_threshold=BLOCK_BYTES, multipart_chunksize=BLOCK_BYTES, max_concurrency=READ_LANES
        )

        def run() -> None:
            for path in self._files:
                name = self._name(path)
                here = self._target / name
                here.parent.mkdir(parents=True, exist_ok=True)
                self._client.download_file(self._bucket, f"{_KEPT}/{name}", str(here), Config=config)
                _sha256(here)
            sync_tree(self._target)

        return self._rated("download", run)

    def _name(self, path: Path) -> str:
        return f"{self._checkpoint.name}/{path.relative_to(self._checkpoint)}"

    def _rated(self, doing: str, run: Callable[[], object]) -> Sample:
        took_s, _ = timed(run)
        return {f"{doing}_s": took_s, f"{doing}_bytes_per_s": self.size / took_s}


def stream(remote: Remote, size: int) -> None:
    """One object of this size, written as a rank of a direct primary writes its shard."""
    block = memoryview(bytes(_BLOCK))
    with remote.bucket.upload(remote.key("shard"), size_hint=size, digest="blake3") as upload:
        for at in range(0, size, _BLOCK):
            upload.write(block[: min(_BLOCK, size - at)])
        upload.commit()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
