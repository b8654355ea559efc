"""A store on loopback that keeps the rules of Google Cloud Storage's XML API, as far as a bucket's verbs need them.

1. Every request is signed, with GOOG4-HMAC-SHA256 or with AWS4-HMAC-SHA256. Both are verified here by code of its
   own, from the documentation and not from the signer under test.
2. A request has headers of one of the two families, `x-goog-*` or `x-amz-*`; both together are refused. Every header
   of its family is signed.
3. `If-None-Match` and `If-Match` are ignored on writes. `x-goog-if-generation-match` is kept: 0 means that there is
   no object, any other number that the object has this generation; 412 otherwise.
4. The checksums that newer SDKs add, and streaming signatures, are refused.

Source: Google Cloud Storage, "Authenticating with V4 signatures", "Canonical requests", "Request preconditions",
"XML API multipart uploads", "HTTP headers and common query string parameters for XML"; AWS, "Signature Version 4".
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self
from xml.etree import ElementTree
from xml.sax.saxutils import escape

KEY_ID, SECRET = "GOOG1ETEST", "goog-secret"

_AUTHORIZATION = re.compile(
    r"(GOOG4|AWS4)-HMAC-SHA256 Credential=([^,]+), ?SignedHeaders=([^,]+), ?Signature=([0-9a-f]+)"
)
_Answer = tuple[int, bytes, dict[str, str]]
"""Status, body and headers."""

_FAMILY = {"GOOG4": "x-goog-", "AWS4": "x-amz-"}


class Rejected(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(code)
        self.status, self.code, self.message = status, code, message


def verify(method: str, target: str, headers: dict[str, str], body: bytes) -> None:
    """Rules 1, 2 and 4. `headers` have lower-case names."""
    found = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
    if found is None:
        raise Rejected(403, "AccessDenied", "no signature")
    brand, credential, names, given = found.groups()
    family, other = _FAMILY[brand], _FAMILY["AWS4" if brand == "GOOG4" else "GOOG4"]
    if strange := [name for name in headers if name.startswith(other)]:
        raise Rejected(400, "ExcessHeaderValues", " ".join(strange))
    if [name for name in headers if name.startswith(("x-amz-checksum-", "x-amz-sdk-checksum", "x-amz-trailer"))]:
        raise Rejected(400, "InvalidArgument", "a checksum that is not known here")
    signed = names.split(";")
    unsigned = [name for name in headers if name.startswith(family) and name not in signed]
    if unsigned or "host" not in signed or signed != sorted(signed):
        raise Rejected(403, "AccessDenied", f"not signed: {unsigned}")
    key_id, day, region, service, terminator = credential.split("/")
    if (key_id, terminator) != (KEY_ID, f"{brand.lower()}_request") or service != (
        "storage" if brand == "GOOG4" else "s3"
    ):
        raise Rejected(403, "InvalidAccessKeyId")
    payload = headers.get(f"{family}content-sha256", "")
    if payload not in ("UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
        raise Rejected(400, "XAmzContentSHA256Mismatch")
    path, _, query = target.partition("?")
    pairs = sorted(f"{name}={value}" for name, _, value in (part.partition("=") for part in query.split("&") if part))
    lines = [f"{name}:{' '.join(headers[name].split())}" for name in signed]
    canonical = "\n".join([method, path, "&".join(pairs), *lines, "", names, payload])
    scope = f"{day}/{region}/{service}/{terminator}"
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    text = f"{brand}-HMAC-SHA256\n{headers[f'{family}date']}\n{scope}\n{hashed}"
    key = (brand + SECRET).encode()
    for part in (day, region, service, terminator):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    if not hmac.compare_digest(hmac.new(key, text.encode(), hashlib.sha256).hexdigest(), given):
        raise Rejected(403, "SignatureDoesNotMatch")


class Store:
    """Objects with their generations, and uploads under way."""

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.mutex = threading.Lock()
        self.generation = 1_700_000_000_000_000
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}

    def put(self, key: str, data: bytes, condition: str | None) -> int:
        if condition is not None and int(condition) != self.objects.get(key, (b"", 0))[1]:
            raise Rejected(412, "PreconditionFailed")
        self.generation += 1
        self.objects[key] = (data, self.generation)
        return self.generation

    def upload(self, upload_id: str) -> tuple[str, dict[int, bytes]]:
        if upload_id not in self.uploads:
            raise Rejected(404, "NoSuchUpload")
        return self.uploads[upload_id]

    def object(self, key: str) -> tuple[bytes, int]:
        if key not in self.objects:
            raise Rejected(404, "NoSuchKey")
        return self.objects[key]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    store: Store

    def log_message(self, *_args: object) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        path, _, query = self.path.partition("?")
        bucket, _, key = urllib.parse.unquote(path).removeprefix("/").partition("/")
        asked = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        try:
            verify(self.command, self.path, headers, body)
            with self.store.mutex:
                if bucket != self.store.bucket:
                    raise Rejected(404, "NoSuchBucket")
                status, answer, more = getattr(self, f"_{self.command.lower()}")(key, asked, headers, body)
        except Rejected as error:
            text = f"<Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message></Error>"
            status, answer, more = error.status, text.encode(), {"Content-Type": "application/xml"}
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(answer))} | more).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - the names that the server looks for

    def _put(self, key: str, asked: dict[str, str], headers: dict[str, str], body: bytes) -> _Answer:
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        if "uploadId" in asked:
            self.store.upload(asked["uploadId"])[1][int(asked["partNumber"])] = body
            return 200, b"", {"ETag": etag}
        generation = self.store.put(key, body, headers.get("x-goog-if-generation-match"))
        return 200, b"", {"ETag": etag, "x-goog-generation": str(generation)}

    def _get(self, key: str, asked: dict[str, str], headers: dict[str, str], _body: bytes) -> _Answer:
        if not key:
            return 200, (self._uploads(asked) if "uploads" in asked else self._listing(asked)), {}
        data, generation = self.store.object(key)
        more = {"ETag": f'"{hashlib.md5(data).hexdigest()}"', "x-goog-generation": str(generation)}
        if (span := headers.get("range")) is None:
            return 200, data, more
        first, last = (int(number) for number in span.removeprefix("bytes=").split("-"))
        if first >= len(data):
            raise Rejected(416, "InvalidRange")
        part = data[first : last + 1]
        return 206, part, more | {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(data)}"}

    def _head(self, key: str, asked: dict[str, str], headers: dict[str, str], body: bytes) -> _Answer:
        status, data, more = self._get(key, asked, headers, body)
        return status, b"", more | {"Content-Length": str(len(data))}

    def _post(self, key: str, asked: dict[str, str], _headers: dict[str, str], body: bytes) -> _Answer:
        if "uploads" in asked:
            upload_id = f"upload-{len(self.store.uploads)}-{self.store.generation}"
            self.store.generation += 1
            self.store.uploads[upload_id] = (key, {})
            return (
                200,
                f"<InitiateMultipartUploadResult><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>".encode(),
                {},
            )
        _, parts = self.store.upload(asked["uploadId"])
        listed = [
            (int(part.findtext("{*}PartNumber") or 0), part.findtext("{*}ETag"))
            for part in ElementTree.fromstring(body)
        ]
        if any(f'"{hashlib.md5(parts.get(number, b"?")).hexdigest()}"' != etag for number, etag in listed):
            raise Rejected(400, "InvalidPart")
        self.store.put(key, b"".join(parts[number] for number, _ in listed), None)
        del self.store.uploads[asked["uploadId"]]
        return 200, b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>", {}

    def _delete(self, key: str, asked: dict[str, str], _headers: dict[str, str], _body: bytes) -> _Answer:
        if "uploadId" in asked:
            self.store.upload(asked["uploadId"])
            del self.store.uploads[asked["uploadId"]]
        else:
            self.store.object(key)  # unlike AWS, a missing object is a 404
            del self.store.objects[key]
        return 204, b"", {}

    def _listing(self, asked: dict[str, str]) -> bytes:
        prefix, after, limit = (
            asked.get("prefix", ""),
            asked.get("start-after", ""),
            int(asked.get("max-keys", "1000")),
        )
        keys = sorted(key for key in self.store.objects if key.startswith(prefix) and key > after)
        items = "".join(f"<Contents><Key>{urllib.parse.quote(key)}</Key></Contents>" for key in keys[:limit])
        more = str(len(keys) > limit).lower()
        return (
            f"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>{more}</IsTruncated>{items}</ListBucketResult>"
        ).encode()

    def _uploads(self, asked: dict[str, str]) -> bytes:
        items = "".join(
            f"<Upload><Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId></Upload>"
            for upload_id, (key, _) in self.store.uploads.items()
            if key.startswith(asked.get("prefix", ""))
        )
        return (
            f"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>{items}</ListMultipartUploadsResult>"
        ).encode()


class GoogleOnLoopback:
    """Runs from `with` to its end."""

    bucket = "ci-bucket"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(self.bucket)
        handler = type("Handler", (_Handler,), {"store": self.store})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True

    @classmethod
    def unavailable(cls) -> str | None:
        return None

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def credentials(self, name: str = "google", **other: str) -> Path:
        """A credentials file for this store; `other` replaces what it says."""
        path = self.folder / f"{name}.json"
        given = {
            "endpoint_url": f"http://127.0.0.1:{self._server.server_port}",
            "provider": "google",
            "aws_access_key_id": KEY_ID,
            "aws_secret_access_key": SECRET,
        }
        path.write_text(json.dumps(given | other), encoding="utf-8")
        return path
