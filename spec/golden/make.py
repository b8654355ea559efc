"""Make the golden run of a version: `python spec/golden/make.py 0.5`. See README.md."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).parents[2]))

from milepost.engines.disks.local import LocalDisk
from milepost.engines.shapes import shape_of
from milepost.journal import Journal, SamplingBoundary
from milepost.journal.forensics.reading import Place, locate
from milepost.journal.forensics.verifying import verify
from milepost.journal.log.replay import fold
from milepost.transitions.machine import State
from tests.direct_runs import stores as direct
from tests.sampling.runs import at, opened, settings

START = SamplingBoundary(1, 100, {"offset": 0})


def make(target: Path) -> None:
    """Run the epochs in a temporary folder and put what is left at `target`."""
    with tempfile.TemporaryDirectory() as folder:
        kept = _sampled(Path(folder) / "local", target)
        bucket = _direct(Path(folder) / "direct", target)
    segment = sorted((target / "run" / "journal").glob("*.jsonl"))[-1]
    segment.write_bytes(segment.read_bytes() + b'{"seq":')
    place = Place(disk=LocalDisk(target), path="run")
    expected = _folded(place) | {
        "resumes_at": 4,
        "parameters": kept,
        "sampling": {"epoch": 2, "remaining_completions": 95, "sampler_state": {"offset": 5}},
        "bucket": bucket,
    }
    (target / "expected.json").write_bytes(orjson.dumps(expected, option=orjson.OPT_INDENT_2) + b"\n")


def _folded(place: Place) -> dict[str, Any]:
    folded = fold(place.log)
    return {
        "state": shape_of(State).write(folded.state),
        "seq": folded.head.seq,
        "sum": folded.head.sum,
        "verify": verify(place).exit_code,
    }


def _sampled(root: Path, target: Path) -> list[str]:
    """Two epochs that sample, killed in step 5: settled out of order, in part, and behind the last save.

    The checkpoint of step 4 carries the boundary with 95 completions left. What it holds of the model.
    """
    with opened(settings(root)) as (journal, training):
        ledger = journal.sampling
        ledger.begin(START)
        first, second = ledger.issue(at(98), 2), ledger.issue(at(97))
        ledger.settle(second)
        for step in journal.steps(until=2):
            training.step()
            ledger.settle(first, step - 1)
        ledger.issue(at(96))  # comes to nothing: the next epoch generates it again
    with opened(settings(root)) as (journal, training):
        ledger = journal.sampling
        again, later = ledger.issue(at(95, epoch=2), 2), ledger.issue(at(94, epoch=2))
        for step in journal.steps(until=5):
            training.step()
            if step < 5:
                ledger.settle(again, step - 3)
            if step == 4:
                kept = [value.hex() for value in training.digest()]
            if step == 5:
                ledger.settle(later)
                _copied(journal, target)
    return kept


def _copied(journal: Journal, target: Path) -> None:
    """What a kill would leave now."""
    for _ in journal.history():  # which writes what is held back
        pass
    shutil.copytree(journal.run_dir, target / "run", ignore=shutil.ignore_patterns("lock", "fold-cache"))


def _direct(root: Path, target: Path) -> dict[str, Any]:
    """Two starts of a run in a bucket, and every object that they left."""
    cloud = direct.Cloud()
    for until in (2, 4):
        training, _ = direct.train(direct.config(root), until=until, remotes=cloud.remotes)
    for key, data in cloud.tree().items():
        path = target / "bucket" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    found = _folded(locate(direct.RUN, opener=cloud.remotes))
    return found | {"resumes_at": 4, "parameters": [value.hex() for value in training.digest()]}


if __name__ == "__main__":
    version = Path(__file__).parent / sys.argv[1]
    if version.exists():
        sys.exit(f"{version} exists; a golden run is never rewritten")
    make(version)
