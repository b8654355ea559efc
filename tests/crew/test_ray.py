"""A run whose critic lives in a Ray actor and whose policy lives in the driver.

Ray listens on every interface, so all of it runs in a network namespace of its own, once for all of these tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.services

_ROOT = Path(__file__).parents[2]
_PROGRAM = Path(__file__).with_name("ray_program.py")
_IN_A_NAMESPACE = ("unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh")


def unavailable() -> str | None:
    """Why Ray cannot be started here; None where it can."""
    if importlib.util.find_spec("ray") is None:
        return "ray not installed: pip install 'milepost[ray]'"
    if missing := [program for program in ("unshare", "ip") if shutil.which(program) is None]:
        return f"{', '.join(missing)} not installed: apt-get install util-linux iproute2"
    made = subprocess.run((*_IN_A_NAMESPACE, "true"), capture_output=True, text=True, check=False)
    return None if made.returncode == 0 else f"no network namespace of its own: {made.stderr.strip()}"


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if reason := unavailable():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("ray")
    environ = os.environ | {"PYTHONPATH": str(_ROOT), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    command = (*_IN_A_NAMESPACE, sys.executable, str(_PROGRAM), str(folder))
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    last: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return last


@pytest.mark.parametrize("resumed", ["resumed", "resumed, asynchronous"])
def test_fresh_processes_of_both_roles_go_on_as_if_nothing_had_happened(found: dict[str, Any], resumed: str) -> None:
    assert found["whole"]["began"] == 0
    assert found[resumed] == {**found["whole"], "began": 4}
    assert found["whole"]["policy"] != found["whole"]["critic"]


def test_a_killed_actor_is_named_by_its_role_and_what_was_published_stays(found: dict[str, Any]) -> None:
    first, again, *published = found["lost"]
    assert first == again == "Lost: role critic is gone: The actor died unexpectedly before finishing this task"
    assert published == ["iter_000000002"]


def test_an_actor_that_passes_no_orders_on_is_refused(found: dict[str, Any]) -> None:
    assert found["stranger"].startswith("Misconfigured: role critic: its actor has no method `milepost`")


def test_what_an_actor_refuses_is_refused_by_the_driver_with_the_name_of_the_role(found: dict[str, Any]) -> None:
    why = "this actor is role critic, and was called as role policy: give each role an actor"
    assert found["shared"] == f"Refused: role policy: {why}"
