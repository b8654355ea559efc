"""A server on loopback that answers what a test tells it to, an answer for each request, and remembers them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from attrs import field, frozen


@frozen(kw_only=True)
class Say:
    """An answer. `cut` is how many bytes of the body are sent before the connection breaks; None sends all."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(factory=dict)
    cut: int | None = None


@frozen(kw_only=True)
class HangUp:
    """The request is read, and the connection closed."""


def error(status: int, code: str, *, message: str = "", **headers: str) -> Say:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return Say(status=status, body=body, headers={name.replace("_", "-"): value for name, value in headers.items()})


@frozen(kw_only=True)
class Heard:
    """A request: method, path with query, headers by their lower-case names, body."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: AnsweringServer

    def log_message(self, *_args: object) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.owner.mutex:
            self.owner.heard.append(Heard(method=self.command, target=self.path, headers=headers, body=body))
            answers = self.owner.answers
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, HangUp):
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in ({"Content-Length": str(len(answer.body))} | dict(answer.headers)).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body[: answer.cut])
        if answer.cut is not None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - the names that the server looks for


class AnsweringServer:
    """Runs from `with` to its end. The last answer is given for ever."""

    def __init__(self, *answers: Say | HangUp) -> None:
        self.answers = list(answers)
        self.heard: list[Heard] = []
        self.mutex = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"owner": self}))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def methods(self) -> list[str]:
        return [heard.method for heard in self.heard]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
