"""A run in a bucket dies, fails or pauses at every request; what is published stays whole and the pointer goes on."""

from __future__ import annotations

import pytest

from milepost.engines.checkpoints import GivenUp
from milepost.engines.checkpoints.manifest import MANIFEST
from milepost.engines.simulated.bucket import SimulatedBucket
from milepost.transitions.errors import Fenced
from milepost.transitions.values import FULL, SaveId
from tests.direct import exploring
from tests.direct.exploring import save_of
from tests.direct.places import ROOT, Claims, manifests, pointed, small, writer

HERE = f"{ROOT}/iter_000000007"


def test_the_death_of_a_writer_at_any_request_leaves_what_a_later_one_completes() -> None:
    exploring.crash_everywhere()


def test_a_request_that_fails_in_any_way_leaves_what_a_later_writer_completes() -> None:
    exploring.fail_everywhere()


def test_a_writer_that_pauses_anywhere_changes_nothing_of_the_one_that_took_over() -> None:
    exploring.pause_everywhere(halfway=False)


def test_a_writer_that_pauses_anywhere_changes_nothing_of_one_that_is_halfway() -> None:
    exploring.pause_everywhere(halfway=True)


class Paused:
    """A writer that stops once before a request, while `meanwhile` goes on."""

    def __init__(self) -> None:
        self.store, self.claims = SimulatedBucket(), Claims(1)
        self.old = writer(self.store, self.claims, "old").checkpoints

    def before(self, verb: str, key: str) -> None:
        def hook(name: str, met: str, at: str) -> None:
            if (name, met, at) == ("old", verb, key):
                self.store.store.before = None
                self.meanwhile()

        self.store.store.before = hook

    def meanwhile(self) -> None:
        exploring.succeed(writer(self.store, self.claims, "later").checkpoints, 3)
        self.after = manifests(self.store), pointed(self.store)

    def require_unchanged(self) -> None:
        assert self.store.store.before is None
        assert (manifests(self.store), pointed(self.store)) == self.after


@pytest.fixture
def paused() -> Paused:
    return Paused()


@pytest.mark.parametrize("verb", ["fetch", "put"])
def test_a_manifest_that_is_sent_after_its_save_was_revoked_is_not_published(paused: Paused, verb: str) -> None:
    manifest = small(paused.old, save_of(7, 2))
    paused.before(verb, f"{HERE}/{MANIFEST}")
    with pytest.raises((Fenced, GivenUp)):
        paused.old.seal(manifest, pending=False)
    paused.require_unchanged()
    assert {one.save for one in paused.after[0].values()} == {save_of(7, 3), save_of(8, 3)}


@pytest.mark.parametrize("verb", ["fetch", "put"])
def test_metadata_of_an_overtaken_writer_does_not_replace_that_of_its_successor(paused: Paused, verb: str) -> None:
    paused.before(verb, f"{HERE}/model/.metadata")
    with pytest.raises((Fenced, GivenUp)):
        small(paused.old, save_of(7, 2))
    paused.require_unchanged()


@pytest.mark.parametrize("verb", ["fetch", "put"])
def test_the_pointer_of_an_overtaken_writer_does_not_go_back(paused: Paused, verb: str) -> None:
    paused.old.seal(small(paused.old, save_of(7, 2)), pending=False)
    paused.before(verb, f"{ROOT}/latest_checkpoint.txt")
    with pytest.raises(Fenced):
        paused.old.point(save_of(7, 2), epoch=2)
    paused.require_unchanged()
    assert pointed(paused.store) == "iter_000000008"


def test_a_revoker_that_was_overtaken_revokes_nothing(paused: Paused) -> None:
    small(paused.old, save_of(7, 2))
    paused.before("put", f"{HERE}/{MANIFEST}")
    assert paused.old.observe(SaveId(7, 1, 1), plan=FULL) is None
    paused.require_unchanged()


def test_a_manifest_that_appears_while_its_save_is_revoked_is_found(paused: Paused) -> None:
    manifest = small(paused.old, save_of(7, 2))
    later = writer(paused.store, paused.claims, "later")

    def hook(name: str, verb: str, key: str) -> None:
        if (name, verb, key) == ("later", "put", f"{HERE}/{MANIFEST}"):
            paused.store.store.before = None
            paused.claims.epoch -= 1  # its writer looked before the claim, and its request arrives now
            paused.old.seal(manifest, pending=False)
            paused.claims.epoch += 1

    paused.store.store.before = hook
    found = later.checkpoints.observe(save_of(7, 2), plan=FULL)
    assert found is not None
    assert found.manifest == manifest
