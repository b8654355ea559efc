"""Writers that are killed, cut off or overtaken at any operation: what was acknowledged is found again, always."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from milepost.engines.disks import Disk
from milepost.engines.simulated import SimulatedDisk
from milepost.journal.log.replay import fold
from milepost.transitions.errors import Fenced
from milepost.transitions.values import Witness
from tests.log.runs import Run

Acknowledged = dict[str, Witness]


def machine() -> SimulatedDisk:
    """A disk with a journal's folder that is durable, and an empty trace."""
    disk = SimulatedDisk()
    disk.mkdir("journal")
    disk.sync_dir("")
    return disk.killed()


def session(disk: Disk, told: Callable[[Witness], None]) -> None:
    """One writer's life: it opens, acknowledges twice with a rotation between, and leaves an unsynced tail."""
    run = Run(disk)
    run.open()
    for _ in range(2):
        run.train(1)
        witness = run.acknowledge()
        if witness is None:
            return
        told(witness)
        run.rotate()
    run.train(1)


def marked(disk: SimulatedDisk) -> Callable[[Witness], None]:
    return lambda witness: disk.mark(witness)


def acknowledged(disk: SimulatedDisk, cut: int) -> Acknowledged:
    return {f"told-{k}": witness for k, (witness,) in enumerate(disk.marks(cut)) if isinstance(witness, Witness)}


def crashes(disk: SimulatedDisk) -> Iterator[tuple[SimulatedDisk, Acknowledged]]:
    """Every disk that a kill or a power loss may leave, with what had been acknowledged by then."""
    for cut in disk.cuts():
        told = acknowledged(disk, cut)
        yield disk.killed(cut), told
        for image in disk.crash_images(cut):
            yield image, told


def test_no_crash_loses_what_was_acknowledged_or_makes_the_log_unreadable() -> None:
    disk = machine()
    session(disk, marked(disk))
    seen = set()
    for image, told in crashes(disk):
        folded = fold(Run(image).log, witnesses=told)
        seen.add((len(folded.torn) > 0, len(told)))
    assert {(True, 0), (True, 1), (True, 2), (False, 2)} <= seen


def test_a_crash_during_the_recovery_from_a_crash_is_a_crash_like_any_other() -> None:
    disk = machine()
    session(disk, marked(disk))
    images = {image.key(): (image, told) for image, told in crashes(disk)}
    for first, told in list(images.values())[::7]:
        session(first, marked(first))
        for second, more in crashes(first):
            fold(Run(second).log, witnesses={**told, **{f"again-{name}": w for name, w in more.items()}})


def operations_of(step: Callable[[SimulatedDisk], None], before: Callable[[SimulatedDisk], None]) -> int:
    """How many operations `step` takes after `before`."""
    disk = machine()
    before(disk)
    start = len(disk.trace)
    step(disk)
    return len(disk.trace) - start


def at_operation(disk: SimulatedDisk, index: int, process: str, act: Callable[[], None]) -> None:
    """Run `act` once, right before the operation of `process` with this index from now."""
    left = index

    def before(name: str, _verb: str, _path: str) -> None:
        nonlocal left
        if name == process:
            left -= 1
            if left == -1:
                act()

    disk.hardware.before = before


def test_a_writer_that_is_overtaken_anywhere_acknowledges_nothing_more() -> None:
    count = operations_of(lambda disk: session(disk, lambda witness: None), lambda disk: None)
    fenced = 0
    for index in range(count):
        disk = machine()
        old: list[Witness] = []
        new: list[Witness] = []
        at_operation(disk, index, "main", lambda d=disk, w=new: session(d.process("new"), w.append))  # type: ignore[misc]
        try:
            session(disk, old.append)
        except Fenced:
            fenced += 1
        told = {f"old-{k}": w for k, w in enumerate(old)} | {f"new-{k}": w for k, w in enumerate(new)}
        assert fold(Run(disk).log, witnesses=told).torn == (), f"overtaken before operation {index}"
        assert len(new) == 2
    assert fenced > 0


def test_an_older_writer_may_append_and_sync_at_any_moment_of_a_takeover() -> None:
    def first(disk: Disk) -> Run:
        run = Run(disk)
        run.open()
        run.train(1)
        return run

    def second(disk: SimulatedDisk) -> None:
        session(disk.process("new"), lambda witness: None)

    count = operations_of(second, lambda disk: first(disk) and None)
    for index in range(count):
        disk = machine()
        old = first(disk)
        told: list[Witness | None] = []

        def interfere(old: Run = old, told: list[Witness | None] = told) -> None:
            old.train(1)
            told.append(old.acknowledge())

        at_operation(disk, index, "new", interfere)
        session(disk.process("new"), told.append)
        witnesses = {f"told-{k}": w for k, w in enumerate(told) if w is not None}
        assert len(witnesses) in (2, 3)
        for image in (disk, *disk.crash_images()):
            fold(Run(image).log, witnesses=witnesses)
