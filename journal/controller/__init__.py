"""What a controller with asynchronous workers restores, and in which order. Start in `adapter.py`."""

from __future__ import annotations

from milepost.journal.controller.adapter import ControllerAdapter, ControllerResume, Samplers
from milepost.journal.controller.metadata import ResumeMetadata, SamplingOwner
from milepost.journal.controller.samplers import ResumableBatchSampler, ResumableSampler

__all__ = [
    "ControllerAdapter",
    "ControllerResume",
    "ResumableBatchSampler",
    "ResumableSampler",
    "ResumeMetadata",
    "Samplers",
    "SamplingOwner",
]
