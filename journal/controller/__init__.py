"""What a controller with asynchronous workers restores, and in which order: start in `adapter.py`.

Which reports it counts afterwards, and whether its workers restored the same, is said in `transitions/fencing.py`.
"""

from __future__ import annotations

from milepost.journal.controller.adapter import ControllerAdapter, ControllerResume, Samplers
from milepost.journal.controller.metadata import ResumeMetadata, SamplingOwner
from milepost.journal.controller.samplers import ResumableBatchSampler, ResumableSampler
from milepost.transitions.fencing import Stale, admit, disagreement

__all__ = [
    "ControllerAdapter",
    "ControllerResume",
    "ResumableBatchSampler",
    "ResumableSampler",
    "ResumeMetadata",
    "Samplers",
    "SamplingOwner",
    "Stale",
    "admit",
    "disagreement",
]
