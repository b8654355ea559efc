"""Runs in a bucket, made of runs on a disk: the same files, and the same journal in slots instead of segments."""

from __future__ import annotations

from pathlib import Path

from milepost.engines.buckets import Bucket, Committed
from milepost.engines.buckets.remote import Destination, OpenRemote, Remote, parse_address
from milepost.engines.logs.batches import NO_SUM, Batch, Place, pack

LINES = 3
"""Lines in a slot, so that segments take several and end within one."""


def put(bucket: Bucket, key: str, data: bytes) -> None:
    """An object, whatever was there."""
    bucket.delete(key)
    assert isinstance(bucket.create(key, data, deadline_s=10.0), Committed)


def store_run(run: Path, bucket: Bucket, base: str, *, root: str = "checkpoints") -> None:
    """The run at `base`, with its checkpoints below `root` of it."""
    store_trees(run, bucket, base, root=root)
    before: Batch | None = None
    for number, segment in enumerate(sorted((run / "journal").glob("*.jsonl")), start=1):
        lines = segment.read_bytes().splitlines(keepends=True)
        first, offset = before.place.slot + 1 if before else 1, 0
        for at in range(0, len(lines), LINES):
            slot, prev = (before.place.slot + 1, before.sum) if before else (1, NO_SUM)
            place = Place(slot=slot, segment=number, first=first, offset=offset, writer=f"w{number}", prev=prev)
            before = pack(place, lines[at : at + LINES])
            answer = bucket.create(f"{base}/journal/{slot:020d}.json", before.raw, deadline_s=10.0)
            assert isinstance(answer, Committed)
            offset = before.end


def store_trees(run: Path, bucket: Bucket, base: str, *, root: str = "checkpoints") -> None:
    """Checkpoints and artifacts without a journal, as they are copied."""
    for tree, name in (("checkpoints", root), ("checkpoint_artifacts", "checkpoint_artifacts")):
        for file in sorted((run / tree).rglob("*")):
            if file.is_file():
                put(bucket, f"{base}/{name}/{file.relative_to(run / tree)}", file.read_bytes())


def opener_of(bucket: Bucket) -> OpenRemote:
    """What opens every address in this bucket, whatever the credentials."""

    def opened(uri: str, credentials: Path | None) -> Remote:
        name, prefix = parse_address(uri)
        return Remote(bucket=bucket, destination=Destination(endpoint="store:1", bucket=name, prefix=prefix))

    return opened
