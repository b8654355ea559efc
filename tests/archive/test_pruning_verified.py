"""Payload goes only where receipt, credentials, local bytes and live objects all agree; else it stays, and why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve

from milepost.engines.archive.declaration import DECLARATION
from milepost.engines.archive.publisher import publish
from milepost.engines.archive.reader import fetch
from milepost.engines.archive.receipt import RECEIPT
from milepost.engines.archive.releasing import Pruned, prune_verified
from milepost.engines.buckets.remote import Destination, Remote
from milepost.engines.checkpoints import released
from milepost.engines.checkpoints.manifest import ARTIFACT, MANIFEST
from milepost.engines.checkpoints.released import RELEASED
from milepost.engines.simulated import SimulatedDisk
from milepost.engines.simulated.bucket import SimulatedBucket, StoreFault
from milepost.transitions.values import Component
from tests.archive.published import AMBIENT, KEPT, NAME, SAVE, Saved, on_disk, release, remote, saved, write

HOME = f"run/checkpoint_artifacts/{NAME}"
PAYLOAD = {"model.pt": b"weights of the model", "model/__0_0.distcp": b"shard"}


def artifact(disk: SimulatedDisk | None = None) -> Saved:
    plan = (Component.MODEL,)
    return saved(disk or SimulatedDisk(), payload=PAYLOAD, plan=plan, above="run/checkpoint_artifacts")


def archived(one: Saved, bucket: SimulatedBucket) -> None:
    publish(one.disk, one.path, remote(bucket), ambient=AMBIENT, promises=KEPT)


def pruned(one: Saved, bucket: SimulatedBucket, *, endpoint: str = "store:1") -> Pruned:
    def opener(destination: Destination) -> Remote | None:
        return Remote(bucket=bucket, destination=destination) if destination.endpoint == endpoint else None

    return prune_verified(one.disk, one.path, opener=opener, ambient=AMBIENT)


def there(one: Saved) -> set[str]:
    return set(on_disk(one.disk, one.path))


def replace(bucket: SimulatedBucket, path: str, data: bytes) -> None:
    with bucket.upload(f"{HOME}/{path}", size_hint=0) as upload:
        upload.write(data)
        upload.commit()


def test_the_payload_of_a_proven_archive_goes_and_the_rest_says_so() -> None:
    one, bucket = artifact(), SimulatedBucket()
    write(one.disk, "run/journal/00000001.jsonl", b"")
    archived(one, bucket)
    told = pruned(one, bucket)
    assert (told.kept, told.files, told.freed) == ("", 2, sum(map(len, PAYLOAD.values())))
    assert there(one) == {ARTIFACT, RECEIPT, RELEASED}
    assert released.read(one.disk, one.path) == tuple(PAYLOAD)
    assert one.disk.stat(f"{one.path}/model") is None
    one.disk.mkdir("stage")
    fetch(remote(bucket).at(HOME), one.disk, f"stage/{NAME}", ambient=AMBIENT)
    assert on_disk(one.disk, f"stage/{NAME}") == one.files


def test_pruning_again_finds_nothing_to_do() -> None:
    one, bucket = artifact(), SimulatedBucket()
    archived(one, bucket)
    pruned(one, bucket)
    again = pruned(one, bucket)
    assert (again.kept, again.files, again.freed) == ("", 0, 0)


def test_a_checkpoint_without_a_journal_goes_and_one_of_a_run_stays() -> None:
    one, bucket = saved(SimulatedDisk(), above="run/checkpoints"), SimulatedBucket()
    archived(one, bucket)
    write(one.disk, "run/journal/00000001.jsonl", b"")
    assert "`milepost prune` takes it" in pruned(one, bucket).kept
    assert there(one) == {*one.files, RECEIPT}
    one.disk.unlink("run/journal/00000001.jsonl")
    one.disk.rmdir("run/journal")
    assert pruned(one, bucket).kept == ""
    assert there(one) == {MANIFEST, RECEIPT, RELEASED}


def test_a_checkpoint_from_which_retention_took_a_part_stays() -> None:
    one, bucket = saved(SimulatedDisk(), above="run/checkpoints"), SimulatedBucket()
    archived(one, bucket)
    release(one, ("optim/__0_0.distcp", "optim/.metadata"))
    assert "speaks of other files" in pruned(one, bucket).kept
    assert {"model.pt", "data.pt"} < there(one)


def lose_receipt(one: Saved, _bucket: SimulatedBucket) -> None:
    one.disk.unlink(f"{one.path}/{RECEIPT}")


def text_receipt(one: Saved, bucket: SimulatedBucket) -> None:
    lose_receipt(one, bucket)
    write(one.disk, f"{one.path}/{RECEIPT}", b"uploaded\n")


def change_local(one: Saved, _bucket: SimulatedBucket) -> None:
    one.disk.rewrite(f"{one.path}/model.pt", offset=0, data=b"W")


def lose_local(one: Saved, _bucket: SimulatedBucket) -> None:
    one.disk.unlink(f"{one.path}/model.pt")


def stay_away(_one: Saved, bucket: SimulatedBucket) -> None:
    bucket.store.faults = lambda _site: StoreFault(status=503)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lose_receipt, "it was not archived"),
        (text_receipt, "binds no destination and no digest"),
        (change_local, "model.pt: expected the archived sha256:"),
        (lose_local, "model.pt: expected the 20 bytes that were archived, found nothing"),
        (lambda _one, bucket: bucket.delete(f"{HOME}/model.pt"), "model.pt: expected 20 bytes"),
        (lambda _one, bucket: bucket.delete(f"{HOME}/{ARTIFACT}"), f"{ARTIFACT}: expected "),
        (lambda _one, bucket: bucket.delete(f"{HOME}/{DECLARATION}"), f"{DECLARATION}: expected "),
        (lambda _one, bucket: replace(bucket, "model.pt", b"weights of the MODEL"), "model.pt: expected the digest"),
        (lambda _one, bucket: replace(bucket, "model.pt", b"weights"), "found 7 bytes"),
        (stay_away, "was answered with 503"),
    ],
    ids=["no receipt", "text", "changed", "lost", "gone", "no manifest", "no declaration", "other", "short", "away"],
)
def test_whatever_does_not_agree_keeps_the_copy_with_the_reason(
    spoil: Callable[[Saved, SimulatedBucket], None], why: str
) -> None:
    one, bucket = artifact(), SimulatedBucket()
    archived(one, bucket)
    spoil(one, bucket)
    before = on_disk(one.disk, one.path)
    told = pruned(one, bucket)
    assert why in told.kept
    assert (told.files, told.freed) == (0, 0)
    assert on_disk(one.disk, one.path) == before


def test_credentials_of_another_store_keep_the_copy() -> None:
    one, bucket = artifact(), SimulatedBucket()
    archived(one, bucket)
    told = pruned(one, bucket, endpoint="elsewhere:1")
    assert "another store than store:1" in told.kept
    assert there(one) == {*one.files, RECEIPT}


def test_a_power_cut_or_kill_at_any_operation_leaves_a_marker_before_anything_is_gone() -> None:
    disk, bucket = SimulatedDisk(), SimulatedBucket()
    one = artifact(disk)
    archived(one, bucket)
    started = len(disk.trace)
    pruned(one, bucket)
    disk.mark("pruned")
    for length in disk.cuts():
        if length < started:
            continue
        for image in (*disk.crash_images(length), disk.killed(length)):
            found = on_disk(image, one.path)
            if missing := one.files.keys() - found.keys():
                assert missing <= PAYLOAD.keys()
                assert found[RELEASED] == released.encode(SAVE, tuple(PAYLOAD))
            assert not found.keys() & PAYLOAD.keys() or ("pruned",) not in disk.marks(length)
            assert pruned(evolve(one, disk=image), bucket).kept == ""
            assert set(on_disk(image, one.path)) == {ARTIFACT, RECEIPT, RELEASED}
