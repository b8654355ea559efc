"""The example's controller as a process of its own, on loopback and on a port that is free."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from attrs import frozen

EXAMPLES = Path(__file__).parents[2] / "examples"
"""Where the processes start. The planted mistakes put a changed copy in its place."""
LIMIT_S = 60.0
"""Seconds in which a controller that is to end has ended."""
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@frozen
class Answer:
    status: int
    body: bytes

    @property
    def told(self) -> Any:
        return json.loads(self.body)


class Served:
    """`python -m controller.app` with these arguments, from `with` to its end."""

    def __init__(self, *arguments: str) -> None:
        command = (sys.executable, "-m", "controller.app", *arguments)
        self.process = subprocess.Popen(command, cwd=EXAMPLES, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        found = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+)\n", first)
        assert found is not None, f"it said {first!r}"
        self.url = found[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ended(self) -> tuple[int, str]:
        """Its exit status and what else it said, once it has ended by itself."""
        said, _ = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said

    def state(self) -> bytes:
        answer = self.ask("state")
        assert answer.status == 200
        return answer.body

    def post(self, verb: str, **said: object) -> Answer:
        return self.ask(verb, json.dumps(said).encode())

    def ask(self, path: str, body: bytes | None = None) -> Answer:
        try:
            with _DIRECT.open(urllib.request.Request(f"{self.url}/{path}", data=body), timeout=30) as answer:
                return Answer(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read())

    def worker(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The example's worker, run against this controller to its end."""
        command: Sequence[str] = (sys.executable, "-m", "controller.client", "--url", self.url, "--worker", name)
        return subprocess.run((*command, *arguments), cwd=EXAMPLES, capture_output=True, text=True, timeout=60)
