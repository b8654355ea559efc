"""The verbs that read, on a run in a bucket: the simulated one by their functions, a real one by the command line."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from milepost.engines.ambient import SystemAmbient
from milepost.engines.archive.declaration import DECLARATION
from milepost.engines.buckets import Bucket
from milepost.engines.buckets.opening import open_bucket
from milepost.engines.checkpoints import direct_names
from milepost.engines.checkpoints.manifest import MANIFEST
from milepost.engines.checkpoints.parts import GENERATIONS
from milepost.engines.disks.local import LocalDisk
from milepost.engines.places import ADDRESS
from milepost.engines.simulated.bucket import SimulatedBucket
from milepost.journal.forensics import foreseeing
from milepost.journal.forensics.listing import Stage, listing, shown
from milepost.journal.forensics.questions import difference, replayed
from milepost.journal.forensics.reading import Kind, Place, locate
from milepost.journal.forensics.timeline import Wanted, entry_at, follow, records, state_at
from milepost.journal.forensics.verifying import verify
from milepost.transitions.errors import Corrupt, Refused
from milepost.transitions.values import SaveId
from tests.archive.published import SAVE, saved
from tests.buckets.servers import SeaweedFS
from tests.cli.conftest import Milepost
from tests.cli.stored import opener_of, put, store_run, store_trees

BASE = "team/milepost/default/run/20260102030405"


@pytest.fixture
def bucket() -> SimulatedBucket:
    return SimulatedBucket()


def at(bucket: Bucket, path: str) -> Place:
    return locate(f"s3://b/{path}", opener=opener_of(bucket))


def codes(place: Place, *, quick: bool = False) -> list[str]:
    return [one.code for one in verify(place, quick=quick).findings]


# --- what may be named ----------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "/", "/journal", "/checkpoints", "/checkpoint_artifacts/"])
def test_the_run_and_its_folders_mean_the_run(bucket: SimulatedBucket, both: Path, below: str) -> None:
    store_run(both, bucket, BASE)
    place = at(bucket, f"{BASE}{below}")
    assert (place.path, place.checkpoint, place.remote) == (BASE, "", True)
    assert place.checkpoints == f"{BASE}/checkpoints"


def test_a_checkpoint_and_an_artifact_mean_their_run_and_themselves(bucket: SimulatedBucket, both: Path) -> None:
    store_run(both, bucket, BASE)
    for tree, kind in (("checkpoints", Kind.CHECKPOINT), ("checkpoint_artifacts", Kind.ARTIFACT)):
        place = at(bucket, f"{BASE}/{tree}/iter_000000004")
        assert (place.path, place.checkpoint, place.kind) == (BASE, "iter_000000004", kind)


def test_a_name_above_attempts_means_the_newest_and_says_so(bucket: SimulatedBucket, ended: Path) -> None:
    store_run(ended, bucket, BASE)
    put(bucket, "team/milepost/default/run/20250101000000/checkpoints/latest_checkpoint.txt", b"x")
    place = at(bucket, "team/milepost/default/run")
    assert place.path == BASE
    assert place.notes == ("20260102030405 is the newest of 2 attempts in s3://simulated/team/milepost/default/run",)


@pytest.mark.parametrize("named", ["my", "my/root", "my/journal", "my/root/iter_000000004"])
def test_checkpoints_below_an_explicit_prefix_are_found(bucket: SimulatedBucket, ended: Path, named: str) -> None:
    store_run(ended, bucket, "my", root="root")
    place = at(bucket, named)
    assert (place.path, place.checkpoints, place.journal) == ("my", "my/root", "my/journal")
    assert verify(place).exit_code == 0


def test_a_folder_with_a_pointer_alone_is_a_root(bucket: SimulatedBucket) -> None:
    put(bucket, "my/root/latest_checkpoint.txt", b"iter_000000001\n")
    assert at(bucket, "my/root").checkpoints == "my/root"


def test_a_run_at_the_top_of_a_bucket_is_found(bucket: SimulatedBucket, ended: Path) -> None:
    store_run(ended, bucket, "x")
    top = SimulatedBucket()
    for key, data in bucket.tree().items():
        put(top, key.removeprefix("x/"), data)
    assert codes(at(top, "")) == []


@pytest.mark.parametrize(
    ("named", "found"), [("none", "found nothing"), ("one", "found an object"), ("", "no journal")]
)
def test_what_is_no_run_is_refused(bucket: SimulatedBucket, named: str, found: str) -> None:
    put(bucket, "one", b"1")
    with pytest.raises(Refused, match=found):
        at(bucket, named)


def test_two_folders_that_may_hold_the_checkpoints_are_named(bucket: SimulatedBucket, ended: Path) -> None:
    store_run(ended, bucket, "my", root="one")
    store_trees(ended, bucket, "my", root="two")
    with pytest.raises(Refused, match="one or two"):
        at(bucket, "my")
    assert codes(at(bucket, "my/two")) == []


def test_a_local_directory_leads_to_its_bucket(bucket: SimulatedBucket, ended: Path, tmp_path: Path) -> None:
    store_run(ended, bucket, BASE)
    local = tmp_path / "local" / "20260102030405"
    (local / "journal").mkdir(parents=True)
    (local / ADDRESS).write_text(f"s3://b/{BASE}\n")
    for named in (local, local / "journal", local.parent):
        place = locate(str(named), opener=opener_of(bucket))
        assert (place.path, place.remote) == (BASE, True)
        assert place.lock == str(local / "journal" / "lock")
        *earlier, note = place.notes
        assert note == f"{local} keeps its checkpoints and its journal at s3://simulated/{BASE}"
        assert len(earlier) == (named == local.parent)
    (local / ADDRESS).write_text("nonsense\n")
    with pytest.raises(Refused, match="expected an s3:// address"):
        locate(str(local), opener=opener_of(bucket))


# --- what is told ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["ended", "retained", "both", "behind", "evaluating", "passed", "published"])
def test_a_run_in_a_bucket_is_told_as_on_a_disk(
    bucket: SimulatedBucket, run: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(run)
    store_run(path, bucket, BASE)
    there, here = at(bucket, BASE), locate(str(path))
    assert listing(there).checkpoints == listing(here).checkpoints
    assert listing(there).pointer == listing(here).pointer
    assert [*records(there.log, Wanted())] == [*records(here.log, Wanted())]
    assert state_at(there.log, "head") == state_at(here.log, "head")
    assert difference(there, "1", "head") == difference(here, "1", "head")
    assert entry_at(there.log, 5) == entry_at(here.log, 5)
    assert replayed(there).kinds == replayed(here).kinds
    told, expected = foreseeing.why(there), foreseeing.why(here)
    assert (told.taken, told.passed_over, told.foreseen) == (expected.taken, expected.passed_over, expected.foreseen)
    assert told.epochs == expected.epochs
    name = listing(here).checkpoints[0].name
    assert [one.files for one in shown(there, name)] == [one.files for one in shown(here, name)]
    seen, known = verify(there), verify(here)
    assert [one.code for one in seen.findings] == [one.code for one in known.findings]
    assert (seen.files, seen.bytes_hashed, seen.exit_code) == (known.files, known.bytes_hashed, known.exit_code)


def test_what_is_appended_is_followed(bucket: SimulatedBucket, ended: Path) -> None:
    store_run(ended, bucket, "whole")
    slots = sorted(key for key in bucket.tree() if key.startswith("whole/journal/"))
    cut = len(slots) // 2
    for key, data in bucket.tree().items():
        if key not in slots[cut:]:
            put(bucket, key.replace("whole", "live"), data)

    class Over(Exception):
        pass

    def append() -> None:
        nonlocal cut
        if cut == len(slots):
            raise Over
        put(bucket, slots[cut].replace("whole", "live"), bucket.read(slots[cut], limit=1 << 20)[0])
        cut += 1

    seen = []
    with pytest.raises(Over):
        for one in follow(at(bucket, "live").log, Wanted(), wait=append):
            seen.append(one)
    assert seen == [*records(at(bucket, "whole").log, Wanted())]


def test_a_look_changes_nothing(bucket: SimulatedBucket, ended: Path) -> None:
    store_run(ended, bucket, BASE)
    before, requests = bucket.tree(), len(bucket.trace)
    place = at(bucket, BASE)
    listing(place), foreseeing.why(place), verify(place), replayed(place)
    assert bucket.tree() == before
    assert {one.verb for one in bucket.trace[requests:]} <= {"stat", "head", "fetch", "range", "list", "read"}


# --- what is wrong --------------------------------------------------------------------------------------


def changed(bucket: SimulatedBucket, key: str) -> None:
    data = bytearray(bucket.read(key, limit=1 << 20)[0])
    data[len(data) // 2] ^= 1
    put(bucket, key, bytes(data))


def test_every_changed_object_is_found(bucket: SimulatedBucket, ended: Path) -> None:
    store_run(ended, bucket, BASE)
    whole = bucket.tree()
    for key, data in whole.items():
        if "/iter_" in key and "/iter_000000004/" not in key:
            continue  # one checkpoint is like the other
        changed(bucket, key)
        found = verify(at(bucket, BASE))
        assert found.exit_code in (1, 3, 5), key
        assert any(key.removeprefix(BASE).split("/")[1] in one.place for one in found.findings), key
        put(bucket, key, data)
    assert codes(at(bucket, BASE)) == []


def test_a_quick_look_reads_no_payload(bucket: SimulatedBucket, ended: Path) -> None:
    store_run(ended, bucket, BASE)
    changed(bucket, f"{BASE}/checkpoints/iter_000000004/model.pt")
    assert codes(at(bucket, BASE), quick=True) == []
    assert codes(at(bucket, BASE)) == ["file-digest"]


def test_a_slot_that_is_gone_refuses_the_journal_and_checkpoints_are_held_against_manifests(
    bucket: SimulatedBucket, ended: Path
) -> None:
    store_run(ended, bucket, BASE)
    bucket.delete(f"{BASE}/journal/{3:020d}.json")
    found = verify(at(bucket, BASE))
    assert ([one.code for one in found.findings], found.exit_code) == (["journal-slot"], 3)
    assert found.files > 0
    with pytest.raises(Corrupt, match="expected a batch of the journal, found nothing"):
        listing(at(bucket, BASE))


def test_what_a_save_left_that_was_given_up_is_no_damage(bucket: SimulatedBucket, ended: Path) -> None:
    store_run(ended, bucket, BASE)
    root = f"{BASE}/checkpoints"
    put(bucket, f"{root}/iter_000000008/model/8.1.1__0_0.distcp", b"a shard")
    put(bucket, f"{root}/iter_000000009/model/9.1.1__0_0.distcp", b"a shard")
    put(bucket, f"{root}/iter_000000009/{MANIFEST}", direct_names.encode(SaveId(9, 1, 1)))
    found = verify(at(bucket, BASE))
    assert [(one.code, one.place.rpartition("/")[2]) for one in found.findings] == [
        ("half-written", "iter_000000008"),
        ("half-written", "iter_000000009"),
    ]
    assert found.exit_code == 0
    rows = {one.name: one for one in listing(at(bucket, BASE)).checkpoints}
    assert rows["iter_000000008"].stage is rows["iter_000000009"].stage is Stage.UNRECORDED
    assert foreseeing.why(at(bucket, BASE)).taken == "iter_000000007"
    assert codes(at(bucket, f"{root}/iter_000000008")) == ["unrecorded-checkpoint", "manifest-missing"]


def test_a_save_under_way_is_no_damage(bucket: SimulatedBucket, staged: Path) -> None:
    store_run(staged, bucket, BASE)
    for key in bucket.tree():
        if "/.staging/" in key:
            bucket.delete(key)
    put(bucket, f"{BASE}/checkpoints/iter_000000004/model/4.1.2__0_0.distcp", b"a shard")
    found = verify(at(bucket, BASE))
    assert [one.code for one in found.findings] == ["not-ended", "save-open"]
    assert found.exit_code == 0


def test_what_an_earlier_attempt_left_beside_a_manifest_is_no_damage(bucket: SimulatedBucket, ended: Path) -> None:
    store_run(ended, bucket, BASE)
    here = f"{BASE}/checkpoints/iter_000000004"
    put(bucket, f"{here}/4.9.9__0_0.distcp", b"a shard")
    assert codes(at(bucket, BASE)) == ["attempt-leftover"]
    assert verify(at(bucket, BASE)).exit_code == 0
    put(bucket, f"{here}/5.9.9__0_0.distcp", b"of another step")
    assert codes(at(bucket, BASE)) == ["attempt-leftover", "file-unlisted"]


def test_the_layout_of_a_bucket_is_whole_and_so_is_what_other_attempts_left_in_it(
    bucket: SimulatedBucket, tmp_path: Path
) -> None:
    small = f"{GENERATIONS}/{SAVE}"
    payload = {
        f"model/{SAVE}__0_0.distcp": b"m",
        "model/.metadata": b"",
        f"optim/{SAVE}__0_0.distcp": b"o",
        f"{small}/trainer.pt": b"t",
    }
    one = saved(LocalDisk(str(tmp_path)), payload=payload)
    for name, data in one.files.items():
        put(bucket, f"run/{one.path}/{name}", data)
    assert codes(at(bucket, "run")) == ["no-journal"]
    for name in ("model/7.1.0__0_0.distcp", "optim/7.1.0__1_0.distcp", f"{GENERATIONS}/7.1.0/trainer.pt"):
        put(bucket, f"run/{one.path}/{name}", b"earlier")
    assert codes(at(bucket, "run")) == ["no-journal", *["attempt-leftover"] * 3]
    put(bucket, f"run/{one.path}/model/{SAVE}__9_0.distcp", b"of this one, and not listed")
    found = verify(at(bucket, "run"))
    assert sorted(one.code for one in found.findings) == sorted(
        ["no-journal", *["attempt-leftover"] * 3, "file-unlisted"]
    )
    assert found.exit_code == 1


# --- without a journal ----------------------------------------------------------------------------------


def test_a_tree_without_a_journal_is_held_against_its_manifests(bucket: SimulatedBucket, both: Path) -> None:
    store_trees(both, bucket, "kept/run")
    here = "kept/run/checkpoints/iter_000000004"
    put(bucket, f"{here}/{DECLARATION}", b"{}")
    bucket.delete("kept/run/checkpoints/latest_checkpoint.txt")
    for named in ("kept/run", "kept/run/checkpoints", here, "kept/run/checkpoint_artifacts/iter_000000004"):
        found = verify(at(bucket, named))
        assert ([one.code for one in found.findings], found.exit_code) == (["no-journal"], 0)
        assert found.bytes_hashed > 0
    rows = listing(at(bucket, "kept/run")).checkpoints
    assert {one.stage for one in rows} == {Stage.UNRECORDED}
    assert shown(at(bucket, here), "iter_000000004")[0].files
    changed(bucket, f"{here}/model.pt")
    assert codes(at(bucket, here)) == ["no-journal", "file-digest"]
    bucket.delete(f"{here}/{MANIFEST}")
    assert codes(at(bucket, here)) == ["no-journal", "manifest-missing"]


def test_an_artifact_below_a_prefix_of_another_name_is_one(bucket: SimulatedBucket, both: Path) -> None:
    artifact = both / "checkpoint_artifacts" / "iter_000000002"
    for file in artifact.iterdir():
        put(bucket, f"kept/here/iter_000000002/{file.name}", file.read_bytes())
    place = at(bucket, "kept/here/iter_000000002")
    assert (place.kind, codes(place)) == (Kind.ARTIFACT, ["no-journal"])


# --- by the command line --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    with SeaweedFS(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.mark.services
def test_every_reading_verb_takes_an_address(
    milepost: Milepost, server: SeaweedFS, ended: Path, tmp_path: Path
) -> None:
    credentials = server.credentials()
    bucket = open_bucket(server.bucket, credentials=credentials, ambient=SystemAmbient())
    store_run(ended, bucket, BASE)
    run = f"s3://{server.bucket}/{BASE}"
    asked = ("--credentials", credentials)
    for verb, *arguments in (
        ("ls",),
        ("log",),
        ("log", "--kind", "save-sealed", "--limit", "2"),
        ("show", "5"),
        ("state",),
        ("state", "--at", "iter_000000004"),
        ("diff", "1"),
        ("why",),
        ("why", "iter_000000004"),
    ):
        there, here = milepost(verb, run, *arguments, *asked), milepost(verb, ended, *arguments)
        where = f"{run} at {server.endpoint.removeprefix('http://')}"
        assert (there.code, there.out.replace(where, str(ended))) == (0, here.out.replace("00000001.jsonl", "")), verb
    found = milepost("verify", run, "--json", *asked).json
    assert (found["exit_code"], found["findings"]) == (0, [])
    assert found["bytes_hashed"] == milepost("verify", ended, "--json").json["bytes_hashed"]
    assert milepost("verify", run, "--quick", *asked).code == 0
    assert milepost("replay", run, *asked).code == 0
    assert milepost("show", f"{run}/checkpoints/iter_000000004", *asked).code == 0
    put(bucket, f"{BASE}/checkpoints/iter_000000004/model.pt", b"other")
    assert milepost("verify", f"{run}/checkpoints/iter_000000004", *asked).code == 5


@pytest.mark.services
def test_nothing_in_a_bucket_is_pruned(milepost: Milepost, server: SeaweedFS, ended: Path, tmp_path: Path) -> None:
    credentials = server.credentials()
    bucket = open_bucket(server.bucket, credentials=credentials, ambient=SystemAmbient())
    store_run(ended, bucket, f"pruned/{BASE}")
    local = tmp_path / "local"
    local.mkdir()
    (local / ADDRESS).write_text(f"s3://{server.bucket}/pruned/{BASE}\n")
    answer = milepost("prune", local, "--keep-model-last", "1", "--credentials", credentials)
    assert answer.code == 2
    assert "nothing in a bucket is ever deleted" in answer.err
    assert "keeps its checkpoints and its journal at" in answer.err
    shutil.rmtree(local)


def test_an_address_without_usable_credentials_is_a_usage_error(milepost: Milepost, tmp_path: Path) -> None:
    secret = tmp_path / "credentials.json"
    secret.write_text('{"aws_secret_access_key": "do-not-tell", "nonsense": 1}')
    answer = milepost("ls", "s3://bucket/run", "--credentials", secret)
    assert answer.code == 2
    assert "do-not-tell" not in answer.err + answer.out
