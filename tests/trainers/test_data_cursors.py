"""When a data source continues exactly, when it restarts with a note, and when the restore is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import pytest
from attrs import evolve, frozen
from torch import nn
from torch.utils.data import DataLoader

from milepost.engines.trainers import CursorResume, PlainTrainer, ShuffledBatches
from milepost.transitions.errors import Corrupt, MilepostError, NewerVersion, NotResumable, Refused
from tests.trainers.checkpoints import Checkpoint, save


class Counter:
    """A source without a fingerprint."""

    def __init__(self, at: int = 0) -> None:
        self.at = at

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def batches(*, seed: int = 0, taken: int = 0) -> ShuffledBatches[int]:
    source: ShuffledBatches[int] = ShuffledBatches(20, batch_size=4, seed=seed)
    for _ in range(taken):
        next(source)
    return source


def loader() -> DataLoader[int]:
    return DataLoader([1, 2, 3])  # type: ignore[arg-type]


def of(data: object, *, cursor_resume: CursorResume = "auto") -> Checkpoint:
    return save(PlainTrainer(model=nn.Linear(1, 1), data=data), cursor_resume=cursor_resume)


def elsewhere(checkpoint: Checkpoint) -> Checkpoint:
    return evolve(checkpoint, world_size=2)


def unfingerprinted(checkpoint: Checkpoint) -> Checkpoint:
    return checkpoint.changed("data", lambda tree: tree["identity"].update(fingerprint=None))


@frozen
class Case:
    """`auto` is `exact`, `refused`, or words of the note with which the source restarts; so is `strict`."""

    saved: Callable[[], Checkpoint]
    live: Callable[[], object]
    auto: str
    strict: Literal["exact", "refused"] = "refused"


CASES: Mapping[str, Case] = {
    "the same source": Case(lambda: of(batches(taken=7)), batches, "exact", "exact"),
    "the same source, no fingerprint": Case(lambda: of(Counter(7)), Counter, "exact", "exact"),
    "no source at the save": Case(lambda: of(None), batches, "no data cursor was saved"),
    "off at the save": Case(lambda: of(batches(), cursor_resume="off"), batches, "no data cursor was saved"),
    "unsupported at the save": Case(lambda: of(loader()), batches, "no data cursor was saved"),
    "unsupported here": Case(lambda: of(batches(taken=7)), loader, "the data source DataLoader has no state_dict"),
    "unsupported at both": Case(lambda: of(loader()), loader, "no data cursor was saved"),
    "no source here": Case(lambda: of(batches(taken=7)), lambda: None, "the trainer has no data source"),
    "another world size": Case(
        lambda: elsewhere(of(batches(taken=7))), batches, "the data cursor is of 1 ranks, 2 are here"
    ),
    "a fingerprint only here": Case(
        lambda: unfingerprinted(of(batches(taken=7))), batches, "only one of saved and present data source"
    ),
    "another fingerprint": Case(lambda: of(batches(taken=7)), lambda: batches(seed=1), "refused"),
    "another fingerprint in another world": Case(
        lambda: elsewhere(of(batches(taken=7))), lambda: batches(seed=1), "refused"
    ),
    "another class": Case(lambda: of(Counter(7)), batches, "refused"),
}


def position(source: object) -> object:
    return source.state_dict() if isinstance(source, (ShuffledBatches, Counter)) else None


@pytest.mark.parametrize("cursor_resume", ["auto", "strict"])
@pytest.mark.parametrize("name", CASES)
def test_the_rules_of_the_data_cursor(name: str, cursor_resume: Literal["auto", "strict"]) -> None:
    case = CASES[name]
    outcome = case.auto if cursor_resume == "auto" else case.strict
    checkpoint, data, model = case.saved(), case.live(), nn.Linear(1, 1)
    trainer = PlainTrainer(model=model, data=data)
    weight, start = model.weight.clone(), position(data)
    if outcome == "refused":
        with pytest.raises(NotResumable, match=r"iter_000000005/data\.pt"):
            trainer.restore(checkpoint, cursor_resume=cursor_resume)
        assert model.weight.equal(weight)
        assert position(data) == start
        return
    restored = trainer.restore(checkpoint, cursor_resume=cursor_resume)
    assert not model.weight.equal(weight)
    if outcome == "exact":
        assert position(data) == checkpoint.tree("data")["cursor"] != start
        assert "data" in restored.exact
        assert restored.notes == ()
    else:
        assert position(data) == start
        assert "data" not in restored.exact
        assert any(outcome in note for note in restored.notes)


def test_a_trainer_without_data_has_nothing_to_say_unless_it_is_strict() -> None:
    trainer = PlainTrainer(model=nn.Linear(1, 1))
    checkpoint = save(trainer)
    assert trainer.restore(checkpoint).notes == ()
    with pytest.raises(NotResumable, match="the trainer has no data source"):
        trainer.restore(checkpoint, cursor_resume="strict")


def test_off_leaves_the_source_alone_even_where_it_is_another_one() -> None:
    data = batches(seed=1, taken=2)
    restored = PlainTrainer(model=nn.Linear(1, 1), data=data).restore(of(batches(taken=7)), cursor_resume="off")
    assert restored.notes == ("data.cursor_resume=off: the data source restarts",)
    assert data.state_dict() == {"epoch": 0, "batch": 2}


@pytest.mark.parametrize("cursor_resume", ["auto", "off"])
def test_no_file_is_saved_for_a_source_without_state(cursor_resume: CursorResume) -> None:
    assert "data" not in of(loader(), cursor_resume=cursor_resume).names()


@pytest.mark.parametrize(
    ("data", "said"), [(None, "the trainer has no data source"), (loader(), "DataLoader has no state_dict")]
)
def test_strict_refuses_the_save_of_a_source_without_state(data: object, said: str) -> None:
    with pytest.raises(Refused, match=f"data.cursor_resume=strict and .*{said}"):
        of(data, cursor_resume="strict")


MALFORMED: Mapping[str, tuple[Callable[[dict[str, Any]], object], type[MilepostError], str]] = {
    "no format": (lambda tree: tree.pop("format"), Corrupt, "data.pt.format: missing"),
    "an unknown format": (lambda tree: tree.update(format="x"), Corrupt, "expected milepost.data.v1, found 'x'"),
    "a newer format": (lambda tree: tree.update(format="milepost.data.v3"), NewerVersion, "data.v3"),
    "a world of two with one cursor": (
        lambda tree: tree["identity"].update(world_size=2),
        Corrupt,
        "world_size: expected 1, as of cursors, found 2",
    ),
    "no cursor": (lambda tree: tree.pop("cursor"), Corrupt, "data.pt.cursor: missing"),
    "a cursor of another kind": (lambda tree: tree.update(cursor=[1]), Corrupt, "expected dict, found a list"),
    "no identity": (lambda tree: tree.pop("identity"), Corrupt, "data.pt.identity: missing"),
    "no class": (lambda tree: tree["identity"].pop("class"), Corrupt, "identity.class: missing"),
    "a world of another kind": (
        lambda tree: tree["identity"].update(world_size="1"),
        Corrupt,
        "world_size: expected int, found '1'",
    ),
    "a fingerprint of another kind": (
        lambda tree: tree["identity"].update(fingerprint=7),
        Corrupt,
        "fingerprint: expected str, found 7",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("cursor_resume", ["auto", "strict"])
def test_a_malformed_cursor_file_is_refused_before_anything_is_touched(
    name: str, cursor_resume: CursorResume
) -> None:
    change, expected, said = MALFORMED[name]
    model, data = nn.Linear(1, 1), batches()
    weight = model.weight.clone()
    with pytest.raises(expected) as refusal:
        PlainTrainer(model=model, data=data).restore(
            of(batches(taken=7)).changed("data", change), cursor_resume=cursor_resume
        )
    assert said in str(refusal.value)
    assert model.weight.equal(weight)
    assert data.state_dict() == {"epoch": 0, "batch": 0}


def test_a_cursor_that_the_source_does_not_take_is_refused_with_its_words() -> None:
    checkpoint = of(Counter(7)).changed("data", lambda tree: tree["cursor"].clear())
    with pytest.raises(NotResumable, match=r"Counter does not take its saved cursor: KeyError\('at'\)"):
        PlainTrainer(model=nn.Linear(1, 1), data=Counter()).restore(checkpoint)


def test_a_cursor_that_shuffled_batches_cannot_have_is_corrupt() -> None:
    checkpoint = of(batches()).changed("data", lambda tree: tree["cursor"].update(batch=99))
    with pytest.raises(Corrupt, match="expected less than 5, found 99"):
        PlainTrainer(model=nn.Linear(1, 1), data=batches()).restore(checkpoint)
