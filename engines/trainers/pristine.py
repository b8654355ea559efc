"""Whether an optimizer was ever stepped, and how to make it so that it never was.

A step leaves traces in more places than `optimizer.state`: a fused optimizer may keep one shared counter in its
groups and build its master weights in an attribute, and then trains frozen groups with an empty state. So an
optimizer is pristine when all of these hold:

1. it holds no per-parameter state;
2. no group has a key that it lacked when the trainer was built, nor a counter named `step`;
3. its attributes are those of that time: none was added, and none that was None or a plain number has changed.

The marker is written only then; its absence means "not recorded". Restoring a pristine optimizer is not leaving
it alone: the saved group options apply, because a scheduler's `load_state_dict` does not write the learning rate
back, and whatever a live optimizer did since is undone.

The official functions of torch.distributed.checkpoint learn what state an optimizer has by stepping it, with zero
gradients at a rate of zero. Whoever lets them do so does it within `untouched`, on a stand-in that is then forgotten:

4. state, groups, attributes and gradients of the optimizer are afterwards the very objects of before, with the values
   of before; what the step made is reachable only through what the block kept of it;
5. no step hook fires, neither of this optimizer nor a global one, and no scheduler learns of the step. Not avoided:
   the hooks around a `step` of a parent class that a subclass calls by itself, and what a step changes outside the
   optimizer. Weights do not move at a rate and with gradients of zero; they are not remembered.

Source: the checkpointing contract, "Never-stepped optimizer marker".
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

_OPAQUE = object()
_CONTAINERS = (dict, OrderedDict, defaultdict, list, set)


class Traces:
    """An optimizer as it was when the trainer was built."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._group_keys = _group_keys(optimizer)
        self._attributes = _attributes(optimizer)

    def pristine(self) -> bool:
        """No step has left a trace."""
        return (
            not self._optimizer.state
            and "step" not in _group_keys(self._optimizer)
            and _group_keys(self._optimizer) <= self._group_keys
            and _attributes(self._optimizer) == self._attributes
        )

    def reset(self, param_groups: list[dict[str, Any]]) -> None:
        """Never stepped, with these group options (as `state_dict` gives them). No state is materialised."""
        for name in _attributes(self._optimizer).keys() - self._attributes.keys():
            delattr(self._optimizer, name)
        for name, value in self._attributes.items():
            if value is not _OPAQUE:
                setattr(self._optimizer, name, value)
        self._optimizer.load_state_dict({"state": {}, "param_groups": param_groups})


@contextmanager
def untouched(optimizer: Optimizer) -> Iterator[None]:
    """Within the block the optimizer, without state and gradients, may be stepped; after it nothing has happened."""
    attributes = dict(vars(optimizer))
    groups = [(group, dict(group)) for group in optimizer.param_groups]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gradients = [parameter.grad for parameter in parameters]
    try:
        for name, value in attributes.items():
            vars(optimizer)[name] = value if name == "param_groups" else _apart(value)
        for group, options in groups:
            group.update((key, value if key == "params" else _apart(value)) for key, value in options.items())
        optimizer.state = defaultdict(dict)
        vars(optimizer)["step"] = partial(_bare_step(type(optimizer)), optimizer)
        for parameter in parameters:
            parameter.grad = None
        yield
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(attributes)
        for group, options in groups:
            group.clear()
            group.update(options)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


def _apart(value: Any) -> Any:
    """The value for the stand-in to change: containers and tensors copied, parameters and all else as they are."""
    if isinstance(value, torch.Tensor):
        return value if isinstance(value, torch.nn.Parameter) else value.detach().clone()
    if type(value) not in _CONTAINERS:
        return value
    copied = copy.copy(value)
    if isinstance(value, dict):
        copied.update((key, _apart(inner)) for key, inner in value.items())
    elif isinstance(value, list):
        copied[:] = map(_apart, value)
    return copied


def _bare_step(kind: type[Optimizer]) -> Any:
    """The step of the class below the wrapper that fires hooks; torch puts that around it when one is first built."""
    return kind.step.__wrapped__ if getattr(kind.step, "hooked", False) else kind.step  # type: ignore[attr-defined]


def _group_keys(optimizer: Optimizer) -> set[str]:
    return {key for group in optimizer.param_groups for key in group}


def _attributes(optimizer: Optimizer) -> dict[str, object]:
    """Plain values as they are, everything else only by name; wrapped methods are no trace of a step."""
    return {
        name: value if value is None or isinstance(value, (bool, int, float, str)) else _OPAQUE
        for name, value in vars(optimizer).items()
        if not callable(value)
    }
