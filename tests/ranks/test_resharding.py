"""What two ranks saved is resumed by one, three and four: equal tensors, and what is of a rank alone starts anew.

Source: the checkpointing contract, "Rank consistency" and "Per-rank RNG streams".
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from milepost.engines.trainers import CursorResume, ShardedTrainer, Snapshot
from milepost.journal import Journal
from milepost.transitions.errors import Corrupt, NotResumable
from milepost.transitions.run import RunResumed
from milepost.transitions.values import Clocks, Plan
from tests.ranks.saying import records
from tests.ranks.training import SAVE_EVERY, State, Training, require_equal, settings
from tests.ranks.worlds import run

pytestmark = pytest.mark.slow

FORMS = ("dcp", "consolidated")
PADDED_ROWS = 10


@pytest.fixture(scope="module", params=FORMS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, State]:
    """Where two ranks saved after the fourth step, in which format, and what their state was."""
    root = tmp_path_factory.mktemp(request.param)
    state = run(save, 2, root, request.param)[0]
    assert isinstance(state, State)
    return root, request.param, state


def save(root: Path, form: str) -> State:
    training = Training.begin()
    with Journal.open(settings(root, form=form), trainer=training.trainer()) as journal:
        for _ in journal.steps(until=2 * SAVE_EVERY):
            training.step()
    return training.state()


def resume(root: Path, form: str) -> tuple[State, tuple[str, ...], tuple[str, ...]]:
    """From other seeds: the state, what the journal says of it on this rank, and what is recorded on rank 0."""
    with pytest.raises(NotResumable, match=r"data\.cursor_resume=strict continues only exactly"):
        Journal.open(
            settings(root, form=form, data={"cursor_resume": "strict"}), trainer=Training.begin(seed=8).trainer()
        )
    training = Training.begin(seed=8)
    untouched = Training.begin(seed=8).state()
    with Journal.open(settings(root, form=form), trainer=training.trainer()) as journal:
        assert (journal.resumption.kind, journal.resumption.step) == ("exact", 2 * SAVE_EVERY)
        recorded: tuple[str, ...] = ()
        if dist.get_rank() == 0:
            recorded = records(journal.history(), RunResumed)[-1].notes
        restored = training.state()
    assert restored.own.batch == untouched.own.batch
    return restored, journal.resumption.notes, recorded


@pytest.mark.parametrize("size", [1, 3, 4])
def test_another_number_of_ranks_restores_equal_tensors_and_notes_what_it_skipped(
    saved: tuple[Path, str, State], tmp_path: Path, size: int
) -> None:
    original, form, state = saved
    root = shutil.copytree(original, tmp_path / "root")
    skipped = (
        f"the data cursor is of 2 ranks, {size} are here: the data source restarts",
        f"the random streams of 2 ranks were skipped: {size} are here",
    )
    for rank, answer in enumerate(run(resume, size, root, form)):
        assert isinstance(answer, tuple)
        restored, notes, recorded = answer
        require_equal(restored.full, state.full)
        assert restored.own.rate == state.own.rate
        assert notes == skipped
        assert recorded == (skipped if rank == 0 else ())


# --- what other programs read ---------------------------------------------------------------------------

READER = """
import os, sys
import torch
import torch.distributed.checkpoint as dcp

checkpoint, expected_at = sys.argv[1:]
expected = torch.load(expected_at)

def read(path, names):
    into = {name: torch.full_like(expected[name], float("nan")) for name in names}
    if os.path.isdir(path):
        dcp.load(into, checkpoint_id=path, no_dist=True)
    else:
        into = torch.load(path + ".pt")
    assert names and all(torch.equal(into[name], expected[name]) for name in names)

read(checkpoint + "/model", [name for name in expected if not name.startswith("state.")])
read(checkpoint + "/optim", [name for name in expected if name.startswith("state.")])
assert "milepost" not in sys.modules
"""


def test_a_program_that_knows_only_torch_reads_what_is_published(
    saved: tuple[Path, str, State], tmp_path: Path
) -> None:
    root, form, state = saved
    (checkpoint,) = root.glob(f"milepost/default/run/*/checkpoints/iter_{2 * SAVE_EVERY:09}")
    assert [(checkpoint / name).is_dir() for name in ("model", "optim")] == [form == "dcp", True]
    torch.save(official(state.full), tmp_path / "expected")
    command = (sys.executable, "-c", READER, checkpoint, tmp_path / "expected")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def official(full: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By the names that torch gives them in its directories: weights, and the state of the optimizer."""
    named = {}
    for said, value in full.items():
        key, name = said.split(" ")
        named[name if key == "model" else f"state.{name}.{key}"] = value
    return named


# --- what is refused ------------------------------------------------------------------------------------


def padded() -> ShardedTrainer:
    """A model whose rows are padded to a multiple of the ranks, as vocabularies often are."""
    size = dist.get_world_size()
    model = nn.Sequential(nn.Linear(4, -(-PADDED_ROWS // size) * size))
    fully_shard(model)
    return ShardedTrainer(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def save_padded(root: Path, form: str) -> None:
    with Journal.open(settings(root, form=form), trainer=padded()) as journal:
        for _ in journal.steps(until=SAVE_EVERY):
            pass


def resume_padded(root: Path, form: str) -> str:
    with pytest.raises(NotResumable) as refused:
        Journal.open(settings(root, form=form), trainer=padded())
    return str(refused.value)


@pytest.mark.parametrize("form", FORMS)
def test_a_padding_to_the_number_of_ranks_is_refused_with_both_sizes(tmp_path: Path, form: str) -> None:
    run(save_padded, 2, tmp_path, form)
    said = run(resume_padded, 4, tmp_path, form)
    assert said == [said[0]] * 4
    assert "0.weight" in str(said[0])
    assert f"[{PADDED_ROWS}, 4]" in str(said[0]) and f"[{PADDED_ROWS + 2}, 4]" in str(said[0])


class Garbling(ShardedTrainer):
    """Saves streams of which those of rank 1 are not whole."""

    def capture(
        self,
        components: Plan,
        *,
        clocks: Clocks,
        cursor_resume: CursorResume = "auto",
        validation: Mapping[str, object] | None = None,
    ) -> Snapshot:
        captured = super().capture(components, clocks=clocks, cursor_resume=cursor_resume, validation=validation)
        if dist.get_rank() == 1:
            captured.local["rng"].pop("numpy")  # type: ignore[attr-defined]
        return captured


def garbled(root: Path, form: str) -> str:
    training = Training.begin()
    garbling = Garbling(model=training.model, optimizer=training.optimizer)
    with Journal.open(settings(root, form=form), trainer=garbling) as journal:
        for _ in journal.steps(until=SAVE_EVERY):
            training.step()
    training = Training.begin(seed=8)
    with pytest.raises(Corrupt) as corrupt:
        Journal.open(
            settings(root, form=form), trainer=ShardedTrainer(model=training.model, optimizer=training.optimizer)
        )
    return str(corrupt.value)


@pytest.mark.parametrize("form", FORMS)
def test_a_malformed_inventory_of_random_streams_is_corrupt_on_every_rank(tmp_path: Path, form: str) -> None:
    said = run(garbled, 2, tmp_path, form)
    assert said == [said[0]] * 2
    assert "trainer.pt.rng.ranks[1]" in str(said[0]) and "numpy" in str(said[0])
