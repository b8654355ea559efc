"""Sampling in a world of several ranks: rank 0 keeps the ledger, and every rank knows what was restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist

from milepost.journal import Journal, SamplingBoundary
from tests.ranks.saying import Saying, saying
from tests.ranks.training import STEPS, Training, settings
from tests.ranks.worlds import run

START, NEXT = SamplingBoundary(1, 10, {"offset": 0}), SamplingBoundary(1, 9, {"offset": 1})


def sampled(root: Path) -> tuple[Saying | None, Any, Any]:
    """A run to its end, and the start after it: what another rank is told, and what both of them restored."""
    rank, said = dist.get_rank(), None
    training = Training.begin()
    with Journal.open(settings(root, form="dcp"), trainer=training.trainer()) as journal:
        before = journal.resumption.sampling
        if rank == 0:
            journal.sampling.begin(START)
            journal.sampling.settle(journal.sampling.issue(NEXT))
        else:
            said = saying(lambda: journal.sampling)
        for _ in journal.steps(until=STEPS):
            training.step()
    with Journal.open(settings(root, form="dcp"), trainer=Training.begin().trainer()) as journal:
        return said, before, journal.resumption.sampling


def test_rank_0_keeps_the_ledger_and_every_rank_knows_what_was_restored(tmp_path: Path) -> None:
    first, second = run(sampled, 2, tmp_path)
    assert first == (None, None, NEXT)
    assert second == (
        ("Refused", "sampling: rank 0 owns the journal, and this is rank 1; ask there"),
        None,
        NEXT,
    )
