"""What one rank sees or does decides for all of them, once, and the journal says which rank it was.

Source: the checkpointing contract, "Rank consistency".
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from milepost.journal import Journal
from milepost.transitions.emergency import EmergencyCovered, TerminationObserved
from milepost.transitions.saving import SaveOpened
from milepost.transitions.values import Reason
from tests.ranks.saying import Saying, records, saying, visible
from tests.ranks.training import SAVE_EVERY, STEPS, Training, settings
from tests.ranks.worlds import run

pytestmark = pytest.mark.slow

CALLS: dict[str, Callable[[Journal, int], object]] = {
    "save": lambda journal, rank: journal.save(2 + rank),
    "boundary": lambda journal, rank: journal.boundary(1, final=rank == 1),
    "until": lambda journal, rank: next(journal.steps(until=STEPS + rank)),
    "another": lambda journal, rank: journal.should_stop() if rank else journal.finalize(),
}
"""What the ranks do not do alike."""


def stopped(root: Path) -> tuple[list[int], object]:
    """Rank 1 is told to stop within the third step: the steps that were run, and what rank 0 finds recorded."""
    rank, training, steps = dist.get_rank(), Training.begin(), []
    with Journal.open(settings(root, form="dcp"), trainer=training.trainer()) as journal:
        for step in journal.steps(until=STEPS):
            training.step()
            steps.append(step)
            if (rank, step) == (1, 3):
                os.kill(os.getpid(), signal.SIGTERM)
        history = list(journal.history()) if rank == 0 else []
    told = [one.detail for one in records(history, TerminationObserved)]
    saves = [(one.save.step, one.reason) for one in records(history, SaveOpened)]
    return steps, (told, saves, len(records(history, EmergencyCovered)), os.getpid())


def test_a_signal_to_one_rank_stops_all_behind_the_same_step_with_one_emergency_save(tmp_path: Path) -> None:
    (steps, (told, saves, covered, _)), (steps_of_1, (*_, pid)) = run(stopped, 2, tmp_path)
    assert steps == steps_of_1 == [1, 2, 3]
    assert told == [f"rank 1: process {pid} was sent SIGTERM"]
    assert saves == [(2, Reason.CADENCE), (3, Reason.EMERGENCY)]
    assert covered == 1
    assert visible(tmp_path) == (2, 3)


def differ(root: Path) -> dict[str, Saying]:
    """Each of `CALLS` in a run of its own."""
    rank, said = dist.get_rank(), {}
    for name, call in CALLS.items():
        with Journal.open(settings(root / name, form="dcp"), trainer=Training.begin().trainer()) as journal:
            said[name] = saying(partial(call, journal, rank))
    return said


def test_calls_that_are_not_alike_are_refused_on_every_rank(tmp_path: Path) -> None:
    first, second = run(differ, 2, tmp_path)
    assert first == second
    assert {kind for kind, _ in first.values()} == {"Refused"}
    wanted = {
        "save": ("save(step=3,", "save(step=2,"),
        "boundary": ("final=True", "final=False"),
        "until": (f"until={STEPS + 1}", f"until={STEPS}"),
        "another": ("should_stop()", "finalize()"),
    }
    for name, (of_1, of_0) in wanted.items():
        text = first[name][1]
        assert text.index("rank 1 called") < text.index(of_1) < text.index("while rank 0 called") < text.rindex(of_0)


def misconfigured(root: Path) -> Saying:
    config = settings(root, form="dcp", save_every=2 + dist.get_rank())
    return saying(lambda: Journal.open(config, trainer=Training.begin().trainer()))


def test_different_configurations_are_named_by_their_knob_on_every_rank(tmp_path: Path) -> None:
    first, second = run(misconfigured, 2, tmp_path)
    assert first == second
    assert first[0] == "Misconfigured"
    assert "rl.save_every: rank 1 has 3, rank 0 2" in first[1]
    assert not list(tmp_path.iterdir())


def skipped(root: Path) -> tuple[Saying, Saying]:
    """All skip the first step together, then rank 1 alone skips the third."""
    rank, training = dist.get_rank(), Training.begin()

    def loop() -> None:
        with Journal.open(settings(root, form="dcp"), trainer=training.trainer()) as journal:
            for step in journal.steps(until=STEPS):
                if step == 1 or (step == 3 and rank == 1):
                    journal.skip("an infinite gradient")
                training.step()

    return saying(loop), saying(loop)


def test_a_step_that_only_one_rank_skipped_is_refused_at_its_boundary(tmp_path: Path) -> None:
    first, second = run(skipped, 2, tmp_path)
    assert first == second
    for kind, text in first:
        assert kind == "Refused"
        assert "rank 1 called step(step=3, skipped=True" in text
        assert "while rank 0 called step(step=3, skipped=False" in text
    assert visible(tmp_path) == (SAVE_EVERY,)


def evaluated(root: Path) -> tuple[list[int], Saying, list[int], Saying]:
    """Rank 1 cannot evaluate step 4; the start after it can."""
    rank, seen = dist.get_rank(), list[int]()

    def evaluate(step: int) -> None:
        if (step, rank, broken) == (4, 1, True):
            raise ValueError("an odd number of examples")
        seen.append(step)

    def loop() -> int:
        config = settings(root, form="dcp", validation={"every_steps": 2})
        training = Training.begin()
        with Journal.open(config, trainer=training.trainer()) as journal:
            for _ in journal.steps(until=6, validate=evaluate):
                training.step()
        return journal.resumption.step

    broken = True
    failed = saying(loop)
    before, seen, broken = seen, [], False
    return before, failed, seen, saying(loop)


def test_every_rank_evaluates_and_what_fails_on_one_is_raised_on_all_behind_the_save(tmp_path: Path) -> None:
    first, second = run(evaluated, 2, tmp_path)
    assert first[0] == [2, 4] and second[0] == [2]
    assert first[1] == second[1] == ("Unavailable", "rank 1: ValueError: an odd number of examples")
    # The save that was due with it is what the next start goes on from, the evaluation first.
    assert first[2:] == second[2:] == ([4, 6], ("value", "4"))
    assert visible(tmp_path) == (2, 4, 6)
