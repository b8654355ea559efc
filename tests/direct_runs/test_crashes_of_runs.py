"""Whole runs in a bucket that die, fail or pause at any request, up to three deep, and whatever arrives late."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from attrs import define, field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.engines.checkpoints.manifest import Manifest
from milepost.engines.simulated.bucket import SimulatedBucket, StoreFault
from milepost.engines.simulated.faults import Killed, Site
from milepost.journal import Journal, MilepostError
from milepost.journal.forensics.findings import Effect
from milepost.journal.forensics.reading import locate
from milepost.journal.forensics.verifying import verify
from milepost.transitions.validation import ValidationStage
from milepost.transitions.values import parse_iteration
from tests.direct.exploring import land_everything
from tests.direct.places import manifests
from tests.direct_runs.stores import ROOT, RUN, Ambient, Cloud, config, plain, train

POINTER = f"{ROOT}/latest_checkpoint.txt"
UNTIL, LAST = 4, 6
VALIDATED = ("save_every=0", "validation.every_steps=2", "validation.save_checkpoint=true", "validation.at_end=false")
FAULTS = (
    StoreFault(status=0),
    StoreFault(status=409),
    StoreFault(status=412),
    StoreFault(status=503),
    StoreFault(status=0, applied="yes"),
    StoreFault(status=412, applied="yes"),
    StoreFault(status=503, applied="yes"),
    StoreFault(status=0, applied="late"),
    *(StoreFault(status=0, applied="late", after=after) for after in (1, 3, 10, 20, 30, 45, 60, 90)),
)
CHANGES = ("put", "complete")
"""The verbs that make something visible."""


@frozen(kw_only=True)
class Blow:
    """What happens to a start at its request number `at`, of all or of those that change something.

    A death; a pause for the next start; the `fault`; or that the fault begins an outage, in which nothing is answered
    any more.
    """

    at: int
    kind: str
    changes: bool = False
    fault: StoreFault = FAULTS[0]
    arrival: int = 0


BLOWS = st.lists(
    st.builds(
        Blow,
        at=st.integers(min_value=0, max_value=70),
        kind=st.sampled_from(["death", "fault", "pause", "outage"]),
        changes=st.booleans(),
        fault=st.sampled_from(FAULTS),
        arrival=st.integers(min_value=0, max_value=3),
    ),
    min_size=1,
    max_size=3,
)


@define
class World:
    """A bucket, the machines that were used, and what was seen in the bucket and told to the world."""

    folder: Path
    knobs: tuple[str, ...]
    cloud: Cloud = field(factory=Cloud)
    lives: int = 0
    seen: dict[str, Manifest] = field(factory=dict)
    pointed: int = -1
    told: int = -1

    @property
    def bucket(self) -> SimulatedBucket:
        return self.cloud.bucket()

    def live(self, *, until: int, ready: Callable[[str], None] = lambda _name: None) -> Journal:
        """A start on a machine of its own that trains to `until`; each save that it was told of is noted."""
        self.lives += 1
        name = f"life-{self.lives}"
        _, remotes = self.cloud.process(name)
        ready(name)

        def note(_journal: Journal, step: int) -> None:
            self.told = max(self.told, (step - 1) // 2 * 2)  # the boundary before this step has returned

        _, journal = train(
            config(self.folder / name, *self.knobs),
            until=until,
            remotes=remotes,
            ambient=Ambient(host=name),
            each=note,
            validate=(lambda _step: None) if self.knobs else None,
        )
        self.told = max(self.told, until // 2 * 2)
        return journal

    def suffer(self, blows: list[Blow]) -> None:
        """The starts that these blows meet, one inside the other where one pauses."""
        if not blows:
            return
        blow, rest = blows[0], blows[1:]
        store, meant, met = self.bucket.store, list[str](), 0

        def fails(site: Site) -> StoreFault | None:
            if is_met(site.process, site.verb):
                return blow.fault
            out = blow.kind == "outage" and site.process in meant and met > blow.at
            return FAULTS[0] if out else None

        def is_met(process: str, verb: str) -> bool:
            nonlocal met
            if process not in meant or (blow.changes and verb not in CHANGES):
                return False
            met += 1
            return met == blow.at + 1

        def before(process: str, verb: str, _key: str) -> None:
            if not is_met(process, verb):
                return
            if blow.kind == "death":
                raise Killed(f"{process} died")
            store.before = None
            self.suffer(rest)
            with suppress(MilepostError, Killed):
                self.live(until=UNTIL)
            self.look()

        if blow.kind in ("fault", "outage"):
            store.faults = fails
        else:
            store.before = before
        with suppress(MilepostError, Killed):
            self.live(until=UNTIL, ready=meant.append)
        store.before, store.faults = None, lambda _site: None
        self.crash(blow)
        if blow.kind != "pause" or met <= blow.at:
            self.suffer(rest)

    def crash(self, blow: Blow) -> None:
        """Every writer is gone; some of what was under way has arrived, the rest may do so at any later time."""
        images = list(self.bucket.crash_images())
        self.cloud.buckets["store"] = images[blow.arrival % len(images)]
        self.look()

    def look(self) -> None:
        """INV-01 to INV-03 from the bytes alone, and what the reading verbs say of them."""
        tree = self.bucket.tree()
        now = manifests(self.bucket)  # each is held against its files, byte by byte
        assert self.seen.items() <= now.items(), "what was published changed"
        self.seen = now
        steps = {manifest.save.step for manifest in now.values()}
        at = parse_iteration(tree[POINTER].decode().strip()) if POINTER in tree else -1
        assert at is not None and at >= self.pointed, "the pointer went back"
        assert at == -1 or at in steps, "the pointer names nothing"
        self.pointed = at
        assert self.told in (-1, 0) or self.told <= max(steps, default=-1), (
            "a save that was acknowledged is not there"
        )
        if any(key.startswith("exp/one/journal/0") for key in tree):
            found = verify(locate(RUN, opener=Cloud(buckets={"store": SimulatedBucket(self.bucket.key())}).remotes))
            assert [finding for finding in found.findings if finding.effect is not Effect.NOTE] == []

    def finish(self) -> None:
        """A start that nothing happens to ends as if nothing ever had, and nothing that arrives later changes it."""
        journal = self.live(until=LAST)
        assert journal.state.validation.stage is ValidationStage.IDLE
        self.look()
        before = self.bucket.tree()
        assert before[POINTER] == f"iter_{LAST:09d}\n".encode()
        land_everything(self.bucket)
        self.look()
        assert {key: data for key, data in self.bucket.tree().items() if key in before} == before


def explore(blows: list[Blow], *, knobs: tuple[str, ...] = ()) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), knobs)
        world.suffer(blows)
        world.finish()


@pytest.mark.slow
@settings(max_examples=60)
@given(blows=BLOWS)
def test_whatever_happens_at_whichever_requests_what_is_visible_is_whole(blows: list[Blow]) -> None:
    explore(blows)


@pytest.mark.slow
@settings(max_examples=40)
@given(blows=BLOWS)
def test_whatever_happens_to_a_run_that_validates_what_is_visible_is_whole(blows: list[Blow]) -> None:
    explore(blows, knobs=VALIDATED)


@pytest.mark.parametrize("kind", ["death", "pause"])
def test_the_bytes_of_a_run_that_was_struck_are_those_of_one_that_was_not(kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), ())
        world.suffer([Blow(at=70, kind=kind)])
        rest, _ = train(config(Path(folder) / "last"), until=LAST, remotes=world.cloud.remotes)
        assert rest.digest() == plain(LAST).digest()
