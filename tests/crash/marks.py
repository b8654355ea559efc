"""Rare paths, counted where they were taken; a test at the end of the folder fails for one that never was."""

from __future__ import annotations

import errno
from collections import Counter
from typing import cast

import orjson

from milepost.engines.checkpoints.released import RELEASED
from milepost.engines.simulated import Operation, SimulatedDisk
from milepost.transitions.values import SaveId

RARE = (
    "a published save rolled forward",
    "an interrupted save abandoned",
    "live staging revoked",
    "debris swept",
    "a torn tail set aside",
    "a half-born segment",
    "an earlier epoch's pointer temporary removed",
    "a second name of what is published left alone",
    "a crash during recovery",
    "a crash during the recovery from a crash during recovery",
    "a conflict at publish",
    "a save given up for want of space",
    "a writer poisoned by EIO",
    "an overtaken writer fenced",
    "an overtaken writer without its staging",
    "the journal rotated",
    "a live run found busy",
    "a termination covered",
    "a termination with a validation due",
    "a published artifact rolled forward",
    "a start kept out by a newer artifact",
    "an artifact standing in for an emergency",
    "a pending evaluation done by the next start",
    "a publication finished by the next start",
    "a validation that failed",
    "a prune finished by the next start",
    "a prune that failed",
    "a release marker met again",
    "a failure of another rank",
    "a disk of another rank that failed",
    "a rank lost inside its write",
    "a stop that another rank was told of",
    "a role lost beside the loop",
    "a role that failed, and the boundary after it",
    "a snapshot released before it was written",
    "roles of another run refused",
    "a boundary rolled forward",
    "a boundary abandoned",
    "a directory that a release emptied removed by the next start",
)

MET: Counter[str] = Counter()


def hit(name: str) -> None:
    """Count a rare path."""
    assert name in RARE, name
    MET[name] += 1


def of_recovery(disk: SimulatedDisk, attempt: str, segment: int) -> None:
    """Count what the opening that wrote this segment had to do."""
    for line in cast(bytes, disk.tree()[f"{attempt}/journal/{segment:08d}.jsonl"]).splitlines():
        for record in orjson.loads(line)["records"]:
            _of_record(record)
    for operation in disk.trace:
        _of_operation(operation)


def of_boundary(joined: SaveId | None, sealed: SaveId | None) -> None:
    """Count what a recovery made of the boundary that a writer before it had open."""
    if joined is not None:
        hit("a boundary rolled forward" if joined == sealed else "a boundary abandoned")


def _of_record(record: dict[str, object]) -> None:
    if (rare := _RECORDS.get(cast(str, record["kind"]))) is not None:
        hit(rare)
    elif record["kind"] == "debris-cleared" and record["names"]:
        hit("debris swept")
    elif record["kind"] == "segment-opened":
        for closed in cast("list[dict[str, int]]", record["closes"]):
            if closed["length"] and closed["left"]:
                hit("a torn tail set aside")
            if not closed["length"]:
                hit("a half-born segment")


_RECORDS = {
    "save-sealed": "a published save rolled forward",
    "artifact-sealed": "a published artifact rolled forward",
    "save-abandoned": "an interrupted save abandoned",
    "pruned": "a prune finished by the next start",
}
"""What an opening records only where a writer before it was interrupted."""


def _of_operation(operation: Operation) -> None:
    name = operation.path.rpartition("/")[2]
    if operation.error == errno.EEXIST and operation.verb == "link" and name == RELEASED:
        hit("a release marker met again")
    elif operation.error is not None:
        return
    elif operation.verb == "rename" and name.startswith("revoked-"):
        hit("live staging revoked")
    elif operation.verb == "rmdir" and "/iter_" in operation.path:
        hit("a directory that a release emptied removed by the next start")
    elif operation.verb == "unlink" and name.startswith("latest_checkpoint.txt."):
        hit("an earlier epoch's pointer temporary removed")
