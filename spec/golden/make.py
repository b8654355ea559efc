"""Make the golden run of a version: `python spec/golden/make.py 0.4`. See README.md."""

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
from milepost.journal import Config, Journal, Unavailable
from milepost.journal.forensics.reading import Place
from milepost.journal.forensics.verifying import verify
from milepost.journal.log.replay import fold
from milepost.transitions.machine import State
from tests.journal.runs import FakeWatch, StillAmbient, Training, config, train
from tests.journal.stores import Stores

OVERRIDES = ("validation.every_steps=4", "validation.at_end=false")
"""The identity of the validation: a resume needs the same."""
UPLOAD = ("upload.enabled=true", "upload.bucket=archive", "save_async=false")


def make(target: Path) -> None:
    """Run the epochs in a temporary folder and put what is left at `target`."""
    ambient, stores = StillAmbient(), Stores()
    with tempfile.TemporaryDirectory() as folder:
        settings = config(Path(folder), *OVERRIDES, *UPLOAD)
        _unreachable(settings, ambient, stores)
        kept = _killed(settings, ambient, stores, target)
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
        "resumes_at": 8,
        "parameters": [value.hex() for value in kept],
    }
    (target / "expected.json").write_bytes(orjson.dumps(expected, option=orjson.OPT_INDENT_2) + b"\n")


def _unreachable(settings: Config, ambient: StillAmbient, stores: Stores) -> None:
    """Nothing answers: the archive of step 2 fails, and step 4, evaluated, is not published."""
    stores.down = True
    try:
        train(settings, until=6, ambient=ambient, remotes=stores, validate=_fit)
    except Unavailable as error:
        print(f"as planned: {error}")
    stores.down = False


def _killed(settings: Config, ambient: StillAmbient, stores: Stores, target: Path) -> tuple[float, ...]:
    """The start publishes step 4; the archive of step 6 succeeds, and 2 is archived behind it.

    The next start resumes at 6 and publishes step 8 as pending; everything is copied while it is evaluated, as a kill
    would leave it. What step 8 holds.
    """
    train(settings, until=6, ambient=ambient, remotes=stores, validate=_fit)
    training, slot = Training(), SteppedSlot()
    journal = Journal.open(
        settings,
        trainer=training.trainer(),
        slot=slot,
        watch=FakeWatch(),
        ambient=ambient,
        remotes=stores,
        environ={},
    )

    def copied(step: int) -> None:
        """The evaluation of step 8, which never returns."""
        shutil.copytree(journal.run_dir, target / "run", ignore=shutil.ignore_patterns("lock", "fold-cache"))
        raise InterruptedError

    try:
        for _ in journal.steps(until=8, validate=copied):
            training.step()
    except InterruptedError:
        pass
    journal.close()
    return training.digest()


def _fit(step: int) -> object:
    return step


if __name__ == "__main__":
    version = Path(__file__).parent / sys.argv[1]
    if version.exists():
        sys.exit(f"{version} exists; a golden run is never rewritten")
    make(version)
