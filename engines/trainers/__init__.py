"""Trainers: what the live state of a training run is, and how it is put back.

    trainer = PlainTrainer(model=model, optimizer=optimizer, scheduler=scheduler, data=batches)
    snapshot = trainer.capture(FULL, clocks=clocks)     # references; staged before the next step
    restored = trainer.restore(source)                  # exact, or refused, or noted

`protocols.py` says what a trainer, the journal and the formats engine owe each other; `base.py` what is saved
and in which order it comes back.
"""

from milepost.engines.trainers.base import BaseTrainer
from milepost.engines.trainers.batches import ShuffledBatches
from milepost.engines.trainers.cursors import Fingerprinted
from milepost.engines.trainers.plain import PlainTrainer
from milepost.engines.trainers.protocols import (
    CursorResume,
    Restored,
    RestoreSource,
    Snapshot,
    Stateful,
    Trainer,
    Tree,
)
from milepost.engines.trainers.scheduling import Identified

__all__ = [
    "BaseTrainer",
    "CursorResume",
    "Fingerprinted",
    "Identified",
    "PlainTrainer",
    "RestoreSource",
    "Restored",
    "ShuffledBatches",
    "Snapshot",
    "Stateful",
    "Trainer",
    "Tree",
]
