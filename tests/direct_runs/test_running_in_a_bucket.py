"""A run whose primary is a bucket, from the opening to the close: saved, killed, continued, validated, stopped."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from milepost.engines.buckets.reading import BucketDisk
from milepost.engines.simulated.faults import Killed
from milepost.engines.termination import Termination
from milepost.journal import Config, Corrupt, Journal
from milepost.journal.forensics.reading import locate
from milepost.journal.forensics.verifying import verify
from milepost.journal.log.replay import replay
from milepost.transitions.run import StoreProbed
from milepost.transitions.saving import SaveOpened
from milepost.transitions.validation import ValidationStage
from milepost.transitions.values import Mode, Outcome, Reason
from tests.direct_runs.stores import ROOT, RUN, Cloud, config, opened, plain, train
from tests.journal.runs import FakeWatch, Training

SAVING = ("save_every=0", "validation.every_steps=2", "validation.save_checkpoint=true")
POINTER = f"{ROOT}/latest_checkpoint.txt"


def local_copies(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.name.startswith(("iter_", "latest_"))]


def test_a_run_continues_bit_by_bit_and_no_checkpoint_is_on_the_disk(tmp_path: Path) -> None:
    cloud = Cloud()
    _, first = train(config(tmp_path), until=4, remotes=cloud.remotes)
    rest, second = train(config(tmp_path), until=7, remotes=cloud.remotes)
    assert (first.run_dir, second.run_dir) == (RUN, RUN)
    assert (first.resumption.kind, second.resumption.kind, second.resumption.step) == ("fresh", "exact", 4)
    assert first.run_ts == second.run_ts
    assert rest.digest() == plain(7).digest() and rest.losses == plain(7).losses[4:]
    assert cloud.tree()[POINTER] == b"iter_000000007\n"
    assert local_copies(tmp_path) == []
    (address,) = tmp_path.rglob("checkpoint_store.txt")
    assert address.read_text() == f"{RUN}\n"
    assert address.parent.name == first.run_ts


def test_a_checkpoint_has_the_layout_of_the_contract(tmp_path: Path) -> None:
    cloud = Cloud()
    train(config(tmp_path), until=2, remotes=cloud.remotes)
    assert sorted(cloud.tree(f"{ROOT}/")) == [
        "iter_000000002/.posttrain-manifest.json",
        "iter_000000002/.posttrain/generations/2.1.1/data.pt",
        "iter_000000002/.posttrain/generations/2.1.1/trainer.pt",
        "iter_000000002/model/.metadata",
        "iter_000000002/model/2.1.1__0_0.distcp",
        "iter_000000002/optim/.metadata",
        "iter_000000002/optim/2.1.1__0_0.distcp",
        "latest_checkpoint.txt",
    ]
    assert cloud.tree("exp/one/")["checkpoint-root.txt"] == b"checkpoints\n"


def test_what_a_run_leaves_is_whole_to_a_reader(tmp_path: Path) -> None:
    cloud = Cloud()
    train(config(tmp_path), until=4, remotes=cloud.remotes)
    (local,) = (tmp_path / "milepost/default/run").iterdir()
    for named in (RUN, str(local)):
        found = verify(locate(named, opener=cloud.remotes))
        assert (found.exit_code, found.findings) == (0, ())


def test_the_journal_of_each_start_says_what_the_store_was_seen_to_keep(tmp_path: Path) -> None:
    cloud = Cloud()
    for until in (2, 4):
        train(config(tmp_path), until=until, remotes=cloud.remotes)
    entries = [entry for entry, _ in replay(locate(RUN, opener=cloud.remotes).log)]
    told = [record for entry in entries for record in entry.records if isinstance(record, StoreProbed)]
    assert [record.store for record in told] == [cloud.bucket().where("")] * 2
    seen = {one.name: one.seen for one in told[0].promises}
    racing = seen.pop("racing_creates")  # who wins is not known
    assert (racing.count("committed"), racing.count("conflict")) == (1, 3)
    assert seen == {
        "create": "committed, conflict; the object holds first",
        "swap": "committed, conflict, conflict; the object holds second",
        "overtaken_create": "conflict, committed; the object holds overtaker",
        "overtaken_swap": "conflict, committed; the object holds overtaker",
    }


def test_without_a_prefix_the_bucket_mirrors_the_local_layout(tmp_path: Path) -> None:
    cloud = Cloud()
    _, journal = train(config(tmp_path, "checkpoint_store.prefix="), until=2, remotes=cloud.remotes)
    base = f"milepost/default/run/{journal.run_ts}"
    assert journal.run_dir == f"s3://store/{base}"
    assert cloud.tree(f"{base}/")["checkpoints/latest_checkpoint.txt"] == b"iter_000000002\n"
    _, again = train(config(tmp_path, "checkpoint_store.prefix="), until=4, remotes=cloud.remotes)
    assert (again.run_ts, again.resumption.step) == (journal.run_ts, 2)
    _, fresh = train(config(tmp_path, "checkpoint_store.prefix=", "resume=off"), until=2, remotes=cloud.remotes)
    assert fresh.run_ts > journal.run_ts and fresh.resumption.kind == "fresh"


def test_a_prefix_of_one_name_has_its_journal_at_the_top_of_the_bucket(tmp_path: Path) -> None:
    cloud = Cloud()
    settings = config(tmp_path, "checkpoint_store.prefix=checkpoints")
    _, journal = train(settings, until=2, remotes=cloud.remotes)
    assert journal.run_dir == "s3://store"
    assert {key.partition("/")[0] for key in cloud.tree()} == {"checkpoints", "journal", "checkpoint-root.txt"}
    _, journal = train(settings, until=3, remotes=cloud.remotes)
    assert journal.resumption.step == 2


def test_every_save_is_synchronous(tmp_path: Path) -> None:
    _, journal = train(config(tmp_path), until=4, remotes=Cloud().remotes)
    opened = [one for entry, _ in journal.history() for one in entry.records if isinstance(one, SaveOpened)]
    assert [one.mode for one in opened] == [Mode.SYNCHRONOUS] * 2


def killed_at(cloud: Cloud, settings: Config, index: int) -> bool:
    """Whether a run to step 4 came to this request and died instead of making it."""
    process, remotes = cloud.process("victim")
    process.wire.kill_at = len(cloud.bucket().trace) + index
    try:
        train(settings, until=4, remotes=remotes)
    except Killed:
        return True
    return False


def survives(root: Path, index: int) -> bool:
    cloud = Cloud()
    if not killed_at(cloud, config(root), index):
        return False
    before = {key: data for key, data in cloud.tree(f"{ROOT}/").items() if is_published(cloud, key)}
    rest, journal = train(config(root), until=6, remotes=cloud.remotes)
    assert journal.resumption.step in (0, 2, 4)
    assert rest.digest() == plain(6).digest()
    assert cloud.tree()[POINTER] == b"iter_000000006\n"
    assert before.items() <= cloud.tree(f"{ROOT}/").items()
    return True


def is_published(cloud: Cloud, key: str) -> bool:
    name = key.partition("/")[0]
    manifest = cloud.tree().get(f"{ROOT}/{name}/.posttrain-manifest.json", b"")
    return b"milepost.manifest.v1" in manifest


@pytest.mark.parametrize("index", (5, 31, 58, 71, 90))
def test_a_run_that_died_is_continued(tmp_path: Path, index: int) -> None:
    assert survives(tmp_path, index)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(5))
def test_a_run_that_died_at_any_request_is_continued(tmp_path: Path, first: int) -> None:
    index = first
    while survives(tmp_path / str(index), index):
        index += 5
    assert index > 100


def test_a_validation_is_pending_then_passed_then_published(tmp_path: Path) -> None:
    cloud, seen = Cloud(), list[tuple[int, bytes, list[str]]]()

    def validate(step: int) -> None:
        folder = f"{ROOT}/iter_{step:09d}/"
        marks = sorted(name for name in cloud.tree(folder) if name.startswith(".posttrain-validation"))
        seen.append((step, cloud.tree()[POINTER], marks))

    _, journal = train(config(tmp_path, *SAVING), until=4, remotes=cloud.remotes, validate=validate)
    pending = [".posttrain-validation.0.json"]
    assert seen == [(2, b"iter_000000002\n", pending), (4, b"iter_000000004\n", pending)]
    assert journal.state.validation.stage is ValidationStage.IDLE
    names = cloud.tree(f"{ROOT}/iter_000000004/")
    assert {f".posttrain-validation.{number}.json" for number in range(3)} <= names.keys()
    assert cloud.tree()[POINTER] == b"iter_000000004\n"


def test_an_evaluation_that_died_is_run_by_the_next_start(tmp_path: Path) -> None:
    cloud, seen = Cloud(), list[int]()

    def dies(step: int) -> None:
        raise OSError("the evaluation is gone")

    with pytest.raises(OSError, match="is gone"):
        train(config(tmp_path, *SAVING), until=4, remotes=cloud.remotes, validate=dies)
    rest, journal = train(config(tmp_path, *SAVING), until=4, remotes=cloud.remotes, validate=seen.append)
    assert (journal.resumption.pending, journal.resumption.step, seen) == ("evaluation", 2, [2, 4])
    assert rest.digest() == plain(4).digest()


def test_a_copied_pending_checkpoint_is_published_where_its_root_is_selected(tmp_path: Path) -> None:
    cloud, seen = Cloud(), list[int]()

    def dies(step: int) -> None:
        raise OSError("the evaluation is gone")

    with pytest.raises(OSError, match="is gone"):
        train(config(tmp_path / "a", *SAVING), until=4, remotes=cloud.remotes, validate=dies)
    cloud.copy("exp/one/", "exp/two/")
    there = config(tmp_path / "b", *SAVING, "checkpoint_store.prefix=exp/two/checkpoints")
    _, journal = train(there, until=2, remotes=cloud.remotes, validate=seen.append)
    assert (journal.resumption.pending, seen) == ("evaluation", [2])
    assert ".posttrain-validation.2.json" in cloud.tree("exp/two/checkpoints/iter_000000002/")
    assert ".posttrain-validation.2.json" not in cloud.tree("exp/one/checkpoints/iter_000000002/")


def test_a_termination_saves_everything_and_stops(tmp_path: Path) -> None:
    cloud, watch = Cloud(), FakeWatch()

    def terminate(journal: Journal, step: int) -> None:
        if step == 3:
            watch.seen = Termination(reason="signal SIGTERM", detail="a test")

    _, journal = train(config(tmp_path), until=8, remotes=cloud.remotes, watch=watch, each=terminate)
    assert journal.state.saving.sealed[3].reason is Reason.EMERGENCY
    assert journal.state.run.ended is not None and journal.state.run.ended.outcome is Outcome.STOPPED
    rest, journal = train(config(tmp_path), until=8, remotes=cloud.remotes)
    assert journal.resumption.step == 3
    assert rest.digest() == plain(8).digest()


@pytest.mark.filterwarnings("ignore:.*artifact.*:UserWarning")
def test_a_partial_plan_makes_artifacts_beside_the_checkpoints(tmp_path: Path) -> None:
    cloud = Cloud()
    settings = config(tmp_path, "checkpoint_components=[model, training_state]")
    _, journal = train(settings, until=2, remotes=cloud.remotes)
    assert sorted(cloud.tree("exp/one/checkpoint_artifacts/")) == [
        "iter_000000002/.posttrain-checkpoint-artifact.json",
        "iter_000000002/.posttrain/generations/2.1.1/data.pt",
        "iter_000000002/.posttrain/generations/2.1.1/trainer.pt",
        "iter_000000002/model/.metadata",
        "iter_000000002/model/2.1.1__0_0.distcp",
    ]
    assert cloud.tree(f"{ROOT}/") == {}
    assert sorted(journal.state.saving.artifacts) == [2]
    assert local_copies(tmp_path) == []


# --- a checkpoint by its address or its path ---------------------------------------------------------------


def test_a_copied_tree_is_resumed_in_place_by_its_address(tmp_path: Path) -> None:
    cloud = Cloud()
    train(config(tmp_path / "a"), until=4, remotes=cloud.remotes)
    cloud.copy(f"{ROOT}/iter_000000004/", "kept/of/iter_000000004/", to="other")
    before = cloud.tree(of="other")
    there = config(
        tmp_path / "b",
        "checkpoint_store.prefix=exp/two/checkpoints",
        "resume=s3://other/kept/of/iter_000000004",
        "checkpoint_store.credentials=keys.json",
    )
    rest, journal = train(there, until=6, remotes=cloud.remotes)
    assert (journal.resumption.kind, journal.resumption.step) == ("exact", 4)
    assert rest.digest() == plain(6).digest()
    assert cloud.tree(of="other") == before
    assert {name for name, credentials in cloud.opened if credentials == Path("keys.json")} == {"store", "other"}
    assert sorted({key.partition("/")[0] for key in cloud.tree("exp/two/checkpoints/")}) == [
        "iter_000000006",
        "latest_checkpoint.txt",
    ]


def test_a_checkpoint_of_the_run_itself_is_named_by_its_address(tmp_path: Path) -> None:
    cloud = Cloud()
    train(config(tmp_path), until=4, remotes=cloud.remotes)
    named = config(tmp_path, f"resume={RUN}/checkpoints/iter_000000004")
    rest, journal = train(named, until=6, remotes=cloud.remotes)
    assert journal.state.run.resumed is not None and journal.state.run.resumed.save is not None
    assert rest.digest() == plain(6).digest()


def test_a_local_checkpoint_is_continued_in_a_bucket(tmp_path: Path) -> None:
    from tests.journal.runs import config as local
    from tests.journal.runs import train as train_locally

    _, before = train_locally(local(tmp_path / "a"), until=4)
    path = f"{before.run_dir}/checkpoints/iter_000000004"
    for root in (tmp_path / "b", tmp_path / "a"):
        cloud = Cloud()
        settings = config(root, f"resume={path}", "run.name=there")
        rest, journal = train(settings, until=6, remotes=cloud.remotes)
        assert (journal.resumption.step, journal.resumption.source) == (4, path)
        assert rest.digest() == plain(6).digest()


def test_damage_refuses_a_resume(tmp_path: Path) -> None:
    cloud = Cloud()
    train(config(tmp_path), until=2, remotes=cloud.remotes)
    key = f"{ROOT}/iter_000000002/model/2.1.1__0_0.distcp"
    data = cloud.tree()[key]
    with cloud.bucket().upload(key, size_hint=len(data)) as upload:
        upload.write(data[:-1] + bytes([data[-1] ^ 1]))
        upload.commit()
    with pytest.raises(Corrupt, match="distcp"):
        train(config(tmp_path), until=4, remotes=cloud.remotes)


def test_what_a_start_asks_of_the_checkpoints_does_not_grow_with_their_number(tmp_path: Path) -> None:
    asked = []
    cloud = Cloud()
    for until in (8, 24):
        train(config(tmp_path), until=until, remotes=cloud.remotes)
        before = len(cloud.bucket().trace)
        opened(config(tmp_path, "save_every=0"), Training(), remotes=cloud.remotes).close()
        requests = cloud.bucket().trace[before:]
        asked.append(sorted(one.verb for one in requests if one.key.startswith(f"{ROOT}/iter_")))
    assert asked[0].count("head") > 4
    assert asked[0] == asked[1]


def test_the_fold_cache_and_the_slot_cache_are_kept_and_disposable(tmp_path: Path) -> None:
    cloud = Cloud()
    train(config(tmp_path), until=4, remotes=cloud.remotes)
    (cache,) = tmp_path.rglob("fold-cache")
    assert "slot-cache" in cloud.tree("exp/one/journal/")
    cache.write_bytes(b"junk")
    cloud.bucket().delete("exp/one/journal/slot-cache")
    rest, _ = train(config(tmp_path), until=6, remotes=cloud.remotes)
    assert rest.digest() == plain(6).digest()


def test_weights_are_read_in_place(tmp_path: Path) -> None:
    from milepost.engines.checkpoints.source import CheckpointSource
    from milepost.journal.restoring import read_manifest

    cloud = Cloud()
    training, _ = train(config(tmp_path), until=2, remotes=cloud.remotes)
    path = f"{ROOT}/iter_000000002"
    disk = BucketDisk(cloud.bucket())
    source = CheckpointSource(
        disk=disk, path=path, manifest=read_manifest(disk, path), role="", world_size=1, rank=0, verify=True
    )
    model = source.load("model")
    assert isinstance(model, dict)
    assert all(torch.equal(model[name], tensor) for name, tensor in training.model.state_dict().items())
