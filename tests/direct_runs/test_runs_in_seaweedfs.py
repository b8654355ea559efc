"""Runs whose primary is a store that runs: one process that is killed inside a save, and the ranks of a world."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from milepost.engines.ambient import SystemAmbient
from milepost.engines.buckets import Bucket
from milepost.engines.buckets.opening import open_bucket
from milepost.journal import Config, Journal
from tests.buckets.servers import SECRET, SeaweedFS
from tests.direct_runs.stores import plain
from tests.ranks.training import STEPS, State, Training, require_equal, settings
from tests.ranks.worlds import run

pytestmark = pytest.mark.services


@pytest.fixture
def bucket(seaweedfs: SeaweedFS) -> Bucket:
    return open_bucket(seaweedfs.bucket, credentials=seaweedfs.credentials(), ambient=SystemAmbient())


@pytest.fixture
def base(request: pytest.FixtureRequest) -> str:
    return f"direct-runs/{''.join(c if c.isalnum() else '-' for c in request.node.name)}"


def local_copies(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.startswith(("iter_", "latest_")) or "distcp" in path.name]


def keys(bucket: Bucket, below: str) -> list[str]:
    found: list[str] = []
    while page := bucket.keys(f"{below}/", after=found[-1] if found else ""):
        found.extend(page)
    return [key.removeprefix(f"{below}/") for key in found]


# --- one process ------------------------------------------------------------------------------------------


def program(root: Path, store: SeaweedFS, base: str, *, until: int, dying: str = "") -> Any:
    """What the run became; None where it died."""
    arguments = [str(root), str(store.credentials()), store.bucket, f"{base}/checkpoints", str(until), dying]
    done = subprocess.run(
        [sys.executable, "-m", "tests.direct_runs.program", *filter(None, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert SECRET not in done.stdout + done.stderr
    if dying:
        assert done.returncode == -9, done.stderr
        return None
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "dying",
    [
        "iter_000000004/model/4.1.2__0_0.distcp",
        "iter_000000004/optim/.metadata",
        "iter_000000004/.posttrain-manifest.json",
        "checkpoints/latest_checkpoint.txt",
    ],
)
def test_a_run_that_is_killed_inside_a_save_is_continued(
    seaweedfs: SeaweedFS, bucket: Bucket, base: str, tmp_path: Path, dying: str
) -> None:
    program(tmp_path, seaweedfs, base, until=6, dying=dying)
    ended = program(tmp_path, seaweedfs, base, until=6)
    assert ended == {
        "from": 2,
        "digest": list(plain(6).digest()),
        "run_dir": f"s3://{seaweedfs.bucket}/{base}",
    }
    assert bucket.read(f"{base}/checkpoints/latest_checkpoint.txt", limit=100)[0] == b"iter_000000006\n"
    assert bucket.uploads(f"{base}/") == ()
    assert local_copies(tmp_path) == []


# --- ranks ------------------------------------------------------------------------------------------------


def direct(root: Path, credentials: str, bucket: str, base: str, **knobs: Any) -> Config:
    store = {
        "backend": "object_store",
        "bucket": bucket,
        "credentials": credentials,
        "prefix": f"{base}/checkpoints",
    }
    return settings(root, form="dcp", checkpoint_store=store, keep_optim_last=None, **knobs)


def trained(config: Config, until: int, seed: int) -> tuple[State, int, str]:
    """On each rank: its state after `until`, the step that it went on from, and the run's directory."""
    training = Training.begin(seed=seed)
    with Journal.open(config, trainer=training.trainer()) as journal:
        for _ in journal.steps(until=until):
            training.step()
    return training.state(), journal.resumption.step, journal.run_dir


def restored(config: Config) -> tuple[State, int, int]:
    training = Training.begin(seed=8)
    with Journal.open(config, trainer=training.trainer()) as journal:
        return training.state(), journal.resumption.step, dist.get_world_size()


def alone(until: int) -> State:
    training = Training.begin()
    for _ in range(until):
        training.step()
    return training.state()


def test_two_ranks_write_their_shards_and_continue_on_two_and_on_one(
    seaweedfs: SeaweedFS, bucket: Bucket, base: str, tmp_path: Path
) -> None:
    config = direct(tmp_path, str(seaweedfs.credentials()), seaweedfs.bucket, base)
    first = run(trained, 2, config, 4, 7)
    assert [(step, where) for _, step, where in first] == [(0, f"s3://{seaweedfs.bucket}/{base}")] * 2
    shards = [key for key in keys(bucket, f"{base}/checkpoints/iter_000000004") if key.endswith(".distcp")]
    assert shards == [f"{tree}/4.1.2__{rank}_0.distcp" for tree in ("model", "optim") for rank in (0, 1)]
    (one,) = run(restored, 1, config)
    assert one[1:] == (4, 1)
    require_equal(one[0].full, first[0][0].full)
    expected, continued = run(alone, 2, STEPS), run(trained, 2, config, STEPS, 8)
    for uninterrupted, (state, step, _) in zip(expected, continued, strict=True):
        assert step == 4
        require_equal(state.full, uninterrupted.full)
        assert state.own == uninterrupted.own
    assert local_copies(tmp_path) == []
    assert keys(bucket, f"{base}/checkpoints")[-1] == "latest_checkpoint.txt"


def test_ranks_resume_a_copied_tree_in_place_by_its_address(
    seaweedfs: SeaweedFS, bucket: Bucket, base: str, tmp_path: Path
) -> None:
    credentials = str(seaweedfs.credentials())
    first = run(trained, 2, direct(tmp_path / "a", credentials, seaweedfs.bucket, base), 2, 7)
    for key in keys(bucket, f"{base}/checkpoints/iter_000000002"):
        data, _ = bucket.read(f"{base}/checkpoints/iter_000000002/{key}", limit=1 << 20)
        bucket.create(f"{base}-copy/iter_000000002/{key}", data, deadline_s=10.0)
    address = f"s3://{seaweedfs.bucket}/{base}-copy/iter_000000002"
    there = direct(tmp_path / "b", credentials, seaweedfs.bucket, f"{base}-next", resume=address)
    for (state, step, size), (before, _, _) in zip(run(restored, 2, there), first, strict=True):
        assert (step, size) == (2, 2)
        require_equal(state.full, before.full)
        assert state.own == before.own
