"""A run whose primary is a simulated bucket, and processes that write to it: each has a host, a pid and a death."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from attrs import field, frozen

from milepost.engines.buckets.remote import Destination, OpenRemote, Remote, parse_address
from milepost.engines.disks import Disk
from milepost.engines.simulated.bucket import BucketProcess, SimulatedBucket
from milepost.engines.slots import SteppedSlot
from milepost.journal import Config, Journal
from milepost.journal.boundaries import Validate
from tests.journal.runs import FakeWatch, StillAmbient, Training

ROOT = "exp/one/checkpoints"
RUN = "s3://store/exp/one"


class Ambient(StillAmbient):
    """Ids of its own, a host and a pid that a test chooses, and the machine's wall clock."""

    def __init__(self, *, host: str = "host", pid: int = 4242) -> None:
        super().__init__()
        self._host, self._pid = host, pid

    def now(self) -> datetime:
        return datetime.now(UTC)

    def nonce(self) -> str:
        return secrets.token_hex(16)

    def host(self) -> str:
        return self._host

    def pid(self) -> int:
        return self._pid


@frozen(kw_only=True)
class Cloud:
    """Buckets by name; `opened` are the processes that were opened, each with its bucket's name."""

    buckets: dict[str, SimulatedBucket] = field(factory=dict)
    opened: list[tuple[str, Path | None]] = field(factory=list)

    def bucket(self, name: str = "store") -> SimulatedBucket:
        return self.buckets.setdefault(name, SimulatedBucket())

    def tree(self, below: str = "", *, of: str = "store") -> dict[str, bytes]:
        """What lies below a key, without a request."""
        tree = self.bucket(of).tree()
        return {key.removeprefix(below): data for key, data in tree.items() if key.startswith(below)}

    def process(self, name: str) -> tuple[BucketProcess, OpenRemote]:
        """A process with the bucket `store`, and what opens buckets for it."""
        mine = self.bucket().process(name)

        def opening(uri: str, credentials: Path | None) -> Remote:
            named, prefix = parse_address(uri)
            self.opened.append((named, credentials))
            bucket = mine if named == "store" else self.bucket(named)
            return Remote(bucket=bucket, destination=Destination(endpoint="loop", bucket=named, prefix=prefix))

        return mine, opening

    @property
    def remotes(self) -> OpenRemote:
        return self.process("run")[1]

    def copy(self, source: str, target: str, *, to: str = "store") -> None:
        """Every object below `source`, once more below `target`."""
        bucket = self.bucket(to)
        for key, data in self.tree(source).items():
            bucket.create(f"{target}{key}", data, deadline_s=0.0)


def config(root: Path | str, *overrides: str) -> Config:
    """A run that saves every second step to the bucket `store`, below a prefix of its own."""
    direct = {"backend": "object_store", "bucket": "store", "prefix": ROOT}
    rl = {"save_every": 2, "checkpoint_format": "dcp", "checkpoint_store": direct}
    return Config.load({"run": {"output_root": str(root)}, "rl": rl}, overrides)


def opened(
    settings: Config,
    training: Training,
    *,
    remotes: OpenRemote,
    ambient: Ambient | None = None,
    watch: FakeWatch | None = None,
    disk: Disk | None = None,
) -> Journal:
    return Journal.open(
        settings,
        trainer=training.trainer(),
        remotes=remotes,
        disk=disk,
        slot=SteppedSlot(),
        watch=watch or FakeWatch(),
        ambient=ambient or Ambient(pid=os.getpid()),
        environ={},
    )


def train(
    settings: Config,
    *,
    until: int,
    remotes: OpenRemote,
    ambient: Ambient | None = None,
    watch: FakeWatch | None = None,
    each: Callable[[Journal, int], None] = lambda journal, step: None,
    validate: Validate | None = None,
) -> tuple[Training, Journal]:
    """Open, train up to `until`, close. `each` runs inside the body of every step."""
    training = Training()
    with opened(settings, training, remotes=remotes, ambient=ambient, watch=watch) as journal:
        for step in journal.steps(until=until, validate=validate):
            training.step()
            each(journal, step)
    return training, journal


def plain(until: int) -> Training:
    """The same training without a journal."""
    training = Training()
    for _ in range(until):
        training.step()
    return training
