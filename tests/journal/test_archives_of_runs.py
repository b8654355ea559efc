"""The trainer's own archive, `rl.upload`: best effort behind a save, strict in a publication, retention's gate."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from milepost.engines.archive.declaration import DECLARATION
from milepost.engines.archive.reader import fetch
from milepost.engines.checkpoints.released import RECEIPT
from milepost.engines.disks.local import LocalDisk
from milepost.engines.slots import ThreadSlot
from milepost.engines.termination import Termination
from milepost.journal import Config, Journal, Unavailable
from milepost.transitions.archiving import ArchiveStage
from milepost.transitions.validation import ValidationStage
from tests.journal.runs import FakeWatch, StillAmbient, Training, config, train
from tests.journal.stores import Stores
from tests.journal.test_pending_validations import SAVING, Died, dying, noting
from tests.journal.test_retention_of_runs import RELEASED, WHOLE, on_disk

BUCKET = "archive"
UPLOAD = ("upload.enabled=true", f"upload.bucket={BUCKET}", "upload.credentials=secret.json")


def settings(root: Path, *overrides: str) -> Config:
    return config(root, *UPLOAD, *overrides)


def receipts(root: Path) -> set[int]:
    """The steps whose checkpoint has a receipt."""
    return {int(path.parent.name[5:]) for path in root.glob(f"**/checkpoints/iter_*/{RECEIPT}")}


def kinds(journal: Journal) -> list[str]:
    """The kinds of records about archives, in order."""
    found = [record.KIND for entry, _ in journal.history() for record in entry.records]
    return [kind for kind in found if kind.startswith("archive-")]


def test_every_checkpoint_is_archived_where_the_layout_is_mirrored_and_can_be_fetched(tmp_path: Path) -> None:
    stores = Stores()
    _, journal = train(settings(tmp_path / "runs"), until=4, remotes=stores)
    prefix = str(Path(journal.run_dir).relative_to(tmp_path / "runs"))
    assert {(uri, str(credentials)) for uri, credentials in stores.asked} == {
        (f"s3://{BUCKET}/{prefix}/checkpoints", "secret.json")
    }
    names = {key.removeprefix(f"{prefix}/checkpoints/") for key in stores.keys(BUCKET)}
    assert {f"iter_00000000{step}/{name}" for step in (2, 4) for name in WHOLE | {DECLARATION}} < names
    assert receipts(tmp_path) == {2, 4}
    assert [save.step for save in sorted(journal.state.archiving.marked)] == [2, 4]
    assert kinds(journal) == ["archive-declared", "archive-marked"] * 2
    (tmp_path / "back").mkdir()
    home = stores(f"s3://{BUCKET}/{prefix}/checkpoints/iter_000000004", None)
    fetched = fetch(home, LocalDisk(tmp_path / "back"), "iter_000000004", ambient=StillAmbient())
    assert fetched.files
    theirs = (tmp_path / "back/iter_000000004/model.pt").read_bytes()
    assert theirs == (Path(journal.run_dir) / "checkpoints/iter_000000004/model.pt").read_bytes()


def test_a_prefix_of_ones_own_is_the_root_of_the_archive(tmp_path: Path) -> None:
    stores = Stores()
    train(settings(tmp_path, "upload.prefix=team/checkpoints", "upload.credentials="), until=2, remotes=stores)
    assert "team/checkpoints/iter_000000002/model.pt" in stores.keys(BUCKET)
    assert {credentials for _, credentials in stores.asked} == {None}


def test_what_cannot_be_archived_is_recorded_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stores = Stores()
    stores.down = True
    training, journal = train(settings(tmp_path), until=6, remotes=stores)
    assert len(training.losses) == 6
    assert [(one.save.step, one.stage, one.code) for one in journal.state.archiving.open] == [
        (step, ArchiveStage.FAILED, "Unavailable") for step in (2, 4, 6)
    ]
    assert "iter_000000006 was not archived at" in caplog.text
    assert "no answer" in caplog.text


def test_nothing_local_is_pruned_before_its_own_receipt(tmp_path: Path) -> None:
    stores = Stores()

    def fail_once(journal: Journal, step: int) -> None:
        stores.down = step in (3, 4)  # the save of step 4 comes behind the body of step 4

    train(settings(tmp_path, "keep_model_last=1", "save_async=false"), until=4, remotes=stores, each=fail_once)
    assert on_disk(tmp_path) == {4: WHOLE}  # 2 has a receipt, and 4 is the newest
    stores.down = True
    train(settings(tmp_path, "keep_model_last=1", "save_async=false"), until=8, remotes=stores)
    assert on_disk(tmp_path) == {4: WHOLE, 6: WHOLE, 8: WHOLE}
    assert receipts(tmp_path) == set()


def test_an_archive_that_succeeds_has_the_failed_ones_tried_and_each_is_released_by_its_own(tmp_path: Path) -> None:
    stores = Stores()

    def fail(journal: Journal, step: int) -> None:
        stores.down = step <= 4

    _, journal = train(settings(tmp_path, "save_async=false"), until=6, remotes=stores, each=fail)
    assert receipts(tmp_path) == {2, 4, 6}
    assert journal.state.archiving.open == ()
    assert on_disk(tmp_path) == {2: RELEASED, 4: RELEASED, 6: WHOLE}


def test_a_line_of_text_from_an_earlier_program_opens_the_gate(tmp_path: Path) -> None:
    stores = Stores()
    stores.down = True

    def by_hand(journal: Journal, step: int) -> None:
        if step == 5:
            (Path(journal.run_dir) / "checkpoints/iter_000000002" / RECEIPT).write_text("uploaded to gs://old\n")

    _, journal = train(settings(tmp_path, "save_async=false"), until=6, remotes=stores, each=by_hand)
    assert on_disk(tmp_path) == {2: RELEASED, 4: WHOLE, 6: WHOLE}
    assert [one.save.step for one in journal.state.archiving.open] == [2, 4, 6]


def test_without_upload_receipts_are_nothing_to_retention(tmp_path: Path) -> None:
    train(config(tmp_path), until=4)
    assert on_disk(tmp_path) == {2: RELEASED, 4: WHOLE}


def test_the_archive_rides_in_the_slot_beside_the_loop(tmp_path: Path) -> None:
    stores = Stores()
    _, journal = train(settings(tmp_path), until=4, remotes=stores, slot=ThreadSlot())
    assert receipts(tmp_path) == {2, 4}
    assert not journal.state.archiving.open


def test_an_artifact_is_archived_beside_the_checkpoints(tmp_path: Path) -> None:
    stores = Stores()
    with pytest.warns(UserWarning, match="partial"):
        train(
            settings(tmp_path, "checkpoint_components=[model]", "upload.prefix=team/checkpoints"),
            until=2,
            remotes=stores,
        )
    assert "team/checkpoint_artifacts/iter_000000002/model.pt" in stores.keys(BUCKET)
    assert not stores.keys(BUCKET, "team/checkpoints")


def test_an_emergency_does_not_wait_for_the_archive_and_a_later_one_makes_up_for_it(tmp_path: Path) -> None:
    stores, watch = Stores(), FakeWatch()

    def stop(journal: Journal, step: int) -> None:
        watch.seen = Termination(reason="signal", detail="SIGTERM") if step == 3 else None

    _, journal = train(settings(tmp_path), until=8, remotes=stores, watch=watch, each=stop)
    assert receipts(tmp_path) == {2}
    assert [(one.save.step, one.stage) for one in journal.state.archiving.open] == [(3, ArchiveStage.DECLARED)]
    _, journal = train(settings(tmp_path), until=4, remotes=stores)
    assert receipts(tmp_path) == {2, 3, 4}
    assert journal.state.archiving.open == ()


def test_a_newest_checkpoint_that_nobody_declared_is_archived_behind_the_next_one(tmp_path: Path) -> None:
    train(config(tmp_path), until=2)  # as a writer leaves it that dies between the seal and the declaration
    stores = Stores()
    _, journal = train(settings(tmp_path, "save_every=0"), until=2, remotes=stores)
    assert [(one.save.step, one.stage) for one in journal.state.archiving.open] == [(2, ArchiveStage.DECLARED)]
    train(settings(tmp_path), until=4, remotes=stores)
    assert receipts(tmp_path) == {2, 4}


# --- a publication ----------------------------------------------------------------------------------------


def pending(root: Path, *overrides: str) -> Config:
    return settings(root, "save_every=0", *SAVING, *overrides)


def test_a_validated_checkpoint_is_archived_before_it_is_published(tmp_path: Path) -> None:
    stores = Stores()
    seen: list[tuple[str, ...]] = []

    def validate(step: int) -> None:
        seen.append(stores.keys(BUCKET) if BUCKET in stores.buckets else ())

    _, journal = train(pending(tmp_path), until=2, validate=validate, remotes=stores)
    assert seen == [()]  # private while it is evaluated
    found = [record.KIND for entry, _ in journal.history() for record in entry.records]
    wanted = [
        "evaluation-passed",
        "archive-declared",
        "publication-pended",
        "archive-marked",
        "publication-completed",
    ]
    assert [kind for kind in found if kind in wanted] == wanted
    assert receipts(tmp_path) == {2}


def test_a_publication_whose_archive_fails_stays_pending_and_is_completed_by_the_next_start(tmp_path: Path) -> None:
    stores = Stores()
    stores.down = True
    with pytest.raises(Unavailable, match=r"iter_000000002 passed its validation and is not published.*no answer"):
        train(pending(tmp_path), until=4, validate=noting([]), remotes=stores)
    with pytest.raises(Unavailable, match="is not evaluated again"):
        train(pending(tmp_path), until=4, validate=noting([]), remotes=stores)
    stores.down = False
    seen: list[int] = []
    _, journal = train(pending(tmp_path), until=4, validate=noting(seen), remotes=stores)
    assert seen == [4]
    assert journal.resumption.step == 2
    assert journal.state.validation.stage is ValidationStage.IDLE
    assert receipts(tmp_path) == {2, 4}


def test_a_publication_is_tried_again_by_the_same_journal_where_the_loop_asks_for_it(tmp_path: Path) -> None:
    stores, training = Stores(), Training()
    with Journal.open(
        pending(tmp_path), trainer=training.trainer(), watch=FakeWatch(), environ={}, remotes=stores
    ) as journal:
        training.step()
        stores.down = True
        with pytest.raises(Unavailable, match="is not published"):
            journal.boundary(2, validate=noting([]))
        with pytest.raises(Unavailable, match="is not published"):
            journal.settle_validation(None)
        stores.down = False
        journal.settle_validation(None)
        assert journal.state.validation.completed == journal.state.saving.sealed[2].id
    assert receipts(tmp_path) == {2}


def test_an_evaluation_that_fails_archives_nothing(tmp_path: Path) -> None:
    stores = Stores()
    with pytest.raises(Died):
        train(pending(tmp_path), until=2, validate=dying, remotes=stores)
    assert stores.asked == []


def test_a_start_with_the_archive_off_does_not_complete_what_waits_for_it(tmp_path: Path) -> None:
    stores = Stores()
    stores.down = True
    with pytest.raises(Unavailable):
        train(pending(tmp_path), until=2, validate=noting([]), remotes=stores)
    with pytest.raises(Unavailable, match=r"rl\.upload\.enabled=true"):
        train(config(tmp_path, "save_every=0", *SAVING), until=2, validate=noting([]))


def test_progress_of_a_long_archive_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="milepost")
    train(settings(tmp_path), until=2, remotes=Stores())
    assert "archive: " in caplog.text
    assert "MiB/s" in caplog.text
    assert "archived iter_000000002: 5 files" in caplog.text
