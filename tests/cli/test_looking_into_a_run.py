"""`ls`, `show`, `state`, `diff`, `log`, `why`, `replay` on runs that ended and on runs that were killed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.cli.conftest import Milepost
from tests.journal.runs import config, train


def test_ls_lists_what_the_journal_sealed_in_order_of_step(milepost: Milepost, ended: Path) -> None:
    answer = milepost("ls", ended)
    rows = [line.split() for line in answer.out.splitlines()]
    assert answer.code == 0
    assert rows[0][:5] == ["NAME", "KIND", "STEP", "STATE", "REASON"]
    assert [(row[0], row[3], row[4]) for row in rows[1:]] == [
        ("iter_000000002", "sealed", "cadence"),
        ("iter_000000004", "sealed", "cadence"),
        ("iter_000000006", "sealed", "cadence"),
        ("iter_000000007", "sealed", "final"),
    ]
    assert ["latest" in row for row in rows[1:]] == [False, False, False, True]


def test_ls_tells_an_open_save_a_foreign_directory_and_a_damaged_checkpoint(milepost: Milepost, staged: Path) -> None:
    checkpoints = staged / "checkpoints"
    shutil.copytree(checkpoints / "iter_000000002", checkpoints / "iter_000000099")
    (checkpoints / "iter_000000002" / "model.pt").write_bytes(b"short")
    answer = milepost("ls", staged, "--json")
    stages = {one["name"]: one["stage"] for one in answer.json["checkpoints"]}
    assert stages == {"iter_000000002": "damaged", "iter_000000004": "open", "iter_000000099": "unrecorded"}
    assert not any(one["resumable"] for one in answer.json["checkpoints"])
    assert answer.code == 5


def test_the_newest_attempt_is_taken_where_a_name_is_given_and_it_is_said(milepost: Milepost, ended: Path) -> None:
    older = ended.parent / "20200101000000"
    (older / "journal").mkdir(parents=True)
    answer = milepost("ls", ended.parent, "--json")
    assert answer.json["run"] == str(ended)
    assert f"{ended.name} is the newest of 2 attempts" in answer.err


def test_a_journal_directory_and_a_checkpoint_directory_mean_their_run(milepost: Milepost, ended: Path) -> None:
    assert milepost("ls", ended / "journal").out == milepost("ls", ended).out
    one = milepost("ls", ended / "checkpoints" / "iter_000000004", "--json").json
    assert [row["name"] for row in one["checkpoints"]] == ["iter_000000004"]


def test_log_prints_every_record_once_in_order(milepost: Milepost, ended: Path) -> None:
    printed = [json.loads(line) for line in milepost("log", ended, "--json").out.splitlines()]
    written = [
        (entry["seq"], record)
        for segment in sorted((ended / "journal").glob("*.jsonl"))
        for entry in map(json.loads, segment.read_text().splitlines())
        for record in entry["records"]
    ]
    assert [(one["seq"], one["record"]) for one in printed] == written
    assert all(one["sentence"] for one in printed)


def test_log_is_narrowed_by_kind_seq_time_step_and_limit(milepost: Milepost, ended: Path) -> None:
    def log(*options: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in milepost("log", ended, "--json", *options).out.splitlines()]

    everything = log()
    middle = everything[len(everything) // 2]
    assert {one["kind"] for one in log("--kind", "save-sealed", "--kind", "run-ended")} == {
        "save-sealed",
        "run-ended",
    }
    assert log("--since", str(middle["seq"])) == [one for one in everything if one["seq"] >= middle["seq"]]
    assert log("--since", str(middle["at"])) == [one for one in everything if one["at"] >= middle["at"]]
    assert {one["kind"] for one in log("--step", "4")} >= {"update-opened", "save-opened", "save-sealed"}
    assert log("--limit", "3") == everything[-3:]


def test_log_of_a_checkpoint_directory_speaks_of_its_step(milepost: Milepost, ended: Path) -> None:
    sealed = milepost("log", ended / "checkpoints" / "iter_000000006", "--oneline", "--kind", "save-sealed")
    assert len(sealed.out.splitlines()) == 1
    assert "iter_000000006 is published" in sealed.out


def test_a_time_that_is_none_is_refused_as_usage(milepost: Milepost, ended: Path) -> None:
    answer = milepost("log", ended, "--since", "yesterday")
    assert answer.code == 2
    assert "--since yesterday: expected a seq" in answer.err


def test_show_gives_an_entry_with_its_raw_line_and_its_place(milepost: Milepost, ended: Path) -> None:
    lines = (ended / "journal" / "00000002.jsonl").read_bytes().splitlines(keepends=True)
    wanted = json.loads(lines[2])
    shown = milepost("show", ended, wanted["seq"], "--json").json
    assert (shown["segment"], shown["offset"]) == (2, len(lines[0]) + len(lines[1]))
    assert shown["line"] == lines[2].decode().rstrip("\n")
    assert shown["records"] == wanted["records"]


def test_show_gives_a_checkpoint_with_its_files_and_the_entries_that_made_it(milepost: Milepost, ended: Path) -> None:
    shown = milepost("show", ended, "iter_000000004", "--json").json
    manifest = json.loads((ended / "checkpoints" / "iter_000000004" / ".posttrain-manifest.json").read_bytes())
    files = [file for part in manifest["components"] for file in part["files"]]
    assert shown["files"] == files
    assert shown["witness"] == manifest["witness"]
    kinds = [event["kind"] for event in shown["events"]]
    assert kinds[0] == "save-opened"
    assert "save-sealed" in kinds
    text = milepost("show", ended / "checkpoints" / "iter_000000004").out
    assert files[0]["digest"] in text


def test_show_says_how_far_the_journal_goes_where_an_entry_is_not_there(milepost: Milepost, ended: Path) -> None:
    answer = milepost("show", ended, 4000)
    assert answer.code == 2
    assert "it goes from 1 to" in answer.err
    assert milepost("show", ended, "iter_000000003").code == 2


def test_state_then_is_the_state_before_what_came_later(milepost: Milepost, ended: Path) -> None:
    sealed = milepost("state", ended, "--at", "iter_000000004", "--json").json
    assert sealed["state"]["saving"]["newest"] == {"step": 4, "epoch": 1, "counter": 2}
    assert sealed["state"]["run"]["stage"] == "open"
    before = milepost("state", ended, "--at", sealed["seq"] - 1, "--json").json
    assert before["state"]["saving"]["newest"]["step"] == 2
    now = milepost("state", ended)
    assert '  newest: "7.2.2"' in now.out
    assert "iter_000000007: save 7.2.2, final" in now.out


def test_diff_names_the_fields_that_moved_and_the_checkpoints_that_came(milepost: Milepost, ended: Path) -> None:
    changed = milepost("diff", ended, "iter_000000002", "iter_000000006", "--json").json
    assert changed["added"] == ["iter_000000004", "iter_000000006"]
    clocks = next(one for one in changed["changes"] if one["field"] == "clocks.optimizer_step")
    assert (clocks["part"], int(clocks["new"]) > int(clocks["old"])) == ("updates", True)
    assert {"part": "saving", "field": "newest", "old": '"2.1.1"', "new": '"6.2.1"'} in changed["changes"]
    assert "nothing changed" in milepost("diff", ended, "5", "5").out


def test_why_takes_the_newest_and_says_why_not_each_other_one(milepost: Milepost, ended: Path) -> None:
    told = milepost("why", ended, "--json")
    assert (told.code, told.json["start"], told.json["taken"]) == (0, "exact", "iter_000000007")
    assert {one["name"]: one["reason"] for one in told.json["passed_over"]} == {
        "iter_000000002": "older",
        "iter_000000004": "older",
        "iter_000000006": "older",
    }
    assert [epoch["ending"] for epoch in told.json["epochs"]] == ["completed", "completed"]


def test_why_foresees_that_a_staged_save_is_given_up_and_takes_the_one_before(
    milepost: Milepost, staged: Path
) -> None:
    told = milepost("why", staged, "--json").json
    assert told["taken"] == "iter_000000002"
    assert told["foreseen"] == ["save 4.1.2 is open and not published: the next start gives it up"]
    assert (told["epochs"][0]["ending"], told["epochs"][0]["open_save"]) == ("unended", "4.1.2")
    assert "killed in or after step 5" in milepost("why", staged).out


def test_why_foresees_that_a_published_save_is_sealed_and_taken(milepost: Milepost, published: Path) -> None:
    told = milepost("why", published, "--json").json
    assert told["taken"] == "iter_000000004"
    assert "the next start seals it" in told["foreseen"][0]
    assert milepost("why", published, "iter_000000004", "--json").json["taken"] is True


def test_why_refuses_as_the_start_would_where_the_newest_is_damaged(milepost: Milepost, ended: Path) -> None:
    (ended / "checkpoints" / "iter_000000007" / "optim.pt").unlink()
    told = milepost("why", ended, "--json")
    assert (told.code, told.json["start"], told.json["taken"]) == (5, "refused", None)
    assert "optim.pt" in told.json["reason"]
    assert "resume from iter_000000006 by its path" in told.json["reason"]


def test_why_of_one_checkpoint_tells_its_life_and_its_reason(milepost: Milepost, ended: Path) -> None:
    told = milepost("why", ended / "checkpoints" / "iter_000000002", "--json").json
    assert (told["taken"], told["reason"]) == (False, "older: iter_000000007 is newer")
    assert told["events"][0]["kind"] == "save-opened"
    assert milepost("why", ended, "iter_000000055").code == 2


def test_replay_counts_what_the_segments_hold_and_finds_every_invariant_kept(milepost: Milepost, ended: Path) -> None:
    told = milepost("replay", ended, "--json").json
    lines = [line for path in (ended / "journal").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert told["entries"] == len(lines)
    assert told["records"] == sum(one["records"] for one in told["kinds"])
    assert (told["epochs"], told["checkpoints"], told["broken"]) == (2, 4, None)
    assert "every invariant holds at every entry" in milepost("replay", ended).out


def test_why_tells_how_a_killed_epoch_ended_and_what_the_next_one_found(
    milepost: Milepost, staged: Path, tmp_path: Path
) -> None:
    train(config(tmp_path), until=6)
    killed, last = milepost("why", staged, "--json").json["epochs"]
    assert (killed["ending"], killed["open_save"]) == ("killed", "4.1.2")
    assert killed["settled"].startswith("save 4.1.2 was given up")
    assert last["resumed"].startswith("continues at step 2")
    assert "save 4.1.2 was open then: save 4.1.2 was given up" in milepost("why", staged).out


def test_a_foreseen_seal_is_what_the_next_start_does(milepost: Milepost, published: Path, tmp_path: Path) -> None:
    foreseen = milepost("why", published, "--json").json["taken"]
    _, journal = train(config(tmp_path), until=5)
    assert journal.resumption.source.endswith(foreseen)
