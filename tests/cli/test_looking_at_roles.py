"""What people are told of a run of several roles, and every way in which `_SUCCESS` may be wrong."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.engines.checkpoints.manifest import MANIFEST
from milepost.engines.checkpoints.marker import SUCCESS
from tests.cli.conftest import Milepost
from tests.cli.roles import train_two_roles
from tests.cli.test_verify_findings import codes, flip

RUN_TS = "20260102030405"
MARKER = (
    '{"version": 1, "iteration": 4, "counters": {"critic": 4, "policy": 1}, '
    '"loop_state": {"critic_warmup_iterations": 2}}\n'
)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("roles") / RUN_TS
    train_two_roles(run)
    return run


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / RUN_TS))


def checkpoint(run: Path, step: int = 4) -> Path:
    return run / "checkpoints" / f"iter_{step:09d}"


# --- looking ------------------------------------------------------------------------------------------------


def test_the_marker_lies_beside_the_manifest_and_says_the_counters(run: Path) -> None:
    assert (checkpoint(run) / SUCCESS).read_text() == MARKER
    assert sorted(path.name for path in checkpoint(run).iterdir()) == [MANIFEST, SUCCESS, "critic", "policy"]


def test_ls_has_the_roles_and_their_counters(milepost: Milepost, run: Path) -> None:
    answer = milepost("ls", run)
    assert answer.code == 0
    header, _, fourth = answer.out.splitlines()
    assert "ROLES" in header.split() and "critic:4,policy:1" in fourth.split()
    row = milepost("ls", run, "--json").json["checkpoints"][1]
    assert (row["stage"], row["resumable"]) == ("sealed", True)
    assert [(one["role"], one["clocks"]["optimizer_step"]) for one in row["roles"]] == [("critic", 4), ("policy", 1)]
    assert row["roles"][1]["clocks"]["skipped_total"] == 1


def test_ls_of_one_trainer_has_no_column_for_roles(milepost: Milepost, ended: Path) -> None:
    assert "ROLES" not in milepost("ls", ended).out
    assert all(row["roles"] == [] for row in milepost("ls", ended, "--json").json["checkpoints"])


def test_show_has_the_roles_the_loop_state_and_the_files_of_both(milepost: Milepost, run: Path) -> None:
    out = milepost("show", run, "iter_000000004").out
    assert "joins critic at optimizer step 4, policy at optimizer step 1\n" in out
    assert "the loop says critic_warmup_iterations=2\n" in out
    assert "policy/optim/__0_0.distcp" in out and "critic/model.pt" in out
    shown = milepost("show", run, "iter_000000004", "--json").json
    assert shown["loop_state"] == [{"name": "critic_warmup_iterations", "value": "2"}]
    assert [one["role"] for one in shown["listed"]["roles"]] == ["critic", "policy"]
    kinds = [event["kind"] for event in shown["events"]]
    assert kinds[:2] == ["save-opened", "boundary-opened"] and kinds.count("role-stored") == 2


def test_a_save_that_was_opened_has_its_roles_as_well(milepost: Milepost, tmp_path: Path) -> None:
    run = tmp_path / RUN_TS
    train_two_roles(run, ends=False)
    row = milepost("ls", run, "--json").json["checkpoints"][2]
    assert (row["stage"], [one["role"] for one in row["roles"]]) == ("open", ["critic", "policy"])


def test_the_log_tells_each_record_of_the_roles(milepost: Milepost, run: Path) -> None:
    told = [line["sentence"] for line in map(json.loads, milepost("log", run, "--json").out.splitlines())]
    for sentence in (
        "the roles are critic at optimizer step 0, policy at optimizer step 0",
        "critic: 1 update was applied",
        "policy: 1 update was skipped",
        "save 4.1.2 joins critic at optimizer step 4, policy at optimizer step 1 (critic_warmup_iterations=2)",
        "save 4.1.2: everything of policy is durable in staging",
    ):
        assert sentence in told
    steps = [line["kind"] for line in map(json.loads, milepost("log", run, "--step", "4", "--json").out.splitlines())]
    assert "boundary-opened" in steps and "role-stored" in steps and "role-updated" not in steps


def test_the_state_has_the_roles_at_their_clocks(milepost: Milepost, run: Path) -> None:
    boundary = milepost("state", run, "--json").json["state"]["boundary"]
    assert [(one["role"], one["clocks"]["optimizer_step"]) for one in boundary["roles"]] == [
        ("critic", 4),
        ("policy", 1),
    ]
    assert boundary["committed"] == [{"name": "critic_warmup_iterations", "value": "2"}]
    out = milepost("state", run, "--at", "iter_000000002").out
    assert "boundary" in out.splitlines() and '  roles[0].role: "critic"' in out.splitlines()


def test_diff_tells_what_a_role_did(milepost: Milepost, run: Path) -> None:
    out = milepost("diff", run, "iter_000000002", "iter_000000004").out
    assert "roles[0].clocks.optimizer_step: 2 -> 4" in out


def test_replay_finds_every_invariant_kept(milepost: Milepost, run: Path) -> None:
    assert milepost("replay", run).code == 0


# --- verifying ----------------------------------------------------------------------------------------------

Damage = Callable[[Path], Path]
"""Damages checkpoint 4 and tells where."""


def marker_deleted(run: Path) -> Path:
    (checkpoint(run) / SUCCESS).unlink()
    return checkpoint(run) / SUCCESS


def marker_of_another_step(run: Path) -> Path:
    shutil.copy(checkpoint(run, 2) / SUCCESS, checkpoint(run) / SUCCESS)
    return checkpoint(run) / SUCCESS


def written(text: str) -> Damage:
    def damage(run: Path) -> Path:
        (checkpoint(run) / SUCCESS).write_text(text)
        return checkpoint(run) / SUCCESS

    return damage


def marker_made_a_symlink(run: Path) -> Path:
    path = checkpoint(run) / SUCCESS
    path.unlink()
    os.symlink("elsewhere", path)
    return path


def file_in_a_directory_flipped(run: Path) -> Path:
    flip(checkpoint(run) / "policy" / "optim" / ".metadata", 3)
    return checkpoint(run) / "policy" / "optim" / ".metadata"


def file_in_a_directory_deleted(run: Path) -> Path:
    path = checkpoint(run) / "policy" / "optim" / "__0_0.distcp"
    path.unlink()
    return path


def stranger_in_a_directory(run: Path) -> Path:
    path = checkpoint(run) / "policy" / "optim" / "notes.txt"
    path.write_text("mine")
    return path


def stranger_of_a_role(run: Path) -> Path:
    path = checkpoint(run) / "reward"
    path.mkdir()
    return path


DAMAGE: list[tuple[Damage, str, int]] = [
    (marker_deleted, "success-missing", 5),
    (marker_of_another_step, "success-differs", 5),
    (written(MARKER.replace('"policy": 1', '"policy": 2')), "success-differs", 5),
    (written(MARKER.replace('iterations": 2', 'iterations": 2.0')), "success-differs", 5),
    (written(MARKER.replace(": ", ":")), "success-differs", 5),
    (written(MARKER[:-10]), "success-unreadable", 5),
    (written(""), "success-unreadable", 5),
    (written('{"version": 2}\n'), "success-newer", 4),
    (marker_made_a_symlink, "success-unreadable", 5),
    (file_in_a_directory_flipped, "file-digest", 5),
    (file_in_a_directory_deleted, "file-missing", 5),
    (stranger_in_a_directory, "file-unlisted", 1),
    (stranger_of_a_role, "file-unlisted", 1),
]


def test_a_run_of_several_roles_verifies(milepost: Milepost, run: Path) -> None:
    answer = milepost("verify", run, "--json")
    assert (answer.code, answer.json["findings"], answer.json["checkpoints"]) == (0, [], 2)


@pytest.mark.parametrize(("damage", "code", "exits"), DAMAGE, ids=range(len(DAMAGE)))
def test_damage_is_found_where_it_is(milepost: Milepost, run: Path, damage: Damage, code: str, exits: int) -> None:
    place = damage(run)
    answer = milepost("verify", run, "--json")
    assert [(one["code"], one["place"]) for one in answer.json["findings"]] == [(code, str(place))]
    assert answer.code == exits


@pytest.mark.parametrize("damage", [marker_deleted, marker_of_another_step, written("{}")])
def test_roles_without_their_marker_are_damaged_and_no_resume_takes_them(
    milepost: Milepost, run: Path, damage: Damage
) -> None:
    damage(run)
    answer = milepost("ls", run, "--json")
    row = answer.json["checkpoints"][1]
    assert (answer.code, row["stage"], row["resumable"]) == (5, "damaged", False)
    assert SUCCESS in row["detail"]
    assert milepost("why", run).code == 5


def test_without_a_journal_the_marker_is_held_against_the_manifest(milepost: Milepost, run: Path) -> None:
    flip(run / "journal" / "00000001.jsonl", 30)
    whole = milepost("verify", run, "--json")
    assert not any(code.startswith("success") for code in codes(whole))
    written(MARKER.replace('"policy": 1', '"policy": 2'))(run)  # nobody remembers what it was
    assert codes(milepost("verify", run, "--json")) == codes(whole)
    for text in (MARKER.replace("policy", "actor"), MARKER.replace('"iteration": 4', '"iteration": 3')):
        written(text)(run)
        assert "success-differs" in codes(milepost("verify", run, "--json"))


def test_a_marker_on_one_trainer_is_not_ours(milepost: Milepost, ended: Path) -> None:
    (checkpoint(ended) / SUCCESS).write_text(MARKER)
    answer = milepost("verify", ended, "--json")
    assert (codes(answer), answer.code) == (["success-unrecorded"], 1)
    assert milepost("ls", ended).code == 0


def test_what_retention_took_of_both_roles_is_no_damage(milepost: Milepost, run: Path) -> None:
    assert milepost("prune", run, "--keep-optim-last", "1").code == 0
    assert not (checkpoint(run, 2) / "policy" / "optim").exists()
    assert sorted(path.name for path in (checkpoint(run, 2) / "critic").iterdir()) == ["model.pt", "trainer.pt"]
    answer = milepost("verify", run, "--json")
    assert (answer.code, codes(answer)) == (0, [])
