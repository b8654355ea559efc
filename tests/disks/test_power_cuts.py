"""The simulated disk is no kinder than a real one: what a real power cut leaves is always among its images.

Small programs run on the local disk, on a real ext4 (or xfs) whose power is cut after some number of steps, and on
the simulated disk for as many steps. Each program omits some syncs, so that there is something to lose.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack

import pytest

from milepost.engines.disks import Disk, write_all
from milepost.engines.disks.local import LocalDisk
from milepost.engines.simulated import SimulatedDisk
from tests.disks.power import Mount, mounted, unavailable

Program = Callable[[Disk, ExitStack], Generator[None]]
"""A step of work between two yields. Sinks go to the stack, which closes them after the cut."""

LONGEST = 40


def log(disk: Disk, open_sinks: ExitStack) -> Generator[None]:
    """Lines, every other of them synced; the directory synced late."""
    sink = open_sinks.enter_context(disk.create("log"))
    for number in range(8):
        write_all(sink, b"line %d\n" % number)
        yield
        if number % 2:
            sink.sync()
            yield
        if number == 5:
            disk.sync_dir("")
            yield


def replaced_pointer(disk: Disk, open_sinks: ExitStack) -> Generator[None]:
    """A pointer that is replaced three times: all synced, the file not synced, the directory not synced."""
    for value, (sync_file, sync_dir) in enumerate([(True, True), (False, True), (True, False)]):
        with disk.create("tmp") as sink:
            yield
            write_all(sink, b"%d" % value * 100)
            yield
            if sync_file:
                sink.sync()
                yield
        disk.rename("tmp", "pointer")
        yield
        if sync_dir:
            disk.sync_dir("")
            yield


def published_directory(disk: Disk, open_sinks: ExitStack) -> Generator[None]:
    """Three checkpoints staged and published; only the first with every sync."""
    disk.mkdir("staging")
    yield
    disk.sync_dir("")
    yield
    for number in range(3):
        staged = f"staging/{number}"
        disk.mkdir(staged)
        yield
        for name in ("payload", "manifest"):
            with disk.create(f"{staged}/{name}", bulk=True) as sink:
                write_all(sink, name.encode() * 700)
                yield
                if number < 2:
                    sink.sync()
                    yield
        if number == 0:
            disk.sync_dir(staged)
            yield
        disk.publish(staged, f"done{number}")
        yield
        if number == 0:
            disk.sync_dir("staging")
            yield
            disk.sync_dir("")
            yield


def links_and_removals(disk: Disk, open_sinks: ExitStack) -> Generator[None]:
    """Names come and go, with a sync of another file (and so of a shared journal) in between."""
    with disk.create("a") as sink:
        write_all(sink, b"a" * 5000)
        yield
        sink.sync()
        yield
    disk.link("a", "b")
    yield
    disk.sync_dir("")
    yield
    disk.unlink("a")
    yield
    with disk.create("other") as sink:
        write_all(sink, b"other")
        yield
        sink.sync()
        yield
    disk.mkdir("d")
    yield
    disk.rename("b", "d/b")
    yield
    disk.sync_dir("d")
    yield
    disk.unlink("other")
    yield
    disk.unlink("d/b")
    yield
    disk.rmdir("d")
    yield


PROGRAMS: tuple[Program, ...] = (log, replaced_pointer, published_directory, links_and_removals)


def sync_everything(disk: Disk, path: str = "") -> None:
    for name in disk.names(path):
        below = f"{path}/{name}" if path else name
        stat = disk.stat(below)
        assert stat is not None
        if stat.kind == "dir":
            sync_everything(disk, below)
        else:
            disk.sync_file(below)
    disk.sync_dir(path)


def run(program: Program, disk: Disk, open_sinks: ExitStack, steps: int) -> int:
    """Run so many steps, or all there are: how many that was."""
    running = program(disk, open_sinks)
    open_sinks.callback(running.close)
    return sum(1 for _step in zip(range(steps), running, strict=False))


def tree(disk: Disk, path: str = "") -> dict[str, bytes | None]:
    """What `SimulatedDisk.tree` gives, of any disk."""
    found: dict[str, bytes | None] = {path: None}
    for name in disk.names(path):
        below = f"{path}/{name}" if path else name
        stat = disk.stat(below)
        assert stat is not None
        if stat.kind == "dir":
            found |= tree(disk, below)
        else:
            found[below] = disk.read(below, limit=1 << 20)
    return found


@pytest.fixture
def mount(request: pytest.FixtureRequest) -> Iterator[Mount]:
    reason = unavailable(request.param)
    if reason is not None:
        pytest.skip(reason)
    with mounted(kind=request.param, size_mib=64) as mount:
        yield mount


def cut_and_look(mount: Mount, folder: str, program: Program, steps: int) -> bool:
    """Whether this cut lost anything; fails where it left what no image of the simulated disk shows."""
    above = LocalDisk(mount.root)
    above.mkdir(folder)
    above.sync_dir("")
    simulated = SimulatedDisk()
    with ExitStack() as open_sinks:
        run(program, LocalDisk(mount.root / folder), open_sinks, steps)
        run(program, simulated, open_sinks, steps)
        before = simulated.tree()
        possible = [image.tree() for image in simulated.crash_images()]
        mount.cut()
    mount.remount()
    left = tree(LocalDisk(mount.root / folder))
    assert left in possible, f"after {steps} steps of {program.__name__} there is {left}"
    return left != before


def cut_at_random(mount: Mount, *, cuts: int, seed: int) -> None:
    chance = random.Random(seed)
    losses = 0
    for cut in range(cuts):
        program = PROGRAMS[cut % len(PROGRAMS)]
        with ExitStack() as open_sinks:
            length = run(program, SimulatedDisk(), open_sinks, LONGEST)
        losses += cut_and_look(mount, f"{cut}", program, chance.randint(0, length))
    assert losses > cuts // 4, "the cuts lose too little to prove anything"


@pytest.mark.kills
@pytest.mark.parametrize("mount", ["ext4"], indirect=True)
def test_what_a_power_cut_leaves_is_among_the_simulated_images(mount: Mount) -> None:
    cut_at_random(mount, cuts=24, seed=1)


@pytest.mark.kills
@pytest.mark.parametrize("mount", ["ext4"], indirect=True)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_that_ends_with_every_sync_loses_nothing(mount: Mount, program: Program) -> None:
    def synced(disk: Disk, open_sinks: ExitStack) -> Generator[None]:
        yield from program(disk, open_sinks)
        sync_everything(disk)
        yield

    assert not cut_and_look(mount, "synced", synced, LONGEST)


@pytest.mark.fuzz
@pytest.mark.kills
@pytest.mark.parametrize("mount", ["ext4", "xfs"], indirect=True)
def test_what_many_power_cuts_leave_is_among_the_simulated_images(mount: Mount) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    cut_at_random(mount, cuts=240, seed=seed)
