"""A dead run as it lies on the disk: every byte of it checked, none of it healed.

`look` fails where anything is visible that must not be: a published checkpoint that is not whole but for what its
release marker says (INV-01), a sealed one that is missing though retention has not touched it, a newest one that is
less than whole (INV-08), a pointer to nothing (INV-03), a log that does not fold (INV-09) or breaks an invariant.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from milepost.engines.checkpoints import generations, released
from milepost.engines.checkpoints.local import POINTER, STAGING
from milepost.engines.checkpoints.manifest import MANIFEST, Manifest, decode, digest_of
from milepost.engines.checkpoints.released import RELEASED
from milepost.engines.disks.local import LocalDisk
from milepost.engines.formats import digest_of as digest_of_file
from milepost.engines.logs.segments import SegmentLog
from milepost.journal.log.replay import fold, replay
from milepost.transitions.invariants import violations
from milepost.transitions.machine import initial
from milepost.transitions.retention import Part
from milepost.transitions.updates import StepReported
from milepost.transitions.values import Metric, iteration_name, parse_iteration

Losses = Mapping[int, Mapping[int, tuple[Metric, ...]]]
"""By epoch and step."""


@frozen(kw_only=True)
class Look:
    """What was found. `newest` is the step of the newest published checkpoint, 0 for none.

    `published` has the manifest of each checkpoint by its directory, `saving` says that a save was open, `losses` are
    of every epoch. `segments` and `staged` are what the functions of these names say.
    """

    newest: int
    published: Mapping[str, Manifest]
    saving: bool
    losses: Losses
    segments: tuple[int, ...]
    staged: frozenset[str]

    @property
    def digests(self) -> Mapping[str, str]:
        """Those of the newest checkpoint's files."""
        manifest = self.published[iteration_name(self.newest)]
        return {file.path: file.digest for file in manifest.files}


NOTHING = Look(newest=0, published={}, saving=False, losses={}, segments=(), staged=frozenset())


def look(root: Path, name: str) -> Look:
    """The only attempt of run `name` below `root`."""
    home = root / "milepost" / "default" / name
    attempts = sorted(home.iterdir()) if home.is_dir() else []
    assert len(attempts) <= 1, f"one run became several: {attempts}"
    if not attempts:
        return NOTHING
    (run,) = attempts
    disk = LocalDisk(run)
    log = SegmentLog(disk)
    published = _published(run / "checkpoints")
    state = fold(log, witnesses={where: manifest.witness for where, manifest in published.items()}).state
    for step, save in state.saving.sealed.items():
        lost = state.retention.lost(step)
        assert step != max(state.saving.sealed) or lost is None, f"the newest checkpoint lost its {lost}"
        if lost is Part.CHECKPOINT and save.id.directory not in published:
            continue
        assert lost is not None or not released.read(disk, f"checkpoints/{save.id.directory}")
        manifest = published[save.id.directory]
        assert manifest.save == save.id and save.id.step == step
        path = run / "checkpoints" / save.id.directory / MANIFEST
        assert digest_of(path.read_bytes()) == save.manifest, f"{path} is not what was sealed"
    pointer = run / "checkpoints" / POINTER
    if pointer.exists():
        assert pointer.read_text(encoding="utf-8").removesuffix("\n") in published, pointer.read_bytes()
    return Look(
        newest=max((manifest.save.step for manifest in published.values()), default=0),
        published=published,
        saving=bool(state.saving.open),
        losses=_losses(log),
        segments=segments(root, name),
        staged=staged(root, name),
    )


def segments(root: Path, name: str) -> tuple[int, ...]:
    """The sizes of the log's segments in bytes, oldest first."""
    found = sorted((root / "milepost" / "default" / name).glob("*/journal/*.jsonl"))
    return tuple(path.stat().st_size for path in found)


def staged(root: Path, name: str) -> frozenset[str]:
    """The ids of the saves that are under way, or that died so and were not looked for yet."""
    found = (root / "milepost" / "default" / name).glob(f"*/checkpoints/{STAGING}/[0-9]*")
    return frozenset(path.name for path in found)


def pointed(root: Path, name: str) -> int:
    """The step that latest_checkpoint.txt names; 0 without one."""
    for pointer in (root / "milepost" / "default" / name).glob(f"*/checkpoints/{POINTER}"):
        return parse_iteration(pointer.read_text(encoding="utf-8").strip()) or 0
    return 0


def _published(checkpoints: Path) -> Mapping[str, Manifest]:
    """The manifest of each published checkpoint, every file of which has its digest."""
    found = {}
    for directory in sorted(checkpoints.glob("iter_*")):
        manifest = decode((directory / MANIFEST).read_bytes(), where=str(directory))
        assert manifest.save.directory == directory.name
        disk, gone = LocalDisk(directory.parent), released.read(LocalDisk(directory.parent), directory.name)
        there = {path.name for path in directory.iterdir()}
        listed = {file.path for file in manifest.files}
        assert listed - set(gone) <= there <= listed | {MANIFEST, RELEASED, *generations.names}
        generations.read(disk, directory.name)
        for file in manifest.files:
            if file.path not in there:
                continue
            with disk.open(f"{directory.name}/{file.path}") as source:
                assert digest_of_file(source) == file.digest, f"{directory / file.path} is not whole"
        found[directory.name] = manifest
    return found


def _losses(log: SegmentLog) -> Losses:
    losses: dict[int, dict[int, tuple[Metric, ...]]] = {}
    before = initial()
    for entry, state in replay(log):
        assert not violations(before, state), f"entry {entry.seq}"
        before = state
        for record in entry.records:
            if isinstance(record, StepReported):
                losses.setdefault(entry.epoch, {})[record.step] = record.metrics
    return losses
