"""Sampled work in the crash machine: what an execution issued and settled, and the checks of what a crash leaves.

The reference is kept beside the journal. What a save is offered says where it has to bring sampling back to; the
explorer compares what a resume restored with it, at every crash.
"""

from __future__ import annotations

from milepost.engines.simulated import SimulatedDisk
from milepost.journal import Journal, SamplingBoundary, SamplingToken
from milepost.journal.sampling.boundaries import point_of
from tests.crash.explore import Explorer
from tests.crash.histories import publishing, small_segments
from tests.crash.promises import look
from tests.crash.published import need
from tests.crash.world import Run, config
from tests.sampling.reference import Issued, Reference

START = SamplingBoundary(1, 1_000, 0)


class Sampler:
    """One execution that samples. `outdated` are tokens of earlier ones: none of them settles anything."""

    def __init__(self, journal: Journal, *, outdated: tuple[SamplingToken, ...] = ()) -> None:
        self._ledger = journal.sampling
        self._outdated = outdated
        before = journal.resumption.sampling
        initial = self._ledger.begin(START)
        need(initial == (before or START), "INV-11", f"sampling begins at {initial}, restored was {before}")
        self._reference = Reference(initial)
        self.compare()

    @property
    def boundary(self) -> SamplingBoundary:
        """Where whoever resumes from what is saved now has to sample on."""
        return self._reference.boundary

    @property
    def tokens(self) -> tuple[SamplingToken, ...]:
        """Every token that there ever was, this execution's last."""
        return (*self._outdated, *(work.token for work in self._reference.works))

    def issue(self, completions: int = 1, *, epochs: int = 0) -> None:
        tail = self._reference.tail
        after = SamplingBoundary(
            tail.epoch + epochs, tail.remaining_completions - completions, 1_000 - tail.remaining_completions
        )
        self._reference.works.append(Issued(self._ledger.issue(after, completions), after))
        self.compare()

    def settle(self, token: SamplingToken, index: int = 0) -> None:
        """One completion, which has to be new exactly where the reference says so; an outdated one never is."""
        told, expected = self._ledger.settle(token, index), self._reference.settle(token, index)
        need(told is expected, "INV-11", f"settling completion {index} of {token} is {told}, and not {expected}")
        self.compare()

    def compare(self) -> None:
        """INV-11: the boundary is the end of what is wholly settled, at any moment."""
        found, wanted = self._ledger.boundary, self._reference.boundary
        need(found == wanted, "INV-11", f"the boundary is {found}; wholly settled is everything up to {wanted}")
        found_out, wanted_out = self._ledger.outstanding, self._reference.outstanding
        need(found_out == wanted_out, "INV-11", f"{found_out} are outstanding, and not {wanted_out}")


# --- histories ----------------------------------------------------------------------------------------------


def samples(disk: SimulatedDisk) -> None:
    """Work out of order and in part, saved in the background, killed, and sampled on by the next writer."""
    run = Run(disk, "a", config=config())
    sampler = run.begin_sampling()
    for completions, epochs in ((1, 0), (2, 0), (1, 1)):
        sampler.issue(completions, epochs=epochs)
    first, second, third = sampler.tokens
    sampler.settle(third)
    sampler.settle(first)
    run.train()
    run.save()
    sampler.settle(second)  # behind the opening of the save, which carries none of it
    run.tick()
    sampler.settle(second, 1)
    run.finish()
    sampler.issue()
    run.train()
    run.save()
    sampler.settle(sampler.tokens[-1])
    run.tick()
    run.process.kill()
    after = Run(disk, "b", config=config(save_async=False))
    outdated = sampler.tokens
    sampler = after.begin_sampling(outdated=outdated)
    for token in outdated:
        sampler.settle(token)
    for _ in range(2):
        sampler.issue()
    sampler.settle(sampler.tokens[-1])
    after.train()
    after.save()
    sampler.settle(sampler.tokens[-2])
    after.train()
    after.save()
    after.close()


def samples_for_long(disk: SimulatedDisk) -> None:
    """So much that the log rotates, with records held back over saves and barriers."""
    run = Run(disk, "a", config=config(save_async=False))
    sampler = run.begin_sampling()
    for step in range(1, 4):
        for _ in range(6):
            sampler.issue(2)
        for token in sampler.tokens[-2:-9:-2]:
            sampler.settle(token)
            sampler.settle(token, 1)
        run.train()
        if step != 2:
            run.save()
        for token in sampler.tokens:
            sampler.settle(token, 1)


# --- checks -------------------------------------------------------------------------------------------------


def what_a_save_carries_is_what_was_settled_when_it_was_opened() -> None:
    """No crash in it at all: everything is settled while the save is written, and the save carries none of that."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config())
    sampler = run.begin_sampling()
    for completions in (1, 2, 1):
        sampler.issue(completions)
    first, second, third = sampler.tokens
    for token in (third, first, second):
        sampler.settle(token)
    run.train()
    run.save()
    carried = sampler.boundary
    for _ in range(3):
        sampler.settle(second, 1)
        run.tick()
    run.finish()
    need(carried == SamplingBoundary(1, 999, 0), "INV-11", f"{carried} is the end of what was settled")
    need(sampler.boundary == SamplingBoundary(1, 996, 3), "INV-11", f"{sampler.boundary} is where everything ends")
    found = Run(disk.killed(), "b", config=config()).journal.resumption.sampling
    need(found == carried, "INV-11", f"{found} was restored, and the save was opened at {carried}")


def a_barrier_takes_along_what_was_held_back() -> None:
    """What is synced behind it is never forgotten, whatever a power loss takes."""
    disk = SimulatedDisk()
    run = Run(disk, "a", config=config())
    sampler = run.begin_sampling()
    sampler.issue()
    sampler.settle(sampler.tokens[0])
    lead = run.journal._lead
    assert lead is not None
    lead._driver.barrier()
    for image in disk.crash_images():
        found = look(image)[run.attempt].state.sampling.boundary
        need(found == point_of(sampler.boundary), "INV-11", f"{found} is left of {sampler.boundary}")


def every_crash_of_sampling_is_survived() -> None:
    """From the first publishing on: each image is resumed at what its checkpoint was offered, and goes on."""
    disk = SimulatedDisk()
    samples(disk)
    Explorer(renames=("separate",), losses=(), goes_on=False).every_crash(disk, start=publishing(disk, 1) - 12)


def every_crash_of_much_sampling_is_survived() -> None:
    disk = SimulatedDisk()
    with small_segments():
        samples_for_long(disk)
        Explorer(renames=("separate",), losses=()).every_crash(disk, start=publishing(disk, 1) - 12)
