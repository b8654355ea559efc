"""Every golden run folds, verifies and resumes as it did when it was written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
from attrs import asdict

from milepost.engines.disks.local import LocalDisk
from milepost.engines.shapes import shape_of
from milepost.journal import Journal
from milepost.journal.forensics.reading import Place, locate
from milepost.journal.forensics.verifying import verify
from milepost.journal.log.codec import CODEC
from milepost.journal.log.entries import is_whole
from milepost.journal.log.replay import fold, replay
from milepost.transitions.invariants import violations
from milepost.transitions.machine import State, initial
from tests.direct_runs import stores as direct
from tests.journal.runs import FakeWatch, StillAmbient, Training, config

GOLDEN = Path(__file__).parents[2] / "spec" / "golden"
VERSIONS = sorted(path.parent.name for path in GOLDEN.glob("*/run"))


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest) -> Path:
    return GOLDEN / str(request.param)


def expected_of(golden: Path) -> dict[str, Any]:
    expected: dict[str, Any] = orjson.loads((golden / "expected.json").read_bytes())
    return expected


def whole(expected: dict[str, Any]) -> dict[str, Any]:
    """The state that a version expected; what a later one added to a room is as it is before the first record."""
    first = shape_of(State).write(initial())
    assert isinstance(first, dict)
    return {room: part | expected.get(room, {}) for room, part in first.items()}


def place_of(golden: Path) -> Place:
    return Place(disk=LocalDisk(golden), path="run")


def test_there_is_a_golden_run_of_every_version_of_the_formats() -> None:
    assert VERSIONS == ["0.1", "0.2", "0.3", "0.4", "0.5"]


def test_a_golden_journal_folds_to_the_state_that_it_had(golden: Path) -> None:
    folded, expected = fold(place_of(golden).log), expected_of(golden)
    assert (folded.head.seq, folded.head.sum) == (expected["seq"], expected["sum"])
    assert shape_of(State).write(folded.state) == whole(expected["state"])


def test_no_entry_of_a_golden_journal_breaks_an_invariant(golden: Path) -> None:
    before = initial()
    for entry, state in replay(place_of(golden).log):
        assert violations(before, state) == (), entry.seq
        before = state


def test_verify_says_of_a_golden_run_what_it_said(golden: Path) -> None:
    assert verify(place_of(golden)).exit_code == expected_of(golden)["verify"]


def test_a_golden_run_resumes_with_the_parameters_that_it_saved(golden: Path, tmp_path: Path) -> None:
    expected = expected_of(golden)
    run_ts = expected["state"]["run"]["run_ts"]
    shutil.copytree(golden / "run", tmp_path / "milepost" / "default" / "run" / run_ts)
    trainings = {role: Training() for role in expected.get("roles", [""])}
    trainers = {role: training.trainer() for role, training in trainings.items()}
    with Journal.open(
        config(tmp_path, "save_every=0", *expected.get("overrides", ())),
        **({"roles": trainers} if "roles" in expected else {"trainer": trainers[""]}),
        watch=FakeWatch(),
        ambient=StillAmbient(),
        environ={},
    ) as journal:
        assert journal.resumption.step == expected["resumes_at"]
        assert journal.committed_loop_state() == expected.get("loop_state")
        sampled = journal.resumption.sampling
        assert (None if sampled is None else asdict(sampled)) == expected.get("sampling")
        restored = [value.hex() for training in trainings.values() for value in training.digest()]
        assert restored == expected["parameters"]
    assert verify(Place(disk=LocalDisk(tmp_path), path=f"milepost/default/run/{run_ts}")).exit_code == 0


class TestInABucket:
    """A run whose journal and checkpoints are objects."""

    @pytest.fixture(params=sorted(path.parent.name for path in GOLDEN.glob("*/bucket")))
    def golden(self, request: pytest.FixtureRequest) -> Path:
        return GOLDEN / str(request.param)

    @pytest.fixture
    def cloud(self, golden: Path) -> direct.Cloud:
        cloud, root = direct.Cloud(), golden / "bucket"
        for path in root.rglob("*"):
            if path.is_file():
                cloud.bucket().create(str(path.relative_to(root)), path.read_bytes(), deadline_s=0.0)
        return cloud

    def test_it_folds_to_the_state_that_it_had_and_verify_says_what_it_said(
        self, golden: Path, cloud: direct.Cloud
    ) -> None:
        expected, place = expected_of(golden)["bucket"], locate(direct.RUN, opener=cloud.remotes)
        folded = fold(place.log)
        assert (folded.head.seq, folded.head.sum) == (expected["seq"], expected["sum"])
        assert shape_of(State).write(folded.state) == whole(expected["state"])
        assert verify(place).exit_code == expected["verify"]

    def test_it_resumes_with_the_parameters_that_it_saved(
        self, golden: Path, cloud: direct.Cloud, tmp_path: Path
    ) -> None:
        expected, training = expected_of(golden)["bucket"], Training()
        with direct.opened(direct.config(tmp_path), training, remotes=cloud.remotes) as journal:
            assert journal.resumption.step == expected["resumes_at"]
            assert [value.hex() for value in training.digest()] == expected["parameters"]


def test_the_golden_journals_hold_every_kind_of_record_and_each_is_written_as_it_was() -> None:
    lines = [
        line
        for version in VERSIONS
        for segment in sorted((GOLDEN / version).glob("**/journal/*.json*"))
        for line in segment.read_bytes().splitlines(keepends=True)
        if is_whole(line)
    ]
    documents = [document for line in lines for document in orjson.loads(line)["records"]]
    missing = CODEC.schema()["$defs"].keys() - {document["kind"] for document in documents}  # type: ignore[attr-defined]
    assert missing == set()
    for document in documents:
        assert CODEC.encode(CODEC.decode(document)) == document
