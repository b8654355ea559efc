"""The requests of `Wire` by boto3: one call of the SDK each.

1. Nothing but `Setback` gets out of a request (`errors.py`).
2. A version is the entity tag; on Google the generation, which is what its conditions compare.
3. A gate holds back the last byte of a body. The body is exchanged after it was signed and just before it is sent.
4. Bodies are bytearrays: botocore copies bytes, and asks the server for leave (`Expect: 100-continue`) before it
   sends them, which costs a second where the server does not know that.
5. A refusal of HEAD has no code that says why. It is asked again with GET, whose answer has one; a 404 only while
   nothing is known of the bucket, so that a missing bucket is not taken for a missing object.
6. Without TLS a part is hashed for its signature. botocore's own signer does that, not the one of its CRT, which
   reads 4 KiB at a time through the interpreter and so holds up every other lane. Its CRC32 is taken here, for the
   same reason. The request is the same one. Over TLS everything stays with the SDK.
"""

from __future__ import annotations

import base64
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from botocore import auth  # type: ignore[import-untyped]
from typing_extensions import Buffer

from milepost.engines.buckets import Gate, Leftover, Stat, Version
from milepost.engines.buckets.clients import Clients
from milepost.engines.buckets.errors import setback_of
from milepost.engines.buckets.wire import Condition, Part, Piece, Setback
from milepost.transitions.errors import Corrupt, Misconfigured

T = TypeVar("T")

_SIGNER = "milepost-s3v4"
auth.AUTH_TYPE_MAPS[_SIGNER] = auth.S3SigV4Auth


class BotoWire:
    """A `Wire` to the bucket `name`, below `prefix`, which is empty or ends with a slash."""

    def __init__(self, clients: Clients, *, name: str, prefix: str) -> None:
        self._plain = clients.plain
        self._conditional = clients.conditional
        self._google = clients.provider == "google"
        self._checksum = {"ChecksumAlgorithm": "CRC32"} if clients.checksum == "when_supported" else {}
        self._endpoint = clients.endpoint
        self._name = name
        self._prefix = prefix
        self._bucket_seen = False
        self._held = threading.local()
        self._conditional.meta.events.register_first("before-send.s3.PutObject", self._withhold)
        self._signs_bodies = str(self._plain.meta.endpoint_url).startswith("http:")
        if self._signs_bodies:
            self._plain.meta.events.register_first("choose-signer.s3.UploadPart", _choose_signer)

    def where(self, key: str) -> str:
        return f"s3://{self._name}/{self._prefix}{key} at {self._endpoint}"

    def put(self, key: str, data: Buffer, *, condition: Condition, gate: Gate | None = None) -> Version:
        client = self._plain if condition == "any" else self._conditional
        header: dict[str, str] = {}
        if condition == "absent":
            header = {"IfNoneMatch": "*"}
        elif isinstance(condition, Version):
            header = {"IfMatch": condition.token}
        body = bytearray(data)
        with self._gated(gate):
            answer = self._ask("PUT", key, lambda: client.put_object(**self._at(key), Body=body, **header))
        return self._version(key, answer)

    def fetch(self, key: str, *, limit: int) -> tuple[bytes, Version]:
        def request() -> tuple[bytes, Version]:
            answer = self._plain.get_object(**self._at(key))
            with closing(answer["Body"]) as body:
                if (size := answer["ContentLength"]) > limit:
                    wrong = Corrupt(f"{self.where(key)}: {size} bytes where at most {limit} were expected")
                    raise Setback("final", why=f"{size} bytes", error=wrong)
                return body.read(), self._version(key, answer)

        return self._ask("GET", key, request)

    def fetch_range(self, key: str, *, offset: int, buffer: memoryview, version: Version) -> Piece:
        def request() -> Piece:
            last = offset + len(buffer) - 1
            answer = self._plain.get_object(**self._at(key), Range=f"bytes={offset}-{last}")
            with closing(answer["Body"]) as body:
                size = self._whole_size(key, answer, offset=offset, count=len(buffer))
                found = self._version(key, answer)
                count = _fill(body, buffer) if found == version else 0
                return Piece(count=count, size=size, version=found)

        return self._ask("GET", key, request)

    def _whole_size(self, key: str, answer: dict[str, Any], *, offset: int, count: int) -> int:
        """The size of the object from `bytes <first>-<last>/<size>`, once that is known to be what was asked for."""
        said = str(answer.get("ContentRange", ""))
        span, _, size = said.removeprefix("bytes ").partition("/")
        if not size.isdecimal() or span != f"{offset}-{min(offset + count, int(size)) - 1}":
            wrong = Misconfigured(
                (f"{self.where(key)}: bytes {offset}-{offset + count - 1} were asked for and {said[:60]!r} came: the "
                 "store does not read ranges; use one that does",)
            )  # fmt: skip
            raise Setback("final", why="no range", error=wrong)
        return int(size)

    def head(self, key: str) -> Stat:
        try:
            answer = self._ask("HEAD", key, lambda: self._plain.head_object(**self._at(key)))
        except Setback as setback:
            if setback.kind == "final" or (setback.kind == "absent" and not self._bucket_seen):
                self._ask("GET", key, lambda: self._plain.get_object(**self._at(key))["Body"].close())
            raise
        return Stat(size=answer["ContentLength"], version=self._version(key, answer))

    def list(self, prefix: str, *, after: str, limit: int) -> tuple[tuple[str, ...], bool]:
        answer = self._ask(
            "LIST",
            prefix,
            lambda: self._plain.list_objects_v2(
                Bucket=self._name,
                Prefix=self._prefix + prefix,
                MaxKeys=limit,
                **({"StartAfter": self._prefix + after} if after else {}),
            ),
        )
        keys = tuple(item["Key"].removeprefix(self._prefix) for item in answer.get("Contents", ()))
        return keys, bool(answer.get("IsTruncated"))

    def delete(self, key: str) -> None:
        self._ask("DELETE", key, lambda: self._plain.delete_object(**self._at(key)))

    def begin(self, key: str) -> str:
        answer = self._ask(
            "CreateMultipartUpload",
            key,
            lambda: self._plain.create_multipart_upload(**self._at(key), **self._checksum),
        )
        return str(answer["UploadId"])

    def part(self, key: str, upload_id: str, *, number: int, data: Buffer) -> Part:
        sealed = {"ChecksumCRC32": _crc32(data)} if self._checksum and self._signs_bodies else {}
        answer = self._ask(
            f"UploadPart {number}",
            key,
            lambda: self._plain.upload_part(
                **self._at(key), UploadId=upload_id, PartNumber=number, Body=data, **self._checksum, **sealed
            ),
        )
        return Part(etag=answer["ETag"], checksum=answer.get("ChecksumCRC32"))

    def complete(self, key: str, upload_id: str, *, parts: Sequence[Part]) -> None:
        listed = [
            {"PartNumber": number, "ETag": part.etag}
            | ({"ChecksumCRC32": part.checksum} if part.checksum is not None else {})
            for number, part in enumerate(parts, start=1)
        ]
        self._ask(
            "CompleteMultipartUpload",
            key,
            lambda: self._plain.complete_multipart_upload(
                **self._at(key), UploadId=upload_id, MultipartUpload={"Parts": listed}
            ),
        )

    def abort(self, key: str, upload_id: str) -> None:
        self._ask(
            "AbortMultipartUpload",
            key,
            lambda: self._plain.abort_multipart_upload(**self._at(key), UploadId=upload_id),
        )

    def uploads(self, prefix: str) -> tuple[Leftover, ...]:
        def request() -> tuple[Leftover, ...]:
            pages = self._plain.get_paginator("list_multipart_uploads").paginate(
                Bucket=self._name, Prefix=self._prefix + prefix
            )
            return tuple(
                Leftover(key=item["Key"].removeprefix(self._prefix), upload_id=item["UploadId"])
                for page in pages
                for item in page.get("Uploads", ())
            )

        return self._ask("ListMultipartUploads", prefix, request)

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self._name, "Key": self._prefix + key}

    def _ask(self, doing: str, key: str, request: Callable[[], T]) -> T:
        try:
            answer = request()
        except Exception as error:  # noqa: BLE001 - sorted by `setback_of`, which raises what it does not know
            setback = setback_of(error, doing=doing, where=self.where(key))
            if setback.kind == "absent" and doing != "HEAD":
                self._bucket_seen = True
            raise setback from None
        self._bucket_seen = True
        return answer

    def _version(self, key: str, answer: dict[str, Any]) -> Version:
        token = answer.get("ETag", "")
        if self._google:
            token = answer["ResponseMetadata"]["HTTPHeaders"].get("x-goog-generation", "")
        if not token:
            wrong = Misconfigured(
                (f"{self.where(key)}: the store names no {'generation' if self._google else 'ETag'} of the object: "
                 "check the credentials' provider",)
            )  # fmt: skip
            raise Setback("final", why="no version", error=wrong)
        return Version(token=token)

    @contextmanager
    def _gated(self, gate: Gate | None) -> Iterator[None]:
        self._held.gate = gate
        try:
            yield
        finally:
            self._held.gate = None

    def _withhold(self, request: Any, **_event: Any) -> None:
        gate: Gate | None = getattr(self._held, "gate", None)
        if gate is not None:
            body = request.body.read() if hasattr(request.body, "read") else bytes(request.body)
            request.body = _last_byte_later(body, gate)


def _last_byte_later(body: bytes, gate: Gate) -> Iterator[bytes]:
    yield body[:-1]
    gate()
    yield body[-1:]


def _choose_signer(signature_version: object, **_event: Any) -> str | None:
    """Rule 6; None leaves every other way of signing as it was chosen."""
    return _SIGNER if signature_version == "s3v4" else None


def _crc32(data: Buffer) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode("ascii")


def _fill(body: Any, buffer: memoryview) -> int:
    """How much of `buffer` a body filled before it ended; a body that ends before its length is an SDK error."""
    count = 0
    while count < len(buffer) and (read := body.readinto(buffer[count:])):
        count += read
    return count
