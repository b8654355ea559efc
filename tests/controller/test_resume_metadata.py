"""The metadata of a resume: exactly its fields, exactly their types, and what else is refused by name."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from milepost.journal.controller import ResumeMetadata
from milepost.transitions.errors import Corrupt, NewerVersion, Refused

DOCUMENT: dict[str, object] = {
    "schema_version": 1,
    "training_commands": 12,
    "optimizer_updates": 11,
    "remaining_completions": 0,
    "epoch": 1,
    "sampling_owner": "batch_sampler",
    "sampler_state": {"position": [1, 2.5, None, True, "x"]},
    "checkpoint_identity": "sha256:00",
}

WRONG = [
    ("training_commands", -1),
    ("training_commands", True),
    ("training_commands", 1.0),
    ("optimizer_updates", "7"),
    ("optimizer_updates", False),
    ("remaining_completions", None),
    ("remaining_completions", -1),
    ("epoch", 0),
    ("epoch", True),
    ("sampling_owner", "loader"),
    ("sampling_owner", None),
    ("sampler_state", (1, 2)),
    ("sampler_state", {"a": float("nan")}),
    ("checkpoint_identity", ""),
    ("checkpoint_identity", b"sha256:00"),
    ("schema_version", 0),
    ("schema_version", True),
    ("schema_version", "1"),
]


def made(document: Mapping[str, object]) -> ResumeMetadata:
    return ResumeMetadata(**document)  # type: ignore[arg-type]


def test_metadata_goes_to_json_and_comes_back_as_it_was() -> None:
    metadata = made(DOCUMENT)
    assert metadata.to_json() == DOCUMENT
    assert ResumeMetadata.from_json(metadata.to_json()) == metadata


def test_the_version_need_not_be_said_by_who_makes_one() -> None:
    assert made({name: value for name, value in DOCUMENT.items() if name != "schema_version"}) == made(DOCUMENT)


def test_a_step_of_zero_is_one_like_any_other() -> None:
    zero = DOCUMENT | {"training_commands": 0, "optimizer_updates": 0}
    assert ResumeMetadata.from_json(zero).optimizer_updates == 0


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_value_of_another_type_or_range_is_refused_by_its_name(name: str, value: object) -> None:
    with pytest.raises(Refused, match=name):
        made(DOCUMENT | {name: value})
    with pytest.raises(Corrupt, match=f"resume metadata: {name}"):
        ResumeMetadata.from_json(DOCUMENT | {name: value})


def test_unknown_and_missing_fields_are_named_together() -> None:
    document = {name: value for name, value in DOCUMENT.items() if name not in ("epoch", "sampler_state")}
    with pytest.raises(Corrupt, match=r"missing \['epoch', 'sampler_state'\], unknown \['Epoch', 'more'\]"):
        ResumeMetadata.from_json(document | {"more": 1, "Epoch": 1})


def test_one_unknown_field_is_enough() -> None:
    with pytest.raises(Corrupt, match=r"missing \[\], unknown \['more'\]"):
        ResumeMetadata.from_json(DOCUMENT | {"more": 1})


def test_a_missing_version_is_not_taken_for_this_one() -> None:
    with pytest.raises(Corrupt, match=r"missing \['schema_version'\]"):
        ResumeMetadata.from_json({name: value for name, value in DOCUMENT.items() if name != "schema_version"})


def test_a_later_version_is_told_as_such_whatever_else_it_holds() -> None:
    with pytest.raises(NewerVersion, match="schema 2; this milepost reads 1"):
        ResumeMetadata.from_json({"schema_version": 2, "more": 1})


@pytest.mark.parametrize("document", [None, [], "{}"])
def test_what_is_no_mapping_is_corrupt(document: object) -> None:
    with pytest.raises(Corrupt, match="expected resume metadata"):
        ResumeMetadata.from_json(document)  # type: ignore[arg-type]


def test_the_state_is_a_copy_on_the_way_in_and_on_the_way_out() -> None:
    state = {"position": [1]}
    metadata = made(DOCUMENT | {"sampler_state": state})
    state["position"].append(2)
    metadata.to_json()["sampler_state"]["position"].append(3)  # type: ignore[index, call-overload, union-attr]
    assert metadata.sampler_state == {"position": [1]}


def test_metadata_is_equal_where_every_value_is_the_same_one() -> None:
    states = [{"a": 1, "b": 2}, {"a": 1.0, "b": 2}, {"a": True, "b": 2}]
    assert len({made(DOCUMENT | {"sampler_state": state}) for state in states}) == 3
    assert made(DOCUMENT | {"sampler_state": {"b": 2, "a": 1}}) == made(DOCUMENT | {"sampler_state": states[0]})
    assert made(DOCUMENT) != made(DOCUMENT | {"checkpoint_identity": "sha256:01"})
