"""What does not fit, contradicts itself or is malformed is refused by name, with every live object as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, lr_scheduler

from milepost.engines.trainers import PlainTrainer
from milepost.transitions.errors import Corrupt, MilepostError, NewerVersion, NotResumable, Refused
from milepost.transitions.values import FULL, Clocks
from tests.trainers.checkpoints import Checkpoint, Run, save

Change = Callable[[Any], object]


def put(value: object, *path: str | int) -> Change:
    def change(tree: Any) -> None:
        for key in path[:-1]:
            tree = tree[key]
        tree[path[-1]] = value

    return change


def drop(*path: str | int) -> Change:
    def change(tree: Any) -> None:
        for key in path[:-1]:
            tree = tree[key]
        del tree[path[-1]]

    return change


def trained(*, step: int = 5) -> Checkpoint:
    run = Run()
    run.train(step)
    return save(run.trainer, step=step)


def assert_refused(checkpoint: Checkpoint, expected: type[MilepostError], *said: str, run: Run | None = None) -> None:
    """Refused with these words, and nothing live has moved."""
    run = run or Run(seed=1)
    before = run.everything()
    with pytest.raises(expected) as refusal:
        run.trainer.restore(checkpoint)
    assert run.everything() == before
    assert type(refusal.value) is expected
    for words in said:
        assert words in str(refusal.value)


MALFORMED_CLOCKS: Mapping[str, tuple[Change, str]] = {
    "the alias disagrees": (put(4, "iter"), "trainer.pt.iter: expected optimizer_step, 5, found 4"),
    "a negative count": (put(-1, "skipped_total"), "skipped_total: expected a count, zero or more, found -1"),
    "a float": (put(5.0, "optimizer_step"), "optimizer_step: expected int, found 5.0"),
    "a bool": (put(True, "attempt_id"), "attempt_id: expected int, found True"),
    "a text": (put("0", "skipped_consecutive"), "skipped_consecutive: expected int, found '0'"),
    "none": (put(None, "accum"), "accum: expected int, found None"),
    "an open window": (put(2, "accum"), "accum: expected 0, a quiescent boundary, found 2"),
    "an incomplete attempt": (put(6, "attempt_id"), "attempt_id is 6"),
    "an attempt too few": (put(4, "attempt_id"), "attempt_id is 4"),
    "more skips in a row than in total": (put(1, "skipped_consecutive"), "1 consecutive skips of 0"),
    "no step": (drop("optimizer_step"), "optimizer_step: missing; expected int"),
    "no attempt": (drop("attempt_id"), "attempt_id: missing"),
    "no window marker": (drop("accum"), "accum: missing"),
    "no skip counter": (drop("skipped_total"), "skipped_total: missing"),
}

MALFORMED_STREAMS: Mapping[str, tuple[Change, str]] = {
    "no inventory": (drop("rng"), "trainer.pt.rng: missing"),
    "an inventory of another kind": (put([1], "rng"), "rng: expected dict, found a list"),
    "a world of none": (put(0, "rng", "world_size"), "expected 0 ranks, at least one"),
    "a rank too few": (put(2, "rng", "world_size"), "expected 2 ranks, at least one, found 1"),
    "no ranks": (drop("rng", "ranks"), "ranks: missing"),
    "a rank of another kind": (put(["x"], "rng", "ranks"), "ranks[0]: expected a dict with string keys, found 'x'"),
    "no python stream": (drop("rng", "ranks", 0, "python"), "ranks[0].python: missing"),
    "no torch stream": (drop("rng", "ranks", 0, "torch"), "ranks[0].torch: missing"),
    "an unknown version": (put(9, "rng", "ranks", 0, "python", "version"), "malformed: state with version 9"),
    "words of another length": (
        put(torch.zeros(624, dtype=torch.int64), "rng", "ranks", 0, "python", "words"),
        "words: expected int64[625] of 32-bit words",
    ),
    "words of another dtype": (put(torch.zeros(625), "rng", "ranks", 0, "python", "words"), "int64[625]"),
    "a word below zero": (put(-1, "rng", "ranks", 0, "numpy", "key", 3), "numpy.key: expected int64[624]"),
    "a position beyond the words": (put(900, "rng", "ranks", 0, "python", "words", 624), "is malformed"),
    "a twin that is no number": (put("x", "rng", "ranks", 0, "python", "gauss_next"), "expected float, found 'x'"),
    "a numpy position of another kind": (put("x", "rng", "ranks", 0, "numpy", "pos"), "numpy.pos: expected int"),
    "a torch state that is cut": (
        put(torch.zeros(100, dtype=torch.uint8), "rng", "ranks", 0, "torch"),
        "a random stream is malformed",
    ),
    "a torch state of another kind": (put([0], "rng", "ranks", 0, "torch"), "torch: expected Tensor, found a list"),
    "a CUDA state of another kind": (put([torch.zeros(3)], "rng", "ranks", 0, "cuda"), "cuda[0]: expected a uint8"),
}

MALFORMED_PARTS: Mapping[str, tuple[Change, str]] = {
    "an unknown format": (put("something", "format"), "expected milepost.trainer.v1, found 'something'"),
    "a format of another kind": (put(1, "format"), "format: expected str, found 1"),
    "no inventory of what fits": (drop("fits"), "fits: missing"),
    "a marker that is false": (put(False, "optimizer_pristine"), "expected True or no such key, found False"),
    "a marker of another kind": (put("yes", "optimizer_pristine"), "expected bool, found 'yes'"),
    "no extra state": (drop("extra"), "extra: missing"),
    "extra state of another kind": (put(3, "extra"), "extra: expected dict, found 3"),
}


@pytest.mark.parametrize("name", MALFORMED_CLOCKS)
def test_malformed_clocks_are_refused(name: str) -> None:
    change, said = MALFORMED_CLOCKS[name]
    assert_refused(trained().changed("trainer", change), Corrupt, said, "iter_000000005/trainer.pt")


@pytest.mark.parametrize("name", MALFORMED_STREAMS)
def test_malformed_random_streams_are_refused_and_not_taken_for_legacy(name: str) -> None:
    change, said = MALFORMED_STREAMS[name]
    assert_refused(trained().changed("trainer", change), Corrupt, said)


@pytest.mark.parametrize("name", MALFORMED_PARTS)
def test_a_malformed_trainer_file_is_refused(name: str) -> None:
    change, said = MALFORMED_PARTS[name]
    assert_refused(trained().changed("trainer", change), Corrupt, said)


def test_a_trainer_file_of_a_newer_version_is_told_apart_from_a_corrupt_one() -> None:
    newer = trained().changed("trainer", put("milepost.trainer.v2", "format"))
    assert_refused(newer, NewerVersion, "expected milepost.trainer.v1, found 'milepost.trainer.v2'")


def test_a_trainer_file_that_is_no_mapping_is_corrupt() -> None:
    checkpoint = trained()
    files = {**checkpoint.files, "trainer": Checkpoint.of({"x": [1]}).files["x"]}  # type: ignore[dict-item]
    assert_refused(Checkpoint(files=files), Corrupt, "trainer.pt: expected a dict with string keys, found a list")


@pytest.mark.parametrize("name", ["model", "optim", "trainer"])
def test_a_checkpoint_that_lacks_a_part_is_refused(name: str) -> None:
    assert_refused(trained().without(name), NotResumable, f"lacks {name}", "only a full checkpoint")


def legacy(checkpoint: Checkpoint) -> Checkpoint:
    """What a checkpoint from before the counters, the streams and the inventories holds: `iter`."""

    def change(tree: Any) -> None:
        step = tree["iter"]
        tree.clear()
        tree["iter"] = step

    return checkpoint.changed("trainer", change)


def test_a_legacy_checkpoint_takes_its_attempts_from_its_step_and_has_skipped_nothing() -> None:
    run, other = Run(), Run(seed=1)
    run.train(5)
    checkpoint = legacy(save(run.trainer, step=5))
    weights = [parameter.clone() for parameter in run.model.parameters()]
    restored = other.trainer.restore(checkpoint)
    assert restored.clocks == Clocks(optimizer_step=5, attempt_id=5)
    assert restored.exact == ("model", "optimizer", "data")
    assert restored.notes == ("the random streams were not saved (legacy checkpoint): they start anew",)
    assert all(map(torch.equal, weights, other.model.parameters()))
    assert other.optimizer.state_dict()["state"][0]["step"] == 5


@pytest.mark.parametrize("name", ["the alias disagrees", "a negative count", "an open window", "a bool"])
def test_what_a_legacy_checkpoint_does_hold_is_checked_like_any_other(name: str) -> None:
    change, said = MALFORMED_CLOCKS[name]
    checkpoint = trained().changed("trainer", drop("format")).changed("trainer", change)
    assert_refused(checkpoint, Corrupt, said)


def test_a_legacy_checkpoint_without_any_step_is_corrupt() -> None:
    assert_refused(legacy(trained()).changed("trainer", drop("iter")), Corrupt, "iter", "missing; expected int")


@pytest.mark.parametrize("keep", [True, False], ids=["this format", "legacy"])
def test_a_model_of_another_shape_is_refused_by_the_names_that_differ(keep: bool) -> None:
    checkpoint = trained() if keep else legacy(trained())
    said = ("model.pt does not fit", "0.weight (saved float32[6, 3], here float32[7, 3])", "nothing was changed")
    assert_refused(checkpoint, NotResumable, *said, run=Run(width=7))
    assert checkpoint.filled == set()


def test_a_model_of_another_dtype_is_refused() -> None:
    other = Run(dtype=torch.bfloat16)
    assert_refused(trained(), NotResumable, "0.weight (saved float32[6, 3], here bfloat16[6, 3])", run=other)


def test_a_model_with_other_names_is_refused_by_those() -> None:
    run = Run()
    run.trainer = PlainTrainer(
        model=nn.Sequential(*run.model, nn.Linear(1, 1)), optimizer=run.optimizer, data=run.batches
    )
    assert_refused(trained(), NotResumable, "only here: 4.weight, 4.bias", run=run)
    assert_refused(save(run.trainer), NotResumable, "only in the checkpoint: 4.weight, 4.bias")


def test_a_model_file_of_another_save_is_corrupt() -> None:
    mixed = trained().changed("model", lambda tree: tree.update({"0.bias": torch.zeros(9)}))
    with pytest.raises(Corrupt, match=r"model\.pt does not hold what trainer\.pt describes"):
        Run().trainer.restore(mixed)


def test_an_optimizer_of_another_class_is_refused() -> None:
    other = Run(lambda model: SGD(model.parameters(), lr=0.1))
    assert_refused(trained(), NotResumable, "optim.pt does not fit", "class (saved AdamW, here SGD)", run=other)


def test_an_optimizer_with_other_groups_is_refused() -> None:
    def grouped(model: nn.Module) -> torch.optim.Optimizer:
        first, *rest = model.parameters()
        return torch.optim.AdamW([{"params": [first]}, {"params": rest}])

    assert_refused(trained(), NotResumable, "optim.pt does not fit", "only here: group 1", run=Run(grouped))


def test_a_legacy_optimizer_with_other_groups_is_refused_by_the_optimizer() -> None:
    def grouped(model: nn.Module) -> torch.optim.Optimizer:
        first, *rest = model.parameters()
        return torch.optim.AdamW([{"params": [first]}, {"params": rest}])

    checkpoint, run = legacy(trained()), Run(grouped)
    run.train(1)
    [moment, *_] = [state["exp_avg"] for state in run.optimizer.state.values()]
    before = moment.clone()
    with pytest.raises(NotResumable, match="different number of parameter groups"):
        run.trainer.restore(checkpoint)
    assert torch.equal(moment, before)


def test_an_optimizer_is_neither_gained_nor_lost_by_a_restore() -> None:
    run = Run()
    alone = PlainTrainer(model=run.model, data=run.batches)
    with pytest.raises(NotResumable, match="only in the checkpoint: class, group 0"):
        alone.restore(trained())
    with pytest.raises(NotResumable, match="lacks optim"):
        run.trainer.restore(save(alone))


def test_extra_state_is_neither_gained_nor_lost_by_a_restore() -> None:
    run = Run()
    more = PlainTrainer(model=run.model, optimizer=run.optimizer, data=run.batches, extra={"ema": nn.Linear(1, 1)})
    assert_refused(save(more), NotResumable, "trainer.pt.extra does not fit: only in the checkpoint: ema")
    with pytest.raises(NotResumable, match="only here: ema"):
        more.restore(trained())


class Warmup(lr_scheduler.LambdaLR):
    """A schedule that says what it was built from."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, warmup: int) -> None:
        self.warmup = warmup
        super().__init__(optimizer, lambda step: min(1.0, step / warmup))

    def identity(self) -> dict[str, int | str]:
        return {"warmup": self.warmup, "timing": "post-update"}


def test_a_schedule_that_was_built_the_same_way_continues() -> None:
    run, other = Run(make_scheduler=lambda o: Warmup(o, warmup=4)), Run(make_scheduler=lambda o: Warmup(o, warmup=4))
    run.train(2)
    assert "scheduler" in other.trainer.restore(save(run.trainer, step=2)).exact
    assert other.optimizer.param_groups[0]["lr"] == run.optimizer.param_groups[0]["lr"]


def test_a_changed_schedule_is_refused_before_anything_is_loaded() -> None:
    saved = save(Run(make_scheduler=lambda o: Warmup(o, warmup=4)).trainer)
    other = Run(make_scheduler=lambda o: Warmup(o, warmup=5))
    assert_refused(saved, NotResumable, "built differently", "'warmup': 4", "'warmup': 5", run=other)
    assert saved.filled == set()


@pytest.mark.parametrize(
    "change",
    [
        drop("scheduler", "identity"),
        put("milepost.scheduler.v2", "scheduler", "identity", "format"),
        put("Cooldown", "scheduler", "identity", "class"),
    ],
    ids=["no identity", "an unknown version", "another class"],
)
def test_a_schedule_whose_identity_is_not_proven_is_refused(change: Change) -> None:
    saved = save(Run(make_scheduler=lambda o: Warmup(o, warmup=4)).trainer).changed("trainer", change)
    assert_refused(saved, NotResumable, "built differently", run=Run(make_scheduler=lambda o: Warmup(o, warmup=4)))


def test_a_saved_identity_is_not_dropped_by_a_scheduler_without_one() -> None:
    saved = save(Run(make_scheduler=lambda o: Warmup(o, warmup=4)).trainer)
    other = Run(make_scheduler=lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0))
    assert_refused(saved, NotResumable, "built differently", "here None", run=other)


def test_a_schedule_without_identity_keeps_restoring_its_state_alone() -> None:
    run = Run(make_scheduler=lambda o: lr_scheduler.StepLR(o, 3))
    run.train(4)
    other = Run(make_scheduler=lambda o: lr_scheduler.StepLR(o, 5))
    other.trainer.restore(save(run.trainer, step=4))
    assert run.scheduler is not None
    assert other.scheduler is not None
    assert other.scheduler.state_dict() == run.scheduler.state_dict()


def test_a_scheduler_is_neither_gained_nor_lost_by_a_restore() -> None:
    with_one = Run(make_scheduler=lambda o: lr_scheduler.StepLR(o, 3))
    assert_refused(save(with_one.trainer), NotResumable, "the checkpoint has a scheduler and this trainer has none")
    assert_refused(trained(), NotResumable, "this trainer has a scheduler and the checkpoint has none", run=with_one)


def test_an_identity_that_a_file_could_not_hold_is_a_type_error() -> None:
    class Odd(Warmup):
        def identity(self) -> dict[str, Any]:
            return {"schedule": [1, 2]}

    with pytest.raises(TypeError, match=r"Odd\.identity\(\) may hold .* found schedule: list"):
        save(Run(make_scheduler=lambda o: Odd(o, warmup=1)).trainer)


@pytest.mark.parametrize(
    "clocks",
    [Clocks(optimizer_step=3, attempt_id=4), Clocks(attempt_id=1, skipped_total=1, skipped_consecutive=2)],
    ids=["an open attempt", "impossible skips"],
)
def test_a_capture_inside_an_accumulation_window_is_refused(clocks: Clocks) -> None:
    with pytest.raises(Refused, match="inside an accumulation window"):
        Run().trainer.capture(FULL, clocks=clocks)


def test_skipped_updates_come_back_with_the_clocks() -> None:
    clocks = Clocks(optimizer_step=3, attempt_id=5, skipped_total=2, skipped_consecutive=1)
    checkpoint = Checkpoint.joined(Run().trainer.capture(FULL, clocks=clocks))
    assert Run().trainer.restore(checkpoint).clocks == clocks


def test_the_streams_of_another_world_are_skipped_with_a_note() -> None:
    checkpoint = Checkpoint(files=trained().files, world_size=2)
    run = Run(seed=1)
    before = torch.get_rng_state()
    restored = run.trainer.restore(checkpoint)
    assert "the random streams of 1 ranks were skipped: 2 are here" in restored.notes
    assert "rng" not in restored.exact
    assert torch.equal(torch.get_rng_state(), before)


def test_cuda_streams_of_other_devices_are_skipped_with_a_note() -> None:
    devices = torch.cuda.device_count() + 1
    states = [torch.zeros(16, dtype=torch.uint8)] * devices
    restored = Run().trainer.restore(trained().changed("trainer", put(states, "rng", "ranks", 0, "cuda")))
    assert restored.notes == (f"the CUDA random streams of {devices} devices were skipped: {devices - 1} are here",)


def test_another_global_generator_of_numpy_is_refused_at_the_capture() -> None:
    before = np.random.mtrand.get_bit_generator()
    try:
        np.random.mtrand.set_bit_generator(np.random.PCG64(0))
        with pytest.raises(Refused, match="numpy's global generator is PCG64"):
            save(Run().trainer)
    finally:
        np.random.mtrand.set_bit_generator(before)


class Nested:
    """A model whose state is a tree of its own, with an extra part that changes its size."""

    def __init__(self, *, extra: int, width: int = 2) -> None:
        self.net = [torch.randn(2, 2), torch.randn(width)]
        self.extra = extra

    def state_dict(self) -> dict[str, Any]:
        return {"net": self.net, "net_extra_state": torch.zeros(self.extra)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net, self.extra = state["net"], len(state["net_extra_state"])


def test_the_extra_state_of_a_module_may_have_another_size() -> None:
    saved, other = Nested(extra=3), Nested(extra=1)
    PlainTrainer(model=other).restore(save(PlainTrainer(model=saved)))
    assert other.extra == 3
    assert all(map(torch.equal, other.net, saved.net))


def test_a_nested_model_is_compared_leaf_by_leaf() -> None:
    saved, other = Nested(extra=3), Nested(extra=3, width=3)
    with pytest.raises(NotResumable, match=r"net\.1 \(saved float32\[2\], here float32\[3\]\)"):
        PlainTrainer(model=other).restore(save(PlainTrainer(model=saved)))


def test_a_long_list_of_differences_is_cut() -> None:
    with pytest.raises(NotResumable, match="and 4 more") as refusal:
        PlainTrainer(model=nn.Linear(1, 1)).restore(save(PlainTrainer(model=Run().model)))
    assert len(str(refusal.value)) < 500
