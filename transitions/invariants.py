"""Numbered predicates over a state, and over a state and its successor.

Each returns what is wrong, or None. The invariants that speak of bytes on a disk are checked by `verify` and by the
crash machine; `spec/invariants.md` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from milepost.transitions.machine import State
from milepost.transitions.pointing import PointerStage
from milepost.transitions.run import RunStage
from milepost.transitions.sampling import SamplingStage
from milepost.transitions.saving import SaveStage
from milepost.transitions.updates import UpdateStage
from milepost.transitions.validation import ValidationStage
from milepost.transitions.values import FULL


@frozen
class Violation:
    """An invariant that does not hold."""

    number: str
    what: str


def sealed_is_whole(state: State) -> str | None:
    """INV-01 in the state: what is published has a manifest and every component of its plan."""
    for save in (*state.saving.sealed.values(), *state.saving.artifacts.values()):
        if save.manifest is None or {part.component for part in save.components} != set(save.plan):
            return f"save {save.id} is sealed without a manifest or without a component"
    return None


def pointer_follows(state: State) -> str | None:
    """INV-03: latest names a sealed full checkpoint; a pointer that is AT is at the newest."""
    saving, pointer = state.saving, state.pointer
    if pointer.at is not None:
        save = saving.sealed.get(pointer.at.step)
        if save is None or save.id != pointer.at or save.plan != FULL:
            return f"the pointer is at {pointer.at}, which is no sealed full checkpoint"
    if pointer.stage is PointerStage.AT and pointer.at != saving.newest:
        return f"the pointer is at {pointer.at}; the newest is {saving.newest}"
    if pointer.target != saving.newest:
        return f"the pointer belongs at {pointer.target}; the newest is {saving.newest}"
    return None


def newest_is_newest(state: State) -> str | None:
    """INV-03: the newest checkpoint is that of the highest step, and so is the newest artifact."""
    saving = state.saving
    for called, newest, published in (
        ("checkpoint", saving.newest, saving.sealed),
        ("artifact", saving.newest_artifact, saving.artifacts),
    ):
        highest = max(published, default=None)
        if highest != (None if newest is None else newest.step):
            return f"the newest {called} is {newest}, the highest step is {highest}"
    return None


def one_in_flight(state: State) -> str | None:
    """INV-04: at most one save is open, and it belongs to this epoch or is unsettled."""
    saves = state.saving.open
    if len(saves) > 1:
        return f"{len(saves)} saves are open"
    for save in saves:
        if save.stage is SaveStage.WRITING and save.id.epoch != state.run.epoch:
            return f"save {save.id} is being written in epoch {state.run.epoch}"
    return None


def closed_when_ended(state: State) -> str | None:
    """INV-14 in the state: a run that ended left no open save."""
    if state.run.stage is RunStage.ENDED and state.saving.open:
        return f"the run ended with save {state.saving.open[0].id} open"
    return None


def kinds_apart(state: State) -> str | None:
    """INV-05: a checkpoint is full and an artifact partial; retention knows checkpoints only."""
    saving, retention = state.saving, state.retention
    for save in (*saving.sealed.values(), *saving.artifacts.values()):
        if (save.plan == FULL) is not (saving.sealed.get(save.id.step) is save):
            return f"save {save.id} of {len(save.plan)} components is on the wrong side"
    for pruned in (*(one.save for one in retention.open), *retention.released.values(), *retention.removed.values()):
        if pruned.step not in saving.sealed or saving.sealed[pruned.step].id != pruned:
            return f"retention took part of {pruned}, which is no checkpoint"
    return None


def all_roles(state: State) -> str | None:
    """INV-15: a boundary under way is that of the open save, and each of its roles is stored once at most.

    A save is opened one record before its boundary is, in the same entry: it has stored nothing by then.
    """
    joined = state.boundary.open
    if joined is None:
        writing = [save for save in state.saving.open if save.stage is SaveStage.WRITING and save.components]
        alone = bool(writing) and bool(state.boundary.roles)
        return f"save {writing[0].id} is of no role, and the run has several" if alone else None
    if not any(save.id == joined.save and save.plan == FULL for save in state.saving.open):
        return f"the boundary of {joined.save} is under way, and no full save of that id is open"
    names = [one.role for one in joined.roles]
    if (
        len(set(names)) < len(names)
        or len(set(joined.stored)) < len(joined.stored)
        or set(joined.stored) - set(names)
    ):
        return f"the boundary of {joined.save} joins {names} and stored {joined.stored}"
    return None


def pending_is_private(state: State) -> str | None:
    """INV-07: what waits for its validation is the open save or a sealed checkpoint, and no part of it is pruned."""
    intended, pending = state.validation.intended, state.validation.pending
    if intended is not None and not any(save.id == intended and save.plan == FULL for save in state.saving.open):
        return f"the validation of {intended} is intended, and no full save of that id is open"
    if pending is None:
        return None
    if pending.step not in state.saving.sealed or state.saving.sealed[pending.step].id != pending:
        return f"the validation of {pending} is pending, and it is no checkpoint"
    if (lost := state.retention.lost(pending.step)) is not None:
        return f"the {lost.value} of {pending} was pruned while its validation is pending"
    return None


def archived_is_announced(state: State) -> str | None:
    """INV-07: only what is published is archived, and what is pending only as the last part of its publication."""
    archiving, validation = state.archiving, state.validation
    for save in (*(one.save for one in archiving.open), *archiving.marked):
        published = (state.saving.sealed.get(save.step), state.saving.artifacts.get(save.step))
        if not any(one is not None and one.id == save for one in published):
            return f"save {save} is archived, and it is not published"
    if validation.stage is not ValidationStage.PUBLISHING and validation.pending in archiving.marked:
        return f"{validation.pending} was archived while its validation is {validation.stage.value}"
    return None


def owed_before_announced(before: State, after: State) -> str | None:
    """INV-07: a publication that has to be archived is completed behind its archive."""
    was, now = before.validation.completed, after.validation.completed
    if was != now and after.archiving.owes(now):
        return f"the validation of {now} was completed before its archive was"
    return None


def last_copy(state: State) -> str | None:
    """INV-08: the newest checkpoint is whole."""
    newest = state.saving.newest
    if newest is not None and (lost := state.retention.lost(newest.step)) is not None:
        return f"the {lost.value} of {newest}, the newest checkpoint, was pruned"
    return None


def attempts_add_up(state: State) -> str | None:
    """INV-12: attempts = applied + skipped; the row of skips is part of their total. Of the run and of each role."""
    for clocks in (state.updates.clocks, *(one.clocks for one in state.boundary.roles)):
        if clocks.attempt_id != clocks.optimizer_step + clocks.skipped_total:
            return f"{clocks.attempt_id} attempts, {clocks.optimizer_step} applied + {clocks.skipped_total} skipped"
        if not 0 <= clocks.skipped_consecutive <= clocks.skipped_total:
            return f"{clocks.skipped_consecutive} skips in a row of {clocks.skipped_total} in all"
    return None


def resume_explained(state: State) -> str | None:
    """INV-17 in the state: no work is recorded before the epoch's resume is."""
    if state.run.stage is RunStage.OPEN and state.run.resumed is None:
        if state.updates.stage is UpdateStage.ACCUMULATING:
            return "an update was opened before the resume was decided"
        if any(save.stage is SaveStage.WRITING for save in state.saving.open):
            return "a save was opened before the resume was decided"
    return None


def settled_prefix(state: State) -> str | None:
    """INV-11: the boundary stands where the first work begins that is not settled, and an open save carries one."""
    sampling = state.sampling
    boundary, head = sampling.boundary, sampling.outstanding.get(sampling.head)
    if (sampling.stage is SamplingStage.BEGUN) is (boundary is None):
        return f"sampling is {sampling.stage.value}, and its boundary is {boundary}"
    if head is None and (sampling.outstanding or sampling.head != sampling.issued + 1):
        return f"work {sampling.head} is the head of {len(sampling.outstanding)} outstanding, and is none of them"
    if head is None and boundary != sampling.tail:
        return f"everything is settled up to {sampling.tail}, and the boundary is {boundary}"
    if head is not None and (boundary is None or boundary.remaining != head.after.remaining + head.completions):
        begins = head.after.remaining + head.completions
        return f"the boundary is {boundary}, and work {sampling.head} begins with {begins} remaining"
    carried = sampling.carried
    if carried is not None and not any(save.id == carried.save and save.plan == FULL for save in state.saving.open):
        return f"a boundary is carried by {carried.save}, and no full save of that id is open"
    return None


def published_stays(before: State, after: State) -> str | None:
    """INV-02: a sealed save never changes and never disappears."""
    if before.saving.sealed is after.saving.sealed:
        return None
    for step, save in before.saving.sealed.items():
        if after.saving.sealed.get(step) != save:
            return f"save {save.id} was sealed and changed"
    return None


def artifact_stays(before: State, after: State) -> str | None:
    """INV-16: an artifact is written once."""
    if before.saving.artifacts is after.saving.artifacts:
        return None
    for step, save in before.saving.artifacts.items():
        if after.saving.artifacts.get(step) != save:
            return f"artifact {save.id} was sealed and changed"
    return None


def nothing_in_use_is_pruned(before: State, after: State) -> str | None:
    """INV-08: no prune is opened of what this writer resumed from."""
    resumed = after.run.resumed.save if after.run.resumed is not None else None
    if resumed is None or before.retention is after.retention:
        return None
    lost, now = before.retention.lost(resumed.step), after.retention.lost(resumed.step)
    if now is not lost:
        return f"the {now.value if now else 'part'} of {resumed}, which this run was resumed from, was pruned"
    return None


def published_once(before: State, after: State) -> str | None:
    """INV-07: a validation is completed for the checkpoint that was pending, and for no other."""
    was, now = before.validation.completed, after.validation.completed
    if was != now and (now is None or now != before.validation.pending):
        return f"the validation of {now} was completed; pending was {before.validation.pending}"
    return None


def pointer_never_back(before: State, after: State) -> str | None:
    """INV-03: the pointer never moves back."""
    was, now = before.pointer.at, after.pointer.at
    if was is not None and (now is None or now.step < was.step):
        return f"the pointer moved from {was} to {now}"
    return None


def quiet_save(before: State, after: State) -> str | None:
    """INV-12: no save is opened inside an accumulation window."""
    opened = not before.saving.open and bool(after.saving.open)
    if opened and after.updates.stage is UpdateStage.ACCUMULATING:
        return f"save {after.saving.open[0].id} was opened inside an accumulation window"
    return None


def boundary_never_back(before: State, after: State) -> str | None:
    """INV-11: within an execution the boundary only moves on, what an open save carries stays, and numbers grow."""
    was, now = before.sampling, after.sampling
    if was is now:
        return None
    if now.issued < was.issued or now.head < was.head:
        return f"work {was.issued} was issued and the head was {was.head}; now they are {now.issued} and {now.head}"
    held, holds = was.carried, now.carried
    if held is not None and holds is not None and held.save == holds.save and held != holds:
        return f"save {holds.save} carries {holds.boundary}; it was opened at {held.boundary}"
    if was.boundary is None or before.run.epoch != after.run.epoch:
        return None
    if now.boundary is None or (now.boundary.epoch, -now.boundary.remaining) < (
        was.boundary.epoch,
        -was.boundary.remaining,
    ):
        return f"the boundary moved back from {was.boundary} to {now.boundary}"
    return None


ON_STATE: tuple[tuple[str, Callable[[State], str | None]], ...] = (
    ("INV-03", pointer_follows),
    ("INV-04", one_in_flight),
    ("INV-07", pending_is_private),
    ("INV-08", last_copy),
    ("INV-11", settled_prefix),
    ("INV-12", attempts_add_up),
    ("INV-14", closed_when_ended),
    ("INV-15", all_roles),
    ("INV-17", resume_explained),
)

ON_SEALED: tuple[tuple[str, Callable[[State], str | None]], ...] = (
    ("INV-01", sealed_is_whole),
    ("INV-03", newest_is_newest),
    ("INV-05", kinds_apart),
    ("INV-07", archived_is_announced),
)
"""Those that walk everything that is published: a step that published and pruned nothing cannot break them."""

ON_STEP: tuple[tuple[str, Callable[[State, State], str | None]], ...] = (
    ("INV-02", published_stays),
    ("INV-03", pointer_never_back),
    ("INV-07", published_once),
    ("INV-07", owed_before_announced),
    ("INV-08", nothing_in_use_is_pruned),
    ("INV-11", boundary_never_back),
    ("INV-12", quiet_save),
    ("INV-16", artifact_stays),
)


def _same_published(before: State, after: State) -> bool:
    """Whether a step moved nothing that the predicates over every published save rest on."""
    return (
        before.saving.sealed is after.saving.sealed
        and before.saving.artifacts is after.saving.artifacts
        and before.retention is after.retention
        and before.archiving is after.archiving
    )


def violations(before: State, after: State) -> tuple[Violation, ...]:
    """Everything that is wrong with `after`, reached from `before`. A state by itself is given twice."""
    found = []
    if before is after or not _same_published(before, after):
        found += [(number, holds(after)) for number, holds in ON_SEALED]
    found += [(number, holds(after)) for number, holds in ON_STATE]
    found += [(number, holds(before, after)) for number, holds in ON_STEP]
    return tuple(Violation(number, what) for number, what in found if what is not None)
