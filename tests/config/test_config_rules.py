"""Combinations that are refused, and those that are not."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.journal.config import Config, knobs
from milepost.journal.config.rules import NOT_YET, RULES
from milepost.transitions.errors import Misconfigured

FULL = ["model", "optimizer", "training_state"]
DIRECT = {"backend": "object_store", "bucket": "my-bucket"}


def problems(rl: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(Misconfigured) as caught:
        Config.load({"rl": rl})
    return caught.value.problems


def refused_combinations(rl: dict[str, Any]) -> list[str]:
    """The keys under which a combination is refused."""
    return [problem.split(":")[0] for problem in problems(rl) if " beside " in problem]


@pytest.mark.parametrize(
    ("key", "rl"),
    [
        ("rl.checkpoint_format", {"checkpoint_store": DIRECT}),
        ("rl.checkpoint_format", {"checkpoint_store": DIRECT, "checkpoint_format": "consolidated"}),
        (
            "rl.upload.enabled",
            {
                "checkpoint_store": DIRECT,
                "checkpoint_format": "dcp",
                "upload": {"enabled": True, "bucket": "my-archive"},
            },
        ),
        ("rl.keep_optim_last", {"checkpoint_store": DIRECT, "checkpoint_format": "dcp", "keep_optim_last": 1}),
        ("rl.keep_model_last", {"checkpoint_store": DIRECT, "checkpoint_format": "dcp", "keep_model_last": 2}),
        (
            "rl.checkpoint_store.bucket",
            {"checkpoint_store": {"backend": "object_store"}, "checkpoint_format": "dcp"},
        ),
        *(
            ("rl.checkpoint_store.prefix", {"checkpoint_store": DIRECT | {"prefix": p}, "checkpoint_format": "dcp"})
            for p in ("journal", "a/journal", "a/checkpoint_artifacts")
        ),
        ("rl.resume", {"resume": "s3://b/iter_000000100"}),
        ("rl.upload.bucket", {"upload": {"enabled": True}}),
    ],
)
def test_a_store_refuses_what_it_cannot_do(key: str, rl: dict[str, Any]) -> None:
    assert refused_combinations(rl) == [key]


@pytest.mark.parametrize("keep", [None, 0])
def test_a_direct_object_store_with_dcp_breaks_no_rule(keep: int | None) -> None:
    rl = {"checkpoint_store": DIRECT, "checkpoint_format": "dcp", "keep_optim_last": keep}
    config = Config.load({"rl": rl})
    assert (config.checkpoint_store.bucket, config.resolved_keep_optim_last) == ("my-bucket", 0)


def test_a_direct_object_store_resumes_from_an_address() -> None:
    rl = {"checkpoint_store": DIRECT, "checkpoint_format": "dcp", "resume": "s3://b/iter_000000100"}
    assert Config.load({"rl": rl}).resume == "s3://b/iter_000000100"


@pytest.mark.parametrize(
    ("regular", "validation", "refused"),
    [
        (["model"], ["model"], False),
        (["model"], ["model", "training_state"], False),
        (["optimizer"], ["model", "optimizer"], False),
        (["model", "training_state"], FULL, False),
        (FULL, FULL, False),
        (["model", "training_state"], ["model"], True),
        (["model"], ["optimizer", "training_state"], True),
        (["optimizer"], ["optimizer"], True),
        (["optimizer"], ["model"], True),
        (FULL, ["model", "training_state"], True),
    ],
)
def test_an_emergency_run_plan_needs_a_saving_validation_plan_that_covers_it(
    regular: list[str], validation: list[str], refused: bool
) -> None:
    rl = {
        "checkpoint_components": regular,
        "emergency_checkpoint_components": "run",
        "validation": {"save_checkpoint": True, "checkpoint_components": validation},
    }
    if refused:
        assert refused_combinations(rl) == ["rl.emergency_checkpoint_components"]
    else:
        assert Config.load({"rl": rl}).emergency_checkpoint_components == "run"


@pytest.mark.parametrize(("emergency", "saves"), [("full", True), ("run", False)])
def test_coverage_does_not_matter_without_a_run_plan_or_without_a_saving_validation(
    emergency: str, saves: bool
) -> None:
    rl = {
        "emergency_checkpoint_components": emergency,
        "validation": {"save_checkpoint": saves, "checkpoint_components": ["model"]},
    }
    assert Config.load({"rl": rl}).emergency_checkpoint_components == emergency


def test_an_uncovered_emergency_says_which_plans_disagree_and_what_to_do() -> None:
    (problem,) = problems(
        {
            "checkpoint_components": ["model", "training_state"],
            "emergency_checkpoint_components": "run",
            "validation": {"save_checkpoint": True, "checkpoint_components": ["model"]},
        }
    )
    assert problem == (
        "rl.emergency_checkpoint_components: found 'run' beside rl.validation.save_checkpoint=true, "
        "rl.validation.checkpoint_components=[model], rl.checkpoint_components=[model, training_state]: the "
        "validation artifact of a step stands in for its emergency save and is never written again, so its plan has "
        "to cover rl.checkpoint_components and model; widen it or set the emergency plan to full"
    )


def test_a_refused_combination_says_what_was_found_on_each_side_and_why() -> None:
    (problem, *_) = problems({"checkpoint_store": DIRECT})
    assert problem == (
        "rl.checkpoint_format: found 'consolidated' beside rl.checkpoint_store.backend='object_store': a direct "
        "object store takes sharded components only; set rl.checkpoint_format=dcp"
    )


def test_what_is_built_is_accepted() -> None:
    for mode in ("auto", "strict", "off"):
        assert Config.load({"rl": {"data": {"cursor_resume": mode}}}).data.cursor_resume == mode
    rl: dict[str, Any] = {
        "checkpoint_components": ["model"],
        "emergency_checkpoint_components": "run",
        "keep_optim_last": 2,
        "keep_model_last": 3,
        "upload": {"enabled": True, "bucket": "my-archive"},
        "validation": {"every_steps": 200, "save_checkpoint": True, "source": "held out"},
    }
    config = Config.load({"rl": rl})
    assert (config.keep_optim_last, config.keep_model_last) == (2, 3)
    assert config.validation.save_checkpoint


def test_every_rule_and_every_line_of_what_is_not_built_names_real_knobs() -> None:
    keys = {knob.key for knob in knobs()}
    assert {key for rule in RULES for key in rule.keys} <= keys
    assert {line.key for line in NOT_YET} <= keys


def test_a_rule_is_not_judged_on_a_knob_that_is_wrong_by_itself() -> None:
    found = problems({"checkpoint_store": DIRECT, "checkpoint_format": "dpc"})
    assert [problem.split(":")[0] for problem in found] == ["rl.checkpoint_format"]
    assert found[0] == "rl.checkpoint_format: found 'dpc', expected consolidated or dcp"


def test_wrong_values_unknown_keys_combinations_and_missing_engines_are_told_together() -> None:
    with pytest.raises(Misconfigured) as caught:
        Config.load(
            {"run": {"name": ""}, "rl": {"checkpoint_store": DIRECT, "sav_every": 1}, "extra": 1},
            ["rl.emergency_grace_s=-5", "nonsense"],
        )
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "overrides",
        "extra",
        "rl.sav_every",
        "run.name",
        "rl.emergency_grace_s",
        "rl.checkpoint_format",
    ]
    assert all(problem in str(caught.value) for problem in caught.value.problems)
