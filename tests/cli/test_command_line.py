"""The command line as a program: help, JSON as documented, exit codes, a quick start, and a run left untouched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import jsonschema
import pytest

from milepost import __version__
from milepost.engines.shapes import shape_of
from milepost.journal.cli import VERBS
from milepost.journal.cli.scheduling import Script
from milepost.journal.forensics.budgeting import Budget, SaveTiming, Timing
from milepost.journal.forensics.findings import Finding
from milepost.journal.forensics.foreseeing import Why, WhyOne
from milepost.journal.forensics.listing import Listed, Listing, Shown
from milepost.journal.forensics.questions import Broken, Change, Count, Difference, Replayed
from milepost.journal.forensics.reading import locate
from milepost.journal.forensics.retaining import Judged, Retained
from milepost.journal.forensics.sentences import SENTENCES, size
from milepost.journal.forensics.timeline import Epoch, Event, Wanted, follow
from milepost.journal.forensics.verifying import Verified
from milepost.transitions.machine import RECORDS
from tests.cli.conftest import Milepost
from tests.journal.runs import config, train

MOVING = ("publish", "fetch", "prune-verified", "copy", "download", "probe")
"""What is about an object store, and tested in `test_moving.py`."""
READING = tuple(verb for verb in VERBS if verb not in ("demo", "prune", "slurm", *MOVING))

RESULTS: dict[str, tuple[tuple[object, ...], type, tuple[type, ...]]] = {
    "ls": ((), Listing, (Listed,)),
    "show": (("iter_000000004",), Shown, (Event,)),
    "diff": (("3", "head"), Difference, (Change,)),
    "why": ((), Why, (Epoch,)),
    "verify": ((), Verified, (Finding,)),
    "replay": ((), Replayed, (Count, Broken)),
    "prune": (("--plan",), Retained, (Judged,)),
}
"""What each verb answers with: its other arguments, the class of the whole, those of its parts."""


@pytest.mark.parametrize("verb", RESULTS)
def test_json_has_the_shape_of_its_class_and_the_help_names_every_field(
    milepost: Milepost, ended: Path, verb: str
) -> None:
    arguments, result, parts = RESULTS[verb]
    jsonschema.validate(milepost(verb, ended, *arguments, "--json").json, shape_of(result).schema)
    text = milepost(verb, "--help").out
    for name in (field.name for one in (result, *parts) for field in attrs.fields(one)):
        assert f'"{name}"' in text, f"the help of {verb} does not speak of {name}"


def test_json_of_one_checkpoint_has_its_shape(milepost: Milepost, ended: Path) -> None:
    jsonschema.validate(milepost("why", ended, "iter_000000004", "--json").json, shape_of(WhyOne).schema)


def test_json_of_the_batch_script_has_its_shape_with_and_without_a_run(milepost: Milepost, ended: Path) -> None:
    for arguments in ((), ("--run", ended)):
        jsonschema.validate(milepost("slurm", "--json", *arguments).json, shape_of(Script).schema)
    text = milepost("slurm", "--help").out
    for name in (field.name for one in (Script, Budget, SaveTiming, Timing) for field in attrs.fields(one)):
        assert f'"{name}"' in text, f"the help of slurm does not speak of {name}"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(milepost: Milepost, verb: str) -> None:
    answer = milepost(verb, "--help")
    assert answer.code == 0
    assert re.search(rf"Examples?:\s+milepost {verb}\b", answer.out)
    assert verb == "demo" or "JSON" in answer.out


def test_the_help_lists_every_verb_and_the_version_is_that_of_the_package(milepost: Milepost) -> None:
    assert all(f"\n  {verb} " in milepost("--help").out for verb in VERBS)
    assert milepost("--version").out == f"milepost, version {__version__}\n"


@pytest.mark.parametrize("verb", (*READING, "prune"))
def test_what_is_no_run_is_refused_as_usage_with_what_to_name_instead(
    milepost: Milepost, tmp_path: Path, verb: str
) -> None:
    more = ("1",) if verb in ("diff", "show") else ()
    for run, words in (
        (tmp_path / "nowhere", "expected a run directory, found nothing"),
        (tmp_path, "found one without journal/"),
        ("s3://", "no address: an empty key names no object"),
    ):
        answer = milepost(verb, run, *more)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith("milepost: ")
        assert words in answer.err


@pytest.mark.parametrize("verb", ["log", "state", "diff", "replay", "ls", "why", "prune"])
def test_a_corrupt_journal_is_one_message_with_its_place_and_exit_code_three(
    milepost: Milepost, ended: Path, verb: str
) -> None:
    segment = ended / "journal" / "00000001.jsonl"
    data = bytearray(segment.read_bytes())
    data[30] ^= 1
    segment.write_bytes(data)
    answer = milepost(verb, ended, *(("1",) if verb == "diff" else ()))
    assert answer.code == 3
    assert f"closed-line: {segment}, byte 0" in answer.err
    assert "Traceback" not in answer.err


def test_no_verb_but_prune_changes_a_byte_or_a_name_of_a_run(milepost: Milepost, staged: Path) -> None:
    def everything() -> dict[str, tuple[int, bytes]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in sorted(staged.rglob("*"))
        }

    before = everything()
    for verb in READING:
        more = {"diff": ("1",), "show": ("iter_000000002",)}.get(verb, ())
        assert milepost(verb, staged, *more).code == 0
    assert everything() == before


def test_torch_is_not_loaded_by_any_verb_but_demo(ended: Path) -> None:
    run = str(ended)
    verbs = [
        ["--help"],
        ["log", run],
        ["state", run],
        ["diff", run, "1"],
        ["replay", run],
        ["show", run, "3"],
        ["show", run, "iter_000000002"],
        ["ls", run],
        ["why", run],
        ["verify", run],
        ["slurm", "--run", run],
        ["prune", run, "--plan"],
        ["prune", run],
    ]
    program = (
        "import sys\n"
        "from milepost.journal.cli import main\n"
        f"for verb in {verbs!r}:\n"
        "    try:\n"
        "        main(verb, standalone_mode=False)\n"
        "    except SystemExit as left:\n"
        "        assert left.code == 0, verb\n"
        "    assert 'torch' not in sys.modules, verb\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_has_enough_ends_the_output_quietly(ended: Path) -> None:
    program = f"from milepost.journal.cli import main; main(['log', {str(ended)!r}])"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert "Traceback" not in done.stderr


def test_following_tells_what_is_appended_later_once(ended: Path, tmp_path: Path) -> None:
    class EnoughSeen(Exception):
        pass

    waits: Iterator[Any] = iter([lambda: train(config(tmp_path), until=9), lambda: None])

    def wait() -> None:
        then = next(waits, None)
        if then is None:
            raise EnoughSeen
        then()

    seen = []
    with pytest.raises(EnoughSeen):
        for entry, record in follow(locate(str(ended)).log, Wanted(kinds=("save-sealed",)), wait=wait):
            seen.append((entry.seq, record.save.step))  # type: ignore[union-attr]
    assert [step for _, step in seen] == [2, 4, 6, 7, 8, 9]
    assert len({seq for seq, _ in seen}) == 6


def test_every_kind_of_record_has_a_sentence() -> None:
    assert set(SENTENCES) == set(RECORDS)


def test_sizes_are_told_in_the_unit_that_fits() -> None:
    assert [size(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30, 2 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 GiB",
        "2.0 TiB",
    ]


# --- slurm --------------------------------------------------------------------------------------------------


def test_the_batch_script_is_valid_bash_with_the_wiring_of_the_contract(milepost: Milepost) -> None:
    text = milepost("slurm", "--grace", "900", "--log-dir", "/shared/logs", "--", "srun", "python", "a b.py").out
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    lines = text.splitlines()
    for line in (
        "#SBATCH --signal=B:SIGUSR1@900",
        "#SBATCH --requeue",
        'export SLURM_LOG_DIR="/shared/logs"',
        'mkdir -p "$SLURM_LOG_DIR"',
        """trap 'told=1; touch "$SLURM_LOG_DIR/SIGUSR1_RECEIVED"' USR1""",
        "srun python 'a b.py' &",
    ):
        assert line in lines
    at = lines.index("wait $_lp")
    assert lines[at : at + 3] == ["wait $_lp", "wait $_lp", "status=$?"] and lines[-1] == "exit $status"
    first_command = next(index for index, line in enumerate(lines) if line and not line.startswith("#"))
    assert all(line.startswith("#SBATCH") is False for line in lines[first_command:])


def batch_job(text: str, folder: Path) -> subprocess.Popen[str]:
    """The script as job 7, with a `scontrol` that notes what it was asked."""
    scontrol = folder / "scontrol"
    scontrol.write_text(f'#!/bin/bash\necho "$*" >> "{folder}/asked"\n', encoding="utf-8")
    scontrol.chmod(0o755)
    environ = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    return subprocess.Popen(["bash", "-c", text], stdout=subprocess.PIPE, text=True, env=environ)


@pytest.mark.parametrize(("status", "asked"), [(0, "requeue 7\n"), (7, None)])
def test_the_batch_script_lets_the_run_see_the_signal_and_asks_for_the_rest_of_a_run_that_ended_well(
    milepost: Milepost, tmp_path: Path, status: int, asked: str | None
) -> None:
    logs = tmp_path / "logs of a job"
    run = f"echo ready; while [ ! -e '{logs}/SIGUSR1_RECEIVED' ]; do sleep 0.02; done; exit {status}"
    text = milepost("slurm", "--log-dir", logs, "--", "bash", "-c", run).out
    job = batch_job(text, tmp_path)
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    job.send_signal(10)
    job.stdout.close()
    assert job.wait(timeout=20) == status
    notes = tmp_path / "asked"
    assert (notes.read_text(encoding="utf-8") if notes.exists() else None) == asked


@pytest.mark.parametrize("status", [0, 3])
def test_the_batch_script_ends_as_the_run_does_where_no_signal_comes(
    milepost: Milepost, tmp_path: Path, status: int
) -> None:
    text = milepost("slurm", "--log-dir", tmp_path / "logs", "--", "bash", "-c", f"exit {status}").out
    job = batch_job(text, tmp_path)
    job.communicate()
    assert job.returncode == status
    assert not (tmp_path / "asked").exists(), "a run that was not told to stop is done"


def test_a_log_directory_that_would_break_out_of_its_quotes_is_refused(milepost: Milepost) -> None:
    for bad in ('a"b', "a`b`", "$(rm x)", ""):
        assert milepost("slurm", "--log-dir", bad).code == 2
