"""A disk under test, whichever it is."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from milepost.engines.disks import Disk


@frozen(kw_only=True)
class Bench:
    """A fresh disk, a second process's view of it, and a way to put a symlink on it."""

    disk: Disk
    other: Disk
    plant_symlink: Callable[[str], None]
