"""A worker: registers, takes work, reports it, and goes. It reports the execution id that it was told, and no other.

    python -m controller.client --url http://127.0.0.1:PORT --worker w0 [--metadata resumed.json]

1. The id is pinned at registration. A worker never asks for another one: the answer 410 means that the controller it
   belonged to is gone, and ending is all that is left to do.
2. It registers with the metadata of what it restored. The answer 409 means that one of the two restored the wrong
   thing; the worker ends, and so does the controller.
"""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Refusal(Exception):
    """The controller refused; the message is its own. `status` is the HTTP status."""

    def __init__(self, status: int, message: str, *, differs: tuple[str, ...] = ()) -> None:
        self.status, self.differs = status, differs
        super().__init__(message)


class Worker:
    """One worker's conversation with the controller at `url`. `execution_id` is None until one is told."""

    def __init__(self, url: str, name: str, *, timeout_s: float = 30.0) -> None:
        self.url, self.name, self.timeout_s = url, name, timeout_s
        self.execution_id: str | None = None

    def register(self, metadata: Mapping[str, object] | None = None) -> None:
        """Become known with what this worker restored; None where it starts from nothing."""
        self.execution_id = self.send("register", worker=self.name, metadata=metadata)["execution_id"]

    def rollout(self) -> str | None:
        """The item that is this worker's now; None where there is no more."""
        item: str | None = self._report("rollout")["item"]
        return item

    def completion(self, item: str) -> None:
        self._report("completion", item=item)

    def end(self) -> None:
        self._report("end")

    def _report(self, verb: str, **said: object) -> Any:
        pinned = {} if self.execution_id is None else {"execution_id": self.execution_id}
        return self.send(verb, worker=self.name, **pinned, **said)

    def send(self, verb: str, **said: object) -> Any:
        """POST, and the answer; `Refusal` where it is one."""
        return ask(f"{self.url}/{verb}", json.dumps(said).encode(), timeout_s=self.timeout_s)


def ask(url: str, body: bytes | None = None, *, timeout_s: float = 30.0) -> Any:
    """The JSON that is answered: to a POST of `body`, or to a GET where there is none."""
    request = urllib.request.Request(url, data=body, headers={"content-type": "application/json"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a controller is never behind a proxy
    try:
        with direct.open(request, timeout=timeout_s) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            told = json.load(error)
        raise Refusal(error.code, told["error"], differs=tuple(told.get("differs", ()))) from None


def main() -> None:
    parser = argparse.ArgumentParser(description="Take work from a controller until there is no more.")
    parser.add_argument("--url", required=True, help="what the controller said it listens on")
    parser.add_argument("--worker", required=True, help="a name that no other worker has")
    parser.add_argument("--metadata", default="", help="a JSON file: the metadata that this worker resumed from")
    args = parser.parse_args()
    worker = Worker(args.url, args.worker)
    try:
        worker.register(json.loads(Path(args.metadata).read_text(encoding="utf-8")) if args.metadata else None)
        while (item := worker.rollout()) is not None:
            print(f"{args.worker} works on {item}", flush=True)
            worker.completion(item)
        worker.end()
    except Refusal as refusal:
        raise SystemExit(f"{args.worker} ends: {refusal}") from None


if __name__ == "__main__":
    main()
