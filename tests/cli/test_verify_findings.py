"""`verify`: what is whole is found whole, and every class of damage has its code, its place and its exit code."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson
import pytest

from milepost.journal.forensics import findings as rows
from milepost.journal.forensics.findings import Row
from milepost.journal.log.damage import TABLE
from tests.cli.conftest import Answer, Milepost
from tests.journal.runs import config, train


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x01
    path.write_bytes(data)


def cut(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])


def only(answer: Answer) -> dict[str, Any]:
    (finding,) = answer.json["findings"]
    return dict(finding)


def codes(answer: Answer) -> list[str]:
    return [one["code"] for one in answer.json["findings"]]


def test_a_run_that_ended_is_clean_and_every_byte_of_it_was_hashed(milepost: Milepost, ended: Path) -> None:
    answer = milepost("verify", ended, "--json")
    payload = [path for path in ended.glob("checkpoints/iter_*/*") if path.suffix == ".pt"]
    assert (answer.code, answer.json["findings"]) == (0, [])
    assert answer.json["files"] == len(payload)
    assert answer.json["bytes_hashed"] == sum(path.stat().st_size for path in payload)
    assert "0 damaged, 0 notes" in milepost("verify", ended).out


def test_what_a_kill_leaves_in_staging_is_noted_and_no_damage(milepost: Milepost, staged: Path) -> None:
    answer = milepost("verify", staged, "--json")
    assert (codes(answer), answer.code) == (["not-ended", "save-open", "staging-leftover"], 0)
    assert all(one["severity"] == "note" for one in answer.json["findings"])


def test_a_kill_between_publishing_and_recording_is_noted_and_no_damage(milepost: Milepost, published: Path) -> None:
    answer = milepost("verify", published, "--json")
    assert (codes(answer), answer.code) == (["not-ended", "save-open"], 0)
    assert answer.json["checkpoints"] == 2


# --- one damage, one finding --------------------------------------------------------------------------------


def payload_flipped(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "iter_000000004" / "model.pt"
    flip(path, 100)
    return path, None


def payload_cut(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "iter_000000004" / "optim.pt"
    cut(path, 70)
    return path, 70


def payload_deleted(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "iter_000000002" / "trainer.pt"
    path.unlink()
    return path, None


def payload_is_a_directory(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "iter_000000002" / "trainer.pt"
    path.unlink()
    path.mkdir()
    return path, None


def payload_is_a_symlink(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "iter_000000002" / "model.pt"
    away = run.parent / "model.pt"
    path.rename(away)
    path.symlink_to(away)
    return path, None


def checkpoint_deleted(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "iter_000000004"
    shutil.rmtree(path)
    return path, None


def checkpoint_is_a_symlink(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "iter_000000004"
    away = run.parent / "elsewhere"
    path.rename(away)
    path.symlink_to(away)
    return path, None


def manifest_deleted(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "iter_000000004" / ".posttrain-manifest.json"
    path.unlink()
    return path, None


def pointer_is_nonsense(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "latest_checkpoint.txt"
    path.write_bytes(b"iter_7\n")
    return path, None


def pointer_is_behind(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "latest_checkpoint.txt"
    path.write_bytes(b"iter_000000004\n")
    return path, None


def pointer_to_nothing(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "latest_checkpoint.txt"
    path.write_bytes(b"iter_000000123\n")
    return path, None


def pointer_deleted(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "latest_checkpoint.txt"
    path.unlink()
    return path, None


def pointer_is_a_directory(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "latest_checkpoint.txt"
    path.unlink()
    path.mkdir()
    return path, None


def foreign_file(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "notes.txt"
    path.write_text("mine")
    return path, None


def foreign_file_in_a_checkpoint(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "iter_000000004" / "notes.txt"
    path.write_text("mine")
    return path, None


def foreign_symlink(run: Path) -> tuple[Path, int | None]:
    path = run / "checkpoints" / "newest"
    path.symlink_to("iter_000000007")
    return path, None


def foreign_name_in_the_journal(run: Path) -> tuple[Path, int | None]:
    path = run / "journal" / "1.jsonl"
    path.write_text("{}")
    return path, None


def closed_segment_flipped(run: Path) -> tuple[Path, int | None]:
    path = run / "journal" / "00000001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    flip(path, len(lines[0]) + 20)
    return path, len(lines[0])


def closed_segment_cut(run: Path) -> tuple[Path, int | None]:
    path = run / "journal" / "00000001.jsonl"
    cut(path, 40)
    return path, 0


def newest_segment_deleted(run: Path) -> tuple[Path, int | None]:
    (run / "journal" / "00000002.jsonl").unlink()
    path = run / "journal" / "00000001.jsonl"
    return path, path.stat().st_size


def end_torn(run: Path) -> tuple[Path, int | None]:
    path = run / "journal" / "00000002.jsonl"
    data = path.read_bytes()
    path.write_bytes(data + b'{"seq":47,"epoch":2,"at":"20')
    return path, len(data)


def raw_entry(last: bytes, *records: dict[str, object]) -> bytes:
    """A whole entry behind the line `last`, of records that our own codec would not write."""
    head = orjson.loads(last)
    fields = {"seq": head["seq"] + 1, "epoch": head["epoch"], "at": head["at"], "synced": head["seq"]}
    body = orjson.dumps({**fields, "records": list(records), "prev": head["sum"]})[:-1]
    return body + b',"sum":"' + blake2b(body, digest_size=16).hexdigest().encode() + b'"}\n'


def record_of_the_future(run: Path) -> tuple[Path, int | None]:
    path = run / "journal" / "00000002.jsonl"
    data = path.read_bytes()
    path.write_bytes(data + raw_entry(data.splitlines()[-1], {"kind": "teleported", "v": 1}))
    return path.parent, None


def record_that_cannot_follow(run: Path) -> tuple[Path, int | None]:
    path = run / "journal" / "00000002.jsonl"
    data = path.read_bytes()
    path.write_bytes(data + raw_entry(data.splitlines()[-1], {"kind": "update-applied", "v": 1, "attempt": 900}))
    return path, len(data)


CASES: list[tuple[Callable[[Path], tuple[Path, int | None]], str, int]] = [
    (payload_flipped, "file-digest", 5),
    (payload_cut, "file-size", 5),
    (payload_deleted, "file-missing", 5),
    (payload_is_a_directory, "file-unreadable", 5),
    (payload_is_a_symlink, "file-unreadable", 5),
    (checkpoint_deleted, "checkpoint-missing", 5),
    (checkpoint_is_a_symlink, "checkpoint-missing", 5),
    (manifest_deleted, "manifest-missing", 5),
    (pointer_is_nonsense, "pointer-malformed", 1),
    (pointer_is_behind, "pointer-behind", 1),
    (pointer_to_nothing, "pointer-dangling", 1),
    (pointer_deleted, "pointer-missing", 1),
    (pointer_is_a_directory, "pointer-unreadable", 1),
    (foreign_file, "unknown-name", 1),
    (foreign_file_in_a_checkpoint, "file-unlisted", 1),
    (foreign_symlink, "symlink", 1),
    (foreign_name_in_the_journal, "unknown-name", 1),
    (closed_segment_flipped, "closed-line", 3),
    (closed_segment_cut, "closed-otherwise", 3),
    (newest_segment_deleted, "lost-head", 3),
    (end_torn, "torn-tail", 6),
    (record_of_the_future, "newer", 4),
    (record_that_cannot_follow, "illegal", 3),
]


@pytest.mark.parametrize(("damage", "code", "exit_code"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_damage_is_one_finding_with_its_place(
    milepost: Milepost, ended: Path, damage: Callable[[Path], tuple[Path, int | None]], code: str, exit_code: int
) -> None:
    place, offset = damage(ended)
    answer = milepost("verify", ended, "--json")
    finding = only(answer)
    assert (finding["code"], answer.code, answer.json["exit_code"]) == (code, exit_code, exit_code)
    assert (finding["place"], finding["offset"]) == (str(place), offset)
    assert all(finding[field] for field in ("expected", "found", "action"))
    text = milepost("verify", ended)
    assert text.code == exit_code
    assert f"{finding['severity']}: {code}" in text.out


# --- more than one, and what a look does not see ------------------------------------------------------------


def test_a_checkpoint_that_nobody_recorded_is_found_and_its_own_files_are_checked(
    milepost: Milepost, ended: Path
) -> None:
    foreign = ended / "checkpoints" / "iter_000000005"
    shutil.copytree(ended / "checkpoints" / "iter_000000004", foreign)
    flip(foreign / "model.pt", 9)
    answer = milepost("verify", ended, "--json")
    assert codes(answer) == ["unrecorded-checkpoint", "manifest-foreign", "file-digest"]
    assert answer.code == 5


def test_a_flipped_byte_in_a_manifest_is_named_and_the_files_are_held_against_the_journal(
    milepost: Milepost, ended: Path
) -> None:
    checkpoint = ended / "checkpoints" / "iter_000000004"
    flip(checkpoint / ".posttrain-manifest.json", 200)
    flip(checkpoint / "model.pt", 200)
    answer = milepost("verify", ended, "--json")
    assert codes(answer) == ["manifest-differs", "manifest-unreadable", "file-digest"]
    assert answer.code == 5


def test_swapped_files_are_found_in_both_checkpoints(milepost: Milepost, ended: Path) -> None:
    older, newer = (ended / "checkpoints" / name / "model.pt" for name in ("iter_000000002", "iter_000000004"))
    _swap(older, newer)
    answer = milepost("verify", ended, "--json")
    assert [(one["code"], one["place"]) for one in answer.json["findings"]] == [
        ("file-digest", str(older)),
        ("file-digest", str(newer)),
    ]


def test_swapped_checkpoints_are_found_although_each_is_whole(milepost: Milepost, ended: Path) -> None:
    _swap(*(ended / "checkpoints" / name for name in ("iter_000000002", "iter_000000004")))
    answer = milepost("verify", ended, "--json")
    assert codes(answer).count("manifest-foreign") == 2
    assert codes(answer).count("manifest-differs") == 2
    assert answer.code == 5


def test_a_refused_journal_does_not_hide_a_damaged_checkpoint_or_a_second_bad_line(
    milepost: Milepost, ended: Path
) -> None:
    segment = ended / "journal" / "00000001.jsonl"
    lines = segment.read_bytes().splitlines(keepends=True)
    flip(segment, len(lines[0]) + 20)
    flip(segment, sum(map(len, lines[:5])) + 20)
    flip(ended / "checkpoints" / "iter_000000007" / "model.pt", 20)
    answer = milepost("verify", ended, "--json")
    assert [(one["code"], one["offset"]) for one in answer.json["findings"]] == [
        ("closed-line", len(lines[0])),
        ("bad-line", sum(map(len, lines[:5]))),
        ("file-digest", None),
    ]
    assert answer.code == 3


def test_quick_sees_sizes_and_hashes_nothing(milepost: Milepost, ended: Path) -> None:
    flip(ended / "checkpoints" / "iter_000000004" / "model.pt", 100)
    answer = milepost("verify", ended, "--quick", "--json")
    assert (answer.code, answer.json["findings"], answer.json["bytes_hashed"]) == (0, [], 0)
    cut(ended / "checkpoints" / "iter_000000004" / "model.pt", 100)
    assert codes(milepost("verify", ended, "--quick", "--json")) == ["file-size"]


def test_a_checkpoint_directory_leaves_the_other_checkpoints_out(milepost: Milepost, ended: Path) -> None:
    flip(ended / "checkpoints" / "iter_000000004" / "model.pt", 100)
    assert milepost("verify", ended / "checkpoints" / "iter_000000002", "--json").json["findings"] == []
    assert codes(milepost("verify", ended / "checkpoints" / "iter_000000004", "--json")) == ["file-digest"]


def test_bytes_behind_a_valid_length_are_evidence_and_a_change_in_their_number_is_noted(
    milepost: Milepost, staged: Path, tmp_path: Path
) -> None:
    segment = staged / "journal" / "00000001.jsonl"
    segment.write_bytes(segment.read_bytes() + b"a torn line")
    assert codes(milepost("verify", staged, "--json"))[0] == "torn-tail"
    train(config(tmp_path), until=6)
    assert codes(milepost("verify", staged, "--json")) == []
    cut(segment, segment.stat().st_size - 3)
    answer = milepost("verify", staged, "--json")
    assert (codes(answer), answer.code) == (["evidence-changed"], 0)


def test_a_directory_without_an_entry_is_an_empty_journal(milepost: Milepost, tmp_path: Path) -> None:
    (tmp_path / "20260102030405" / "journal").mkdir(parents=True)
    answer = milepost("verify", tmp_path / "20260102030405", "--json")
    assert (codes(answer), answer.code) == (["empty-journal"], 0)


# --- beside a live writer -----------------------------------------------------------------------------------


def test_a_line_that_is_being_appended_is_no_damage_while_its_writer_holds_the_lock(
    milepost: Milepost, ended: Path
) -> None:
    segment = ended / "journal" / "00000002.jsonl"
    segment.write_bytes(segment.read_bytes() + b'{"seq":47,"epoch":2,"at":"20')
    with open(ended / "journal" / "lock", "r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = milepost("verify", ended, "--json")
        assert (codes(answer), answer.code) == (["being-written"], 0)
        assert answer.json["writer"] == os.getpid()
    assert milepost("verify", ended, "--json").code == 6


def test_every_rest_of_a_live_run_verifies_and_a_start_is_foreseen_as_busy(
    milepost: Milepost, tmp_path: Path
) -> None:
    seen: list[tuple[int, list[str], str]] = []

    def look(journal: Any, step: int) -> None:
        answer = milepost("verify", journal.run_dir, "--json")
        seen.append((answer.code, codes(answer), milepost("why", journal.run_dir, "--json").json["start"]))

    train(config(tmp_path), until=5, each=look)
    assert [code for code, _, _ in seen] == [0, 0, 0, 0, 0]
    assert {code for _, found, _ in seen for code in found} == {"being-written"}
    assert {start for _, _, start in seen} == {"busy"}


# --- the table ----------------------------------------------------------------------------------------------


def test_codes_are_unique_and_every_row_says_what_to_do() -> None:
    table = [row for row in vars(rows).values() if isinstance(row, Row)]
    own = [row.code for row in table if row is not rows.NEWER_JOURNAL]  # stands for the row of the log's table
    assert len({*own, *(row.code for row in TABLE)}) == len(own) + len(TABLE)
    assert all(row.action for row in table)


def _swap(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)
