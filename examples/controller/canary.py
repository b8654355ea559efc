"""The canary: a controller and two ranks, killed while work is out, go on with what was saved and lose no work.

    cd examples
    python -m controller.canary                 # in a folder that is removed afterwards
    python -m controller.canary --folder DIR    # in this one, which is empty

1. First start. The controller fetches A, B and C; the ranks take all three, train A and C, and save while B is out.
   The fetched cursor is behind C, but the boundary of the ledger stays before B, and that is what is saved.
2. The controller and both ranks are killed with SIGKILL.
3. Second start. Model, momentum, schedule and RNG are as they were saved, on both ranks. B is generated again, C is
   repeated, and both are trained: two new updates. That C is repeated is right: this is recovery, no exact replay.
4. A report of the first start, which is still on its way, is refused and changes nothing. A worker with another
   checkpoint that has the same counters is refused too, and then the controller ends.

Each process says what it did, line by line, and the canary knows every line. Anything else is a failure, and the exit
status is 0 only where nothing failed. The ranks speak gloo, and NCCL where each has a GPU of its own.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

from .app import CONFLICT, DISAGREED, GONE
from .client import Refusal, Worker, ask

HERE = Path(__file__).parents[1]

RANKS = ("rank 0", "rank 1")
CONTROLLER: Mapping[int, Sequence[str]] = {
    1: ("begins with 6 completions in epoch 1", "fetched A, B, C"),
    2: ("goes on from update 2 with 5 completions in epoch 1", "fetched B, C, D"),
}
FIRST = ("generated and trained A", "generated and trained C", "saved update 2 while B is out")
SECOND = (
    "model, momentum, schedule, rng are as they were saved",
    "generated and trained B",
    "generated and trained C",
    "ends behind update 4",
)


class Failed(Exception):
    """Something is not as it has to be."""


class Start:
    """The controller and the ranks of one start. What is left of them at the end of the `with` is killed."""

    def __init__(self, folder: Path, *, number: int) -> None:
        self.folder, self.number = folder, number
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        self._begin("controller")
        self.hear({"controller": CONTROLLER[self.number]})
        self.url = self.line("controller").removeprefix("listening on ")
        for rank in range(2):
            self._begin(f"rank {rank}", "--rank", str(rank), "--url", self.url)
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()

    def _begin(self, name: str, *arguments: str) -> None:
        places = ("--folder", str(self.folder), "--meeting", str(self.folder / f"meeting-{self.number}"))
        command = (sys.executable, "-m", "controller.canary", *places, "--part", name.split()[0], *arguments)
        pipe = subprocess.PIPE
        self.processes[name] = subprocess.Popen(
            command, cwd=HERE, stdin=pipe, stdout=pipe, text=True, env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
        )

    def line(self, name: str) -> str:
        """What the process says next."""
        said = self.processes[name].stdout
        assert said is not None
        line = said.readline()
        if not line.endswith("\n"):
            raise Failed(f"{name} ended too early, with status {self.processes[name].wait()}")
        return line.removesuffix("\n")

    def hear(self, expected: Mapping[str, Sequence[str]]) -> None:
        """Every process says exactly this."""
        for name, lines in expected.items():
            for line in lines:
                if (said := self.line(name)) != line:
                    raise Failed(f"{name} said {said!r}, and it has to be {line!r}")
                print(f"  {name:10} {said}", flush=True)

    def ended(self, name: str, *, status: int) -> None:
        found = self.processes[name].wait(timeout=60)
        if found != status:
            raise Failed(f"{name} ended with status {found}, and it has to be {status}")

    def kill(self) -> None:
        for process in self.processes.values():
            process.kill()
        for name in self.processes:
            self.ended(name, status=-signal.SIGKILL)


def canary(folder: Path) -> None:
    """The whole story; `Failed` where it goes another way."""
    folder.mkdir(parents=True, exist_ok=True)
    print("first start")
    with Start(folder, number=1) as first:
        late = Worker(first.url, "late")
        late.register()
        first.hear(dict.fromkeys(RANKS, FIRST))
        first.kill()
        print("killed: the controller, rank 0 and rank 1")
    print("second start")
    with Start(folder, number=2) as second:
        second.hear(dict.fromkeys(RANKS, SECOND))
        for rank in RANKS:
            second.ended(rank, status=0)
        boundary, state = ask(f"{second.url}/boundary"), ask(f"{second.url}/state")
        require("remaining completions", boundary["remaining_completions"], 3)
        require("the state of the controller", state, {"completions": 2, "queue": ["D"], "owned": {"rank-1": []}})
        late.url = second.url
        refused("a late report of the first start", lambda: late.completion("D"), status=GONE, differs=())
        require("the state behind it", ask(f"{second.url}/state"), state)
        other = {**ask(f"{second.url}/metadata"), "checkpoint_identity": "sha256:" + "0" * 64}
        stranger = Worker(second.url, "stranger")
        refused(
            "another checkpoint with equal counters",
            lambda: stranger.register(other),
            status=CONFLICT,
            differs=("checkpoint_identity",),
        )
        second.ended("controller", status=DISAGREED)
        print("  the controller ended behind its answer")
    print("everything holds")


def require(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise Failed(f"{what}: found {found}, and it has to be {expected}")
    print(f"  {what}: {found}", flush=True)


def refused(what: str, report: Callable[[], object], *, status: int, differs: tuple[str, ...]) -> None:
    try:
        report()
    except Refusal as refusal:
        require(what, (refusal.status, refusal.differs), (status, differs))
    else:
        raise Failed(f"{what} was not refused")


def end_with_the_canary() -> None:
    """A process whose canary is gone has nobody to talk to."""

    def watch() -> None:
        os.read(0, 1)  # nothing is ever written: it is the end. And no lock of sys.stdin is held at the exit
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(description="Save while work is out, kill everybody, go on, and compare.")
    parser.add_argument("--folder", default="", help="where to save; by default a folder that is removed afterwards")
    parser.add_argument("--part", default="", choices=("", "controller", "rank"), help="what the canary starts")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--url", default="")
    parser.add_argument("--meeting", default="")
    args = parser.parse_args()
    if args.part:
        end_with_the_canary()
    if args.part == "controller":
        from .recovering import control

        raise SystemExit(control(Path(args.folder)))
    if args.part == "rank":
        from .training import run

        run(Path(args.folder), rank=args.rank, url=args.url, meeting=Path(args.meeting))
    with tempfile.TemporaryDirectory(prefix="canary-") as spare:
        try:
            canary(Path(args.folder or spare).absolute())
        except Failed as failure:
            raise SystemExit(f"the canary died: {failure}") from None


if __name__ == "__main__":
    main()
