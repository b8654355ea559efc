"""Samplers of torch that go on where they were: exactly the rest, whatever the loader fetched ahead."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from milepost.journal.controller import ResumableBatchSampler, ResumableSampler
from milepost.journal.controller.metadata import SamplingOwner
from milepost.transitions.errors import Corrupt, NotResumable, Refused
from tests.controller.application import BATCH, KINDS, SAMPLES, loader_of, numbers, sampler_of, samplers_of, taken


def batches(inner: object, size: int = BATCH, *, drop_last: bool = False) -> ResumableBatchSampler:
    return ResumableBatchSampler(BatchSampler(inner, size, drop_last))  # type: ignore[arg-type]


@pytest.mark.parametrize("epoch", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_sampler_yields_exactly_the_rest(kind: str, epoch: int) -> None:
    first = ResumableSampler(sampler_of(kind))
    first.set_epoch(epoch)
    order = list(first)
    assert len(order) == len(first) == (12 if kind == "distributed" else SAMPLES)
    for position in range(len(order) + 1):
        first.advance(min(position, 1))
        state = json.loads(json.dumps(first.state_dict()))
        second = ResumableSampler(sampler_of(kind))
        second.set_epoch(epoch)
        second.load_state_dict(state)
        assert (second.epoch, second.remaining) == (epoch, len(order) - position)
        assert list(second) == order[position:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_batch_sampler_yields_exactly_the_rest(kind: str) -> None:
    first = batches(sampler_of(kind))
    order = list(first)
    assert len(order) == len(first)
    first.advance(2)
    assert list(first) == order[2:]
    second = batches(sampler_of(kind))
    second.load_state_dict(first.state_dict())
    assert list(second) == order[2:]


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_of_a_sampler_that_draws_differ_and_each_is_the_same_every_time(kind: str) -> None:
    def order(epoch: int) -> list[int]:
        sampler = ResumableSampler(sampler_of(kind))
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(2) == order(2)
    assert (order(1) == order(2)) is (kind == "sequential")


def test_the_order_is_that_of_torch_itself() -> None:
    distributed = sampler_of("distributed")
    distributed.set_epoch(2)  # type: ignore[attr-defined]
    resumable = ResumableSampler(sampler_of("distributed"))
    resumable.set_epoch(2)
    assert list(resumable) == list(distributed)
    random = ResumableSampler(sampler_of("random", seed=7))
    random.set_epoch(2)
    assert list(random) == list(sampler_of("random", seed=9))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("owner", ["sampler", "batch_sampler"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_loader_fetched_ahead_is_not_consumed(kind: str, owner: SamplingOwner, workers: int) -> None:
    whole = [numbers(batch) for batch in loader_of(samplers_of(kind, owner))]
    samplers = samplers_of(kind, owner)
    iterator = iter(loader_of(samplers, workers=workers))
    for expected in whole[:2]:
        batch = next(iterator)
        taken(samplers, batch)
        assert numbers(batch) == expected
    state = samplers.effective.state_dict()
    restored = samplers_of(kind, owner)
    restored.effective.load_state_dict(state)
    assert [numbers(batch) for batch in loader_of(restored, workers=workers)] == whole[2:]


def test_epochs_may_overlap_and_nothing_of_the_wrapped_sampler_changes() -> None:
    inner = sampler_of("random")
    assert isinstance(inner, RandomSampler)
    before = inner.generator.get_state()
    sampler = ResumableSampler(inner)
    first = iter(sampler)
    sampler.set_epoch(2)
    second = iter(sampler)
    torch.rand(5, generator=inner.generator)
    inner.generator.set_state(before)
    assert (list(second), list(first)) == (list(sampler_of("random", seed=9)), list(sampler_of("random", seed=8)))
    assert torch.equal(inner.generator.get_state(), before)


def test_a_loop_that_sets_the_epoch_at_its_top_keeps_what_was_restored() -> None:
    order = list(ResumableSampler(sampler_of("random")))
    saved = ResumableSampler(sampler_of("random"))
    saved.advance(20)
    sampler = ResumableSampler(sampler_of("random"))
    sampler.load_state_dict(saved.state_dict())
    met = []
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        met.append(list(sampler))
    assert met[0] == order[20:]
    assert len(met[1]) == SAMPLES


def test_a_state_says_its_own_epoch_where_nobody_set_one() -> None:
    saved = ResumableSampler(sampler_of("random"))
    saved.set_epoch(4)
    saved.advance(3)
    restored = ResumableSampler(sampler_of("random"))
    restored.load_state_dict(saved.state_dict())
    assert (restored.epoch, restored.remaining) == (4, SAMPLES - 3)
    assert list(restored) == list(saved)


def test_every_rank_of_a_distributed_sampler_takes_the_same_state() -> None:
    saved = ResumableSampler(sampler_of("distributed", rank=0))
    saved.advance(5)
    other = ResumableSampler(sampler_of("distributed", rank=1))
    order = list(ResumableSampler(sampler_of("distributed", rank=1)))
    other.load_state_dict(saved.state_dict())
    assert list(other) == order[5:]


@pytest.mark.parametrize(
    "inner",
    [
        SubsetRandomSampler(range(10, 20), generator=torch.Generator().manual_seed(7)),
        WeightedRandomSampler([1.0] * 10, 10, generator=torch.Generator().manual_seed(7)),
        RandomSampler(range(10), replacement=True, num_samples=70, generator=torch.Generator().manual_seed(7)),
    ],
)
def test_other_samplers_that_draw_are_the_same_every_time(inner: RandomSampler) -> None:
    order = list(ResumableSampler(inner))
    sampler = ResumableSampler(inner)
    sampler.advance(4)
    assert list(sampler) == order[4:]
    assert list(sampler) == order[4:]


def test_a_sampler_that_draws_from_the_global_generator_needs_a_seed() -> None:
    with pytest.raises(Refused, match="RandomSampler draws from torch's global generator"):
        ResumableSampler(RandomSampler(range(SAMPLES)))
    with pytest.raises(Refused, match="global generator"):
        batches(RandomSampler(range(SAMPLES)))
    assert list(ResumableSampler(RandomSampler(range(SAMPLES)), seed=7)) == list(sampler_of("random", seed=8))
    with pytest.raises(Refused, match="seed: expected an integer"):
        ResumableSampler(sampler_of("random"), seed=True)


def test_a_sampler_is_made_resumable_once() -> None:
    with pytest.raises(Refused, match="made resumable once"):
        batches(ResumableSampler(sampler_of("random")))


def test_a_state_is_loaded_before_the_first_iterator() -> None:
    sampler = ResumableSampler(sampler_of("random"))
    state = sampler.state_dict()
    sampler.load_state_dict(state)
    iter(DataLoader(range(SAMPLES), sampler=sampler))  # type: ignore[arg-type] # any iterable with a length will do
    sampler.load_state_dict(state)  # a loader without workers takes its first index with its first batch
    iter(sampler)
    with pytest.raises(Refused, match="before its iterator is made, and one was made"):
        sampler.load_state_dict(state)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (ResumableSampler(sampler_of("random", seed=8)), "seed was 7, is 8"),
        (ResumableSampler(RandomSampler(range(22)), seed=7), "length was 23, is 22"),
        (ResumableSampler(RandomSampler(range(SAMPLES), replacement=True), seed=7), "replacement was False, is True"),
        (ResumableSampler(sampler_of("sequential")), "class was 'RandomSampler', is 'SequentialSampler'"),
        (batches(sampler_of("random")), "of 1 samplers in one another, here are 2"),
    ],
)
def test_a_state_of_another_sampler_is_refused_by_what_differs(
    other: ResumableSampler | ResumableBatchSampler, told: str
) -> None:
    saved = ResumableSampler(sampler_of("random"))
    saved.advance(3)
    before = other.state_dict()
    with pytest.raises(NotResumable, match=told):
        other.load_state_dict(saved.state_dict())
    assert other.state_dict() == before


def test_a_state_of_another_batch_size_or_number_of_ranks_is_refused() -> None:
    with pytest.raises(NotResumable, match="batch_size was 4, is 5"):
        batches(sampler_of("random"), 5).load_state_dict(batches(sampler_of("random")).state_dict())
    with pytest.raises(NotResumable, match="drop_last was False, is True"):
        batches(sampler_of("sequential"), drop_last=True).load_state_dict(
            batches(sampler_of("sequential")).state_dict()
        )
    state = ResumableSampler(sampler_of("distributed")).state_dict()
    state["of"][0]["num_replicas"] = 3  # type: ignore[index, call-overload]
    with pytest.raises(NotResumable, match="num_replicas was 3, is 2"):
        ResumableSampler(sampler_of("distributed")).load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        {"position": -1},
        {"position": SAMPLES + 1},
        {"position": True},
        {"position": "3"},
        {"epoch": 0},
        {"epoch": True},
        {"of": None},
        {"of": [None]},
        {"of": [(1,)]},
        {"more": 1},
    ],
)
def test_what_is_no_state_is_corrupt(change: dict[str, object]) -> None:
    sampler = ResumableSampler(sampler_of("random"))
    with pytest.raises(Corrupt):
        sampler.load_state_dict(sampler.state_dict() | change)
    with pytest.raises(Corrupt):
        sampler.load_state_dict(7)  # type: ignore[arg-type]


def test_nobody_consumes_more_than_an_epoch_has() -> None:
    sampler = ResumableSampler(sampler_of("random"))
    sampler.advance(SAMPLES)
    assert (sampler.remaining, list(sampler)) == (0, [])
    for count in (1, -1, True, 1.0):
        with pytest.raises(Refused, match="count"):
            sampler.advance(count)  # type: ignore[arg-type]
    for epoch in (0, True, "1"):
        with pytest.raises(Refused, match="epoch"):
            sampler.set_epoch(epoch)  # type: ignore[arg-type]


def test_a_state_is_a_copy() -> None:
    sampler = ResumableSampler(sampler_of("random"))
    sampler.state_dict()["of"][0]["seed"] = 8  # type: ignore[index, call-overload]
    assert sampler.state_dict()["of"][0]["seed"] == 7  # type: ignore[index, call-overload]
