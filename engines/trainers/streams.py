"""The random streams of every rank: python, numpy, torch and, where it is in use, CUDA.

1. A stream continues exactly in a world of the same size. In another one, and in a legacy checkpoint without an
   inventory, streams are left as they are, with a note.
2. A malformed inventory is `Corrupt`, never mistaken for a legacy one. Each stream is tried on a scratch
   generator before any live one is set.
3. CUDA generators are saved once CUDA has been used; they continue on as many devices as they were saved on.

States are tensors and plain scalars, so that a weights-only load reads them: python `words` int64[625], numpy
`key` int64[624], torch and CUDA uint8 as torch gives them.

Source: the checkpointing contract, "Per-rank RNG streams".
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from milepost.engines.trainers.protocols import Tree
from milepost.engines.trainers.saved import Saved, malformed
from milepost.transitions.errors import Corrupt, Refused

_ABSENT = "the random streams were not saved (legacy checkpoint): they start anew"


def save_streams() -> Tree:
    """The streams of this process: one rank of an inventory."""
    return {"python": _python(), "numpy": _numpy(), **_torch()}


def join_streams(ranks: Sequence[object]) -> Tree:
    """The inventory of the streams that each rank saved, in the order of ranks."""
    return {"world_size": len(ranks), "ranks": list(ranks)}


@frozen(kw_only=True)
class Streams:
    """One rank's streams, tried and ready to be set."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]
    torch: Tensor
    cuda: tuple[Tensor, ...]

    def resume(self) -> tuple[str, ...]:
        """Set the live generators; the notes say which could not be."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        devices = torch.cuda.device_count()
        if self.cuda and len(self.cuda) != devices:
            return (f"the CUDA random streams of {len(self.cuda)} devices were skipped: {devices} are here",)
        for device, state in enumerate(self.cuda):
            torch.cuda.set_rng_state(state, device)
        return ()


def saved_ranks(trainer: Saved, *, legacy: bool) -> int | None:
    """How many ranks saved; None where a legacy checkpoint does not say."""
    return None if legacy and "rng" not in trainer else trainer.inner("rng").count("world_size")


def read_streams(trainer: Saved, *, legacy: bool, world_size: int, rank: int) -> Streams | str:
    """The streams of `rank`, or the reason why they are skipped."""
    if legacy and "rng" not in trainer:
        return _ABSENT
    inventory = trainer.inner("rng")
    saved = inventory.count("world_size")
    ranks = inventory.need("ranks", list)
    if saved == 0 or len(ranks) != saved:
        raise malformed(f"{inventory.where}.ranks", expected=f"{saved} ranks, at least one", found=len(ranks))
    every = [_read_rank(Saved.read(f"{inventory.where}.ranks[{at}]", ranks[at])) for at in range(saved)]
    if saved != world_size:
        return f"the random streams of {saved} ranks were skipped: {world_size} are here"
    return every[rank]


def _read_rank(saved: Saved) -> Streams:
    streams = Streams(
        python=_read_python(saved.inner("python")),
        numpy=_read_numpy(saved.inner("numpy")),
        torch=saved.need("torch", Tensor),
        cuda=tuple(saved.need("cuda", list)) if "cuda" in saved else (),
    )
    for at, state in enumerate(streams.cuda):
        if not isinstance(state, Tensor) or state.dtype != torch.uint8 or state.dim() != 1:
            raise malformed(f"{saved.where}.cuda[{at}]", expected="a uint8 vector", found=state)
    try:
        random.Random().setstate(streams.python)
        np.random.RandomState().set_state(streams.numpy)
        torch.Generator().set_state(streams.torch)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise Corrupt(f"{saved.where}: a random stream is malformed: {error}") from error
    return streams


def _python() -> Tree:
    version, words, gauss_next = random.getstate()
    return {"version": version, "words": torch.tensor(words), "gauss_next": gauss_next}


def _read_python(saved: Saved) -> tuple[Any, ...]:
    gauss_next = None if saved.tree.get("gauss_next") is None else saved.need("gauss_next", float)
    return saved.count("version"), tuple(_words(saved, "words", 625)), gauss_next


def _numpy() -> Tree:
    state = np.random.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":
        raise Refused(
            f"numpy's global generator is {state['bit_generator']}, only MT19937 is saved: "
            "keep another one in an object of your own and pass it as extra state"
        )
    return {
        "key": torch.from_numpy(state["state"]["key"].astype(np.int64)),
        "pos": int(state["state"]["pos"]),
        "has_gauss": int(state["has_gauss"]),
        "gauss": float(state["gauss"]),
    }


def _read_numpy(saved: Saved) -> dict[str, Any]:
    key = np.array(_words(saved, "key", 624), dtype=np.uint32)
    return {
        "bit_generator": "MT19937",
        "state": {"key": key, "pos": saved.count("pos")},
        "has_gauss": saved.count("has_gauss"),
        "gauss": saved.need("gauss", float),
    }


def _torch() -> Tree:
    # A device that was never used has drawn nothing, and asking would create its context.
    used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {"torch": torch.get_rng_state()} | ({"cuda": torch.cuda.get_rng_state_all()} if used else {})


def _words(saved: Saved, name: str, length: int) -> list[int]:
    """A generator's 32-bit words."""
    words = saved.need(name, Tensor)
    if words.dtype != torch.int64 or words.shape != (length,) or bool(((words < 0) | (words >= 2**32)).any()):
        raise malformed(f"{saved.where}.{name}", expected=f"int64[{length}] of 32-bit words", found=words)
    return words.tolist()
