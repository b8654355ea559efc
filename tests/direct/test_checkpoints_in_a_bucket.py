"""The verbs of checkpoints in a bucket: what they leave, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from attrs import evolve

from milepost.engines.buckets.reading import BucketDisk
from milepost.engines.checkpoints import GivenUp, Uncertain, direct_names, generations
from milepost.engines.checkpoints.local import POINTER
from milepost.engines.checkpoints.manifest import ARTIFACT, MANIFEST, digest_of, encode
from milepost.engines.checkpoints.parts import component_of, tree_of
from milepost.engines.checkpoints.roles import roles_of
from milepost.engines.formats import read_pt, stream
from milepost.engines.formats.dcp import read_dcp
from milepost.engines.simulated.bucket import SimulatedBucket, StoreFault
from milepost.transitions.errors import Corrupt, Fenced, Refused
from milepost.transitions.retention import Part
from milepost.transitions.saving import Save, SaveStage
from milepost.transitions.validation import Generation
from milepost.transitions.values import FULL, Component, Mode, Reason, SaveId
from tests.direct.places import ARTIFACTS, ROOT, SAVE, Claims, direct, manifests, pointed, saved, stored, writer

MODEL = (Component.MODEL,)
HERE = f"{ROOT}/{SAVE.directory}"
NEXT = SaveId(7, 2, 1)


class TestWhatIsSaved:
    def test_every_payload_key_but_metadata_has_the_id_of_its_save(self) -> None:
        store = SimulatedBucket()
        saved(direct(store), pending=True)
        assert {key.removeprefix(f"{HERE}/") for key in store.tree()} == {
            "model/7.1.1__0_0.distcp",
            "model/.metadata",
            "optim/7.1.1__0_0.distcp",
            "optim/.metadata",
            ".posttrain/generations/7.1.1/trainer.pt",
            ".posttrain/generations/7.1.1/data.pt",
            ".posttrain-validation.0.json",
            MANIFEST,
        }
        changed = [one.key for one in store.trace if one.verb in ("put", "complete")]
        assert changed[-2:] == [f"{HERE}/.posttrain-validation.0.json", f"{HERE}/{MANIFEST}"]

    def test_the_payload_reads_back_in_place(self) -> None:
        store = SimulatedBucket()
        manifest = saved(direct(store))
        disk = BucketDisk(store)
        files = {file.path: file for file in manifest.files}
        for name, key in (("model", "w"), ("optim", "m")):
            within = {path.removeprefix(f"{name}/"): file for path, file in files.items() if tree_of(path) == name}
            tree = read_dcp(disk, f"{HERE}/{name}", files=within, into=None, rank=0, world_size=1, verify=True)
            assert isinstance(tree, dict)
            expected = torch.arange(4.0) + 1 if name == "model" else torch.ones(3) + 1
            assert torch.equal(tree[key], expected)
        small = files[".posttrain/generations/7.1.1/trainer.pt"]
        with disk.open(f"{HERE}/{small.path}") as source:
            assert read_pt(source, digest=small.digest, where="it") == {"s": 7}

    def test_small_files_of_an_attempt_belong_to_their_trees_and_to_no_role(self) -> None:
        manifest = saved(direct(SimulatedBucket()))
        assert {tree_of(file.path) for file in manifest.files} == {"model", "optim", "trainer", "data"}
        assert roles_of(manifest.files) == ()
        assert component_of(tree_of(".posttrain/generations/7.1.1/data.pt")) is Component.TRAINING_STATE

    def test_a_published_save_is_found_examined_and_no_problem(self) -> None:
        store = SimulatedBucket()
        checkpoints = direct(store)
        manifest = saved(checkpoints)
        file = digest_of(encode(manifest))
        (one,) = checkpoints.published()
        assert (one.name, one.problem, one.found and one.found.file) == (SAVE.directory, "", file)
        known = Save(
            id=SAVE,
            stage=SaveStage.SEALED,
            plan=FULL,
            reason=Reason.CADENCE,
            mode=Mode.SYNCHRONOUS,
            components=manifest.components,
            manifest=file,
        )
        assert checkpoints.examine(known, lost=None) == ""
        store.delete(f"{HERE}/model/7.1.1__0_0.distcp")
        assert "model/7.1.1__0_0.distcp" in checkpoints.examine(known, lost=None)

    def test_an_artifact_lies_in_its_own_tree(self) -> None:
        store = SimulatedBucket()
        checkpoints = direct(store)
        saved(checkpoints, plan=MODEL)
        assert checkpoints.published() == ()
        assert [one.problem for one in checkpoints.artifacts()] == [""]
        assert all(key.startswith(f"{ARTIFACTS}/") for key in store.tree())
        assert f"{ARTIFACTS}/{SAVE.directory}/{ARTIFACT}" in store.tree()

    def test_payload_that_was_put_into_the_other_tree_is_not_sealed(self) -> None:
        store = SimulatedBucket()
        manifest = stored(direct(store))
        partial = evolve(manifest, plan=MODEL, components=manifest.components[:1])
        with pytest.raises(GivenUp, match="incomplete"):
            direct(store).seal(partial, pending=False)

    def test_a_half_written_or_revoked_iteration_is_no_published_name(self) -> None:
        store = SimulatedBucket()
        checkpoints = direct(store)
        stored(checkpoints)
        assert checkpoints.published() == ()
        assert checkpoints.observe(SAVE, plan=FULL) is None
        assert checkpoints.published() == ()
        store.wire.put(f"{HERE}/{MANIFEST}", b"garbage", condition="any")
        (one,) = checkpoints.published()
        assert one.found is None
        assert "expected a manifest" in one.problem

    def test_witnesses_are_those_of_the_newest_in_both_trees(self) -> None:
        store = SimulatedBucket()
        checkpoints = direct(store)
        for step in range(1, 7):
            saved(checkpoints, SaveId(step, 1, step))
        saved(checkpoints, SaveId(9, 1, 7), plan=MODEL)
        names = [name for name, _ in checkpoints.witnesses()]
        assert names == ["iter_000000006", "iter_000000005", "iter_000000004", "checkpoint_artifacts/iter_000000009"]
        checkpoints.point(SaveId(6, 1, 6), epoch=1)
        before = len(store.trace)
        assert dict(checkpoints.witnesses())["iter_000000006"].seq == 66
        read = {one.key for one in store.trace[before:] if one.verb == "fetch"}
        assert f"{ROOT}/iter_000000005/{MANIFEST}" not in read

    def test_retention_is_refused(self) -> None:
        with pytest.raises(Refused, match="nothing that was published"):
            direct(SimulatedBucket()).prune(SAVE, Part.CHECKPOINT, ())


class TestSealing:
    def test_sealing_again_looks_at_the_files_and_writes_nothing(self) -> None:
        store = SimulatedBucket()
        checkpoints = direct(store)
        manifest = saved(checkpoints, pending=True)
        before = store.tree()
        later = evolve(manifest, witness=evolve(manifest.witness, seq=99))
        for again in (manifest, later):
            assert checkpoints.seal(again, pending=True) == digest_of(encode(manifest))
        assert store.tree() == before
        store.delete(f"{HERE}/model/.metadata")
        with pytest.raises(Corrupt, match=r"model/.metadata: expected .* found nothing"):
            checkpoints.seal(manifest, pending=True)

    def test_a_retry_with_other_files_is_corrupt(self) -> None:
        store = SimulatedBucket()
        manifest = saved(direct(store))
        with pytest.raises(Corrupt, match="with other files"):
            direct(store).seal(evolve(manifest, components=manifest.components[:2]), pending=False)

    def test_another_save_at_the_step_gives_up_and_changes_nothing(self) -> None:
        store = SimulatedBucket()
        saved(direct(store), pending=True)
        before = manifests(store)
        objects = store.tree()
        with pytest.raises(GivenUp, match="conflict"):
            saved(direct(store), NEXT, pending=True)
        assert manifests(store) == before
        assert all(store.tree()[key] == data for key, data in objects.items())

    @pytest.mark.parametrize("name", ["model/7.1.1__0_0.distcp", "optim/.metadata"])
    def test_a_file_that_is_not_there_keeps_the_manifest_away(self, name: str) -> None:
        store = SimulatedBucket()
        manifest = stored(direct(store))
        store.delete(f"{HERE}/{name}")
        with pytest.raises(GivenUp, match="incomplete"):
            direct(store).seal(manifest, pending=False)
        assert manifests(store) == {}

    def test_the_first_generation_of_another_attempt_is_replaced_or_in_the_way(self) -> None:
        store = SimulatedBucket()
        store.create(
            f"{HERE}/.posttrain-validation.0.json",
            generations.encode(SAVE, Generation.EVALUATION_PENDING),
            deadline_s=1,
        )
        manifest = stored(direct(store), NEXT)
        with pytest.raises(GivenUp, match="conflict"):
            direct(store).seal(manifest, pending=False)
        direct(store).seal(manifest, pending=True)
        assert generations.read(BucketDisk(store), HERE) is Generation.EVALUATION_PENDING
        assert [one.problem for one in direct(store).published()] == [""]

    def test_an_unknown_answer_is_uncertain(self) -> None:
        store = SimulatedBucket()
        manifest = stored(direct(store))
        store.store.faults = lambda site: (
            StoreFault(status=503) if site.path.endswith(MANIFEST) and site.verb == "put" else None
        )
        with pytest.raises(Uncertain):
            direct(store).seal(manifest, pending=False)
        with pytest.raises(Uncertain):
            direct(store).observe(SAVE, plan=FULL)


class TestPayload:
    def test_a_store_that_fails_gives_the_save_up(self) -> None:
        store = SimulatedBucket()
        checkpoints = direct(store)
        store.store.faults = lambda site: StoreFault(status=500) if site.verb in ("put", "part", "begin") else None
        (image,) = stream({"trainer": {"s": 1}})
        with pytest.raises(GivenUp, match="Unavailable"):
            checkpoints.put(SAVE, image)
        with pytest.raises(GivenUp, match="unknown"):
            checkpoints.put_bytes(SAVE, "model/.metadata", b"m")
        assert store.tree() == {}

    def test_metadata_of_an_earlier_attempt_is_replaced_unless_a_manifest_is_beside_it(self) -> None:
        store = SimulatedBucket()
        checkpoints = direct(store)
        stored(checkpoints)
        checkpoints.put_bytes(NEXT, "model/.metadata", b"mine")
        assert store.tree()[f"{HERE}/model/.metadata"] == b"mine"
        store = SimulatedBucket()
        saved(direct(store))
        before = store.tree()
        with pytest.raises(GivenUp, match="conflict"):
            direct(store).put_bytes(NEXT, "model/.metadata", b"mine")
        assert store.tree() == before

    def test_leftover_uploads_of_earlier_attempts_are_aborted_and_no_others(self) -> None:
        store = SimulatedBucket()
        ids = (SAVE, NEXT, SaveId(7, 3, 1), SaveId(8, 1, 1))
        for save in ids:
            store.wire.begin(f"{ROOT}/{save.directory}/model/{save}__0_0.distcp")
        store.wire.begin(f"{ROOT}/notes/data")
        direct(store).stage(NEXT, size=1)
        assert [one.key.rpartition("/")[2] for one in store.uploads(ROOT)] == [
            "7.2.1__0_0.distcp",
            "7.3.1__0_0.distcp",
            "8.1.1__0_0.distcp",
            "data",
        ]
        store.wire.begin(f"{ARTIFACTS}/iter_000000009/.posttrain/generations/9.1.2/trainer.pt")
        assert direct(store).clear(epoch=2, abandoned=(NEXT,)) == (
            "iter_000000007/model/7.2.1__0_0.distcp",
            "iter_000000008/model/8.1.1__0_0.distcp",
            "iter_000000009/.posttrain/generations/9.1.2/trainer.pt",
        )
        assert len(store.uploads(ROOT)) == 2
        assert direct(store).clear(epoch=2, abandoned=(NEXT,)) == ()

    def test_an_overtaken_writer_stages_nothing(self) -> None:
        store, claims = SimulatedBucket(), Claims()
        one = writer(store, claims)
        claims.claim()
        with pytest.raises(Fenced):
            one.checkpoints.stage(SAVE, size=1)


class TestMarksAndThePointer:
    def test_a_mark_is_created_once_and_never_replaced(self) -> None:
        store = SimulatedBucket()
        checkpoints = direct(store)
        saved(checkpoints, pending=True)
        for _ in range(2):
            checkpoints.mark(SAVE, Generation.PUBLICATION_PENDING)
        assert generations.read(BucketDisk(store), HERE) is Generation.PUBLICATION_PENDING
        store.wire.put(f"{HERE}/.posttrain-validation.2.json", b"other", condition="any")
        with pytest.raises(Corrupt, match="found other bytes"):
            checkpoints.mark(SAVE, Generation.PUBLISHED)
        with pytest.raises(Corrupt, match=r"expected the checkpoint of save 7\.2\.1"):
            checkpoints.mark(NEXT, Generation.PUBLICATION_PENDING)

    def test_the_pointer_goes_forward_only_and_heals(self) -> None:
        store = SimulatedBucket()
        checkpoints = direct(store)
        for step in (1, 2, 2):
            checkpoints.point(SaveId(step, 1, 1), epoch=1)
        assert pointed(store) == "iter_000000002"
        with pytest.raises(Corrupt, match="or an earlier checkpoint, found iter_000000002"):
            checkpoints.point(SaveId(1, 1, 1), epoch=1)
        store.wire.put(f"{ROOT}/{POINTER}", b"nonsense", condition="any")
        checkpoints.point(SaveId(3, 1, 1), epoch=1)
        assert pointed(store) == "iter_000000003"


class TestTombstones:
    def test_a_tombstone_names_its_save_and_is_no_manifest(self) -> None:
        data = direct_names.encode(SAVE)
        assert direct_names.revoked(data, where="it") == SAVE
        assert direct_names.revoked(data[:-3], where="it") is None
        assert b'"format":"milepost.revoked.v1"' in data

    @pytest.mark.parametrize("plan", [FULL, MODEL], ids=["checkpoint", "artifact"])
    def test_a_revoked_save_is_never_sealed_and_its_step_may_be_saved_again(
        self, plan: tuple[Component, ...]
    ) -> None:
        store = SimulatedBucket()
        checkpoints = direct(store)
        manifest = stored(checkpoints, plan=plan)
        for _ in range(2):
            assert checkpoints.observe(SAVE, plan=plan) is None
        with pytest.raises(GivenUp, match="conflict"):
            checkpoints.seal(manifest, pending=False)
        second = stored(checkpoints, NEXT, plan=plan)
        assert checkpoints.observe(NEXT, plan=plan) is None
        third = saved(checkpoints, SaveId(7, 3, 1), plan=plan)
        with pytest.raises(GivenUp, match="conflict"):
            checkpoints.seal(second, pending=False)
        assert list(manifests(store).values()) == [third]
        assert checkpoints.observe(NEXT, plan=plan) is None
        found = checkpoints.observe(third.save, plan=plan)
        assert found is not None
        assert found.manifest == third
