"""Samplers of torch.utils.data that can say where in an epoch they are, and go on from there.

1. A state is the epoch and a position in it: how many of what it yields were consumed. The order follows from the
   seed and the epoch, so that no state holds indices.
2. Consumed is what `advance` said. What a loader fetched ahead for its workers moves no position: who takes a batch
   off the loader advances, and gives the state then to the ledger as the boundary behind that batch.
3. An iterator yields the rest of the epoch, from the position on, in the order that it would have had anyway.
4. `set_epoch` of another epoch begins at its start; of the same epoch it changes nothing, so a loop that sets the
   epoch at its top keeps what was restored. `load_state_dict` comes before the first iterator, or is refused.
5. The wrapped sampler is never changed. Each iterator takes shallow copies of it and of what it holds: one with a
   torch generator gets a fresh one, seeded with seed + epoch as DistributedSampler does; one with `set_epoch` is told
   the epoch; any other has to yield the same order each time.

Source: the specification of application checkpoints, "Restore the effective sampler or batch sampler".
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

from milepost.engines import plainjson
from milepost.engines.plainjson import Json
from milepost.transitions.errors import Corrupt, NotResumable, Refused

T = TypeVar("T")

_FIELDS = frozenset(("epoch", "of", "position"))
_TELLING = ("seed", "num_replicas", "shuffle", "replacement", "batch_size", "drop_last")
"""What else than its class and length tells the order of one sampler of torch from that of another."""


class _Resumable(Generic[T]):
    """A position in the epochs of a sampler; see the rules at the top of this module."""

    def __init__(self, sampler: Iterable[T], *, seed: int | None = None) -> None:
        if seed is not None and type(seed) is not int:
            raise Refused(f"seed: expected an integer, found {seed!r}")
        layers = tuple(_layers(sampler))
        if any(isinstance(one, _Resumable) for one in layers):
            raise Refused(
                "a sampler is made resumable once: the sampler, or the batch sampler above it, and not both"
            )
        self._sampler: Any = sampler
        self._seeds = {id(one): _seed_of(one, seed) for one in layers if _draws(one)}
        self._of = [self._told(one) for one in layers]
        self._epoch = 1
        self._position = 0
        self._iterated = False

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator is of, counting from 1."""
        return self._epoch

    @property
    def remaining(self) -> int:
        """How many are left of this epoch."""
        return len(self) - self._position

    def __len__(self) -> int:
        """How many a whole epoch yields."""
        return len(self._sampler)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of another epoch (an int >= 1), or stay in this one."""
        if type(epoch) is not int or epoch < 1:
            raise Refused(f"epoch: expected an integer of at least 1, found {epoch!r}")
        if epoch != self._epoch:
            self._epoch, self._position = epoch, 0

    def advance(self, count: int = 1) -> None:
        """Say that the next `count` (an int >= 0) were consumed; `Refused` beyond the end of the epoch."""
        if type(count) is not int or not 0 <= count <= self.remaining:
            raise Refused(f"count: expected an integer from 0 to the {self.remaining} that are left, found {count!r}")
        self._position += count

    def state_dict(self) -> dict[str, Json]:
        """The position by what was consumed, and of which sampler it is: a value of JSON."""
        return {"epoch": self._epoch, "position": self._position, "of": [dict(one) for one in self._of]}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to where this state was taken; nothing has changed where it raises.

        `Refused` once an iterator was made, `Corrupt` for what is no such state, `NotResumable` where it is of a
        sampler with another order or length, naming what differs.
        """
        if self._iterated:
            raise Refused(
                "the state of a sampler is loaded before its iterator is made, and one was made. Nothing was "
                "changed; build the samplers, restore, then the loader"
            )
        if not isinstance(state, Mapping) or state.keys() != _FIELDS:
            found = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise Corrupt(f"expected a sampler's state of {', '.join(sorted(_FIELDS))}, found {found}")
        epoch, position = state["epoch"], state["position"]
        if type(epoch) is not int or epoch < 1:
            raise Corrupt(f"epoch: expected an integer of at least 1, found {epoch!r}")
        self._require_same(state["of"])
        if type(position) is not int or not 0 <= position <= len(self):
            raise Corrupt(f"position: expected an integer from 0 to {len(self)}, found {position!r}")
        self._epoch, self._position = epoch, position

    def __iter__(self) -> Iterator[T]:
        self._iterated = True
        return islice(iter(self._bound(self._sampler)), self._position, None)

    def _bound(self, sampler: Any) -> Any:
        """A copy that yields the order of this epoch, whatever becomes of the wrapped one."""
        bound = copy.copy(sampler)
        if id(sampler) in self._seeds:
            import torch

            bound.generator = torch.Generator().manual_seed((self._seeds[id(sampler)] + self._epoch) % 2**64)
        if hasattr(bound, "set_epoch"):
            bound.set_epoch(self._epoch)
        if _holds_another(sampler):
            bound.sampler = self._bound(sampler.sampler)
        return bound

    def _told(self, sampler: Any) -> dict[str, Json]:
        """What the order of an epoch follows from, but for indices or weights that a sampler was given."""
        told: dict[str, Json] = {name: getattr(sampler, name) for name in _TELLING if _is_plain(sampler, name)}
        told |= {"class": type(sampler).__qualname__, "length": len(sampler)}
        return told | ({"seed": self._seeds[id(sampler)]} if id(sampler) in self._seeds else {})

    def _require_same(self, found: object) -> None:
        try:
            found = plainjson.copied(found, where="of")
        except ValueError as error:
            raise Corrupt(f"{error}; expected a value of JSON") from error
        if not isinstance(found, list):
            raise Corrupt(f"of: expected what the sampler is, found {found!r}")
        if len(found) != len(self._of):
            raise NotResumable(
                f"this state is of {len(found)} samplers in one another, here are {len(self._of)}. Nothing was "
                "restored; build the samplers as they were when it was saved"
            )
        for mine, theirs in zip(self._of, found, strict=True):
            if not isinstance(theirs, dict):
                raise Corrupt(f"of: expected what the sampler is, found {theirs!r}")
            differing = [
                f"{name} was {theirs.get(name)!r}, is {mine.get(name)!r}"
                for name in sorted(mine.keys() | theirs.keys())
                if name not in mine or name not in theirs or not plainjson.same(mine[name], theirs[name])
            ]
            if differing:
                raise NotResumable(
                    f"this state is of another sampler: {'; '.join(differing)}. Nothing was restored; build the "
                    "samplers as they were when it was saved"
                )


class ResumableSampler(_Resumable[int]):
    """Positions in a sampler of indices: RandomSampler with a generator, SequentialSampler, DistributedSampler, ….

    The position counts indices. The seed is the one that the sampler's generator was first given, or `seed`; a
    sampler that draws and has neither is `Refused`.
    """


class ResumableBatchSampler(_Resumable[list[int]]):
    """Positions in a batch sampler: torch's BatchSampler over any of those, or one of the application's own.

    The position counts batches.
    """


def _layers(sampler: Any) -> Iterator[Any]:
    """The sampler and each one inside."""
    yield sampler
    if _holds_another(sampler):
        yield from _layers(sampler.sampler)


def _holds_another(sampler: Any) -> bool:
    """Whether it draws from a sampler inside, as BatchSampler does."""
    return getattr(sampler, "sampler", None) is not None


def _draws(sampler: Any) -> bool:
    """Whether its order comes from a generator of torch, its own or the global one."""
    return hasattr(sampler, "generator") and (sampler.generator is None or hasattr(sampler.generator, "initial_seed"))


def _seed_of(sampler: Any, seed: int | None) -> int:
    if seed is not None:
        return seed
    if sampler.generator is None:
        raise Refused(
            f"{type(sampler).__qualname__} draws from torch's global generator, so the order of an epoch cannot be "
            "had again; give the sampler a generator of its own, or give a seed here"
        )
    return int(sampler.generator.initial_seed())


def _is_plain(sampler: Any, name: str) -> bool:
    return type(getattr(sampler, name, None)) in (bool, int)
