"""The marker of a boundary and the names of roles: what is written reads back, exactly."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.engines.checkpoints.marker import (
    Marker,
    Scalar,
    decode,
    encode,
    loop_state_of,
    loop_values,
    of_boundary,
)
from milepost.engines.checkpoints.roles import require_role, roles_of
from milepost.transitions.errors import Corrupt, Misconfigured, NewerVersion, Refused
from milepost.transitions.values import FileDigest
from tests.checkpoints.boundaries import ROLES
from tests.checkpoints.places import SAVE

SCALARS: st.SearchStrategy[Scalar] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
LOOP_STATES = st.dictionaries(st.text(), SCALARS, max_size=4)


def exact(loop_state: object) -> str:
    """Equal where everything is the same: 1, 1.0 and True are three things, and so are 0.0 and -0.0 two."""
    return repr(loop_state)


@given(LOOP_STATES)
def test_a_loop_state_comes_back_as_it_was(loop_state: dict[str, Scalar]) -> None:
    values = loop_values(loop_state)
    assert exact(loop_state_of(values)) == exact(loop_state)
    told = of_boundary(SAVE, roles=ROLES, loop_state=values)
    data = encode(told)
    assert data.count(b"\n") == 1 and data.endswith(b"\n")
    back = decode(data, where="here")
    assert back == told and exact(back.loop_state) == exact(loop_state)


def test_the_marker_of_a_boundary_is_this_line() -> None:
    told = of_boundary(SAVE, roles=ROLES, loop_state=loop_values({"warmup": 10, "lr": 1.0, "big": 2**80, "x": None}))
    assert encode(told) == (
        b'{"version": 1, "iteration": 7, "counters": {"critic": 9, "policy": 4}, '
        b'"loop_state": {"warmup": 10, "lr": 1.0, "big": 1208925819614629174706176, "x": null}}\n'
    )


def test_a_marker_says_no_more_than_it_was_given() -> None:
    for bare in (Marker(iteration=3), Marker(iteration=3, counters={"a": 1}), Marker(iteration=0, loop_state={})):
        assert decode(encode(bare), where="here") == bare
    assert encode(Marker(iteration=3)) == b'{"version": 1, "iteration": 3}\n'


WRONG: list[tuple[object, str]] = [
    ([], "found \\[\\]"),
    ({"iteration": 7}, "version 1, found None"),
    ({"version": True, "iteration": 7}, "version 1, found True"),
    ({"version": "1", "iteration": 7}, "version 1, found '1'"),
    ({"version": 0, "iteration": 7}, "version 1, found 0"),
    ({"version": 1}, "an iteration, found None"),
    ({"version": 1, "iteration": -1}, "an iteration, found -1"),
    ({"version": 1, "iteration": 7.0}, "an iteration, found 7.0"),
    ({"version": 1, "iteration": 7, "counters": None}, "found counters None"),
    ({"version": 1, "iteration": 7, "counters": {"policy": True}}, "found counters"),
    ({"version": 1, "iteration": 7, "counters": {"policy": -1}}, "found counters"),
    ({"version": 1, "iteration": 7, "loop_state": {"a": [1]}}, "found loop_state"),
    ({"version": 1, "iteration": 7, "loop_state": []}, "found loop_state"),
    ({"version": 1, "iteration": 7, "more": 1}, "found more as well"),
]


@pytest.mark.parametrize(("document", "problem"), WRONG)
def test_what_is_no_marker_is_corrupt(document: object, problem: str) -> None:
    with pytest.raises(Corrupt, match=f"here: .*{problem}") as failure:
        decode(json.dumps(document).encode(), where="here")
    assert not isinstance(failure.value, NewerVersion)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"version": 1, "iteration": 7, "iteration": 7}',
        '{"version": 1, "iteration": NaN}',
        '{"version": 1, "iteration": 7, "loop_state": {"a": Infinity}}',
        '{"version": 1, "iteration": 7, "loop_state": {"a": 1e999}}',
        '{"version": 1, "iteration": ' + "9" * 5000 + "}",
        "[" * 100_000,
        "\ud800".encode("utf-16", "surrogatepass").decode("latin-1"),
    ],
)
def test_what_is_no_json_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt, match="here"):
        decode(text.encode("latin-1"), where="here")


def test_a_later_marker_is_newer() -> None:
    with pytest.raises(NewerVersion, match="version 2; this milepost reads 1"):
        decode(b'{"version": 2, "what": [1, 2]}', where="here")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1], {}, b"x", 1j, (1,)])
def test_a_loop_state_of_anything_but_scalars_is_refused_by_its_name(value: object) -> None:
    with pytest.raises(Refused, match="loop_state 'warmup': expected a string, a finite number"):
        loop_values({"fine": 1, "warmup": value})


# --- roles ----------------------------------------------------------------------------------------------------


def files(*paths: str) -> tuple[FileDigest, ...]:
    return tuple(FileDigest(path=path, size=1, digest="blake3:00") for path in paths)


def test_roles_are_the_directories_that_are_no_state_of_a_trainer() -> None:
    assert roles_of(files("model.pt", "optim.pt", "trainer.pt", "data.pt", "old.pt", "ref.pt")) == ()
    assert roles_of(files("model/.metadata", "optim/__0_0.distcp", "ref/.metadata", "trainer.pt")) == ()
    assert roles_of(files("policy/model.pt", "policy/optim/.metadata", "critic/trainer.pt")) == ("critic", "policy")
    assert roles_of(()) == ()


@pytest.mark.parametrize("name", ["policy", "critic", "reward_model", "actor-2", "q"])
def test_a_role_may_be_called_so(name: str) -> None:
    assert require_role(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "model", "optim", "old", "ref", "trainer", "data", "Policy", "2nd", "a/b", "a.pt", "..", "-a", "a\n", "ä"],
)
def test_a_role_may_not_be_called_so(name: str) -> None:
    with pytest.raises(Misconfigured, match="rename the role"):
        require_role(name)
