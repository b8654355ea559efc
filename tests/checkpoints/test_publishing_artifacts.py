"""Two kinds of published saves, each in its tree: a partial one never gets in the way of a full one."""

from __future__ import annotations

import pytest

from milepost.engines.checkpoints import GivenUp, generations
from milepost.engines.checkpoints.local import POINTER
from milepost.engines.checkpoints.manifest import ARTIFACT, MANIFEST
from milepost.transitions.validation import Generation
from milepost.transitions.values import FULL, Component, Plan, SaveId
from tests.checkpoints.places import (
    FULL_TREE,
    MODEL,
    PARTIAL_TREE,
    SAVE,
    Place,
    everything,
    reached,
    read,
    sealed,
    staged,
    write,
)

WITHOUT_OPTIMIZER: Plan = (Component.MODEL, Component.TRAINING_STATE)


def test_a_full_save_becomes_a_checkpoint_and_any_other_one_an_artifact(place: Place) -> None:
    for counter, plan in enumerate((FULL, MODEL, WITHOUT_OPTIMIZER), 1):
        sealed(place, SaveId(counter, 1, counter), plan=plan)
    assert set(everything(place.disk, FULL_TREE)) == {
        f"iter_000000001/{name}" for name in ("model.pt", "optim.pt", "trainer.pt", MANIFEST)
    }
    assert set(everything(place.disk, PARTIAL_TREE)) == {
        *(f"iter_000000002/{name}" for name in ("model.pt", ARTIFACT)),
        *(f"iter_000000003/{name}" for name in ("model.pt", "trainer.pt", ARTIFACT)),
    }
    assert [one.name for one in place.checkpoints.published()] == ["iter_000000001"]
    assert [one.name for one in place.checkpoints.artifacts()] == ["iter_000000002", "iter_000000003"]
    assert not any(one.problem for one in (*place.checkpoints.published(), *place.checkpoints.artifacts()))


def test_the_journal_is_told_the_name_of_each_manifest(place: Place) -> None:
    for save, plan, name in ((SaveId(1, 1, 1), FULL, MANIFEST), (SaveId(2, 1, 2), MODEL, ARTIFACT)):
        known = sealed(place, save, plan=plan)
        assert known.manifest is not None and known.manifest.path == name
        assert place.checkpoints.examine(known, lost=None) == ""
        found = place.checkpoints.observe(save, plan=plan)
        assert found is not None and found.file == known.manifest


def test_an_artifact_moves_no_pointer(place: Place) -> None:
    sealed(place)
    place.checkpoints.point(SAVE, epoch=1)
    sealed(place, SaveId(8, 1, 2), plan=MODEL)
    place.checkpoints.resync()
    assert read(place.disk, f"{FULL_TREE}/{POINTER}") == b"iter_000000007\n"


def test_a_second_artifact_of_a_step_is_given_up_and_the_first_stays(place: Place) -> None:
    sealed(place, plan=MODEL)
    before = everything(place.disk, PARTIAL_TREE)
    with pytest.raises(GivenUp, match="no work of this save") as refusal:
        sealed(place, SaveId(7, 1, 2), plan=WITHOUT_OPTIMIZER)
    assert refusal.value.code == "conflict"
    assert everything(place.disk, PARTIAL_TREE) == before


def test_a_checkpoint_and_an_artifact_of_one_step_lie_side_by_side(place: Place) -> None:
    artifact, full = sealed(place, plan=MODEL), sealed(place, SaveId(7, 1, 2))
    assert place.checkpoints.examine(artifact, lost=None) == place.checkpoints.examine(full, lost=None) == ""
    names = [name for name, _ in place.checkpoints.witnesses()]
    assert names == ["iter_000000007", "checkpoint_artifacts/iter_000000007"]


@pytest.mark.parametrize("plan", [FULL, MODEL])
def test_sealing_twice_is_sealing_once(place: Place, plan: Plan) -> None:
    manifest = staged(place, plan=plan)
    first = place.checkpoints.seal(manifest, pending=plan == FULL)
    before = everything(place.disk, "run")
    assert place.checkpoints.seal(manifest, pending=plan == FULL) == first
    assert everything(place.disk, "run") == before


def test_a_pending_checkpoint_says_so_when_it_becomes_visible(place: Place) -> None:
    known = sealed(place, pending=True)
    path = f"{FULL_TREE}/{SAVE.directory}"
    assert generations.read(place.disk, path) is Generation.EVALUATION_PENDING
    assert place.checkpoints.examine(known, lost=None) == ""
    sealed(place, SaveId(8, 1, 2))
    assert generations.read(place.disk, f"{FULL_TREE}/iter_000000008") is None


@pytest.mark.parametrize("plan", [FULL, MODEL])
def test_an_unpublished_save_is_revoked_in_either_tree(place: Place, plan: Plan) -> None:
    manifest = staged(place, plan=plan)
    assert place.checkpoints.observe(SAVE, plan=plan) is None
    assert place.checkpoints.observe(SAVE, plan=plan) is None
    with pytest.raises(GivenUp):
        place.checkpoints.seal(manifest, pending=False)
    assert place.checkpoints.clear(epoch=2, abandoned=()) == (f"revoked-{SAVE}",)
    assert everything(place.disk, "run") == {}


def test_a_manifest_in_the_wrong_tree_makes_no_save(place: Place) -> None:
    sealed(place, plan=MODEL)
    sealed(place, SaveId(8, 1, 2))
    place.disk.rename(f"{PARTIAL_TREE}/{SAVE.directory}", f"{FULL_TREE}/{SAVE.directory}")
    place.disk.rename(f"{FULL_TREE}/{SAVE.directory}/{ARTIFACT}", f"{FULL_TREE}/{SAVE.directory}/{MANIFEST}")
    wrong, sound = place.checkpoints.published()
    assert (wrong.name, wrong.found) == (SAVE.directory, None) and ARTIFACT in wrong.problem
    assert sound.problem == ""


@pytest.mark.parametrize("at", [0, 40, -20])
def test_a_damaged_artifact_stops_neither_an_opening_nor_a_later_save(place: Place, at: int) -> None:
    known = sealed(place, plan=MODEL)
    path = f"{PARTIAL_TREE}/{SAVE.directory}/{ARTIFACT}"
    data = bytearray(read(place.disk, path))
    data[at] ^= 1
    write(place.disk, path, bytes(data))
    staged(place, SaveId(7, 1, 2))
    assert ARTIFACT in place.checkpoints.examine(known, lost=None)
    assert place.checkpoints.witnesses() == ()
    place.checkpoints.resync()
    assert place.checkpoints.clear(epoch=2, abandoned=()) == ("7.1.2",)
    full = sealed(place, SaveId(7, 2, 1))
    assert place.checkpoints.examine(full, lost=None) == ""


def test_the_tree_of_artifacts_is_made_by_the_first_of_them(place: Place) -> None:
    assert place.disk.stat(PARTIAL_TREE) is None
    assert place.checkpoints.artifacts() == () and place.checkpoints.witnesses() == ()
    reached(place.disk).checkpoints.resync()
    assert place.disk.stat(PARTIAL_TREE) is None
    sealed(place, plan=MODEL)
    assert [one.name for one in place.checkpoints.artifacts()] != []
