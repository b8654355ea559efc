"""The demonstration as a user runs it, and the example that it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from milepost.journal.demo import children

CHECKOUT = Path(__file__).parents[2]
EXAMPLE = CHECKOUT / "examples" / "char_lm.py"
COMMAND = (str(Path(sys.executable).with_name("milepost")), "demo")


def demo(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run((*COMMAND, *arguments), cwd=cwd, capture_output=True, text=True, timeout=200)


def embedding() -> list[str]:
    """The lines of the example that are milepost's, without empty ones."""
    lines, inside = [], False
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if line.strip() in ("# >>> milepost", "# <<< milepost"):
            inside = line.strip() == "# >>> milepost"
        elif inside and line.strip():
            lines.append(line.strip())
    return lines


@pytest.mark.slow
def test_the_demo_tells_its_story_and_finds_nothing_different(tmp_path: Path) -> None:
    done = demo(cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout
    assert [line[:2] for line in told.splitlines() if line[:1].isdigit()] == [f"{step}." for step in range(1, 8)]
    assert "Killed within the save of step" in told
    assert "no manifest beside them" in told
    assert "resumed from" in told
    assert "all 48 losses are equal to the last bit" in told
    for name in ("model.pt", "optim.pt", "trainer.pt", "data.pt"):
        assert f"equal, byte for byte: {name}" in told
    for verb in ("log", "why", "verify"):
        assert f"$ milepost {verb} " in told
    assert "Nothing differs." in told
    assert "DIFFERENT" not in told and "Traceback" not in told
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_the_demo_as_json_proves_the_kill_and_keeps_its_runs(tmp_path: Path) -> None:
    done = demo("--json", "--steps", "18", "--dir", "runs", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["equal"] and found["verify"] == 0
    assert [row["step"] for row in found["losses"]] == list(range(1, 19))
    killed, resumed = found["kill"]["step"], found["resumed_from"]
    assert resumed == killed - 3 and found["kill"]["latest"] == f"iter_{resumed:09d}"
    assert sum(file["size"] for file in found["kill"]["staged"]) > 0
    for row in found["losses"]:
        assert row["equal"]
        assert (row["before_kill"] is not None) == (row["step"] <= found["killed_after"])
        assert (row["after_resume"] is not None) == (row["step"] > resumed)
    assert len(list((tmp_path / "runs").glob("*/*/*/*/checkpoints/iter_*"))) == 12


@pytest.mark.slow
def test_a_folder_that_holds_something_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    done = demo("--dir", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    assert "no empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_the_example_embeds_milepost_in_at_most_ten_lines() -> None:
    lines = embedding()
    assert 5 <= len(lines) <= 10, lines
    told = "\n".join(lines)
    for needed in ("import Config, Journal", "PlainTrainer(", "Journal.open(", "journal.steps(", "journal.report("):
        assert needed in told


def test_the_example_is_the_script_of_the_demo() -> None:
    assert EXAMPLE.is_symlink()
    assert EXAMPLE.resolve() == CHECKOUT / "journal" / "demo" / "char_lm.py"


def test_a_child_that_fails_is_told_with_its_own_words() -> None:
    failing = children.Child((sys.executable, "-c", "raise SystemExit('no such luck')"), echo=lambda _: None)
    with failing as child, pytest.raises(children.DemoFailed, match="exit code 1:\nno such luck"):
        child.finish()


def test_a_save_that_cannot_be_caught_is_told(tmp_path: Path) -> None:
    idle = children.Child((sys.executable, "-c", ""), echo=lambda _: None)
    with idle as child, pytest.raises(children.DemoFailed, match="ended before a save of step 5"):
        child.kill_inside_save(lambda: tmp_path, at_least=5)


@pytest.mark.parametrize(
    ("files", "half"),
    [
        ({".staging/30.1.3/model.pt": 9}, True),
        ({".staging/20.1.3/model.pt": 9}, False),
        ({".staging/30.1.3/model.pt": 0}, False),
        ({".staging/30.1.3/model.pt": 9, ".staging/30.1.3/.posttrain-manifest.json": 0}, False),
        ({".staging/30.1.3/model.pt": 9, "iter_000000030/model.pt": 9}, False),
        ({"iter_000000030/model.pt": 9}, False),
    ],
)
def test_a_half_written_save_is_payload_without_manifest_or_publication(
    tmp_path: Path, files: dict[str, int], half: bool
) -> None:
    for name, size in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    assert (children.half_written(tmp_path, at_least=30) is not None) == half
