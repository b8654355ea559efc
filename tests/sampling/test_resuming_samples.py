"""The boundary that a checkpoint carries, and every way in which a run comes to resume from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from milepost.engines.archive.reader import fetch
from milepost.engines.checkpoints.manifest import MANIFEST, decode
from milepost.engines.disks.local import LocalDisk
from milepost.journal import Config, Corrupt, Journal, NewerVersion, Refused, SamplingBoundary, SamplingToken
from milepost.journal.forensics.reading import locate
from milepost.journal.forensics.verifying import verify
from milepost.journal.sampling.boundaries import point_of
from milepost.transitions.run import RunResumed
from milepost.transitions.sampling import SamplingRestored
from milepost.transitions.values import Component
from tests.direct_runs import stores as direct
from tests.journal import test_several_roles as roles
from tests.journal.runs import StillAmbient, train
from tests.journal.stores import Stores
from tests.sampling.runs import START, at, carried, opened, settings, train_to


def sample_and_save(settings: Config, **keywords: Any) -> Journal:
    """Two steps, saved at the second with work 1 settled, 2 in part and 3 settled; all is settled behind it."""
    with opened(settings, **keywords) as (journal, training):
        ledger = journal.sampling
        ledger.begin(START)
        tokens = [ledger.issue(at(99)), ledger.issue(at(97), 2), ledger.issue(at(96, epoch=2))]
        for token in (tokens[2], tokens[1], tokens[0]):
            ledger.settle(token)
        train_to(journal, training, 2)
        ledger.settle(tokens[1], 1)
        assert ledger.boundary == at(96, epoch=2)
        journal.close()
    return journal


def checkpoint(journal: Journal) -> Path:
    return Path(journal.run_dir) / "checkpoints/iter_000000002"


SAVED = at(99)


class TestTheFile:
    def test_a_checkpoint_carries_the_boundary_of_the_moment_in_which_its_save_was_opened(
        self, tmp_path: Path
    ) -> None:
        sample_and_save(settings(tmp_path))
        (data,) = carried(tmp_path).values()
        assert json.loads(data) | {"sum": ""} == {
            "format": "milepost.sampling.v1",
            "epoch": 1,
            "remaining": 99,
            "sampler_state": '{"offset":1}',
            "sum": "",
        }

    @pytest.mark.parametrize("knob", ["digest=blake3", "digest=sha256", "checkpoint_format=dcp"])
    def test_its_manifest_lists_it_as_training_state_and_verify_proves_it(self, tmp_path: Path, knob: str) -> None:
        journal = sample_and_save(settings(tmp_path, knob))
        found = decode((checkpoint(journal) / MANIFEST).read_bytes(), where="")
        (part,) = (one for one in found.components if one.component is Component.TRAINING_STATE)
        assert [file.path for file in part.files].count("sampling.json") == 1
        assert journal.state.saving.sealed[2].files == found.files
        assert verify(locate(journal.run_dir)).exit_code == 0
        (checkpoint(journal) / "sampling.json").write_bytes(b"{}")
        assert verify(locate(journal.run_dir)).exit_code == 5

    def test_a_run_that_samples_nothing_has_the_same_checkpoint_as_ever(self, tmp_path: Path) -> None:
        with opened(settings(tmp_path / "without")) as (journal, training):
            train_to(journal, training, 2)
            assert (journal.sampling.boundary, journal.sampling.outstanding) == (None, 0)
        assert carried(tmp_path) == {}
        names = {path.name for path in checkpoint(journal).iterdir()}
        assert names == {MANIFEST, "data.pt", "model.pt", "optim.pt", "trainer.pt"}
        kinds = {record.KIND for entry, _ in journal.history() for record in entry.records}
        assert not kinds & {"sampling-restored", "work-issued", "work-settled"}

    def test_the_other_files_of_a_checkpoint_are_byte_for_byte_the_same_with_it(self, tmp_path: Path) -> None:
        _, without = train(settings(tmp_path / "without"), until=2)
        sampling = sample_and_save(settings(tmp_path / "with"))
        for path in checkpoint(without).iterdir():
            if path.name != MANIFEST:
                assert path.read_bytes() == (checkpoint(sampling) / path.name).read_bytes()

    def test_an_artifact_does_not_carry_it(self, tmp_path: Path) -> None:
        with pytest.warns(UserWarning, match="model"):
            sample_and_save(settings(tmp_path, "checkpoint_components=[model,training_state]"))
        assert list(tmp_path.glob("**/checkpoint_artifacts/iter_000000002/trainer.pt"))
        assert carried(tmp_path) == {}


class TestResuming:
    def test_a_run_samples_on_from_its_newest_checkpoint(self, tmp_path: Path) -> None:
        first = sample_and_save(settings(tmp_path))
        with opened(settings(tmp_path)) as (journal, _):
            assert journal.resumption.sampling == journal.sampling.boundary == SAVED
            assert journal.sampling.begin(START) == SAVED
            assert journal.sampling.outstanding == 0
            assert journal.state.sampling.issued == 3
            (resumed,) = (e for e, _ in journal.history() if isinstance(e.records[0], RunResumed) and e.epoch == 2)
            assert resumed.records[1:] == (SamplingRestored(boundary=point_of(SAVED)),)
            for number in (1, 2, 3):
                assert not journal.sampling.settle(SamplingToken(first.execution_id, number, 1), 99)
                assert not journal.sampling.settle(SamplingToken(journal.execution_id, number, 1), 99)
            token = journal.sampling.issue(at(97), 2)
            assert token.number == 4
            with pytest.raises(Refused, match="found 90"):
                journal.sampling.issue(at(90))

    def test_what_was_restored_is_carried_on_where_nothing_is_issued(self, tmp_path: Path) -> None:
        sample_and_save(settings(tmp_path))
        with opened(settings(tmp_path)) as (journal, training):
            train_to(journal, training, 4)
        found = carried(tmp_path)
        assert found[4] == found[2]

    def test_a_copy_is_resumed_from_by_its_path_and_so_is_another_run(self, tmp_path: Path) -> None:
        first = sample_and_save(settings(tmp_path / "a"))
        shutil.copytree(checkpoint(first), tmp_path / "copies/iter_000000002")
        for path in (tmp_path / "copies/iter_000000002", checkpoint(first)):
            root = tmp_path / f"of {path.parent.name}"
            with opened(settings(root, f"resume={path}")) as (journal, _):
                assert journal.resumption.sampling == journal.sampling.boundary == SAVED

    def test_a_path_into_the_run_itself_is_resumed_from(self, tmp_path: Path) -> None:
        first = sample_and_save(settings(tmp_path))
        with opened(settings(tmp_path, f"resume={checkpoint(first)}")) as (journal, _):
            assert journal.resumption.sampling == SAVED

    def test_an_archive_brings_it_back(self, tmp_path: Path) -> None:
        archive = Stores()
        upload = ("upload.enabled=true", "upload.bucket=archive")
        first = sample_and_save(settings(tmp_path / "a", *upload), remotes=archive)
        prefix = f"{Path(first.run_dir).relative_to(tmp_path / 'a')}/checkpoints/iter_000000002"
        (tmp_path / "back").mkdir()
        home = archive(f"s3://archive/{prefix}", None)
        fetch(home, LocalDisk(tmp_path / "back"), "iter_000000002", ambient=StillAmbient())
        with opened(settings(tmp_path / "b", f"resume={tmp_path}/back/iter_000000002")) as (journal, _):
            assert journal.resumption.sampling == SAVED

    def test_a_checkpoint_without_it_restores_nothing_and_sampling_begins_as_if_fresh(self, tmp_path: Path) -> None:
        train(settings(tmp_path), until=2)
        with opened(settings(tmp_path)) as (journal, _):
            assert (journal.resumption.step, journal.resumption.sampling) == (2, None)
            assert journal.sampling.boundary is None
            assert journal.sampling.begin(START) == START

    def test_a_new_attempt_restores_nothing(self, tmp_path: Path) -> None:
        sample_and_save(settings(tmp_path))
        with opened(settings(tmp_path, "resume=off")) as (journal, _):
            assert (journal.resumption.kind, journal.resumption.sampling) == ("fresh", None)

    def test_several_roles_share_one_boundary(self, tmp_path: Path) -> None:
        trainings = roles.fresh()
        with roles.opened(settings(tmp_path), trainings) as journal:
            journal.sampling.begin(START)
            journal.sampling.settle(journal.sampling.issue(at(99)))
            roles.train(journal, trainings, until=2)
        with roles.opened(settings(tmp_path), roles.fresh()) as journal:
            assert journal.resumption.sampling == journal.sampling.boundary == at(99)
        assert verify(locate(journal.run_dir)).exit_code == 0


class TestABucket:
    def test_a_direct_primary_carries_it_under_the_key_of_its_attempt(self, tmp_path: Path) -> None:
        cloud = direct.Cloud()
        training = direct.Training()
        with direct.opened(direct.config(tmp_path), training, remotes=cloud.remotes) as journal:
            journal.sampling.begin(START)
            journal.sampling.settle(journal.sampling.issue(at(99)))
            train_to(journal, training, 2)
        key = "iter_000000002/.posttrain/generations/2.1.1/sampling.json"
        assert json.loads(cloud.tree(f"{direct.ROOT}/")[key])["remaining"] == 99
        assert verify(locate(direct.RUN, opener=cloud.remotes)).exit_code == 0
        again = direct.Training()
        with direct.opened(direct.config(tmp_path), again, remotes=cloud.remotes) as journal:
            assert journal.resumption.sampling == journal.sampling.boundary == at(99)

    def test_an_address_elsewhere_is_resumed_from(self, tmp_path: Path) -> None:
        cloud = direct.Cloud()
        training = direct.Training()
        with direct.opened(direct.config(tmp_path), training, remotes=cloud.remotes) as journal:
            journal.sampling.begin(SAVED)
            train_to(journal, training, 2)
        cloud.copy(f"{direct.ROOT}/iter_000000002/", "kept/iter_000000002/", to="other")
        beside = ("checkpoint_store.prefix=exp/two/checkpoints", "resume=s3://other/kept/iter_000000002")
        with direct.opened(
            direct.config(tmp_path / "b", *beside), direct.Training(), remotes=cloud.remotes
        ) as journal:
            assert journal.resumption.sampling == SAVED


class TestDamage:
    def elsewhere(self, tmp_path: Path) -> Path:
        """A copy of the checkpoint, which the journal of no run knows."""
        return Path(
            shutil.copytree(checkpoint(sample_and_save(settings(tmp_path / "a"))), tmp_path / "iter_000000002")
        )

    def resumed_from(self, tmp_path: Path, path: Path, *overrides: str) -> SamplingBoundary | None:
        with opened(settings(tmp_path / "b", f"resume={path}", *overrides)) as (journal, _):
            return journal.resumption.sampling

    @pytest.mark.parametrize("knob", ["verify_on_resume=true", "verify_on_resume=false"])
    def test_other_bytes_are_corrupt_whether_or_not_payload_is_verified(self, tmp_path: Path, knob: str) -> None:
        path = self.elsewhere(tmp_path)
        file = path / "sampling.json"
        file.write_bytes(file.read_bytes().replace(b'"remaining":99', b'"remaining":98'))
        with pytest.raises(Corrupt, match=r"sampling\.json: expected \d+ bytes with digest blake3:"):
            self.resumed_from(tmp_path, path, knob)

    def test_a_file_that_is_gone_is_corrupt(self, tmp_path: Path) -> None:
        path = self.elsewhere(tmp_path)
        (path / "sampling.json").unlink()
        with pytest.raises(Corrupt, match=r"sampling\.json: expected a sampling boundary, found"):
            self.resumed_from(tmp_path, path)

    @pytest.mark.parametrize(
        ("fields", "error", "says"),
        [
            ({"epoch": 0}, Corrupt, "expected an epoch from 1, a budget that is not negative"),
            ({"remaining": -1}, Corrupt, "expected an epoch from 1, a budget that is not negative"),
            ({"sampler_state": "{"}, Corrupt, "and a sampler state in JSON"),
            ({"epoch": True}, Corrupt, "epoch: expected int"),
            ({"more": 1}, Corrupt, "expected the keys"),
            ({"format": "milepost.sampling.v2"}, NewerVersion, r"format milepost\.sampling\.v2"),
            ({"format": "milepost.manifest.v1"}, Corrupt, "expected the format"),
        ],
    )
    def test_what_is_proven_and_no_boundary_is_told_apart(
        self, tmp_path: Path, fields: dict[str, object], error: type[Exception], says: str
    ) -> None:
        path = self.elsewhere(tmp_path)
        rewritten(path, fields)
        with pytest.raises(error, match=says):
            self.resumed_from(tmp_path, path)
        rewritten(path, {})
        assert self.resumed_from(tmp_path, path) == SAVED


def rewritten(path: Path, fields: dict[str, object]) -> None:
    """The sampling file with other fields, proven again by itself and by the manifest."""
    from blake3 import blake3

    document = {
        "format": "milepost.sampling.v1",
        "epoch": 1,
        "remaining": 99,
        "sampler_state": '{"offset":1}',
        **fields,
    }
    data = proven(document)
    (path / "sampling.json").write_bytes(data)
    manifest = json.loads((path / MANIFEST).read_bytes())
    del manifest["sum"]
    for part in manifest["components"]:
        for file in part["files"]:
            if file["path"] == "sampling.json":
                file |= {"size": len(data), "digest": f"blake3:{blake3(data).hexdigest()}"}
    (path / MANIFEST).write_bytes(proven(manifest))


def proven(document: dict[str, object]) -> bytes:
    import orjson
    from blake3 import blake3

    body = orjson.dumps(document)[:-1]
    return body + f',"sum":"blake3:{blake3(body).hexdigest()}"}}\n'.encode()
