"""What a run in a bucket refuses before it changes anything: each says what is there and what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from milepost.engines.ambient import SystemAmbient
from milepost.engines.buckets.remote import Destination, OpenRemote, Remote, remotes
from milepost.engines.simulated.bucket import SimulatedBucket
from milepost.journal import Config, Corrupt, Journal, Misconfigured, NotResumable, Refused
from milepost.transitions.errors import MilepostError
from tests.direct_runs.stores import ROOT, RUN, Cloud, config, train
from tests.journal.runs import FakeWatch, Training
from tests.journal.runs import config as local
from tests.journal.runs import train as train_locally


def refused(settings: Config, kind: type[MilepostError], match: str, *, opener: OpenRemote) -> None:
    with pytest.raises(kind, match=match):
        train(settings, until=6, remotes=opener)


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    """Two checkpoints, of steps 2 and 4, below `tmp_path / "a"`."""
    cloud = Cloud()
    train(config(tmp_path / "a"), until=4, remotes=cloud.remotes)
    return cloud


def test_a_new_attempt_where_a_run_is(cloud: Cloud, tmp_path: Path) -> None:
    before = cloud.tree()
    for root in ("a", "b"):
        refused(
            config(tmp_path / root, "resume=off"), Refused, "another rl.checkpoint_store.prefix", opener=cloud.remotes
        )
    assert cloud.tree() == before


def test_a_new_attempt_where_only_objects_are(tmp_path: Path) -> None:
    cloud = Cloud()
    cloud.bucket().create(f"{ROOT}/iter_000000002/model/.metadata", b"native", deadline_s=0.0)
    refused(config(tmp_path, "resume=off"), Refused, "resume=off asks for a new attempt", opener=cloud.remotes)
    _, journal = train(config(tmp_path), until=1, remotes=cloud.remotes)
    assert journal.resumption.kind == "fresh"


def test_a_prefix_of_another_machine_is_continued_under_its_own_run_ts(cloud: Cloud, tmp_path: Path) -> None:
    _, journal = train(config(tmp_path / "b"), until=5, remotes=cloud.remotes)
    (first,) = (tmp_path / "a/milepost/default/run").iterdir()
    assert (journal.run_ts, journal.resumption.step) == (first.name, 4)


def test_another_run_ts_than_that_of_the_journal(cloud: Cloud, tmp_path: Path) -> None:
    settings = config(tmp_path / "b", "run_ts='20200101000000'")
    refused(settings, Refused, "rl.run_ts=20200101000000 asks for another one", opener=cloud.remotes)
    (first,) = (tmp_path / "a/milepost/default/run").iterdir()
    _, journal = train(config(tmp_path / "b", f"run_ts='{first.name}'", "resume=off"), until=4, remotes=cloud.remotes)
    assert journal.resumption.step == 4


def test_an_attempt_never_moves_to_another_prefix(cloud: Cloud, tmp_path: Path) -> None:
    there = config(tmp_path / "a", "checkpoint_store.prefix=exp/two/checkpoints")
    refused(
        there,
        Refused,
        f"is of the run at {RUN}, and rl.checkpoint_store says s3://store/exp/two",
        opener=cloud.remotes,
    )
    assert cloud.tree("exp/two/") == {}


def test_two_roots_side_by_side_do_not_share_a_journal(cloud: Cloud, tmp_path: Path) -> None:
    beside = config(tmp_path / "b", "checkpoint_store.prefix=exp/one/other")
    before = cloud.tree()
    refused(beside, Refused, "such as exp/one/other/checkpoints", opener=cloud.remotes)
    assert cloud.tree() == before


def test_an_attempt_does_not_change_its_backend(cloud: Cloud, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=f"has its checkpoints and its journal at {RUN}"):
        train_locally(local(tmp_path / "a"), until=2)
    train_locally(local(tmp_path / "c"), until=2)
    refused(config(tmp_path / "c"), Refused, "has its journal on the disk", opener=cloud.remotes)


def test_an_address_where_nothing_is(cloud: Cloud, tmp_path: Path) -> None:
    for address in ("exp/three/iter_000000004", "exp/one"):
        settings = config(tmp_path / "b", "checkpoint_store.prefix=x/checkpoints", f"resume=s3://store/{address}")
        refused(settings, NotResumable, "nothing is at|no checkpoint", opener=cloud.remotes)


def test_an_address_of_a_single_object(cloud: Cloud, tmp_path: Path) -> None:
    named = f"resume={RUN}/checkpoints/iter_000000004/.posttrain/generations/4.1.2/trainer.pt"
    settings = config(tmp_path / "b", "checkpoint_store.prefix=x/checkpoints", named)
    refused(settings, NotResumable, "has no .posttrain-manifest.json", opener=cloud.remotes)


def test_an_older_checkpoint_of_the_run_itself(cloud: Cloud, tmp_path: Path) -> None:
    settings = config(tmp_path / "a", f"resume={RUN}/checkpoints/iter_000000002")
    refused(settings, NotResumable, "already holds the checkpoint iter_000000004", opener=cloud.remotes)


@pytest.mark.filterwarnings("ignore:.*artifact.*:UserWarning")
def test_an_artifact_by_its_address(tmp_path: Path) -> None:
    cloud = Cloud()
    train(config(tmp_path / "a", "checkpoint_components=[model]"), until=2, remotes=cloud.remotes)
    named = f"resume={RUN}/checkpoint_artifacts/iter_000000002"
    settings = config(tmp_path / "b", "checkpoint_store.prefix=x/checkpoints", named)
    refused(settings, NotResumable, "is a partial artifact", opener=cloud.remotes)


def dies(step: int) -> None:
    raise OSError("the evaluation is gone")


def test_a_pending_checkpoint_that_lies_elsewhere(tmp_path: Path) -> None:
    cloud = Cloud()
    saving = ("save_every=0", "validation.every_steps=2", "validation.save_checkpoint=true")
    with pytest.raises(OSError, match="is gone"):
        train(config(tmp_path / "a", *saving), until=4, remotes=cloud.remotes, validate=dies)
    with pytest.raises(OSError, match="is gone"):
        train_locally(local(tmp_path / "c", *saving), until=4, validate=dies)
    (path,) = tmp_path.glob("c/*/*/*/*/checkpoints/iter_000000002")
    before = cloud.tree("exp/one/")
    for source in (f"{RUN}/checkpoints/iter_000000002", str(path)):
        there = config(tmp_path / "b", *saving, "checkpoint_store.prefix=x/checkpoints", f"resume={source}")
        refused(there, NotResumable, "as rl.checkpoint_store.prefix and use resume=auto", opener=cloud.remotes)
    assert cloud.tree("exp/one/") == before


def test_a_tree_whose_journal_was_left_behind(cloud: Cloud, tmp_path: Path) -> None:
    cloud.copy(f"{ROOT}/", "moved/checkpoints/")
    settings = config(tmp_path / "b", "checkpoint_store.prefix=moved/checkpoints")
    refused(settings, Corrupt, "iter_000000004", opener=cloud.remotes)


def test_a_store_that_does_not_keep_its_conditions(tmp_path: Path) -> None:
    careless = SimulatedBucket()
    careless.store.conditions = "ignored"
    careless.where = lambda key: f"s3://careless/{key}"  # type: ignore[method-assign]

    def opener(uri: str, credentials: Path | None) -> Remote:
        return Remote(bucket=careless, destination=Destination(endpoint="loop", bucket="careless", prefix=""))

    for _ in range(2):
        refused(config(tmp_path), Misconfigured, "the store does not keep create", opener=opener)
    assert careless.tree() == {}
    assert list(tmp_path.rglob("checkpoint_store.txt")) == []


def test_several_roles(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="several roles need the local primary store"):
        Journal.open(
            config(tmp_path),
            roles={"policy": Training().trainer(), "critic": Training().trainer()},
            remotes=Cloud().remotes,
            watch=FakeWatch(),
            environ={},
        )


def test_boto3_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("milepost.engines.buckets.")]:
        if name.endswith((".boto", ".clients")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "boto3", None)
    refused(config(tmp_path), Misconfigured, r"pip install 'milepost\[s3\]'", opener=remotes(SystemAmbient()))


def test_credentials_that_are_not_there(tmp_path: Path) -> None:
    settings = config(tmp_path, f"checkpoint_store.credentials={tmp_path}/none.json")
    refused(settings, Misconfigured, "none.json", opener=remotes(SystemAmbient()))
