"""The words of the demonstration: one line for each step, the tables, and the same for machines."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence

import attrs
import click

from milepost.journal.demo.children import Kill
from milepost.journal.demo.evidence import Comparison, Row

STORY = ("run-opened", "run-resumed", "save-opened", "save-sealed", "save-abandoned", "pointer-advanced", "run-ended")
"""The kinds of records that tell a run's story; the others are work, several to a step."""

_VERB = (sys.executable, "-c", "from milepost.journal.cli import main; main()")
_AROUND_KILL = 2


class Narrator:
    """Says what happens, or keeps quiet."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self._number = 0

    def step(self, what: str) -> None:
        """The next step, in a line that says what it is for."""
        self._number += 1
        self.say(f"\n{self._number}. {what}", bold=True)

    def say(self, text: str, *, bold: bool = False) -> None:
        if not self.quiet:
            click.secho(text, bold=bold)

    def quote(self, line: str) -> None:
        """What a command printed."""
        self.say(f"   | {line}")

    def command(self, command: Sequence[str]) -> None:
        """A command as one may type it."""
        self.say(f"   $ {shlex.join(command)}")

    def verb(self, *arguments: str) -> int:
        """Run `milepost ARGUMENTS` and quote it; its exit code."""
        self.command(("milepost", *arguments))
        done = subprocess.run((*_VERB, *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in done.stdout.splitlines():
            self.quote(line)
        return done.returncode


def tell_kill(kill: Kill, narrator: Narrator) -> None:
    narrator.say(f"   Killed within the save of step {kill.save.step}. On disk when the process was dead:")
    for name, size in kill.staged:
        narrator.say(f"     .staging/{kill.save}/{name:<12} {size:>10,} bytes")
    narrator.say(
        f"     no manifest beside them and no {kill.save.directory}: half a save, which nobody will ever read"
    )
    narrator.say(f"     published, whole: {', '.join(kill.published)}; latest_checkpoint.txt says {kill.latest}")


def tell_comparison(found: Comparison, narrator: Narrator) -> None:
    narrator.step(
        f"The losses side by side: steps {found.resumed_from + 1} to {found.killed_after} were run twice, the second "
        f"time from iter_{found.resumed_from:09d}."
    )
    narrator.say(f"   {'step':>6}  {'in peace':<20}  {'before the kill':<20}  {'after the resume':<20}")
    for row in _shown(found):
        cells = (row.uninterrupted, row.before_kill or "", row.after_resume or "")
        narrator.say(f"   {row.step:>6}  {'  '.join(f'{cell:<20}' for cell in cells)}  {_mark(row.equal)}")
    different = [row.step for row in found.rows if not row.equal]
    narrator.say(
        f"   {_mark(False)}: the losses of steps {different}"
        if different
        else f"   all {len(found.rows)} losses are equal to the last bit"
    )
    for file in found.files:
        narrator.say(
            f"   {_mark(file.equal)}, byte for byte: {file.name} of the last checkpoint ({file.uninterrupted})"
        )


def document(*, kill: Kill, found: Comparison, verify: int, seconds: float) -> dict[str, object]:
    """The demonstration as JSON has it. `verify` is the exit code of that verb, `seconds` are of wall time."""
    return {
        "equal": found.equal,
        "verify": verify,
        "kill": {
            "save": str(kill.save),
            "step": kill.save.step,
            "staged": [{"name": name, "size": size} for name, size in kill.staged],
            "published": kill.published,
            "latest": kill.latest,
        },
        "killed_after": found.killed_after,
        "resumed_from": found.resumed_from,
        "losses": [{**attrs.asdict(row), "equal": row.equal} for row in found.rows],
        "files": [{**attrs.asdict(file), "equal": file.equal} for file in found.files],
        "seconds": round(seconds, 1),
    }


def _mark(equal: bool) -> str:
    return "equal" if equal else "DIFFERENT"


def _shown(found: Comparison) -> Iterator[Row]:
    """The ends and what lies around the interruption."""
    for row in found.rows:
        around = found.resumed_from - _AROUND_KILL < row.step <= found.killed_after + _AROUND_KILL
        if around or row in (found.rows[0], found.rows[-1]):
            yield row
