"""Real runs on a disk, made once and copied for each test, and the command line in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from click.testing import CliRunner

from milepost.engines.slots import SteppedSlot
from milepost.journal import Journal
from milepost.journal.cli import main
from tests.journal.runs import config, train


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
    train(config(root), until=4)
    _, journal = train(config(root), until=7)
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

    train(config(root / "live"), until=6, slot=slot, each=copy_at)
    segment = copies["published"] / "journal" / "00000001.jsonl"
    lines = segment.read_bytes().splitlines(keepends=True)
    assert b"save-sealed" in lines[-1]
    segment.write_bytes(b"".join(lines[:-1]))  # it was not synced: the kill took it
    return copies


@pytest.fixture
def ended(ended_template: Path, tmp_path: Path) -> Path:
    return _copied(ended_template, tmp_path)


@pytest.fixture
def staged(killed_templates: dict[str, Path], tmp_path: Path) -> Path:
    return _copied(killed_templates["staged"], tmp_path)


@pytest.fixture
def published(killed_templates: dict[str, Path], tmp_path: Path) -> Path:
    return _copied(killed_templates["published"], tmp_path)


def _copied(template: Path, tmp_path: Path) -> Path:
    """A copy where a start with `output_root` at `tmp_path` continues it."""
    return Path(shutil.copytree(template, tmp_path / "milepost" / "default" / "run" / template.name))
