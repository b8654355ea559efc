"""A disk in memory that crashes on demand, for our own tests and for yours. Start in `disk.py`."""

from __future__ import annotations

from milepost.engines.simulated.crashes import LOSSES, Key, Loss
from milepost.engines.simulated.disk import SimulatedDisk
from milepost.engines.simulated.faults import (
    Fault,
    FaultRule,
    Killed,
    ShortRule,
    Site,
    drawn,
    fault_at,
    fault_on,
    halves,
    no_fault,
    whole,
)
from milepost.engines.simulated.hardware import Operation
from milepost.engines.simulated.medium import Renames, Symlink, Tree
from milepost.engines.simulated.process import Process

__all__ = [
    "LOSSES",
    "Fault",
    "FaultRule",
    "Key",
    "Killed",
    "Loss",
    "Operation",
    "Process",
    "Renames",
    "ShortRule",
    "SimulatedDisk",
    "Site",
    "Symlink",
    "Tree",
    "drawn",
    "fault_at",
    "fault_on",
    "halves",
    "no_fault",
    "whole",
]
