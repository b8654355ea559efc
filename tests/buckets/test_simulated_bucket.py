"""Stores that fail in every way that the recipe knows, writers that are paused or die, and the trace of all of it."""

from __future__ import annotations

import pytest
from attrs import evolve

from milepost.engines.buckets import Answer, Bucket, Committed, Conflict, Gate, Unknown, Version
from milepost.engines.buckets.probe import probe
from milepost.engines.simulated.bucket import Conditions, SimulatedBucket, StoreFault
from milepost.engines.simulated.faults import Killed, Site
from milepost.transitions.errors import Corrupt, MilepostError, Misconfigured, Unavailable
from tests.buckets.benches import AMBIENT, get, put

NOT_APPLIED = [StoreFault(status=status) for status in (0, 408, 409, 412, 429, 500, 503)]
APPLIED = [StoreFault(status=status, applied="yes") for status in (0, 409, 412, 500, 503)]


@pytest.fixture
def bucket() -> SimulatedBucket:
    return SimulatedBucket()


def fail(bucket: SimulatedBucket, faults: dict[int, StoreFault]) -> None:
    bucket.store.faults = lambda site: faults.get(site.index)


def verbs(bucket: SimulatedBucket) -> list[str]:
    return [request.verb for request in bucket.trace]


class TestCreate:
    @pytest.mark.parametrize("fault", NOT_APPLIED, ids=str)
    def test_what_was_not_applied_is_repeated(self, bucket: SimulatedBucket, fault: StoreFault) -> None:
        fail(bucket, {0: fault, 2: fault})
        assert isinstance(bucket.create("k", b"mine", deadline_s=9), Committed)
        assert verbs(bucket) == ["put", "fetch", "put", "fetch", "put"]
        assert bucket.tree() == {"k": b"mine"}

    @pytest.mark.parametrize("fault", APPLIED, ids=str)
    def test_what_was_applied_is_found_and_not_repeated(self, bucket: SimulatedBucket, fault: StoreFault) -> None:
        fail(bucket, {0: fault})
        assert isinstance(bucket.create("k", b"mine", deadline_s=9), Committed)
        assert verbs(bucket) == ["put", "fetch"]

    def test_a_request_that_arrives_after_its_repetition_changes_nothing(self, bucket: SimulatedBucket) -> None:
        fail(bucket, {0: StoreFault(applied="late")})
        assert isinstance(bucket.create("k", b"mine", deadline_s=9), Committed)
        bucket.land()
        assert bucket.tree() == {"k": b"mine"}

    def test_a_request_that_arrives_after_the_look_is_found_by_the_next_attempt(
        self, bucket: SimulatedBucket
    ) -> None:
        fail(bucket, {0: StoreFault(applied="late", after=1)})
        assert isinstance(bucket.create("k", b"mine", deadline_s=9), Committed)
        assert verbs(bucket) == ["put", "fetch", "landed", "put", "fetch"]

    def test_a_late_request_does_not_replace_what_another_writer_created(self, bucket: SimulatedBucket) -> None:
        other = bucket.process("other")
        fail(bucket, {0: StoreFault(applied="late")})
        bucket.store.before = lambda process, verb, _key: (
            None if (process, verb) != ("main", "fetch") else _create_once(other, b"theirs")
        )
        answer = bucket.create("k", b"mine", deadline_s=9)
        assert isinstance(answer, Conflict)
        assert answer.found == b"theirs"
        bucket.land()
        assert bucket.tree() == {"k": b"theirs"}

    def test_a_store_that_stays_away_is_unknown_and_may_have_it_later(self, bucket: SimulatedBucket) -> None:
        bucket.store.faults = lambda site: StoreFault(applied="late") if site.index == 0 else StoreFault(status=503)
        answer = bucket.create("k", b"mine", deadline_s=5)
        assert isinstance(answer, Unknown)
        assert "503; read back: 503" in answer.why
        assert bucket.store.now_s == 5
        bucket.land()
        assert bucket.tree() == {"k": b"mine"}

    def test_a_refusal_at_once_is_raised_and_after_an_unclear_attempt_unknown(self, bucket: SimulatedBucket) -> None:
        fail(
            bucket, {0: StoreFault(status=403), 1: StoreFault(), 2: StoreFault(status=503), 3: StoreFault(status=501)}
        )
        with pytest.raises(MilepostError, match="403"):
            bucket.create("k", b"mine", deadline_s=9)
        answer = bucket.create("k", b"mine", deadline_s=9)
        assert isinstance(answer, Unknown)
        assert "501" in answer.why

    def test_a_look_that_is_refused_is_unknown(self, bucket: SimulatedBucket) -> None:
        fail(bucket, {0: StoreFault(applied="yes"), 1: StoreFault(status=403)})
        answer = bucket.create("k", b"mine", deadline_s=9)
        assert isinstance(answer, Unknown)
        assert verbs(bucket) == ["put", "fetch"]


def _create_once(other: Bucket, data: bytes) -> None:
    if other.stat("k") is None:
        other.create("k", data, deadline_s=9)


class TestSwap:
    @pytest.mark.parametrize("fault", [*NOT_APPLIED, *APPLIED], ids=str)
    def test_an_unclear_swap_ends_with_its_bytes(self, bucket: SimulatedBucket, fault: StoreFault) -> None:
        first = put_first(bucket)
        fail(bucket, {len(bucket.trace): fault})
        answer = bucket.swap("latest", b"two", expected=first, deadline_s=9)
        assert isinstance(answer, Committed)
        assert bucket.read("latest", limit=3) == (b"two", answer.version)

    def test_a_late_swap_does_not_move_the_pointer_back(self, bucket: SimulatedBucket) -> None:
        first = put_first(bucket)
        fail(bucket, {len(bucket.trace): StoreFault(applied="late")})
        second = bucket.swap("latest", b"two", expected=first, deadline_s=0)
        assert isinstance(second, Unknown)
        other = bucket.process("other")
        assert isinstance(other.swap("latest", b"three", expected=first, deadline_s=0), Committed)
        bucket.land()
        assert bucket.tree() == {"latest": b"three"}

    def test_a_paused_writer_wakes_to_a_conflict(self, bucket: SimulatedBucket) -> None:
        first = put_first(bucket)
        newer = bucket.process("newer")

        def overtake(process: str, verb: str, _key: str) -> None:
            if (process, verb) == ("main", "put") and bucket.tree()["latest"] == b"one":
                assert isinstance(newer.swap("latest", b"three", expected=first, deadline_s=9), Committed)

        bucket.store.before = overtake
        answer = bucket.swap("latest", b"two", expected=first, deadline_s=9)
        assert isinstance(answer, Conflict)
        assert answer.found == b"three"
        assert bucket.tree() == {"latest": b"three"}

    def test_a_deleted_object_is_a_conflict_with_nothing(self, bucket: SimulatedBucket) -> None:
        first = put_first(bucket)
        bucket.delete("latest")
        answer = bucket.swap("latest", b"two", expected=first, deadline_s=9)
        assert answer == Conflict(found=None, version=None)


def put_first(bucket: Bucket) -> Version:
    answer = bucket.create("latest", b"one", deadline_s=9)
    assert isinstance(answer, Committed)
    return answer.version


class TestUploads:
    DATA = bytes(range(30))  # four parts

    def upload(self, bucket: Bucket) -> None:
        put(bucket, "k", self.DATA)

    def test_the_requests_of_an_upload(self, bucket: SimulatedBucket) -> None:
        self.upload(bucket)
        assert verbs(bucket) == ["begin", "part", "part", "part", "part", "complete", "head"]

    @pytest.mark.parametrize("applied", ["no", "yes", "late"])
    @pytest.mark.parametrize("index", range(7))
    def test_any_request_may_fail_once(self, bucket: SimulatedBucket, index: int, applied: str) -> None:
        fail(bucket, {index: StoreFault(applied=applied)})  # type: ignore[arg-type]
        self.upload(bucket)
        assert get(bucket, "k") == self.DATA
        while bucket.store.cloud.under_way:
            bucket.land()
        assert bucket.tree() == {"k": self.DATA}
        for left in bucket.uploads(""):  # a begin whose answer was lost
            assert index == 0
            bucket.abort_upload(left)
        assert bucket.uploads("") == ()

    def test_an_upload_that_the_store_lost_is_unavailable(self, bucket: SimulatedBucket) -> None:
        with pytest.raises(Unavailable, match="does not know the upload"), bucket.upload("k", size_hint=30) as upload:
            upload.write(self.DATA)
            bucket.abort_upload(bucket.uploads("")[0])
            upload.commit()
        assert bucket.tree() == {}

    @pytest.mark.parametrize(("there", "found"), [(None, "nothing"), (b"older", "5 bytes")])
    def test_a_complete_that_was_lost_together_with_the_upload_is_unavailable(
        self, bucket: SimulatedBucket, there: bytes | None, found: str
    ) -> None:
        """The store crashed, and the upload is gone: neither a success nor a reason to try for ever."""
        fail(bucket, {5: StoreFault()})
        if there is not None:
            bucket.store.cloud = evolve(bucket.store.cloud, objects=bucket.store.cloud.objects.insert("k", there))
        with (
            pytest.raises(Unavailable, match=f"30 bytes were written and {found} found"),
            bucket.upload("k", size_hint=30) as upload,
        ):
            upload.write(self.DATA)
            bucket.store.before = lambda _process, verb, _key: _forget(bucket) if verb == "complete" else None
            with pytest.raises(Unavailable, match="were written"):
                upload.commit()
            length = len(bucket.trace)
            upload.commit()
        assert verbs(bucket)[5:8] == ["complete", "uploads", "abort"]
        assert verbs(bucket)[length:] == ["abort"]

    def test_a_store_that_stays_away_is_unavailable_and_the_first_error_is_told(
        self, bucket: SimulatedBucket
    ) -> None:
        with (
            pytest.raises(Unavailable, match=r"part was answered with 503; tried \d+ times in 60 s"),
            bucket.upload("k", size_hint=30) as upload,
        ):
            upload.write(self.DATA[:9])
            bucket.store.faults = lambda _site: StoreFault(status=503)
            upload.write(self.DATA[9:])
        bucket.store.faults = lambda _site: None
        assert [left.key for left in bucket.uploads("")] == ["k"]

    def test_an_exception_waits_for_no_store_that_stays_away(self, bucket: SimulatedBucket) -> None:
        with pytest.raises(ZeroDivisionError), bucket.upload("k", size_hint=30) as upload:
            upload.write(self.DATA)
            bucket.store.faults = lambda _site: StoreFault()
            raise ZeroDivisionError
        assert verbs(bucket) == ["begin", "part", "part", "part", "abort"]
        assert bucket.store.now_s == 0

    def test_leaving_without_a_commit_waits_for_the_store(self, bucket: SimulatedBucket) -> None:
        with bucket.upload("k", size_hint=30) as upload:
            upload.write(self.DATA)
            fail(bucket, {len(bucket.trace): StoreFault()})
        assert bucket.uploads("") == ()

    def test_more_parts_than_a_store_takes_are_refused(self, bucket: SimulatedBucket) -> None:
        with pytest.raises(ValueError, match="size_hint"), bucket.upload("k", size_hint=8) as upload:
            upload.write(bytes(8 * 10_000 + 1))
            upload.commit()
        assert bucket.uploads("") == ()


def _forget(bucket: SimulatedBucket) -> None:
    """Drop the upload once its Complete was sent and its answer lost."""
    if bucket.trace[-1].verb == "complete":
        bucket.abort_upload(bucket.uploads("")[0])


class TestOtherVerbs:
    def test_passing_trouble_is_waited_for(self, bucket: SimulatedBucket) -> None:
        put(bucket, "k", b"x")
        for verb in (
            lambda: bucket.read("k", limit=1),
            lambda: bucket.stat("k"),
            lambda: bucket.keys("", limit=1),
            lambda: bucket.uploads(""),
            lambda: bucket.delete("k"),
        ):
            start = len(bucket.trace)
            fail(bucket, {start: StoreFault(), start + 1: StoreFault(status=503)})
            verb()
            assert len(bucket.trace) == start + 3

    def test_a_listing_may_be_late(self, bucket: SimulatedBucket) -> None:
        bucket.create("a", b"", deadline_s=9)
        bucket.create("b", b"", deadline_s=9)
        bucket.store.listing_lag = 1
        assert bucket.keys("") == ("a",)
        assert bucket.keys("") == ("a", "b")


class TestDeaths:
    def program(self, bucket: SimulatedBucket, writer: Bucket) -> None:
        put(writer, "payload", bytes(20))
        bucket.mark("payload")
        answer = writer.create("manifest", b"lists payload", deadline_s=9)
        if isinstance(answer, Committed):
            bucket.mark("manifest")

    def test_every_death_leaves_what_was_acknowledged_and_nothing_half(self) -> None:
        whole = SimulatedBucket()
        self.program(whole, whole)
        looked = 0
        for length in whole.cuts():
            for image in whole.crash_images(length):
                looked += 1
                tree = image.tree()
                assert all(name in tree for (name,) in whole.marks(length))
                assert tree.get("payload", bytes(20)) == bytes(20)
                assert "manifest" not in tree or "payload" in tree
                for left in image.uploads(""):
                    image.abort_upload(left)
                assert image.uploads("") == ()
        assert looked > len(whole.trace)

    @pytest.mark.parametrize("index", range(7))
    def test_a_writer_dies_before_the_request_it_is_told_to(self, bucket: SimulatedBucket, index: int) -> None:
        writer = bucket.process("writer")
        writer.wire.kill_at = index
        with pytest.raises(Killed):
            self.program(bucket, writer)
        with pytest.raises(Killed):
            writer.stat("payload")
        assert len([request for request in bucket.trace if request.verb != "mark"]) in (index, index - 1)
        assert bucket.stat("manifest") is None

    def test_requests_under_way_may_arrive_in_any_order(self, bucket: SimulatedBucket) -> None:
        bucket.store.faults = lambda site: StoreFault(applied="late") if site.verb == "put" else None
        bucket.create("k", b"one", deadline_s=0)
        bucket.create("k", b"two", deadline_s=0)
        seen = [(image.tree().get("k"), len(image.store.cloud.under_way)) for image in bucket.crash_images()]
        assert seen == [(None, 2), (b"one", 1), (b"two", 1), (b"one", 0), (b"two", 0)]

    def test_each_writer_may_have_a_request_under_way(self, bucket: SimulatedBucket) -> None:
        other = bucket.process("other")
        bucket.create("a", b"", deadline_s=9)
        other.create("b", b"", deadline_s=9)
        seen = [sorted(image.tree()) for image in bucket.crash_images(0)]
        assert seen == [[], ["a"], ["b"], ["a", "b"]]

    def test_the_request_of_a_dead_writer_may_arrive_after_the_next_one_looked(self, bucket: SimulatedBucket) -> None:
        bucket.create("k", b"old writer's", deadline_s=9)
        first, *_ = bucket.crash_images(0)
        assert first.stat("k") is None
        first.land()
        answer = first.create("k", b"new writer's", deadline_s=9)
        assert isinstance(answer, Conflict)
        assert answer.found == b"old writer's"


class OneRacerAhead(SimulatedBucket):
    """A store near to one of the racers."""

    def create(self, key: str, data: bytes, *, deadline_s: float, gate: Gate | None = None) -> Answer:
        return super().create(key, data, deadline_s=deadline_s, gate=None if data == b"racer 0" else gate)


class Refusing(SimulatedBucket):
    """A store that takes everything but these bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._refused = data

    def create(self, key: str, data: bytes, *, deadline_s: float, gate: Gate | None = None) -> Answer:
        if data == self._refused:
            raise Unavailable("refused")
        return super().create(key, data, deadline_s=deadline_s, gate=gate)


class Mixing(SimulatedBucket):
    """Races leave an object that differs from its own checksum, as those of `rclone serve s3` at times do."""

    def __init__(self, *, told_by: str) -> None:
        super().__init__()
        self._told_by = told_by

    def create(self, key: str, data: bytes, *, deadline_s: float, gate: Gate | None = None) -> Answer:
        answer = super().create(key, data, deadline_s=deadline_s, gate=gate)
        if self._told_by == "create" and isinstance(answer, Conflict) and key.endswith("/race"):
            raise Corrupt("the bytes that arrived differ from the checksum")
        return answer

    def read(self, key: str, *, limit: int) -> tuple[bytes, Version]:
        if self._told_by == "read" and key.endswith("/race"):
            raise Corrupt("the bytes that arrived differ from the checksum")
        return super().read(key, limit=limit)


class TestProbe:
    @pytest.mark.parametrize(
        ("conditions", "broken"),
        [
            ("kept", []),
            ("ignored", ["create", "swap", "overtaken_create", "overtaken_swap", "racing_creates"]),
            ("at the header", ["overtaken_create", "overtaken_swap", "racing_creates"]),
            ("before the write", ["racing_creates"]),
        ],
    )
    def test_a_store_that_breaks_its_promises_is_found_out(
        self, bucket: SimulatedBucket, conditions: Conditions, broken: list[str]
    ) -> None:
        bucket.store.conditions = conditions
        promises = probe(bucket, "", ambient=AMBIENT)
        assert [name for name, tried in promises.items() if not tried.kept] == broken
        assert promises.kept == (not broken)
        if broken:
            with pytest.raises(Misconfigured) as caught:
                promises.require("s3://there")
            assert len(caught.value.problems) == len(broken)
        assert bucket.tree() == {}

    def test_an_answer_that_stays_unclear_is_not_a_kept_promise(self, bucket: SimulatedBucket) -> None:
        bucket.store.faults = lambda site: StoreFault(status=503) if site.path.endswith("/create") else None
        with pytest.raises(Unavailable):
            probe(bucket, "", ambient=AMBIENT)

        def only_puts(site: Site) -> StoreFault | None:
            return StoreFault(status=503) if site.verb == "put" and site.path.endswith("/race") else None

        bucket.store.faults = only_puts
        promises = probe(bucket, "", ambient=AMBIENT)
        assert [name for name, tried in promises.items() if not tried.kept] == ["racing_creates"]
        assert promises.racing_creates.seen == "unknown, unknown, unknown, unknown; the object holds nothing"

    @pytest.mark.parametrize("data", [b"held", b"racer 0"])
    def test_a_failure_before_the_last_byte_is_raised_and_nobody_waits_for_it(self, data: bytes) -> None:
        bucket = Refusing(data)
        with pytest.raises(Unavailable, match="refused"):
            probe(bucket, "", ambient=AMBIENT, meet_s=1000)
        assert bucket.tree() == {}

    def test_racers_that_do_not_meet_prove_nothing(self) -> None:
        promises = probe(OneRacerAhead(), "", ambient=AMBIENT, meet_s=0.05)
        assert not promises.racing_creates.kept
        assert "did not meet" in promises.racing_creates.seen

    @pytest.mark.parametrize(
        ("told_by", "seen"),
        [
            ("create", "corrupt"),
            ("read", "the object holds bytes that it does not vouch for itself"),
        ],
    )
    def test_an_object_that_several_writers_mixed_is_a_broken_promise(self, told_by: str, seen: str) -> None:
        bucket = Mixing(told_by=told_by)
        promises = probe(bucket, "", ambient=AMBIENT)
        assert [name for name, tried in promises.items() if not tried.kept] == ["racing_creates"]
        assert seen in promises.racing_creates.seen
        assert bucket.tree() == {}
