"""`ls`, `show`, `why`, `state`, `diff` on runs with artifacts, pending validations and retention."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import cast

from milepost.engines.slots import SteppedSlot
from milepost.engines.termination import TerminationWatch
from milepost.journal import Journal
from tests.cli.conftest import KEEP_ALL, VALIDATING, Milepost
from tests.journal.runs import FakeWatch, StillAmbient, Training, config, train


def stages(milepost: Milepost, run: Path) -> list[tuple[str, str, str, bool]]:
    rows = milepost("ls", run, "--json").json["checkpoints"]
    return [(one["name"][-1], one["kind"], one["stage"], one["resumable"]) for one in rows]


# --- ls -----------------------------------------------------------------------------------------------------


def test_ls_lists_artifacts_beside_checkpoints_and_none_of_them_is_resumable(milepost: Milepost, both: Path) -> None:
    assert stages(milepost, both) == [
        ("2", "artifact", "artifact", False),
        ("4", "artifact", "artifact", False),
        ("4", "checkpoint", "sealed", True),
    ]
    rows = [line.split() for line in milepost("ls", both).out.splitlines()]
    assert rows[0][:6] == ["NAME", "KIND", "STEP", "STATE", "REASON", "HOLDS"]
    assert [row[5] for row in rows[1:]] == ["model", "model", "everything"]
    assert ["latest" in row for row in rows[1:]] == [False, False, True]


def test_ls_tells_that_an_evaluation_is_pending(milepost: Milepost, evaluating: Path) -> None:
    assert ("3", "checkpoint", "evaluation-pending", True) in stages(milepost, evaluating)


def test_ls_tells_that_only_the_publication_is_pending(milepost: Milepost, passed: Path) -> None:
    assert stages(milepost, passed) == [
        ("2", "checkpoint", "sealed", True),
        ("3", "checkpoint", "publication-pending", True),
    ]


def test_ls_tells_which_optimizers_were_released_and_does_not_count_their_bytes(
    milepost: Milepost, retained: Path
) -> None:
    rows = milepost("ls", retained, "--json").json["checkpoints"]
    assert [(one["step"], one["stage"], one["resumable"]) for one in rows] == [
        (2, "optimizer-released", False),
        (4, "sealed", True),
        (6, "optimizer-released", False),
        (7, "sealed", True),
    ]
    for one in rows:
        directory = retained / "checkpoints" / one["name"]
        assert one["size"] == sum(path.stat().st_size for path in directory.glob("*.pt"))
    assert rows[0]["components"] == ["model", "training_state"]
    assert rows[0]["detail"] == "retention released its optimizer"


def test_ls_does_not_list_what_retention_removed_and_tells_what_it_is_removing(
    milepost: Milepost, pruning: Path, tmp_path: Path
) -> None:
    assert [(stage, name) for name, _, stage, _ in stages(milepost, pruning)] == [
        ("pruning", "2"),
        ("pruning", "4"),
        ("pruning", "6"),
        ("sealed", "7"),
    ]
    train(config(tmp_path, KEEP_ALL), until=7)
    assert [(stage, name) for name, _, stage, _ in stages(milepost, pruning)] == [
        ("optimizer-released", "6"),
        ("sealed", "7"),
    ]


def test_ls_tells_a_damaged_a_missing_and_a_foreign_artifact(milepost: Milepost, both: Path) -> None:
    artifacts = both / "checkpoint_artifacts"
    shutil.copytree(artifacts / "iter_000000002", artifacts / "iter_000000009")
    (artifacts / "iter_000000002" / "model.pt").write_bytes(b"short")
    shutil.rmtree(artifacts / "iter_000000004")
    answer = milepost("ls", both, "--json")
    assert [(one["name"][-1], one["stage"]) for one in answer.json["checkpoints"] if one["kind"] == "artifact"] == [
        ("2", "damaged"),
        ("4", "damaged"),
        ("9", "unrecorded"),
    ]
    assert answer.code == 5


def test_an_artifact_directory_means_its_run_and_that_artifact(milepost: Milepost, both: Path) -> None:
    artifact = both / "checkpoint_artifacts" / "iter_000000004"
    rows = milepost("ls", artifact, "--json").json["checkpoints"]
    assert [(one["kind"], one["name"]) for one in rows] == [("artifact", "iter_000000004")]
    assert milepost("ls", both / "checkpoint_artifacts").out == milepost("ls", both).out
    assert milepost("why", artifact, "--json").json["reason"] == "artifact: a partial save is never resumed from"


# --- show ---------------------------------------------------------------------------------------------------


def test_show_shows_both_where_both_trees_have_the_name(milepost: Milepost, both: Path) -> None:
    artifact, checkpoint = milepost("show", both, "iter_000000004", "--json").json
    assert [one["path"] for one in artifact["files"]] == ["model.pt"]
    assert (artifact["listed"]["kind"], checkpoint["listed"]["kind"]) == ("artifact", "checkpoint")
    assert artifact["where"] == str(both / "checkpoint_artifacts" / "iter_000000004")
    text = milepost("show", both, "iter_000000004").out
    assert "artifact of step 4: artifact; holds model" in text
    assert "checkpoint of step 4: sealed, latest; holds everything" in text


def test_show_shows_the_one_that_was_named_by_its_directory(milepost: Milepost, both: Path) -> None:
    for tree, kind in (("checkpoints", "checkpoint"), ("checkpoint_artifacts", "artifact")):
        assert milepost("show", both / tree / "iter_000000004", "--json").json["listed"]["kind"] == kind


def test_show_tells_what_a_checkpoint_says_of_itself(milepost: Milepost, evaluating: Path) -> None:
    shown = milepost("show", evaluating, "iter_000000003", "--json").json
    assert (shown["generation"], shown["released"]) == ("evaluation-pending", [])
    assert "says of itself: evaluation-pending" in milepost("show", evaluating, "iter_000000003").out


def test_show_tells_which_files_were_released(milepost: Milepost, retained: Path) -> None:
    assert milepost("show", retained, "iter_000000002", "--json").json["released"] == ["optim.pt"]
    lines = milepost("show", retained, "iter_000000002").out.splitlines()
    assert any(line.startswith("optim.pt") and line.endswith("released") for line in lines)


# --- why ----------------------------------------------------------------------------------------------------


def test_why_refuses_where_an_artifact_is_newer_than_every_checkpoint(
    milepost: Milepost, behind: Path, tmp_path: Path
) -> None:
    told = milepost("why", behind, "--json")
    assert (told.code, told.json["start"], told.json["taken"]) == (1, "refused", None)
    assert "holds the artifact iter_000000004, and the newest checkpoint is iter_000000003" in told.json["reason"]


def test_why_foresees_that_a_pending_evaluation_is_run_again(milepost: Milepost, evaluating: Path) -> None:
    told = milepost("why", evaluating, "--json").json
    assert (told["taken"], told["evaluates"]) == ("iter_000000003", "iter_000000003")
    assert told["foreseen"] == [
        "iter_000000003 is evaluation-pending: the resumed run evaluates it again before its first step"
    ]


def test_why_foresees_that_a_passed_evaluation_is_only_published_and_so_it_is(
    milepost: Milepost, passed: Path, tmp_path: Path
) -> None:
    told = milepost("why", passed, "--json").json
    assert (told["taken"], told["evaluates"]) == ("iter_000000003", None)
    assert told["foreseen"] == ["iter_000000003 was evaluated and is not published: the next start only publishes it"]
    evaluated: list[int] = []
    train(config(tmp_path, *VALIDATING, KEEP_ALL), until=4, validate=evaluated.append)
    assert evaluated == []
    assert milepost("show", passed, "iter_000000003", "--json").json["generation"] == "published"


def test_a_foreseen_evaluation_is_what_the_next_start_does(
    milepost: Milepost, evaluating: Path, tmp_path: Path
) -> None:
    foreseen = milepost("why", evaluating, "--json").json["evaluates"]
    evaluated: list[int] = []
    train(config(tmp_path, *VALIDATING, KEEP_ALL), until=4, validate=evaluated.append)
    assert [f"iter_{step:09d}" for step in evaluated] == [foreseen]


def test_why_passes_over_what_was_released_with_its_reason(milepost: Milepost, retained: Path) -> None:
    told = milepost("why", retained, "--json").json
    assert told["taken"] == "iter_000000007"
    assert [one["reason"] for one in told["passed_over"]] == ["released", "older", "released"]
    one = milepost("why", retained, "iter_000000002", "--json").json
    assert one["reason"] == "released: retention released its optimizer"


def test_why_foresees_that_a_prune_goes_on(milepost: Milepost, pruning: Path) -> None:
    told = milepost("why", pruning, "--json").json
    assert told["taken"] == "iter_000000007"
    assert told["foreseen"] == [
        "retention began to remove iter_000000002: the next start goes on with it",
        "retention began to remove iter_000000004: the next start goes on with it",
        "retention began to remove the optimizer of iter_000000006: the next start goes on with it",
    ]


# --- points -------------------------------------------------------------------------------------------------


def test_an_artifact_is_a_point_of_the_journal(milepost: Milepost, both: Path) -> None:
    then = milepost("state", both, "--at", "iter_000000002", "--json").json["state"]["saving"]
    assert (then["newest"], then["newest_artifact"]["step"]) == (None, 2)
    text = milepost("state", both).out
    assert text.index("\nartifacts\n  iter_000000002: save 2.1.1, cadence") > text.index("\ncheckpoints\n")


def test_diff_names_artifacts(milepost: Milepost, both: Path) -> None:
    changed = milepost("diff", both, "1", "--json").json
    assert (changed["added"], changed["artifacts"]) == (["iter_000000004"], ["iter_000000002", "iter_000000004"])
    assert "+ artifact iter_000000002" in milepost("diff", both, "1").out


def test_diff_names_what_retention_took(milepost: Milepost, pruning: Path, tmp_path: Path) -> None:
    train(config(tmp_path, KEEP_ALL), until=7)
    changed = milepost("diff", pruning, "iter_000000007", "--json").json
    assert (changed["removed"], changed["released"]) == (["iter_000000002", "iter_000000004"], ["iter_000000006"])
    assert not any(one["field"].startswith(("removed", "released")) for one in changed["changes"])
    assert "- optimizer of iter_000000006" in milepost("diff", pruning, "iter_000000007").out


def test_a_damaged_small_file_is_damage_at_a_look_and_is_not_shown(milepost: Milepost, evaluating: Path) -> None:
    (evaluating / "checkpoints" / "iter_000000003" / ".posttrain-validation.0.json").write_bytes(b"{}")
    assert milepost("ls", evaluating).code == 5
    shown = milepost("show", evaluating, "iter_000000003", "--json").json
    assert (shown["listed"]["stage"], shown["generation"]) == ("damaged", None)
    assert milepost("why", evaluating).code == 5


def test_why_of_a_removed_checkpoint_tells_that_it_was_removed(milepost: Milepost, ended: Path) -> None:
    milepost("prune", ended, "--keep-model-last", 2)
    told = milepost("why", ended, "iter_000000004", "--json").json
    assert told["reason"].startswith("it is not there: ")
    assert told["events"][-1]["kind"] == "pruned"


def test_a_newer_checkpoint_supersedes_a_pending_evaluation_and_why_says_so(
    milepost: Milepost, evaluating: Path, tmp_path: Path
) -> None:
    training = Training()
    with Journal.open(
        config(tmp_path, *VALIDATING, KEEP_ALL),
        trainer=training.trainer(),
        slot=SteppedSlot(),
        watch=cast(TerminationWatch, FakeWatch()),
        ambient=StillAmbient(),
        environ={},
    ) as journal:
        journal.boundary(4)
    told = milepost("why", evaluating, "--json").json
    assert (told["taken"], told["evaluates"]) == ("iter_000000004", None)
    assert told["foreseen"] == [
        "iter_000000003 is evaluation-pending, and iter_000000004 supersedes it: it stays unpublished"
    ]
    assert train(config(tmp_path, *VALIDATING, KEEP_ALL), until=5)[1].state.validation.pending is None
