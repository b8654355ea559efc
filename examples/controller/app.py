"""The controller: one counter, one queue, and ownership per worker, behind a fence. The package says how to run it.

1. `Controller` knows no transport. Each of its verbs looks at the fence first, then at what was said, and changes its
   state last: what raises has changed nothing. One event loop runs them, one after the other.
2. The routes translate: bytes to verbs, and errors to a status with a text that says what to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import cast

from hypercorn.asyncio import serve as hypercorn_serve
from hypercorn.config import Config
from hypercorn.typing import Framework
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from milepost.engines import plainjson
from milepost.engines.ambient import SystemAmbient
from milepost.journal.controller import admit, disagreement

BAD_REQUEST, CONFLICT, GONE, STOPPING = 400, 409, 410, 503
LARGEST_BODY = 1 << 20
"""Bytes of a request: metadata with the state of a sampler is the largest thing that anybody sends."""
LARGEST_READ = 1 << 24
"""Bytes that are read of a body which is too large, so that its sender hears the answer."""
DISAGREED = 3
"""The exit status of a controller that a worker disagreed with."""


class Bad(Exception):
    """What was said makes no sense here; nothing was changed."""


class Gone(Exception):
    """The report is of another execution; nothing was changed."""


class Stopping(Exception):
    """The controller is about to end; nothing was changed."""


class Disagrees(Exception):
    """The worker resumed from something else."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        super().__init__(f"this worker and the controller resumed from different things: {', '.join(names)} differ")


class Recovery:
    """What an application adds so that its controller can be killed: an id of this start, and what it resumed from.

    `metadata` is empty where this start is the first. `settled` is told each item that a worker completed.
    """

    def __init__(
        self,
        metadata: Mapping[str, object],
        *,
        execution_id: str | None = None,
        settled: Callable[[str], None] = lambda item: None,
    ) -> None:
        self.metadata = metadata
        self.execution_id = execution_id or SystemAmbient().execution_id()
        self.settled = settled


class Controller:
    """Hands out `work`, in its order, to workers that registered."""

    def __init__(self, work: Iterable[str], *, recovery: Recovery | None = None) -> None:
        self.recovery = recovery
        self.disagreed = False
        self.completions = 0
        self.queue = deque(work)
        self.owned: dict[str, list[str]] = {}

    def register(self, said: Mapping[str, object]) -> str | None:
        """The execution id that this worker's reports carry; None without recovery."""
        if self.disagreed:
            raise Stopping("a worker resumed from something else than this controller, which ends now")
        worker = text(said, "worker")
        metadata = said.get("metadata")
        metadata = {} if metadata is None else metadata
        if not isinstance(metadata, dict):
            raise Bad(f"'metadata' is an object or null, and this is a {type(metadata).__name__}")
        if self.recovery is not None and (names := disagreement(self.recovery.metadata, metadata)):
            self.disagreed = True
            raise Disagrees(names)
        if worker in self.owned:
            raise Bad(f"a worker {worker!r} is registered already: give each process a name of its own")
        self.owned[worker] = []
        return None if self.recovery is None else self.recovery.execution_id

    def rollout(self, said: Mapping[str, object]) -> str | None:
        """The item that is the worker's from now on; None where the queue is empty."""
        owned = self._owned_by(said)
        if not self.queue:
            return None
        owned.append(self.queue.popleft())
        return owned[-1]

    def completion(self, said: Mapping[str, object]) -> None:
        """An item that the worker owned is done."""
        owned, item = self._owned_by(said), text(said, "item")
        if item not in owned:
            raise Bad(f"this worker owns no {item!r}: only what it took and did not complete yet can be completed")
        owned.remove(item)
        self.completions += 1
        if self.recovery is not None:
            self.recovery.settled(item)

    def end(self, said: Mapping[str, object]) -> None:
        """The worker goes; what it did not complete is the head of the queue again, in its order."""
        left = self._owned_by(said)
        self.queue.extendleft(reversed(left))
        del self.owned[text(said, "worker")]

    def state(self) -> Mapping[str, object]:
        return {"completions": self.completions, "queue": list(self.queue), "owned": self.owned}

    def _owned_by(self, said: Mapping[str, object]) -> list[str]:
        """What the worker that reports owns, once its report is known to be of this start."""
        if self.recovery is not None:
            stale = admit(said.get("execution_id"), execution_id=self.recovery.execution_id)
            if stale is not None:
                raise Gone(str(stale))
        if self.disagreed:
            raise Stopping("a worker resumed from something else than this controller, which ends now")
        worker = text(said, "worker")
        if worker not in self.owned:
            raise Bad(f"no worker {worker!r} is registered: register before the first report")
        return self.owned[worker]


def text(said: Mapping[str, object], name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str) or not value:
        raise Bad(f"{name!r} has to be a text that is not empty")
    return value


# --- HTTP -----------------------------------------------------------------------------------------------------


async def body_of(request: Request) -> Mapping[str, object]:
    """The JSON object that was sent; `Bad` where it is too large or no such thing."""
    data, size = bytearray(), 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= LARGEST_BODY:
                data += chunk
            elif size > LARGEST_READ:
                break
    except ClientDisconnect:
        raise Bad("the connection was closed within the body") from None
    if size > LARGEST_BODY:
        raise Bad(f"the body is larger than {LARGEST_BODY} bytes; reports are small")
    try:
        said = plainjson.read(bytes(data))
    except ValueError as error:
        raise Bad(f"the body is no JSON: {error}") from None
    if not isinstance(said, dict):
        raise Bad(f"the body has to be a JSON object, and it is a {type(said).__name__}")
    return said


def create_app(controller: Controller, *, stop: Callable[[], None] = lambda: None) -> Starlette:
    """The routes of a controller. `stop` is called once a worker has heard that it disagrees."""

    async def register(request: Request) -> Response:
        return JSONResponse({"execution_id": controller.register(await body_of(request))})

    async def rollout(request: Request) -> Response:
        return JSONResponse({"item": controller.rollout(await body_of(request))})

    async def completion(request: Request) -> Response:
        controller.completion(await body_of(request))
        return JSONResponse({})

    async def end(request: Request) -> Response:
        controller.end(await body_of(request))
        return JSONResponse({})

    async def state(request: Request) -> Response:
        return JSONResponse(controller.state())

    async def disagrees(request: Request, error: Exception) -> Response:
        assert isinstance(error, Disagrees)
        said = {"error": str(error), "differs": list(error.names)}
        return JSONResponse(said, CONFLICT, background=BackgroundTask(stop))  # which runs behind the answer

    def refusing(status: int) -> Callable[[Request, Exception], Awaitable[Response]]:
        async def refuse(request: Request, error: Exception) -> Response:
            return JSONResponse({"error": str(error)}, status)

        return refuse

    reports = [Route(f"/{verb.__name__}", verb, methods=["POST"]) for verb in (register, rollout, completion, end)]
    return Starlette(
        routes=[*reports, Route("/state", state)],
        exception_handlers={
            Bad: refusing(BAD_REQUEST),
            Gone: refusing(GONE),
            Stopping: refusing(STOPPING),
            Disagrees: disagrees,
        },
    )


def serve(controller: Controller, *, port: int = 0, also: Iterable[Route] = ()) -> int:
    """Serve on loopback until a worker disagrees; the exit status."""

    async def run() -> None:
        stopped = asyncio.Event()
        app = create_app(controller, stop=stopped.set)
        app.router.routes.extend(also)
        listening = socket.create_server(("127.0.0.1", port))
        print(f"listening on http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        config = Config()
        config.bind = [f"fd://{listening.detach()}"]  # which hypercorn closes
        config.graceful_timeout = 5.0  # seconds in which answers that are under way arrive
        config.loglevel = "WARNING"
        await hypercorn_serve(cast(Framework, app), config, shutdown_trigger=stopped.wait)

    asyncio.run(run())
    print("a worker resumed from something else: nobody goes on", flush=True)
    return DISAGREED


def main() -> None:
    parser = argparse.ArgumentParser(description="Hand out work to workers that register.")
    parser.add_argument("--work", default="A,B,C", help="the items of the queue, between commas")
    parser.add_argument("--port", type=int, default=0, help="on loopback; by default one that is free")
    parser.add_argument("--recover", action="store_true", help="make an execution id, and compare what was resumed")
    parser.add_argument("--metadata", default="", help="a JSON file: the metadata that this start resumed from")
    args = parser.parse_args()
    metadata = json.loads(Path(args.metadata).read_text(encoding="utf-8")) if args.metadata else {}
    recovery = Recovery(metadata) if args.recover or args.metadata else None
    raise SystemExit(serve(Controller(args.work.split(","), recovery=recovery), port=args.port))


if __name__ == "__main__":
    main()
