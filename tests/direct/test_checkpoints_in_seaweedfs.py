"""Checkpoints in a store that runs: written in one pass, read in place, and by plain torch once they lie here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.distributed import checkpoint as dcp

from milepost.engines.ambient import SystemAmbient
from milepost.engines.buckets import Bucket
from milepost.engines.buckets.opening import open_bucket
from milepost.engines.buckets.reading import BucketDisk
from milepost.engines.checkpoints import GivenUp
from milepost.engines.checkpoints.direct import DirectCheckpoints
from milepost.engines.checkpoints.local import POINTER
from milepost.engines.checkpoints.parts import tree_of
from milepost.engines.formats import read_pt
from milepost.engines.formats.dcp import read_dcp
from milepost.transitions.errors import Fenced
from milepost.transitions.validation import Generation
from milepost.transitions.values import FULL, SaveId
from tests.buckets.servers import SeaweedFS
from tests.direct.places import Claims, saved, stored

pytestmark = pytest.mark.services

SAVE = SaveId(7, 1, 1)
LARGE = 40 << 20


@pytest.fixture
def bucket(seaweedfs: SeaweedFS) -> Bucket:
    return open_bucket(seaweedfs.bucket, credentials=seaweedfs.credentials(), ambient=SystemAmbient())


@pytest.fixture
def base(request: pytest.FixtureRequest) -> str:
    return f"direct/{request.node.name}"


def checkpoints_of(bucket: Bucket, base: str, claims: Claims) -> DirectCheckpoints:
    return DirectCheckpoints(
        bucket=bucket,
        root=f"{base}/checkpoints",
        artifacts=f"{base}/checkpoint_artifacts",
        fence=claims.claim(),
        crc32=True,
    )


def test_a_checkpoint_is_read_in_place_and_by_plain_torch(bucket: Bucket, base: str, tmp_path: Path) -> None:
    checkpoints = checkpoints_of(bucket, base, Claims())
    manifest = saved(checkpoints, SAVE, pending=True)
    for _ in range(2):
        checkpoints.mark(SAVE, Generation.PUBLICATION_PENDING)
        checkpoints.point(SAVE, epoch=1)
    (one,) = checkpoints.published()
    assert (one.problem, one.found and one.found.manifest) == ("", manifest)
    disk, here = BucketDisk(bucket), f"{base}/checkpoints/{SAVE.directory}"
    assert disk.read(f"{base}/checkpoints/{POINTER}", limit=100) == b"iter_000000007\n"
    within = {file.path.removeprefix("model/"): file for file in manifest.files if tree_of(file.path) == "model"}
    tree = read_dcp(disk, f"{here}/model", files=within, into=None, rank=0, world_size=1, verify=True)
    assert isinstance(tree, dict)
    assert torch.equal(tree["w"], torch.arange(4.0) + 1)
    with disk.open(f"{here}/.posttrain/generations/{SAVE}/trainer.pt", bulk=True) as source:
        assert read_pt(source, where="it") == {"s": 7}

    for file in manifest.files:
        path = tmp_path / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(disk.read(f"{here}/{file.path}", limit=1 << 20))
    state = {"w": torch.zeros(4)}
    dcp.load(state, checkpoint_id=str(tmp_path / "model"), no_dist=True)
    assert torch.equal(state["w"], torch.arange(4.0) + 1)
    assert torch.load(tmp_path / f".posttrain/generations/{SAVE}/data.pt", weights_only=True) == {"at": 1}


def test_a_large_file_goes_in_parts_and_has_its_digest(bucket: Bucket, base: str) -> None:
    from milepost.engines.formats import digest_of, stream

    checkpoints = checkpoints_of(bucket, base, Claims())
    weights = torch.arange(LARGE // 4, dtype=torch.int32)
    (image,) = stream({"trainer": {"w": weights}})
    file = checkpoints.put(SAVE, image)
    with BucketDisk(bucket).open(f"{base}/checkpoints/{SAVE.directory}/{file.path}") as source:
        assert (source.size, digest_of(source)) == (file.size, file.digest)
        tree = read_pt(source, digest=file.digest, where="it")
    assert isinstance(tree, dict)
    assert torch.equal(tree["w"], weights)


def test_a_revoked_save_stays_revoked_and_its_step_is_saved_by_the_next_writer(bucket: Bucket, base: str) -> None:
    claims = Claims()
    old = checkpoints_of(bucket, base, claims)
    late = stored(old, SAVE)
    new = checkpoints_of(bucket, base, claims)
    assert new.observe(SAVE, plan=FULL) is None
    assert new.published() == ()
    with pytest.raises((Fenced, GivenUp)):
        old.seal(late, pending=False)
    second = saved(new, SaveId(7, 2, 1))
    with pytest.raises((Fenced, GivenUp)):
        old.seal(late, pending=False)
    found = new.observe(second.save, plan=FULL)
    assert found is not None
    assert found.manifest == second
    assert [one.problem for one in new.published()] == [""]
    assert [name for name, _ in new.witnesses()] == [SAVE.directory]


def test_what_an_earlier_attempt_began_to_upload_is_aborted(bucket: Bucket, base: str) -> None:
    upload = bucket.upload(f"{base}/checkpoints/{SAVE.directory}/model/{SAVE}__0_0.distcp", size_hint=LARGE)
    upload.write(bytes(LARGE))
    assert len(bucket.uploads(f"{base}/")) == 1
    checkpoints_of(bucket, base, Claims()).stage(SaveId(7, 2, 1), size=1)
    assert bucket.uploads(f"{base}/") == ()
