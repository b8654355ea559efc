"""Files in directories of a checkpoint: staged, sealed, looked at and taken away as all others are."""

from __future__ import annotations

import errno

import pytest
from blake3 import blake3

from milepost.engines.checkpoints import GivenUp, marker
from milepost.engines.checkpoints.manifest import MANIFEST, folders_of
from milepost.engines.checkpoints.marker import SUCCESS
from milepost.engines.simulated import Fault, SimulatedDisk, fault_on
from milepost.engines.simulated.faults import no_fault
from milepost.transitions.errors import Unavailable
from milepost.transitions.retention import Part
from milepost.transitions.values import FULL, FileDigest
from tests.checkpoints.boundaries import BOUNDARY, SHARDS, Layout, marker_of, sealed, staged
from tests.checkpoints.places import FULL_TREE, SAVE, STAGING, Place, everything, place_on, reached, write

PATH = f"{FULL_TREE}/{SAVE.directory}"
LAYOUTS = pytest.mark.parametrize("layout", [SHARDS, BOUNDARY], ids=["shards", "boundary"])


def test_directories_come_before_the_ones_that_they_lie_in() -> None:
    assert folders_of(("model.pt", "policy/optim/.metadata", "critic/optim.pt")) == (
        "policy/optim",
        "critic",
        "policy",
    )
    assert folders_of(("model.pt",)) == ()


@LAYOUTS
def test_a_checkpoint_has_its_files_in_their_directories(place: Place, layout: Layout) -> None:
    known = sealed(place, layout)
    beside = {MANIFEST} | ({SUCCESS} if layout.roles else set())
    assert set(everything(place.disk, PATH)) == {*layout.names, *beside}
    assert place.checkpoints.examine(known, lost=None) == ""
    assert [one.problem for one in place.checkpoints.published()] == [""]
    found = place.checkpoints.observe(SAVE, plan=FULL)
    assert found is not None and found.file == known.manifest
    place.checkpoints.resync()


def test_a_small_payload_file_has_the_digest_of_its_bytes(place: Place) -> None:
    place.checkpoints.stage(SAVE, size=1, folders=("model",))
    file = place.checkpoints.put_bytes(SAVE, "model/.metadata", b"what is where")
    digest = f"blake3:{blake3(b'what is where').hexdigest()}"
    assert file == FileDigest(path="model/.metadata", size=13, digest=digest)
    assert everything(place.disk, f"{STAGING}/{SAVE}") == {"model/.metadata": b"what is where"}


def test_another_process_writes_into_what_the_first_one_staged() -> None:
    disk = SimulatedDisk()
    first, second = place_on(disk), reached(disk.process("rank 1"))
    first.checkpoints.stage(SAVE, size=1, folders=("model",))
    files = [
        place.checkpoints.put_bytes(SAVE, f"model/__{rank}_0.distcp", b"shard")
        for rank, place in enumerate((first, second))
    ]
    assert [file.path for file in files] == ["model/__0_0.distcp", "model/__1_0.distcp"]
    assert everything(disk, f"{STAGING}/{SAVE}") == {file.path: b"shard" for file in files}


def test_a_payload_file_is_never_written_twice(place: Place) -> None:
    place.checkpoints.stage(SAVE, size=1, folders=("model",))
    place.checkpoints.put_bytes(SAVE, "model/.metadata", b"one")
    with pytest.raises(GivenUp, match="EEXIST"):
        place.checkpoints.put_bytes(SAVE, "model/.metadata", b"other")
    assert everything(place.disk, f"{STAGING}/{SAVE}") == {"model/.metadata": b"one"}


def test_a_file_of_a_directory_that_was_not_staged_gives_the_save_up(place: Place) -> None:
    place.checkpoints.stage(SAVE, size=1)
    with pytest.raises(GivenUp, match="writing model/") as failure:
        place.checkpoints.put_bytes(SAVE, "model/.metadata", b"")
    assert failure.value.code == "ENOENT"


@LAYOUTS
def test_sealing_twice_is_sealing_once(place: Place, layout: Layout) -> None:
    manifest, told = staged(place, layout), marker_of(layout)
    first = place.checkpoints.seal(manifest, pending=False, marker=told)
    before = everything(place.disk, "run")
    assert place.checkpoints.seal(manifest, pending=False, marker=told) == first
    assert everything(place.disk, "run") == before


@LAYOUTS
def test_an_abandoned_staging_is_swept_with_its_directories(place: Place, layout: Layout) -> None:
    staged(place, layout)
    assert place.checkpoints.observe(SAVE, plan=FULL) is None
    assert place.checkpoints.clear(epoch=2, abandoned=()) == (f"revoked-{SAVE}",)
    assert everything(place.disk, "run") == {} and place.disk.names(STAGING) == ()


@LAYOUTS
def test_a_released_optimizer_takes_the_directory_that_it_filled(place: Place, layout: Layout) -> None:
    known = sealed(place, layout)
    for _ in range(2):
        place.checkpoints.prune(SAVE, Part.OPTIMIZER, layout.optimizer)
        left = everything(place.disk, PATH)
        assert not left.keys() & set(layout.optimizer) and left.keys() >= set(layout.names) - set(layout.optimizer)
        assert layout.emptied and not any(place.disk.stat(f"{PATH}/{folder}") for folder in layout.emptied)
        assert place.checkpoints.examine(known, lost=Part.OPTIMIZER) == ""
        place.checkpoints.resync()


def test_somebody_elses_file_keeps_a_released_directory(place: Place) -> None:
    known = sealed(place, SHARDS)
    write(place.disk, f"{PATH}/optim/notes", b"mine")
    place.checkpoints.prune(SAVE, Part.OPTIMIZER, SHARDS.optimizer)
    assert place.disk.names(f"{PATH}/optim") == ("notes",)
    assert place.checkpoints.examine(known, lost=Part.OPTIMIZER) == ""


@LAYOUTS
def test_a_removed_checkpoint_is_gone_with_its_directories(place: Place, layout: Layout) -> None:
    sealed(place, layout)
    for _ in range(2):
        place.checkpoints.prune(SAVE, Part.CHECKPOINT, layout.names)
        assert place.disk.names(FULL_TREE) == (".staging",) and place.disk.names(STAGING) == ()


@pytest.mark.parametrize("verb", ["unlink", "rmdir", "sync_dir", "names"])
def test_a_release_that_failed_goes_on_where_it_stopped(verb: str) -> None:
    disk = SimulatedDisk()
    place = place_on(disk)
    known = sealed(place, BOUNDARY)
    disk.hardware.faults = fault_on(verb, Fault(error=errno.EIO), nth=2 if verb in ("unlink", "sync_dir") else 1)
    with pytest.raises(Unavailable, match="removing the optimizer of iter_000000007 failed"):
        place.checkpoints.prune(SAVE, Part.OPTIMIZER, BOUNDARY.optimizer)
    disk.hardware.faults = no_fault
    place.checkpoints.prune(SAVE, Part.OPTIMIZER, BOUNDARY.optimizer)
    assert place.checkpoints.examine(known, lost=Part.OPTIMIZER) == ""
    assert disk.names(f"{PATH}/policy") == ("model.pt",) and disk.names(f"{PATH}/critic") == ("trainer.pt",)


def test_a_lost_or_shorter_file_in_a_directory_is_a_problem(place: Place) -> None:
    known = sealed(place, BOUNDARY)
    write(place.disk, f"{PATH}/policy/optim/.metadata", b"short")
    assert "policy/optim/.metadata: expected" in place.checkpoints.examine(known, lost=None)
    place.disk.unlink(f"{PATH}/policy/optim/.metadata")
    place.disk.rmdir(f"{PATH}/policy/optim")
    assert "policy/optim/.metadata: expected" in place.checkpoints.examine(known, lost=None)


# --- the marker (INV-15) --------------------------------------------------------------------------------------


def test_the_marker_is_the_last_file_that_is_written() -> None:
    disk = SimulatedDisk()
    sealed(place_on(disk), BOUNDARY)
    made = [operation.path.rpartition("/")[2] for operation in disk.trace if operation.verb == "create"]
    assert made[-2:] == [MANIFEST, SUCCESS]


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (None, "no _SUCCESS beside the roles critic, policy"),
        (b"", "found no such JSON"),
        (b'{"version": 1, "iteration": 8}\n', "_SUCCESS is of iteration 8, the manifest of 7"),
        (
            b'{"version": 1, "iteration": 7, "counters": {"policy": 4}}\n',
            "commits the roles policy, the manifest has",
        ),
        (b'{"version": 2, "iteration": 7}\n', "a marker of version 2"),
    ],
)
def test_roles_without_their_marker_are_no_checkpoint(place: Place, told: bytes | None, problem: str) -> None:
    known = sealed(place, BOUNDARY)
    place.disk.unlink(f"{PATH}/{SUCCESS}")
    if told is not None:
        write(place.disk, f"{PATH}/{SUCCESS}", told)
    (seen,) = place.checkpoints.published()
    assert problem in seen.problem and seen.found is not None
    assert problem in place.checkpoints.examine(known, lost=None)
    assert problem in place.checkpoints.examine(known, lost=Part.OPTIMIZER)


def test_a_marker_from_before_counters_is_one(place: Place) -> None:
    known = sealed(place, BOUNDARY)
    write(place.disk, f"{PATH}/{SUCCESS}", b'{"iteration": 7, "version": 1}')
    assert place.checkpoints.examine(known, lost=None) == ""
    assert marker.read(place.disk, PATH) == marker.Marker(iteration=7)


def test_one_trainer_needs_no_marker(place: Place) -> None:
    sealed(place, SHARDS)
    assert marker.read(place.disk, PATH) is None
