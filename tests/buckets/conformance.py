"""What every verb of a bucket does and refuses, the same for every store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from milepost.engines.buckets import Bucket, Committed, Conflict, Leftover, Version
from milepost.engines.buckets.probe import probe
from milepost.transitions.errors import Corrupt
from tests.buckets.benches import AMBIENT, Bench, get, put

SOON_S = 20.0

ODD_KEYS = [
    "a key with spaces/and more",
    "plus+percent%20%2F&question?hash#equals=",
    "quotes'\"`(brackets)[square]{curly}<angle>",
    "ümläut/日本語/🙂",
    "semi;colon:comma,at@tilde~star*pipe|caret^dollar$bang!",
    "dots...in/.hidden/..name",
    "x" * 255 + "/" + "y" * 255,
]

REFUSED_KEYS = [
    "",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "a/./b",
    "a\\b",
    "a\0b",
    "a\nb",
    "a\x7fb",
    "x" * 256,
    "\ud800",
]

VERBS: dict[str, Callable[[Bucket, str], object]] = {
    "create": lambda bucket, key: bucket.create(key, b"", deadline_s=SOON_S),
    "swap": lambda bucket, key: bucket.swap(key, b"", expected=Version(token='"x"'), deadline_s=SOON_S),
    "read": lambda bucket, key: bucket.read(key, limit=1),
    "stat": lambda bucket, key: bucket.stat(key),
    "read_into": lambda bucket, key: bucket.read_into(key, 0, bytearray(1), version=Version(token='"x"')),
    "upload": lambda bucket, key: bucket.upload(key, size_hint=0),
    "delete": lambda bucket, key: bucket.delete(key),
}


def created(bucket: Bucket, key: str, data: bytes) -> Version:
    answer = bucket.create(key, data, deadline_s=SOON_S)
    assert isinstance(answer, Committed)
    return answer.version


class Conformance:
    """A subclass for each store gives the fixture `bench`."""

    def test_a_second_create_is_told_what_is_there_and_changes_nothing(self, bench: Bench) -> None:
        first = created(bench.bucket, "journal/1.json", b"first")
        assert bench.other.create("journal/1.json", b"second", deadline_s=SOON_S) == Conflict(
            found=b"first", version=first
        )
        assert bench.bucket.read("journal/1.json", limit=5) == (b"first", first)

    def test_creating_the_same_bytes_again_is_committed(self, bench: Bench) -> None:
        first = created(bench.bucket, "a", b"same")
        assert bench.other.create("a", b"same", deadline_s=SOON_S) == Committed(version=first)

    def test_an_empty_object_is_an_object(self, bench: Bench) -> None:
        version = created(bench.bucket, "empty", b"")
        assert bench.bucket.read("empty", limit=0) == (b"", version)
        assert bench.bucket.read_into("empty", 0, bytearray(4), version=version) == 0
        stat = bench.bucket.stat("empty")
        assert stat is not None
        assert (stat.size, stat.version) == (0, version)

    def test_a_swap_needs_the_version_that_is_there(self, bench: Bench) -> None:
        first = created(bench.bucket, "latest", b"one")
        answer = bench.bucket.swap("latest", b"two", expected=first, deadline_s=SOON_S)
        assert isinstance(answer, Committed)
        assert answer.version != first
        late = bench.other.swap("latest", b"one and a half", expected=first, deadline_s=SOON_S)
        assert late == Conflict(found=b"two", version=answer.version)
        assert bench.bucket.read("latest", limit=9) == (b"two", answer.version)

    def test_a_swap_of_nothing_is_a_conflict_and_makes_nothing(self, bench: Bench) -> None:
        gone = created(bench.bucket, "elsewhere", b"one")
        answer = bench.bucket.swap("latest", b"two", expected=gone, deadline_s=SOON_S)
        assert answer == Conflict(found=None, version=None)
        assert bench.bucket.stat("latest") is None

    def test_what_is_not_there_cannot_be_read(self, bench: Bench) -> None:
        created(bench.bucket, "there", b"")
        assert bench.bucket.stat("not-there") is None
        with pytest.raises(FileNotFoundError, match="not-there"):
            bench.bucket.read("not-there", limit=1)
        with pytest.raises(FileNotFoundError, match="not-there"):
            bench.bucket.read_into("not-there", 0, bytearray(1), version=Version(token='"x"'))

    def test_an_object_above_the_limit_is_refused(self, bench: Bench) -> None:
        created(bench.bucket, "a", b"12345")
        with pytest.raises(Corrupt, match="5 bytes where at most 4"):
            bench.bucket.read("a", limit=4)

    def test_an_object_above_the_small_size_is_not_created_under_a_condition(self, bench: Bench) -> None:
        with pytest.raises(ValueError, match="upload"):
            bench.bucket.create("a", bytes((16 << 20) + 1), deadline_s=SOON_S)

    @pytest.mark.parametrize(
        ("offset", "size", "expected"), [(0, 3, b"012"), (7, 9, b"789"), (10, 4, b""), (99, 1, b"")]
    )
    def test_a_range_ends_with_the_object(self, bench: Bench, offset: int, size: int, expected: bytes) -> None:
        version = created(bench.bucket, "a", b"0123456789")
        buffer = bytearray(b"." * size)
        assert bench.bucket.read_into("a", offset, buffer, version=version) == len(expected)
        assert buffer == expected.ljust(size, b".")
        assert bench.bucket.read_into("a", offset, bytearray(), version=version) == 0

    @pytest.mark.parametrize(("offset", "size"), [(0, 4), (0, 0), (99, 4)])
    def test_a_range_of_a_replaced_object_is_refused(self, bench: Bench, offset: int, size: int) -> None:
        old = created(bench.bucket, "a", b"old bytes")
        bench.other.swap("a", b"new bytes", expected=old, deadline_s=SOON_S)
        buffer = bytearray(b"." * size)
        with pytest.raises(Corrupt, match="replaced"):
            bench.bucket.read_into("a", offset, buffer, version=old)
        assert buffer == b"." * size

    def test_keys_come_in_pages_and_in_order(self, bench: Bench) -> None:
        slots = [f"journal/{number:020}.json" for number in range(7)]
        for key in [*reversed(slots), "journals", "other/1"]:
            created(bench.bucket, key, b"x")
        assert bench.bucket.keys("journal/") == tuple(slots)
        assert bench.bucket.keys("journal/", limit=3) == tuple(slots[:3])
        assert bench.bucket.keys("journal/", after=slots[2], limit=3) == tuple(slots[3:6])
        assert bench.bucket.keys("journal/", after=slots[6]) == ()
        assert bench.bucket.keys("journal/0000000000000000000") == tuple(slots)
        assert bench.bucket.keys("nothing/") == ()
        assert set(bench.bucket.keys("")) == {*slots, "journals", "other/1"}

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_an_odd_key_is_a_key_like_any_other(self, bench: Bench, key: str) -> None:
        version = created(bench.bucket, key, b"here")
        assert bench.other.read(key, limit=4) == (b"here", version)
        assert bench.bucket.keys(key.partition("/")[0]) == (key,)
        put(bench.bucket, key, b"+" * (bench.part_bytes + 1))
        assert get(bench.other, key) == b"+" * (bench.part_bytes + 1)
        bench.bucket.delete(key)
        assert bench.bucket.stat(key) is None

    @pytest.mark.parametrize("verb", VERBS)
    def test_a_key_that_is_no_path_below_the_prefix_is_a_value_error(self, bench: Bench, verb: str) -> None:
        for key in REFUSED_KEYS:
            with pytest.raises(ValueError, match="key"):
                VERBS[verb](bench.bucket, key)
        assert bench.bucket.keys("") == ()

    @pytest.mark.parametrize("prefix", ["/", "a//", "../", "a/./b", "a\\b"])
    def test_a_prefix_that_no_key_starts_with_is_a_value_error(self, bench: Bench, prefix: str) -> None:
        for verb in (bench.bucket.keys, bench.bucket.uploads):
            with pytest.raises(ValueError, match="key"):
                verb(prefix)  # type: ignore[operator]

    @pytest.mark.parametrize("parts", [0.0, 0.5, 1.0, 1.5, 3.0])
    def test_an_upload_appears_whole_and_only_when_it_is_committed(self, bench: Bench, parts: float) -> None:
        data = bytes(range(251)) * (int(parts * bench.part_bytes) // 251 + 1)
        data = data[: int(parts * bench.part_bytes)]
        with bench.bucket.upload("a", size_hint=len(data), digest="sha256") as upload:
            for start in range(0, len(data), bench.part_bytes // 4):
                piece = memoryview(data)[start : start + bench.part_bytes // 4]
                assert upload.write(piece) == len(piece)
            assert upload.tell() == len(data)
            assert bench.other.stat("a") is None
            version = upload.commit()
            assert upload.commit() == version
        assert upload.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert bench.other.read("a", limit=len(data)) == (data, version)
        assert bench.bucket.uploads("") == ()
        with pytest.raises(ValueError, match="committed"):
            upload.write(b"more")

    def test_an_upload_replaces_what_is_there(self, bench: Bench) -> None:
        put(bench.bucket, "a", b"one")
        put(bench.other, "a", b"two")
        assert get(bench.bucket, "a") == b"two"

    @pytest.mark.parametrize("parts", [0, 2])
    def test_leaving_an_upload_before_its_commit_leaves_nothing(self, bench: Bench, parts: int) -> None:
        data = bytes(parts * bench.part_bytes + 1)
        with pytest.raises(ZeroDivisionError), bench.bucket.upload("a", size_hint=0) as upload:
            upload.write(data)
            raise ZeroDivisionError
        with bench.bucket.upload("a", size_hint=0) as upload:
            upload.write(data)
        upload.abort()
        assert bench.bucket.stat("a") is None
        assert bench.bucket.uploads("") == ()
        with pytest.raises(ValueError, match="aborted"):
            upload.commit()

    def test_a_leftover_upload_is_found_and_aborted(self, bench: Bench) -> None:
        left = bench.bucket.upload("dir/a", size_hint=0)
        left.write(bytes(2 * bench.part_bytes + 1))
        (found,) = bench.other.uploads("dir/")
        assert found.key == "dir/a"
        assert bench.other.uploads("other/") == ()
        bench.other.abort_upload(found)
        bench.other.abort_upload(found)
        bench.other.abort_upload(Leftover(key="dir/b", upload_id=found.upload_id))
        assert bench.other.uploads("") == ()
        assert bench.other.stat("dir/a") is None
        left.abort()

    def test_deleting_twice_is_harmless(self, bench: Bench) -> None:
        created(bench.bucket, "a", b"x")
        bench.bucket.delete("a")
        bench.bucket.delete("a")
        assert bench.bucket.stat("a") is None

    def test_the_probe_finds_every_promise_kept_and_leaves_nothing(self, bench: Bench) -> None:
        promises = probe(bench.bucket, "runs/", ambient=AMBIENT)
        assert promises.kept, promises
        promises.require("here")
        assert bench.bucket.keys("") == ()
