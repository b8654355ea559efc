"""`prune`: what goes, what stays and why; a live run is busy; what a killed writer began is completed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import KEEP_ALL, VALIDATING, Milepost, forget_after
from tests.journal.runs import config, train


def fates(parts: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(one["name"][-1], one["part"], one["fate"]) for one in parts]


def everything(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}


def test_a_plan_says_of_every_part_why_it_stays_or_goes_and_changes_nothing(milepost: Milepost, ended: Path) -> None:
    before = everything(ended)
    told = milepost("prune", ended, "--plan", "--keep-model-last", 3, "--json").json
    assert [(one["name"][-1], one["part"], one["fate"], one["why"]) for one in told["parts"]] == [
        ("7", "checkpoint", "stays", "it is the newest: a resume needs it"),
        ("7", "optimizer", "stays", "it is the newest: a resume needs it"),
        ("6", "checkpoint", "stays", "it is number 2 from the newest, and keep_model_last=3"),
        ("6", "optimizer", "goes", "it is number 2 from the newest, and keep_optim_last=1"),
        ("4", "checkpoint", "stays", "it is number 3 from the newest, and keep_model_last=3"),
        ("4", "optimizer", "goes", "it is number 3 from the newest, and keep_optim_last=1"),
        ("2", "checkpoint", "goes", "it is number 4 from the newest, and keep_model_last=3"),
    ]
    assert told["planned"] is True
    assert everything(ended) == before


def test_what_is_pruned_is_what_was_planned_and_is_gone_from_the_disk(milepost: Milepost, ended: Path) -> None:
    planned = milepost("prune", ended, "--plan", "--keep-model-last", 3, "--json").json
    size = sum(len(data) for data in everything(ended / "checkpoints").values())
    done = milepost("prune", ended, "--keep-model-last", 3, "--json")
    assert done.code == 0
    assert fates(done.json["parts"]) == [
        (name, part, {"goes": "gone"}.get(fate, fate)) for name, part, fate in fates(planned["parts"])
    ]
    assert done.json["freed"] == planned["freed"] > 0
    assert size - sum(len(data) for data in everything(ended / "checkpoints").values()) > planned["freed"] - 1000
    assert sorted(path.name for path in (ended / "checkpoints").glob("iter_*")) == [
        "iter_000000004",
        "iter_000000006",
        "iter_000000007",
    ]
    assert [path.parent.name for path in (ended / "checkpoints").rglob("optim.pt")] == ["iter_000000007"]
    assert milepost("verify", ended, "--json").json["findings"] == []


def test_a_pruned_run_is_resumed_as_if_nothing_had_been(milepost: Milepost, ended: Path, tmp_path: Path) -> None:
    assert milepost("prune", ended, "--keep-model-last", 1).code == 0
    _, journal = train(config(tmp_path, KEEP_ALL), until=9)
    assert (journal.resumption.kind, journal.resumption.step) == ("exact", 7)
    assert milepost("replay", ended, "--json").json["broken"] is None
    endings = [one["ending"] for one in milepost("why", ended, "--json").json["epochs"]]
    assert endings == ["completed", "completed", "stopped", "completed"]


def test_the_epoch_of_a_prune_says_that_it_restored_nothing(milepost: Milepost, ended: Path) -> None:
    milepost("prune", ended)
    epoch = milepost("why", ended, "--json").json["epochs"][-1]
    assert (epoch["ending"], epoch["detail"], epoch["step"]) == ("stopped", "retention was applied", 7)
    (resumed,) = milepost("log", ended, "--kind", "run-resumed", "--limit", 1, "--json").out.splitlines()
    record = json.loads(resumed)["record"]
    assert record["notes"] == ["nothing was restored: only retention was applied"]
    assert record["clocks"]["optimizer_step"] == 7


def test_a_run_of_which_nothing_has_to_go_is_left_as_it_is(milepost: Milepost, ended: Path) -> None:
    before = everything(ended)
    told = milepost("prune", ended, "--keep-optim-last", 0, "--json")
    assert (told.code, told.json["freed"], told.json["planned"]) == (0, 0, False)
    assert everything(ended) == before


def test_the_policy_is_that_of_the_configuration_with_its_overrides(
    milepost: Milepost, ended: Path, tmp_path: Path
) -> None:
    source = tmp_path / "run.yaml"
    source.write_text("rl: {keep_optim_last: 2, keep_model_last: 3}")

    def policy(*arguments: object) -> tuple[int, int]:
        told = milepost("prune", ended, "--plan", "--json", *arguments).json
        return told["keep_optim_last"], told["keep_model_last"]

    assert policy() == (1, 0)
    assert policy("--config", source) == (2, 3)
    assert policy("--config", source, "rl.keep_model_last=4") == (2, 4)
    assert policy("--config", source, "--keep-optim-last", 0) == (0, 3)


def test_a_wrong_override_is_refused_as_usage_before_anything_is_looked_at(milepost: Milepost, ended: Path) -> None:
    answer = milepost("prune", ended, "rl.keep_model_lats=4")
    assert answer.code == 2
    assert "keep_model_last" in answer.err


@pytest.mark.parametrize("keep", [0, 1])
def test_a_live_run_is_busy_and_can_be_planned(milepost: Milepost, tmp_path: Path, keep: int) -> None:
    seen = []

    def look(journal: Any, step: int) -> None:
        if step == 7:
            seen.append(milepost("prune", journal.run_dir, "--keep-optim-last", keep))
            seen.append(milepost("prune", journal.run_dir, "--keep-optim-last", keep, "--plan"))

    train(config(tmp_path, KEEP_ALL), until=7, each=look)
    assert [one.code for one in seen] == [1, 0]
    assert "is being written by process" in seen[0].err


def test_what_a_killed_writer_began_to_remove_goes_on_whatever_the_policy_is(
    milepost: Milepost, pruning: Path
) -> None:
    for arguments, fate in ((("--plan",), "goes"), ((), "gone")):
        told = milepost("prune", pruning, "--keep-optim-last", 0, "--json", *arguments).json
        assert {(one["name"][-1], one["part"]) for one in told["parts"] if one["fate"] == fate} == {
            ("6", "optimizer"),
            ("4", "checkpoint"),
            ("2", "checkpoint"),
        }
        assert len(told["foreseen"]) == 3
    assert milepost("verify", pruning, "--json").json["findings"] == []


def test_a_pending_checkpoint_and_artifacts_are_not_touched(milepost: Milepost, evaluating: Path) -> None:
    before = everything(evaluating)
    told = milepost("prune", evaluating, "--keep-model-last", 1, "--keep-optim-last", 1, "--json").json
    assert fates(told["parts"]) == [("3", "checkpoint", "stays"), ("3", "optimizer", "stays")]
    assert everything(evaluating) == before


def test_a_pending_evaluation_outlives_a_prune(milepost: Milepost, tmp_path: Path) -> None:
    _, journal = train(config(tmp_path, *VALIDATING, KEEP_ALL), until=6, validate=lambda step: None)
    run = Path(journal.run_dir)
    forget_after(run, "save-sealed")
    for number in (1, 2):
        (run / "checkpoints" / "iter_000000006" / f".posttrain-validation.{number}.json").unlink()
    told = milepost("prune", run, "--json").json
    assert [(one["name"][-1], one["part"]) for one in told["parts"] if one["fate"] == "gone"] == [
        ("3", "optimizer"),
        ("2", "optimizer"),
    ]
    assert milepost("why", run, "--json").json["evaluates"] == "iter_000000006"
    evaluated: list[int] = []
    train(config(tmp_path, *VALIDATING, KEEP_ALL), until=7, validate=evaluated.append)
    assert evaluated == [6]
    assert milepost("verify", run, "--json").json["findings"] == []


def test_artifacts_are_never_pruned(milepost: Milepost, both: Path) -> None:
    before = everything(both / "checkpoint_artifacts")
    told = milepost("prune", both, "--keep-model-last", 1, "--json").json
    assert {one["name"] for one in told["parts"]} == {"iter_000000004"}
    assert everything(both / "checkpoint_artifacts") == before


def test_nothing_goes_while_the_newest_checkpoint_is_damaged(milepost: Milepost, ended: Path) -> None:
    (ended / "checkpoints" / "iter_000000007" / "optim.pt").unlink()
    before = everything(ended)
    for arguments in ((), ("--plan",)):
        told = milepost("prune", ended, "--keep-model-last", 1, "--json", *arguments)
        assert (told.code, told.json["parts"]) == (5, [])
        assert "iter_000000007, was published whole and no longer is" in told.json["blocked"]
    assert "nothing goes" in milepost("prune", ended).out
    assert everything(ended) == before


def test_what_cannot_be_deleted_is_said_with_its_reason_and_stays_in_the_journal_as_failed(
    milepost: Milepost, ended: Path
) -> None:
    marker = ended / "checkpoints" / "iter_000000006" / ".posttrain-released.json"
    marker.write_text("somebody else's")
    told = milepost("prune", ended, "--json")
    assert told.code == 1
    (failed,) = [one for one in told.json["parts"] if one["fate"] == "failed"]
    assert (failed["name"], failed["part"]) == ("iter_000000006", "optimizer")
    assert str(marker) in failed["why"]
    codes = [one["code"] for one in milepost("verify", ended, "--json").json["findings"]]
    assert codes == ["prune-failed", "release-unreadable"]
    marker.unlink()
    assert milepost("prune", ended).code == 0
    assert milepost("verify", ended, "--json").json["findings"] == []


def test_a_run_without_a_checkpoint_and_one_without_an_entry_have_nothing_to_prune(
    milepost: Milepost, tmp_path: Path
) -> None:
    (tmp_path / "20260102030405" / "journal").mkdir(parents=True)
    before = list(tmp_path.rglob("*"))
    answer = milepost("prune", tmp_path / "20260102030405")
    assert answer.code == 0
    assert "no checkpoint in" in answer.out
    assert list(tmp_path.rglob("*")) == before
