"""Make the golden run of a version: `python spec/golden/make.py 0.1`. See README.md."""

from __future__ import annotations

import errno
import sys
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


def make(target: Path) -> None:
    """Run the three epochs on a simulated disk and put what is left at `target`."""
    disk, ambient = SimulatedDisk(), StillAmbient()
    _first_epoch(disk, ambient)
    _second_epoch(disk, ambient)
    kept = _third_epoch(disk, ambient)
    run_ts = disk.names(RUN)[-1]
    _export(disk, f"{RUN}/{run_ts}", target / "run")
    segment = sorted((target / "run" / "journal").glob("*.jsonl"))[-1]
    segment.write_bytes(segment.read_bytes() + b'{"seq":')
    place = Place(disk=LocalDisk(target), path="run")
    folded = fold(place.log)
    expected = {
        "state": shape_of(State).write(folded.state),
        "seq": folded.head.seq,
        "sum": folded.head.sum,
        "verify": verify(place).exit_code,
        "resumes_at": 5,
        "parameters": [value.hex() for value in kept],
    }
    (target / "expected.json").write_bytes(orjson.dumps(expected, option=orjson.OPT_INDENT_2) + b"\n")


def _first_epoch(disk: SimulatedDisk, ambient: StillAmbient) -> None:
    """A skipped update; the save of step 2 meets a full disk and is given up; step 3 is saved at the end."""
    attempt = f"{RUN}/20260102030405"
    disk.hardware.faults = fault_on(
        "write", Fault(error=errno.ENOSPC), path=f"{attempt}/checkpoints/.staging/2.1.1/optim.pt"
    )
    try:
        train(
            config("golden"),
            until=3,
            disk=disk.process("first"),
            ambient=ambient,
            each=lambda journal, step: journal.skip("nonfinite_loss") if step == 1 else None,
        )
    except Unavailable as error:
        print(f"as planned: {error}")


def _second_epoch(disk: SimulatedDisk, ambient: StillAmbient) -> None:
    """Resumes at step 3; a termination at step 5 makes the emergency save."""
    watch = FakeWatch()

    def terminate(journal: Journal, step: int) -> None:
        if step == 5:
            watch.seen = Termination(reason="signal SIGTERM", detail="planned")

    train(config("golden"), until=9, disk=disk.process("second"), ambient=ambient, watch=watch, each=terminate)


def _third_epoch(disk: SimulatedDisk, ambient: StillAmbient) -> tuple[float, ...]:
    """Resumes at step 5 and is killed while the save of step 6 is being written; what was restored."""
    process, slot, training = disk.process("third"), SteppedSlot(), Training()
    journal = Journal.open(
        config("golden"),
        trainer=training.trainer(),
        disk=process,
        slot=slot,
        watch=FakeWatch(),
        ambient=ambient,
        environ={},
    )
    kept = training.digest()
    try:
        for step in journal.steps(until=9):
            training.step()
            if step == 7:
                process.kill_at = len(disk.trace) + 12
                while slot.step():
                    pass
    except Killed as killed:
        print(f"as planned: {killed}")
    return kept


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
