"""Publishing an application's checkpoint: what is refused, what is written, and who may publish twice."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from milepost.engines.applications import MANIFEST, Artifact, CheckpointManifest, shard_names
from milepost.engines.applications.files import TEMPORARY
from milepost.engines.disks import write_all
from milepost.engines.disks.local import LocalDisk
from milepost.engines.simulated import Fault, SimulatedDisk, fault_on, no_fault
from milepost.transitions.errors import Refused, Unavailable
from tests.applications import crashing
from tests.applications.conftest import Bench
from tests.applications.crashing import DIRECTORY, FILES, METADATA, NAMES, OTHER, load, publish


def write(bench: Bench, name: str, data: bytes) -> None:
    with bench.disk.create(f"{DIRECTORY}/{name}") as sink:
        write_all(sink, data)


def test_what_is_published_says_what_it_is(bench: Bench) -> None:
    published = publish(bench.disk)
    data = bench.disk.read(f"{DIRECTORY}/{MANIFEST}", limit=1 << 20)
    assert published == CheckpointManifest(
        schema_version=1,
        metadata=METADATA,
        compatibility={},
        artifacts={
            name: Artifact(size=len(content), sha256=hashlib.sha256(content).hexdigest())
            for name, content in FILES.items()
        },
        identity=f"sha256:{hashlib.sha256(data).hexdigest()}",
    )
    assert bench.disk.names(DIRECTORY) == (MANIFEST, *NAMES)


def test_equal_content_has_one_identity_and_any_other_another(tmp_path: Path) -> None:
    def identity(name: str, data: bytes = b"x", **given: Any) -> str:
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_bytes(data)
        return CheckpointManifest.publish(tmp_path / name, artifacts=["a"], **given).identity

    one = identity("one", metadata={"b": 1, "a": [1.0, None, True]})
    assert one == identity("two", metadata={"a": [1.0, None, True], "b": 1})
    others = {
        identity("artifact", b"y", metadata={"b": 1, "a": [1.0, None, True]}),
        identity("number", metadata={"b": 1, "a": [1, None, True]}),
        identity("moved", compatibility={"b": 1, "a": [1.0, None, True]}),
    }
    assert len(others | {one}) == 4


def test_a_second_publish_is_refused_and_changes_nothing(bench: Bench) -> None:
    first = publish(bench.disk)
    for metadata in (METADATA, OTHER):
        with pytest.raises(Refused, match="published once"):
            publish(bench.disk, nonce="2", metadata=metadata)
    assert load(bench.disk) == first
    assert bench.disk.names(DIRECTORY) == (MANIFEST, *NAMES)


def test_what_a_killed_publish_left_hinders_nobody_and_goes(bench: Bench) -> None:
    write(bench, f"{TEMPORARY}dead", b"half of a mani")
    publish(bench.disk)
    assert bench.disk.names(DIRECTORY) == (MANIFEST, *NAMES)


def test_beside_a_leftover_the_same_content_may_be_published_again_and_no_other(bench: Bench) -> None:
    """The leftover is what a publish that never heard of its outcome leaves."""
    first = publish(bench.disk)
    bench.disk.link(f"{DIRECTORY}/{MANIFEST}", f"{DIRECTORY}/{TEMPORARY}dead")
    with pytest.raises(Refused, match="published once"):
        publish(bench.disk, nonce="2", metadata=OTHER)
    assert publish(bench.disk, nonce="3") == first
    with pytest.raises(Refused, match="published once"):
        publish(bench.disk, nonce="4")
    assert bench.disk.names(DIRECTORY) == (MANIFEST, *NAMES)


def test_beside_a_leftover_of_other_content_nothing_is_published_again(bench: Bench) -> None:
    """Two were killed: one before its link, with its temporary whole, and then another one published."""
    bench.disk.rename(DIRECTORY, "aside")
    crashing.saved(bench.disk)
    publish(bench.disk, metadata=OTHER)
    other = bench.disk.read(f"{DIRECTORY}/{MANIFEST}", limit=1 << 20)
    bench.disk.rename(DIRECTORY, "other")
    bench.disk.rename("aside", DIRECTORY)
    first = publish(bench.disk)
    write(bench, f"{TEMPORARY}dead", other)
    for metadata in (METADATA, OTHER):
        with pytest.raises(Refused, match="published once"):
            publish(bench.disk, nonce="2", metadata=metadata)
    assert load(bench.disk) == first


def test_a_directory_sync_that_failed_behind_the_link_is_an_unknown_outcome_that_the_next_call_settles() -> None:
    disk = SimulatedDisk()
    crashing.saved(disk)
    disk.hardware.faults = fault_on("sync_dir", Fault(error=errno.EIO), nth=3)
    with pytest.raises(Unavailable, match=r"whether it was published is unknown.*publish the same files again"):
        publish(disk)
    disk.hardware.faults = no_fault
    before = crashing.manifest_in(disk)
    assert before is not None
    assert publish(disk, nonce="2") == load(disk)
    assert {crashing.manifest_in(image) for image in disk.crash_images()} == {before}


def test_an_answer_of_link_that_was_lost_is_no_second_publish() -> None:
    """NFS: the server made the link and died before it could say so, and the request was sent again."""
    disk = SimulatedDisk()
    crashing.saved(disk)
    disk.hardware.faults = fault_on("link", Fault(error=errno.EEXIST, done=True))
    assert publish(disk) == load(disk)


def test_a_file_system_without_links_is_told_of_and_nothing_is_left() -> None:
    disk = SimulatedDisk()
    crashing.saved(disk)
    disk.hardware.faults = fault_on("link", Fault(error=errno.EPERM))
    with pytest.raises(Unavailable, match=r"no second name.*Nothing was published"):
        publish(disk)
    assert disk.names(DIRECTORY) == NAMES


def test_a_temporary_of_somebody_else_is_left_alone(bench: Bench) -> None:
    write(bench, f"{TEMPORARY}1", b"of another publisher")
    with pytest.raises(Unavailable, match=r"writing the manifest failed.*Nothing was published"):
        publish(bench.disk)
    assert bench.disk.read(f"{DIRECTORY}/{TEMPORARY}1", limit=99) == b"of another publisher"


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["a/b"], "another directory"),
        (["../a"], "no name of a file"),
        ([".."], "no name of a file"),
        (["/a"], "no name of a file"),
        (["a\0"], "no name of a file"),
        ([""], "no name of a file"),
        ([7], "no string"),
        ([MANIFEST], "the manifest's own"),
        ([f"{TEMPORARY}1"], "the manifest's own"),
        ([*NAMES, NAMES[0]], "more than once"),
        ([], "found none"),
        (NAMES[0], "one string"),
    ],
)
def test_a_name_that_is_not_flat_is_refused(bench: Bench, names: list[str], why: str) -> None:
    for ask in (CheckpointManifest.publish, CheckpointManifest.load):
        with pytest.raises(Refused, match=why):
            ask(DIRECTORY, artifacts=names, disk=bench.disk)
    assert bench.disk.names(DIRECTORY) == NAMES


@pytest.mark.parametrize(
    ("kind", "why"), [("missing", "no such file"), ("symlink", "a symlink"), ("dir", "directory")]
)
def test_an_artifact_that_is_no_regular_file_is_refused(bench: Bench, kind: str, why: str) -> None:
    if kind == "symlink":
        bench.plant_symlink(f"{DIRECTORY}/other")
    elif kind == "dir":
        bench.disk.mkdir(f"{DIRECTORY}/other")
    with pytest.raises(Refused, match=f"other: expected an artifact, found .*{why}"):
        CheckpointManifest.publish(DIRECTORY, artifacts=(*NAMES, "other"), disk=bench.disk)
    assert MANIFEST not in bench.disk.names(DIRECTORY)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    with pytest.raises(Refused, match="found no regular file"):
        CheckpointManifest.publish(tmp_path, artifacts=["a"])


@pytest.mark.parametrize("kind", ["missing", "symlink", "file"])
def test_a_directory_that_is_none_is_refused(bench: Bench, kind: str) -> None:
    if kind == "symlink":
        bench.plant_symlink("other")
    elif kind == "file":
        bench.disk.create("other").close()
    with pytest.raises(Refused, match="expected the directory of the artifacts"):
        CheckpointManifest.publish("other", artifacts=NAMES, disk=bench.disk)
    with pytest.raises(Refused, match="found a root"):
        CheckpointManifest.publish("/", artifacts=NAMES)


@pytest.mark.parametrize("verb", ["sync_file", "read_into"])
def test_a_file_that_is_swapped_while_it_is_hashed_is_refused(verb: str) -> None:
    disk = SimulatedDisk()
    crashing.saved(disk)
    other = disk.process("other")
    with other.create("new") as sink:
        write_all(sink, FILES[NAMES[0]])

    def before(name: str, met: str, _path: str) -> None:
        if name == "main" and met == verb:
            disk.hardware.before = None
            other.rename("new", f"{DIRECTORY}/{NAMES[0]}")

    disk.hardware.before = before
    with pytest.raises(Refused, match="found it changed while it was hashed"):
        publish(disk)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a": (1, 2)}, "metadata.a is a tuple"),
        ({"a": [float("nan")]}, r"metadata.a\[0\] is nan"),
        ({"a": {1: 2}}, "metadata.a has the name 1"),
        ({"a": b"x"}, "metadata.a is a bytes"),
        ({"a": 10**5000}, "digits"),
        ([1], "metadata: expected a mapping, found a list"),
    ],
)
def test_what_is_no_json_is_refused(bench: Bench, value: dict[str, object], why: str) -> None:
    with pytest.raises(Refused, match=why):
        CheckpointManifest.publish(DIRECTORY, artifacts=NAMES, metadata=value, disk=bench.disk)
    assert bench.disk.names(DIRECTORY) == NAMES


def test_metadata_too_large_for_a_manifest_is_refused(bench: Bench) -> None:
    with pytest.raises(Refused, match=r"expected at most 67108864.*save large metadata as an artifact"):
        CheckpointManifest.publish(DIRECTORY, artifacts=NAMES, metadata={"a": "x" * (64 << 20)}, disk=bench.disk)
    assert bench.disk.names(DIRECTORY) == NAMES


def test_values_nested_without_end_are_refused(bench: Bench) -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(Refused, match="nested"):
        CheckpointManifest.publish(DIRECTORY, artifacts=NAMES, metadata={"a": endless}, disk=bench.disk)


def test_what_was_published_does_not_follow_what_the_caller_changes_later(bench: Bench) -> None:
    state = [1, 2]
    published = CheckpointManifest.publish(DIRECTORY, artifacts=NAMES, metadata={"state": state}, disk=bench.disk)
    state.append(3)
    assert published.metadata == load(bench.disk).metadata == {"state": [1, 2]}


def test_the_shards_of_several_ranks_are_one_set_with_the_file_of_every_rank() -> None:
    assert shard_names("model", world_size=2) == NAMES
    assert shard_names("optim", world_size=1, suffix=".bin") == ("optim-00000-of-00001.bin",)
    for world_size in (0, True, -1):
        with pytest.raises(Refused, match="world_size"):
            shard_names("model", world_size=world_size)
    with pytest.raises(Refused, match="another directory"):
        shard_names("a/model", world_size=2)


def test_a_missing_shard_keeps_the_manifest_away(bench: Bench) -> None:
    with pytest.raises(Refused, match=r"model-00002-of-00003.pt: expected an artifact, found no such file"):
        for name in shard_names("model", world_size=3)[:2]:
            write(bench, name, b"shard")
        CheckpointManifest.publish(DIRECTORY, artifacts=shard_names("model", world_size=3), disk=bench.disk)


def test_a_path_of_the_machine_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashing.saved(LocalDisk(tmp_path))
    monkeypatch.chdir(tmp_path)
    published = CheckpointManifest.publish(DIRECTORY, artifacts=NAMES)
    assert CheckpointManifest.load(str(tmp_path / DIRECTORY), artifacts=NAMES) == published


def test_no_crash_leaves_a_visible_manifest_that_is_not_whole() -> None:
    crashing.crash_everywhere()


def test_whatever_fails_nothing_was_published_or_the_same_publish_settles_it() -> None:
    crashing.fail_everywhere()


def test_of_two_publishers_one_wins_or_both_published_the_same() -> None:
    crashing.race_everywhere()
