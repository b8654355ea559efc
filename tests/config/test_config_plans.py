"""Plans: what is refused of them by name, when a partial one warns, and what of validation is an identity."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.journal.config import Config
from milepost.transitions.errors import Misconfigured
from milepost.transitions.values import FULL, Component

NAMES = ["model", "optimizer", "training_state"]
PLANS = ["rl.checkpoint_components", "rl.validation.checkpoint_components"]
ALLOWED = "expected a non-empty list of different names out of model, optimizer, training_state"


def loaded(*overrides: str) -> Config:
    return Config.load(overrides=overrides, environ={})


@pytest.mark.parametrize("key", PLANS)
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[]", "found [] (a plan without a component saves nothing)"),
        ("[model, optimizer, model]", "found ['model', 'optimizer', 'model'] (model more than once)"),
        ("[model, optimizer, optimizer, model]", "(model and optimizer more than once)"),
        ("[model, 7]", "found ['model', 7] (7 is not a name)"),
        ("[model, null]", "found ['model', None] (null is not a name)"),
        ("[true]", "found [True] (true is not a name)"),
        ("[[model]]", "found [['model']] (['model'] is not a name)"),
        ("[model, ema]", "found ['model', 'ema'] (there is no component 'ema')"),
        ("[Model]", "found ['Model'] (there is no component 'Model')"),
        ("['']", "found [''] (there is no component '')"),
        ("[model, model, model, model, model, model, ema]", "...] (there is no component 'ema')"),
        ("model", "found 'model'"),
        ("{model: true}", "found {'model': True}"),
        ("null", "found null"),
        ("full", "found 'full'"),
    ],
)
def test_a_wrong_plan_is_refused_with_what_is_wrong_in_it(key: str, text: str, found: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        loaded(f"{key}={text}")
    (problem,) = caught.value.problems
    assert problem.startswith(f"{key}: found ")
    assert problem.endswith(f"{found}, {ALLOWED}")


@pytest.mark.parametrize("key", PLANS)
def test_a_plan_is_put_into_table_order(key: str) -> None:
    def plan(text: str) -> object:
        config = loaded(f"{key}={text}")
        return config.checkpoint_components if key == PLANS[0] else config.validation.checkpoint_components

    assert plan("[training_state, model]") == (Component.MODEL, Component.TRAINING_STATE)
    assert plan("[training_state, optimizer, model]") == FULL


REGULAR = "rl.checkpoint_components=[model] is partial: "
CADENCE = "cadence and normal-final saves"
EMERGENCY = "emergency saves (rl.emergency_checkpoint_components=run)"
SAVING = ("validation.save_checkpoint=true", "validation.checkpoint_components=[model]")


@pytest.mark.parametrize(
    ("overrides", "texts"),
    [
        ((), []),
        (("save_every=5", "validation.every_steps=5", "validation.save_checkpoint=true"), []),
        (("checkpoint_components=[model]",), []),
        (("checkpoint_components=[model]", "save_every=5"), [f"{REGULAR}{CADENCE} make"]),
        (("checkpoint_components=[model]", "emergency_checkpoint_components=run"), [f"{REGULAR}{EMERGENCY} make"]),
        (
            ("checkpoint_components=[model]", "save_every=5", "emergency_checkpoint_components=run"),
            [f"{REGULAR}{CADENCE} and {EMERGENCY} make"],
        ),
        (("emergency_checkpoint_components=run", "save_every=5"), []),
        (SAVING, []),
        ((*SAVING[1:], "validation.every_steps=5"), []),
        ((*SAVING, "validation.before_training=true"), []),
        (
            (*SAVING, "validation.every_steps=5"),
            ["rl.validation.checkpoint_components=[model] is partial: saves that validation alone asks for make"],
        ),
        (
            (*SAVING, "validation.every_steps=5", "checkpoint_components=[model]", "save_every=5"),
            [f"{REGULAR}{CADENCE} make", "rl.validation.checkpoint_components=[model] is partial: "],
        ),
    ],
)
def test_a_partial_plan_warns_exactly_where_it_is_put_to_use(overrides: tuple[str, ...], texts: list[str]) -> None:
    warnings = loaded(*overrides).warnings()
    assert len(warnings) == len(texts)
    assert all(warning.startswith(text) for warning, text in zip(warnings, texts, strict=True))


def test_an_emergency_plan_that_the_model_makes_full_does_not_warn() -> None:
    plan = "checkpoint_components=[optimizer, training_state]"
    assert loaded(plan, "emergency_checkpoint_components=run").warnings() == ()
    (warning,) = loaded(plan, "emergency_checkpoint_components=run", "save_every=5").warnings()
    assert EMERGENCY not in warning


def test_a_warning_says_what_is_lost_and_what_would_not_be_partial() -> None:
    (warning,) = loaded("checkpoint_components=[model, optimizer]", "save_every=5").warnings()
    assert warning == (
        "rl.checkpoint_components=[model, optimizer] is partial: cadence and normal-final saves make artifacts, "
        "which rl.resume does not take; to go on from one is a warm start that begins anew with what it lacks. "
        "Only [model, optimizer, training_state] resumes exactly"
    )


def identity(*overrides: str) -> dict[str, Any]:
    return loaded(*overrides).validation_identity


def test_the_identity_of_validation_says_on_what_and_when() -> None:
    assert identity("validation.every_steps=200", "validation.source=held-out", "validation.at_end=false") == {
        "enabled": True,
        "source": "held-out",
        "config": {"every_steps": 200, "before_training": False, "at_end": False},
    }


@pytest.mark.parametrize(
    "change",
    ["source=other", "every_steps=100", "every_steps=0", "before_training=true", "at_end=false"],
)
def test_each_knob_that_changes_what_is_measured_changes_the_identity(change: str) -> None:
    assert identity("validation.every_steps=200", f"validation.{change}") != identity("validation.every_steps=200")


@pytest.mark.parametrize(
    "change",
    ["validation.save_checkpoint=true", "validation.checkpoint_components=[model]", "save_every=7", "run.name=other"],
)
def test_a_knob_that_changes_only_what_is_saved_does_not(change: str) -> None:
    assert identity("validation.every_steps=200", change) == identity("validation.every_steps=200")


def test_a_run_without_validation_has_one_identity_whatever_the_unused_knobs_say() -> None:
    off = {"enabled": False, "source": "", "config": {}}
    assert identity() == identity("validation.source=x", "validation.at_end=false") == off


def test_a_pass_before_training_alone_is_a_validation() -> None:
    assert loaded("validation.before_training=true").validation.enabled
    assert identity("validation.before_training=true")["enabled"] is True
