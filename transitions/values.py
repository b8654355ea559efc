"""The small frozen values that records, commands, effects and the state are made of."""

from __future__ import annotations

from enum import Enum
from typing import Self

from attrs import field, frozen


class Component(Enum):
    """A logical part of a checkpoint, in the order in which plans are written."""

    MODEL = "model"
    OPTIMIZER = "optimizer"
    TRAINING_STATE = "training_state"


Plan = tuple[Component, ...]

FULL: Plan = tuple(Component)
"""The only plan that makes a checkpoint an exact resume source. Every other one makes an artifact."""


def union(*plans: Plan) -> Plan:
    """Every component of any of the plans, in table order."""
    wanted = {component for plan in plans for component in plan}
    return tuple(component for component in Component if component in wanted)


def covers(plan: Plan, wanted: Plan) -> bool:
    """Whether what was saved by `plan` holds every component of `wanted`."""
    return set(wanted) <= set(plan)


class Reason(Enum):
    """Why a save was asked for."""

    CADENCE = "cadence"
    FINAL = "final"
    VALIDATION = "validation"
    EMERGENCY = "emergency"
    REQUESTED = "requested"


class Mode(Enum):
    """Whether the training loop waits for the write."""

    ASYNCHRONOUS = "asynchronous"
    SYNCHRONOUS = "synchronous"


class ResumeKind(Enum):
    """What a start continues from: nothing, an exact state, or only part of one."""

    FRESH = "fresh"
    EXACT = "exact"
    WARM = "warm"


class Outcome(Enum):
    """How a run ended when it ended on its own."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


@frozen(order=True)
class SaveId:
    """One attempt to save one step; no two attempts share one. The counter grows within an epoch."""

    step: int
    epoch: int
    counter: int

    def __str__(self) -> str:
        return f"{self.step}.{self.epoch}.{self.counter}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The inverse of `str`; `ValueError` for anything that `str` does not write."""
        parts = text.split(".")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
            raise ValueError(f"not a save id: {text!r} (expected <step>.<epoch>.<counter>)")
        made = cls(*map(int, parts))
        if str(made) != text:
            raise ValueError(f"not a save id: {text!r} (written as {made})")
        return made

    @property
    def directory(self) -> str:
        """The name of the checkpoint that this attempt publishes."""
        return iteration_name(self.step)


def iteration_name(step: int) -> str:
    """The directory of the checkpoint of `step`: `iter_000000100`."""
    return f"iter_{step:09d}"


def parse_iteration(name: str) -> int | None:
    """The step of a directory that `iteration_name` would write; None for any other name."""
    digits = name.removeprefix("iter_")
    if name == digits or not (digits.isascii() and digits.isdigit()):
        return None
    step = int(digits)
    return step if iteration_name(step) == name else None


@frozen(kw_only=True)
class FileDigest:
    """One payload file: its path inside the checkpoint, its size in bytes, `<algorithm>:<hex>` of its bytes."""

    path: str
    size: int
    digest: str


@frozen(kw_only=True)
class StoredComponent:
    """A logical component and the files that hold it. A component without state has no file."""

    component: Component
    files: tuple[FileDigest, ...]


@frozen(kw_only=True)
class Witness:
    """The durable head of the journal that a manifest saw when it was sealed."""

    seq: int
    sum: str


@frozen(kw_only=True)
class Clocks:
    """The update clocks: closed attempts, applied updates, and the non-finite ones that were thrown away."""

    attempt_id: int = 0
    optimizer_step: int = 0
    skipped_total: int = 0
    skipped_consecutive: int = 0


@frozen(kw_only=True)
class RoleClocks:
    """One role of a run, and its update clocks."""

    role: str
    clocks: Clocks


@frozen(kw_only=True)
class LoopValue:
    """An entry of a loop's own state. `value` is the exact JSON text of a scalar, given back as it was taken."""

    name: str
    value: str


@frozen(kw_only=True)
class Promised:
    """One promise of a store, and what was seen when it was tried."""

    name: str
    seen: str


@frozen(kw_only=True)
class SamplingPoint:
    """A place in the sampled work: its epoch from 1, the completions that remain behind it, the sampler's state.

    `sampler_state` is canonical JSON text and nothing here looks into it; "null" is the beginning.
    """

    epoch: int
    remaining: int
    sampler_state: str


@frozen(kw_only=True)
class PassedOver:
    """A checkpoint that a resume did not take, and why."""

    name: str
    reason: str
    detail: str = field(default="")


@frozen(kw_only=True)
class Metric:
    """A number that the training loop reported. `value` is its shortest exact text: JSON has no NaN."""

    name: str
    value: str
