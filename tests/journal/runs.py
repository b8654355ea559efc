"""A tiny run for the tests of the journal: a model of a few numbers, a loop, a clock that only moves when asked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import torch

from milepost.engines.buckets.remote import OpenRemote
from milepost.engines.disks import Disk
from milepost.engines.slots import Slot, SteppedSlot
from milepost.engines.termination import Termination
from milepost.engines.trainers import PlainTrainer, ShuffledBatches
from milepost.journal import Config, Journal
from milepost.journal.boundaries import Validate
from milepost.journal.saves import KeepFn


class StillAmbient:
    """A clock that advances by a millisecond a look, and ids that count."""

    def __init__(self) -> None:
        self._looks = 0
        self._ids = 0

    def now(self) -> datetime:
        self._looks += 1
        return datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC) + timedelta(milliseconds=self._looks)

    def monotonic_s(self) -> float:
        return self._looks / 1000

    def nonce(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def execution_id(self) -> str:
        self._ids += 1
        return f"execution-{self._ids}"

    def host(self) -> str:
        return "host"

    def pid(self) -> int:
        return 4242


class FakeWatch:
    """A termination that a test asks for."""

    limits: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.seen: Termination | None = None
        self.closed = False

    def observed(self) -> Termination | None:
        return self.seen

    def close(self) -> None:
        self.closed = True


class Training:
    """A deterministic training of a few parameters with AdamW, a schedule, dropout and `rows` of shuffled data."""

    def __init__(self, rows: int = 12) -> None:
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=3)
        self.batches = ShuffledBatches(rows, batch_size=4, seed=3, drop_last=rows % 4 == 0)
        self._iterator = iter(self.batches)
        self.losses: list[float] = []

    def trainer(self) -> PlainTrainer:
        return PlainTrainer(model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, data=self.batches)

    def step(self) -> float:
        try:
            indices = next(self._iterator)
        except StopIteration:
            self._iterator = iter(self.batches)
            indices = next(self._iterator)
        inputs = torch.tensor([[i, i + 1.0, i * 0.5] for i in indices]) / 12
        loss = self.model(inputs).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.losses.append(loss.item())
        return loss.item()

    def digest(self) -> tuple[float, ...]:
        """Every parameter, exactly."""
        return tuple(float(x) for p in self.model.parameters() for x in p.detach().flatten())


def config(root: Path | str, *overrides: str) -> Config:
    """A run that saves every second step below `root`."""
    return Config.load({"run": {"output_root": str(root)}, "rl": {"save_every": 2}}, overrides)


def train(
    settings: Config,
    *,
    until: int,
    disk: Disk | None = None,
    slot: Slot | None = None,
    watch: FakeWatch | None = None,
    ambient: StillAmbient | None = None,
    each: Callable[[Journal, int], None] = lambda journal, step: None,
    validate: Validate | None = None,
    keep_fn: KeepFn | None = None,
    rows: int = 12,
    remotes: OpenRemote | None = None,
) -> tuple[Training, Journal]:
    """Open, train up to `until`, close. `each` runs inside the body of every step."""
    training = Training(rows)
    with Journal.open(
        settings,
        trainer=training.trainer(),
        keep_fn=keep_fn,
        disk=disk,
        slot=slot or SteppedSlot(),
        watch=watch or FakeWatch(),
        ambient=ambient or StillAmbient(),
        remotes=remotes,
        environ={},
    ) as journal:
        for step in journal.steps(until=until, validate=validate):
            loss = training.step()
            journal.report(loss=loss)
            each(journal, step)
    return training, journal
