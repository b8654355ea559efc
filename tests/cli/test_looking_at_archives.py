"""What the reading verbs tell of a run that archives its checkpoints."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import KEEP_ALL, Milepost
from tests.journal.runs import config, train
from tests.journal.stores import Stores

UPLOAD = ("upload.enabled=true", "upload.bucket=archive", "save_async=false", KEEP_ALL)


def half_archived(root: Path) -> Path:
    """Checkpoint 2 was archived, 4 was not."""
    stores = Stores()
    train(config(root, *UPLOAD), until=2, remotes=stores)
    stores.down = True
    _, journal = train(config(root, *UPLOAD), until=4, remotes=stores)
    return Path(journal.run_dir)


def test_ls_tells_which_ones_have_an_archive(milepost: Milepost, tmp_path: Path, ended: Path) -> None:
    run = half_archived(tmp_path / "archived")
    rows = milepost("ls", run, "--json").json["checkpoints"]
    assert [(row["step"], row["archived"]) for row in rows] == [(2, True), (4, False)]
    header, first, second = milepost("ls", run).out.splitlines()
    assert ("ARCHIVE" in header, "archived" in first, "archived" in second) == (True, True, False)
    assert "ARCHIVE" not in milepost("ls", ended).out


def test_diff_names_what_was_archived_once_and_not_field_by_field(milepost: Milepost, tmp_path: Path) -> None:
    run = half_archived(tmp_path / "archived")
    changed = milepost("diff", run, "1", "--json").json
    assert changed["archived"] == ["iter_000000002"]
    assert not any(one["field"].startswith("marked") for one in changed["changes"])
    out = milepost("diff", run, "1").out
    assert "archived iter_000000002" in out
    assert "no answer" in out  # of the one that is still open
