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

Source: the checkpointing contract, "Never-stepped optimizer marker".
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

_OPAQUE = object()


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


def _group_keys(optimizer: Optimizer) -> set[str]:
    return {key for group in optimizer.param_groups for key in group}


def _attributes(optimizer: Optimizer) -> dict[str, object]:
    """Plain values as they are, everything else only by name; wrapped methods are no trace of a step."""
    return {
        name: value if value is None or isinstance(value, (bool, int, float, str)) else _OPAQUE
        for name, value in vars(optimizer).items()
        if not callable(value)
    }
