"""Retention behind the saves of a run: what goes, what stays, and what a start makes of what is left."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from milepost.engines.simulated import Fault, SimulatedDisk, fault_on
from milepost.engines.slots import ThreadSlot
from milepost.journal import Config, Journal, NotResumable
from tests.journal.runs import config, train


def on_disk(root: Path) -> dict[int, set[str]]:
    """The payload files of every checkpoint that is there."""
    folders = root.glob("**/checkpoints/iter_*")
    return {int(path.name[5:]): {file.name for file in path.glob("*.pt")} for path in sorted(folders)}


WHOLE = {"model.pt", "optim.pt", "trainer.pt", "data.pt"}
RELEASED = WHOLE - {"optim.pt"}


def test_by_default_only_the_newest_checkpoint_keeps_its_optimizer(tmp_path: Path) -> None:
    _, journal = train(config(tmp_path), until=6)
    assert on_disk(tmp_path) == {2: RELEASED, 4: RELEASED, 6: WHOLE}
    assert sorted(journal.state.retention.released) == [2, 4]


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        (["keep_optim_last=0"], {2: WHOLE, 4: WHOLE, 6: WHOLE}),
        (["keep_optim_last=2"], {2: RELEASED, 4: WHOLE, 6: WHOLE}),
        (["keep_model_last=1"], {6: WHOLE}),
        (["keep_model_last=2"], {4: RELEASED, 6: WHOLE}),
        (["keep_optim_last=0", "keep_model_last=2"], {4: WHOLE, 6: WHOLE}),
    ],
)
@pytest.mark.parametrize("background", ["true", "false"])
def test_the_newest_so_many_are_kept(
    tmp_path: Path, knobs: list[str], expected: dict[int, set[str]], background: str
) -> None:
    train(config(tmp_path, f"save_async={background}", *knobs), until=6, slot=ThreadSlot())
    assert on_disk(tmp_path) == expected


def test_keep_fn_chooses_the_optimizers_that_stay_and_never_loses_the_newest(tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def keep(names: Sequence[str]) -> set[str]:
        asked.append(list(names))
        return {"iter_000000002"}

    train(config(tmp_path), until=8, keep_fn=keep)
    assert on_disk(tmp_path) == {2: WHOLE, 4: RELEASED, 6: RELEASED, 8: WHOLE}
    assert asked[-1] == ["iter_000000002", "iter_000000004", "iter_000000006", "iter_000000008"]


def test_a_protected_checkpoint_and_the_one_resumed_from_stay(tmp_path: Path) -> None:
    train(config(tmp_path, "keep_model_last=1"), until=2)

    def protect(journal: Journal, step: int) -> None:
        if step == 5:
            journal.protect(4)

    _, journal = train(config(tmp_path, "keep_model_last=1"), until=8, each=protect)
    assert on_disk(tmp_path).keys() == {2, 4, 8}
    assert journal.resumption.step == 2


def test_a_checkpoint_that_waits_for_its_validation_is_left_alone(tmp_path: Path) -> None:
    knobs = config(tmp_path, "keep_model_last=1", "validation.every_steps=2")

    def die(step: int) -> None:
        if step == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(knobs, until=8, validate=die)
    assert on_disk(tmp_path).keys() == {4, 6}
    train(knobs, until=6, validate=lambda step: None)
    assert on_disk(tmp_path).keys() == {6}


def test_artifacts_are_never_counted_and_never_pruned(tmp_path: Path) -> None:
    knobs = config(
        tmp_path,
        "save_every=4",
        "keep_model_last=1",
        "validation.every_steps=2",
        "validation.save_checkpoint=true",
        "validation.checkpoint_components=[model]",
    )
    with pytest.warns(UserWarning):
        train(knobs, until=10, validate=lambda step: None)
    assert on_disk(tmp_path).keys() == {10}
    assert {path.name for path in tmp_path.glob("**/checkpoint_artifacts/iter_*")} == {
        "iter_000000002",
        "iter_000000006",
    }


def test_what_is_left_of_a_checkpoint_is_no_resume_source_and_says_so(tmp_path: Path) -> None:
    _, donor = train(config(tmp_path / "donor"), until=4)
    source = Path(donor.run_dir) / "checkpoints" / "iter_000000002"
    with pytest.raises(NotResumable, match=r"released.*optim\.pt"):
        train(config(tmp_path / "branch", f"resume={source}"), until=4)
    shutil.copytree(source, tmp_path / "iter_000000002")
    with pytest.raises(NotResumable, match=r"released.*optim\.pt"):
        train(config(tmp_path / "branch", f"resume={tmp_path}/iter_000000002"), until=4)


def test_a_start_passes_over_what_retention_took_with_the_reason(tmp_path: Path) -> None:
    train(config(tmp_path, "keep_model_last=2"), until=6)
    _, journal = train(config(tmp_path, "keep_model_last=2"), until=6)
    assert {one.name: one.reason for one in journal.resumption.passed_over} == {"iter_000000004": "released"}


def test_a_prune_that_fails_does_not_fail_the_save_and_is_tried_again() -> None:
    disk = SimulatedDisk()
    released = "milepost/default/run/20260102030405/checkpoints/iter_000000002/optim.pt"
    disk.hardware.faults = fault_on("unlink", Fault(error=errno.EIO), path=released)
    _, journal = train(config("runs"), until=4, disk=disk.process("first"))
    assert sorted(journal.state.saving.sealed) == [2, 4]
    assert [prune.save.step for prune in journal.state.retention.open] == [2]
    _, journal = train(config("runs"), until=6, disk=disk.process("second"))
    assert sorted(journal.state.retention.released) == [2], "and 4 is what the second start resumed from"
    assert journal.state.retention.open == ()


def test_the_configuration_of_a_run_is_what_prunes_it(tmp_path: Path) -> None:
    assert Config().resolved_keep_optim_last == 1
    train(config(tmp_path, "keep_optim_last=0"), until=6)
    train(config(tmp_path, "keep_optim_last=1"), until=8)
    assert on_disk(tmp_path) == {2: RELEASED, 4: RELEASED, 6: WHOLE, 8: WHOLE}, "6 is what the run resumed from"
