"""A run is struck down a few times, started again after each, and in the end compared with one that lived in peace.

After each blow the disk is looked at before anything heals it: what was acknowledged is there and whole. The start
after it continues from the newest published checkpoint. In the end every loss and every random draw of every epoch,
and every byte of the last checkpoint, are those of the run in peace. What is evaluated was published before, and what
retention took away is whole but for that.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from attrs import define, frozen

from milepost.journal.forensics.reading import locate
from milepost.journal.forensics.verifying import verify
from tests.kills.looking import NOTHING, Look, look, pointed, segments, staged
from tests.kills.nursery import Nursery, alive
from tests.kills.training import STEPS

NAME = "run"

_POLL_S = 0.0005
_RECOVERY_BYTES = 1500
"""About what a start writes to the log until it knows what it continues from."""


def live_in_peace(nursery: Nursery, root: Path, *, asynchronous: bool, policies: bool) -> Look:
    """What a run leaves that nobody disturbs."""
    nursery.whole(root, NAME, asynchronous=asynchronous, policies=policies)
    return look(root, NAME)


@define
class Tally:
    """Where the blows landed."""

    blows: int = 0
    in_saves: int = 0
    in_recoveries: int = 0
    too_late: int = 0

    def __str__(self) -> str:
        return (
            f"{self.blows} blows: {self.in_saves} in a save, {self.in_recoveries} in a recovery, "
            f"{self.too_late} after the end"
        )


@frozen(kw_only=True)
class Trial:
    """One run below `root`. `strike` gets the pid of the living process, `revive` is called when it is dead."""

    nursery: Nursery
    root: Path
    asynchronous: bool
    peace: Look
    strike: Callable[[int], object]
    revive: Callable[[], object]
    codes: frozenset[int]
    """How a struck run may end, beside well."""

    def run(self, rng: random.Random, tally: Tally, *, blows: int) -> None:
        """Strike `blows` times, then let it end."""
        before, acknowledged = NOTHING, 0
        for _ in range(blows):
            before, acknowledged = self._strike(rng, tally, before, acknowledged)
        require_end(
            self.nursery,
            self.root,
            asynchronous=self.asynchronous,
            policies=True,
            peace=self.peace,
            continues_from=before.newest,
        )

    def _strike(self, rng: random.Random, tally: Tally, before: Look, acknowledged: int) -> tuple[Look, int]:
        pid = self.nursery.start(self.root, NAME, asynchronous=self.asynchronous, policies=True)
        seen_enough, later_s = self._aim(rng, before)
        while alive(pid) and not seen_enough():
            time.sleep(_POLL_S)
        time.sleep(later_s)
        self.strike(pid)
        ended = self.nursery.wait()
        self.revive()
        assert ended.code in self.codes | {0}, ended
        if ended.opened_at is not None:
            assert ended.opened_at == before.newest, f"continued from {ended.opened_at}, there was {before.newest}"
        seen = look(self.root, NAME)
        acknowledged = max(acknowledged, ended.acknowledged)
        assert seen.newest >= acknowledged, f"step {acknowledged} was acknowledged, the newest is {seen.newest}"
        assert pointed(self.root, NAME) >= acknowledged
        require_same(seen, self.peace)
        tally.blows += 1
        tally.too_late += ended.code == 0
        tally.in_saves += ended.code != 0 and ended.opened_at is not None and seen.saving
        claimed = len(seen.segments) > len(before.segments)
        tally.in_recoveries += ended.opened_at is None and claimed and before is not NOTHING
        return seen, acknowledged

    def _aim(self, rng: random.Random, before: Look) -> tuple[Callable[[], bool], float]:
        """What has to be seen before the blow, and how many seconds after that it falls.

        The log is the clock: it ticks in steps, in saves and in recovery, however busy the machine is. Of the blows
        after the first, half fall into the start, which recovers from the blow before; most others wait for a save.
        """
        kind = rng.choices(("save", "recovery", "anywhere"), (2, 3 * (before is not NOTHING), 1))[0]
        most = _RECOVERY_BYTES if kind == "recovery" else self.peace.segments[0] * (1 - before.newest / STEPS)
        written = rng.uniform(0, most)

        def seen() -> bool:
            here = segments(self.root, NAME)
            ticked = len(here) > len(before.segments) and here[-1] >= written
            return ticked and (kind != "save" or bool(staged(self.root, NAME) - before.staged))

        return seen, rng.uniform(0, 0.002 if kind == "recovery" else 0.005)


def require_same(seen: Look, peace: Look) -> None:
    """Every step of every epoch reported what the run in peace did."""
    (peaceful,) = peace.losses.values()
    for epoch, losses in seen.losses.items():
        for step, metrics in losses.items():
            assert metrics == peaceful[step], f"step {step} of epoch {epoch} differs"


def require_end(
    nursery: Nursery, root: Path, *, asynchronous: bool, policies: bool, peace: Look, continues_from: int
) -> None:
    """Start the run once more: it goes on from there to what the run in peace came to, in every bit."""
    ended = nursery.whole(root, NAME, asynchronous=asynchronous, policies=policies)
    assert ended.opened_at == continues_from
    seen = look(root, NAME)
    require_same(seen, peace)
    assert set().union(*seen.losses.values()) == set(range(1, STEPS + 1))
    assert seen.digests == peace.digests
    assert pointed(root, NAME) == STEPS
    verified = verify(locate(str(root / "milepost" / "default" / NAME)))
    assert verified.exit_code == 0, verified.findings


def seeded() -> tuple[int, random.Random]:
    """A seed, drawn or `$MILEPOST_KILLS_SEED`, and what it gives."""
    seed = int(os.environ.get("MILEPOST_KILLS_SEED") or random.SystemRandom().randrange(1 << 32))
    return seed, random.Random(seed)
