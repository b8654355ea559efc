"""Saves of one journal: captured, opened, written beside the loop or while it waits, and pruned behind.

1. One save at a time: the next joins the one before it, and a failure surfaces at the next call, once.
2. A save goes beside the loop only where its snapshot is proven to share nothing with live state; otherwise the loop
   waits, and the journal says why.
3. What every rank writes together is written while the loop waits; only what is left of the save goes beside it.
4. The archive and then retention ride on the write of what is announced. What cannot be archived or deleted is no
   failure of the save; nothing goes that is not in the archive, where there is one (INV-08).
5. An archive that succeeded says that the store answers: those that failed before are tried behind it. Of an
   emergency save the archive is only declared: the run has no time for it, and a later one makes up for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from attrs import evolve

from milepost.engines.checkpoints.marker import loop_values
from milepost.engines.crew.company import Company, Payload
from milepost.engines.crew.orders import Capture
from milepost.engines.slots import Slot
from milepost.journal.config import Config
from milepost.journal.opening import Opened
from milepost.journal.progress import Progress
from milepost.transitions.archiving import DeclareArchive, RetryArchives
from milepost.transitions.errors import Unavailable
from milepost.transitions.machine import State
from milepost.transitions.retention import ApplyRetention, kept
from milepost.transitions.saving import OpenSave, Save, SaveOpened
from milepost.transitions.values import FULL, Mode, Plan, Reason, SaveId

KeepFn = Callable[[Sequence[str]], Collection[str]]
"""Given the directories of the checkpoints that are there, oldest first: those that keep their optimizer state."""

LoopState = Mapping[str, object] | Callable[[], Mapping[str, object]]
"""What the loop of several roles has recorded with each boundary: JSON scalars by name, or what gives them."""


class Saves:
    """What `Journal` saves with. Not shared between threads; the slot's thread runs the lanes."""

    def __init__(
        self,
        *,
        config: Config,
        opened: Opened,
        company: Company,
        slot: Slot,
        progress: Progress,
        keep_fn: KeepFn | None,
        loop_state: LoopState,
    ) -> None:
        self._config = config
        self._opened = opened
        self._driver = opened.driver
        self._company = company
        self._slot = slot
        self._progress = progress
        self._keep_fn = keep_fn
        self._loop_state = loop_state
        self._in_use: set[int] = set()

    @property
    def _state(self) -> State:
        return self._driver.state

    def save(self, step: int, *, plan: Plan, reason: Reason, pending: bool = False) -> None:
        """Save `plan` of the state after `step`. Published when this returns, or under way in the slot."""
        self.finalize()
        direct = self._opened.place.direct  # its commit is synchronous, by the contract
        wanted = self._config.save_async and not pending and reason in (Reason.CADENCE, Reason.REQUESTED)
        background = wanted and not direct
        said = self._loop_state() if callable(self._loop_state) else self._loop_state
        asked = OpenSave(
            step=step, plan=plan, reason=reason, mode=Mode.SYNCHRONOUS, pending=pending, loop_state=loop_values(said)
        )
        self._driver.check(asked)
        payload = self._company.capture(self._capture(plan), background=background)
        mode, why = _mode(payload, background)
        if wanted and direct:
            why = "a checkpoint in a bucket is published before the call returns"
        try:
            opened = self._driver.submit(evolve(asked, mode=mode, why=why))
        except BaseException:
            payload.release()
            raise
        assert isinstance(opened[0], SaveOpened)
        save = opened[0].save
        self._opened.engines.held[save] = payload
        lane = self._lane(save, plan, reason)
        if mode is Mode.SYNCHRONOUS:
            deque(lane, maxlen=0)
            return
        try:
            while payload.together and save in self._opened.engines.held:
                next(lane)
            if payload.together:  # it failed while the loop waited, so the loop hears of it now
                deque(lane, maxlen=0)
            self._slot.start(lane)
            payload.fill()  # the writer follows close behind
        except BaseException:
            payload.release()  # so that it does not wait for what will not come
            raise

    def finalize(self) -> None:
        """Join the save in flight; raise what it ran into."""
        self._slot.join()

    def surface(self) -> None:
        """Raise now what a finished asynchronous save ran into."""
        if not self._slot.busy:
            self._slot.join()

    def warm(self) -> None:
        """Have the arena faulted in beside the first steps. A state that cannot be saved is refused here and now."""
        beside = self._config.save_async and not self._opened.place.direct
        if beside and self._config.save_every > 0 and not self._slot.busy:
            self._company.warm(self._capture(self._config.checkpoint_components))

    def protect(self, steps: Collection[int]) -> None:
        """Retention leaves these checkpoints alone from now on."""
        self._in_use.update(steps)

    @property
    def destination(self) -> str:
        """Where checkpoints are archived; empty where they are not."""
        archiver = self._opened.engines.archiver
        return archiver.destination if archiver is not None else ""

    def make_up(self) -> None:
        """Declare the archive of the newest checkpoint where its writer died first; it is made with the next one."""
        newest = self._state.saving.newest
        if newest is None or newest == self._state.validation.pending or self._opened.is_archived(newest):
            return
        self._declare(self._state.saving.sealed[newest.step])

    def try_archives(self) -> None:
        """Try what could not be archived once more, here and now."""
        self._driver.submit(RetryArchives(destination=self.destination))
        self._driver.drain()

    def retain(self) -> None:
        """Apply retention, here and now."""
        deque(self._retention_lane(), maxlen=0)

    def _capture(self, plan: Plan) -> Capture:
        """The order that takes references to everybody's state, of each role at its own clocks."""
        return Capture(
            components=plan,
            clocks=self._state.boundary.clocks or {"": self._state.updates.clocks},
            cursor_resume=self._config.data.cursor_resume,
            validation=self._config.validation_identity,
        )

    def _lane(self, save: SaveId, plan: Plan, reason: Reason) -> Iterator[object]:
        """The loop for one save, then what its caller has to know, then its archive, then retention."""
        started = self._progress.save_started(save)
        yield from self._driver.lane()
        done = self._state.saving.holds(save.step, plan)
        if done is None or done.id != save:
            raise self._given_up(save)
        self._opened.keep_fold(always=False)
        self._progress.save_done(done, started, pending=self._state.validation.pending == save)
        if self._state.validation.pending == save:
            return
        if reason is not Reason.EMERGENCY:
            yield from self._archive_lane(done)
        if plan == FULL:
            yield from self._retention_lane()
        if reason is Reason.EMERGENCY:
            self._declare(done)  # behind everything that is performed

    def _declare(self, save: Save) -> bool:
        """Whether the save is to be archived now."""
        if not self.destination:
            return False
        wanted = DeclareArchive(step=save.id.step, plan=save.plan, destination=self.destination)
        return bool(self._driver.submit(wanted))

    def _archive_lane(self, save: Save) -> Iterator[object]:
        if not self._declare(save):
            return
        yield from self._driver.lane()
        self._progress.archived(self._state.archiving, save.id)
        if save.id in self._state.archiving.marked and self._driver.submit(
            RetryArchives(destination=self.destination)
        ):
            yield from self._driver.lane()

    def _retention_lane(self) -> Iterator[object]:
        keep_optim, keep_model = self._config.resolved_keep_optim_last, self._config.keep_model_last
        if keep_optim == 0 and keep_model == 0 and self._keep_fn is None:
            return
        chosen = self._chosen() if self._keep_fn is not None else None
        policy = ApplyRetention(
            keep_optim_last=keep_optim,
            keep_model_last=keep_model,
            keep_optim=chosen,
            archived=self._opened.archived,
            in_use=tuple(sorted(self._in_use)),
        )
        if self._driver.submit(policy):
            yield from self._driver.lane()

    def _chosen(self) -> tuple[str, ...]:
        assert self._keep_fn is not None
        names = [save.id.directory for save in kept(self._state.retention, saving=self._state.saving)]
        return tuple(sorted(set(self._keep_fn(names))))

    def _given_up(self, save: SaveId) -> Unavailable:
        given_up, latest = self._state.saving.given_up, self._state.pointer.at
        assert given_up is not None and given_up.save == save, f"save {save} is neither sealed nor given up"
        return Unavailable(
            f"save {save} was given up ({given_up.code}: {given_up.detail}). Training can go on: latest is "
            f"{latest.directory if latest else 'nothing yet'}, and the next save is a new attempt"
        )


def _mode(payload: Payload, background: bool) -> tuple[Mode, str]:
    """Whether the loop waits for the write, and why."""
    if not background:
        return Mode.SYNCHRONOUS, "it was asked to wait"
    if payload.unproven:
        return Mode.SYNCHRONOUS, f"the snapshot is not proven to be apart from live state: {payload.unproven}"
    return Mode.ASYNCHRONOUS, ""
