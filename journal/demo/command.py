"""`milepost demo`: train, be killed in the middle of a save, resume, and show that nothing differs.

1. Everything is real: child processes, SIGKILL, files. The script is `char_lm.py`, started as a user would start it.
2. Two runs that should be equal are compared to the last bit: every loss, and every byte of the last checkpoint. A
   difference is exit code 1, and said loudly.
3. What happened is told by the verbs that a user has for it, with the command that repeats it.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from milepost.journal.demo.children import Child, DemoFailed, Kill
from milepost.journal.demo.evidence import Comparison, compare, run_directory
from milepost.journal.demo.telling import STORY, Narrator, document, tell_comparison, tell_kill

SCRIPT = str(Path(__file__).with_name("char_lm.py"))
PEACEFUL, KILLED = "in-peace", "killed"


@click.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="Where the runs go: a new or empty folder.")
@click.option("--keep", is_flag=True, help="Keep the temporary folder of the runs, and say where it is.")
@click.option("--steps", type=click.IntRange(min=12), default=48, show_default=True, help="Steps of training.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the story.")
def demo(folder: Path | None, keep: bool, steps: int, as_json: bool) -> None:
    """Train, be killed mid-save, resume, and show that nothing differs.

    Takes about half a minute on two cores. Exit code 1 where anything differs.

    \b
    Examples:
        milepost demo
        milepost demo --steps 120 --dir /tmp/demo
    \b
    JSON:
        {"equal": bool, "verify": exit code of verify,
         "kill": {"save", "step", "staged": [{"name", "size": bytes}], "published": [name], "latest": name},
         "killed_after": step, "resumed_from": step,
         "losses": [{"step", "uninterrupted", "before_kill", "after_resume", "equal"}],
         "files": [{"name", "uninterrupted": digest, "interrupted": digest, "equal"}],
         "seconds"}
    """
    started_s = time.monotonic()
    narrator = Narrator(quiet=as_json)
    try:
        with _folder(folder, keep=keep) as root:
            kill = _train(root, steps=steps, narrator=narrator)
            found, verify = _judge(root, narrator=narrator)
    except DemoFailed as failure:
        raise click.ClickException(str(failure)) from failure
    seconds = time.monotonic() - started_s
    if as_json:
        click.echo(json.dumps(document(kill=kill, found=found, verify=verify, seconds=seconds), indent=2))
    if folder is not None or keep:
        narrator.say(f"\nThe runs are in {root}")
    if verify or not found.equal:
        click.secho(
            f"\nFAILED: {'the runs differ' if not found.equal else 'verify has findings'}.", err=True, fg="red"
        )
        click.echo("This must not happen. Run it again with --keep, and report what it leaves behind.", err=True)
        sys.exit(1)
    narrator.say(f"\nNothing differs. ({seconds:.0f} s)", bold=True)


@contextmanager
def _folder(folder: Path | None, *, keep: bool) -> Iterator[Path]:
    if folder is not None:
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise click.BadParameter(f"{folder} is there and is no empty folder; name a new one", param_hint="--dir")
        yield folder.absolute()
    elif keep:
        yield Path(tempfile.mkdtemp(prefix="milepost-demo-"))
    else:
        with tempfile.TemporaryDirectory(prefix="milepost-demo-") as name:
            yield Path(name)


def _train(root: Path, *, steps: int, narrator: Narrator) -> Kill:
    """Steps 1 to 3: both runs, the second one killed and resumed."""
    every = steps // 6

    def train(name: str) -> Child:
        command = [sys.executable, SCRIPT, "--output-root", str(root), "--name", name]
        command += ["--steps", str(steps), "--save-every", str(every), "--print-every", str(every)]
        narrator.command(command)
        return Child(command, echo=narrator.quote)

    def checkpoints() -> Path | None:
        run = run_directory(root, KILLED)
        return run / "checkpoints" if run is not None else None

    narrator.say("A small language model is trained twice: once in peace, and once killed in the middle of a save.")
    narrator.step(f"In peace: {steps} steps with a checkpoint every {every}.")
    with train(PEACEFUL) as child:
        child.finish()
    narrator.step(
        "The same under another name, killed (SIGKILL) as soon as a save of its second half is half-written."
    )
    with train(KILLED) as child:
        kill = child.kill_inside_save(checkpoints, at_least=steps // 2)
    tell_kill(kill, narrator)
    narrator.step("The very same command once more: it finds the run, clears the half-written save and goes on.")
    with train(KILLED) as child:
        child.finish()
    return kill


def _judge(root: Path, *, narrator: Narrator) -> tuple[Comparison, int]:
    """Steps 4 to 7: the runs compared, and the killed one explained and verified; the exit code of that."""
    peaceful, killed = run_directory(root, PEACEFUL), run_directory(root, KILLED)
    assert peaceful is not None and killed is not None, "both runs were trained"
    found = compare(peaceful, killed)
    tell_comparison(found, narrator)
    if not narrator.quiet:
        narrator.step(
            "What its journal says of it: the save that was open at the kill, and what the next start found."
        )
        narrator.verb("log", str(killed), "--oneline", *(word for kind in STORY for word in ("--kind", kind)))
        narrator.step("What the next start would continue from, and why not from anything else.")
        narrator.verb("why", str(killed))
    narrator.step("Journal, manifests and every digest, checked against the disk.")
    return found, narrator.verb("verify", str(killed))
