"""A run of two saves in a bucket, its death or a pause at every request, and the writer that comes after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from milepost.engines.checkpoints import GivenUp, Uncertain
from milepost.engines.checkpoints.direct import DirectCheckpoints
from milepost.engines.checkpoints.manifest import Manifest
from milepost.engines.simulated.bucket import SimulatedBucket, StoreFault
from milepost.engines.simulated.faults import Site
from milepost.transitions.errors import MilepostError
from milepost.transitions.values import FULL, SaveId
from tests.direct.places import ROOT, Claims, direct, manifests, pointed, small, writer

STEPS = (7, 8)
FAULTS = {
    "refused": StoreFault(status=500),
    "answer lost": StoreFault(applied="yes"),
    "applied late": StoreFault(applied="late"),
    "applied a little later": StoreFault(applied="late", after=2),
}
CHANGES = ("put", "begin", "part", "complete")


def first(store: SimulatedBucket) -> SimulatedBucket:
    """The store, with what an attempt that died early left of the first step: its metadata and its tombstone."""
    dead = direct(store)
    small(dead, SaveId(STEPS[0], 1, 1))
    assert dead.observe(SaveId(STEPS[0], 1, 1), plan=FULL) is None
    return store


def save_of(step: int, epoch: int) -> SaveId:
    return SaveId(step, epoch, step)


def live(store: SimulatedBucket, checkpoints: DirectCheckpoints, epoch: int) -> None:
    """Save both steps, the first one with a validation to come; every promise is marked in the trace."""
    for step in STEPS:
        save = save_of(step, epoch)
        checkpoints.seal(small(checkpoints, save), pending=step == STEPS[0])
        store.mark("sealed", save)
        checkpoints.point(save, epoch=epoch)
        store.mark("pointed", save)


def settle(checkpoints: DirectCheckpoints, epoch: int) -> list[int]:
    """The steps whose saves of the epoch before are found to be absent."""
    return [step for step in STEPS if checkpoints.observe(save_of(step, epoch - 1), plan=FULL) is None]


def succeed(checkpoints: DirectCheckpoints, epoch: int) -> None:
    """The whole work of a later writer: settle, clear, save again what is absent, point."""
    absent = settle(checkpoints, epoch)
    checkpoints.clear(epoch=epoch, abandoned=())
    for step in absent:
        save = save_of(step, epoch)
        checkpoints.seal(small(checkpoints, save), pending=step == STEPS[0])
    checkpoints.point(save_of(STEPS[-1], epoch), epoch=epoch)


def require_kept(store: SimulatedBucket, before: dict[str, Manifest], told: tuple[tuple[object, ...], ...]) -> None:
    """INV-01 to INV-03 of a store, given what was visible once and what was told to the world."""
    now = manifests(store)
    assert before.items() <= now.items(), "what was published changed"
    visible = {manifest.save for manifest in now.values()}
    for what, save in told:
        assert save in visible, f"{save} was {what} and is not there"
    name = pointed(store)
    pointed_to = [save.step for what, save in told if what == "pointed" and isinstance(save, SaveId)]
    assert not pointed_to or name >= f"iter_{max(pointed_to):09d}", f"the pointer went back to {name}"
    assert not name or any(key.startswith(f"{ROOT}/{name}/") for key in now), f"the pointer names {name}"


def land_everything(store: SimulatedBucket) -> None:
    while store.store.cloud.under_way:
        store.land()


def require_recoverable(image: SimulatedBucket, told: tuple[tuple[object, ...], ...]) -> None:
    """A later writer finishes what this crash left, and what is still under way then changes nothing."""
    before = manifests(image)
    require_kept(image, before, told)
    require_settled(SimulatedBucket(image.key()))
    succeed(writer(image, Claims(2), "later").checkpoints, 3)
    after, at = manifests(image), pointed(image)
    require_kept(image, before, told)
    assert {manifest.save.step for manifest in after.values()} == set(STEPS)
    land_everything(image)
    assert (manifests(image), pointed(image)) == (after, at), "a late request changed something"


def require_settled(image: SimulatedBucket) -> None:
    """What a later writer finds to be absent stays so, whatever is still under way."""
    absent = settle(writer(image, Claims(2), "later").checkpoints, 3)
    land_everything(image)
    there = {manifest.save.step for manifest in manifests(image).values()}
    assert there == set(STEPS) - set(absent), "a save that was said to be absent appeared"


def crash_everywhere() -> None:
    """Every request of a run is its last one, and its answer or effect may be late."""
    store = first(SimulatedBucket())
    length = len(store.trace)
    live(store, writer(store, Claims(1)).checkpoints, 2)
    for cut in range(length, len(store.trace) + 1):  # behind a look too: what was asked for next may arrive late
        for image in store.crash_images(cut):
            require_recoverable(image, store.marks(cut))


def fail_everywhere() -> None:
    """Every request that changes something fails in every way, and then the writer dies."""
    store = first(SimulatedBucket())
    length = len(store.trace)
    live(store, writer(store, Claims(1)).checkpoints, 2)
    sites = [index for index, one in enumerate(store.trace) if index >= length and one.verb in CHANGES]
    for fault in FAULTS.values():
        for index in sites:
            fail_at(index, fault)


def fail_at(index: int, fault: StoreFault) -> None:
    store = first(SimulatedBucket())

    def rule(site: Site) -> StoreFault | None:
        return fault if site.index == index else None

    store.store.faults = rule
    with suppress(GivenUp, Uncertain):
        live(store, writer(store, Claims(1)).checkpoints, 2)
    store.store.faults = lambda _site: None
    for image in store.crash_images():
        require_recoverable(image, store.marks())


def pauses() -> int:
    """At how many places a run can be paused."""
    return len(list(_met(lambda _at: None)[1]))


def _met(paused: Callable[[int], None]) -> tuple[SimulatedBucket, list[int]]:
    store, claims, seen = first(SimulatedBucket()), Claims(1), list[int]()

    def meet() -> None:
        seen.append(len(seen))
        paused(seen[-1])

    old = writer(store, claims, "old")
    claims.looked = meet
    store.store.before = lambda name, _verb, _key: meet() if name == "old" else None
    live(store, old.checkpoints, 2)
    return store, seen


def pause_everywhere(*, halfway: bool) -> None:
    """A writer pauses before every request and look, a later one takes over, and the first one goes on.

    With `halfway` the later one has sent its payload by then, and seals when the first one is done.
    """
    for at in range(pauses()):
        pause_at(at, halfway=halfway)


def pause_at(at: int, *, halfway: bool) -> None:
    store, claims = first(SimulatedBucket()), Claims(1)
    old, count = writer(store, claims, "old"), 0
    later: list[Iterator[None]] = []

    def meet() -> None:
        nonlocal count
        count += 1
        if count != at + 1:
            return
        claims.looked = lambda: None
        store.store.before = None
        later.append(take_over(store, claims, halfway=halfway))
        next(later[0])

    claims.looked = meet
    store.store.before = lambda name, _verb, _key: meet() if name == "old" else None
    try:
        live(store, old.checkpoints, 2)
    except MilepostError:
        pass
    else:
        # The last pointing is a read, a look and a put: who finds the pointer where it belongs is done.
        assert at >= pauses() - 3, "an overtaken writer went on to its end"
    next(later[0], None)
    assert {manifest.save.step for manifest in manifests(store).values()} == set(STEPS)
    assert pointed(store) == f"iter_{STEPS[-1]:09d}"


def take_over(store: SimulatedBucket, claims: Claims, *, halfway: bool) -> Iterator[None]:
    """The work of a later writer, with a break in which the first one goes on; whatever was visible by then stays."""
    checkpoints = writer(store, claims, "later").checkpoints
    if halfway:
        ready = [small(checkpoints, save_of(step, 3)) for step in settle(checkpoints, 3)]
        before = manifests(store)
        yield
        for manifest in ready:
            checkpoints.seal(manifest, pending=manifest.save.step == STEPS[0])
        checkpoints.point(save_of(STEPS[-1], 3), epoch=3)
    else:
        succeed(checkpoints, 3)
        before = manifests(store)
        yield
        assert manifests(store) == before, "an overtaken writer published something"
    require_kept(store, before, ())
