"""Make the golden run of a version: `python spec/golden/make.py 0.2`. See README.md."""

from __future__ import annotations

import errno
import sys
import warnings
from pathlib import Path

import orjson

sys.path.insert(0, str(Path(__file__).parents[2]))

from milepost.engines.disks.local import LocalDisk
from milepost.engines.shapes import shape_of
from milepost.engines.simulated import Fault, Killed, SimulatedDisk, fault_on
from milepost.engines.slots import SteppedSlot
from milepost.engines.termination import Termination
from milepost.journal import Journal, Unavailable
from milepost.journal.forensics.reading import Place
from milepost.journal.forensics.verifying import verify
from milepost.journal.log.replay import fold
from milepost.transitions.machine import State
from tests.journal.runs import FakeWatch, StillAmbient, Training, config, train

RUN = "milepost/default/run"
ATTEMPT = f"{RUN}/20260102030405"
VALIDATION = ("validation.every_steps=4", "validation.at_end=false")
"""The identity of the validation: a resume needs the same."""


class Unfit(Exception):
    """What the evaluation of step 4 raises, once."""


def make(target: Path) -> None:
    """Run the epochs on a simulated disk and put what is left at `target`."""
    disk, ambient = SimulatedDisk(), StillAmbient()
    for epoch in (_given_up, _unfit, _told_to_stop, _pruned, _artifact):
        epoch(disk, ambient)
    kept = _killed(disk, ambient)
    _export(disk, ATTEMPT, target / "run")
    segment = sorted((target / "run" / "journal").glob("*.jsonl"))[-1]
    segment.write_bytes(segment.read_bytes() + b'{"seq":')
    place = Place(disk=LocalDisk(target), path="run")
    folded = fold(place.log)
    expected = {
        "state": shape_of(State).write(folded.state),
        "seq": folded.head.seq,
        "sum": folded.head.sum,
        "verify": verify(place).exit_code,
        "overrides": VALIDATION,
        "resumes_at": 9,
        "parameters": [value.hex() for value in kept],
    }
    (target / "expected.json").write_bytes(orjson.dumps(expected, option=orjson.OPT_INDENT_2) + b"\n")


def _given_up(disk: SimulatedDisk, ambient: StillAmbient) -> None:
    """A skipped update; the save of step 2 meets a full disk and is given up; step 3 is saved at the end."""
    disk.hardware.faults = fault_on(
        "write", Fault(error=errno.ENOSPC), path=f"{ATTEMPT}/checkpoints/.staging/2.1.1/optim.pt"
    )
    try:
        train(
            config("golden", *VALIDATION),
            until=3,
            disk=disk.process("given up"),
            ambient=ambient,
            each=lambda journal, step: journal.skip("nonfinite_loss") if step == 1 else None,
        )
    except Unavailable as error:
        print(f"as planned: {error}")


def _unfit(disk: SimulatedDisk, ambient: StillAmbient) -> None:
    """Resumes at step 3; step 4 is published as pending, and its evaluation fails."""

    def evaluate(step: int) -> None:
        raise Unfit(f"step {step}")

    try:
        train(config("golden", *VALIDATION), until=9, disk=disk.process("unfit"), ambient=ambient, validate=evaluate)
    except Unfit as error:
        print(f"as planned: {error}")


def _told_to_stop(disk: SimulatedDisk, ambient: StillAmbient) -> None:
    """Step 4 is evaluated and published; the prune of step 3 fails, and is done behind the emergency save."""
    disk.hardware.faults = fault_on(
        "unlink", Fault(error=errno.EIO), path=f"{ATTEMPT}/checkpoints/iter_000000003/optim.pt"
    )
    watch = FakeWatch()

    def terminate(journal: Journal, step: int) -> None:
        if step == 5:
            watch.seen = Termination(reason="signal SIGTERM", detail="planned")

    train(
        config("golden", *VALIDATION),
        until=9,
        disk=disk.process("told to stop"),
        ambient=ambient,
        watch=watch,
        each=terminate,
        validate=_fit,
    )


def _pruned(disk: SimulatedDisk, ambient: StillAmbient) -> None:
    """Resumes at step 5 and saves step 6; step 3 goes as a whole. The next start takes a step back and ends."""
    settings = config("golden", *VALIDATION, "keep_model_last=3")
    train(settings, until=6, disk=disk.process("pruned"), ambient=ambient, validate=_fit)
    with Journal.open(
        settings,
        trainer=Training().trainer(),
        disk=disk.process("taken back"),
        slot=SteppedSlot(),
        watch=FakeWatch(),
        ambient=ambient,
        environ={},
    ) as journal:
        next(journal.steps(until=7, validate=_fit))


def _artifact(disk: SimulatedDisk, ambient: StillAmbient) -> None:
    """Resumes at step 6; step 8 is saved as an artifact of the model, step 9 as a whole when the run is stopped."""
    settings = config("golden", *VALIDATION, "checkpoint_components=[model]")
    watch = FakeWatch()

    def terminate(journal: Journal, step: int) -> None:
        if step == 9:
            watch.seen = Termination(reason="sentinel", detail="planned")

    with warnings.catch_warnings(action="ignore"):  # the plan is partial on purpose
        train(
            settings,
            until=10,
            disk=disk.process("artifact"),
            ambient=ambient,
            watch=watch,
            each=terminate,
            validate=_fit,
        )


def _killed(disk: SimulatedDisk, ambient: StillAmbient) -> tuple[float, ...]:
    """Resumes at step 9 and is killed while the save of step 10 is being written; what was restored."""
    process, slot, training = disk.process("killed"), SteppedSlot(), Training()
    journal = Journal.open(
        config("golden", *VALIDATION),
        trainer=training.trainer(),
        disk=process,
        slot=slot,
        watch=FakeWatch(),
        ambient=ambient,
        environ={},
    )
    kept = training.digest()
    try:
        for step in journal.steps(until=13):
            training.step()
            if step == 11:
                process.kill_at = len(disk.trace) + 12
                while slot.step():
                    pass
    except Killed as killed:
        print(f"as planned: {killed}")
    return kept


def _fit(step: int) -> None:
    """An evaluation that passes."""


def _export(disk: SimulatedDisk, source: str, target: Path) -> None:
    target.mkdir(parents=True)
    for name in disk.names(source):
        stat = disk.stat(f"{source}/{name}")
        assert stat is not None
        if stat.kind == "dir":
            _export(disk, f"{source}/{name}", target / name)
        elif name not in ("lock", "fold-cache"):
            (target / name).write_bytes(disk.read(f"{source}/{name}", limit=1 << 20))


if __name__ == "__main__":
    version = Path(__file__).parent / sys.argv[1]
    if version.exists():
        sys.exit(f"{version} exists; a golden run is never rewritten")
    make(version)
