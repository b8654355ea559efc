"""Journal: what a trainer embeds.

    with Journal.open(config, trainer=trainer) as journal:
        for step in journal.steps(until=1000):
            train_one_step()

Under a launcher of several processes every rank runs these same lines, and every rank makes the same calls in the
same order. Rank 0 owns the journal and does the work of a call (`leading.py`); the others perform its orders until it
returns, and get what it returns, or raise what it raises. A failure of an asynchronous save surfaces at the next
call, once.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self, TypeVar

from milepost.engines.ambient import Ambient, SystemAmbient
from milepost.engines.buckets.remote import OpenRemote
from milepost.engines.buckets.remote import remotes as opened_by
from milepost.engines.crew import Arrival, Crew
from milepost.engines.crew.member import Member
from milepost.engines.disks import Disk
from milepost.engines.slots import Slot, ThreadSlot
from milepost.engines.termination import TerminationWatch
from milepost.engines.trainers import Trainer
from milepost.journal.boundaries import Validate, Verdict
from milepost.journal.config import Config
from milepost.journal.joining import Away, crew_of, require_roles
from milepost.journal.leading import Leading
from milepost.journal.log.entries import Entry
from milepost.journal.sampling.recorded import RecordedLedger
from milepost.journal.saves import KeepFn, LoopState
from milepost.journal.starting import Facts, Start, start
from milepost.transitions.errors import MilepostError, Refused
from milepost.transitions.machine import State
from milepost.transitions.values import Outcome, Reason

log = logging.getLogger("milepost")

_GRACE_S = 0.5
"""How long a failing body waits to see whether another rank is gone: torch may have noticed that first."""

T = TypeVar("T")


class Journal:
    """One run, of which this process is a member. Made by `open`; not shared between threads."""

    def __init__(
        self,
        *,
        config: Config,
        crew: Crew,
        member: Member,
        watch: TerminationWatch,
        lead: Leading | None,
        facts: Facts,
    ) -> None:
        self.config = config
        self.resumption = facts.resumption
        self.run_ts = facts.run_ts
        self.run_dir = facts.run_dir
        self.execution_id = facts.execution_id
        self._loop_state = facts.loop_state
        self._crew = crew
        self._member = member
        self._watch = watch
        self._lead = lead
        self._skipped = False
        self._closed = False

    @classmethod
    def open(
        cls,
        config: Config,
        *,
        trainer: Trainer | None = None,
        roles: Mapping[str, Trainer | Away] | None = None,
        loop_state: LoopState | None = None,
        keep_fn: KeepFn | None = None,
        disk: Disk | None = None,
        ambient: Ambient | None = None,
        crew: Callable[[Member], Crew] | None = None,
        slot: Slot | None = None,
        watch: TerminationWatch | None = None,
        remotes: OpenRemote | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Find or mint the run attempt, become its one writer, recover, and restore `trainer` on every rank.

        Where torch.distributed is initialised, every rank of its world opens together. Instead of one trainer there
        may be several `roles`, saved as one at each boundary; a rank gives those that live in it, and a role in
        another process is given by its adapter. `loop_state` are JSON scalars that are recorded with each boundary of
        several roles (or what gives them), and come back from `committed_loop_state`.

        `keep_fn` chooses the checkpoints that keep their optimizer state, in the place of `keep_optim_last`: it is
        given the directories that are there, oldest first. A plan that makes artifacts is a `UserWarning`.

        The keywords behind it are for tests and unusual homes: by default a local disk below
        `config.run.output_root`, object stores by boto3, the system's clock, the processes of this world and a writer
        thread. Raises `Busy`, `NotResumable`, `Corrupt`, `Unavailable`, and `Misconfigured`, the same on every rank.
        """
        ambient = ambient or SystemAmbient()
        trainers, away = require_roles(config, trainer=trainer, roles=roles, loop_state=loop_state)
        remotes = remotes or opened_by(ambient)
        member = Member(trainers, disk=disk, remotes=remotes)
        watch = watch or TerminationWatch(
            grace_s=config.emergency_grace_s, environ=environ, now=lambda: ambient.now().timestamp()
        )
        with ExitStack() as undo:
            undo.callback(watch.close)
            joined = crew(member) if crew is not None else crew_of(config, member, away=away, environ=environ)
            if joined.index == 0:
                for text in config.warnings():
                    warnings.warn(text, UserWarning, stacklevel=2)
            begun: list[Start] = []

            def work(arrivals: tuple[Arrival, ...]) -> Facts:
                begun.append(
                    start(
                        config,
                        arrivals=arrivals,
                        crew=joined,
                        disk=disk,
                        ambient=ambient,
                        slot=slot or ThreadSlot(),
                        keep_fn=keep_fn,
                        loop_state=loop_state or {},
                        remotes=remotes,
                    )
                )
                return begun[0].facts

            try:
                facts = joined.call(Arrival(call="open", said=config.by_key()), work)
            except BaseException as failure:
                if begun:
                    begun[0].lead.close_after(failure)
                joined.leave(failure)
                raise
            undo.pop_all()
        lead = begun[0].lead if begun else None
        for note in watch.limits if lead is not None else ():
            log.info("%s", note)
        return cls(config=config, crew=joined, member=member, watch=watch, lead=lead, facts=facts)

    # --- the loop ---------------------------------------------------------------------------------------

    def steps(self, *, until: int, validate: Validate | None = None) -> Iterator[int]:
        """The numbers of the steps to run, up to and including `until`; the boundary of each runs behind its body.

        One step is one optimizer attempt: applied when the body ends, or skipped where it called `skip`. Ends early
        when the run is told to stop, on every rank behind the same step. Leaving a body with `break` takes its step
        back: nothing is saved of it.

        With `validate`, the evaluation that the resumed checkpoint still waits for comes first, then the pass before
        training where that is configured; a loop without a step to run makes its final validation all the same. It is
        called on every rank.
        """
        validating = validate is not None
        step = self._call(
            "steps",
            lambda lead: lead.begin(until=until, validating=validating),
            validate=validate,
            until=until,
            validating=validating,
        )
        while step is not None:
            yield step
            step = self._advance(step, until=until, validate=validate)

    def _advance(self, step: int, *, until: int, validate: Validate | None) -> int | None:
        skipped, self._skipped = self._skipped, False
        validating = validate is not None
        return self._call(
            "step",
            lambda lead: lead.advance(step, until=until, validating=validating),
            validate=validate,
            step=step,
            skipped=skipped,
            until=until,
            validating=validating,
        )

    def boundary(self, step: int, *, validate: Validate | None = None, final: bool = False) -> Verdict:
        """What is due after `step`: an emergency save and the order to stop, or saves and validation in their order.

        `final` says that no step follows: then a validation is due by `validation.at_end`, and the normal-final save
        is made with it. The order of saves and evaluation is that of `milepost.transitions.planning`.
        """
        validating = validate is not None
        return self._call(
            "boundary",
            lambda lead: lead.boundary(step, validating=validating, final=final),
            validate=validate,
            step=step,
            final=final,
            validating=validating,
        )

    def settle_validation(self, validate: Validate | None) -> None:
        """Evaluate what the resumed checkpoint waits for, before anything is trained; `steps` does so by itself.

        `Refused` without `validate` where there is something to evaluate.
        """
        validating = validate is not None
        self._call(
            "settle_validation",
            lambda lead: lead.settle_validation(validating=validating),
            validate=validate,
            validating=validating,
        )

    def skip(self, why: str) -> None:
        """Say that this step's update was not finite and was thrown away: the optimizer did not step.

        Every rank has to say so of the same step: a step that some of them skipped is `Refused` at its boundary.
        """
        self._skipped = True
        if self._lead is not None:
            self._lead.skip(why)

    def updated(self, role: str, *, applied: int = 0, skipped: int = 0) -> None:
        """Say that the optimizer of a role made `applied` updates, or that `skipped` of them were thrown away.

        Each role has counters of its own: during a warm-up of the critic the policy's stands still. They are saved
        with the role, committed by the boundary, and checked by a resume. Rank 0 records it; the others may call it.
        """
        if self._lead is not None:
            self._lead.updated(role, applied=applied, skipped=skipped)

    def report(self, **metrics: float) -> None:
        """Note numbers of the step that is being run; they show in the progress line and in the timeline.

        Rank 0 records them; on the others this does nothing.
        """
        if self._lead is not None:
            self._lead.report(metrics)

    def should_stop(self) -> bool:
        """Whether the run was told to stop, on any rank. `boundary` is what saves and records it."""
        return self._call("should_stop", lambda lead: lead.should_stop())

    # --- saving -----------------------------------------------------------------------------------------

    def save(self, step: int, *, reason: Reason | str = Reason.REQUESTED) -> None:
        """Save `checkpoint_components` after `step`, once: what is published of the step already is left as it is.

        Joins the save before it. With `save_async` a cadence or a requested save returns as soon as its snapshot is
        taken; every other one returns when it is published and durable. An emergency saves everything. `Refused`
        inside a step, behind the newest published step or beside an artifact of other components; `Unavailable` when
        it could not be written, on whichever rank: what was published before is untouched.
        """
        reason = Reason(reason)
        self._call("save", lambda lead: lead.save(step, reason=reason), step=step, reason=reason.value)

    def finalize(self) -> None:
        """Join the save in flight; raise what it ran into."""
        self._call("finalize", lambda lead: lead.finalize())

    def protect(self, *steps: int) -> None:
        """Keep the checkpoints of these steps from retention while this journal is open: somebody reads them.

        Rank 0 records it; on the others this does nothing.
        """
        if self._lead is not None:
            self._lead.protect(steps)

    # --- looking ----------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The folded, frozen state after the newest record. On rank 0; elsewhere it is `Refused`."""
        return self._leading("state").state

    @property
    def sampling(self) -> RecordedLedger:
        """The replay ledger of this execution: `begin`, `issue`, `settle`, `boundary`, `outstanding`. On rank 0.

        What it records rides on the next entry, and each full save carries its boundary. It may be used from any
        thread.
        """
        return self._leading("sampling").sampling

    def history(self) -> Iterator[tuple[Entry, State]]:
        """Every entry so far with the state after it, folded again from nothing. On rank 0."""
        return self._leading("history").history()

    def committed_loop_state(self) -> Mapping[str, object] | None:
        """The loop state that the boundary this start resumed from had recorded, as it was given; None without one.

        It is for the loop to compare with what it is configured to do now.
        """
        return None if self._loop_state is None else dict(self._loop_state)

    # --- leaving ----------------------------------------------------------------------------------------

    def close(self, *, outcome: Outcome = Outcome.COMPLETED, detail: str = "") -> None:
        """Join the writer, record the end, make it durable, give the run back. Closing twice is harmless."""
        if not self._closed:
            self._end("close", lambda lead: lead.close(outcome=outcome, detail=detail))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if value is not None:
            self._close_after(value)
        elif not self._closed:
            self._end("leave", lambda lead: lead.leave())

    def _end(self, name: str, work: Callable[[Leading], None]) -> None:
        """The last call: whatever comes of it, this member is done."""
        try:
            self._call(name, work)
        except BaseException as failure:
            self._close_after(failure)
            raise
        self._closed = True
        self._crew.leave(None)
        self._watch.close()

    def _close_after(self, failure: BaseException) -> None:
        """An exception left the body: the others are told, what is in flight is finished, the exception stays."""
        if self._closed:
            return
        self._closed = True
        try:
            if not isinstance(failure, MilepostError) and (lost := self._crew.lost(within_s=_GRACE_S)):
                failure.add_note(lost)
            self._crew.leave(failure)
            if self._lead is not None:
                self._lead.close_after(failure)
        finally:
            self._watch.close()

    # --- how a call is made -----------------------------------------------------------------------------

    def _call(
        self, name: str, work: Callable[[Leading], T], *, validate: Validate | None = None, **arguments: object
    ) -> T:
        """One call of the facade on every rank; rank 0 does the work of it."""
        if self._closed:
            raise Refused(f"{name}: this journal is closed; open the run again to go on")
        self._member.evaluation = validate

        def leading(arrivals: tuple[Arrival, ...]) -> T:
            lead = self._leading(name)
            lead.hear(arrivals)
            return work(lead)

        arrival = Arrival(call=name, arguments=tuple(arguments.items()), told=self._watch.observed())
        return self._crew.call(arrival, leading)

    def _leading(self, what: str) -> Leading:
        if self._lead is None:
            raise Refused(f"{what}: rank 0 owns the journal, and this is rank {self._crew.index}; ask there")
        return self._lead
