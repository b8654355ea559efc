"""A small real world on the simulated disk: the real journal, a tiny trainer, and a note of everything promised.

1. Nothing of the product is replaced: facade, driver, log, checkpoints and formats are the shipped ones. Only the
   clock, the ids, the watch and the trainer's tensors are ours.
2. What the world outside was told is marked in the disk's trace, by watching the facade: a promise is made where a
   call returned, and carries the exact bytes that were promised.
3. Everything is determined by the history and the names of the processes, so that equal states are found equal.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

from milepost.engines.crew.member import Member
from milepost.engines.disks import Disk
from milepost.engines.simulated import Process, SimulatedDisk
from milepost.engines.termination import Termination, TerminationWatch
from milepost.journal import Config, Journal, SamplingBoundary, SamplingToken
from milepost.journal.saves import KeepFn
from milepost.transitions.emergency import EmergencyStage
from milepost.transitions.saving import Save
from milepost.transitions.values import FULL, Component, Plan, SaveId, union
from tests.crash.given import NamedAmbient, TinyTrainer, ToldWatch, Values
from tests.crash.promised import Announced, Covered, Ended, Evaluating, Made, Offered, Opened, Promise, Saved
from tests.crash.puppets import BesideSlot, Cast, Puppets, step_slots

if TYPE_CHECKING:
    from tests.crash.sampled import Sampler

ROOT = "/simulated"
HOME = "milepost/default/run"

Form = Literal["consolidated", "dcp"]
View = Callable[[Process], Disk]
"""How a process sees the disk."""


def as_it_is(process: Process) -> Disk:
    """The plain view."""
    return process


# --- a run --------------------------------------------------------------------------------------------------


@cache
def config(
    *,
    save_async: bool = True,
    save_every: int = 0,
    resume: str = "auto",
    plan: Plan = FULL,
    validate_every: int = 0,
    validation: Plan = (),
    emergency: Literal["full", "run"] = "full",
    keep_optim: int = 0,
    keep_model: int = 0,
    form: Form = "consolidated",
) -> Config:
    """`plan` is that of regular saves, `validation` that of validations (empty: they save nothing).

    Retention is off unless it is asked for: most histories are of something else.
    """
    validating: dict[str, object] = {"every_steps": validate_every, "at_end": False}
    if validation:
        validating |= {"save_checkpoint": True, "checkpoint_components": _names(validation)}
    return Config.load(
        {
            "run": {"output_root": ROOT},
            "rl": {
                "save_every": save_every,
                "save_async": save_async,
                "checkpoint_format": form,
                "resume": resume,
                "checkpoint_components": _names(plan),
                "emergency_checkpoint_components": emergency,
                "keep_optim_last": keep_optim,
                "keep_model_last": keep_model,
                "validation": validating,
            },
        }
    )


def _names(plan: Plan) -> list[str]:
    return [component.value for component in plan]


class BrokenEvaluation(Exception):
    """The evaluation of a test that asked for one that fails."""


class Run:
    """One process that trains with an open journal; each of its methods is one thing a trainer does.

    `meanwhile` happens inside each evaluation, with its step: it may raise, kill, or tell the run to stop.
    `evaluated` are the steps whose evaluation began, in order, each with the number of steps trained until then;
    `elsewhere` are those of other members, each behind the member's number.

    With a `cast` the run has other members beside the leader: `crew` moves them, `trainers` are by member those of
    its roles, and the roles in `resting` are not trained. Each member's process has its number behind the name.
    """

    def __init__(
        self,
        disk: SimulatedDisk,
        name: str,
        *,
        config: Config,
        keep_fn: KeepFn | None = None,
        view: View = as_it_is,
        cast: Cast | None = None,
    ) -> None:
        self.disk = disk
        self.name = name
        self.process = disk.process(name)
        self.cast = cast
        life = len(name)
        self.trainers = cast.trainers(life) if cast is not None else ({"": TinyTrainer(life)},)
        self.others = tuple(disk.process(f"{name}.{index}") for index in range(1, len(self.trainers)))
        self.resting: frozenset[str] = frozenset()
        self.loop: dict[str, object] = {}
        self.slot = BesideSlot()
        self.watch = ToldWatch()
        self.meanwhile: Callable[[int], object] = _nothing
        self.evaluated: list[tuple[int, int]] = []
        self.elsewhere: list[tuple[int, int]] = []
        self.sampler: Sampler | None = None
        self._offered: dict[SaveId, Values] = {}
        self._carried: dict[SaveId, SamplingBoundary | None] = {}
        self._until = 0
        self._emergency: Plan = ()
        self.journal = self._open(config, keep_fn, view)
        self.loop = dict(self.journal.committed_loop_state() or {})
        self.attempt = f"{HOME}/{self.journal.run_ts}"
        self.step = self.journal.resumption.step
        setattr(self.journal._lead.progress, "published", self._announce)  # noqa: B010 - what people are told
        self._promise(
            Opened(
                attempt=self.attempt,
                epoch=self.epoch,
                execution=self.journal.execution_id,
                step=self.step,
            )
        )

    def _open(self, config: Config, keep_fn: KeepFn | None, view: View) -> Journal:
        named = self.cast is not None and bool(self.cast.roles)
        own = cast(Any, self.trainers[0])
        return Journal.open(
            config,
            trainer=None if named else own[""],
            roles=own if named else None,
            loop_state=(lambda: self.loop) if named else None,
            keep_fn=keep_fn,
            disk=view(self.process),
            ambient=NamedAmbient(self.name),
            crew=self._crew if self.cast is not None else None,
            slot=self.slot,
            watch=cast(TerminationWatch, self.watch),
            environ={},
        )

    def _crew(self, leader: Member) -> Puppets:
        """The leader with the other members, each with its own view of the disk."""
        assert self.cast is not None
        members = [leader]
        for index, (own, process) in enumerate(zip(self.trainers[1:], self.others, strict=True), 1):
            member = Member(own, disk=process)
            member.evaluation = lambda step, index=index: self.elsewhere.append((index, step))
            members.append(member)
        for member in members:
            step_slots(member)
        lives = (self.process, *self.others)
        self.crew = Puppets(members, lives, cast=self.cast, beside=lambda: self.slot.moving)
        return self.crew

    @property
    def trainer(self) -> TinyTrainer:
        """The trainer of the first role that the leader has; of another member where it has none."""
        return next(trainer for own in self.trainers for trainer in own.values())

    def values(self) -> Values:
        """Everything that a checkpoint of the present state has to bring back."""
        own = [value for own in self.trainers for _, trainer in sorted(own.items()) for value in trainer.values()]
        return (*own, *self.counters, *sorted(self.loop.items()))

    @property
    def counters(self) -> tuple[tuple[str, int], ...]:
        """How often each role was trained; none where the run has one trainer."""
        named = {role: trainer.trained for own in self.trainers for role, trainer in own.items() if role}
        return tuple(sorted(named.items()))

    @property
    def epoch(self) -> int:
        return self.journal.state.run.epoch

    def train(self, count: int = 1, *, skip: bool = False, validate: bool = False, stop: bool = False) -> None:
        """Some steps; their boundaries may save and validate. With `stop` the run is told to in the last one."""
        self._until = self.step + count
        for step in self.journal.steps(until=self._until, validate=self._evaluate if validate else None):
            self._acknowledge()  # the boundary before
            if skip:
                self.journal.skip("not finite")
            else:
                self._train(step)
            self.step = step
            self._offer(step)
            if stop and step == self._until:
                self._tell(validate)
        self._acknowledge()

    def _train(self, step: int) -> None:
        """Every role that does not rest; a critic goes twice as fast as the others."""
        for own in self.trainers:
            for role, trainer in own.items():
                for _ in range(_pace(role) if role not in self.resting else 0):
                    trainer.train(step)
        for role, _ in self.counters:
            if role not in self.resting:
                self.journal.updated(role, applied=_pace(role))
            self.loop = {"seen": step, "rate": 2.0 / step, "warming up": bool(self.resting)}

    def settle(self) -> None:
        """Evaluate what the resumed checkpoint waits for."""
        self.journal.settle_validation(self._evaluate)
        self._acknowledge()

    def leave_inside_a_step(self) -> None:
        """Take the next step up and break out of it."""
        steps = self.journal.steps(until=self.step + 1)
        next(steps)

    def save(self, step: int | None = None) -> None:
        """Ask for a save: acknowledged here where the slot is free again, else when its lane is done."""
        step = self.step if step is None else step
        self.finish()
        self._offer(step)
        self.journal.save(step)
        self._acknowledge()

    def tick(self) -> None:
        """One more effect of the save that is under way."""
        if not self.slot.step():
            self._acknowledge()

    def finish(self) -> None:
        """Wait for the save that is under way."""
        self.journal.finalize()
        self._acknowledge()

    def terminate(self, *, validate: bool = False) -> None:
        """Be told to stop behind a step whose boundary is over; a validation may be due at it."""
        self._offer(self.step)
        self._tell(validate)
        verdict = self.journal.boundary(self.step, validate=self._evaluate if validate else None)
        assert verdict.stop, "a run that is told to stop stops"
        self._acknowledge()

    def _tell(self, validate: bool) -> None:
        """Tell the run to stop, and note what has to be covered then."""
        self.watch.told = Termination(reason="signal SIGTERM", detail="told")
        knobs = self.journal.config
        pending = validate and self._validates_at(self.step) and self.journal.state.validation.pending is None
        full = pending or knobs.emergency_checkpoint_components == "full"
        self._emergency = FULL if full else union(knobs.checkpoint_components, (Component.MODEL,))

    def close(self) -> None:
        """End the run."""
        epoch = self.epoch
        self.finish()
        self.journal.close()
        self._promise(Ended(attempt=self.attempt, epoch=epoch))

    def _evaluate(self, step: int) -> None:
        """What is given to the journal as `validate`."""
        self._acknowledge()
        values = self.values()
        self._promise(
            Evaluating(attempt=self.attempt, epoch=self.epoch, step=step, due=self._due(step), values=values)
        )
        self.evaluated.append((step, self.trainer.trained))
        self.meanwhile(step)
        self.process.check_alive()

    def _due(self, step: int) -> Plan:
        """What has to be published before a validation of this step begins: a save due on its own account, or all."""
        knobs = self.journal.config
        if step != self.step or not self._validates_at(step):
            return ()
        cadence = knobs.save_every > 0 and (step % knobs.save_every == 0 or step == self._until)
        regular = knobs.checkpoint_components if cadence else ()
        asked = knobs.validation.checkpoint_components if knobs.validation.save_checkpoint else ()
        joined = union(regular, asked)
        return joined if regular or joined == FULL else ()

    def _validates_at(self, step: int) -> bool:
        every = self.journal.config.validation.every_steps
        return every > 0 and step > 0 and step % every == 0

    def _offer(self, step: int) -> None:
        """Whatever is saved next holds the present values."""
        save = SaveId(step, self.epoch, self.journal.state.saving.counter + 1)
        values, sampling = self.values(), self.sampling
        if self._offered.get(save) != values or self._carried.get(save) != sampling:
            self._offered[save], self._carried[save] = values, sampling
            self._promise(
                Offered(
                    attempt=self.attempt,
                    save=save,
                    values=values,
                    counters=self.counters,
                    loop=tuple(sorted(self.loop.items())),
                    sampling=sampling,
                )
            )

    def begin_sampling(self, *, outdated: tuple[SamplingToken, ...] = ()) -> Sampler:
        """What this execution samples with; `outdated` are the tokens of earlier ones."""
        from tests.crash.sampled import Sampler  # whose histories are of runs

        self.sampler = Sampler(self.journal, outdated=outdated)
        return self.sampler

    @property
    def sampling(self) -> SamplingBoundary | None:
        """Where sampling has to go on from what is saved now."""
        return self.journal.resumption.sampling if self.sampler is None else self.sampler.boundary

    def _acknowledge(self) -> None:
        """Promise what is published while no lane is under way: whoever saved it has been told, or could be."""
        if self.slot.busy:
            return
        state = self.journal.state
        for published, newest in (
            (state.saving.sealed, state.saving.newest),
            (state.saving.artifacts, state.saving.newest_artifact),
        ):
            if newest is None or newest not in self._offered:
                continue
            values = self._offered.pop(newest)
            manifest = published[newest.step].manifest
            assert manifest is not None
            if published is state.saving.sealed:
                self._promise(Saved(attempt=self.attempt, save=newest, manifest=manifest.digest, values=values))
            else:
                self._promise(Made(attempt=self.attempt, save=newest, manifest=manifest.digest))
        if self._emergency and state.emergency.stage is EmergencyStage.COVERED:
            plan, self._emergency = self._emergency, ()
            self._promise(Covered(attempt=self.attempt, epoch=self.epoch, step=self.step, plan=plan))

    def _announce(self, save: Save) -> None:
        """What is given to the journal to tell people with."""
        self._promise(Announced(attempt=self.attempt, save=save.id))

    def _promise(self, promise: Promise) -> None:
        self.disk.mark(promise)


def _nothing(_step: int) -> None:
    """What happens in an evaluation that nothing happens in."""


def _pace(role: str) -> int:
    """How many updates a role makes in a step."""
    return 2 if role == "critic" else 1
