"""What becomes of whatever a server may answer: one clear error, a retry that completes, or an honest Unknown."""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path

import pytest

from milepost.engines.buckets import Committed, Conflict, Unknown, Version
from milepost.engines.buckets.object import ObjectBucket
from milepost.engines.buckets.opening import open_bucket
from milepost.transitions.errors import Corrupt, Misconfigured, Unavailable
from tests.buckets.answering import AnsweringServer, HangUp, Say, error
from tests.buckets.benches import AMBIENT

pytestmark = pytest.mark.services

KEY_ID, SECRET, TOKEN = "AKDONOTTELL", "SKDONOTTELL", "TOKENDONOTTELL"
PUT_ANSWER = Say(headers={"ETag": '"new"'})


def found(body: bytes, tag: str = '"new"', **headers: str) -> Say:
    return Say(body=body, headers={"ETag": tag, **{name.replace("_", "-"): value for name, value in headers.items()}})


def bucket_at(server: AnsweringServer, tmp_path: Path, *, patience_s: float = 0.0, **other: str) -> ObjectBucket:
    path = tmp_path / "credentials.json"
    given = {
        "endpoint_url": server.endpoint,
        "region": "us-east-1",
        "aws_access_key_id": KEY_ID,
        "aws_secret_access_key": SECRET,
        "aws_session_token": TOKEN,
    }
    path.write_text(json.dumps(given | other), encoding="utf-8")
    return open_bucket("b", credentials=path, ambient=AMBIENT, patience_s=patience_s, part_bytes=100, lanes=0)


class TestConditions:
    def test_a_conflict_between_requests_is_tried_again_with_the_same_bytes(self, tmp_path: Path) -> None:
        busy = error(409, "ConditionalRequestConflict")
        with AnsweringServer(busy, error(404, "NoSuchKey"), PUT_ANSWER) as server:
            answer = bucket_at(server, tmp_path).create("k", b"mine", deadline_s=30)
        assert answer == Committed(version=Version(token='"new"'))
        assert server.methods() == ["PUT", "GET", "PUT"]
        assert [heard.body for heard in server.heard] == [b"mine", b"", b"mine"]
        assert [heard.headers.get("if-none-match") for heard in server.heard] == ["*", None, "*"]

    @pytest.mark.parametrize("lost", [HangUp(), error(500, "InternalError"), error(400, "RequestTimeout")])
    def test_a_lost_answer_is_looked_up(self, tmp_path: Path, lost: Say | HangUp) -> None:
        with AnsweringServer(lost, found(b"mine")) as server:
            answer = bucket_at(server, tmp_path).create("k", b"mine", deadline_s=30)
        assert answer == Committed(version=Version(token='"new"'))
        assert server.methods() == ["PUT", "GET"]

    def test_other_bytes_after_a_lost_answer_are_a_conflict(self, tmp_path: Path) -> None:
        with AnsweringServer(HangUp(), found(b"theirs")) as server:
            answer = bucket_at(server, tmp_path).create("k", b"mine", deadline_s=30)
        assert answer == Conflict(found=b"theirs", version=Version(token='"new"'))

    def test_the_sdk_repeats_nothing_by_itself(self, tmp_path: Path) -> None:
        with AnsweringServer(error(503, "SlowDown")) as server:
            answer = bucket_at(server, tmp_path).create("k", b"mine", deadline_s=0)
        assert isinstance(answer, Unknown)
        assert "503 SlowDown" in answer.why
        assert server.methods() == ["PUT", "GET"]

    def test_a_swap_names_the_version_it_expects(self, tmp_path: Path) -> None:
        with AnsweringServer(PUT_ANSWER) as server:
            bucket_at(server, tmp_path).swap("k", b"x", expected=Version(token='"old"'), deadline_s=0)
        assert server.heard[0].headers["if-match"] == '"old"'
        assert "expect" not in server.heard[0].headers

    def test_a_refusal_after_an_unclear_attempt_is_unknown(self, tmp_path: Path) -> None:
        with AnsweringServer(HangUp(), error(404, "NoSuchKey"), error(403, "AccessDenied")) as server:
            answer = bucket_at(server, tmp_path).create("k", b"mine", deadline_s=30)
        assert isinstance(answer, Unknown)
        assert server.methods() == ["PUT", "GET", "PUT", "GET"]


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (error(403, "InvalidAccessKeyId"), "the credentials are wrong"),
        (error(403, "SignatureDoesNotMatch"), "the credentials are wrong"),
        (error(403, "AccessDenied"), "s3:PutObject"),
        (error(400, "ExpiredToken"), "session token has run out"),
        (error(403, "RequestTimeTooSkewed"), "set the clock"),
        (error(404, "NoSuchBucket"), "no such bucket"),
        (error(400, "AuthorizationHeaderMalformed"), "another region"),
        (error(301, "PermanentRedirect"), "another region"),
        (error(501, "NotImplemented"), "does not offer"),
    ],
)
def test_what_somebody_has_to_change_is_said_at_once(tmp_path: Path, answer: Say, advice: str) -> None:
    with AnsweringServer(answer) as server:
        bucket = bucket_at(server, tmp_path, patience_s=60)
        for verb in (lambda: bucket.create("k", b"", deadline_s=60), lambda: bucket.read("k", limit=1)):
            with pytest.raises(Misconfigured, match=advice):
                verb()


def test_another_region_is_named_where_the_store_names_it(tmp_path: Path) -> None:
    moved = error(301, "PermanentRedirect", x_amz_bucket_region="eu-west-7")
    with AnsweringServer(moved, Say(status=400, headers=moved.headers)) as server:
        bucket = bucket_at(server, tmp_path)
        with pytest.raises(Misconfigured, match="eu-west-7"):
            bucket.read("k", limit=1)
        with pytest.raises(Misconfigured, match="eu-west-7"):
            bucket.stat("k")
        assert server.methods() == ["GET", "HEAD", "GET"]


def test_a_missing_bucket_is_not_taken_for_a_missing_object(tmp_path: Path) -> None:
    with AnsweringServer(Say(status=404), error(404, "NoSuchBucket")) as server:
        with pytest.raises(Misconfigured, match="no such bucket"):
            bucket_at(server, tmp_path).stat("k")
        assert server.methods() == ["HEAD", "GET"]


def test_a_missing_object_of_a_known_bucket_costs_one_request(tmp_path: Path) -> None:
    with AnsweringServer(error(404, "NoSuchKey")) as server:
        bucket = bucket_at(server, tmp_path)
        assert bucket.stat("k") is None
        assert bucket.stat("k") is None
        assert server.methods() == ["HEAD", "GET", "HEAD"]


class TestCredentialsThatTheSdkFinds:
    @pytest.fixture(autouse=True)
    def alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(name, str(tmp_path / "none"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def test_the_environment_is_one_of_its_places(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with AnsweringServer(found(b"x")) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
            assert open_bucket("some-bucket", ambient=AMBIENT, patience_s=0).read("k", limit=1)[0] == b"x"
            assert KEY_ID in server.heard[0].headers["authorization"]

    def test_none_at_all_are_asked_for(self) -> None:
        with pytest.raises(Misconfigured, match="give credentials as a JSON file"):
            open_bucket("some-bucket", ambient=AMBIENT).read("k", limit=1)

    def test_a_profile_that_is_not_there_is_misconfigured(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_PROFILE", "nobody")
        with pytest.raises(Misconfigured, match="ProfileNotFound"):
            open_bucket("some-bucket", ambient=AMBIENT)


class TestPatience:
    def test_a_busy_server_is_asked_again(self, tmp_path: Path) -> None:
        with AnsweringServer(error(503, "SlowDown"), error(429, "Throttled"), HangUp(), found(b"x")) as server:
            assert bucket_at(server, tmp_path, patience_s=60).read("k", limit=1)[0] == b"x"
        assert len(server.heard) == 4

    def test_after_the_patience_it_is_unavailable_and_says_how_often_it_was_tried(self, tmp_path: Path) -> None:
        with (
            AnsweringServer(error(503, "SlowDown")) as server,
            pytest.raises(Unavailable, match=r"GET was answered with 503 SlowDown; tried \d+ times in \d+ s"),
        ):
            bucket_at(server, tmp_path, patience_s=0.2).read("k", limit=1)
        assert len(server.heard) > 1

    def test_a_body_that_breaks_off_is_read_again(self, tmp_path: Path) -> None:
        broken = found(b"0123456789")
        part = Say(status=206, body=b"2345", headers={"ETag": '"new"', "Content-Range": "bytes 2-5/10"})
        cut = [Say(status=s.status, body=s.body, headers=s.headers, cut=2) for s in (broken, part)]
        with AnsweringServer(cut[0], broken, cut[1], part) as server:
            bucket = bucket_at(server, tmp_path, patience_s=60)
            data, version = bucket.read("k", limit=10)
            buffer = bytearray(4)
            assert bucket.read_into("k", 2, buffer, version=version) == 4
        assert (data, bytes(buffer)) == (b"0123456789", b"2345")
        assert len(server.heard) == 4

    def test_a_listing_that_cannot_be_understood_is_asked_for_again(self, tmp_path: Path) -> None:
        listed = Say(body=b"<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>")
        with AnsweringServer(Say(body=b"<html>a proxy"), listed) as server:
            assert bucket_at(server, tmp_path, patience_s=60).keys("", limit=1) == ("a",)


class TestBytes:
    def test_bytes_that_differ_from_their_checksum_are_corrupt(self, tmp_path: Path) -> None:
        with AnsweringServer(found(b"damaged", x_amz_checksum_crc32="AAAAAA==")) as server:
            with pytest.raises(Corrupt, match="checksum"):
                bucket_at(server, tmp_path).read("k", limit=10)
            assert bucket_at(server, tmp_path, checksum="when_required").read("k", limit=10)[0] == b"damaged"

    @pytest.mark.parametrize("said", ["", "bytes 0-3/10", "bytes 2-5/*", "bytes 2-4/10"])
    def test_a_store_that_does_not_read_ranges_is_refused(self, tmp_path: Path, said: str) -> None:
        answer = found(b"0123", **({"Content_Range": said} if said else {}))
        with AnsweringServer(answer) as server, pytest.raises(Misconfigured, match="does not read ranges"):
            bucket_at(server, tmp_path).read_into("k", 2, bytearray(4), version=Version(token='"new"'))

    def test_an_object_without_a_version_is_refused(self, tmp_path: Path) -> None:
        with AnsweringServer(Say(body=b"x")) as server:
            with pytest.raises(Misconfigured, match="no ETag"):
                bucket_at(server, tmp_path).read("k", limit=10)
            with pytest.raises(Misconfigured, match="no generation"):
                bucket_at(server, tmp_path, provider="google").stat("k")


def test_an_upload_that_is_completed_with_an_error_inside_is_completed_again(tmp_path: Path) -> None:
    begun = Say(body=b"<R><UploadId>u</UploadId></R>")
    part = Say(headers={"ETag": '"part"'})
    failed = error(200, "InternalError")
    done = Say(body=b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")
    seen = Say(body=bytes(150), headers={"ETag": '"whole"'})
    with AnsweringServer(begun, part, part, failed, done, seen) as server:
        with bucket_at(server, tmp_path, patience_s=60).upload("k", size_hint=150) as upload:
            upload.write(bytes(150))
            assert upload.commit() == Version(token='"whole"')
        assert server.methods() == ["POST", "PUT", "PUT", "POST", "POST", "HEAD"]


def test_nothing_that_is_raised_or_shown_holds_a_credential(tmp_path: Path) -> None:
    """The server quotes what it was sent, as servers do."""
    quoted = f"{KEY_ID} {SECRET} {TOKEN}"
    for answer in (error(403, "InvalidAccessKeyId", message=quoted), error(503, "SlowDown", message=quoted)):
        with AnsweringServer(answer) as server:
            bucket = bucket_at(server, tmp_path)
            with pytest.raises((Misconfigured, Unavailable)) as caught:
                bucket.read("k", limit=1)
            shown = "".join(traceback.format_exception(caught.value)) + repr(bucket) + bucket.where("k")
            shown += repr(bucket.create("k", b"", deadline_s=0)) if answer.status == 503 else ""
            for secret in (KEY_ID, SECRET, TOKEN):
                assert secret not in shown
