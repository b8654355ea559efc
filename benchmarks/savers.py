"""Whoever saves a state beside a loop: milepost and torch.distributed.checkpoint, behind one small protocol."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save

from benchmarks.machine import remove, sync_tree
from benchmarks.state import State
from milepost.engines.slots import ThreadSlot
from milepost.journal import Config, Journal

_NEVER_DUE = 1_000_000
"""A run that saves by a cadence, so that it prepares for it, and whose cadence is not reached here."""


class Saver(Protocol):
    """Saves the state, again and again, each time below a new name."""

    def start(self) -> None:
        """Begin a save; returns when the loop may change its tensors."""
        ...

    @property
    def busy(self) -> bool:
        """Whether the save is still being written."""
        ...

    def join(self) -> None:
        """Wait until it is durable under its final name."""
        ...

    def clear(self) -> None:
        """Remove what was saved."""
        ...

    def close(self) -> None: ...


class Milepost:
    """A run of milepost, saved by `Journal.save` as a loop would between two steps."""

    def __init__(self, state: State, folder: Path, *, background: bool = True) -> None:
        knobs = {"save_every": _NEVER_DUE, "save_async": background}
        config = Config.load({"run": {"output_root": str(folder)}, "rl": knobs})
        self._folder = folder
        self._slot = ThreadSlot()
        self._step = 0
        self.journal = Journal.open(config, trainer=state.trainer(), slot=self._slot)

    def start(self) -> None:
        self._step += 1
        self.journal.save(self._step)

    @property
    def busy(self) -> bool:
        return self._slot.busy

    def join(self) -> None:
        self.journal.finalize()

    def train(self, step: Callable[[], object], *, steps: int) -> None:
        """Run some steps of a training loop."""
        for number in self.journal.steps(until=self._step + steps):
            step()
            self._step = number

    def clear(self) -> None:
        for checkpoint in self._folder.glob("**/iter_*"):
            remove(checkpoint)

    def close(self) -> None:
        self.journal.close()
        remove(self._folder)


class DcpAsync:
    """`async_save`, as it comes or with a stager that keeps its memory."""

    def __init__(self, state: State, folder: Path, *, reusing: bool) -> None:
        self._tree = state.named()
        self._path = folder
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
        self._stager = DefaultStager(options) if reusing else None
        self._saving: Future[Any] | None = None

    def start(self) -> None:
        saving = async_save(self._tree, checkpoint_id=self._path, async_stager=self._stager, no_dist=True)
        assert isinstance(saving, Future), "a stager that does not stage in the background has staged by now"
        self._saving = saving

    @property
    def busy(self) -> bool:
        return self._saving is not None and not self._saving.done()

    def join(self) -> None:
        assert self._saving is not None
        self._saving.result()
        sync_tree(self._path)

    def clear(self) -> None:
        remove(self._path)

    def close(self) -> None:
        self.clear()
        if self._stager is not None:
            self._stager.close()


def once(saver: Saver) -> None:
    """One whole save, so that what is allocated once is there."""
    saver.start()
    saver.join()
    saver.clear()
