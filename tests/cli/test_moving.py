"""`publish`, `fetch`, `prune-verified`, `copy`, `download`, `probe` against a real store, as a person uses them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import jsonschema
import pytest
import torch

from milepost.engines.ambient import SystemAmbient
from milepost.engines.archive.declaration import DECLARATION
from milepost.engines.archive.moving import Moved
from milepost.engines.archive.publisher import Archived
from milepost.engines.archive.reader import Fetched
from milepost.engines.archive.releasing import Pruned
from milepost.engines.buckets import Bucket
from milepost.engines.buckets.opening import open_bucket
from milepost.engines.buckets.remote import Destination
from milepost.engines.disks.local import LocalDisk
from milepost.engines.shapes import shape_of
from milepost.journal.cli.moving import AllPruned, Probed, Promise
from tests.archive.published import saved
from tests.buckets.benches import Store
from tests.buckets.conftest import running
from tests.buckets.servers import Rclone, SeaweedFS
from tests.cli.conftest import Answer, Milepost
from tests.journal.runs import Training, config, train

NAME = "iter_000000004"
RESULTS: dict[str, tuple[type, ...]] = {
    "publish": (Archived, Destination),
    "fetch": (Fetched,),
    "prune-verified": (AllPruned, Pruned),
    "copy": (Moved,),
    "download": (Moved,),
    "probe": (Probed, Promise),
}
"""What each verb answers with: the class of the whole, those of its parts."""

LARGE = 50_000_000
"""Bytes of a file that takes several parts, and more ranges than are under way at once."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running(SeaweedFS, tmp_path_factory) as server:
        yield server


@pytest.fixture
def address(store: Store, tmp_path: Path) -> str:
    """A place in the store that no other test uses."""
    return f"s3://{store.bucket}/{tmp_path.name}/checkpoints"


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def succeeded(answer: Answer, verb: str) -> Any:
    """The JSON of a verb that went well, held against the shape that its class has."""
    assert answer.code == 0, answer.err + answer.out
    jsonschema.validate(answer.json, shape_of(RESULTS[verb][0]).schema)
    return answer.json


@pytest.mark.parametrize("verb", RESULTS)
def test_the_help_names_every_field_of_the_json(milepost: Milepost, verb: str) -> None:
    text = milepost(verb, "--help").out
    for name in (field.name for one in RESULTS[verb] for field in attrs.fields(one)):
        assert f'"{name}"' in text, f"the help of {verb} does not speak of {name}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("publish", "nowhere", "s3://b/p"), "expected the directory of a checkpoint or an artifact, found nothing"),
        (("publish", ".", "s3:/b/p"), "is no address: it does not start with s3://"),
        (("publish", ".", "s3://b/a//b"), "the segment '' is not a name"),
        (("fetch", "s3://", "new"), "an empty key names no object"),
        (("fetch", "s3://b/p", "no/where/new"), "make it first"),
        (("download", "s3://b/p", "no/where/new"), "make it first"),
        (("copy", "s3://b/p", "/tmp"), "is no address"),
        (("probe", "b/p"), "is no address"),
        (("prune-verified", "nowhere"), "found nothing"),
        (("probe", "s3://b/p", "--credentials", "nowhere.json"), "credentials nowhere.json"),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_meant_is_usage_and_says_what_to_give(
    milepost: Milepost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = milepost(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("milepost: ")
    assert words in answer.err


def test_a_copy_that_was_never_archived_is_kept_with_the_reason(milepost: Milepost, both: Path) -> None:
    directory = both / "checkpoint_artifacts" / "iter_000000002"
    before = files(directory)
    answer = milepost("prune-verified", directory, both / "checkpoints" / NAME, "--json")
    assert answer.code == 1
    assert [row["kept"] for row in answer.json["directories"]] == ["no .uploaded: it was not archived"] * 2
    assert files(directory) == before


@pytest.mark.services
class TestOnAStore:
    def test_a_published_checkpoint_is_fetched_as_it_was_and_the_run_is_still_whole(
        self, milepost: Milepost, store: Store, address: str, ended: Path, tmp_path: Path
    ) -> None:
        credentials = ("--credentials", store.credentials())
        directory = ended / "checkpoints" / NAME
        before = files(directory)
        done = succeeded(milepost("publish", directory, address, *credentials, "--json"), "publish")
        assert (len(done["sent"]), done["files"]) == (len(before) - 1, len(before))
        again = succeeded(milepost("publish", directory, address, *credentials, "--json"), "publish")
        assert (again["sent"], again["found"]) == ([], done["sent"])
        found = milepost("verify", ended, "--json").json["findings"]
        assert [one for one in found if not one["place"].endswith("/.uploaded")] == []
        back = succeeded(milepost("fetch", f"{address}/{NAME}", tmp_path / NAME, *credentials, "--json"), "fetch")
        assert set(back["fetched"]) == set(done["sent"])
        assert files(tmp_path / NAME) == before
        assert milepost("fetch", f"{address}/{NAME}", tmp_path / NAME, *credentials).code == 2

    def test_a_fetched_checkpoint_is_resumed_from_by_its_path(
        self, milepost: Milepost, store: Store, address: str, ended: Path, tmp_path: Path
    ) -> None:
        credentials = ("--credentials", store.credentials())
        assert milepost("publish", ended / "checkpoints" / NAME, address, *credentials).code == 0
        assert milepost("fetch", f"{address}/{NAME}", tmp_path / NAME, *credentials).code == 0
        fresh = config(tmp_path / "fresh", f"rl.resume={tmp_path / NAME}")
        resumed, _ = train(fresh, until=5)
        straight, _ = train(config(tmp_path / "straight"), until=5)
        assert isinstance(resumed, Training)
        for name, tensor in straight.model.state_dict().items():
            assert torch.equal(resumed.model.state_dict()[name], tensor)

    def test_only_the_artifact_whose_archive_is_proven_loses_its_payload(
        self, milepost: Milepost, store: Store, address: str, both: Path, tmp_path: Path
    ) -> None:
        credentials = ("--credentials", store.credentials())
        first, second = (both / "checkpoint_artifacts" / f"iter_00000000{step}" for step in (2, 4))
        for directory in (first, second, both / "checkpoints" / NAME):
            assert milepost("publish", directory, address, *credentials).code == 0
        before = files(second)
        home = address.replace("/checkpoints", "/checkpoint_artifacts")
        assert milepost("fetch", f"{home}/{second.name}", tmp_path / "kept", *credentials).code == 0
        (second / "model.pt").write_bytes(b"x" + before["model.pt"][1:])
        paths = (first, second, both / "checkpoints" / NAME)
        answer = milepost("prune-verified", *paths, *credentials, "--json")
        assert answer.code == 1
        jsonschema.validate(answer.json, shape_of(AllPruned).schema)
        reasons = [row["kept"] for row in answer.json["directories"]]
        assert reasons[0] == ""
        assert "expected the archived sha256:" in reasons[1]
        assert "a run with a journal" in reasons[2]
        assert answer.json["freed"] == len(before["model.pt"])
        assert not (first / "model.pt").exists()
        assert (second / "model.pt").exists()
        rows = {
            row["name"]: row
            for row in milepost("ls", both, "--json").json["checkpoints"]
            if row["kind"] == "artifact"
        }
        assert (rows[first.name]["stage"], rows[second.name]["stage"]) == ("artifact", "artifact")
        assert rows[first.name]["detail"] == "model.pt lies in its archive alone: milepost fetch brings it back"
        damaged = [row["place"] for row in milepost("verify", both, "--json").json["findings"]]
        assert damaged and all(second.name in where for where in damaged)
        (first / ".uploaded").unlink()
        assert milepost("verify", both, "--json").code == 5
        text = milepost("prune-verified", second, *credentials)
        assert (text.code, "kept" in text.out) == (1, True)

    def test_a_tree_is_copied_and_downloaded_once(
        self, milepost: Milepost, store: Store, address: str, ended: Path, tmp_path: Path
    ) -> None:
        credentials = ("--credentials", store.credentials())
        for name in (NAME, "iter_000000006"):
            assert milepost("publish", ended / "checkpoints" / name, address, *credentials).code == 0
        target = f"s3://{store.bucket}/{tmp_path.name}/kept"
        done = succeeded(milepost("copy", address, target, *credentials, "--json"), "copy")
        again = succeeded(milepost("copy", address, target, *credentials, "--json"), "copy")
        assert (again["moved"], sorted(again["found"])) == ([], sorted(done["moved"]))
        down = succeeded(milepost("download", target, tmp_path / "down", *credentials, "--json"), "download")
        assert set(down["moved"]) == set(done["moved"]) == set(files(tmp_path / "down"))
        again = succeeded(milepost("download", target, tmp_path / "down", *credentials, "--json"), "download")
        assert again["moved"] == []
        (tmp_path / "down" / NAME / "model.pt").write_bytes(b"other")
        assert milepost("download", target, tmp_path / "down", *credentials).code == 2

    def test_an_object_that_was_changed_is_payload_damage_and_nothing_appears(
        self, milepost: Milepost, store: Store, address: str, ended: Path, tmp_path: Path
    ) -> None:
        credentials = store.credentials()
        directory = ended / "checkpoints" / NAME
        assert milepost("publish", directory, address, "--credentials", credentials).code == 0
        replace(credentials, store.bucket, f"{tmp_path.name}/checkpoints/{NAME}/model.pt", b"short")
        answer = milepost("fetch", f"{address}/{NAME}", tmp_path / "new", "--credentials", credentials)
        assert (answer.code, answer.out) == (5, "")
        assert "found 5 bytes" in answer.err
        assert not (tmp_path / "new").exists()
        again = milepost("publish", directory, address, "--credentials", credentials)
        assert again.code == 5
        assert "found 5 bytes" in again.err

    @pytest.mark.parametrize(
        ("other", "bucket", "words"),
        [
            ({"aws_secret_access_key": "WRONG-SECRET"}, "", "the credentials are wrong"),
            ({"aws_access_key_id": SeaweedFS.READER}, "", "these credentials may not do that"),
            ({}, "no-such-bucket", "there is no such bucket"),
        ],
        ids=["secret", "reader", "bucket"],
    )
    def test_what_the_store_refuses_is_said_without_any_secret_and_leaves_no_receipt(
        self, milepost: Milepost, store: Store, ended: Path, other: dict[str, str], bucket: str, words: str
    ) -> None:
        directory = ended / "checkpoints" / NAME
        credentials = store.credentials("other", **other)
        for verb in (("publish", directory), ("probe",)):
            answer = milepost(*verb, f"s3://{bucket or store.bucket}/refused", "--credentials", credentials)
            assert answer.code == 2, answer.out
            assert words in answer.err
            assert "SECRET" not in answer.err
        assert not (directory / ".uploaded").exists()

    def test_probe_says_what_a_store_keeps(self, milepost: Milepost, store: Store, address: str) -> None:
        done = succeeded(milepost("probe", address, "--credentials", store.credentials(), "--json"), "probe")
        assert done["kept"] is True
        assert [one["name"] for one in done["promises"] if not one["kept"]] == []

    def test_a_large_file_goes_in_parallel_parts_and_comes_back_in_parallel_ranges(
        self, milepost: Milepost, store: Store, address: str, tmp_path: Path
    ) -> None:
        large = published_of(tmp_path / "run", size=LARGE)
        credentials = ("--credentials", store.credentials())
        succeeded(milepost("publish", large, address, *credentials, "--json"), "publish")
        before = files(large)
        del before[".uploaded"]
        assert milepost("fetch", f"{address}/{large.name}", tmp_path / "back", *credentials).code == 0
        assert files(tmp_path / "back") == before

    @pytest.mark.kills
    def test_a_publisher_that_is_killed_is_followed_by_one_that_completes(
        self, milepost: Milepost, store: Store, address: str, tmp_path: Path
    ) -> None:
        large = published_of(tmp_path / "run", size=LARGE)
        credentials = ("--credentials", str(store.credentials()))
        program = "from milepost.journal.cli import main; main()"
        command = [sys.executable, "-c", program, "publish", str(large), address, *credentials]
        declared = f"{address.partition(store.bucket)[2][1:]}/{large.name}/{DECLARATION}"
        bucket = bucket_of(store.credentials(), store.bucket)
        for wait_s in (0.0, 0.1, 0.3):
            publisher = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while bucket.stat(declared) is None:
                assert publisher.poll() is None
                time.sleep(0.02)
            time.sleep(wait_s)
            publisher.send_signal(signal.SIGKILL)
            publisher.wait()
            early = milepost("fetch", f"{address}/{large.name}", tmp_path / f"early-{wait_s}", *credentials)
            assert early.code in (0, 2), early.err
        succeeded(milepost("publish", large, address, *credentials, "--json"), "publish")
        assert milepost("fetch", f"{address}/{large.name}", tmp_path / "back", *credentials).code == 0
        assert (tmp_path / "back" / "model.pt").read_bytes() == (large / "model.pt").read_bytes()


@pytest.mark.services
def test_a_store_that_ignores_conditions_is_found_out_and_gets_no_archive(
    milepost: Milepost, ended: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with running(Rclone, tmp_path_factory) as server:
        credentials = ("--credentials", server.credentials())
        probed = milepost("probe", f"s3://{server.bucket}/run", *credentials, "--json")
        assert (probed.code, probed.json["kept"]) == (1, False)
        answer = milepost("publish", ended / "checkpoints" / NAME, f"s3://{server.bucket}/run", *credentials)
        assert answer.code == 2
        assert "does not keep create" in answer.err
    assert not (ended / "checkpoints" / NAME / ".uploaded").exists()


def replace(credentials: Path, bucket: str, key: str, data: bytes) -> None:
    """What somebody else does to an object."""
    with bucket_of(credentials, bucket).upload(key, size_hint=0) as upload:
        upload.write(data)
        upload.commit()


def bucket_of(credentials: Path, name: str) -> Bucket:
    return open_bucket(name, credentials=credentials, ambient=SystemAmbient())


def published_of(run: Path, *, size: int) -> Path:
    """A published checkpoint with a payload of `size` bytes."""
    run.mkdir()
    one = saved(
        LocalDisk(run), payload={"model.pt": torch.randint(256, (size,), dtype=torch.uint8).numpy().tobytes()}
    )
    return run / one.path
