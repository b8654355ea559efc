"""An archive becomes a new directory: proven, whole, at once; or there is none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from milepost.engines.archive import declaration
from milepost.engines.archive.declaration import DECLARATION
from milepost.engines.archive.publisher import publish
from milepost.engines.archive.reader import Fetched, fetch
from milepost.engines.buckets.remote import Remote
from milepost.engines.checkpoints import generations
from milepost.engines.checkpoints.manifest import ARTIFACT, MANIFEST
from milepost.engines.checkpoints.marker import SUCCESS
from milepost.engines.disks import Disk
from milepost.engines.simulated import Killed, SimulatedDisk
from milepost.engines.simulated.bucket import SimulatedBucket, StoreFault
from milepost.transitions.errors import Busy, Corrupt, Refused, Unavailable
from milepost.transitions.validation import Generation
from milepost.transitions.values import Component
from tests.archive.published import (
    AMBIENT,
    KEPT,
    NAME,
    ONE_TRAINER,
    TWO_ROLES,
    Saved,
    join_generation,
    on_disk,
    release,
    remote,
    saved,
)

HOME = f"run/checkpoints/{NAME}"
OPTIM = ("optim/__0_0.distcp", "optim/.metadata")


def archived(one: Saved, bucket: SimulatedBucket) -> Remote:
    told = publish(one.disk, one.path, remote(bucket), ambient=AMBIENT, promises=KEPT)
    return remote(bucket).at(told.destination.prefix)


def taken(source: Remote, disk: Disk | None = None) -> tuple[Fetched, dict[str, bytes]]:
    disk = disk or empty()
    told = fetch(source, disk, f"stage/{NAME}", ambient=AMBIENT)
    return told, on_disk(disk, "stage")


def empty() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.mkdir("stage")
    disk.sync_dir("")
    return disk


def below(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{NAME}/{path}": data for path, data in files.items()}


def put(bucket: SimulatedBucket, path: str, data: bytes) -> None:
    with bucket.upload(f"{HOME}/{path}", size_hint=0) as upload:
        upload.write(data)
        upload.commit()


class TestWhatIsFetched:
    @pytest.mark.parametrize("payload", [ONE_TRAINER, TWO_ROLES], ids=["one trainer", "two roles"])
    def test_the_directory_is_the_one_that_was_archived(self, payload: dict[str, bytes]) -> None:
        one, bucket = saved(SimulatedDisk(), payload=payload), SimulatedBucket()
        told, found = taken(archived(one, bucket))
        assert found == below(one.files)
        assert (told.files, told.bytes) == (len(one.files), sum(map(len, one.files.values())))
        assert (set(told.fetched), told.found, told.released) == (set(payload), (), ())

    def test_an_artifact_is_fetched_too(self) -> None:
        one = saved(SimulatedDisk(), payload={"model.pt": b"m"}, plan=(Component.MODEL,))
        _, found = taken(archived(one, SimulatedBucket()))
        assert found == below(one.files)
        assert f"{NAME}/{ARTIFACT}" in found

    def test_generations_come_along_those_too_that_joined_later(self) -> None:
        one, bucket = saved(SimulatedDisk(), marks=(Generation.EVALUATION_PENDING,)), SimulatedBucket()
        archived(one, bucket)
        one = join_generation(one, Generation.PUBLICATION_PENDING)
        assert taken(archived(one, bucket))[1] == below(one.files)

    def test_what_was_released_before_is_not_expected_and_the_answer_says_so(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        release(one, OPTIM)
        told, found = taken(archived(one, bucket))
        assert told.released == OPTIM
        assert set(found) == {
            f"{NAME}/{path}" for path in ("model.pt", "data.pt", ".posttrain-released.json", MANIFEST)
        }

    def test_a_checkpoint_that_was_copied_without_a_declaration_is_proven_by_its_manifest(self) -> None:
        one, bucket = saved(SimulatedDisk(), payload=TWO_ROLES), SimulatedBucket()
        source = archived(one, bucket)
        bucket.delete(f"{HOME}/{DECLARATION}")
        assert taken(source)[1] == below(one.files)


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (
                lambda bucket: put(bucket, "model.pt", b"weights of the MODEL"),
                r"model\.pt: expected the digest blake3:",
            ),
            (lambda bucket: put(bucket, "model.pt", b"weights"), r"model\.pt: expected 20 bytes, found 7 bytes"),
            (lambda bucket: bucket.delete(f"{HOME}/model.pt"), r"model\.pt: expected 20 bytes, found nothing"),
            (lambda bucket: put(bucket, MANIFEST, b"{}"), "expected a manifest that ends with its sum"),
            (lambda bucket: put(bucket, DECLARATION, b"{}"), "expected the declaration of an archive"),
            (
                lambda bucket: bucket.delete(f"{HOME}/{generations.names[0]}"),
                "validation.0.json: expected .* nothing",
            ),
            (lambda bucket: put(bucket, generations.names[0], b"{}"), "validation.0.json: expected the declared"),
            (
                lambda bucket: put(bucket, generations.names[1], b"{}"),
                "validation.1.json: expected publication-pending",
            ),
            (lambda bucket: put(bucket, generations.names[2], b"{}"), "expected the generations in order"),
        ],
        ids=["changed", "truncated", "missing", "manifest", "declaration", "no mark", "mark", "joined", "gap"],
    )
    def test_what_is_wrong_there_is_corrupt_and_nothing_is_published(
        self, spoil: Callable[[SimulatedBucket], None], message: str
    ) -> None:
        bucket, disk = SimulatedBucket(), empty()
        source = archived(saved(SimulatedDisk(), marks=(Generation.EVALUATION_PENDING,)), bucket)
        spoil(bucket)
        with pytest.raises(Corrupt, match=message):
            taken(source, disk)
        assert disk.stat(f"stage/{NAME}") is None

    def test_a_manifest_that_is_not_the_declared_one_is_corrupt(self) -> None:
        bucket, other = SimulatedBucket(), SimulatedBucket()
        source = archived(saved(SimulatedDisk()), bucket)
        archived(saved(SimulatedDisk(), payload={**ONE_TRAINER, "model.pt": b"other"}), other)
        put(bucket, MANIFEST, other.tree()[f"{HOME}/{MANIFEST}"])
        with pytest.raises(Corrupt, match="expected the declared digest sha256:"):
            taken(source)

    def test_a_declaration_of_another_sha256_is_corrupt_though_the_manifest_agrees(self) -> None:
        bucket = SimulatedBucket()
        source = archived(saved(SimulatedDisk()), bucket)
        data = bucket.tree()[f"{HOME}/{DECLARATION}"]
        told = declaration.decode(data, where="it")
        first, *rest = told.files
        wrong = type(first)(path=first.path, size=first.size, digest=f"sha256:{'0' * 64}")
        put(bucket, DECLARATION, declaration.encode(type(told)(manifest=told.manifest, files=(wrong, *rest))))
        with pytest.raises(Corrupt, match="expected the digest sha256:000"):
            taken(source)

    def test_several_roles_without_their_marker_are_corrupt(self) -> None:
        bucket = SimulatedBucket()
        source = archived(saved(SimulatedDisk(), payload=TWO_ROLES), bucket)
        bucket.delete(f"{HOME}/{DECLARATION}")
        bucket.delete(f"{HOME}/{SUCCESS}")
        with pytest.raises(Corrupt, match="INV-15"):
            taken(source)

    def test_an_object_that_is_replaced_while_it_is_read_is_corrupt(self) -> None:
        bucket, disk = SimulatedBucket(), empty()
        source = archived(saved(SimulatedDisk()), bucket)
        other = bucket.process("other")

        def change(process: str, verb: str, key: str) -> None:
            if (process, verb) == ("main", "fetch_range") and key.endswith("model.pt"):
                with other.upload(key, size_hint=0) as upload:
                    upload.write(b"weights of the MODEL")
                    upload.commit()

        bucket.store.before = change
        with pytest.raises(Corrupt, match="replaced while it was read"):
            taken(source, disk)
        assert disk.stat(f"stage/{NAME}") is None

    def test_a_place_without_a_manifest_and_a_target_that_exists_are_refused(self) -> None:
        bucket, disk = SimulatedBucket(), empty()
        with pytest.raises(Refused, match="expected an archive, found neither"):
            taken(remote(bucket))
        source = archived(saved(SimulatedDisk()), bucket)
        disk.mkdir(f"stage/{NAME}")
        with pytest.raises(Refused, match="name a new directory"):
            taken(source, disk)

    def test_two_fetches_at_once_into_one_directory_are_busy(self) -> None:
        bucket, disk = SimulatedBucket(), empty()
        source = archived(saved(SimulatedDisk()), bucket)
        lock = disk.lock(f"stage/.fetching-{NAME}.lock")
        with pytest.raises(Busy, match="another process"):
            taken(source, disk)
        lock.release()
        taken(source, disk)

    def test_a_file_in_the_staging_that_nobody_listed_is_not_published(self) -> None:
        bucket, disk = SimulatedBucket(), empty()
        source = archived(saved(SimulatedDisk()), bucket)
        disk.mkdir(f"stage/.fetching-{NAME}")
        disk.create(f"stage/.fetching-{NAME}/stray").close()
        with pytest.raises(Refused, match="not of this archive"):
            taken(source, disk)


class TestInterrupted:
    def test_a_partial_fetch_goes_on_with_what_is_proven_and_replaces_the_rest(self) -> None:
        one, bucket, disk = saved(SimulatedDisk()), SimulatedBucket(), empty()
        source = archived(one, bucket)
        dying = bucket.process("dying")
        bucket.store.before = lambda process, verb, key: (
            dying.kill() if (process, verb) == ("dying", "head") and key.endswith("__0_0.distcp") else None
        )
        with pytest.raises(Killed):
            taken(Remote(bucket=dying, destination=source.destination), disk)
        disk.rewrite(f"stage/.fetching-{NAME}/data.pt", offset=0, data=b"X")
        told, found = taken(source, disk)
        assert (told.found, told.fetched) == (("model.pt",), ("data.pt", *OPTIM))
        assert found == below(one.files)

    def test_a_power_cut_or_kill_at_any_operation_leaves_a_whole_directory_or_none(self) -> None:
        one, bucket = saved(SimulatedDisk(), payload={"model.pt": b"weights", "optim/a": b"o"}), SimulatedBucket()
        source, disk = archived(one, bucket), empty()
        cloud, started = bucket.store.cloud, len(disk.trace)
        taken(source, disk)
        disk.mark("fetched")
        for length in disk.cuts():
            for image in (*disk.crash_images(length), disk.killed(length)) if length >= started else ():
                if image.stat(f"stage/{NAME}") is None:
                    assert ("fetched",) not in disk.marks(length)
                    taken(Remote(bucket=SimulatedBucket(cloud), destination=source.destination), image)
                    image = next(iter(image.crash_images()))
                assert on_disk(image, f"stage/{NAME}") == one.files

    def test_a_store_that_stays_away_is_an_error_and_nothing_is_published(self) -> None:
        bucket, disk = SimulatedBucket(), empty()
        source = archived(saved(SimulatedDisk()), bucket)
        bucket.store.faults = lambda site: StoreFault(status=503) if site.verb == "fetch_range" else None
        with pytest.raises(Unavailable):
            taken(source, disk)
        assert disk.stat(f"stage/{NAME}") is None
