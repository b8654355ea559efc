"""The replay ledger: which sampled work is settled, and the boundary behind which nothing is lost by sampling again.

    stage     record             next      promise
    UNBEGUN   SamplingRestored   BEGUN     the execution samples on from this boundary
    BEGUN     WorkIssued         BEGUN     work was handed out; the boundary stays in front of it
    BEGUN     WorkSettled        BEGUN     one completion of it needs no replay; the boundary moves over what is whole
    any       SaveOpened         the same  a full save carries the boundary of this moment, whatever is settled later
    any       SaveSealed         the same  it is published with that boundary, or with none where nothing was begun
    any       SaveAbandoned      the same  it carries nothing any more
    any       RunOpened          UNBEGUN   what was outstanding is generated again; its tokens count no more

1. The boundary moves over the contiguous settled head and never passes work that is not wholly settled (INV-11).
2. Work lowers the remaining budget by exactly its completions, also where its epoch is a later one. An epoch never
   falls.
3. Work is settled by its updates, by a discard and by a filter. Receipt and dispatch settle nothing.
4. A settlement of unknown, old or retired work is none, and what its index is does not matter then. A duplicate is
   none either. An index out of the range of known work is refused.
5. What is wholly settled is forgotten but for the stretch that it is part of, and at the head for good. So the room
   grows with the outstanding work and with nothing else, and both verbs cost the same however much of it there is.
6. Numbers grow through all executions of a run. A token names its execution: another one's is old.

A run that issues nothing has no part in this room.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, Protocol

from attrs import evolve, field, frozen
from rpds import HashTrieMap

from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.run import Run, RunOpened, require_open
from milepost.transitions.saving import SaveAbandoned, SaveOpened, SaveSealed
from milepost.transitions.tables import Stage, Table, follow
from milepost.transitions.values import FULL, SamplingPoint, SaveId

BEGINNING = "null"
"""The sampler state of who begins with nothing."""

LARGEST = (1 << 63) - 1
"""The largest number that a boundary in a journal, and a piece of work, may have."""

_NOTHING: HashTrieMap[int, bool] = HashTrieMap()

# --- records -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class WorkIssued:
    """Work of this many completions was handed out; once it is settled, sampling can go on from `after`."""

    KIND: ClassVar[str] = "work-issued"
    VERSION: ClassVar[int] = 1
    number: int
    completions: int
    after: SamplingPoint


@frozen(kw_only=True)
class WorkSettled:
    """This completion of the work was trained on, discarded or filtered: no replay has to make it again."""

    KIND: ClassVar[str] = "work-settled"
    VERSION: ClassVar[int] = 1
    number: int
    index: int


@frozen(kw_only=True)
class SamplingRestored:
    """The execution samples on from here: from what its checkpoint carried, or from where its trainer begins."""

    KIND: ClassVar[str] = "sampling-restored"
    VERSION: ClassVar[int] = 1
    boundary: SamplingPoint


SamplingRecord = WorkIssued | WorkSettled | SamplingRestored

# --- commands ----------------------------------------------------------------------------------


@frozen
class SamplingToken:
    """Names work of one execution. It may be sent elsewhere and come back in another object that is equal."""

    execution_id: str
    number: int
    completions: int


@frozen(kw_only=True)
class BeginSampling:
    """Begin at this boundary; a no-op in an execution that has one."""

    initial: SamplingPoint


@frozen(kw_only=True)
class IssueWork:
    """Hand out work whose last completion leads to `after`. `limit` bounds what is outstanding; 0: nothing does."""

    after: SamplingPoint
    completions: int
    limit: int = 0


@frozen(kw_only=True)
class SettleWork:
    """Settle one completion of the work that the token names."""

    token: SamplingToken
    index: int


# --- state -------------------------------------------------------------------------------------


class SamplingStage(Stage):
    UNBEGUN = "unbegun"
    BEGUN = "begun"


@frozen(kw_only=True)
class Stretch:
    """Works that are wholly settled behind one that is not, by their first and last number: `after` is their end."""

    first: int
    last: int
    after: SamplingPoint


@frozen(kw_only=True)
class Carried:
    """The boundary that an open save carries: that of the moment in which it was opened."""

    save: SaveId
    boundary: SamplingPoint


@frozen(kw_only=True)
class Sampling:
    """The safe boundary, and what was issued behind it.

    `issued` is the newest number and `head` the first that is not settled (`issued` + 1 where all are); `tail` is
    where the next work begins. Every number from `head` on is `outstanding` or lies in one of the `stretches`, each
    of which is there under its first and its last number. `partly` has the indices that are settled of a group.
    """

    stage: SamplingStage = SamplingStage.UNBEGUN
    boundary: SamplingPoint | None = None
    tail: SamplingPoint | None = None
    issued: int = 0
    head: int = 1
    outstanding: HashTrieMap[int, WorkIssued] = field(factory=HashTrieMap)
    partly: HashTrieMap[int, HashTrieMap[int, bool]] = field(factory=HashTrieMap)
    stretches: HashTrieMap[int, Stretch] = field(factory=HashTrieMap)
    carried: Carried | None = None


class Line(Protocol):
    """What a decision looks at: of the state, or of what a live writer has that will be the state."""

    @property
    def boundary(self) -> SamplingPoint | None: ...
    @property
    def tail(self) -> SamplingPoint | None: ...
    @property
    def issued(self) -> int: ...
    @property
    def head(self) -> int: ...
    @property
    def outstanding(self) -> Mapping[int, WorkIssued]: ...
    @property
    def partly(self) -> Mapping[int, Collection[int]]: ...


TABLE: Table[SamplingStage] = {
    (SamplingStage.UNBEGUN, SamplingRestored): SamplingStage.BEGUN,
    (SamplingStage.BEGUN, WorkIssued): SamplingStage.BEGUN,
    (SamplingStage.BEGUN, WorkSettled): SamplingStage.BEGUN,
    (SamplingStage.UNBEGUN, SaveOpened): SamplingStage.UNBEGUN,
    (SamplingStage.BEGUN, SaveOpened): SamplingStage.BEGUN,
    (SamplingStage.UNBEGUN, SaveSealed): SamplingStage.UNBEGUN,
    (SamplingStage.BEGUN, SaveSealed): SamplingStage.BEGUN,
    (SamplingStage.UNBEGUN, SaveAbandoned): SamplingStage.UNBEGUN,
    (SamplingStage.BEGUN, SaveAbandoned): SamplingStage.BEGUN,
    (SamplingStage.UNBEGUN, RunOpened): SamplingStage.UNBEGUN,
    (SamplingStage.BEGUN, RunOpened): SamplingStage.UNBEGUN,
}


def on_restored(sampling: Sampling, record: SamplingRestored) -> Sampling:
    stage = follow(TABLE, sampling.stage, record, of="sampling")
    boundary = record.boundary
    if boundary.epoch < 1 or boundary.remaining < 0:
        raise IllegalTransition(
            f"sampling goes on in epoch {boundary.epoch} with {boundary.remaining} completions: expected an epoch of "
            "at least 1 and a budget that is not negative"
        )
    return evolve(sampling, stage=stage, boundary=boundary, tail=boundary)


def on_issued(sampling: Sampling, record: WorkIssued) -> Sampling:
    stage = follow(TABLE, sampling.stage, record, of="sampling")
    number, after, tail = record.number, record.after, sampling.tail
    assert tail is not None, "sampling that has BEGUN has a boundary"
    if number != sampling.issued + 1:
        raise IllegalTransition(f"work {number} where work {sampling.issued + 1} comes next")
    if problem := _misfit(tail, after, completions=record.completions):
        raise IllegalTransition(f"work {number}: {problem}")
    return evolve(
        sampling, stage=stage, tail=after, issued=number, outstanding=sampling.outstanding.insert(number, record)
    )


def on_settled(sampling: Sampling, record: WorkSettled) -> Sampling:
    stage = follow(TABLE, sampling.stage, record, of="sampling")
    number, index = record.number, record.index
    work, settled = sampling.outstanding.get(number), sampling.partly.get(number, _NOTHING)
    if work is None or not 0 <= index < work.completions or index in settled:
        raise IllegalTransition(f"completion {index} of work {number} was settled, and it is not outstanding")
    if len(settled) + 1 < work.completions:
        return evolve(sampling, stage=stage, partly=sampling.partly.insert(number, settled.insert(index, True)))
    boundary, head, stretches = _moved(sampling, number, work.after)
    return evolve(
        sampling,
        stage=stage,
        boundary=boundary,
        head=head,
        outstanding=sampling.outstanding.remove(number),
        partly=sampling.partly.discard(number),
        stretches=stretches,
    )


def _moved(
    sampling: Sampling, number: int, after: SamplingPoint
) -> tuple[SamplingPoint | None, int, HashTrieMap[int, Stretch]]:
    """The boundary, the head and the stretches once this work is wholly settled (INV-11).

    At the head, the boundary moves over it and over the stretch behind it. Elsewhere it joins what is settled around.
    """
    stretches = sampling.stretches
    behind = stretches.get(number + 1)
    if number == sampling.head:
        if behind is None:
            return after, number + 1, stretches
        stretches = stretches.discard(behind.first).discard(behind.last)
        return behind.after, behind.last + 1, stretches
    front, first, last = stretches.get(number - 1), number, number
    if front is not None:
        first, stretches = front.first, stretches.discard(front.last)
    if behind is not None:
        last, after, stretches = behind.last, behind.after, stretches.discard(behind.first)
    joined = Stretch(first=first, last=last, after=after)
    stretches = stretches.insert(first, joined)
    return sampling.boundary, sampling.head, stretches if first == last else stretches.insert(last, joined)


def on_save_opened(sampling: Sampling, record: SaveOpened) -> Sampling:
    follow(TABLE, sampling.stage, record, of="sampling")
    if sampling.boundary is None or record.plan != FULL:  # an artifact is never resumed from
        return sampling
    return evolve(sampling, carried=Carried(save=record.save, boundary=sampling.boundary))


def on_save_settled(sampling: Sampling, record: SaveSealed | SaveAbandoned) -> Sampling:
    follow(TABLE, sampling.stage, record, of="sampling")
    return sampling if sampling.carried is None else evolve(sampling, carried=None)


def on_run_opened(sampling: Sampling, record: RunOpened) -> Sampling:
    stage = follow(TABLE, sampling.stage, record, of="sampling")
    return Sampling(stage=stage, issued=sampling.issued, head=sampling.issued + 1, carried=sampling.carried)


def _misfit(tail: SamplingPoint, after: SamplingPoint, *, completions: int) -> str:
    """Why no work of so many completions leads from one point to the other; an empty string where it does."""
    if completions < 1 or after.remaining < 0:
        return f"{completions} completions that leave {after.remaining}: expected at least one, and nothing negative"
    if after.epoch < tail.epoch:
        return f"its epoch is {after.epoch}, behind epoch {tail.epoch}: an epoch never falls"
    if tail.remaining - after.remaining != completions:
        return (
            f"{completions} completions lower the remaining budget from {tail.remaining} to "
            f"{tail.remaining - completions}, found {after.remaining}; the budget goes on through a change of epoch"
        )
    return ""


# --- decisions ---------------------------------------------------------------------------------


def begin(line: Line, command: BeginSampling, *, run: Run) -> tuple[SamplingRestored, ...]:
    """The record of where the execution begins; none where it has a boundary, and that one stays."""
    require_open(run, "begin sampling")
    return () if line.boundary is not None else (SamplingRestored(boundary=command.initial),)


def implied(line: Line, after: SamplingPoint, *, completions: int) -> tuple[SamplingRestored, ...]:
    """The record of the beginning that the first work of an execution implies; none where there is a boundary."""
    if line.boundary is not None:
        return ()
    remaining = after.remaining + _counted(completions)
    return (SamplingRestored(boundary=SamplingPoint(epoch=1, remaining=remaining, sampler_state=BEGINNING)),)


def issue(sampling: Sampling, command: IssueWork, *, run: Run) -> tuple[SamplingRestored | WorkIssued, ...]:
    """The record of work that is handed out, behind that of the beginning where it implies one."""
    require_open(run, "issue work")
    begun = implied(sampling, command.after, completions=command.completions)
    for record in begun:
        sampling = on_restored(sampling, record)
    return (*begun, issued(sampling, command.after, completions=command.completions, limit=command.limit))


def issued(line: Line, after: SamplingPoint, *, completions: int, limit: int) -> WorkIssued:
    """The record of work that follows what was issued last, or `Refused`."""
    tail = line.tail
    assert tail is not None, "what is issued follows a boundary"
    if problem := _misfit(tail, after, completions=_counted(completions)):
        raise Refused(f"this work does not follow what was issued last, and nothing was issued: {problem}")
    if 0 < limit <= len(line.outstanding):
        raise Refused(
            f"{len(line.outstanding)} pieces of work are outstanding, and at most {limit} may be: "
            f"{_stalling(line)} stalls the head. Settle it, or discard it by settling the rest of it"
        )
    return WorkIssued(number=line.issued + 1, completions=completions, after=after)


def settle(sampling: Sampling, command: SettleWork, *, run: Run) -> tuple[WorkSettled, ...]:
    """The record of a settlement that is new; none for work that is unknown, old or retired, and for a duplicate."""
    require_open(run, "settle work")
    assert run.opened is not None, "a run that is open has a writer"
    record = settled(sampling, command.token, command.index, execution_id=run.opened.execution_id)
    return () if record is None else (record,)


def settled(line: Line, token: SamplingToken, index: int, *, execution_id: str) -> WorkSettled | None:
    """The record of a settlement that is new in the execution of this id, or None."""
    number = token.number
    if token.execution_id != execution_id or type(number) is not int:
        return None
    work = line.outstanding.get(number)
    # Behind the head, what is not outstanding is settled and not retired: its token tells what its indices are.
    waits = work is None and line.head < number <= line.issued
    if not waits and (work is None or work.completions != token.completions):
        return None
    if type(index) is not int or not 0 <= index < token.completions:
        raise Refused(
            f"completion {index!r} of work {number}: expected an integer from 0 to {token.completions - 1}; nothing "
            "was settled"
        )
    if work is None or index in line.partly.get(number, ()):
        return None
    return WorkSettled(number=number, index=index)


def restore(boundary: SamplingPoint | None) -> tuple[SamplingRestored, ...]:
    """The record of what a checkpoint carried, for the entry of its resume; none where it carried nothing."""
    return () if boundary is None else (SamplingRestored(boundary=boundary),)


def _counted(completions: int) -> int:
    if type(completions) is not int or not 1 <= completions <= LARGEST:
        raise Refused(
            f"work of {completions!r} completions: expected an integer of at least 1, in 64 bits; nothing was issued"
        )
    return completions


def _stalling(line: Line) -> str:
    """The work at the head in words: what the boundary waits for."""
    head, settled = line.outstanding[line.head], line.partly.get(line.head, ())
    return f"work {line.head} with {len(settled)} of {head.completions} completions settled"
