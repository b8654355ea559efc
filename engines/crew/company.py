"""The leader's side of a crew: who has which role, and the orders that a save or a resume is made of.

    enlist    who has which role; the first member that has it leads the role
    restore   everybody, from one checkpoint; what they restored has to agree
    capture   everybody takes references; ranks plan together what they write together; every role's leader lays out
              what it writes alone, and gets the whole of what is spread
    store     first what is written together, while the loop waits; then what leaders write alone

A payload is one save's snapshot over all members. Nothing of it is on disk before `store`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field

from milepost.engines.checkpoints import GivenUp
from milepost.engines.checkpoints.parts import component_of, split_name, tree_of
from milepost.engines.crew import Crew
from milepost.engines.crew.failures import Lost
from milepost.engines.crew.orders import (
    Assign,
    Capture,
    Captured,
    Enlist,
    Enlisted,
    Evaluate,
    Fill,
    Gather,
    Place,
    Release,
    Restore,
    RestoredRoles,
    Stage,
    StagedFiles,
    Stored,
    StoreFiles,
    StoreShards,
    Warm,
)
from milepost.transitions.errors import Corrupt, Misconfigured
from milepost.transitions.values import Component, FileDigest, Plan, SaveId, StoredComponent

if TYPE_CHECKING:  # who only prunes does without tensors
    from milepost.engines.checkpoints import Checkpoints
    from milepost.engines.formats.dcp import Together
    from milepost.engines.trainers.protocols import Restored


@define
class Company:
    """The members of a run by role, in order of their ranks. Made by `enlist`."""

    crew: Crew
    seats: Mapping[str, tuple[int, ...]]
    _planned: dict[str, tuple[tuple[Any, ...], Together]] = field(factory=dict)

    @property
    def roles(self) -> tuple[str, ...]:
        """The names of the roles, sorted; empty where the run has one trainer without a name."""
        return tuple(name for name in sorted(self.seats) if name)

    @property
    def leaders(self) -> dict[int, tuple[str, ...]]:
        """The members that lead a role, each with the roles it leads."""
        led: dict[int, tuple[str, ...]] = {}
        for role, members in self.seats.items():
            led[members[0]] = (*led.get(members[0], ()), role)
        return led

    def members_of(self, full: str) -> tuple[int, ...]:
        """The members that have a part of this tree, in order of their ranks."""
        return self.seats[split_name(full)[0]]

    @property
    def everyone(self) -> range:
        return range(self.crew.size)

    def assign(self, place: Place, *, form: str, timeout_s: float) -> None:
        """Tell everybody where the run lies and who has which role."""
        self.crew.each(
            {
                index: Assign(
                    place=place,
                    seats=self.seats,
                    you=index,
                    form=form,
                    distributed=self.crew.distributed,
                    timeout_s=timeout_s,
                )
                for index in self.everyone
            }
        )

    def evaluate(self, step: int) -> None:
        """Have everybody evaluate the model after this step."""
        self.crew.each(dict.fromkeys(self.everyone, Evaluate(step=step)))

    def restore(self, order: Restore) -> dict[str, Restored]:
        """Have everybody restore, and say by role what was; `Corrupt` where ranks of a role restored other clocks."""
        answers = self.crew.each(dict.fromkeys(self.everyone, order))
        restored = {}
        for role, members in self.seats.items():
            ranks = [_expect(answers[index], RestoredRoles).roles[role] for index in members]
            restored[role] = _agreed(role, ranks)
        return restored

    def capture(self, order: Capture, *, background: bool) -> Payload:
        """A payload of everybody's state, laid out for the background where that is asked for and proven."""
        payload = Payload(company=self, plan=order.components)
        try:
            payload.take(order)
            payload.stage(background=background)
            payload.gather()
        except BaseException:
            payload.release()
            raise
        return payload

    def warm(self, order: Capture) -> None:
        """Have those who can be told ready their memory for such snapshots, where nothing is written together."""
        self.crew.each({index: Warm(capture=order) for index in self.leaders if self.crew.hears(index)})

    def together(self, full: str, plans: tuple[Any, ...]) -> Together:
        """What the ranks of a role write together, planned once for as long as their own plans stay the same."""
        from milepost.engines.formats.dcp import plan_together

        known = self._planned.get(full)
        if known is None or known[0] != plans:
            known = (plans, plan_together(plans))
            self._planned[full] = known
        return known[1]


def enlist(crew: Crew) -> Company:
    """Ask everybody for their roles. `Misconfigured` where a member has none, or names and no name are mixed."""
    answers = crew.each(dict.fromkeys(range(crew.size), Enlist()))
    seats: dict[str, tuple[int, ...]] = {}
    for index in range(crew.size):
        for role in _expect(answers[index], Enlisted).roles:
            seats[role] = (*seats.get(role, ()), index)
    if not seats or ("" in seats and len(seats) > 1):
        found = ", ".join(repr(role) for role in seats) or "none"
        raise Misconfigured((f"roles: expected one trainer on every rank, or names for all of them; found {found}",))
    return Company(crew=crew, seats=seats)


@define
class Payload:
    """One save's snapshot. `unproven` says why it must not be written in the background; empty: it may be."""

    company: Company
    plan: Plan
    room: int = 0
    unproven: str = ""
    _captured: dict[int, Captured] = field(factory=dict)
    _together: dict[str, Together] = field(factory=dict)
    _gathers: tuple[str, ...] = ()
    _alone: tuple[str, ...] = ()
    _files: dict[str, list[FileDigest]] = field(factory=dict)
    _begun: bool = False
    _unfilled: bool = False

    @property
    def together(self) -> bool:
        """Whether something has still to be done by every rank at once, while the loop waits."""
        return bool(self._together)

    @property
    def folders(self) -> tuple[str, ...]:
        """The directories that the files of the payload lie in, each behind the one above it."""
        folders = set(self.company.roles)
        folders.update(self._together)
        return tuple(sorted(folders))

    def take(self, order: Capture) -> None:
        """Everybody's references, and the plans of what is written together."""
        crew = self.company.crew
        answers = crew.each(dict.fromkeys(self.company.everyone, order))
        self._captured = {index: _expect(answer, Captured) for index, answer in answers.items()}
        names = {full for captured in self._captured.values() for full in captured.plans}
        for full in sorted(names):
            members = self.company.members_of(full)
            plans = tuple(self._captured[index].plans[full] for index in members)
            self._together[full] = self.company.together(full, plans)
        self._gathers = tuple(sorted({full for one in self._captured.values() for full in one.gathers}))
        self.room = sum(captured.room for captured in self._captured.values())

    def stage(self, *, background: bool) -> None:
        """What leaders write alone, laid out; in the background only what is proven and whose writer can hear."""
        company = self.company
        deaf = [company.crew.called(index) for index in company.leaders if not company.crew.hears(index)]
        if background and deaf:
            self.unproven = f"{' and '.join(deaf)} cannot write beside a loop of its own"
        staged = self._stage(background=background and not self.unproven)
        self.unproven = self.unproven or next((one.unproven for one in staged if one.unproven), "")
        if background and self.unproven:
            staged = self._stage(background=False)
        self._unfilled = background and not self.unproven
        self._alone = tuple(name for one in staged for name in one.names)
        self.room += sum(one.room for one in staged)

    def _stage(self, *, background: bool) -> list[StagedFiles]:
        company = self.company
        orders = {
            leader: Stage(
                locals={
                    role: tuple(self._captured[index].locals[role] for index in company.seats[role]) for role in roles
                },
                background=background,
            )
            for leader, roles in company.leaders.items()
        }
        return [_expect(answer, StagedFiles) for answer in company.crew.each(orders).values()]

    def gather(self) -> None:
        """Have the leaders hold the whole of what they write of spread trees."""
        if self._gathers:
            self.company.crew.each(dict.fromkeys(self.company.everyone, Gather(names=self._gathers)))

    def fill(self) -> None:
        """Copy what is staged, once: when this returns, nothing that happens to live state reaches the snapshot."""
        if self._unfilled:
            self._unfilled = False
            self.company.crew.each(dict.fromkeys(self.company.leaders, Fill()))

    def release(self) -> None:
        """Forget the snapshot, by those who can be told now; the others do so before their next one.

        Who is lost took the snapshot along, and is no failure of this: what broke the save has been raised already.
        """
        crew = self.company.crew
        own, *others = (index for index in self.company.everyone if crew.hears(index))
        crew.each({own: Release()})
        with suppress(Lost):
            crew.each({index: Release() for index in others})

    # --- writing it -------------------------------------------------------------------------------------

    def store(self, save: SaveId, checkpoints: Checkpoints) -> tuple[StoredComponent, ...]:
        """Write the next part: what everybody writes together, or else what leaders write; what it completes.

        A part that completes nothing is followed by the next one: a report of nothing would leave this very part due.
        """
        before = self._complete()
        if not self._begun:
            checkpoints.stage(save, plan=self.plan, size=self.room, folders=self.folders)
            self._begun = True
        if self._together:
            self._store_together(save, checkpoints)
        else:
            self._store_alone(save)
        done = [component for component in self._complete() if component not in before]
        if not done and not self.stored:
            self.fill()  # the loop that would do so later is waiting here
            return self.store(save, checkpoints)
        return tuple(StoredComponent(component=one, files=self._of(one)) for one in done)

    def _store_alone(self, save: SaveId) -> None:
        answers = self.company.crew.each(dict.fromkeys(self.company.leaders, StoreFiles(save=save)))
        self._note(file for answer in answers.values() for file in _expect(answer, Stored).files)
        self._require(self._alone)
        self._alone = ()

    @property
    def stored(self) -> bool:
        """Whether all of it is on disk."""
        return self._begun and not self.together and not self._alone

    def _store_together(self, save: SaveId, checkpoints: Checkpoints) -> None:
        from milepost.engines.formats.dcp import metadata_file

        company = self.company
        plans: dict[int, dict[str, Any]] = {index: {} for index in company.everyone}
        for full, together in self._together.items():
            for index, plan in zip(company.members_of(full), together.plans, strict=True):
                plans[index][full] = plan
        orders = {index: StoreShards(save=save, plans=mine) for index, mine in plans.items()}
        answers = {index: _expect(answer, Stored) for index, answer in company.crew.each(orders).items()}
        self._note(file for answer in answers.values() for file in answer.files)
        for full, together in self._together.items():
            members = company.members_of(full)
            data = metadata_file(together, [answers[index].entries[full] for index in members])
            self._note((checkpoints.put_bytes(save, f"{full}/.metadata", data, plan=self.plan),))
        self._require(tuple(self._together))
        self._together = {}

    def _note(self, files: Any) -> None:
        for file in files:
            self._files.setdefault(tree_of(file.path), []).append(file)

    def _require(self, names: tuple[str, ...]) -> None:
        """What was planned is what was written: a checkpoint that lacks a tree must never be sealed (INV-01)."""
        if missing := [name for name in names if name not in self._files]:
            raise GivenUp("incomplete", f"nothing was written of {', '.join(missing)}")

    def _complete(self) -> tuple[Component, ...]:
        """The components of the plan of which nothing is missing."""
        missing = {component_of(full) for full in (*self._together, *self._alone)}
        return tuple(one for one in self.plan if self._begun and one not in missing)

    def _of(self, component: Component) -> tuple[FileDigest, ...]:
        return tuple(file for full, files in self._files.items() if component_of(full) is component for file in files)


def _agreed(role: str, ranks: list[Restored]) -> Restored:
    """What the ranks of a role restored, as one; notes of single ranks name them."""
    first = ranks[0]
    for rank, other in enumerate(ranks):
        if other.clocks != first.clocks:
            raise Corrupt(
                f"{role or 'the trainer'}: rank {rank} restored {other.clocks}, rank 0 {first.clocks}: they do not "
                "see the same checkpoint; is the run's folder one file system on every machine?"
            )
    exact = tuple(part for part in first.exact if all(part in other.exact for other in ranks))
    notes = dict.fromkeys(first.notes)
    for rank, other in enumerate(ranks):
        for note in other.notes:
            if not all(note in one.notes for one in ranks):
                notes.pop(note, None)
                notes[f"rank {rank}: {note}"] = None
    return evolve(first, exact=exact, notes=tuple(notes))


def _expect(answer: object, kind: type[Any]) -> Any:
    assert isinstance(answer, kind), f"expected {kind.__name__}, found {type(answer).__name__}"
    return answer
