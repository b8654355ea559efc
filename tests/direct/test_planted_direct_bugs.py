"""Every rule of checkpoints in a bucket has a check that notices when it is broken: one planted mistake each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash.bugs import Bug, require_caught, require_sound
from tests.direct import exploring
from tests.direct import test_checkpoints_in_a_bucket as checks

DIRECT = "engines.checkpoints.direct"
NAMES = "engines.checkpoints.direct_names"

saving, sealing, payload = checks.TestWhatIsSaved(), checks.TestSealing(), checks.TestPayload()
marking, tombstones = checks.TestMarksAndThePointer(), checks.TestTombstones()


def pauses() -> None:
    exploring.pause_everywhere(halfway=False)
    exploring.pause_everywhere(halfway=True)


def a_missing_file_is_seen() -> None:
    sealing.test_a_file_that_is_not_there_keeps_the_manifest_away("optim/.metadata")


def a_revoked_save_stays_so() -> None:
    tombstones.test_a_revoked_save_is_never_sealed_and_its_step_may_be_saved_again(checks.FULL)


def bug(name: str, where: str, old: str, new: str, by: Callable[[], None]) -> Bug:
    return Bug(name, where, ((old, new),), by)


PLACE = f"{DIRECT}:DirectCheckpoints._place"
SEAL = f"{DIRECT}:DirectCheckpoints.seal"

BUGS = (
    bug("nobody looks at the fence", PLACE, "self.fence()", "pass", pauses),
    bug(
        "the version is read behind the fence",
        PLACE,
        "expected=there[1]",
        "expected=self.bucket.read(key, limit=SMALL_BYTES)[1]",
        pauses,
    ),
    Bug(
        "the fence is looked at before the version",
        PLACE,
        (("self.fence()", "pass"), ("there = self._read(key)", "self.fence()\nthere = self._read(key)")),
        pauses,
    ),
    bug(
        "what is there is not asked for",
        PLACE,
        "if there is not None and not over(there[0]):",
        "if False:",
        exploring.crash_everywhere,
    ),
    bug(
        "an unknown answer is a good one",
        PLACE,
        "case Committed():",
        "case Committed() | Unknown():",
        sealing.test_an_unknown_answer_is_uncertain,
    ),
    bug(
        "a dead save is not revoked",
        f"{DIRECT}:DirectCheckpoints.observe",
        "other = self._place(key, names.encode(save), over=lambda found: self._gives_way(found, save, key))",
        "other = (self._read(key) or (None,))[0]",
        exploring.crash_everywhere,
    ),
    bug(
        "a revoked save takes the place of its tombstone",
        f"{DIRECT}:DirectCheckpoints._gives_way",
        "return revoked is not None and revoked != save",
        "return revoked is not None",
        a_revoked_save_stays_so,
    ),
    bug(
        "a manifest names what is not there",
        SEAL,
        "if wrong := self._lacking(tree.of(save), manifest.files):",
        'if wrong := "":',
        a_missing_file_is_seen,
    ),
    bug(
        "the validation begins behind the manifest",
        SEAL,
        "self._begin_validation(tree, save, pending=pending)",
        "pass",
        saving.test_every_payload_key_but_metadata_has_the_id_of_its_save,
    ),
    bug(
        "a retry may seal other files",
        f"{DIRECT}:DirectCheckpoints._sealed_before",
        "if (found.plan, found.components) != (manifest.plan, manifest.components):",
        "if False:",
        sealing.test_a_retry_with_other_files_is_corrupt,
    ),
    bug(
        "a retry believes the manifest",
        f"{DIRECT}:DirectCheckpoints._sealed_before",
        "if wrong := self._lacking(tree.of(manifest.save), found.files):",
        'if wrong := "":',
        sealing.test_sealing_again_looks_at_the_files_and_writes_nothing,
    ),
    bug(
        "metadata is replaced beside its manifest",
        f"{DIRECT}:DirectCheckpoints.put_bytes",
        "is_shared and not self._is_published(tree, save)",
        "is_shared",
        payload.test_metadata_of_an_earlier_attempt_is_replaced_unless_a_manifest_is_beside_it,
    ),
    bug(
        "the pointer goes where it is sent",
        f"{DIRECT}:DirectCheckpoints.point",
        "_step_of(found) <= save.step",
        "True",
        marking.test_the_pointer_goes_forward_only_and_heals,
    ),
    bug(
        "a mark is replaced",
        f"{DIRECT}:DirectCheckpoints.mark",
        "over=lambda _found: False",
        "over=lambda _found: True",
        marking.test_a_mark_is_created_once_and_never_replaced,
    ),
    bug(
        "uploads of later attempts are aborted",
        f"{DIRECT}:DirectCheckpoints.stage",
        "if owner < save:",
        "if True:",
        payload.test_leftover_uploads_of_earlier_attempts_are_aborted_and_no_others,
    ),
    bug(
        "uploads of this epoch are cleared",
        f"{DIRECT}:DirectCheckpoints.clear",
        "if owner.epoch < epoch or owner in abandoned:",
        "if True:",
        payload.test_leftover_uploads_of_earlier_attempts_are_aborted_and_no_others,
    ),
    bug(
        "small files of two attempts share a key",
        f"{NAMES}:path_of",
        'return f"{GENERATIONS}/{save}/{name}"',
        "return name",
        exploring.crash_everywhere,
    ),
    bug(
        "an upload is not completed",
        f"{NAMES}:_UploadSink.sync",
        "self._upload.commit()",
        "pass",
        saving.test_the_payload_reads_back_in_place,
    ),
    bug(
        "a tombstone is taken for a published name",
        f"{DIRECT}:DirectCheckpoints._claimed",
        "if there is None or names.revoked(there[0], where=name) is not None:",
        "if there is None:",
        saving.test_a_half_written_or_revoked_iteration_is_no_published_name,
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("planted", BUGS, ids=str)
def test_a_bug_of_checkpoints_in_a_bucket_is_caught(planted: Bug) -> None:
    require_caught(planted)


@pytest.mark.slow
def test_without_a_bug_every_check_of_a_bucket_passes() -> None:
    require_sound(BUGS)
