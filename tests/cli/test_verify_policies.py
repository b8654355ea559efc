"""`verify` on artifacts, on what checkpoints say of their validation, and on what retention took."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from milepost.engines.checkpoints import generations, released
from milepost.journal import Journal
from milepost.journal.forensics.reading import locate
from milepost.journal.forensics.verifying import verify
from milepost.transitions.retention import ApplyRetention
from milepost.transitions.validation import Generation
from milepost.transitions.values import SaveId
from tests.cli.conftest import KEEP_ALL, Milepost
from tests.cli.test_verify_findings import codes, cut, flip
from tests.journal.runs import config, train

Damage = Callable[[Path], Path]
"""Damages a run and tells where."""


def artifact(run: Path, step: int) -> Path:
    return run / "checkpoint_artifacts" / f"iter_{step:09d}"


def checkpoint(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"iter_{step:09d}"


# --- artifacts ----------------------------------------------------------------------------------------------


def payload_flipped(run: Path) -> Path:
    flip(artifact(run, 2) / "model.pt", 100)
    return artifact(run, 2) / "model.pt"


def payload_cut(run: Path) -> Path:
    cut(artifact(run, 4) / "model.pt", 50)
    return artifact(run, 4) / "model.pt"


def manifest_deleted(run: Path) -> Path:
    path = artifact(run, 2) / ".posttrain-checkpoint-artifact.json"
    path.unlink()
    return path


def artifact_deleted(run: Path) -> Path:
    shutil.rmtree(artifact(run, 2))
    return artifact(run, 2)


def foreign_file(run: Path) -> Path:
    path = artifact(run, 2) / generations.names[0]
    path.write_bytes(generations.encode(SaveId(2, 1, 1), Generation.EVALUATION_PENDING))
    return path


def foreign_name(run: Path) -> Path:
    path = run / "checkpoint_artifacts" / "notes.txt"
    path.write_text("mine")
    return path


# --- validations --------------------------------------------------------------------------------------------


def generation_deleted(run: Path) -> Path:
    path = checkpoint(run, 3) / generations.names[0]
    path.unlink()
    return path


def generation_of_another_save(run: Path) -> Path:
    path = checkpoint(run, 3) / generations.names[0]
    path.write_bytes(generations.encode(SaveId(3, 2, 1), Generation.EVALUATION_PENDING))
    return path


def generation_of_another_place(run: Path) -> Path:
    path = checkpoint(run, 3) / generations.names[0]
    path.write_bytes(path.read_bytes().replace(b"evaluation-pending", b"published"))
    return path


def generation_ahead(run: Path) -> Path:
    path = checkpoint(run, 3) / generations.names[1]
    path.write_bytes(generations.encode(_save_at(run, 3), Generation.PUBLICATION_PENDING))
    return path


def _save_at(run: Path, step: int) -> SaveId:
    mark = generations.decode((checkpoint(run, step) / generations.names[0]).read_bytes(), where="here")
    return mark.save


# --- retention ----------------------------------------------------------------------------------------------


def marker_deleted(run: Path) -> Path:
    path = checkpoint(run, 2) / released.RELEASED
    path.unlink()
    return path


def marker_of_other_files(run: Path) -> Path:
    path = checkpoint(run, 2) / released.RELEASED
    path.write_bytes(released.encode(SaveId(2, 1, 1), ("optim.pt", "model.pt")))
    return path


def optimizer_back(run: Path) -> Path:
    path = checkpoint(run, 2) / "optim.pt"
    shutil.copy(checkpoint(run, 7) / "optim.pt", path)
    return path


def released_without_a_record(run: Path) -> Path:
    path = checkpoint(run, 7) / released.RELEASED
    path.write_bytes(released.encode(SaveId(7, 2, 2), ("optim.pt",)))
    return path


def weights_gone_with_the_optimizer(run: Path) -> Path:
    path = checkpoint(run, 2) / "model.pt"
    path.unlink()
    return path


CASES: list[tuple[str, Damage, str, int]] = [
    ("both", payload_flipped, "file-digest", 5),
    ("both", payload_cut, "file-size", 5),
    ("both", manifest_deleted, "manifest-missing", 5),
    ("both", artifact_deleted, "artifact-missing", 5),
    ("both", foreign_file, "file-unlisted", 1),
    ("both", foreign_name, "unknown-name", 1),
    ("evaluating", generation_deleted, "generation-missing", 5),
    ("evaluating", generation_of_another_save, "generation-unreadable", 5),
    ("evaluating", generation_of_another_place, "generation-unreadable", 5),
    ("evaluating", generation_ahead, "generation-unrecorded", 1),
    ("retained", marker_deleted, "release-missing", 5),
    ("retained", marker_of_other_files, "release-unreadable", 5),
    ("retained", optimizer_back, "file-released", 1),
    ("retained", released_without_a_record, "release-unrecorded", 1),
    ("retained", weights_gone_with_the_optimizer, "file-missing", 5),
]


@pytest.mark.parametrize(
    ("which", "damage", "code", "exit_code"), CASES, ids=[f"{case[0]}-{case[1].__name__}" for case in CASES]
)
def test_a_damage_is_one_finding_with_its_place(
    milepost: Milepost, request: pytest.FixtureRequest, which: str, damage: Damage, code: str, exit_code: int
) -> None:
    run: Path = request.getfixturevalue(which)
    known = milepost("verify", run, "--json").json["findings"]
    assert [one["code"] for one in known] == {"evaluating": ["not-ended"]}.get(which, [])
    place = damage(run)
    answer = milepost("verify", run, "--json")
    (finding,) = [one for one in answer.json["findings"] if one not in known]
    assert (finding["code"], finding["place"], answer.code) == (code, str(place), exit_code)
    assert all(finding[field] for field in ("expected", "found", "action"))


def test_an_artifact_directory_leaves_everything_else_out(milepost: Milepost, both: Path) -> None:
    flip(artifact(both, 4) / "model.pt", 100)
    assert milepost("verify", artifact(both, 2), "--json").json["findings"] == []
    assert milepost("verify", checkpoint(both, 4), "--json").json["findings"] == []
    answer = milepost("verify", artifact(both, 4), "--json")
    assert (codes(answer), answer.json["checkpoints"], answer.json["artifacts"]) == (["file-digest"], 0, 1)


def test_an_artifact_that_nobody_recorded_is_found_and_its_own_files_are_checked(
    milepost: Milepost, both: Path
) -> None:
    shutil.copytree(artifact(both, 2), artifact(both, 9))
    flip(artifact(both, 9) / "model.pt", 100)
    assert codes(milepost("verify", both, "--json")) == ["unrecorded-artifact", "manifest-foreign", "file-digest"]


def test_a_checkpoint_among_the_artifacts_and_an_artifact_among_the_checkpoints_are_none(
    milepost: Milepost, both: Path
) -> None:
    shutil.copytree(checkpoint(both, 4), artifact(both, 8))
    shutil.copytree(artifact(both, 2), checkpoint(both, 9))
    answer = milepost("verify", both, "--json")
    assert codes(answer) == [
        "unrecorded-checkpoint",
        "manifest-missing",
        "unrecorded-artifact",
        "manifest-missing",
    ]
    for wrong, right in ((artifact(both, 2), "checkpoint-artifact"), (checkpoint(both, 4), "manifest")):
        other = {"checkpoint-artifact": "manifest", "manifest": "checkpoint-artifact"}[right]
        (wrong / f".posttrain-{right}.json").rename(wrong / f".posttrain-{other}.json")
    assert codes(milepost("verify", wrong, "--json")) == ["manifest-missing", "file-unlisted"]


def test_a_generation_that_was_written_and_not_recorded_is_what_a_kill_leaves(
    milepost: Milepost, passed: Path
) -> None:
    assert codes(milepost("verify", passed, "--json")) == ["not-ended"]
    generation_ahead(passed)
    assert codes(milepost("verify", passed, "--json")) == ["not-ended"]
    path = checkpoint(passed, 3) / generations.names[2]
    path.write_bytes(generations.encode(_save_at(passed, 3), Generation.PUBLISHED))
    assert codes(milepost("verify", passed, "--json")) == ["not-ended", "generation-unrecorded"]


# --- half of a prune ----------------------------------------------------------------------------------------


def test_a_prune_that_was_recorded_and_not_begun_is_explained(milepost: Milepost, pruning: Path) -> None:
    answer = milepost("verify", pruning, "--json")
    assert codes(answer) == ["not-ended", *["half-pruned"] * 3]
    assert (answer.code, answer.json["checkpoints"]) == (0, 2)


def test_a_checkpoint_that_is_half_removed_is_explained(milepost: Milepost, pruning: Path) -> None:
    aside = pruning / "checkpoints" / ".staging" / "pruned-2.1.1"
    checkpoint(pruning, 2).rename(aside)
    (aside / "model.pt").unlink()
    answer = milepost("verify", pruning, "--json")
    assert codes(answer) == ["not-ended", "staging-leftover", *["half-pruned"] * 3]
    assert answer.code == 0
    assert "retention took" in next(
        one["found"] for one in answer.json["findings"] if one["code"] == "staging-leftover"
    )


def test_an_optimizer_that_is_half_released_is_explained_by_its_marker_and_by_nothing_else(
    milepost: Milepost, pruning: Path
) -> None:
    optimizer = checkpoint(pruning, 6) / "optim.pt"
    optimizer.unlink()
    answer = milepost("verify", pruning, "--json")
    assert (codes(answer)[-1], answer.code) == ("file-missing", 5)
    marker = released.encode(SaveId(6, 2, 1), ("optim.pt",))
    (checkpoint(pruning, 6) / released.RELEASED).write_bytes(marker)
    answer = milepost("verify", pruning, "--json")
    assert (codes(answer), answer.code) == (["not-ended", *["half-pruned"] * 3], 0)


def test_a_file_that_is_being_released_is_still_checked_while_it_is_there(milepost: Milepost, pruning: Path) -> None:
    flip(checkpoint(pruning, 6) / "optim.pt", 100)
    assert codes(milepost("verify", pruning, "--json"))[-1] == "file-digest"


def test_a_removed_checkpoint_is_not_missed_and_one_that_comes_back_is_found(
    milepost: Milepost, ended: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(checkpoint(ended, 4), tmp_path / "copy"))
    milepost("prune", ended, "--keep-model-last", 2)
    answer = milepost("verify", ended, "--json")
    assert (codes(answer), answer.json["checkpoints"]) == ([], 2)
    shutil.copytree(copy, checkpoint(ended, 4))
    answer = milepost("verify", ended, "--json")
    assert (codes(answer), answer.code, answer.json["checkpoints"]) == (["pruned-back"], 1, 3)
    flip(checkpoint(ended, 4) / "model.pt", 100)
    assert codes(milepost("verify", ended, "--json")) == ["pruned-back", "file-digest"]


def test_what_a_live_writer_prunes_meanwhile_is_not_missed(tmp_path: Path) -> None:
    found = []

    def look(journal: Journal, step: int) -> None:
        if step != 7:
            return
        driver, policy = journal._lead._driver, ApplyRetention(keep_optim_last=1, keep_model_last=2)

        def prune_while_hashing(done: int, total: int) -> None:
            driver.submit(policy)
            driver.drain()

        found.append(verify(locate(journal.run_dir), advance=prune_while_hashing))

    train(config(tmp_path, KEEP_ALL, "rl.save_async=false"), until=7, each=look)
    assert [(one.findings, one.writer) for one in found] == [((), os.getpid())]
    assert found[0].checkpoints == 3
    assert sorted(path.name[-1] for path in tmp_path.rglob("iter_*")) == ["4", "6", "7"]


def test_without_a_journal_a_checkpoint_is_what_its_own_files_say(milepost: Milepost, retained: Path) -> None:
    flip(retained / "journal" / "00000001.jsonl", 30)
    known = codes(milepost("verify", retained, "--json"))
    assert "file-missing" not in known
    (checkpoint(retained, 2) / released.RELEASED).unlink()
    assert codes(milepost("verify", retained, "--json")) == [*known, "file-missing"]


def test_without_a_journal_a_generation_before_another_one_is_missed(milepost: Milepost, behind: Path) -> None:
    flip(behind / "journal" / "00000001.jsonl", 30)
    known = codes(milepost("verify", behind, "--json"))
    assert "generation-missing" not in known
    (checkpoint(behind, 3) / generations.names[1]).unlink()
    assert codes(milepost("verify", behind, "--json")) == [*known, "generation-missing"]


@pytest.mark.parametrize(("which", "name"), [("retained", released.RELEASED), ("evaluating", generations.names[0])])
def test_a_small_file_of_a_later_format_is_newer_and_no_damage(
    milepost: Milepost, request: pytest.FixtureRequest, which: str, name: str
) -> None:
    run: Path = request.getfixturevalue(which)
    (path, *_) = sorted(run.rglob(name))
    body = path.read_bytes().rpartition(b',"sum":"')[0].replace(b".v1", b".v2")
    path.write_bytes(body + b',"sum":"blake3:' + blake3(body).hexdigest().encode() + b'"}\n')
    answer = milepost("verify", run, "--json")
    assert codes(answer)[-1] in ("release-newer", "generation-newer")
    assert answer.code == 4
