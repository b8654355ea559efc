"""The state of an optimizer in a file, and its way into a live one.

    optim.pt     state {key: {name: value}}, param_groups [{params: [key], option: value}]
    trainer.pt   named_optimizer? {param_groups, without_state [key]}: the keys are names

1. A key is the number of a parameter, counted through the groups, or its name in the model. Numbers are what an
   optimizer gives; names are the official form of `get_optimizer_state_dict`, which other programs read.
2. A directory of torch.distributed.checkpoint makes keys text and keeps no empty container: a missing `state` is an
   empty one, and a text stands for the number that it spells where the groups list numbers.
3. Where the keys are names, trainer.pt repeats the groups and lists the parameters without state, so that the target
   of a load is shaped like the file before the file is read.
4. Values keep the dtype that they were saved with, whatever the dtype of their parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch.optim import Optimizer

from milepost.engines.trainers.inventory import require_fit
from milepost.engines.trainers.protocols import Stateful, Tree
from milepost.engines.trainers.saved import Saved, malformed
from milepost.transitions.errors import Corrupt, NotResumable

NAMED = "named_optimizer"

Groups = list[dict[str, Any]]
Names = Sequence[Sequence[str]]
"""The names of the parameters of a live optimizer, group by group."""


@frozen(kw_only=True)
class OptimizerFile:
    """State by key, the groups, and every key in the order of the groups; keys are all numbers or all names."""

    where: str
    state: Mapping[Any, Any]
    groups: Groups
    keys: tuple[Any, ...]

    @classmethod
    def read(cls, saved: Saved) -> OptimizerFile:
        groups = saved.need("param_groups", list)
        keys: list[Any] = []
        for at, group in enumerate(groups):
            inner = Saved.read(f"{saved.where}.param_groups[{at}]", group)
            keys += inner.need("params", list)
        if not any(all(isinstance(key, kind) for key in keys) for kind in (int, str)):
            place = f"{saved.where}.param_groups"
            raise malformed(place, expected="parameters by number, or by name", found=keys)
        spelled = {str(key): key for key in keys}
        state = saved.need("state", dict) if "state" in saved else {}
        return cls(
            where=saved.where,
            state={spelled.get(str(key), key): value for key, value in state.items()},
            groups=groups,
            keys=tuple(keys),
        )

    @property
    def named(self) -> bool:
        return any(isinstance(key, str) for key in self.keys)

    def require_no_state(self) -> None:
        if self.state:
            raise Corrupt(f"{self.where}.state: trainer.pt says that the optimizer was never stepped")

    def numbered(self, names: Names) -> OptimizerFile:
        """The same by the number of the live parameter; `NotResumable` where the groups do not hold `names`."""
        members = [group["params"] for group in self.groups]
        if self.named:
            require_fit(self.where, saved=_places(members), here=_places(names))
            number = {name: at for at, name in enumerate(_flat(names))}
        else:
            require_fit(self.where, saved=_counts(members), here=_counts(names))
            number = {key: at for at, key in enumerate(self.keys)}
        groups = []
        for group, here in zip(self.groups, _numbers(names), strict=True):
            groups.append({**group, "params": here})
        state = {number.get(key, key): value for key, value in self.state.items()}
        return OptimizerFile(where=self.where, state=state, groups=groups, keys=tuple(range(len(number))))


@frozen(kw_only=True)
class Outline:
    """What trainer.pt says of an optimizer file whose keys are names: the file without any state."""

    file: OptimizerFile
    without_state: frozenset[str]


def save_outline(groups: Groups, *, without_state: Sequence[str]) -> Tree:
    return {"param_groups": groups, "without_state": list(without_state)}


def read_outline(trainer: Saved) -> Outline | None:
    """None where the keys of the optimizer file are numbers, or where a legacy checkpoint does not say."""
    if NAMED not in trainer:
        return None
    saved = trainer.inner(NAMED)
    without = saved.need("without_state", list)
    if not all(isinstance(name, str) for name in without):
        raise malformed(f"{saved.where}.without_state", expected="names", found=without)
    return Outline(file=OptimizerFile.read(saved), without_state=frozenset(without))


def load_exactly(optimizer: Stateful, tree: Mapping[str, Any], *, where: str) -> None:
    """`load_state_dict` of what is keyed by numbers, with every value of the dtype that it was saved with."""
    try:
        optimizer.load_state_dict(dict(tree))
    except (KeyError, TypeError, ValueError) as error:
        raise NotResumable(f"{where} does not fit the optimizer: {error}") from error
    if not isinstance(optimizer, Optimizer):
        return
    # torch casts floating state to its parameter's dtype: float32 moments of bfloat16 weights would lose bits.
    names = [name for group in tree["param_groups"] for name in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, parameter in zip(names, parameters, strict=True):
        live = optimizer.state.get(parameter, {})
        for key, value in tree["state"].get(name, {}).items():
            if isinstance(value, torch.Tensor) and value.dtype != live[key].dtype:
                live[key] = value.to(live[key].device)


def _flat(names: Names) -> Iterable[str]:
    return (name for group in names for name in group)


def _numbers(names: Names) -> Iterable[list[int]]:
    start = 0
    for group in names:
        yield list(range(start, start + len(group)))
        start += len(group)


def _places(members: Sequence[Sequence[Any]]) -> dict[Any, str]:
    return {name: f"group {at}" for at, group in enumerate(members) for name in group}


def _counts(members: Sequence[Sequence[Any]]) -> dict[str, str]:
    return {f"group {at}": f"{len(group)} parameters" for at, group in enumerate(members)}
