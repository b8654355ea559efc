"""The axis of steps: what is saved on it, what is not, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.journal import Journal, Refused
from milepost.transitions.values import Reason
from tests.journal.runs import FakeWatch, Training, config, train


def checkpoints(journal: Journal) -> list[int]:
    return sorted(journal.state.saving.sealed)


def opened(root: Path, *overrides: str) -> tuple[Training, Journal]:
    training = Training()
    return training, Journal.open(config(root, *overrides), trainer=training.trainer(), watch=FakeWatch(), environ={})


def test_without_a_cadence_nothing_regular_is_saved(tmp_path: Path) -> None:
    _, journal = train(config(tmp_path, "save_every=0"), until=5)
    assert checkpoints(journal) == []


def test_a_step_asked_for_twice_is_saved_once(tmp_path: Path) -> None:
    training, journal = opened(tmp_path)
    with journal:
        for _ in journal.steps(until=2):
            training.step()
        journal.finalize()
        entries = len(list(journal.history()))
        journal.save(2)
        journal.save(2, reason=Reason.EMERGENCY)
        assert len(list(journal.history())) == entries
    assert checkpoints(journal) == [2]


def test_a_step_behind_the_newest_is_refused(tmp_path: Path) -> None:
    training, journal = opened(tmp_path)
    with journal:
        for _ in journal.steps(until=2):
            training.step()
        with pytest.raises(Refused, match=r"step 1.*step 2 is published"):
            journal.save(1)
    assert checkpoints(journal) == [2]


@pytest.mark.filterwarnings("ignore:.*artifact.*:UserWarning")
def test_a_step_behind_the_newest_artifact_is_refused_for_checkpoints_too(tmp_path: Path) -> None:
    training, journal = opened(tmp_path, "checkpoint_components=[model]")
    with journal:
        for _ in journal.steps(until=2):
            training.step()
        with pytest.raises(Refused, match=r"step 1.*step 2 is published"):
            journal.save(1, reason=Reason.EMERGENCY)
    assert sorted(journal.state.saving.artifacts) == [2]


def test_step_zero_is_saved_only_when_it_is_asked_for(tmp_path: Path) -> None:
    _, journal = train(config(tmp_path / "unasked"), until=0)
    assert checkpoints(journal) == []
    _, journal = opened(tmp_path / "asked")
    with journal:
        journal.save(0)
    assert checkpoints(journal) == [0]
    rest, again = train(config(tmp_path / "asked"), until=2)
    assert (again.resumption.kind, again.resumption.step) == ("exact", 0)
    assert rest.digest() == train(config(tmp_path / "whole"), until=2)[0].digest()


@pytest.mark.parametrize("negative", [-1, -(2**40)])
def test_a_negative_step_is_refused(tmp_path: Path, negative: int) -> None:
    _, journal = opened(tmp_path)
    with journal, pytest.raises(Refused, match="count from 0"):
        journal.save(negative)


@pytest.mark.parametrize("rows", [9, 10, 11])
def test_an_uneven_last_batch_is_a_step_like_any_other(tmp_path: Path, rows: int) -> None:
    """Three batches an epoch, the last of them short; one save falls on it and one inside an epoch."""
    settings = "save_every=3"
    whole, _ = train(config(tmp_path / "whole", settings), until=8, rows=rows)
    for until in (4, 6):
        train(config(tmp_path / "cut", settings), until=until, rows=rows)
    rest, journal = train(config(tmp_path / "cut", settings), until=8, rows=rows)
    assert journal.resumption.step == 6
    assert rest.losses == whole.losses[6:] and rest.digest() == whole.digest()


def test_a_loop_in_parts_has_one_final_save(tmp_path: Path) -> None:
    training, journal = opened(tmp_path)
    with journal:
        for until in (3, 5):
            for _ in journal.steps(until=until):
                training.step()
    assert checkpoints(journal) == [2, 4, 5]
