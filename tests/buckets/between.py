"""A server between a client and a store on loopback: it passes requests on, answers some itself, or breaks one off.

with Between(server.port, rule) as between:
    credentials = server.credentials("between", endpoint_url=between.endpoint)
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self, TypeAlias

from attrs import frozen

from tests.buckets.answering import HangUp, Say

_TIMEOUT_S = 60
_HOP = ("connection", "transfer-encoding", "keep-alive")


@frozen(kw_only=True)
class Half:
    """Pass on the request's head and half of its body, do `then`, and hang up on the client."""

    then: Callable[[], None]


@frozen(kw_only=True)
class Cut:
    """Pass on the request, and break the connection when half of the answer's body is out."""


Rule: TypeAlias = Callable[[str, str], Say | HangUp | Half | Cut | None]
"""What becomes of a request, by its method and its path with the query; None passes it on. Asked under a lock."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Between

    def log_message(self, *_args: object) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.owner.mutex:
            fate = self.owner.rule(self.command, self.path)
        if isinstance(fate, Say):
            self._answer(fate.status, dict(fate.headers), fate.body)
            return
        if isinstance(fate, HangUp):
            self.close_connection = True
            return
        store = http.client.HTTPConnection("127.0.0.1", self.owner.port, timeout=_TIMEOUT_S)
        try:
            store.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                store.putheader(name, value)
            store.endheaders()
            if isinstance(fate, Half):
                store.send(body[: len(body) // 2])
                fate.then()
                self.close_connection = True
                return
            store.send(body)
            found = store.getresponse()
            self._answer(found.status, dict(found.getheaders()), found.read(), cut=isinstance(fate, Cut))
        except (OSError, http.client.HTTPException):  # the store is away: so is this one
            self.close_connection = True
        finally:
            store.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        length = str(len(body)) if self.command != "HEAD" else headers.get("Content-Length", "0")
        kept = {name: value for name, value in headers.items() if name.lower() not in (*_HOP, "content-length")}
        for name, value in {**kept, "Content-Length": length}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - the names that the server looks for


class Between:
    """Runs from `with` to its end, before the store on `port` of loopback. `rule` may be exchanged at any time."""

    def __init__(self, port: int, rule: Rule) -> None:
        self.port = port
        self.rule = rule
        self.mutex = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
