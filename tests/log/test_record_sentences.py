"""What each kind of record says to people: every kind has a sentence, and it names what the record is about."""

from __future__ import annotations

import pytest

from milepost.journal.forensics.sentences import SENTENCES, sentence, step_of
from milepost.transitions.archiving import ArchiveDeclared, ArchiveFailed, ArchiveMarked
from milepost.transitions.boundary import BoundaryOpened, RolesResumed, RoleStored, RoleUpdated
from milepost.transitions.machine import RECORDS, Record
from milepost.transitions.retention import Part, Pruned, PruneFailed, PruneOpened
from milepost.transitions.sampling import SamplingRestored, WorkIssued, WorkSettled
from milepost.transitions.saving import ArtifactSealed, SaveOpened
from milepost.transitions.validation import (
    EvaluationFailed,
    EvaluationPassed,
    EvaluationPended,
    PublicationCompleted,
    PublicationPended,
)
from milepost.transitions.values import FULL, Mode, Reason
from tests.transitions.samples import (
    BEHIND,
    LOOP_STATE,
    MANIFEST,
    PARTIAL,
    PARTS,
    ROLES,
    SAVE,
    START,
    record_for,
    state_in,
)

SAID: tuple[tuple[Record, str], ...] = (
    (
        WorkIssued(number=7, completions=2, after=BEHIND),
        "work 7 of 2 completions is issued, up to epoch 1 with 98 completions remaining",
    ),
    (
        WorkIssued(number=8, completions=1, after=BEHIND),
        "work 8 of 1 completion is issued, up to epoch 1 with 98 completions remaining",
    ),
    (WorkSettled(number=7, index=1), "completion 1 of work 7 is settled"),
    (SamplingRestored(boundary=START), "sampling goes on from epoch 1 with 100 completions remaining"),
    (
        SaveOpened(save=SAVE, plan=FULL, reason=Reason.VALIDATION, mode=Mode.SYNCHRONOUS, why=""),
        "save 10.1.1 of everything begins, validation and synchronous",
    ),
    (
        SaveOpened(save=SAVE, plan=PARTIAL, reason=Reason.CADENCE, mode=Mode.ASYNCHRONOUS, why=""),
        "save 10.1.1 of model, training_state begins, cadence and asynchronous",
    ),
    (
        ArtifactSealed(save=SAVE, manifest=MANIFEST),
        "iter_000000010 is published as an artifact, no resume source (save 10.1.1)",
    ),
    (
        BoundaryOpened(save=SAVE, roles=ROLES, loop_state=LOOP_STATE),
        "save 10.1.1 joins critic at optimizer step 8, policy at optimizer step 4 (critic_warmup_iterations=5)",
    ),
    (
        BoundaryOpened(save=SAVE, roles=ROLES[:1], loop_state=()),
        "save 10.1.1 joins critic at optimizer step 8",
    ),
    (RoleStored(save=SAVE, role="critic"), "save 10.1.1: everything of critic is durable in staging"),
    (RoleUpdated(role="critic", applied=1, skipped=0), "critic: 1 update was applied"),
    (RoleUpdated(role="critic", applied=0, skipped=3), "critic: 3 updates were skipped"),
    (
        RolesResumed(roles=ROLES, loop_state=LOOP_STATE),
        "the roles are critic at optimizer step 8, policy at optimizer step 4 (critic_warmup_iterations=5)",
    ),
    (RolesResumed(roles=ROLES[1:], loop_state=None), "the roles are policy at optimizer step 4"),
    (EvaluationPended(save=SAVE), "save 10.1.1 will wait for its evaluation once it is published"),
    (
        EvaluationFailed(save=SAVE, detail="ValueError: empty"),
        "the evaluation of iter_000000010 failed and is still pending (ValueError: empty)",
    ),
    (EvaluationPassed(save=SAVE), "iter_000000010 passed its evaluation, which is never run again"),
    (
        PublicationPended(save=SAVE),
        "iter_000000010 says that it passed and that only its publication is pending",
    ),
    (
        PublicationCompleted(save=SAVE),
        "iter_000000010 says that it is published: its validation is complete",
    ),
    (
        ArchiveDeclared(save=SAVE, plan=FULL, destination="s3://archive/run/checkpoints", strict=True),
        "iter_000000010 is to be archived at s3://archive/run/checkpoints; its publication waits for that",
    ),
    (
        ArchiveMarked(save=SAVE, files=4, size=321, sent=2),
        "iter_000000010 is archived: 4 files of 321 bytes are proven there, 2 of them were sent now, and the receipt "
        "lies beside the local copy",
    ),
    (
        ArchiveFailed(save=SAVE, code="Unavailable", detail="no answer"),
        "iter_000000010 was not archived (Unavailable: no answer); the local copy is untouched",
    ),
    (
        PruneOpened(save=SAVE, part=Part.OPTIMIZER, files=("optim.pt",), why="keep_optim_last=1"),
        "the optimizer of iter_000000010 is about to be deleted: keep_optim_last=1 (optim.pt)",
    ),
    (
        PruneOpened(save=SAVE, part=Part.CHECKPOINT, files=("model.pt", "optim.pt"), why="keep_model_last=1"),
        "iter_000000010 is about to be deleted: keep_model_last=1 (model.pt, optim.pt)",
    ),
    (
        Pruned(save=SAVE, part=Part.OPTIMIZER),
        "the optimizer of iter_000000010 is deleted; its weights stay, and no run resumes from it",
    ),
    (Pruned(save=SAVE, part=Part.CHECKPOINT), "iter_000000010 is deleted"),
    (
        PruneFailed(save=SAVE, part=Part.OPTIMIZER, detail="EIO"),
        "the optimizer of iter_000000010 was not deleted, or only in part; nobody relies on it, and it is tried "
        "again later (EIO)",
    ),
)


@pytest.mark.parametrize(("record", "text"), SAID, ids=lambda value: type(value).__name__)
def test_a_record_says_in_words_what_it_promises(record: Record, text: str) -> None:
    assert sentence(record) == text


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_every_kind_has_a_sentence_of_one_line_and_its_step(kind: type) -> None:
    record = record_for(kind, state_in("run", next(iter(PARTS["run"])), kind))
    text = sentence(record)
    assert text == text.strip()
    assert "\n" not in text
    assert "  " not in text
    save = getattr(record, "save", None)
    assert step_of(record) == getattr(record, "step", None if save is None else save.step)


def test_no_sentence_is_left_of_a_kind_that_is_gone() -> None:
    assert set(SENTENCES) == set(RECORDS)
