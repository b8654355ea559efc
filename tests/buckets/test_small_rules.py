"""The signature, the sizes of parts, and what a credentials file may say."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.engines.buckets.clients import Credentials, connect, read_credentials
from milepost.engines.buckets.goog4 import AWS4, GOOG4, Scope, canonical_request, signature, signed_headers
from milepost.engines.buckets.opening import open_bucket
from milepost.engines.buckets.uploading import BUFFER_BYTES, MAX_PARTS, PART_BYTES, parting
from milepost.transitions.errors import Misconfigured
from tests.buckets.benches import AMBIENT

GIB = 1 << 30


class TestSignature:
    """AWS's documented example: `GET /?Action=ListUsers&Version=2010-05-08` of IAM, 30 August 2015."""

    HEADERS: ClassVar = {
        "Content-Type": "application/x-www-form-urlencoded;  charset=utf-8",
        "Host": "iam.amazonaws.com",
        "X-Amz-Date": "20150830T123600Z",
    }
    SCOPE = Scope(timestamp="20150830T123600Z", region="us-east-1", service="iam")
    SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"

    def canonical(self) -> str:
        return canonical_request(
            method="GET",
            path="/",
            query="Action=ListUsers&Version=2010-05-08",
            headers=self.HEADERS,
            payload=hashlib.sha256(b"").hexdigest(),
        )

    def test_the_documented_example_has_its_documented_signature(self) -> None:
        hashed = hashlib.sha256(self.canonical().encode()).hexdigest()
        assert hashed == "f536975d06c0309214f805bb90ccff089219ecd68b2577efef23edd43b7e1a59"
        assert self.SCOPE.credential(AWS4) == "20150830/us-east-1/iam/aws4_request"
        assert signed_headers(self.HEADERS) == "content-type;host;x-amz-date"
        signed = signature(self.canonical(), scheme=AWS4, scope=self.SCOPE, secret=self.SECRET)
        assert signed == "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"

    def test_googles_scheme_differs_in_its_names_alone(self) -> None:
        assert self.SCOPE.credential(GOOG4) == "20150830/us-east-1/iam/goog4_request"
        signed = signature(self.canonical(), scheme=GOOG4, scope=self.SCOPE, secret=self.SECRET)
        assert signed != signature(self.canonical(), scheme=AWS4, scope=self.SCOPE, secret=self.SECRET)


class TestParting:
    @given(st.integers(min_value=0, max_value=600 * GIB))
    def test_every_size_fits_in_the_parts_and_in_the_memory(self, size: int) -> None:
        part_bytes, lanes = parting(size)
        assert part_bytes * MAX_PARTS >= size * 10 // 9
        assert (2 * lanes + 1) * part_bytes <= BUFFER_BYTES
        assert lanes >= 1
        assert part_bytes >= PART_BYTES

    def test_small_objects_have_the_usual_parts(self) -> None:
        assert parting(0) == parting(140 * GIB) == (16 << 20, 4)
        assert parting(500 * GIB) == (57 << 20, 1)

    def test_a_size_beyond_the_memory_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"takes at most \d+: write it as several"):
            parting(700 * GIB)
        with pytest.raises(ValueError, match="-1 bytes"):
            parting(-1)


GOOD = {
    "endpoint_url": "http://127.0.0.1:1",
    "region": "r",
    "aws_access_key_id": "ID",
    "aws_secret_access_key": "SEC",
}


def written(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "some.secret"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


class TestCredentials:
    def test_a_file_is_read_and_shows_nothing_secret(self, tmp_path: Path) -> None:
        credentials = read_credentials(written(tmp_path, GOOD | {"aws_session_token": "TOK", "checksum": ""}))
        assert (credentials.region, credentials.secret_access_key, credentials.session_token) == ("r", "SEC", "TOK")
        for secret in ("ID", "SEC", "TOK"):
            assert secret not in repr(credentials)

    def test_the_regions_other_name_is_understood(self, tmp_path: Path) -> None:
        assert read_credentials(written(tmp_path, {"region_name": "there"})) == Credentials(region="there")

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            ("{", "not JSON"),
            ([], "one small JSON object"),
            (" " * (1 << 17), "one small JSON object"),
            (GOOD | {"aws_secret_key": "SEC"}, "unknown key 'aws_secret_key'"),
            (GOOD | {"region": 7}, "'region' is not a string"),
            ({"aws_secret_access_key": "SEC"}, "go together"),
            ({"aws_session_token": "SEC"}, "give all three"),
            (GOOD | {"region_name": "other"}, "region and region_name differ"),
            (GOOD | {"checksum": "md5"}, "checksum is none of when_supported, when_required"),
            (GOOD | {"provider": "gcs"}, "provider is none of aws, google"),
            (GOOD | {"endpoint_url": "http://user:SEC@host"}, "endpoint_url is not"),
            (GOOD | {"endpoint_url": "host:9000"}, "endpoint_url is not"),
            (GOOD | {"endpoint_url": "http://[SEC"}, "endpoint_url is not"),
        ],
    )
    def test_what_is_wrong_is_named_by_its_key_and_never_by_its_value(
        self, tmp_path: Path, content: object, problem: str
    ) -> None:
        with pytest.raises(Misconfigured) as caught:
            read_credentials(written(tmp_path, content))
        assert problem in str(caught.value)
        assert "some.secret" in str(caught.value)
        assert "SEC" not in str(caught.value)

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(Misconfigured, match=r"some.secret: No such file"):
            read_credentials(tmp_path / "some.secret")

    def test_the_endpoint_of_google_is_known_by_its_name(self, tmp_path: Path) -> None:
        given = GOOD | {"endpoint_url": "https://storage.googleapis.com"}
        clients = connect(read_credentials(written(tmp_path, given)))
        assert (clients.provider, clients.checksum) == ("google", "when_required")
        assert clients.conditional is not clients.plain
        like = GOOD | {"endpoint_url": "https://storage.googleapis.com.example.org"}
        assert connect(read_credentials(written(tmp_path, like))).provider == "aws"

    def test_a_prefix_ends_with_a_slash(self) -> None:
        for prefix in ("a", "a//", "/", "../"):
            with pytest.raises(ValueError, match="prefix"):
                open_bucket("b", prefix=prefix, ambient=AMBIENT)
