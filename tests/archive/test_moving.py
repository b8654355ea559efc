"""Objects go from store to store and onto a disk as they are: once, proven, and in an order that is safe to see."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from milepost.engines.archive.declaration import DECLARATION
from milepost.engines.archive.moving import POINTER, Moved, copy, download
from milepost.engines.archive.publisher import publish
from milepost.engines.buckets.remote import Remote
from milepost.engines.checkpoints.manifest import MANIFEST
from milepost.engines.simulated import Fault, Killed, SimulatedDisk
from milepost.engines.simulated.bucket import SimulatedBucket
from milepost.transitions.errors import Busy, Corrupt, Misconfigured, Refused
from tests.archive.published import AMBIENT, KEPT, NAME, on_disk, release, remote, saved

OPTIM = ("optim/__0_0.distcp", "optim/.metadata")


def tree_of_an_archive() -> SimulatedBucket:
    """A tree with an archive, the pointer, and a file that no manifest knows."""
    bucket, one = SimulatedBucket(), saved(SimulatedDisk())
    publish(one.disk, one.path, remote(bucket), ambient=AMBIENT, promises=KEPT)
    bucket.create(f"run/checkpoints/{POINTER}", f"{NAME}\n".encode(), deadline_s=1)
    put(bucket, "run/checkpoints/notes with spaces.txt", b"mine")
    return bucket


@pytest.fixture
def source() -> SimulatedBucket:
    return tree_of_an_archive()


def put(bucket: SimulatedBucket, key: str, data: bytes) -> None:
    with bucket.upload(key, size_hint=0) as upload:
        upload.write(data)
        upload.commit()


def copied(source: SimulatedBucket, target: SimulatedBucket) -> Moved:
    return copy(remote(source), remote(target, prefix="kept"), ambient=AMBIENT, promises=KEPT)


def empty() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir("stage")
    disk.sync_dir("")
    return disk


def downloaded(source: SimulatedBucket, disk: SimulatedDisk) -> Moved:
    return download(remote(source), disk, "stage/here", ambient=AMBIENT)


def paths(source: SimulatedBucket) -> dict[str, bytes]:
    return {key.removeprefix("run/checkpoints/"): data for key, data in source.tree().items()}


class TestCopy:
    def test_everything_is_copied_and_a_second_copy_moves_nothing(self, source: SimulatedBucket) -> None:
        target = SimulatedBucket()
        told = copied(source, target)
        expected = paths(source)
        assert target.tree() == {f"kept/{path}": data for path, data in expected.items()}
        assert (set(told.moved), told.found) == (set(expected), ())
        assert told.bytes == sum(map(len, expected.values()))
        again = copied(source, target)
        assert (again.moved, set(again.found)) == ((), set(expected))

    def test_the_declaration_is_first_then_payload_then_the_manifest_and_the_pointer_last(
        self, source: SimulatedBucket
    ) -> None:
        target = SimulatedBucket()
        copied(source, target)
        order = [one.key.rpartition("/")[2] for one in target.trace if one.verb in ("put", "complete")]
        assert (order[0], order[-2:]) == (DECLARATION, [MANIFEST, POINTER])

    def test_the_death_of_the_copier_at_any_request_never_shows_a_manifest_without_its_payload(
        self, source: SimulatedBucket
    ) -> None:
        whole, at, killed = paths(source), 0, True
        while killed:
            target, killed = SimulatedBucket(), False
            writer = target.process("writer")
            writer.wire.kill_at = at
            try:
                copy(remote(source), remote(writer, prefix="kept"), ambient=AMBIENT, promises=KEPT)
            except Killed:
                killed, at = True, at + 1
            left = {key.removeprefix("kept/"): data for key, data in target.tree().items()}
            assert left.items() <= whole.items()
            payload = {path for path in whole if path.startswith(NAME) and not path.endswith(MANIFEST)}
            assert f"{NAME}/{MANIFEST}" not in left or payload <= left.keys()
            assert POINTER not in left or left == whole
            copied(source, target)
            assert target.tree() == {f"kept/{path}": data for path, data in whole.items()}

    def test_what_differs_at_the_target_is_refused_and_no_manifest_is_copied(self, source: SimulatedBucket) -> None:
        target = SimulatedBucket()
        put(target, f"kept/{NAME}/model.pt", b"weights of the MODEL")
        with pytest.raises(Refused, match="something else is there"):
            copied(source, target)
        assert target.tree()[f"kept/{NAME}/model.pt"] == b"weights of the MODEL"
        assert f"kept/{NAME}/{MANIFEST}" not in target.tree()

    @pytest.mark.parametrize("prefix", ["", "run/"], ids=["the pointer", "the manifest"])
    def test_another_object_that_appears_meanwhile_is_not_replaced(
        self, source: SimulatedBucket, prefix: str
    ) -> None:
        target = SimulatedBucket()
        key = f"kept/{NAME}/{MANIFEST}" if prefix else f"kept/{POINTER}"
        other = target.process("other")

        def create(process: str, verb: str, asked: str) -> None:
            if (process, verb, asked) == ("main", "put", key):
                other.create(key, b"theirs", deadline_s=1)

        target.store.before = create
        with pytest.raises(Refused, match="something else is there"):
            copied(source, target)
        assert target.tree()[key] == b"theirs"

    def test_a_store_that_ignores_conditions_gets_nothing(self, source: SimulatedBucket) -> None:
        target = SimulatedBucket()
        target.store.conditions = "ignored"
        with pytest.raises(Misconfigured, match="does not keep create"):
            copy(remote(source), remote(target, prefix="kept"), ambient=AMBIENT)
        assert target.tree() == {}

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (lambda bucket, key: put(bucket, key, b"weights of the MODEL"), "expected the digest"),
            (lambda bucket, key: bucket.delete(key), "found nothing"),
        ],
        ids=["changed", "missing"],
    )
    def test_an_object_that_is_not_what_its_manifest_says_is_corrupt_and_not_copied(
        self, source: SimulatedBucket, spoil: Callable[[SimulatedBucket, str], None], message: str
    ) -> None:
        target = SimulatedBucket()
        spoil(source, f"run/checkpoints/{NAME}/model.pt")
        with pytest.raises(Corrupt, match=message):
            copied(source, target)
        assert not [key for key in target.tree() if key.endswith(("model.pt", MANIFEST))]

    def test_what_a_late_listing_lacks_is_copied_as_the_manifest_names_it(self, source: SimulatedBucket) -> None:
        target, late = SimulatedBucket(), SimulatedBucket()
        for key, data in source.tree().items():
            if not key.endswith("model.pt"):
                put(late, key, data)
        put(late, f"run/checkpoints/{NAME}/model.pt", b"weights of the model")
        late.store.listing_lag = 3
        copied(late, target)
        assert target.tree()[f"kept/{NAME}/model.pt"] == b"weights of the model"

    def test_what_was_released_before_is_not_missed(self) -> None:
        bucket, target, one = SimulatedBucket(), SimulatedBucket(), saved(SimulatedDisk())
        release(one, OPTIM)
        publish(one.disk, one.path, remote(bucket), ambient=AMBIENT, promises=KEPT)
        copied(bucket, target)
        assert len(target.tree()) == len(bucket.tree())

    def test_an_empty_address_is_refused(self) -> None:
        with pytest.raises(Refused, match="found none"):
            copied(SimulatedBucket(), SimulatedBucket())


class TestDownload:
    def test_everything_is_downloaded_and_a_second_call_moves_nothing(self, source: SimulatedBucket) -> None:
        disk = empty()
        told = downloaded(source, disk)
        expected = paths(source)
        assert on_disk(disk, "stage/here") == expected
        assert (set(told.moved), told.found) == (set(expected), ())
        again = downloaded(source, disk)
        assert (again.moved, set(again.found)) == ((), set(expected))
        assert disk.names("stage") == ("here",)

    def test_what_differs_on_the_disk_is_refused_and_no_manifest_comes(self, source: SimulatedBucket) -> None:
        disk = empty()
        downloaded(source, disk)
        disk.rewrite(f"stage/here/{NAME}/model.pt", offset=0, data=b"W")
        disk.unlink(f"stage/here/{NAME}/{MANIFEST}")
        with pytest.raises(Refused, match="something else is there"):
            downloaded(source, disk)
        assert disk.stat(f"stage/here/{NAME}/{MANIFEST}") is None

    def test_a_wrong_object_is_corrupt_and_gets_no_name(self, source: SimulatedBucket) -> None:
        put(source, f"run/checkpoints/{NAME}/model.pt", b"weights of the MODEL")
        disk = empty()
        with pytest.raises(Corrupt, match="expected the digest"):
            downloaded(source, disk)
        assert disk.stat(f"stage/here/{NAME}/model.pt") is None
        assert disk.stat(f"stage/here/{NAME}/{MANIFEST}") is None

    def test_two_downloads_at_once_are_busy(self, source: SimulatedBucket) -> None:
        disk = empty()
        disk.lock("stage/.downloading-here.lock")
        with pytest.raises(Busy, match="another process"):
            downloaded(source, disk)

    def test_a_full_disk_leaves_no_name_and_the_next_call_goes_on(self, source: SimulatedBucket) -> None:
        disk = empty()
        disk.hardware.faults = lambda site: Fault(error=28) if site.verb == "sync" else None
        with pytest.raises(OSError, match="No space left"):
            downloaded(source, disk)
        assert not [path for path in on_disk(disk, "stage/here") if not path.endswith(".lock")]
        disk.hardware.faults = lambda _site: None
        downloaded(source, disk)
        assert on_disk(disk, "stage/here") == paths(source)

    def test_a_power_cut_or_kill_at_any_operation_never_shows_a_manifest_without_its_payload(self) -> None:
        bucket, disk = SimulatedBucket(), empty()
        one = saved(SimulatedDisk(), payload={"model.pt": b"m", "d.pt": b"d"})
        publish(one.disk, one.path, remote(bucket), ambient=AMBIENT, promises=KEPT)
        source = Remote(bucket=bucket, destination=remote(prefix="run").destination)
        download(source, disk, "stage/here", ambient=AMBIENT)
        whole = on_disk(disk, "stage/here")
        disk.mark("downloaded")
        for length in disk.cuts():
            for image in (*disk.crash_images(length), disk.killed(length)):
                if image.stat("stage/here") is None:
                    continue
                left = on_disk(image, "stage/here")
                left.pop(".downloading", None)
                assert left.items() <= whole.items()
                assert not any(path.endswith(MANIFEST) for path in left) or left == whole
                assert left == whole or ("downloaded",) not in disk.marks(length)
                download(source, image, "stage/here", ambient=AMBIENT)
                assert on_disk(image, "stage/here") == whole
