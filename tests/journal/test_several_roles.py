"""An actor and a critic in one process: saved as one, resumed as one, each by its own counter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from milepost.engines.slots import SteppedSlot
from milepost.journal import Config, Corrupt, Journal, Misconfigured, NotResumable, Refused
from tests.journal.runs import FakeWatch, StillAmbient, Training, config

ROLES = ("critic", "policy")
WARM_UP = {"critic_warmup_iterations": 1, "rate": 1.0, "seed": 2**70, "name": "ppo", "frozen": None, "fast": True}


def opened(settings: Config, trainings: Mapping[str, Training], **keywords: Any) -> Journal:
    return Journal.open(
        settings,
        roles={role: training.trainer() for role, training in trainings.items()},
        slot=SteppedSlot(),
        watch=FakeWatch(),
        ambient=StillAmbient(),
        environ={},
        **keywords,
    )


def fresh(roles: tuple[str, ...] = ROLES) -> dict[str, Training]:
    return {role: Training() for role in roles}


def train(journal: Journal, trainings: Mapping[str, Training], *, until: int) -> None:
    """The critic in every iteration, twice; the policy once its warm-up is over."""
    for step in journal.steps(until=until):
        trainings["critic"].step()
        trainings["critic"].step()
        journal.updated("critic", applied=2)
        if step > 1:
            trainings["policy"].step()
            journal.updated("policy", applied=1)


def saved(root: Path, *overrides: str, until: int = 2) -> Path:
    """A run of both roles up to `until`, and its newest checkpoint."""
    trainings = fresh()
    with opened(config(root, *overrides), trainings, loop_state=WARM_UP) as journal:
        train(journal, trainings, until=until)
    return Path(journal.run_dir) / "checkpoints" / f"iter_{until:09d}"


@pytest.mark.parametrize("form", ["consolidated", "dcp"])
def test_roles_continue_as_if_nothing_had_been_in_between(tmp_path: Path, form: str) -> None:
    settings = (f"checkpoint_format={form}",)
    straight = fresh()
    with opened(config(tmp_path / "straight", *settings), straight) as journal:
        train(journal, straight, until=5)
    first = fresh()
    with opened(config(tmp_path / "cut", *settings), first) as journal:
        train(journal, first, until=3)
    second = fresh()
    with opened(config(tmp_path / "cut", *settings), second) as journal:
        assert (journal.resumption.kind, journal.resumption.step) == ("exact", 3)
        train(journal, second, until=5)
        clocks = {one.role: one.clocks.optimizer_step for one in journal.state.boundary.roles}
    assert clocks == {"critic": 10, "policy": 4}
    assert {role: one.digest() for role, one in second.items()} == {
        role: one.digest() for role, one in straight.items()
    }


def test_a_loop_state_comes_back_as_it_was_given(tmp_path: Path) -> None:
    saved(tmp_path)
    with opened(config(tmp_path), fresh()) as journal:
        found = journal.committed_loop_state()
    assert found == WARM_UP
    assert [type(value) for value in found.values()] == [type(value) for value in WARM_UP.values()]


def test_a_fresh_run_has_no_loop_state(tmp_path: Path) -> None:
    with opened(config(tmp_path), fresh()) as journal:
        assert journal.committed_loop_state() is None


def test_a_loop_state_that_is_no_scalar_of_json_is_refused_by_its_name(tmp_path: Path) -> None:
    trainings = fresh()
    with (
        pytest.raises(Refused, match="'weights'"),
        opened(config(tmp_path), trainings, loop_state=lambda: {"weights": [1, 2]}) as journal,
    ):
        train(journal, trainings, until=2)


def without_counters(document: dict[str, Any]) -> None:
    del document["counters"], document["loop_state"]


def other_counters(document: dict[str, Any]) -> None:
    document["counters"]["policy"] += 1


@pytest.mark.parametrize(
    ("change", "problem"),
    [(without_counters, "have to agree"), (other_counters, "its marker committed")],
)
def test_roles_that_are_not_at_the_counters_of_their_marker_are_corrupt(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], problem: str
) -> None:
    remark(saved(tmp_path), change)
    with pytest.raises(Corrupt, match=problem):
        opened(config(tmp_path), fresh())


def test_an_earlier_marker_without_counters_is_continued_where_the_roles_agree(tmp_path: Path) -> None:
    trainings = fresh()
    with opened(config(tmp_path), trainings) as journal:
        for _ in journal.steps(until=2):
            for role, training in trainings.items():
                training.step()
                journal.updated(role, applied=1)
    remark(Path(journal.run_dir) / "checkpoints" / "iter_000000002", without_counters)
    with opened(config(tmp_path), fresh()) as journal:
        assert journal.resumption.step == 2
        assert journal.committed_loop_state() is None


def test_roles_that_lost_their_marker_are_no_checkpoint(tmp_path: Path) -> None:
    newest = saved(tmp_path, until=4)
    (newest / "_SUCCESS").unlink()
    with pytest.raises(Corrupt, match=r"iter_000000004.*no _SUCCESS beside the roles critic, policy"):
        opened(config(tmp_path), fresh())


@pytest.mark.parametrize("roles", [("policy",), ("critic", "policy", "reward"), ("actor", "critic")])
def test_other_roles_do_not_take_it(tmp_path: Path, roles: tuple[str, ...]) -> None:
    saved(tmp_path)
    with pytest.raises(NotResumable, match="critic, policy"):
        opened(config(tmp_path), fresh(roles))


def test_a_single_trainer_and_roles_do_not_take_each_others_checkpoints(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(NotResumable, match="one trainer without a name"):
        Journal.open(config(tmp_path), trainer=Training().trainer(), watch=FakeWatch(), environ={})


def test_a_copied_boundary_is_continued_from_its_path(tmp_path: Path) -> None:
    copy = shutil.copytree(saved(tmp_path / "run"), tmp_path / "elsewhere" / "iter_000000002")
    with opened(config(tmp_path / "other", f"resume={copy}"), fresh()) as journal:
        assert (journal.resumption.kind, journal.resumption.step) == ("exact", 2)
        assert journal.committed_loop_state() == WARM_UP


def test_an_update_of_no_role_is_refused(tmp_path: Path) -> None:
    with opened(config(tmp_path), fresh()) as journal:
        with pytest.raises(Refused, match="'reward'"):
            journal.updated("reward", applied=1)
        with pytest.raises(Refused, match="at least one"):
            journal.updated("critic")


@pytest.mark.parametrize(
    "overrides",
    [
        ("checkpoint_components=[model]",),
        ("emergency_checkpoint_components=run",),
        ("validation.save_checkpoint=true", "validation.checkpoint_components=[model]"),
    ],
)
def test_roles_are_not_saved_in_parts(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    with pytest.raises(Misconfigured, match="several roles are saved whole"):
        opened(config(tmp_path, *overrides), fresh())


@pytest.mark.parametrize("name", ["model", "Policy", "a/b", "", "data"])
def test_a_role_is_not_called_like_a_part_of_a_checkpoint(tmp_path: Path, name: str) -> None:
    with pytest.raises(Misconfigured):
        opened(config(tmp_path), fresh((name,)))


def test_either_a_trainer_or_roles(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="neither"):
        Journal.open(config(tmp_path), environ={})
    with pytest.raises(Misconfigured, match="both"):
        opened(config(tmp_path), fresh(), trainer=Training().trainer())
    with pytest.raises(Misconfigured, match="loop_state"):
        Journal.open(config(tmp_path), trainer=Training().trainer(), loop_state=WARM_UP, environ={})


def remark(checkpoint: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write the marker anew with something changed in it."""
    path = checkpoint / "_SUCCESS"
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document) + "\n")
