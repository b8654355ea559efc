"""A run that archives its checkpoints, crashed after every operation on its disk, with its store as it then was."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import pytest
from attrs import frozen

from milepost.engines.checkpoints import generations
from milepost.engines.checkpoints.manifest import MANIFEST, decode
from milepost.engines.checkpoints.released import RECEIPT, RELEASED
from milepost.engines.logs.segments import SegmentLog
from milepost.engines.simulated import SimulatedDisk
from milepost.engines.simulated.bucket import SimulatedBucket
from milepost.engines.simulated.cloud import Tree
from milepost.engines.simulated.faults import Site, no_fault
from milepost.journal import Config
from milepost.journal.log.replay import fold
from milepost.transitions.validation import ValidationStage
from milepost.transitions.values import iteration_name
from tests.journal.runs import StillAmbient, config, train
from tests.journal.stores import Stores

ATTEMPT = "milepost/default/run/20260102030405"
ROOT = f"{ATTEMPT}/checkpoints"
KNOBS = ("upload.enabled=true", "upload.bucket=archive", "save_async=false", "keep_model_last=1")
VALIDATED = ("save_every=0", "validation.every_steps=2", "validation.save_checkpoint=true")
STEPS = (2, 4, 6)


@frozen(kw_only=True)
class Crash:
    """What a crash leaves: a disk, and what the store holds for certain."""

    disk: SimulatedDisk
    bucket: SimulatedBucket


def settings(*overrides: str) -> Config:
    return config("simulated", *KNOBS, *overrides)


def go_on(crash: Crash, *overrides: str, until: int = STEPS[-1]) -> None:
    """Start the run, or start it again, and let it end."""
    stores = Stores({"archive": crash.bucket})
    train(
        settings(*overrides),
        until=until,
        disk=crash.disk,
        remotes=stores,
        ambient=StillAmbient(),
        validate=lambda step: step,
    )


def crashes(*overrides: str, every: int) -> Iterator[Crash]:
    """What every crash of the run may leave; of every so many moments, those of its store's requests above all."""
    disk, bucket = SimulatedDisk(), SimulatedBucket()
    moments: list[tuple[int, int]] = []

    def note(site: Site) -> None:
        moments.append((site.index, len(bucket.trace)))  # how far the store was before this operation

    disk.hardware.faults = note
    go_on(Crash(disk=disk, bucket=bucket), *overrides)
    disk.hardware.faults = no_fault
    moments.append((len(disk.trace), len(bucket.trace)))
    last = 0
    for number, length in enumerate(disk.cuts()):
        _, seen = moments[bisect_left(moments, (length, 0))]
        if seen == last and number % every:
            continue
        last = seen
        for image in (*disk.crash_images(length, losses=()), disk.killed(length)):
            yield Crash(disk=image, bucket=next(iter(bucket.crash_images(seen))))  # what was under way never arrived


def look(crash: Crash) -> None:
    """INV-01 of the archive, INV-07 and INV-08, from the bytes alone."""
    disk, held = crash.disk.tree(), crash.bucket.tree()
    names = {path.split("/")[5] for path in disk if path.startswith(f"{ROOT}/iter_")}
    for name in names:
        path = f"{ROOT}/{name}"
        if f"{path}/{RECEIPT}" in disk:
            require_whole(held, path)
        if f"{path}/{RELEASED}" in disk:
            assert f"{path}/{RECEIPT}" in disk, f"{name} lost its optimizer before its receipt was there"
        private = f"{path}/{generations.names[0]}" in disk and f"{path}/{generations.names[1]}" not in disk
        assert not private or not any(key.startswith(path) for key in held), f"{name} was archived while pending"
        if f"{path}/{generations.names[2]}" in disk:
            require_whole(held, path)
    for name in (iteration_name(step) for step in STEPS if f"{ATTEMPT}/journal/00000001.jsonl" in disk):
        if removed(crash.disk, name):
            require_whole(held, f"{ROOT}/{name}")
    for key in held:
        if key.endswith(f"/{MANIFEST}"):
            require_whole(held, key.removesuffix(f"/{MANIFEST}"))


def removed(disk: SimulatedDisk, name: str) -> bool:
    """Whether the checkpoint was published and is gone."""
    state = fold(SegmentLog(disk, folder=f"{ATTEMPT}/journal")).state
    sealed = any(save.id.directory == name for save in state.saving.sealed.values())
    return sealed and disk.stat(f"{ROOT}/{name}/{MANIFEST}") is None


def require_whole(held: Tree, path: str) -> None:
    """The archive of this checkpoint has its manifest and every file of it, with the size that it states."""
    data = held.get(f"{path}/{MANIFEST}")
    assert data is not None, f"{path} is not in the archive"
    for file in decode(data, where=path).files:
        assert len(held[f"{path}/{file.path}"]) == file.size


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [(), VALIDATED], ids=["ordinary", "validated"])
def test_no_crash_loses_the_last_copy_or_shows_what_is_private(knobs: tuple[str, ...]) -> None:
    met = 0
    for crash in crashes(*knobs, every=1):
        look(crash)
        met += 1
    assert met > 300


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [(), VALIDATED], ids=["ordinary", "validated"])
def test_after_any_crash_the_next_start_completes_what_was_begun(knobs: tuple[str, ...]) -> None:
    for number, crash in enumerate(crashes(*knobs, every=10)):
        if number % 16:
            continue
        go_on(crash, *knobs, until=8)
        look(crash)
        state = fold(SegmentLog(crash.disk, folder=f"{ATTEMPT}/journal")).state
        assert state.validation.stage is ValidationStage.IDLE
        assert state.archiving.open == ()
        assert sorted(state.saving.sealed) == [*STEPS, 8]
        resumed = () if state.run.resumed is None or state.run.resumed.save is None else (state.run.resumed.save,)
        kept = {iteration_name(8), *(save.directory for save in resumed)}
        assert set(crash.disk.names(ROOT)) == {".staging", "latest_checkpoint.txt", *kept}
        for step in (*STEPS, 8):
            require_whole(crash.bucket.tree(), f"{ROOT}/{iteration_name(step)}")
