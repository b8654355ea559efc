"""Real runs on a disk, made once and copied for each test, and the command line in this process.

    ended        two epochs that ended by themselves, checkpoints 2, 4, 6 and 7, all of them whole
    retained     the same with the retention of the defaults: the optimizers of checkpoints 2 and 6 are released, that
                 of 4 is not, as the second epoch resumed from it
    staged       killed while the save of step 4 was staged
    published    killed once the save of step 4 was published, before that was recorded
    both         artifacts of steps 2 and 4, and a checkpoint of step 4
    behind       killed in step 5: artifacts of steps 2 and 4, and a checkpoint of step 3, which was validated
    evaluating   killed while the checkpoint of step 3 was evaluated
    passed       killed once it was recorded that this evaluation passed, before the checkpoint says so
    pruning      killed once it was recorded that checkpoints 2 and 4 and the optimizer of 6 go, before they did

`KEEP_ALL` turns retention off.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from attrs import frozen
from click.testing import CliRunner

from milepost.engines.slots import SteppedSlot
from milepost.engines.termination import TerminationWatch
from milepost.journal import Journal
from milepost.journal.cli import main
from tests.journal.runs import FakeWatch, StillAmbient, Training, config, train


@frozen(kw_only=True)
class Answer:
    """What a verb printed and how it ended."""

    out: str
    err: str
    code: int

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Milepost = Callable[..., Answer]

KEEP_ALL = "rl.keep_optim_last=0"
MODEL_ONLY = "rl.checkpoint_components=[model]"
VALIDATING = ("rl.validation.every_steps=3", "rl.validation.save_checkpoint=true", "rl.validation.at_end=false")


@pytest.fixture
def milepost() -> Milepost:
    """Run a verb: `milepost("ls", run)`. An exception that is no exit fails the test."""

    def call(*arguments: object) -> Answer:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(out=result.stdout, err=result.stderr, code=result.exit_code)

    return call


@pytest.fixture(scope="session")
def ended_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs that ended by themselves, four checkpoints, two segments."""
    root = tmp_path_factory.mktemp("ended")
    train(config(root, KEEP_ALL), until=4)
    _, journal = train(config(root, KEEP_ALL), until=7)
    return Path(journal.run_dir)


@pytest.fixture(scope="session")
def killed_templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run as a kill leaves it while the save of step 4 is staged, and once it is published and not recorded."""
    root = tmp_path_factory.mktemp("killed")
    slot = SteppedSlot()
    copies: dict[str, Path] = {}

    def copy_at(journal: Journal, step: int) -> None:
        if step != 5:
            return
        for name, effects in (("staged", 2), ("published", 1)):
            for _ in range(effects):
                slot.step()
            copies[name] = root / name / Path(journal.run_dir).name
            shutil.copytree(journal.run_dir, copies[name])

    train(config(root / "live", KEEP_ALL), until=6, slot=slot, each=copy_at)
    segment = copies["published"] / "journal" / "00000001.jsonl"
    lines = segment.read_bytes().splitlines(keepends=True)
    assert b"save-sealed" in lines[-1]
    segment.write_bytes(b"".join(lines[:-1]))  # it was not synced: the kill took it
    return copies


@pytest.fixture(scope="session")
def retained_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("retained")
    train(config(root), until=4)
    _, journal = train(config(root), until=7)
    return Path(journal.run_dir)


@pytest.fixture(scope="session")
def both_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    training = Training()
    with (
        pytest.warns(UserWarning, match="checkpoint_components"),
        Journal.open(
            config(tmp_path_factory.mktemp("both"), MODEL_ONLY, KEEP_ALL),
            trainer=training.trainer(),
            slot=SteppedSlot(),
            watch=cast(TerminationWatch, FakeWatch()),
            ambient=StillAmbient(),
            environ={},
        ) as journal,
    ):
        for _ in journal.steps(until=4):
            training.step()
        journal.save(4, reason="emergency")
    return Path(journal.run_dir)


@pytest.fixture(scope="session")
def validated_templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`behind` and `evaluating`, of one run, and `passed`."""
    root = tmp_path_factory.mktemp("validated")
    copies = {name: root / name / "20260102030405" for name in ("behind", "evaluating", "passed")}
    run = root / "live" / "milepost" / "default" / "run" / "20260102030405"

    def evaluate(step: int) -> None:
        if step == 3:
            shutil.copytree(run, copies["evaluating"])

    def copy_in_step_5(journal: Journal, step: int) -> None:
        if step == 5:
            journal.finalize()
            shutil.copytree(run, copies["behind"])

    settings = config(root / "live", MODEL_ONLY, *VALIDATING, KEEP_ALL)
    with pytest.warns(UserWarning, match="checkpoint_components"):
        train(settings, until=5, validate=evaluate, each=copy_in_step_5)
    _, journal = train(config(root / "whole", *VALIDATING, KEEP_ALL), until=3, validate=lambda step: None)
    shutil.copytree(journal.run_dir, copies["passed"])
    forget_after(copies["passed"], "evaluation-passed")
    for number in (1, 2):
        (copies["passed"] / "checkpoints" / "iter_000000003" / f".posttrain-validation.{number}.json").unlink()
    return copies


@pytest.fixture(scope="session")
def pruning_template(ended_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints before a prune, the journal from within it."""
    root = tmp_path_factory.mktemp("pruning")
    before, after = (Path(shutil.copytree(ended_template, root / name / ended_template.name)) for name in "ab")
    done = CliRunner().invoke(main, ["prune", str(after), "--keep-model-last", "2"])
    assert done.exit_code == 0, done.output
    shutil.rmtree(before / "journal")
    shutil.copytree(after / "journal", before / "journal")
    forget_after(before, "prune-opened")
    return before


def forget_after(run: Path, kind: str) -> None:
    """Take the newest segment back to the last entry with a record of this kind, as a kill behind it leaves it."""
    segment = max((run / "journal").glob("*.jsonl"))
    lines = segment.read_bytes().splitlines(keepends=True)
    last = max(index for index, line in enumerate(lines) if f'"kind":"{kind}"'.encode() in line)
    segment.write_bytes(b"".join(lines[: last + 1]))
    (run / "journal" / "fold-cache").unlink(missing_ok=True)


@pytest.fixture
def ended(ended_template: Path, tmp_path: Path) -> Path:
    return _copied(ended_template, tmp_path)


@pytest.fixture
def staged(killed_templates: dict[str, Path], tmp_path: Path) -> Path:
    return _copied(killed_templates["staged"], tmp_path)


@pytest.fixture
def published(killed_templates: dict[str, Path], tmp_path: Path) -> Path:
    return _copied(killed_templates["published"], tmp_path)


@pytest.fixture
def retained(retained_template: Path, tmp_path: Path) -> Path:
    return _copied(retained_template, tmp_path)


@pytest.fixture
def both(both_template: Path, tmp_path: Path) -> Path:
    return _copied(both_template, tmp_path)


@pytest.fixture
def behind(validated_templates: dict[str, Path], tmp_path: Path) -> Path:
    return _copied(validated_templates["behind"], tmp_path)


@pytest.fixture
def evaluating(validated_templates: dict[str, Path], tmp_path: Path) -> Path:
    return _copied(validated_templates["evaluating"], tmp_path)


@pytest.fixture
def passed(validated_templates: dict[str, Path], tmp_path: Path) -> Path:
    return _copied(validated_templates["passed"], tmp_path)


@pytest.fixture
def pruning(pruning_template: Path, tmp_path: Path) -> Path:
    return _copied(pruning_template, tmp_path)


def _copied(template: Path, tmp_path: Path) -> Path:
    """A copy where a start with `output_root` at `tmp_path` continues it."""
    return Path(shutil.copytree(template, tmp_path / "milepost" / "default" / "run" / template.name))
