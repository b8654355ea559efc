"""Trainers: what the live state of a training run is, and how it is put back.

    trainer = PlainTrainer(model=model, optimizer=optimizer, scheduler=scheduler, data=batches)
    trainer = ShardedTrainer(…)                         # the same for a model spread over ranks
    snapshot = trainer.capture(FULL, clocks=clocks)     # references; staged before the next step
    trees = join(snapshot.trees, [snapshot.local])      # with what each rank has for itself
    restored = trainer.restore(source)                  # exact, or refused, or noted

`protocols.py` says what a trainer, the journal and the formats engine owe each other; `base.py` what is saved
and in which order it comes back.
"""

from typing import TYPE_CHECKING

from milepost.engines.trainers.base import BaseTrainer
from milepost.engines.trainers.batches import ShuffledBatches
from milepost.engines.trainers.cursors import Fingerprinted
from milepost.engines.trainers.joining import join
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

if TYPE_CHECKING:
    from milepost.engines.trainers.sharded import ShardedTrainer

__all__ = [
    "BaseTrainer",
    "CursorResume",
    "Fingerprinted",
    "Identified",
    "PlainTrainer",
    "RestoreSource",
    "Restored",
    "ShardedTrainer",
    "ShuffledBatches",
    "Snapshot",
    "Stateful",
    "Trainer",
    "Tree",
    "join",
]


def __getattr__(name: str) -> object:
    # On the first use only: what it needs of torch.distributed takes most of a second to import.
    if name == "ShardedTrainer":
        from milepost.engines.trainers.sharded import ShardedTrainer

        return ShardedTrainer
    raise AttributeError(f"module {__name__} has no attribute {name}")
