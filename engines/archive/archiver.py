"""What a training run archives with: one store, tried once, and the published directories of one run.

1. The store is tried before the first byte is sent, not at the start of the run: an archive is not what a start may
   fail for, and the reason of a refusal is recorded as that of the archive.
2. Progress goes to the log, at most every few seconds.
"""

from __future__ import annotations

import logging
from pathlib import Path

from attrs import define, field

from milepost.engines.ambient import Ambient
from milepost.engines.archive.publisher import Archived, publish
from milepost.engines.archive.streaming import Progress
from milepost.engines.buckets.probe import Promises, probe
from milepost.engines.buckets.remote import OpenRemote
from milepost.engines.disks import Disk

log = logging.getLogger("milepost")

_TELL_EVERY_S = 5.0


@define(kw_only=True)
class Archiver:
    """Archives the `checkpoints` and `artifacts` of one run, two trees on `disk`.

    `destination` is the `s3://` address below which checkpoints go; artifacts go beside it.
    `credentials` is the path of their file (None: the client's own chain). Used from one thread at a time.
    """

    disk: Disk
    checkpoints: str
    artifacts: str
    destination: str
    credentials: Path | None
    ambient: Ambient
    remotes: OpenRemote
    _promises: dict[str, Promises] = field(factory=dict)
    _told_s: float = float("-inf")

    def archive(self, path: str, *, destination: str) -> Archived:
        """Archive the published directory `path`; safe to call again after any failure. Raises as `publish` does."""
        remote = self.remotes(destination, self.credentials)
        if destination not in self._promises:
            self._promises[destination] = probe(remote.bucket, remote.start, ambient=self.ambient)
        return publish(
            self.disk, path, remote, ambient=self.ambient, promises=self._promises[destination], told=self._tell
        )

    def _tell(self, progress: Progress) -> None:
        now_s = self.ambient.monotonic_s()
        if now_s - self._told_s < _TELL_EVERY_S:
            return
        self._told_s = now_s
        log.info(
            "archive: %s %s, %.1f of %.1f MiB, %.1f MiB/s",
            progress.doing,
            progress.path,
            progress.done / 2**20,
            progress.total / 2**20,
            progress.bytes_per_s / 2**20,
        )
