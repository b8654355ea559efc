"""The scheduler in trainer.pt: its state and, where it offers one, the identity of its construction.

PyTorch saves what a schedule has become, not what it was built from: LambdaLR and most others would continue a
changed schedule without a word. A scheduler with `identity()` closes that hole:

1. `identity()` gives the factors that it was built from: a flat mapping of names to None, bool, int, float or
   str. They are saved with the class name, under a version.
2. A restore compares them before anything live is touched. A changed identity, an unknown version and a
   checkpoint without one are refused.
3. A scheduler without `identity()` keeps the behaviour of PyTorch: only its state is saved and restored.

Source: the checkpointing contract, "Scheduler state and construction identity".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from milepost.engines.trainers.protocols import Stateful, Tree
from milepost.engines.trainers.saved import Saved
from milepost.transitions.errors import NotResumable

IDENTITY = "milepost.scheduler.v1"


@runtime_checkable
class Identified(Protocol):
    """A scheduler that can say what it was built from."""

    def identity(self) -> Mapping[str, bool | int | float | str | None]: ...


def save_scheduler(scheduler: Stateful) -> Tree:
    tree: Tree = {"state": scheduler.state_dict()}
    if (identity := identity_of(scheduler)) is not None:
        tree["identity"] = identity
    return tree


def read_scheduler(trainer: Saved, *, scheduler: Stateful | None) -> Tree | None:
    """The state to load into `scheduler`, proven to be of the same construction; None where there is none."""
    if (scheduler is None) != ("scheduler" not in trainer):
        has, lacks = ("the checkpoint", "this trainer") if scheduler is None else ("this trainer", "the checkpoint")
        raise NotResumable(
            f"{trainer.where}: {has} has a scheduler and {lacks} has none; "
            "build the trainer as the run that saved it did"
        )
    if scheduler is None:
        return None
    saved = trainer.inner("scheduler")
    here = identity_of(scheduler)
    there = saved.need("identity", dict) if "identity" in saved else None
    if here != there:
        raise NotResumable(
            f"{saved.where}: the scheduler was built differently: saved {there}, here {here}; "
            "build the same schedule, or start a new run for another one"
        )
    return saved.need("state", dict)


def identity_of(scheduler: Stateful) -> Tree | None:
    if not isinstance(scheduler, Identified):
        return None
    factors = dict(scheduler.identity())
    wrong = [f"{name}: {type(factor).__name__}" for name, factor in factors.items() if not _is_plain(factor)]
    if wrong:
        raise TypeError(
            f"{type(scheduler).__qualname__}.identity() may hold None, bool, int, float and str; "
            f"found {', '.join(wrong)}"
        )
    return {"format": IDENTITY, "class": type(scheduler).__qualname__, "factors": factors}


def _is_plain(factor: object) -> bool:
    return factor is None or isinstance(factor, (bool, int, float, str))
