"""Each knob by itself: what it takes, what it refuses, and how it is listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from milepost.journal.config import Config, Data, Knob, Run, Upload, Validation, knobs
from milepost.transitions.errors import Misconfigured
from milepost.transitions.values import Component

NAMES = ["model", "optimizer", "training_state"]

NOT_COUNTS = [-1, "7", 7.0, True, None, [7], 2**63]
NOT_SWITCHES = ["true", "off", 0, 1, None, []]
NOT_SEGMENTS = ["", ".", "..", ".hidden", "a/b", "a\\b", "a..b", "a b", "-x", "a\n", "ü", "x" * 129, 7, None]
NOT_PLANS = [[], "model", ["model", "model"], ["weights"], ["model", 7], [["model"]], {"model": 1}, None, "full"]
NOT_BUCKETS = ["s3://b", "B", "ab", "a/b", "-ab", 7, None]
NOT_TEXTS = ["a\nb", "a\0b", "\ud800", 7, None]
NOT_PREFIXES = ["/a", "a/", "a//b", "a/../b", "./a", "a\0", 7, None]

GOOD: dict[str, list[Any]] = {
    "run.output_root": ["/data/runs", "relative", "über runs"],
    "run.project": ["p"],
    "run.group": ["g.1-x_y"],
    "run.name": ["lr=0.1,wd=1e-2", "x" * 128, "7"],
    "rl.save_every": [0, 1, 2**63 - 1],
    "rl.resume": ["auto", "off", "/runs/iter_000000100", "~/old.pt"],
    "rl.data.cursor_resume": ["auto", "strict", "off"],
    "rl.run_ts": ["", "20260901120000"],
    "rl.checkpoint_format": ["consolidated", "dcp"],
    "rl.checkpoint_components": [NAMES, ["model"], ["optimizer", "training_state"]],
    "rl.emergency_checkpoint_components": ["full", "run"],
    "rl.checkpoint_store.backend": ["local"],
    "rl.checkpoint_store.bucket": ["", "my-bucket", "my_bucket.org"],
    "rl.checkpoint_store.credentials": ["", "credentials/x.secret"],
    "rl.checkpoint_store.prefix": ["", "a/b/c"],
    "rl.save_async": [True, False],
    "rl.keep_optim_last": [None, 0, 1, 2**63 - 1],
    "rl.keep_model_last": [0, 1, 3],
    "rl.upload.enabled": [False],
    "rl.upload.bucket": ["", "my-bucket"],
    "rl.upload.credentials": ["", "credentials/x.secret"],
    "rl.upload.prefix": ["", "a/b/c"],
    "rl.validation.every_steps": [0, 200],
    "rl.validation.before_training": [True, False],
    "rl.validation.at_end": [True, False],
    "rl.validation.source": ["", "held out, über 3", "/data/held-out.jsonl"],
    "rl.validation.save_checkpoint": [True, False],
    "rl.validation.checkpoint_components": [NAMES, ["model"], ["model", "training_state"]],
    "rl.sampling.max_outstanding": [0, 1, 512],
    "rl.digest": ["blake3", "sha256"],
    "rl.archive_crc32": [True, False],
    "rl.verify_on_resume": [True, False],
    "rl.rank_timeout_s": [1, 7200],
    "rl.emergency_grace_s": [0, 600],
}

BAD: dict[str, list[Any]] = {
    "run.output_root": ["", "a\0b", 7, None],
    "run.project": NOT_SEGMENTS,
    "run.group": NOT_SEGMENTS,
    "run.name": NOT_SEGMENTS,
    "rl.save_every": NOT_COUNTS,
    "rl.resume": [False, None, 7, "a\nb"],
    "rl.data.cursor_resume": ["on", "", False, None, ["auto"]],
    "rl.run_ts": ["now", "2026090112000", "20261301120000", "２０２６０９０１１２００００", 7, None],
    "rl.checkpoint_format": ["DCP", "", None, ["dcp"]],
    "rl.checkpoint_components": NOT_PLANS,
    "rl.emergency_checkpoint_components": ["model", NAMES, True],
    "rl.checkpoint_store.backend": ["s3", None],
    "rl.checkpoint_store.bucket": NOT_BUCKETS,
    "rl.checkpoint_store.credentials": NOT_TEXTS,
    "rl.checkpoint_store.prefix": NOT_PREFIXES,
    "rl.save_async": NOT_SWITCHES,
    "rl.keep_optim_last": [one for one in NOT_COUNTS if one is not None],
    "rl.keep_model_last": NOT_COUNTS,
    "rl.upload.enabled": NOT_SWITCHES,
    "rl.upload.bucket": NOT_BUCKETS,
    "rl.upload.credentials": NOT_TEXTS,
    "rl.upload.prefix": NOT_PREFIXES,
    "rl.validation.every_steps": NOT_COUNTS,
    "rl.validation.before_training": NOT_SWITCHES,
    "rl.validation.at_end": NOT_SWITCHES,
    "rl.validation.source": NOT_TEXTS,
    "rl.validation.save_checkpoint": NOT_SWITCHES,
    "rl.validation.checkpoint_components": NOT_PLANS,
    "rl.sampling.max_outstanding": NOT_COUNTS,
    "rl.digest": ["md5", "", True],
    "rl.archive_crc32": NOT_SWITCHES,
    "rl.verify_on_resume": NOT_SWITCHES,
    "rl.rank_timeout_s": [0, *NOT_COUNTS],
    "rl.emergency_grace_s": NOT_COUNTS,
}


def nested(key: str, value: object) -> dict[str, object]:
    """`{"rl": {"upload": {"enabled": value}}}` for `rl.upload.enabled`."""
    for name in reversed(key.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def at(mapping: Any, key: str) -> object:
    for name in key.split("."):
        mapping = mapping[name]
    return mapping


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(key, value, id=f"{key}-{number}")
        for key, values in table.items()
        for number, value in enumerate(values)
    ]


def test_the_tables_below_cover_every_knob() -> None:
    keys = [knob.key for knob in knobs()]
    assert keys == list(GOOD) == list(BAD)


@pytest.mark.parametrize(("key", "value"), cases(GOOD))
def test_a_right_value_is_taken_as_it_is_and_survives_a_round_trip(key: str, value: object) -> None:
    config = Config.load(nested(key, value))
    assert at(config.to_mapping(), key) == value
    assert Config.load(config.to_mapping(), environ={}) == config


@pytest.mark.parametrize(("key", "value"), cases(BAD))
def test_a_wrong_value_is_one_problem_that_names_its_key_and_what_is_allowed(key: str, value: object) -> None:
    with pytest.raises(Misconfigured) as caught:
        Config.load(nested(key, value))
    (problem,) = caught.value.problems
    allowed = next(knob.allowed for knob in knobs() if knob.key == key)
    assert problem.startswith(f"{key}: found ")
    assert problem.endswith(f"expected {allowed}")


def test_a_problem_shows_what_was_found_in_a_form_that_tells_text_from_numbers() -> None:
    with pytest.raises(Misconfigured, match=r"rl\.save_every: found '7', expected a whole number"):
        Config.load({"rl": {"save_every": "7"}})
    with pytest.raises(Misconfigured, match=r"rl\.save_every: found true, expected"):
        Config.load({"rl": {"save_every": True}})


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(Misconfigured) as caught:
        Config.load({"rl": {"digest": "x" * 10_000, "save_every": 10**5000}})
    assert len(str(caught.value)) < 500


def test_the_defaults_are_those_of_the_contract() -> None:
    config = Config.load(environ={})
    assert config.to_mapping() == {
        "run": {"output_root": "./outputs", "project": "milepost", "group": "default", "name": "run"},
        "rl": {
            "save_every": 0,
            "resume": "auto",
            "data": {"cursor_resume": "auto"},
            "run_ts": "",
            "checkpoint_format": "consolidated",
            "checkpoint_components": NAMES,
            "emergency_checkpoint_components": "full",
            "checkpoint_store": {"backend": "local", "bucket": "", "credentials": "", "prefix": ""},
            "save_async": True,
            "keep_optim_last": None,
            "keep_model_last": 0,
            "upload": {"enabled": False, "bucket": "", "credentials": "", "prefix": ""},
            "validation": {
                "every_steps": 0,
                "before_training": False,
                "at_end": True,
                "source": "",
                "save_checkpoint": False,
                "checkpoint_components": NAMES,
            },
            "sampling": {"max_outstanding": 0},
            "digest": "blake3",
            "archive_crc32": False,
            "verify_on_resume": True,
            "rank_timeout_s": 1800,
            "emergency_grace_s": 300,
        },
    }


def test_an_empty_resume_means_off() -> None:
    assert Config.load({"rl": {"resume": ""}}).resume == "off"


def test_a_run_ts_may_be_the_number_that_yaml_makes_of_its_digits() -> None:
    assert Config.load({"rl": {"run_ts": 20260901120000}}).run_ts == "20260901120000"


@pytest.mark.parametrize(("given", "resolved"), [(None, 1), (0, 0), (1, 1), (5, 5)])
def test_only_a_null_keep_optim_last_resolves_and_to_the_newest_one(given: int | None, resolved: int) -> None:
    assert Config(keep_optim_last=given).resolved_keep_optim_last == resolved


def test_constructing_runs_the_same_check_and_tells_everything_at_once() -> None:
    with pytest.raises(Misconfigured) as caught:
        Config(save_every=-1, upload=Upload(enabled="yes"), run=Run(name=".."))  # type: ignore[arg-type]
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "run.name",
        "rl.save_every",
        "rl.upload.enabled",
    ]


def test_constructing_takes_canonical_and_friendly_forms(tmp_path: Path) -> None:
    plan = ["optimizer", Component.MODEL]
    config = Config(
        run=Run(output_root=tmp_path),  # type: ignore[arg-type]
        validation=Validation(checkpoint_components=plan),  # type: ignore[arg-type]
        data=Data(cursor_resume="strict"),
    )
    assert config.run.output_root == str(tmp_path)
    assert config.validation.checkpoint_components == (Component.MODEL, Component.OPTIMIZER)
    assert config.data.cursor_resume == "strict"


def test_a_group_of_another_class_is_refused() -> None:
    with pytest.raises(Misconfigured, match=r"rl\.upload: found null, expected a group of enabled, bucket"):
        Config(upload=None)  # type: ignore[arg-type]


def test_the_table_of_knobs_says_type_default_and_what_is_not_built() -> None:
    rows = {knob.key: knob for knob in knobs()}
    assert rows["rl.checkpoint_format"] == Knob(
        key="rl.checkpoint_format",
        type="str",
        default="consolidated",
        allowed="consolidated or dcp",
        meaning="consolidated: one portable .pt for each component; dcp: shards",
        not_yet=(),
    )
    assert [row.key for row in rows.values() if not row.built] == []
    assert rows["run.output_root"].default == "$IMAGINAIRE_OUTPUT_ROOT, else ./outputs"
    assert rows["rl.keep_optim_last"].default == "null"
    assert rows["rl.checkpoint_components"].default == "[model, optimizer, training_state]"
