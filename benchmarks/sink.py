"""A store on loopback that keeps no bytes: what a transfer costs its client, without what a store costs.

1. It runs in a process of its own. It takes what a transfer sends, one request after the other on each connection:
   PUT, multipart uploads, HEAD, GET of a range, conditional creates. It checks no signature and no digest.
2. Bodies of more than `KEPT_BYTES` are thrown away by the kernel (`MSG_TRUNC` of tcp(7)); their sizes are kept. What
   is then read of such an object is the file of its name in the checkpoint's own directory, from the page cache.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import socketserver
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

from attrs import define, field

KEPT_BYTES = 1 << 20
BUCKET = "bench"

_BUFFER_BYTES = 1 << 20
_XML = '<?xml version="1.0" encoding="UTF-8"?>'


@define
class _Held:
    """An object: its size, and its bytes where it is small."""

    size: int
    data: bytes | None = None


@define
class _Shelf:
    """What one sink knows. `source` is the checkpoint's directory."""

    source: Path
    objects: dict[str, _Held] = field(factory=dict)
    parts: dict[str, dict[int, int]] = field(factory=dict)
    lock: threading.Lock = field(factory=threading.Lock)


class _Connection(socketserver.StreamRequestHandler):
    rbufsize = 1 << 16
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self._discarded = bytearray(_BUFFER_BYTES)

    def handle(self) -> None:
        while line := self.rfile.readline():
            method, target, _ = line.decode("latin-1").split(" ", 2)
            headers: dict[str, str] = {}
            while (header := self.rfile.readline().decode("latin-1").strip()) != "":
                name, _, value = header.partition(":")
                headers[name.strip().lower()] = value.strip()
            if headers.get("expect", "").lower() == "100-continue":
                self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            parts = urlsplit(target)
            key = unquote(parts.path).removeprefix(f"/{BUCKET}").removeprefix("/")
            query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
            getattr(self, f"_{method.lower()}")(key, query, headers)

    @property
    def _shelf(self) -> _Shelf:
        shelf = self.server.shelf  # type: ignore[attr-defined]
        assert isinstance(shelf, _Shelf)
        return shelf

    def _body(self, headers: dict[str, str]) -> tuple[int, bytes | None]:
        """The size of the body, and the body where it is small."""
        size = int(headers.get("content-length", "0"))
        if size <= KEPT_BYTES:
            return size, self.rfile.read(size)
        left = size - len(self.rfile.read1(_BUFFER_BYTES))  # type: ignore[attr-defined]
        while left:
            left -= self.connection.recv_into(self._discarded, min(left, _BUFFER_BYTES), socket.MSG_TRUNC)
        return size, None

    def _put(self, key: str, query: dict[str, str], headers: dict[str, str]) -> None:
        size, data = self._body(headers)
        shelf = self._shelf
        with shelf.lock:
            if "partNumber" in query:
                shelf.parts[query["uploadId"]][int(query["partNumber"])] = size
            elif headers.get("if-none-match") == "*" and key in shelf.objects:
                self._answer("412 Precondition Failed")
                return
            else:
                shelf.objects[key] = _Held(size=size, data=data)
        self._answer("200 OK", etag=True)

    def _post(self, key: str, query: dict[str, str], headers: dict[str, str]) -> None:
        self._body(headers)
        shelf = self._shelf
        with shelf.lock:
            if "uploads" in query:
                name = f"u{len(shelf.parts)}"
                shelf.parts[name] = {}
                said = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            else:
                shelf.objects[key] = _Held(size=sum(shelf.parts[query["uploadId"]].values()))
                said = '<CompleteMultipartUploadResult><ETag>"kept"</ETag></CompleteMultipartUploadResult>'
        self._answer("200 OK", said=f"{_XML}{said}".encode())

    def _delete(self, key: str, _query: dict[str, str], _headers: dict[str, str]) -> None:
        self._shelf.objects.pop(key, None)
        self._answer("204 No Content")

    def _head(self, key: str, _query: dict[str, str], _headers: dict[str, str]) -> None:
        held = self._shelf.objects.get(key)
        if held is None:
            self._answer("404 Not Found")
        else:
            self._answer("200 OK", etag=True, length=held.size)

    def _get(self, key: str, query: dict[str, str], headers: dict[str, str]) -> None:
        if "uploads" in query:
            said = "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"
            self._answer("200 OK", said=f"{_XML}{said}".encode())
            return
        if "list-type" in query:
            keys = [name for name in list(self._shelf.objects) if name.startswith(query.get("prefix", ""))]
            listed = "".join(f"<Contents><Key>{name}</Key></Contents>" for name in keys)
            self._answer("200 OK", said=f"{_XML}<ListBucketResult>{listed}</ListBucketResult>".encode())
            return
        held = self._shelf.objects.get(key)
        if held is None:
            code = f"{_XML}<Error><Code>NoSuchKey</Code></Error>".encode()
            self._answer("404 Not Found", said=code)
            return
        first, _, last = headers.get("range", f"bytes=0-{held.size - 1}").removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or held.size - 1) + 1, held.size)
        ranged = [f"Content-Range: bytes {start}-{stop - 1}/{held.size}"] if "range" in headers else []
        self._answer("206 Partial Content" if ranged else "200 OK", etag=True, length=stop - start, more=ranged)
        if held.data is not None:
            self.wfile.write(held.data[start:stop])
            return
        source = self._shelf.source
        with (source / key.partition(f"{source.name}/")[2]).open("rb") as file:
            while start < stop:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)

    def _answer(
        self,
        status: str,
        *,
        said: bytes = b"",
        etag: bool = False,
        length: int | None = None,
        more: Sequence[str] = (),
    ) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(said) if length is None else length}", *more]
        lines += ['ETag: "kept"'] if etag else []
        self.wfile.write("\r\n".join([*lines, "", ""]).encode() + said)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64


def _serve(source: str, port: Connection) -> None:
    with _Server(("127.0.0.1", 0), _Connection) as server:
        server.shelf = _Shelf(source=Path(source))  # type: ignore[attr-defined]
        port.send(server.server_address[1])
        server.serve_forever()


class Sink:
    """A sink from `with` to its end, for the checkpoint at `source`; `credentials` is the file for its clients."""

    bucket = BUCKET

    def __init__(self, folder: Path, *, source: Path) -> None:
        self._folder = folder
        self.source = source

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(str(self.source), theirs), daemon=True)
        self._process.start()
        self.credentials = self._folder / "sink.json"
        given = {
            "endpoint_url": f"http://127.0.0.1:{ours.recv()}",
            "region": "us-east-1",
            "aws_access_key_id": "sink",
            "aws_secret_access_key": "sink",
        }
        self.credentials.write_text(json.dumps(given), encoding="utf-8")
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.join()
