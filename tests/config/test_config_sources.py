"""YAML files, mappings, dotlists and the environment."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from milepost.journal.config import Config, knobs
from milepost.transitions.errors import Misconfigured


def loaded(tmp_path: Path, text: str, *overrides: str) -> Config:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return Config.load(path, overrides, environ={})


def problems(source: Any, overrides: Any = ()) -> tuple[str, ...]:
    with pytest.raises(Misconfigured) as caught:
        Config.load(source, overrides, environ={})
    return caught.value.problems


def file_problem(tmp_path: Path, text: str) -> str:
    """The one problem with a file, without the path that it begins with."""
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    (problem,) = problems(str(path))
    assert problem.startswith(f"{path}: ")
    return problem.removeprefix(f"{path}: ")


def test_a_yaml_file_sets_both_sections_and_a_dotlist_wins_over_it(tmp_path: Path) -> None:
    text = "run: {name: a, project: p}\nrl:\n  save_every: 100\n  upload: {prefix: x/y}\n"
    config = loaded(tmp_path, text, "run.name=b", "save_every=5", "rl.upload.bucket=my-bucket")
    assert (config.run.name, config.run.project, config.save_every) == ("b", "p", 5)
    assert (config.upload.prefix, config.upload.bucket) == ("x/y", "my-bucket")


def test_a_file_a_mapping_and_a_dotlist_say_the_same(tmp_path: Path) -> None:
    config = loaded(tmp_path, "rl: {validation: {every_steps: 7}}")
    assert config == Config.load({"rl": {"validation": {"every_steps": 7}}}, environ={})
    assert config == Config.load(None, ["validation.every_steps=7"], environ={})


def test_what_to_mapping_gives_can_be_written_as_yaml_and_read_back(tmp_path: Path) -> None:
    config = Config.load(
        {"rl": {"resume": "off", "run_ts": "20260901120000", "digest": "sha256"}, "run": {"name": "7"}}, environ={}
    )
    assert loaded(tmp_path, yaml.safe_dump(config.to_mapping())) == config


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("rl.resume=off", "resume", "off"),
        ("rl.resume=", "resume", "off"),
        ("rl.resume=~/runs/iter_000000100", "resume", "~/runs/iter_000000100"),
        ("resume=/a=b", "resume", "/a=b"),
        ("rl.run_ts=20260901120000", "run_ts", "20260901120000"),
        ("rl.keep_optim_last=null", "keep_optim_last", None),
        ("rl.keep_optim_last=0", "keep_optim_last", 0),
        ("save_async=false", "save_async", False),
    ],
)
def test_a_dotlist_value_is_read_as_yaml(override: str, name: str, value: object) -> None:
    assert getattr(Config.load(overrides=[override]), name) == value


def test_a_dotlist_takes_lists_and_its_last_word_wins() -> None:
    overrides = ["validation.checkpoint_components=[training_state, model]", "save_every=1", "rl.save_every=2"]
    config = Config.load(overrides=overrides)
    assert [one.value for one in config.validation.checkpoint_components] == ["model", "training_state"]
    assert config.save_every == 2


def test_a_dotlist_value_may_be_quoted_to_be_text() -> None:
    assert Config.load(overrides=["run.name='7'"]).run.name == "7"
    assert problems(None, ["run.name=7"])[0].startswith("run.name: found 7, expected text (quote a number)")


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("save_every", "overrides: found 'save_every', expected KEY=VALUE"),
        (7, "overrides: found 7, expected KEY=VALUE"),
        ("save_every=", "rl.save_every: found '', expected a whole number"),
        ("save_every=1.5", "rl.save_every: found 1.5, expected a whole number"),
        ("save_every=010", "rl.save_every: found '010', expected a whole number"),
        ("save_async=yes", "rl.save_async: found 'yes', expected true or false"),
        ("upload={enabled: true}", "rl.upload: no such key; the nearest known one is rl.upload."),
        ("save_every.x=1", "rl.save_every.x: no such key; the nearest known one is rl.save_every"),
        ("save_every=[", "rl.save_every: the value '[': line 1, column 2: "),
        ("=1", "rl.: no such key"),
    ],
)
def test_a_wrong_override_is_told_with_its_key(override: Any, told: str) -> None:
    (problem,) = problems(None, [override])
    assert problem.startswith(told)


def test_a_dotlist_that_is_one_string_is_refused_once() -> None:
    assert problems(None, "rl.save_every=100") == (
        "overrides: found 'rl.save_every=100', expected a list of KEY=VALUE strings",
    )


@pytest.mark.parametrize(
    ("source", "key", "nearest"),
    [
        ({"rl": {"save_evry": 1}}, "rl.save_evry", "rl.save_every"),
        ({"rl": {"uplod": {}}}, "rl.uplod", "rl.upload"),
        ({"rl": {"upload": {"enable": True}}}, "rl.upload.enable", "rl.upload.enabled"),
        ({"run": {"nam": "x"}}, "run.nam", "run.name"),
        ({"save_every": 1}, "save_every", "rl.save_every"),
        ({"rn": {}}, "rn", "run"),
        ({"rl": {"checkpoint_component": []}}, "rl.checkpoint_component", "rl.checkpoint_components"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(source: Any, key: str, nearest: str) -> None:
    assert problems(source) == (f"{key}: no such key; the nearest known one is {nearest}",)


@pytest.mark.parametrize("knob", [knob.key for knob in knobs()])
def test_a_misspelling_of_any_knob_is_answered_with_that_knob(knob: str) -> None:
    assert problems(None, [f"{knob}_=1"]) == (f"{knob}_: no such key; the nearest known one is {knob}",)


def test_a_dotted_name_in_a_mapping_is_told_to_nest() -> None:
    assert problems({"rl.save_every": 1}) == (
        "rl.save_every: written with dots inside one name; nest it, section by section",
    )


def test_the_run_section_is_not_a_knob_of_the_rl_section() -> None:
    (problem,) = problems({"rl": {"run": {"name": "x"}}})
    assert problem.startswith("rl.run: no such key")


@pytest.mark.parametrize("value", [None, 5, "text", [], True])
@pytest.mark.parametrize("place", ["run", "rl", "rl.upload"])
def test_a_section_or_group_that_is_not_a_mapping_is_refused(place: str, value: object) -> None:
    source: Any = {"rl": {"upload": value}} if place == "rl.upload" else {place: value}
    (problem,) = problems(source)
    assert problem.startswith(f"{place}: found ")
    assert "expected a group of " in problem


def test_output_root_comes_from_the_environment_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"IMAGINAIRE_OUTPUT_ROOT": "/shared/runs"}
    assert Config.load(environ=environ).run.output_root == "/shared/runs"
    assert Config.load({"run": {"name": "x"}}, environ=environ).run.output_root == "/shared/runs"
    assert Config.load({"run": {"output_root": "/mine"}}, environ=environ).run.output_root == "/mine"
    assert Config.load(overrides=["run.output_root=/mine"], environ=environ).run.output_root == "/mine"
    assert Config.load(environ={"IMAGINAIRE_OUTPUT_ROOT": ""}).run.output_root == "./outputs"
    monkeypatch.setenv("IMAGINAIRE_OUTPUT_ROOT", "/process/runs")
    assert Config().run.output_root == Config.load().run.output_root == "/process/runs"


def test_anchors_aliases_and_merges_are_taken(tmp_path: Path) -> None:
    text = (
        "rl:\n"
        "  checkpoint_store: &place {bucket: shared-bucket, prefix: a/b}\n"
        "  upload: &archive\n    <<: *place\n    prefix: c/d\n"
        "  validation: {checkpoint_components: &plan [model]}\n"
    )
    config = loaded(tmp_path, text)
    assert (config.upload.bucket, config.upload.prefix) == ("shared-bucket", "c/d")


def test_a_merge_of_a_merge_is_not_taken_for_a_duplicate(tmp_path: Path) -> None:
    text = (
        "rl:\n  checkpoint_store: &a {prefix: a, bucket: my-bucket}\n"
        "  upload: {<<: {<<: *a, prefix: b}, credentials: c}\n"
    )
    assert loaded(tmp_path, text).upload.prefix == "b"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rl: {save_every: 1, save_every: 2}", "line 1, column 21: the key 'save_every' is there twice"),
        ("rl: {}\nrun: {}\n'rl': {}\n", "line 3, column 1: the key 'rl' is there twice"),
        ("rl:\n  upload: &a {<<: {}, <<: {}}", "line 2, column 23: the key '<<' is there twice"),
        ("rl:\n  save_every: [1\n", "line 3, column 1: "),
        ("rl:\n\tsave_every: 1\n", "line 2, column 1: "),
        ("rl: *nowhere\n", "line 1, column 5: "),
        ("rl: {save_every: !!int 7}", "line 1, column 18: the tag "),
        ("rl: !!python/object/apply:os.getcwd []", "line 1, column 5: the tag "),
        ("rl: {? [a]: b}", "line 1, column "),
        ("rl: {}\n---\nrl: {}\n", "line 2, column 1: "),
        ("", "line 1, column 1: found null, expected a mapping"),
        ("- rl\n", "line 1, column 1: found ['rl'], expected a mapping"),
        ("just text\n", "line 1, column 1: found 'just text', expected a mapping"),
        ("rl: \x01", "not YAML: "),
        ("[" * 5000, "nested too deeply"),
        (f"rl: {{save_every: {'9' * 5000}}}", "not YAML: "),
    ],
)
def test_a_bad_file_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    assert file_problem(tmp_path, text).startswith(told)


def test_yaml_words_that_other_readers_take_for_booleans_stay_text(tmp_path: Path) -> None:
    config = loaded(tmp_path, "rl:\n  resume: off\n  data: {cursor_resume: off}\nrun: {name: on, group: no}\n")
    assert (config.resume, config.data.cursor_resume, config.run.name, config.run.group) == (
        "off",
        "off",
        "on",
        "no",
    )


def test_a_missing_file_a_folder_and_other_bytes_are_refused(tmp_path: Path) -> None:
    missing, other = tmp_path / "missing.yaml", tmp_path / "other.yaml"
    other.write_bytes(b"rl: \xff\xfe")
    assert problems(missing) == (f"{missing}: cannot be read: No such file or directory",)
    assert problems(tmp_path) == (f"{tmp_path}: cannot be read: Is a directory",)
    assert problems(other)[0].startswith(f"'{other}': cannot be read as UTF-8 text: ")
    assert problems("a\0b")[0].startswith("'a\\x00b': cannot be read")
    assert problems([1]) == ("the configuration: found [1], expected a mapping with the sections run and rl",)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=4)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3), max_leaves=6
)
names = sorted(set(itertools.chain.from_iterable(knob.key.split(".") for knob in knobs())))
words = st.sampled_from(
    ["auto", "off", "full", "run", "local", "object_store", "dcp", "model", "optimizer", "", "iter_1"]
)
plausible = st.recursive(
    words | scalars | st.lists(words, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from(names) | words, inner, max_size=6),
    max_leaves=12,
)


def loads_or_is_misconfigured(source: Any, overrides: list[str]) -> None:
    try:
        config = Config.load(source, overrides, environ={})
    except Misconfigured as error:
        assert error.problems
        assert all(": " in problem and "\n" not in problem for problem in error.problems)
    else:
        assert Config.load(config.to_mapping(), environ={}) == config


recursive: dict[str, Any] = {}
recursive["rl"] = recursive


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["run", "rl"]) | scalars, plausible | anything, max_size=4))
@example({10**5000: 1})
@example({"rl": {"": 1, "\n": 2, ("a",): 3}})
@example(recursive)
def test_an_arbitrary_mapping_loads_or_is_misconfigured_and_nothing_else(source: dict[Any, Any]) -> None:
    loads_or_is_misconfigured(source, [])


@settings(deadline=None)
@given(st.sampled_from([knob.key for knob in knobs()]), words | st.text(max_size=12))
def test_an_arbitrary_override_loads_or_is_misconfigured_and_nothing_else(key: str, value: str) -> None:
    loads_or_is_misconfigured(None, [f"{key}={value}"])


@settings(deadline=None)
@given(st.lists(st.sampled_from([*"{}[]:,-&*!|>'\"#?%@` \n\t~0a", "rl: ", "<<: ", "*a", "&a "]), max_size=24))
def test_arbitrary_yaml_loads_or_is_misconfigured_and_nothing_else(pieces: list[str]) -> None:
    loads_or_is_misconfigured(None, [f"rl.save_every={''.join(pieces)}"])
