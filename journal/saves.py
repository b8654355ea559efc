"""Saves of one journal: captured, opened, written beside the loop or while it waits, and pruned behind.

1. One save at a time: the next joins the one before it, and a failure surfaces at the next call, once.
2. A save goes beside the loop only where its snapshot is proven to share nothing with live state; otherwise the loop
   waits, and the journal says why.
3. Retention rides on the write of a checkpoint that is announced. What it cannot delete is no failure of the save.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

from attrs import evolve

from milepost.engines.formats import Proven, Stager, stream
from milepost.engines.perform import Held
from milepost.engines.slots import Slot
from milepost.engines.trainers import Snapshot, Trainer
from milepost.journal.config import Config
from milepost.journal.opening import Opened
from milepost.journal.progress import Progress
from milepost.transitions.errors import Unavailable
from milepost.transitions.machine import State
from milepost.transitions.retention import ApplyRetention, kept
from milepost.transitions.saving import OpenSave, SaveOpened
from milepost.transitions.values import FULL, Mode, Plan, Reason, SaveId

KeepFn = Callable[[Sequence[str]], Collection[str]]
"""Given the directories of the checkpoints that are there, oldest first: those that keep their optimizer state."""


class Saves:
    """What `Journal` saves with. Not shared between threads; the slot's thread runs the lanes."""

    def __init__(
        self,
        *,
        config: Config,
        opened: Opened,
        trainer: Trainer,
        slot: Slot,
        progress: Progress,
        keep_fn: KeepFn | None,
    ) -> None:
        self._config = config
        self._opened = opened
        self._driver = opened.driver
        self._trainer = trainer
        self._slot = slot
        self._progress = progress
        self._keep_fn = keep_fn
        self._stager = Stager()
        self._in_use: set[int] = set()

    @property
    def _state(self) -> State:
        return self._driver.state

    def save(self, step: int, *, plan: Plan, reason: Reason, pending: bool = False) -> None:
        """Save `plan` of the state after `step`. Published when this returns, or under way in the slot."""
        self.finalize()
        background = self._config.save_async and not pending and reason in (Reason.CADENCE, Reason.REQUESTED)
        asked = OpenSave(step=step, plan=plan, reason=reason, mode=Mode.SYNCHRONOUS, pending=pending)
        self._driver.check(asked)
        held, mode, why = self._snapshot(plan, background)
        try:
            opened = self._driver.submit(evolve(asked, mode=mode, why=why))
        except BaseException:
            held.release()
            raise
        assert isinstance(opened[0], SaveOpened)
        save = opened[0].save
        self._opened.engines.held[save] = held
        if mode is Mode.SYNCHRONOUS:
            deque(self._lane(save, plan), maxlen=0)
            return
        try:
            self._slot.start(self._lane(save, plan))
            held.fill()  # the writer follows close behind
        except BaseException:
            held.release()  # so that it does not wait for what will not come
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
        if self._config.save_async and self._config.save_every > 0 and not self._slot.busy:
            self._stager.prepare(self._capture(self._config.checkpoint_components).trees)

    def protect(self, steps: Collection[int]) -> None:
        """Retention leaves these checkpoints alone from now on."""
        self._in_use.update(steps)

    def retain(self) -> None:
        """Apply retention, here and now."""
        deque(self._retention_lane(), maxlen=0)

    def _snapshot(self, plan: Plan, background: bool) -> tuple[Held, Mode, str]:
        """The live state, copied into the arena where the loop may go on, else streamed while it waits."""
        snapshot = self._capture(plan)
        why = "it was asked to wait"
        if background:
            staged = self._stager.begin(snapshot.trees)
            if isinstance(staged.proof, Proven):
                held = Held(images=staged.images, fill=staged.fill, release=staged.release)
                return held, Mode.ASYNCHRONOUS, ""
            staged.release()
            why = f"the snapshot is not proven to be apart from live state: {staged.proof.reason}"
        return Held(images=stream(snapshot.trees), fill=_nothing, release=_nothing), Mode.SYNCHRONOUS, why

    def _capture(self, plan: Plan) -> Snapshot:
        return self._trainer.capture(
            plan,
            clocks=self._state.updates.clocks,
            cursor_resume=self._config.data.cursor_resume,
            validation=self._config.validation_identity,
        )

    def _lane(self, save: SaveId, plan: Plan) -> Iterator[object]:
        """The loop for one save, then what its caller has to know, then retention."""
        started = self._progress.save_started(save)
        yield from self._driver.lane()
        done = self._state.saving.holds(save.step, plan)
        if done is None or done.id != save:
            raise self._given_up(save)
        self._opened.keep_fold(always=False)
        self._progress.save_done(done, started, pending=self._state.validation.pending == save)
        if plan == FULL and self._state.validation.pending != save:
            yield from self._retention_lane()

    def _retention_lane(self) -> Iterator[object]:
        keep_optim, keep_model = self._config.resolved_keep_optim_last, self._config.keep_model_last
        if keep_optim == 0 and keep_model == 0 and self._keep_fn is None:
            return
        chosen = self._chosen() if self._keep_fn is not None else None
        policy = ApplyRetention(
            keep_optim_last=keep_optim,
            keep_model_last=keep_model,
            keep_optim=chosen,
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


def _nothing() -> None:
    """What there is to do for a snapshot that is read while the loop waits."""
