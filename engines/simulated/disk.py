"""A disk in memory that crashes on demand: run a program on it, then look at everything a crash could have left.

    disk = SimulatedDisk()
    program(disk)
    for length in disk.cuts():
        for image in (*disk.crash_images(length), disk.killed(length)):
            check(image, disk.marks(length))    # what was promised by then has to be there

`crash_images` are what the loss of power after `length` operations may leave, `killed` is what the death of all
processes leaves.

What it models is said in `medium.py`, what is enumerated in `crashes.py`, what can be made to fail in `faults.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from milepost.engines.simulated.crashes import LOSSES, Key, Loss, after_kill, key_of, power_losses
from milepost.engines.simulated.hardware import Hardware, Operation
from milepost.engines.simulated.medium import Medium, Renames, Symlink, Tree, empty, tree
from milepost.engines.simulated.process import Process


class SimulatedDisk(Process):
    """The machine, and its first process at the same time: a `Disk` for whoever needs no more than one.

    `renames` says whether a crash may tear a rename between two directories (`medium.py`, rule 4). Faults, short
    writes, free space, the clock and the scheduler's hook are set on `hardware`.
    """

    def __init__(self, *, renames: Renames = "atomic") -> None:
        super().__init__(Hardware(empty(renames)), "main")

    def process(self, name: str) -> Process:
        """A new process on this machine, with sinks, locks and a death of its own."""
        return Process(self.hardware, name)

    @property
    def trace(self) -> Sequence[Operation]:
        """Everything that happened since this disk was made, oldest first; an operation's place is its index."""
        return self.hardware.trace

    def mark(self, *note: object) -> None:
        """Note in the trace what was told to the world by now. Nothing becomes durable by it."""
        self.hardware.mark(*note)

    def marks(self, length: int | None = None) -> tuple[tuple[object, ...], ...]:
        """What was marked in the first `length` entries of the trace (all of it, if None)."""
        return tuple(operation.note for operation in self.trace[:length] if operation.verb == "mark")

    def plant_symlink(self, path: str) -> None:
        """Put a symbolic link there, as only somebody else would: no verb of a disk makes one."""
        self._birth("symlink", path, Symlink())

    def drop_caches(self) -> None:
        """Forget clean pages, so that what a failed sync lost can no longer be read."""
        self.hardware.drop_caches()

    def tree(self) -> Tree:
        """What is visible, by path; not an operation."""
        return tree(self.hardware.medium.seen)

    def key(self) -> Key:
        """Equal for two disks that no program can tell apart, now or after a crash; hashable."""
        return key_of(self.hardware.medium)

    def cuts(self) -> Iterator[int]:
        """The lengths of those prefixes of the trace after which a crash may leave, or break a promise, anew."""
        yield 0
        for length, operation in enumerate(self.trace, start=1):
            if operation.verb == "mark" or self._after(length - 1, None) is not self._after(length, None):
                yield length

    def crash_images(
        self,
        length: int | None = None,
        *,
        renames: Renames | None = None,
        losses: Sequence[Loss] = LOSSES,
    ) -> Iterator[SimulatedDisk]:
        """Disks as the power loss after the first `length` operations may leave them, each with an empty trace.

        None means the whole trace. The first image has lost everything that was not synced. `renames` overrides
        the disk's own kind; `losses` narrows how unsynced bytes survive in part.
        """
        for image in power_losses(self._after(length, renames), losses):
            yield self._with(image)

    def killed(self, length: int | None = None, *, renames: Renames | None = None) -> SimulatedDisk:
        """The disk as a kill of all processes after the first `length` operations leaves it.

        All that was written is visible, and what was not synced is still not durable.
        """
        return self._with(after_kill(self._after(length, renames)))

    def _with(self, medium: Medium) -> SimulatedDisk:
        """Another disk, with this one's space and clock."""
        hardware = Hardware(medium)
        hardware.free_bytes = self.hardware.free_bytes
        hardware.now_s = self.hardware.now_s
        disk = SimulatedDisk.__new__(SimulatedDisk)
        Process.__init__(disk, hardware, "main")
        return disk

    def _after(self, length: int | None, renames: Renames | None) -> Medium:
        whole = len(self.trace) if length is None else length
        return self.hardware.medium_after(whole, renames or self.hardware.first.renames)
