"""The boundary of several roles: each trains by its own clocks, and all of them are saved as one.

    stage     record           next      promise
    APART     BoundaryOpened   JOINED    the save of this id is of every role, each at these clocks
    JOINED    RoleStored       JOINED    everything of this role is durable in the save's private staging
    JOINED    SaveSealed       APART     every role was stored: they are visible together (INV-15)
    JOINED    SaveAbandoned    APART     none of them is visible
    any       RoleUpdated      the same  the optimizer of one role stepped, or threw its updates away
    any       RunOpened        the same  the epoch's roles are those of its resume; what is open is settled by a look
    APART     RolesResumed     APART     these are the roles, at these clocks; this is what the loop had said

A run of one role has no part in this room. `loop_state` is the loop's own: JSON scalars that are recorded and given
back as they are, and never looked at.

A marker on a checkpoint says which counters its roles committed. One that does not is from before it did, and then
the roles have to agree with each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from attrs import evolve, frozen

from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.run import AdoptResume, Run, RunOpened, require_open
from milepost.transitions.saving import ReportStored, SaveAbandoned, SaveOpened, SaveSealed
from milepost.transitions.tables import Stage, Table, follow
from milepost.transitions.values import FULL, Clocks, LoopValue, RoleClocks, SaveId

# --- records -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class BoundaryOpened:
    """The save is one of several roles: of all of these or of none, each at its own clocks."""

    KIND: ClassVar[str] = "boundary-opened"
    VERSION: ClassVar[int] = 1
    save: SaveId
    roles: tuple[RoleClocks, ...]
    loop_state: tuple[LoopValue, ...]


@frozen(kw_only=True)
class RoleStored:
    """Everything of this role that the save's plan names is durable in its private staging."""

    KIND: ClassVar[str] = "role-stored"
    VERSION: ClassVar[int] = 1
    save: SaveId
    role: str


@frozen(kw_only=True)
class RoleUpdated:
    """The role's optimizer made this many updates, or this many were not finite and were thrown away."""

    KIND: ClassVar[str] = "role-updated"
    VERSION: ClassVar[int] = 1
    role: str
    applied: int
    skipped: int


@frozen(kw_only=True)
class RolesResumed:
    """The epoch goes on with these roles, each at the clocks that were restored, or at zero."""

    KIND: ClassVar[str] = "roles-resumed"
    VERSION: ClassVar[int] = 1
    roles: tuple[RoleClocks, ...]
    loop_state: tuple[LoopValue, ...] | None


# --- commands ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class ReportRole:
    """The role's optimizer made `applied` updates, or `skipped` of them were thrown away: one of the two."""

    role: str
    applied: int = 0
    skipped: int = 0


# --- state -------------------------------------------------------------------------------------


class BoundaryStage(Stage):
    APART = "apart"
    JOINED = "joined"


@frozen(kw_only=True)
class Joined:
    """A save of several roles: their clocks when it was opened, and the ones that are stored."""

    save: SaveId
    roles: tuple[RoleClocks, ...]
    loop_state: tuple[LoopValue, ...]
    stored: tuple[str, ...] = ()


@frozen(kw_only=True)
class Boundary:
    """The epoch's roles at their present clocks, the save that joins them, and what the newest one had to say.

    `committed` is the loop state of the newest sealed boundary or of the one resumed from; None where there is none.
    """

    stage: BoundaryStage = BoundaryStage.APART
    roles: tuple[RoleClocks, ...] = ()
    open: Joined | None = None
    committed: tuple[LoopValue, ...] | None = None

    @property
    def clocks(self) -> dict[str, Clocks]:
        """The present clocks by role."""
        return {one.role: one.clocks for one in self.roles}


TABLE: Table[BoundaryStage] = {
    (BoundaryStage.APART, BoundaryOpened): BoundaryStage.JOINED,
    (BoundaryStage.JOINED, RoleStored): BoundaryStage.JOINED,
    (BoundaryStage.JOINED, SaveSealed): BoundaryStage.APART,
    (BoundaryStage.JOINED, SaveAbandoned): BoundaryStage.APART,
    (BoundaryStage.APART, RoleUpdated): BoundaryStage.APART,
    (BoundaryStage.JOINED, RoleUpdated): BoundaryStage.JOINED,
    (BoundaryStage.APART, RunOpened): BoundaryStage.APART,
    (BoundaryStage.JOINED, RunOpened): BoundaryStage.JOINED,
    (BoundaryStage.APART, RolesResumed): BoundaryStage.APART,
}
"""Saves without roles are another matter: a `SaveSealed` or `SaveAbandoned` of a boundary that is APART passes by."""


def on_boundary_opened(boundary: Boundary, record: BoundaryOpened) -> Boundary:
    stage = follow(TABLE, boundary.stage, record, of="the boundary")
    if record.roles != boundary.roles or not record.roles:
        raise IllegalTransition(f"save {record.save} joins {_named(record.roles)}; the roles are other ones")
    joined = Joined(save=record.save, roles=record.roles, loop_state=record.loop_state)
    return evolve(boundary, stage=stage, open=joined)


def on_role_stored(boundary: Boundary, record: RoleStored) -> Boundary:
    stage = follow(TABLE, boundary.stage, record, of="the boundary")
    joined = boundary.open
    assert joined is not None, "a boundary that is JOINED has its save"
    names = tuple(one.role for one in joined.roles)
    if record.save != joined.save or record.role not in names or record.role in joined.stored:
        raise IllegalTransition(
            f"save {record.save} stored {record.role!r} twice or as a stranger; save {joined.save} joins {names}"
        )
    return evolve(boundary, stage=stage, open=evolve(joined, stored=(*joined.stored, record.role)))


def on_save_sealed(boundary: Boundary, record: SaveSealed) -> Boundary:
    joined = boundary.open
    if joined is None:
        return boundary
    stage = follow(TABLE, boundary.stage, record, of="the boundary")
    if missing := [one.role for one in joined.roles if one.role not in joined.stored]:
        raise IllegalTransition(f"save {record.save} was sealed without {', '.join(missing)} (INV-15)")
    return evolve(boundary, stage=stage, open=None, committed=joined.loop_state)


def on_save_abandoned(boundary: Boundary, record: SaveAbandoned) -> Boundary:
    if boundary.open is None:
        return boundary
    return evolve(boundary, stage=follow(TABLE, boundary.stage, record, of="the boundary"), open=None)


def on_role_updated(boundary: Boundary, record: RoleUpdated) -> Boundary:
    stage = follow(TABLE, boundary.stage, record, of="the boundary")
    if record.role not in boundary.clocks:
        raise IllegalTransition(f"an update of {record.role!r}; the roles are {_named(boundary.roles)}")
    if min(record.applied, record.skipped) != 0 or max(record.applied, record.skipped) < 1:
        raise IllegalTransition(f"{record.applied} applied and {record.skipped} skipped updates of {record.role}")
    roles = tuple(_moved(one, record) if one.role == record.role else one for one in boundary.roles)
    return evolve(boundary, stage=stage, roles=roles)


def on_run_opened(boundary: Boundary, record: RunOpened) -> Boundary:
    return evolve(boundary, stage=follow(TABLE, boundary.stage, record, of="the boundary"), roles=())


def on_roles_resumed(boundary: Boundary, record: RolesResumed) -> Boundary:
    stage = follow(TABLE, boundary.stage, record, of="the boundary")
    if boundary.roles or len({one.role for one in record.roles}) < len(record.roles):
        raise IllegalTransition(f"the roles {_named(record.roles)} join {_named(boundary.roles)}: each is there once")
    return evolve(boundary, stage=stage, roles=record.roles, committed=record.loop_state)


def _moved(role: RoleClocks, record: RoleUpdated) -> RoleClocks:
    clocks = role.clocks
    moved = Clocks(
        attempt_id=clocks.attempt_id + record.applied + record.skipped,
        optimizer_step=clocks.optimizer_step + record.applied,
        skipped_total=clocks.skipped_total + record.skipped,
        skipped_consecutive=0 if record.applied else clocks.skipped_consecutive + record.skipped,
    )
    return evolve(role, clocks=moved)


def _named(roles: tuple[RoleClocks, ...]) -> str:
    return ", ".join(one.role for one in roles) or "none"


# --- decisions ---------------------------------------------------------------------------------


def join(boundary: Boundary, opened: SaveOpened, *, loop_state: tuple[LoopValue, ...]) -> tuple[BoundaryOpened, ...]:
    """The record that makes the save which is being opened one of every role; none in a run of one."""
    if not boundary.roles:
        if loop_state:
            raise Refused("a loop state is saved with the boundary of several roles, and this run has one")
        return ()
    if opened.plan != FULL:
        raise Refused(f"step {opened.save.step}: several roles are saved together and whole, not in parts (INV-15)")
    return (BoundaryOpened(save=opened.save, roles=boundary.roles, loop_state=loop_state),)


def stored(boundary: Boundary, command: ReportStored, *, whole: bool) -> tuple[RoleStored, ...]:
    """The records of a report of what is stored; with it every component is, where that makes the save `whole`.

    Every role is then stored as well, and none of them before: otherwise some of them could be sealed (INV-15).
    """
    joined = boundary.open
    expected = tuple(one.role for one in joined.roles) if joined is not None and whole else ()
    if sorted(command.roles) != sorted(expected):
        which, found = "the last" if whole else "some", ", ".join(command.roles) or "none"
        raise Refused(
            f"a report on save {command.save}: expected the roles {', '.join(expected) or 'none'} with {which} of "
            f"its components, found {found} (INV-15)"
        )
    return tuple(RoleStored(save=command.save, role=role) for role in command.roles)


def report_role(boundary: Boundary, command: ReportRole, *, run: Run) -> tuple[RoleUpdated, ...]:
    require_open(run, f"record an update of {command.role!r}")
    if command.role not in boundary.clocks:
        raise Refused(f"there is no role {command.role!r} in this run; its roles are {_named(boundary.roles)}")
    counts = (command.applied, command.skipped)
    if min(counts) != 0 or max(counts) < 1:
        raise Refused(
            f"an update of {command.role!r}: expected a number of applied updates or of skipped ones, at least one, "
            f"found {command.applied} and {command.skipped}"
        )
    return (RoleUpdated(role=command.role, applied=command.applied, skipped=command.skipped),)


def resume(boundary: Boundary, command: AdoptResume) -> tuple[RolesResumed, ...]:
    """The record of the roles that an epoch goes on with; none in a run of one."""
    if not command.roles:
        return ()
    if boundary.open is not None:
        raise Refused(f"cannot resume several roles while save {boundary.open.save} is unsettled; look at it first")
    if len({one.role for one in command.roles}) < len(command.roles):
        raise Refused(f"cannot resume the roles {_named(command.roles)}: one of them is there twice")
    return (RolesResumed(roles=command.roles, loop_state=command.loop_state),)


def disagreement(restored: tuple[RoleClocks, ...], *, counters: Mapping[str, int] | None) -> str:
    """Why restored roles are not what a marker committed, or an empty string.

    `counters` are the marker's optimizer steps by role; None for a marker from before it had them.
    """
    found = {one.role: one.clocks.optimizer_step for one in restored}
    told = ", ".join(f"{role} at optimizer step {step}" for role, step in found.items())
    if counters is None:
        agree = len(set(found.values())) <= 1
        return "" if agree else f"its marker has no counters, so the roles have to agree, and found are {told}"
    if found != dict(counters):
        committed = ", ".join(f"{role} at {step}" for role, step in counters.items())
        return f"its marker committed {committed}, and found are {told}"
    return ""
