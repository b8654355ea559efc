"""Every rule of the archive has a check that notices when it is broken: one planted mistake each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.archive import test_fetching as fetching
from tests.archive import test_moving as moves
from tests.archive import test_pruning_verified as pruning
from tests.archive import test_publishing as publishing
from tests.crash.bugs import Bug, require_caught, require_sound

PUBLISHER = "engines.archive.publisher"
READER = "engines.archive.reader"
RECEIPT = "engines.archive.receipt"
RELEASING = "engines.archive.releasing"
MOVING = "engines.archive.moving"

crashes, refusals = publishing.TestCrashes(), publishing.TestRefusals()
interrupted, refused = fetching.TestInterrupted(), fetching.TestWhatIsRefused()
copies, downloads = moves.TestCopy(), moves.TestDownload()


def tree() -> moves.SimulatedBucket:
    return moves.tree_of_an_archive()


def a_changed_object_is_not_fetched() -> None:
    refused.test_what_is_wrong_there_is_corrupt_and_nothing_is_published(
        lambda bucket: fetching.put(bucket, "model.pt", b"weights of the MODEL"), "expected the digest"
    )


def a_changed_local_file_stays() -> None:
    pruning.test_whatever_does_not_agree_keeps_the_copy_with_the_reason(pruning.change_local, "model.pt")


def a_lost_object_keeps_the_copy() -> None:
    pruning.test_whatever_does_not_agree_keeps_the_copy_with_the_reason(
        lambda _one, bucket: bucket.delete(f"{pruning.HOME}/model.pt"), "model.pt"
    )


def a_sync_that_failed_is_not_believed() -> None:
    crashes.test_a_disk_that_fails_under_the_receipt_is_an_error_and_another_call_writes_it("sync_dir")


def a_copy_is_ordered() -> None:
    copies.test_the_death_of_the_copier_at_any_request_never_shows_a_manifest_without_its_payload(tree())


def a_pointer_of_another_writer_is_not_believed_to_be_ones_own() -> None:
    copies.test_another_object_that_appears_meanwhile_is_not_replaced(tree(), f"kept/{moves.POINTER}")


def a_changed_object_is_not_copied() -> None:
    copies.test_an_object_that_is_not_what_its_manifest_says_is_corrupt_and_not_copied(
        tree(), lambda bucket, key: moves.put(bucket, key, b"weights of the MODEL"), "expected the digest"
    )


def a_late_listing_is_made_up_for() -> None:
    copies.test_what_a_late_listing_lacks_is_copied_as_the_manifest_names_it(tree())


def bug(name: str, where: str, old: str, new: str, by: Callable[[], None]) -> Bug:
    return Bug(name, where, ((old, new),), by)


BUGS = (
    # --- publishing
    bug(
        "the manifest goes before the payload",
        f"{PUBLISHER}:publish",
        "publishing.clear_leftovers()",
        "publishing.clear_leftovers()\npublishing.commit()",
        crashes.test_the_death_of_the_writer_at_any_request_leaves_what_another_call_completes,
    ),
    bug(
        "uploads of a dead writer stay",
        f"{PUBLISHER}:publish",
        "publishing.clear_leftovers()",
        "pass",
        crashes.test_the_death_of_the_writer_at_any_request_leaves_what_another_call_completes,
    ),
    bug(
        "a store that breaks its promises is used",
        f"{PUBLISHER}:publish",
        'promises.require(home.where(""))',
        "pass",
        refusals.test_a_store_that_ignores_conditions_gets_nothing,
    ),
    bug(
        "the receipt is written before the last look",
        f"{PUBLISHER}:publish",
        "publishing.commit()",
        "publishing.commit()\npublishing.write_receipt()",
        refusals.test_an_object_that_changes_before_the_last_look_gets_no_receipt,
    ),
    bug(
        "another inventory is taken for ones own",
        f"{PUBLISHER}:_Publishing.declare",
        "if differ:",
        "if False:",
        refusals.test_another_inventory_is_refused_before_any_payload,
    ),
    bug(
        "what is sent is not held against the declaration",
        f"{PUBLISHER}:_Publishing._send",
        "if upload.digest != proof:",
        "if False:",
        refusals.test_local_bytes_that_change_while_they_are_sent_are_not_committed,
    ),
    bug(
        "a size proves an object",
        "engines.archive.streaming:require_object",
        "require_digests(remote.where",
        "(remote.where",
        refusals.test_remote_payload_that_differs_is_refused_and_stays,
    ),
    bug(
        "local bytes are declared as they are",
        "engines.archive.inventory:_proven",
        "require_digests(where",
        "(where",
        refusals.test_local_bytes_that_changed_are_found_before_anything_is_sent,
    ),
    bug(
        "a second archive takes the receipt of the first",
        f"{PUBLISHER}:publish",
        "_require_unarchived(disk, path, home)",
        "pass",
        refusals.test_a_directory_that_was_archived_elsewhere_is_refused_and_nothing_is_sent,
    ),
    bug(
        "the receipt is not synced",
        f"{RECEIPT}:join",
        "sink.sync()",
        "pass",
        crashes.test_a_power_cut_at_any_operation_of_the_disk_leaves_a_whole_receipt_or_none,
    ),
    bug(
        "the name of the receipt is not synced",
        f"{RECEIPT}:join",
        "disk.sync_dir(path)",
        "pass",
        crashes.test_a_power_cut_at_any_operation_of_the_disk_leaves_a_whole_receipt_or_none,
    ),
    bug(
        "a receipt that is there is believed to be durable",
        f"{RECEIPT}:join",
        "disk.rename(temporary, file)",
        "pass",
        a_sync_that_failed_is_not_believed,
    ),
    # --- fetching
    bug(
        "a fetched file is not held against its digest",
        f"{READER}:download_file",
        "require_digests(source.where",
        "(source.where",
        a_changed_object_is_not_fetched,
    ),
    bug(
        "a fetched file is not synced",
        f"{READER}:download_file",
        "sink.sync()",
        "pass",
        interrupted.test_a_power_cut_or_kill_at_any_operation_leaves_a_whole_directory_or_none,
    ),
    bug(
        "a small file is not synced",
        f"{READER}:_write_small",
        "sink.sync()",
        "pass",
        interrupted.test_a_power_cut_or_kill_at_any_operation_leaves_a_whole_directory_or_none,
    ),
    bug(
        "the names of fetched files are not synced",
        f"{READER}:fetch",
        "disk.sync_dir(folder)",
        "pass",
        interrupted.test_a_power_cut_or_kill_at_any_operation_leaves_a_whole_directory_or_none,
    ),
    bug(
        "the name of the directory is not synced",
        f"{READER}:fetch",
        "disk.sync_dir(parent)",
        "pass",
        interrupted.test_a_power_cut_or_kill_at_any_operation_leaves_a_whole_directory_or_none,
    ),
    bug(
        "what a killed fetch left is believed to be durable",
        f"{READER}:_is_collected",
        "disk.sync_file(here)",
        "pass",
        interrupted.test_a_power_cut_or_kill_at_any_operation_leaves_a_whole_directory_or_none,
    ),
    bug(
        "what a killed fetch left is believed by its size",
        f"{READER}:_is_collected",
        "if file_digests(disk, here, algorithms=map(algorithm_of, digests), meter=unheard) == digests:",
        "if True:",
        interrupted.test_a_partial_fetch_goes_on_with_what_is_proven_and_replaces_the_rest,
    ),
    # --- pruning
    bug(
        "a checkpoint of a run is taken from under its journal",
        f"{RELEASING}:prune_verified",
        "_require_nobody_resumes(disk, path, manifest)",
        "pass",
        pruning.test_a_checkpoint_without_a_journal_goes_and_one_of_a_run_stays,
    ),
    bug(
        "the store is not asked before payload goes",
        f"{RELEASING}:prune_verified",
        "_require_remote(remote, receipt, ambient=ambient, told=told)",
        "pass",
        a_lost_object_keeps_the_copy,
    ),
    bug(
        "local bytes are not looked at before they go",
        f"{RELEASING}:_require_file",
        "if digest != file.digest:",
        "if False:",
        a_changed_local_file_stays,
    ),
    bug(
        "payload goes before the marker",
        f"{RELEASING}:_remove",
        "receipts.join(disk, path, RELEASED, released.encode(release.save, release.files))",
        "pass",
        pruning.test_a_power_cut_or_kill_at_any_operation_leaves_a_marker_before_anything_is_gone,
    ),
    bug(
        "what went may come back",
        "engines.checkpoints.released:remove",
        "disk.sync_dir(path)",
        "pass",
        pruning.test_a_power_cut_or_kill_at_any_operation_leaves_a_marker_before_anything_is_gone,
    ),
    # --- moving
    bug(
        "manifests are copied like payload",
        f"{MOVING}:_rank",
        "return _ORDER.get(_split(path)[1], _PAYLOAD)",
        "return 2 - _ORDER.get(_split(path)[1], _PAYLOAD)",
        a_copy_is_ordered,
    ),
    bug(
        "what another writer put there is taken for the copy",
        f"{MOVING}:_create",
        "raise _differs(target.where(item.path), item)",
        "return",
        a_pointer_of_another_writer_is_not_believed_to_be_ones_own,
    ),
    bug(
        "a copied object is not held against its manifest",
        f"{MOVING}:_require_digests",
        "require_digests(source.where",
        "(source.where",
        a_changed_object_is_not_copied,
    ),
    bug(
        "a listing is the truth",
        f"{MOVING}:_items",
        "wanted.setdefault(file.path, []).append(file.digest)",
        "wanted.get(file.path, []).append(file.digest)",
        a_late_listing_is_made_up_for,
    ),
    bug(
        "the names of downloaded files are not synced",
        f"{MOVING}:_download_one",
        "disk.sync_dir(folder)",
        "pass",
        downloads.test_a_power_cut_or_kill_at_any_operation_never_shows_a_manifest_without_its_payload,
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("planted", BUGS, ids=str)
def test_a_bug_of_the_archive_is_caught(planted: Bug) -> None:
    require_caught(planted)


@pytest.mark.slow
def test_without_a_bug_every_check_passes() -> None:
    require_sound(BUGS)
