"""The life of a run: epochs, one writer, how it ended.

    stage      record           next       promise
    UNOPENED   RunOpened        OPEN       this writer owns the run from this entry on
    OPEN       RunOpened        OPEN       the writer before died or was overtaken; its epoch is over
    OPEN       RunResumed       OPEN       what the epoch continues from is decided, once
    OPEN       RunEnded         ENDED      nothing is outstanding
    ENDED      RunOpened        OPEN       the run is continued
    OPEN       StoreProbed      OPEN       the store of this run was seen to keep what its writers rely on
    any        SegmentOpened    the same   a log segment begins; it says where each earlier one ends

An epoch begins with `RunOpened` and belongs to one writer.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve, field, frozen

from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.tables import Stage, Table, follow
from milepost.transitions.values import (
    Clocks,
    LoopValue,
    Outcome,
    PassedOver,
    Promised,
    ResumeKind,
    RoleClocks,
    SamplingPoint,
    SaveId,
)

# --- records -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class ClosedSegment:
    """A segment that its successor's header closes: what is valid in it, and what was left behind it.

    `length` and `left` are bytes; `seq` and `sum` are those of its last valid entry (0 and "" when it has none).
    """

    number: int
    length: int
    seq: int
    sum: str
    left: int


@frozen(kw_only=True)
class SegmentOpened:
    """The first record of a log segment: every earlier segment that was still open ends where this says."""

    KIND: ClassVar[str] = "segment-opened"
    VERSION: ClassVar[int] = 1
    number: int
    closes: tuple[ClosedSegment, ...]


@frozen(kw_only=True)
class RunOpened:
    """A writer owns the run from here on, and everything that recovery rests on was made durable before."""

    KIND: ClassVar[str] = "run-opened"
    VERSION: ClassVar[int] = 1
    epoch: int
    execution_id: str
    run_ts: str
    nonce: str
    host: str
    pid: int
    milepost: str
    world_size: int


@frozen(kw_only=True)
class StoreProbed:
    """The bucket that the run lives in was tried, and was seen to keep each of these promises."""

    KIND: ClassVar[str] = "store-probed"
    VERSION: ClassVar[int] = 1
    store: str
    promises: tuple[Promised, ...]


@frozen(kw_only=True)
class RunResumed:
    """The epoch continues from here; every other candidate is listed with the reason it was passed over (INV-17)."""

    KIND: ClassVar[str] = "run-resumed"
    VERSION: ClassVar[int] = 1
    resume: ResumeKind
    step: int
    source: str
    save: SaveId | None
    clocks: Clocks
    passed_over: tuple[PassedOver, ...]
    notes: tuple[str, ...]


@frozen(kw_only=True)
class RunEnded:
    """The writer closed the run itself: no save is open and nothing more will be recorded in this epoch."""

    KIND: ClassVar[str] = "run-ended"
    VERSION: ClassVar[int] = 1
    outcome: Outcome
    step: int
    detail: str


# --- commands ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class OpenRun:
    """Begin an epoch. The identity of the writer is passed in; the epoch follows from the state."""

    segment: int
    closes: tuple[ClosedSegment, ...]
    execution_id: str
    run_ts: str
    nonce: str
    host: str
    pid: int
    milepost: str
    world_size: int


@frozen(kw_only=True)
class RotateSegment:
    """Go on in the next segment."""

    segment: int
    closes: tuple[ClosedSegment, ...]


@frozen(kw_only=True)
class ReportProbe:
    """Report what the store of the run was seen to keep; one that does not keep everything is never opened."""

    store: str
    promises: tuple[Promised, ...]


@frozen(kw_only=True)
class AdoptResume:
    """Report what was restored, from where, and why nothing else was.

    `roles` are the roles of the run with the clocks that each goes on with, empty in a run of one; `loop_state` is
    what the boundary that was resumed from had recorded of its loop, `sampling` the point in the checkpoint.
    """

    resume: ResumeKind
    step: int
    source: str
    save: SaveId | None
    clocks: Clocks
    passed_over: tuple[PassedOver, ...]
    notes: tuple[str, ...] = ()
    roles: tuple[RoleClocks, ...] = ()
    loop_state: tuple[LoopValue, ...] | None = None
    sampling: SamplingPoint | None = None


@frozen(kw_only=True)
class EndRun:
    """Close the run; refused while a save is open."""

    outcome: Outcome
    step: int
    detail: str = ""


# --- state -------------------------------------------------------------------------------------


class RunStage(Stage):
    UNOPENED = "unopened"
    OPEN = "open"
    ENDED = "ended"


@frozen(kw_only=True)
class Run:
    """The run's part of the state. `opened` is the epoch's writer; `resumed` is None until its resume is decided.

    `probed` is what was seen of the bucket that the run lives in; None on a disk.
    """

    stage: RunStage = RunStage.UNOPENED
    epoch: int = 0
    run_ts: str = ""
    segment: int = 0
    opened: RunOpened | None = None
    probed: StoreProbed | None = None
    resumed: RunResumed | None = None
    ended: RunEnded | None = field(default=None)


TABLE: Table[RunStage] = {
    (RunStage.UNOPENED, RunOpened): RunStage.OPEN,
    (RunStage.OPEN, RunOpened): RunStage.OPEN,
    (RunStage.OPEN, StoreProbed): RunStage.OPEN,
    (RunStage.OPEN, RunResumed): RunStage.OPEN,
    (RunStage.OPEN, RunEnded): RunStage.ENDED,
    (RunStage.ENDED, RunOpened): RunStage.OPEN,
    (RunStage.UNOPENED, SegmentOpened): RunStage.UNOPENED,
    (RunStage.OPEN, SegmentOpened): RunStage.OPEN,
    (RunStage.ENDED, SegmentOpened): RunStage.ENDED,
}


def on_segment(run: Run, record: SegmentOpened) -> Run:
    if record.number <= run.segment:
        raise IllegalTransition(f"segment {record.number} opened after segment {run.segment}")
    return evolve(run, stage=follow(TABLE, run.stage, record, of="the run"), segment=record.number)


def on_opened(run: Run, record: RunOpened) -> Run:
    stage = follow(TABLE, run.stage, record, of="the run")
    if record.epoch != run.epoch + 1:
        raise IllegalTransition(f"epoch {record.epoch} opened after epoch {run.epoch}; epochs grow by one")
    if run.run_ts and record.run_ts != run.run_ts:
        raise IllegalTransition(f"run {record.run_ts} opened in the journal of run {run.run_ts}")
    return evolve(
        run,
        stage=stage,
        epoch=record.epoch,
        run_ts=record.run_ts,
        opened=record,
        probed=None,
        resumed=None,
        ended=None,
    )


def on_probed(run: Run, record: StoreProbed) -> Run:
    return evolve(run, stage=follow(TABLE, run.stage, record, of="the run"), probed=record)


def on_resumed(run: Run, record: RunResumed) -> Run:
    stage = follow(TABLE, run.stage, record, of="the run")
    if run.resumed is not None:
        raise IllegalTransition(f"epoch {run.epoch} decided its resume twice")
    return evolve(run, stage=stage, resumed=record)


def on_ended(run: Run, record: RunEnded) -> Run:
    return evolve(run, stage=follow(TABLE, run.stage, record, of="the run"), ended=record)


# --- decisions ---------------------------------------------------------------------------------


def open_run(run: Run, command: OpenRun) -> tuple[SegmentOpened | RunOpened, ...]:
    return (
        SegmentOpened(number=command.segment, closes=command.closes),
        RunOpened(
            epoch=run.epoch + 1,
            execution_id=command.execution_id,
            run_ts=command.run_ts,
            nonce=command.nonce,
            host=command.host,
            pid=command.pid,
            milepost=command.milepost,
            world_size=command.world_size,
        ),
    )


def rotate(run: Run, command: RotateSegment) -> tuple[SegmentOpened, ...]:
    return (SegmentOpened(number=command.segment, closes=command.closes),)


def report_probe(run: Run, command: ReportProbe) -> tuple[StoreProbed, ...]:
    if run.stage is not RunStage.OPEN:
        raise Refused(f"a store is probed by the writer that opened the run; the run is {run.stage.value}")
    return (StoreProbed(store=command.store, promises=command.promises),)


def adopt(run: Run, command: AdoptResume) -> tuple[RunResumed, ...]:
    if run.stage is not RunStage.OPEN or run.resumed is not None:
        raise Refused(f"a resume is decided once, when an epoch opens; epoch {run.epoch} is {run.stage.value}")
    return (
        RunResumed(
            resume=command.resume,
            step=command.step,
            source=command.source,
            save=command.save,
            clocks=command.clocks,
            passed_over=command.passed_over,
            notes=command.notes,
        ),
    )


def end(run: Run, command: EndRun, *, open_saves: tuple[SaveId, ...]) -> tuple[RunEnded, ...]:
    require_open(run, "end the run")
    if open_saves:
        raise Refused(f"the run cannot end while save {open_saves[0]} is open; join it first")
    return (RunEnded(outcome=command.outcome, step=command.step, detail=command.detail),)


def require_open(run: Run, what: str) -> RunResumed:
    """The epoch's resume; `Refused` where the run is not open or has not decided what it continues from."""
    if run.stage is not RunStage.OPEN:
        raise Refused(f"cannot {what}: the run is {run.stage.value}; open it again to go on")
    if run.resumed is None:
        raise Refused(f"cannot {what}: epoch {run.epoch} has not decided what it continues from")
    return run.resumed
