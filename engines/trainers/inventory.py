"""What a model and an optimizer look like, in plain text: compared before a tensor is filled in place.

Whatever a restore compares by name is told apart here, so that every refusal lists its differences alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from milepost.transitions.errors import NotResumable

_SHOWN = 5


def tensors(tree: object, path: str = "") -> dict[str, str]:
    """Path to dtype and shape, `float32[3, 4]`, of every tensor below `tree`; the global shape of a DTensor.

    A module's `_extra_state` is left out: its size may change from one step to the next.
    """
    if isinstance(tree, torch.Tensor):
        return {path: shape_of(tree)}
    if isinstance(tree, Mapping):
        inner: Iterable[tuple[object, object]] = tree.items()
    elif isinstance(tree, (list, tuple)):
        inner = enumerate(tree)
    else:
        return {}
    found: dict[str, str] = {}
    for key, value in inner:
        if not str(key).endswith("_extra_state"):
            found |= tensors(value, f"{path}.{key}" if path else str(key))
    return found


def shape_of(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def require_fit(
    where: str, *, saved: Mapping[str, object], here: Mapping[str, object], ranks: tuple[int, int] | None = None
) -> None:
    """`NotResumable` with the names that differ.

    `ranks` is how many saved and how many are here: what is padded to a number of ranks fits only as many.
    """
    if differing := differences(saved=saved, here=here):
        why = ""
        if (
            ranks is not None
            and ranks[0] != ranks[1]
            and any(saved[name] != here.get(name, saved[name]) for name in saved)
        ):
            why = (
                f"It was saved by {ranks[0]} ranks and {ranks[1]} are here: a shape that depends on the number of "
                "ranks, such as a padded one, needs the topology that it was saved with. "
            )
        raise NotResumable(
            f"{where} does not fit: {differing}. {why}Build the trainer as the run that saved it did; "
            "nothing was changed"
        )


def differences(*, saved: Mapping[str, object], here: Mapping[str, object]) -> str:
    """The names that differ, with both values, a few of each sort; empty where all are equal."""
    parts = [
        _listed("only in the checkpoint", [name for name in saved if name not in here]),
        _listed("only here", [name for name in here if name not in saved]),
        _listed(
            "different",
            [
                f"{name} (saved {saved[name]}, here {here[name]})"
                for name in saved
                if name in here and saved[name] != here[name]
            ],
        ),
    ]
    return "; ".join(filter(None, parts))


def _listed(what: str, names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what}: {', '.join(names[:_SHOWN])}{more}" if names else ""
