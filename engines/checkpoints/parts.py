"""The names of the trees that a checkpoint is made of, by role.

    model · optim · old · ref      large; spread over the ranks where they are sharded
    trainer · data                 small; written once

A tree of a role lies below the role's name: `policy/model`. A run of one role has its trees at the top. In a bucket
its small files lie below `.posttrain/generations/<save id>/`, so that no two attempts at a step share one.
"""

from __future__ import annotations

from milepost.transitions.values import Component

BULK = ("model", "optim", "old", "ref")
HIDDEN = ".posttrain"
GENERATIONS = f"{HIDDEN}/generations"
"""The directory in a checkpoint that has one for each attempt to save it, with the attempt's small files in it."""

STATES = (*BULK, "trainer", "data", HIDDEN)
"""The names under which one trainer's state lies, each as a file with the suffix `.pt` or as a directory."""

SAMPLING = "sampling.json"
"""The sampling boundary of a checkpoint: a file of its training state that is no tree of any role."""


def is_sampling(path: str) -> bool:
    """Whether this payload file is the sampling boundary, on a disk or in a bucket."""
    return path == SAMPLING or (path.startswith(f"{GENERATIONS}/") and path.endswith(f"/{SAMPLING}"))


def full_name(role: str, name: str) -> str:
    """Where the tree lies in a checkpoint."""
    return f"{role}/{name}" if role else name


def split_name(full: str) -> tuple[str, str]:
    """The role and the name of a tree; the inverse of `full_name`."""
    role, _, name = full.rpartition("/")
    return role, name


def tree_of(path: str) -> str:
    """The full name of the tree that a payload file belongs to: `model.pt`, `policy/optim/.metadata`."""
    above, _, last = path.rpartition("/")
    if not last.endswith(".pt"):
        return above
    return (last if path.startswith(f"{GENERATIONS}/") else path).removesuffix(".pt")


def component_of(full: str) -> Component:
    """The logical component that the tree belongs to."""
    name = split_name(full)[1]
    if name == "model":
        return Component.MODEL
    return Component.OPTIMIZER if name == "optim" else Component.TRAINING_STATE
