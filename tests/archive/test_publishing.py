"""A published directory becomes an archive: whole, once, in one order, whatever happens on the way."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from milepost.engines.archive import declaration, receipt
from milepost.engines.archive.declaration import DECLARATION
from milepost.engines.archive.inventory import inventory_of
from milepost.engines.archive.publisher import Archived, publish
from milepost.engines.archive.receipt import RECEIPT, TEMPORARY, Receipt, TextMarker
from milepost.engines.archive.streaming import untold
from milepost.engines.buckets.remote import Remote
from milepost.engines.checkpoints.manifest import ARTIFACT, MANIFEST
from milepost.engines.disks.local import LocalDisk
from milepost.engines.simulated import Fault, Killed, SimulatedDisk
from milepost.engines.simulated.bucket import SimulatedBucket, StoreFault
from milepost.transitions.errors import Corrupt, MilepostError, Misconfigured, Refused, Unavailable
from milepost.transitions.validation import Generation
from milepost.transitions.values import Component
from tests.archive.published import (
    AMBIENT,
    KEPT,
    NAME,
    TWO_ROLES,
    Saved,
    join_generation,
    on_disk,
    release,
    remote,
    saved,
    write,
)

HOME = f"run/checkpoints/{NAME}"


def archive(one: Saved, into: Remote, **other: Any) -> Archived:
    return publish(one.disk, one.path, into, ambient=AMBIENT, **{"promises": KEPT, **other})


def objects(bucket: SimulatedBucket, home: str = HOME) -> dict[str, bytes]:
    return {key.removeprefix(f"{home}/"): data for key, data in bucket.tree().items()}


def changed(bucket: SimulatedBucket) -> list[str]:
    """The paths that were changed, in order."""
    return [one.key.removeprefix(f"{HOME}/") for one in bucket.trace if one.verb in ("put", "complete")]


class TestWhatIsArchived:
    def test_every_file_of_the_directory_lies_below_its_name_and_the_declaration_binds_them(self) -> None:
        one, bucket = saved(SimulatedDisk(), marks=(Generation.EVALUATION_PENDING,)), SimulatedBucket()
        told = archive(one, remote(bucket))
        found = objects(bucket)
        declared = declaration.decode(found.pop(DECLARATION), where="it")
        assert found == one.files
        assert {(file.path, file.size, file.digest) for file in (*declared.files, declared.manifest)} == {
            (path, len(data), f"sha256:{hashlib.sha256(data).hexdigest()}") for path, data in one.files.items()
        }
        assert (told.files, told.bytes) == (len(one.files), sum(map(len, one.files.values())))
        assert (told.found, told.released, told.left_out) == ((), (), ())

    def test_the_declaration_is_first_and_the_manifest_last(self) -> None:
        one, bucket = saved(SimulatedDisk(), payload=TWO_ROLES), SimulatedBucket()
        archive(one, remote(bucket))
        first, *_, last = changed(bucket)
        assert (first, last) == (DECLARATION, MANIFEST)

    def test_an_artifact_goes_beside_the_checkpoints(self) -> None:
        one, bucket = saved(SimulatedDisk(), payload={"model.pt": b"m"}, plan=(Component.MODEL,)), SimulatedBucket()
        archive(one, remote(bucket))
        assert f"run/checkpoint_artifacts/{NAME}/{ARTIFACT}" in bucket.tree()
        archive(saved(SimulatedDisk()), remote(bucket))
        assert f"run/checkpoints/{NAME}/{MANIFEST}" in bucket.tree()

    def test_what_retention_took_is_not_archived_and_the_answer_says_so(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        release(one, ("optim/__0_0.distcp", "optim/.metadata"))
        told = archive(one, remote(bucket))
        assert told.released == ("optim/__0_0.distcp", "optim/.metadata")
        assert set(objects(bucket)) == {"model.pt", "data.pt", ".posttrain-released.json", MANIFEST, DECLARATION}

    def test_names_of_somebody_else_stay_behind_and_the_answer_names_them(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        write(one.disk, f"{one.path}/notes.txt", b"mine")
        write(one.disk, f"{one.path}/{TEMPORARY}", b"half a rec")
        assert archive(one, remote(bucket)).left_out == ("notes.txt",)
        assert set(objects(bucket)) == {*one.files, DECLARATION}
        assert one.disk.stat(f"{one.path}/{TEMPORARY}") is None

    def test_the_receipt_binds_destination_and_inventory(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        told = archive(one, remote(bucket))
        found = receipt.find(one.disk, one.path)
        assert isinstance(found, Receipt)
        assert found.destination == told.destination == remote(prefix=HOME).destination
        stored = objects(bucket)
        assert {file.path: file.digest for file in found.objects} == {
            path: f"sha256:{hashlib.sha256(data).hexdigest()}" for path, data in stored.items()
        }

    def test_progress_counts_every_byte_once_while_hashing_and_once_while_sending(self) -> None:
        one, seen = saved(SimulatedDisk()), []
        archive(one, remote(), told=seen.append)
        payload = sum(len(data) for path, data in one.files.items() if path != MANIFEST)
        for doing in ("hashing", "sending"):
            last = [progress for progress in seen if progress.doing == doing][-1]
            assert (last.done, last.total) == (payload, payload)


LARGE_BYTES = 64 << 20


class TestLargeFiles:
    """They are hashed two at a time."""

    def one(self, folder: Path) -> Saved:
        payload = {"model.pt": bytes(LARGE_BYTES), "optim.pt": b"o" * (LARGE_BYTES + 1), "trainer.pt": b"small"}
        return saved(LocalDisk(folder), payload=payload)

    def test_each_has_its_own_digest_and_every_byte_is_told_of_once(self, tmp_path: Path) -> None:
        one, seen = self.one(tmp_path), []
        found = inventory_of(one.disk, one.path, ambient=AMBIENT, told=seen.append)
        assert {file.path: file.digest for file in found.declaration.files} == {
            path: f"sha256:{hashlib.sha256(data).hexdigest()}" for path, data in one.files.items() if path != MANIFEST
        }
        done = [progress.done for progress in seen]
        assert done == sorted(done)
        assert done[-1] == seen[-1].total == 2 * LARGE_BYTES + 1 + len(b"small")

    @pytest.mark.parametrize("wrong", ["model.pt", "optim.pt"])
    def test_one_that_changed_is_named(self, tmp_path: Path, wrong: str) -> None:
        one = self.one(tmp_path)
        one.disk.rewrite(f"{one.path}/{wrong}", offset=LARGE_BYTES // 2, data=b"W")
        with pytest.raises(Corrupt, match=f"{wrong}: expected the digest blake3:"):
            inventory_of(one.disk, one.path, ambient=AMBIENT, told=untold)


class TestAgain:
    def test_what_is_there_is_read_and_not_sent_again(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        archive(one, remote(bucket))
        before, length = bucket.tree(), len(bucket.trace)
        again = archive(one, remote(bucket))
        assert (again.sent, len(again.found)) == ((), len(one.files) - 1)
        assert bucket.tree() == before
        assert not [one for one in bucket.trace[length:] if one.verb in ("part", "complete")]

    def test_a_file_that_was_lost_there_is_sent_again(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        archive(one, remote(bucket))
        before = bucket.tree()
        bucket.delete(f"{HOME}/model.pt")
        assert archive(one, remote(bucket)).sent == ("model.pt",)
        assert bucket.tree() == before

    def test_generations_that_joined_since_join_the_archive(self) -> None:
        one, bucket = saved(SimulatedDisk(), marks=(Generation.EVALUATION_PENDING,)), SimulatedBucket()
        archive(one, remote(bucket))
        one = join_generation(one, Generation.PUBLICATION_PENDING)
        archive(one, remote(bucket))
        found = objects(bucket)
        del found[DECLARATION]
        assert found == one.files

    def test_a_directory_that_retention_took_from_is_still_the_one_that_was_archived(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        archive(one, remote(bucket))
        before = bucket.tree()
        release(one, ("optim/__0_0.distcp", "optim/.metadata"))
        assert archive(one, remote(bucket)).released == ()
        assert bucket.tree() == before

    def test_a_declared_file_that_retention_took_before_it_was_sent_is_refused(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        archive(one, remote(bucket))
        bucket.delete(f"{HOME}/optim/__0_0.distcp")
        release(one, ("optim/__0_0.distcp", "optim/.metadata"))
        with pytest.raises(Refused, match="retention took it"):
            archive(one, remote(bucket))

    def test_a_marker_of_text_gives_way_to_a_receipt(self) -> None:
        one = saved(SimulatedDisk())
        write(one.disk, f"{one.path}/{RECEIPT}", b"2026-01-02 s3://b/run\n")
        assert receipt.find(one.disk, one.path) == TextMarker(text="2026-01-02 s3://b/run")
        archive(one, remote())
        assert isinstance(receipt.find(one.disk, one.path), Receipt)


class TestRefusals:
    def test_another_inventory_is_refused_before_any_payload(self) -> None:
        bucket = SimulatedBucket()
        archive(saved(SimulatedDisk()), remote(bucket))
        before, length = bucket.tree(), len(bucket.trace)
        with pytest.raises(Refused, match=r"another inventory.*model.pt is declared with"):
            archive(saved(SimulatedDisk(), payload={"model.pt": b"other weights"}), remote(bucket))
        assert bucket.tree() == before
        assert {one.verb for one in bucket.trace[length:]} == {"put", "fetch"}

    def test_remote_payload_that_differs_is_refused_and_stays(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        wrong = b"weights of the MODEL"
        with bucket.upload(f"{HOME}/model.pt", size_hint=0) as upload:
            upload.write(wrong)
            upload.commit()
        with pytest.raises(Corrupt, match="expected the digest sha256:"):
            archive(one, remote(bucket))
        assert objects(bucket)["model.pt"] == wrong
        assert MANIFEST not in objects(bucket)
        assert one.disk.stat(f"{one.path}/{RECEIPT}") is None

    def test_another_manifest_is_refused_and_there_is_no_receipt(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        bucket.create(f"{HOME}/{MANIFEST}", b"theirs", deadline_s=1)
        with pytest.raises(Corrupt, match="6 bytes that are others"):
            archive(one, remote(bucket))
        assert one.disk.stat(f"{one.path}/{RECEIPT}") is None

    def test_local_bytes_that_changed_are_found_before_anything_is_sent(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        one.disk.rewrite(f"{one.path}/model.pt", offset=0, data=b"W")
        with pytest.raises(Corrupt, match=r"model.pt: expected the digest blake3:"):
            archive(one, remote(bucket))
        assert bucket.tree() == {}

    def test_local_bytes_that_change_while_they_are_sent_are_not_committed(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()

        def change(_process: str, verb: str, key: str) -> None:
            if verb == "head" and key.endswith("model.pt"):
                one.disk.rewrite(f"{one.path}/model.pt", offset=0, data=b"W")

        bucket.store.before = change
        with pytest.raises(Corrupt, match="while it was sent"):
            archive(one, remote(bucket))
        assert "model.pt" not in objects(bucket)
        assert bucket.uploads("") == ()

    def test_a_directory_that_was_archived_elsewhere_is_refused_and_nothing_is_sent(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        archive(one, remote())
        with pytest.raises(Refused, match="milepost copy"):
            archive(one, remote(bucket, prefix="elsewhere"))
        assert bucket.tree() == {}

    def test_a_store_that_ignores_conditions_gets_nothing(self) -> None:
        bucket = SimulatedBucket()
        bucket.store.conditions = "ignored"
        with pytest.raises(Misconfigured, match="does not keep create"):
            archive(saved(SimulatedDisk()), remote(bucket), promises=None)
        assert bucket.tree() == {}

    def test_an_inventory_that_no_condition_can_protect_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        monkeypatch.setattr("milepost.engines.archive.publisher.SMALL_BYTES", len(one.files[MANIFEST]) - 1)
        with pytest.raises(Refused, match="save it in fewer files"):
            archive(one, remote(bucket))
        assert bucket.tree() == {}

    def test_a_directory_without_a_manifest_or_with_the_name_of_another_is_refused(self) -> None:
        disk = SimulatedDisk()
        write(disk, f"checkpoints/{NAME}/model.pt", b"m")
        with pytest.raises(Refused, match="found neither"):
            publish(disk, f"checkpoints/{NAME}", remote(), ambient=AMBIENT, promises=KEPT)
        one = saved(SimulatedDisk())
        one.disk.rename(one.path, "checkpoints/iter_000000008")
        with pytest.raises(Corrupt, match="give the directory its own name"):
            archive(evolve(one, path="checkpoints/iter_000000008"), remote())

    def test_a_damaged_or_empty_receipt_is_an_error_and_nothing_is_sent(self) -> None:
        for data in (b"", b'{"format":"posttrain.archive-marker.v1"}\n'):
            one, bucket = saved(SimulatedDisk()), SimulatedBucket()
            write(one.disk, f"{one.path}/{RECEIPT}", data)
            with pytest.raises(Corrupt, match="receipt of an archive"):
                archive(one, remote(bucket))
            assert bucket.tree() == {}

    def test_an_object_that_changes_before_the_last_look_gets_no_receipt(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        other = bucket.process("other")

        def change(process: str, verb: str, key: str) -> None:
            if (process, verb) == ("main", "head") and f"{HOME}/{MANIFEST}" in bucket.tree() and "data.pt" in key:
                with other.upload(f"{HOME}/data.pt", size_hint=0) as upload:
                    upload.write(b"D")
                    upload.commit()

        bucket.store.before = change
        with pytest.raises(Corrupt, match=r"data.pt: expected the digest"):
            archive(one, remote(bucket))
        assert one.disk.stat(f"{one.path}/{RECEIPT}") is None


class TestCrashes:
    """At every request, and at every operation of the disk: never a visible manifest without its payload, never two
    contents, never a receipt without an archive; and calling again completes it."""

    def whole(self, one: Saved) -> dict[str, bytes]:
        bucket = SimulatedBucket()
        archive(one, remote(bucket))
        return objects(bucket)

    def require_right(self, found: dict[str, bytes], whole: dict[str, bytes]) -> None:
        assert {path: data for path, data in found.items() if whole.get(path) != data} == {}
        if MANIFEST in found:
            assert found == whole

    def test_the_death_of_the_writer_at_any_request_leaves_what_another_call_completes(self) -> None:
        whole, length = self.whole(saved(SimulatedDisk())), 1
        killed = 0
        while killed < length:
            one, bucket = saved(SimulatedDisk()), SimulatedBucket()
            writer = bucket.process("writer")
            writer.wire.kill_at = killed
            try:
                archive(one, remote(writer))
            except Killed:
                length = killed + 2
            killed += 1
            self.require_right(objects(bucket), whole)
            assert one.disk.stat(f"{one.path}/{RECEIPT}") is None or objects(bucket) == whole
            archive(one, remote(bucket))
            assert objects(bucket) == whole
            assert isinstance(receipt.find(one.disk, one.path), Receipt)
            assert bucket.uploads("") == ()

    def test_whatever_arrives_late_after_a_crash_changes_nothing(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        archive(one, remote(bucket))
        whole = objects(bucket)
        for length in bucket.cuts():
            for image in bucket.crash_images(length):
                self.require_right(objects(image), whole)
                again = saved(SimulatedDisk())
                with_late = image.store.cloud.under_way
                archive(again, remote(image))
                for _ in with_late:
                    image.land()
                    assert objects(image) == whole

    def test_a_request_that_fails_in_any_way_is_an_error_or_an_archive(self) -> None:
        reference = SimulatedBucket()
        archive(saved(SimulatedDisk()), remote(reference))
        whole = objects(reference)
        for index in range(len(reference.trace)):
            for fault in (
                StoreFault(status=503),
                StoreFault(status=0, applied="yes"),
                StoreFault(status=0, applied="late"),
            ):
                one, bucket = saved(SimulatedDisk()), SimulatedBucket()
                bucket.store.faults = lambda site, at=index, fault=fault: fault if site.index == at else None
                archive(one, remote(bucket))
                assert objects(bucket) == whole
                while bucket.store.cloud.under_way:
                    bucket.land()
                assert objects(bucket) == whole

    def test_a_store_that_stays_away_is_an_error_and_leaves_no_receipt(self) -> None:
        one, bucket = saved(SimulatedDisk()), SimulatedBucket()
        bucket.store.faults = lambda site: StoreFault(status=503) if site.path.endswith(MANIFEST) else None
        with pytest.raises(Unavailable):
            archive(one, remote(bucket))
        assert one.disk.stat(f"{one.path}/{RECEIPT}") is None

    def test_a_power_cut_at_any_operation_of_the_disk_leaves_a_whole_receipt_or_none(self) -> None:
        one, bucket = saved(disk := SimulatedDisk()), SimulatedBucket()
        started = len(disk.trace)
        archive(one, remote(bucket))
        disk.mark("archived")
        whole = receipt.encode(found) if isinstance(found := receipt.find(disk, one.path), Receipt) else b""
        for length in disk.cuts():
            if length < started:
                continue
            for image in (*disk.crash_images(length), disk.killed(length)):
                left = image.tree().get(f"{one.path}/{RECEIPT}")
                assert left in (None, whole)
                assert left == whole or ("archived",) not in disk.marks(length)
                archive(evolve(one, disk=image), remote(bucket))
                assert on_disk(image, one.path) == {**one.files, RECEIPT: whole}

    @pytest.mark.parametrize("verb", ["create", "write", "sync", "link", "sync_dir"])
    def test_a_disk_that_fails_under_the_receipt_is_an_error_and_another_call_writes_it(self, verb: str) -> None:
        one, bucket = saved(disk := SimulatedDisk()), SimulatedBucket()
        disk.hardware.faults = lambda site: Fault(error=5) if site.verb == verb else None
        with pytest.raises((OSError, MilepostError)):
            archive(one, remote(bucket))
        disk.hardware.faults = lambda _site: None
        archive(one, remote(bucket))
        image = next(iter(disk.crash_images()))
        assert on_disk(image, one.path) == on_disk(disk, one.path)
        assert isinstance(receipt.find(image, one.path), Receipt)
