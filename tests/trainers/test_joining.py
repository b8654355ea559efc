"""What every rank has for itself is saved by one of them, and each gets its own back."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from attrs import evolve
from torch import nn

from milepost.engines.trainers import CursorResume, PlainTrainer, ShuffledBatches, Snapshot, Tree, join
from milepost.transitions.errors import Corrupt, NotResumable, Refused
from milepost.transitions.values import FULL, Clocks
from tests.trainers.checkpoints import Checkpoint, Run, seed_everything


def batches(*, seed: int = 7, taken: int = 0) -> ShuffledBatches[int]:
    source: ShuffledBatches[int] = ShuffledBatches(20, batch_size=4, seed=seed)
    for _ in range(taken):
        next(source)
    return source


def captured(data: object, *, seed: int, cursor_resume: CursorResume = "auto") -> Snapshot:
    """What one rank captures that drew from streams of its own."""
    model = nn.Linear(2, 2)
    seed_everything(seed)
    return PlainTrainer(model=model, data=data).capture(FULL, clocks=Clocks(), cursor_resume=cursor_resume)


def world() -> Checkpoint:
    """Three ranks, at other batches and with other streams."""
    return Checkpoint.joined(*(captured(batches(taken=rank + 1), seed=rank) for rank in range(3)))


def on(checkpoint: Checkpoint, rank: int, *, world_size: int = 3) -> Checkpoint:
    return evolve(checkpoint, rank=rank, world_size=world_size)


@pytest.mark.parametrize("rank", range(3))
def test_each_rank_gets_its_own_streams_and_its_own_cursor(rank: int) -> None:
    data = batches()
    restored = PlainTrainer(model=nn.Linear(2, 2), data=data).restore(on(world(), rank), cursor_resume="strict")
    assert restored.exact == ("model", "data", "rng")
    assert restored.notes == ()
    assert data.state_dict() == {"epoch": 0, "batch": rank + 1}
    drawn = torch.rand(3)
    seed_everything(rank)
    assert torch.equal(torch.rand(3), drawn)


def test_the_identity_of_the_source_is_saved_once() -> None:
    tree = world().tree("data")
    assert tree == {
        "format": "milepost.data.v2",
        "identity": {"class": "ShuffledBatches", "fingerprint": batches().fingerprint(), "world_size": 3},
        "cursors": [{"epoch": 0, "batch": taken} for taken in (1, 2, 3)],
    }


def test_one_rank_is_saved_in_the_format_that_older_versions_read() -> None:
    tree = Checkpoint.joined(captured(batches(taken=2), seed=0)).tree("data")
    assert tree["format"] == "milepost.data.v1"
    assert tree["cursor"] == {"epoch": 0, "batch": 2}


def test_another_number_of_ranks_restarts_the_source_with_a_note_and_strictly_not_at_all() -> None:
    data = batches()
    trainer = PlainTrainer(model=nn.Linear(2, 2), data=data)
    restored = trainer.restore(on(world(), 1, world_size=2))
    assert restored.notes == (
        "the data cursor is of 3 ranks, 2 are here: the data source restarts",
        "the random streams of 3 ranks were skipped: 2 are here",
    )
    assert data.state_dict() == {"epoch": 0, "batch": 0}
    with pytest.raises(NotResumable, match="the data cursor is of 3 ranks, 2 are here"):
        trainer.restore(on(world(), 1, world_size=2), cursor_resume="strict")


def test_ranks_of_other_sources_are_refused_each_by_its_number() -> None:
    snapshots = [captured(data, seed=0) for data in (batches(), batches(seed=8), batches(), None)]
    first, second = batches().fingerprint(), batches(seed=8).fingerprint()
    with pytest.raises(Refused) as refusal:
        Checkpoint.joined(*snapshots)
    assert str(refusal.value) == (
        f"the ranks have different data sources: rank 0, 2: ShuffledBatches with fingerprint {first}; rank 1: "
        f"ShuffledBatches with fingerprint {second}; rank 3: none with a state. Give every rank the same source and "
        "keep what a rank takes of it in its cursor, or set data.cursor_resume=off"
    )


@pytest.mark.parametrize(("data", "cursor_resume"), [(None, "auto"), (batches(), "off")], ids=["no source", "off"])
def test_ranks_without_a_cursor_save_no_data_file(data: object, cursor_resume: CursorResume) -> None:
    snapshots = [captured(data, seed=rank, cursor_resume=cursor_resume) for rank in range(2)]
    assert Checkpoint.joined(*snapshots).names() == ("model", "trainer")


def test_a_rank_that_gave_no_streams_is_refused() -> None:
    snapshots = [captured(None, seed=0), Snapshot(components=FULL, trees={}), captured(None, seed=2)]
    with pytest.raises(Refused, match="rank 1 gave no random streams"):
        Checkpoint.joined(*snapshots)


def test_trees_that_are_whole_stay_as_they_are() -> None:
    trees: dict[str, Tree] = {"model": {"a": 1}, "trainer": {"rng": "of its own"}, "data": {"format": "of its own"}}
    for ranks in (1, 3):
        assert join(trees, [{}] * ranks) == trees


def test_joining_changes_no_tree_that_it_was_given() -> None:
    snapshot = captured(batches(), seed=0)
    join(snapshot.trees, [snapshot.local])
    assert "rng" not in snapshot.trees["trainer"]
    assert "data" not in snapshot.trees


def test_local_state_travels_between_processes() -> None:
    snapshot = captured(batches(taken=2), seed=3)
    assert Checkpoint.joined(evolve(snapshot, local=pickle.loads(pickle.dumps(snapshot.local)))).tree("data") == (
        Checkpoint.joined(snapshot).tree("data")
    )


def test_the_streams_stand_where_the_file_always_had_them() -> None:
    run = Run()
    snapshot = run.trainer.capture(FULL, clocks=Clocks())
    assert list(Checkpoint.joined(snapshot).tree("trainer")) == [
        "format",
        "optimizer_step",
        "iter",
        "attempt_id",
        "accum",
        "skipped_total",
        "skipped_consecutive",
        "fits",
        "rng",
        "extra",
        "optimizer_pristine",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tree: tree["cursors"].pop(), "world_size: expected 2, as of cursors, found 3"),
        (lambda tree: tree.update(cursors={}), "cursors: expected list, found a dict"),
        (lambda tree: tree["cursors"].__setitem__(1, 7), "cursors[1]: expected a dict with string keys, found 7"),
        (lambda tree: tree.pop("cursors"), "cursors: missing; expected list"),
    ],
    ids=["a cursor too few", "cursors of another kind", "a cursor of another kind", "no cursors"],
)
def test_malformed_cursors_of_many_ranks_are_corrupt(change: Any, said: str) -> None:
    with pytest.raises(Corrupt) as refusal:
        PlainTrainer(model=nn.Linear(2, 2), data=batches()).restore(on(world().changed("data", change), 0))
    assert said in str(refusal.value)
