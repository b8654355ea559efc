"""What two runs left on disk, side by side: the losses in their journals and the files of their last checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from milepost.engines.attempts import attempts
from milepost.engines.checkpoints.manifest import MANIFEST, decode
from milepost.engines.disks.local import LocalDisk
from milepost.engines.logs.segments import SegmentLog
from milepost.journal.config import Run
from milepost.journal.log.replay import fold, replay
from milepost.transitions.updates import StepReported

LOSS = "loss"


@frozen(kw_only=True)
class Row:
    """One step: its loss in the uninterrupted run, before the kill and after it, each as its shortest exact text."""

    step: int
    uninterrupted: str
    before_kill: str | None
    after_resume: str | None

    @property
    def equal(self) -> bool:
        told = [text for text in (self.before_kill, self.after_resume) if text is not None]
        return bool(told) and all(text == self.uninterrupted for text in told)


@frozen(kw_only=True)
class File:
    """One file of the last checkpoint: its digest in the uninterrupted run and in the interrupted one."""

    name: str
    uninterrupted: str
    interrupted: str | None

    @property
    def equal(self) -> bool:
        return self.uninterrupted == self.interrupted


@frozen(kw_only=True)
class Comparison:
    """Both runs, step by step and file by file."""

    rows: tuple[Row, ...]
    files: tuple[File, ...]

    @property
    def equal(self) -> bool:
        return all(row.equal for row in self.rows) and all(file.equal for file in self.files)

    @property
    def killed_after(self) -> int:
        """The last step that was reported before the kill."""
        return max(row.step for row in self.rows if row.before_kill is not None)

    @property
    def resumed_from(self) -> int:
        """The step of the checkpoint from which the run went on."""
        return min(row.step for row in self.rows if row.after_resume is not None) - 1


def run_directory(root: Path, name: str) -> Path | None:
    """The only attempt of the run, once there is one."""
    run = Run(output_root=str(root), name=name)
    home = f"{run.project}/{run.group}/{run.name}"
    if not (root / home).is_dir():
        return None
    found = attempts(LocalDisk(root), home)
    return root / home / found[0] if found else None


def compare(uninterrupted: Path, interrupted: Path) -> Comparison:
    """Every step, and every file of the newest checkpoint, of the uninterrupted run beside the interrupted one."""
    (whole,) = _losses(uninterrupted).values()
    before, after = _losses(interrupted).values()
    there = _digests(interrupted)
    return Comparison(
        rows=tuple(
            Row(step=step, uninterrupted=loss, before_kill=before.get(step), after_resume=after.get(step))
            for step, loss in whole.items()
        ),
        files=tuple(
            File(name=name, uninterrupted=digest, interrupted=there.get(name))
            for name, digest in _digests(uninterrupted).items()
        ),
    )


def _losses(run: Path) -> Mapping[int, Mapping[int, str]]:
    """By epoch and step, out of the journal."""
    losses: dict[int, dict[int, str]] = {}
    for entry, _ in replay(SegmentLog(LocalDisk(run))):
        for record in entry.records:
            if isinstance(record, StepReported):
                (loss,) = (metric.value for metric in record.metrics if metric.name == LOSS)
                losses.setdefault(entry.epoch, {})[record.step] = loss
    return losses


def _digests(run: Path) -> Mapping[str, str]:
    newest = fold(SegmentLog(LocalDisk(run))).state.saving.newest
    assert newest is not None, "a run that ended well has saved"
    path = run / "checkpoints" / newest.directory / MANIFEST
    manifest = decode(path.read_bytes(), where=str(path))
    return {file.path: file.digest for file in manifest.files}
