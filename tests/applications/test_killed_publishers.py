"""Real processes that publish and are killed: what they leave is a checkpoint or none, and the next one goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from milepost.engines.applications import MANIFEST, CheckpointManifest
from milepost.engines.applications.files import TEMPORARY
from milepost.transitions.errors import NotACheckpoint, Refused

NAMES = ("model.pt", "optim.pt")

PUBLISHER = """
import itertools, sys
from pathlib import Path
from milepost.engines.applications import CheckpointManifest
root = Path(sys.argv[1])
for step in itertools.count():
    directory = root / f"step-{step}"
    directory.mkdir()
    for name in ("model.pt", "optim.pt"):
        (directory / name).write_bytes(b"%d" % step * 1000)
    CheckpointManifest.publish(directory, artifacts=("model.pt", "optim.pt"), metadata={"step": step})
    print(step, flush=True)
"""


def killed_after(root: Path, published: int) -> int:
    """Publish until this many were told of and then a little further; the last step that was told of."""
    root.mkdir()
    with subprocess.Popen([sys.executable, "-c", PUBLISHER, str(root)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(published):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        told = process.stdout.read().split()
    return max([published - 1, *map(int, told)])


@pytest.mark.kills
def test_a_killed_publisher_leaves_a_checkpoint_or_none(tmp_path: Path) -> None:
    for attempt in range(8):
        root = tmp_path / str(attempt)
        told = killed_after(root, published=3 + attempt)
        for directory in root.iterdir():
            step = int(directory.name.partition("-")[2])
            try:
                loaded = CheckpointManifest.load(directory, artifacts=NAMES)
            except NotACheckpoint:
                assert step > told
            else:
                assert loaded.metadata == {"step": step}
            if not all((directory / name).exists() for name in NAMES):
                continue  # killed while it saved
            unsettled = any(path.name.startswith(TEMPORARY) for path in directory.iterdir())
            if (directory / MANIFEST).exists() and not unsettled:
                with pytest.raises(Refused, match="published once"):
                    CheckpointManifest.publish(directory, artifacts=NAMES, metadata={"step": step})
            else:
                CheckpointManifest.publish(directory, artifacts=NAMES, metadata={"step": step})
            assert sorted(path.name for path in directory.iterdir()) == sorted((*NAMES, MANIFEST))
