"""Rare paths, counted where they were taken; a test at the end of the folder fails for one that never was."""

from __future__ import annotations

from collections import Counter
from typing import cast

import orjson

from milepost.engines.simulated import Operation
from tests.crash.world import Run

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
)

MET: Counter[str] = Counter()


def hit(name: str) -> None:
    """Count a rare path."""
    assert name in RARE, name
    MET[name] += 1


def of_recovery(run: Run) -> None:
    """Count what the opening of this run had to do."""
    segment = f"{run.attempt}/journal/{run.journal.state.run.segment:08d}.jsonl"
    for line in cast(bytes, run.disk.tree()[segment]).splitlines():
        for record in orjson.loads(line)["records"]:
            _of_record(record)
    for operation in run.disk.trace:
        _of_operation(operation)


def _of_record(record: dict[str, object]) -> None:
    if record["kind"] == "save-sealed":
        hit("a published save rolled forward")
    elif record["kind"] == "save-abandoned":
        hit("an interrupted save abandoned")
    elif record["kind"] == "segment-opened":
        for closed in cast("list[dict[str, int]]", record["closes"]):
            if closed["length"] and closed["left"]:
                hit("a torn tail set aside")
            if not closed["length"]:
                hit("a half-born segment")


def _of_operation(operation: Operation) -> None:
    if operation.error is not None:
        return
    name = operation.path.rpartition("/")[2]
    if operation.verb == "rename" and name.startswith("revoked-"):
        hit("live staging revoked")
    elif operation.verb == "unlink" and "/.staging/" in operation.path:
        hit("debris swept")
    elif operation.verb == "unlink" and name.startswith("latest_checkpoint.txt."):
        hit("an earlier epoch's pointer temporary removed")
