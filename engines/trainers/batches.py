"""A data source for plain loops: shuffled batches that continue in the middle of an epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar, cast

import numpy as np

from milepost.engines.trainers.protocols import Tree
from milepost.engines.trainers.saved import Saved
from milepost.transitions.errors import Corrupt

T = TypeVar("T")


class ShuffledBatches(Generic[T]):
    """Endless batches, each epoch in an order of its own that `seed` and the epoch alone decide.

        batches = ShuffledBatches(examples, batch_size=32, seed=0)      # lists of 32 examples
        batches = ShuffledBatches(len(tensor), batch_size=32, seed=0)   # lists of 32 indices

    `next(batches)` gives the next one, across epochs. The global random streams are neither read nor moved. Only
    `epoch` and `batch` (batches of this epoch already given) are saved; orders are computed again. The
    fingerprint covers length, batch size, seed and `drop_last`, not the examples: if they may change under the same
    length, wrap this class and add their digest.
    """

    def __init__(self, examples: Sequence[T] | int, *, batch_size: int, seed: int, drop_last: bool = True) -> None:
        self._examples = cast("Sequence[T]", range(examples)) if isinstance(examples, int) else examples
        length = len(self._examples)
        self.batches_per_epoch = length // batch_size if drop_last else -(-length // batch_size)
        if self.batches_per_epoch < 1:
            raise ValueError(f"{length} examples make no batch of {batch_size}; lower batch_size or keep the last")
        self._batch_size, self._seed, self._drop_last = batch_size, seed, drop_last
        self.epoch = self.batch = 0
        self._order = self._shuffled()

    def __iter__(self) -> Iterator[list[T]]:
        return self

    def __next__(self) -> list[T]:
        start = self.batch * self._batch_size
        chosen = [self._examples[at] for at in self._order[start : start + self._batch_size].tolist()]
        self.batch += 1
        if self.batch == self.batches_per_epoch:
            self.epoch, self.batch = self.epoch + 1, 0
            self._order = self._shuffled()
        return chosen

    def state_dict(self) -> Tree:
        return {"epoch": self.epoch, "batch": self.batch}

    def load_state_dict(self, state_dict: Tree) -> None:
        """Continue there; `Corrupt` for a state that this source cannot have, with nothing changed."""
        saved = Saved.read("the cursor of ShuffledBatches", state_dict)
        epoch, batch = saved.count("epoch"), saved.count("batch")
        if batch >= self.batches_per_epoch:
            raise Corrupt(f"{saved.where}.batch: expected less than {self.batches_per_epoch}, found {batch}")
        self.epoch, self.batch = epoch, batch
        self._order = self._shuffled()

    def fingerprint(self) -> str:
        """Equal for sources that give the same indices in the same order."""
        told = f"{len(self._examples)} {self._batch_size} {self._seed} {self._drop_last}"
        return f"sha256:{hashlib.sha256(told.encode()).hexdigest()}"

    def _shuffled(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        # RandomState, not default_rng: numpy promises that its streams never change (NEP 19).
        stream = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([self._seed, self.epoch])))
        return stream.permutation(len(self._examples))
