"""Make the golden run of a version: `python spec/golden/make.py 0.3`. See README.md."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import orjson

sys.path.insert(0, str(Path(__file__).parents[2]))

from milepost.engines.disks.local import LocalDisk
from milepost.engines.shapes import shape_of
from milepost.engines.slots import SteppedSlot
from milepost.journal import Config, Journal
from milepost.journal.forensics.reading import Place
from milepost.journal.forensics.verifying import verify
from milepost.journal.log.replay import fold
from milepost.transitions.machine import State
from tests.journal.runs import FakeWatch, StillAmbient, Training

OVERRIDES = ("checkpoint_format=dcp",)
ROLES = ("critic", "policy")
LOOP_STATE = {"critic_warmup_iterations": 3}


def make(target: Path) -> None:
    """Run the epochs in a temporary folder and put what is left at `target`."""
    ambient = StillAmbient()
    with tempfile.TemporaryDirectory() as folder:
        _warm_up(Path(folder), ambient)
        kept = _killed(Path(folder), ambient, target)
    segment = sorted((target / "run" / "journal").glob("*.jsonl"))[-1]
    segment.write_bytes(segment.read_bytes() + b'{"seq":')
    place = Place(disk=LocalDisk(target), path="run")
    folded = fold(place.log)
    expected = {
        "state": shape_of(State).write(folded.state),
        "seq": folded.head.seq,
        "sum": folded.head.sum,
        "verify": verify(place).exit_code,
        "overrides": OVERRIDES,
        "roles": ROLES,
        "loop_state": LOOP_STATE,
        "resumes_at": 4,
        "parameters": [value.hex() for value in kept],
    }
    (target / "expected.json").write_bytes(orjson.dumps(expected, option=orjson.OPT_INDENT_2) + b"\n")


def _warm_up(folder: Path, ambient: StillAmbient) -> None:
    """The critic trains alone for three iterations, one of which it throws away; boundaries at 2 and 4."""
    trainings = {role: Training() for role in ROLES}
    with _opened(folder, trainings, ambient) as journal:
        for step in journal.steps(until=4):
            trainings["critic"].step()
            journal.updated("critic", **({"skipped": 1} if step == 2 else {"applied": 1}))
            if step > LOOP_STATE["critic_warmup_iterations"]:
                trainings["policy"].step()
                journal.updated("policy", applied=1)


def _killed(folder: Path, ambient: StillAmbient, target: Path) -> tuple[float, ...]:
    """Resumes at 4; everything is copied while the boundary of 6 is being written, as a kill would leave it."""
    trainings, slot = {role: Training() for role in ROLES}, SteppedSlot()
    journal = _opened(folder, trainings, ambient, slot=slot)
    kept = tuple(value for training in trainings.values() for value in training.digest())
    steps = journal.steps(until=9)
    for _ in steps:
        for role, training in trainings.items():
            training.step()
            journal.updated(role, applied=1)
        if slot.busy:
            slot.step()
            break
    shutil.copytree(journal.run_dir, target / "run", ignore=shutil.ignore_patterns("lock", "fold-cache"))
    steps.close()
    journal.close()
    return kept


def _opened(
    folder: Path, trainings: dict[str, Training], ambient: StillAmbient, *, slot: SteppedSlot | None = None
) -> Journal:
    return Journal.open(
        Config.load({"run": {"output_root": str(folder)}, "rl": {"save_every": 2}}, OVERRIDES),
        roles={role: training.trainer() for role, training in trainings.items()},
        loop_state=LOOP_STATE,
        slot=slot or SteppedSlot(),
        watch=FakeWatch(),
        ambient=ambient,
        environ={},
    )


if __name__ == "__main__":
    version = Path(__file__).parent / sys.argv[1]
    if version.exists():
        sys.exit(f"{version} exists; a golden run is never rewritten")
    make(version)
