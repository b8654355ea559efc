"""A checkpoint remembers how its run was validated, and does not continue a run that is validated otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
from torch import nn

from milepost.engines.trainers import PlainTrainer, ShuffledBatches
from milepost.transitions.errors import Corrupt, MilepostError, NewerVersion, NotResumable
from milepost.transitions.values import Clocks, Component
from tests.trainers.checkpoints import Checkpoint, Run, save

GOLDEN = Path(__file__).parents[2] / "spec" / "golden" / "0.1"

Identity = Mapping[str, Any]

IDENTITY: Identity = {"enabled": True, "source": "held-out-3", "config": {"every_steps": 200, "at_end": True}}
OFF: Identity = {"enabled": False, "source": "", "config": {}}


def trained(validation: Identity | None = IDENTITY) -> Checkpoint:
    run = Run()
    run.train(5)
    return save(run.trainer, step=5, validation=validation)


def refusal(checkpoint: Checkpoint, here: Identity | None, expected: type[MilepostError] = NotResumable) -> str:
    """What a restore is refused with; nothing live has moved and no bulk was read into it."""
    run = Run(seed=1)
    before = run.everything()
    with pytest.raises(expected) as caught:
        run.trainer.restore(checkpoint, validation=here)
    assert type(caught.value) is expected
    assert run.everything() == before
    assert checkpoint.filled == set()
    return str(caught.value)


def test_the_identity_is_saved_in_trainer_pt_under_a_version() -> None:
    saved = trained().tree("trainer")["validation"]
    assert saved == {"format": "milepost.validation-identity.v1", "identity": IDENTITY}


def test_a_run_that_is_validated_the_same_way_continues_without_a_note() -> None:
    checkpoint, other = trained(), Run(seed=1)
    restored = other.trainer.restore(checkpoint, validation=IDENTITY)
    assert restored.clocks.optimizer_step == 5
    assert restored.notes == ()
    assert torch.equal(other.model.state_dict()["0.weight"], checkpoint.tree("model")["0.weight"])


CHANGES: Mapping[str, tuple[Identity, str]] = {
    "the source": ({**IDENTITY, "source": "other"}, "source (saved 'held-out-3', here 'other')"),
    "the switch": ({**IDENTITY, "enabled": False}, "enabled (saved True, here False)"),
    "a number for a switch": ({**IDENTITY, "enabled": 1}, "enabled (saved True, here 1)"),
    "the cadence": (
        {**IDENTITY, "config": {"every_steps": 100, "at_end": True}},
        "config.every_steps (saved 200, here 100)",
    ),
    "a knob less": ({**IDENTITY, "config": {"every_steps": 200}}, "config.at_end (saved True, here nothing)"),
    "a knob more": (
        {**IDENTITY, "config": {**IDENTITY["config"], "before_training": True}},
        "config.before_training (saved nothing, here True)",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_validation_is_refused_by_what_differs_with_the_way_out(name: str) -> None:
    here, differing = CHANGES[name]
    assert refusal(trained(), here) == (
        f"iter_000000005/trainer.pt.validation: the validation has changed: different: {differing}. Set its knobs "
        "back, or start a new attempt with resume=off; nothing was changed"
    )


def test_everything_that_differs_is_told_at_once() -> None:
    said = refusal(trained(), OFF)
    for name in ("enabled", "source", "config.every_steps", "config.at_end"):
        assert f"{name} (saved " in said
    assert "config.every_steps (saved nothing, here 200)" in refusal(trained(OFF), IDENTITY)


def test_a_checkpoint_from_before_the_identity_continues_with_a_note() -> None:
    restored = Run(seed=1).trainer.restore(trained(None), validation=IDENTITY)
    assert restored.notes == ("the identity of the validation was not saved (older checkpoint): it was not compared",)
    assert restored.exact == ("model", "optimizer", "data", "rng")


def test_a_golden_checkpoint_continues_under_any_validation() -> None:
    golden = GOLDEN / "run" / "checkpoints" / "iter_000000005"
    expected = orjson.loads((GOLDEN / "expected.json").read_bytes())
    checkpoint = Checkpoint(files={file.stem: file.read_bytes() for file in golden.glob("*.pt")})
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    trainer = PlainTrainer(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, step_size=3),
        data=ShuffledBatches(12, batch_size=4, seed=3),
    )
    restored = trainer.restore(checkpoint, validation=IDENTITY)
    assert restored.clocks.attempt_id == expected["resumes_at"]
    assert restored.notes == ("the identity of the validation was not saved (older checkpoint): it was not compared",)
    parameters = [value.hex() for parameter in model.parameters() for value in parameter.flatten().tolist()]
    assert parameters == expected["parameters"]


def test_a_caller_without_an_identity_is_told_that_the_saved_one_was_not_compared() -> None:
    assert Run(seed=1).trainer.restore(trained()).notes == (
        "the identity of the validation was not given: the saved one was not compared",
    )
    assert Run(seed=1).trainer.restore(trained(None)).notes == ()


def change(edit: Callable[[Any], object]) -> Checkpoint:
    return trained().changed("trainer", lambda tree: edit(tree["validation"]))


MALFORMED: Mapping[str, tuple[Callable[[], Checkpoint], str]] = {
    "no mapping": (
        lambda: trained().changed("trainer", lambda tree: tree.update(validation=3)),
        "trainer.pt.validation: expected dict, found 3",
    ),
    "no format": (lambda: change(lambda saved: saved.pop("format")), "validation.format: missing; expected str"),
    "another format": (
        lambda: change(lambda saved: saved.update(format="something")),
        "expected milepost.validation-identity.v1, found 'something'",
    ),
    "no identity": (
        lambda: change(lambda saved: saved.pop("identity")),
        "validation.identity: missing; expected dict",
    ),
    "an identity of another kind": (
        lambda: change(lambda saved: saved.update(identity=["enabled"])),
        "validation.identity: expected dict, found a list",
    ),
}


@pytest.mark.parametrize("here", [IDENTITY, None], ids=["compared", "not compared"])
@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_identity_is_corrupt_whether_it_is_compared_or_not(name: str, here: Identity | None) -> None:
    make, said = MALFORMED[name]
    assert said in refusal(make(), here, Corrupt)


def test_an_identity_of_a_newer_version_is_told_apart_from_a_corrupt_one() -> None:
    newer = change(lambda saved: saved.update(format="milepost.validation-identity.v2"))
    assert "found 'milepost.validation-identity.v2'" in refusal(newer, IDENTITY, NewerVersion)


def test_the_identity_is_part_of_the_training_state_alone() -> None:
    trainer = PlainTrainer(model=nn.Linear(1, 1))
    weights = trainer.capture((Component.MODEL,), clocks=Clocks(), validation=IDENTITY)
    state = trainer.capture((Component.TRAINING_STATE,), clocks=Clocks(), validation=IDENTITY)
    assert set(weights.trees) == {"model"}
    assert "validation" in state.trees["trainer"]
