"""What people are told of sampled work: the sentences of the log, the state, what changed, and the fold again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from milepost.journal.cli import main
from tests.crash.bugs import Bug, written
from tests.sampling.runs import START, at, driver_of, opened, settings, train_to


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that issued three pieces of work and settled the last of them and half of the second."""
    with opened(settings(tmp_path)) as (journal, training):
        journal.sampling.begin(START)
        tokens = [journal.sampling.issue(at(99)), journal.sampling.issue(at(97), 2), journal.sampling.issue(at(96))]
        driver_of(journal).barrier()
        journal.sampling.settle(tokens[2])
        journal.sampling.settle(tokens[1], 1)
        train_to(journal, training, 2)
    return Path(journal.run_dir)


def told(*arguments: object) -> str:
    answer = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def test_the_log_says_what_was_issued_and_settled(run: Path) -> None:
    said = told("log", run)
    for sentence in (
        "sampling goes on from epoch 1 with 100 completions remaining",
        "work 1 of 1 completion is issued, up to epoch 1 with 99 completions remaining",
        "work 2 of 2 completions is issued, up to epoch 1 with 97 completions remaining",
        "completion 0 of work 3 is settled",
        "completion 1 of work 2 is settled",
    ):
        assert sentence in said


def test_the_state_has_the_boundary_and_the_numbers_of_what_is_outstanding(run: Path) -> None:
    lines = [line.strip() for line in told("state", run).splitlines()]
    assert "sampling" in lines
    for line in ("boundary.remaining: 100", 'boundary.sampler_state: "{\\"offset\\":0}"', "tail.remaining: 96"):
        assert line in lines
    assert "outstanding: [1,2]" in lines
    assert not any(line.startswith(("partly", "stretches")) for line in lines)
    document: Any = json.loads(told("state", run, "--json"))
    room = document["state"]["sampling"]
    assert [number for number, _ in room["outstanding"]] == [1, 2]
    assert room["partly"] == [[2, [[1, True]]]]
    assert [number for number, _ in room["stretches"]] == [3]


def test_a_difference_names_what_moved(run: Path) -> None:
    sent: Any = json.loads(told("log", run, "--json").splitlines()[0])
    first = next(seq for seq in range(1, 9) if '"work-issued"' in told("show", run, seq, "--json"))
    assert sent is not None
    changes = json.loads(told("diff", run, first - 1, "head", "--json"))["changes"]
    found = {(one["part"], one["field"]): (one["old"], one["new"]) for one in changes}
    assert found["sampling", "outstanding"] == ("[]", "[1,2]")
    assert found["sampling", "stage"] == ('"unbegun"', '"begun"')
    assert found["sampling", "issued"] == ("0", "3")


def test_a_replay_finds_a_boundary_that_passed_a_gap(run: Path) -> None:
    assert "INV" not in told("replay", run)
    gap = Bug("a gap", "transitions.sampling:_moved", (("if number == sampling.head:", "if True:"),))
    with written(gap):
        answer = CliRunner().invoke(main, ["replay", str(run)])
    assert answer.exit_code == 1
    assert "INV-11" in answer.output
