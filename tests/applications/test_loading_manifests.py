"""Loading an application's checkpoint: everything that differs from what was published or expected is named."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost import journal
from milepost.engines.applications import MANIFEST, CheckpointManifest, shard_names
from milepost.engines.applications.files import TEMPORARY
from milepost.engines.checkpoints.proven import with_sum
from milepost.engines.disks import write_all
from milepost.engines.plainjson import write
from milepost.engines.simulated import Fault, SimulatedDisk, fault_on
from milepost.transitions.errors import Corrupt, NewerVersion, NotACheckpoint, NotResumable, Refused, Unavailable
from tests.applications import crashing
from tests.applications.conftest import Bench
from tests.applications.crashing import DIRECTORY, METADATA, NAMES, load, publish

GOLDEN = Path(__file__).parents[2] / "spec" / "golden" / "application-1"
COMPATIBILITY: dict[str, object] = {"dataset": "corpus-3", "ranks": 2, "precision": {"model": "bf16"}}


@pytest.fixture
def published(tmp_path: Path) -> Path:
    directory = tmp_path / "step-7"
    directory.mkdir()
    for name in NAMES:
        (directory / name).write_bytes(name.encode())
    CheckpointManifest.publish(directory, artifacts=NAMES, metadata=METADATA, compatibility=COMPATIBILITY)
    return directory


def reload(directory: Path, **given: object) -> CheckpointManifest:
    asked: dict[str, object] = {"artifacts": NAMES, "compatibility": COMPATIBILITY} | given
    return CheckpointManifest.load(directory, **asked)  # type: ignore[arg-type]


def edit(directory: Path, change: Callable[[dict[str, object]], object]) -> None:
    """Another document in the place of the manifest, with a sum that is right."""
    path = directory / MANIFEST
    document = json.loads(path.read_bytes())
    del document["sum"]
    change(document)
    path.write_bytes(with_sum(write(document)))


def test_the_journal_exports_what_an_application_needs() -> None:
    assert (journal.CheckpointManifest, journal.shard_names) == (CheckpointManifest, shard_names)


def test_what_was_never_published_is_not_a_checkpoint(bench: Bench) -> None:
    with pytest.raises(NotACheckpoint, match=f"step-7 is not a checkpoint: it has no {MANIFEST}"):
        load(bench.disk)
    bench.disk.create("file").close()
    bench.plant_symlink("symlink")
    for directory, found in (("nowhere", "nothing"), ("file", "a file"), ("symlink", "a symlink")):
        with pytest.raises(NotACheckpoint, match=f"is not a checkpoint: expected a directory, found {found}"):
            CheckpointManifest.load(directory, artifacts=NAMES, disk=bench.disk)
    assert issubclass(NotACheckpoint, NotResumable)


def test_a_copied_checkpoint_is_the_same_one(published: Path, tmp_path: Path) -> None:
    shutil.copytree(published, tmp_path / "copy")
    assert reload(tmp_path / "copy") == reload(published)


@pytest.mark.parametrize(
    ("compatibility", "told"),
    [
        ({**COMPATIBILITY, "ranks": 4}, "ranks: expected 4, found 2"),
        ({**COMPATIBILITY, "ranks": 2.0}, r"ranks: expected 2\.0, found 2"),
        ({**COMPATIBILITY, "ranks": True}, "ranks: expected true, found 2"),
        ({**COMPATIBILITY, "more": None}, "more: expected null, found nothing"),
        ({"dataset": "corpus-3", "ranks": 2}, 'precision: expected nothing, found {"model":"bf16"}'),
        (
            {**COMPATIBILITY, "precision": {"model": "fp16"}},
            'precision: expected {"model":"fp16"}, found {"model":"bf16"}',
        ),
        (None, 'dataset: expected nothing, found "corpus-3"; precision: .*; ranks: expected nothing, found 2'),
    ],
)
def test_another_compatibility_is_refused_by_the_names_that_differ(
    published: Path, compatibility: dict[str, object] | None, told: str
) -> None:
    with pytest.raises(NotResumable, match=f"not compatible with what was asked for: {told}") as refusal:
        reload(published, compatibility=compatibility)
    assert not isinstance(refusal.value, NotACheckpoint)
    assert ("dataset" in str(refusal.value)) is (compatibility is None)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            shard_names("model", world_size=1),
            r"missing \['model-00000-of-00001.pt'\], unexpected \['model-00000-of-0000",
        ),
        (NAMES[:1], r"missing \[\], unexpected \['model-00001-of-00002.pt'\]"),
        ((*NAMES, "optim.pt"), r"missing \['optim.pt'\], unexpected \[\]"),
    ],
)
def test_another_set_of_artifacts_is_refused_by_its_names(published: Path, names: tuple[str, ...], told: str) -> None:
    (published / "optim.pt").touch()
    with pytest.raises(NotResumable, match=told):
        reload(published, artifacts=names)


def test_a_file_that_no_manifest_names_is_not_of_the_checkpoint(published: Path) -> None:
    before = reload(published)
    (published / "events.log").write_bytes(b"of the application")
    assert reload(published) == before


def _shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _other(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (Path.unlink, "expected a regular file, found no such file"),
        (_shorter, "expected 23 bytes, found 22"),
        (_other, "expected sha256 [0-9a-f]{64}, found [0-9a-f]{64}"),
        (_link, "expected a regular file, found a symlink"),
        (_directory, "expected a regular file, found a directory"),
    ],
)
def test_an_artifact_that_is_not_what_was_published_is_corrupt(
    published: Path, damage: Callable[[Path], None], told: str
) -> None:
    for name in NAMES:
        damage(published / name)
    with pytest.raises(Corrupt, match=f"{NAMES[0]}: {told}; {NAMES[1]}: {told}"):
        reload(published)


def test_every_byte_of_a_manifest_counts(published: Path) -> None:
    path = published / MANIFEST
    data = path.read_bytes()
    for at in range(len(data)):
        for damaged in (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], data[:at])[: 1 + (at % 8 == 0)]:
            path.write_bytes(damaged)
            with pytest.raises(Corrupt):
                reload(published)


def test_a_later_schema_is_told_as_such_whatever_else_it_holds(published: Path) -> None:
    edit(published, lambda document: document.update(schema_version=2, more=1))
    with pytest.raises(NewerVersion, match="schema 2; this milepost reads 1"):
        reload(published)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"more": 1}, r"missing \[\], unknown \['more'\]"),
        ({"schema_version": 0}, "expected schema_version 1, found 0"),
        ({"schema_version": True}, "expected schema_version 1, found True"),
        ({"schema_version": "1"}, "expected schema_version 1, found '1'"),
        ({"metadata": []}, "expected a mapping as metadata"),
        ({"metadata": {"a": 1e999}}, "no such JSON|JSON does not have"),
        ({"compatibility": None}, "expected a mapping as compatibility"),
        ({"artifacts": [1]}, "expected a mapping as artifacts"),
        ({"artifacts": {}}, "expected artifacts, found none"),
        ({"artifacts": {"../a": {"size": 1, "sha256": "0" * 64}}}, "expected flat file names"),
        ({"artifacts": {"a": {"size": 1}}}, "expected sha256 and size of a"),
        ({"artifacts": {"a": {"size": 1, "sha256": "0" * 64, "more": 1}}}, "expected sha256 and size of a"),
        ({"artifacts": {"a": {"size": -1, "sha256": "0" * 64}}}, "expected the size of a in bytes, found -1"),
        ({"artifacts": {"a": {"size": True, "sha256": "0" * 64}}}, "expected the size of a in bytes, found True"),
        ({"artifacts": {"a": {"size": 1, "sha256": "F" * 64}}}, "expected the sha256 of a in 64 hex digits"),
        ({"artifacts": {"a": {"size": 1, "sha256": 7}}}, "expected the sha256 of a in 64 hex digits"),
    ],
)
def test_a_manifest_of_another_shape_is_corrupt(published: Path, change: dict[str, object], told: str) -> None:
    if change.get("metadata") == {"a": float("inf")}:
        data = (published / MANIFEST).read_bytes().rpartition(b',"sum"')[0].replace(b'{"epoch":3}', b'{"a":1e999}')
        (published / MANIFEST).write_bytes(with_sum(data + b"}"))
    else:
        edit(published, lambda document: document.update(change))
    with pytest.raises(Corrupt, match=told):
        reload(published)


def test_a_missing_field_is_named(published: Path) -> None:
    edit(published, lambda document: document.pop("compatibility"))
    with pytest.raises(Corrupt, match=r"missing \['compatibility'\], unknown \[\]"):
        reload(published)


@pytest.mark.parametrize(
    "text", [b"[]", b"null", b"\xff", b'{"schema_version":1,"schema_version":1}', b"[" * 100_000, b'{"a":NaN}']
)
def test_what_is_no_object_of_json_is_corrupt(published: Path, text: bytes) -> None:
    (published / MANIFEST).write_bytes(text)
    with pytest.raises(Corrupt, match="expected an application's manifest"):
        reload(published)


def test_a_name_that_is_there_twice_is_corrupt_even_under_a_right_sum(published: Path) -> None:
    body = (published / MANIFEST).read_bytes().rpartition(b',"sum"')[0]
    (published / MANIFEST).write_bytes(with_sum(body.replace(b'{"epoch":3}', b'{"epoch":3,"epoch":3}') + b"}"))
    with pytest.raises(Corrupt, match="a name is there twice"):
        reload(published)


@pytest.mark.parametrize("damage", [_link, _directory])
def test_a_manifest_that_is_no_regular_file_is_corrupt(published: Path, damage: Callable[[Path], None]) -> None:
    damage(published / MANIFEST)
    with pytest.raises(Corrupt, match="expected an application's manifest, found a"):
        reload(published)


def test_what_the_caller_expects_has_to_be_json(published: Path) -> None:
    with pytest.raises(Refused, match=r"compatibility.ranks is a tuple"):
        reload(published, compatibility={"ranks": (1,)})


def test_loading_writes_nothing_and_syncs_only_what_was_never_settled(bench: Bench) -> None:
    publish(bench.disk)
    with bench.disk.create(f"{DIRECTORY}/{TEMPORARY}dead") as sink:
        write_all(sink, b"half of a mani")
    before = bench.disk.names(DIRECTORY)
    load(bench.disk)
    assert bench.disk.names(DIRECTORY) == before


def test_a_published_checkpoint_loads_where_nothing_can_be_synced() -> None:
    disk = SimulatedDisk()
    crashing.saved(disk)
    publish(disk)
    begun = len(disk.trace)
    load(disk)
    assert {one.verb for one in disk.trace[begun:]} == {"stat", "open", "names", "read", "read_into"}


def test_a_disk_that_fails_while_it_is_read_is_unavailable_and_never_corrupt() -> None:
    disk = SimulatedDisk()
    crashing.saved(disk)
    publish(disk)
    for verb in ("names", "read", "open", "read_into"):
        disk.hardware.faults = fault_on(verb, Fault(error=errno.EIO))
        with pytest.raises(Unavailable, match=r"reading the checkpoint failed: .*Nothing was changed"):
            load(disk)


def test_a_manifest_that_is_too_large_is_not_read(published: Path) -> None:
    with (published / MANIFEST).open("r+b") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(Corrupt, match="expected at most 67108864 bytes, found 67108865"):
        reload(published)


def test_a_file_that_is_swapped_for_a_symlink_between_two_looks_is_not_followed() -> None:
    disk = SimulatedDisk()
    crashing.saved(disk)
    publish(disk)
    opened = 0

    def before(_name: str, verb: str, path: str) -> None:
        nonlocal opened
        if verb == "open" and path.endswith(NAMES[0]):
            opened += 1
            if opened == 2:
                disk.hardware.before = None
                disk.unlink(path)
                disk.plant_symlink(path)

    disk.hardware.before = before
    with pytest.raises(Corrupt, match=f"{NAMES[0]}: expected a regular file, found a symlink"):
        load(disk)


def test_the_golden_checkpoint_keeps_loading() -> None:
    loaded = CheckpointManifest.load(
        GOLDEN,
        artifacts=(*shard_names("model", world_size=2), "trainer.bin"),
        compatibility={"dataset": "corpus-3", "ranks": 2, "precision": {"model": "bf16"}},
    )
    assert loaded.identity == "sha256:80dfed0d2c2cee2cdfc8482da67e36e59c3ab543bb578a7db396d119534cdcf7"
    assert loaded.metadata == {"epoch": 3, "optimizer_updates": 21, "sampler_state": {"position": 5, "seed": 7}}
    assert loaded.schema_version == 1
