"""The command line: one module per group of verbs, imported when the verb is used.

`--help` of every verb has an example and the shape of its `--json`. `prune` alone changes a run; `publish` puts a
receipt into a published directory, and `prune-verified` takes payload out of one. Exit codes:

    0 clean · 1 findings, or a disk that failed · 2 usage · 3 corrupt journal · 4 written by a newer version ·
    5 payload missing or wrong · 6 torn tail only
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from milepost import __version__
from milepost.transitions.errors import (
    Corrupt,
    MilepostError,
    Misconfigured,
    NewerVersion,
    NotResumable,
    Refused,
)

VERBS: Mapping[str, tuple[str, str]] = {
    "demo": ("milepost.journal.demo.command:demo", "Train, be killed mid-save, resume: nothing differs."),
    "ls": ("milepost.journal.cli.looking:ls", "The checkpoints and artifacts of a run."),
    "log": ("milepost.journal.cli.telling:log", "The records of a journal, oldest first."),
    "show": ("milepost.journal.cli.looking:show", "One entry or one checkpoint, whole."),
    "state": ("milepost.journal.cli.looking:state", "The folded state of a run, now or then."),
    "diff": ("milepost.journal.cli.looking:diff", "What changed between two points."),
    "why": ("milepost.journal.cli.telling:why", "What a resume would take now, and why nothing else."),
    "verify": ("milepost.journal.cli.checking:verify", "Hold the journal against the disk, every digest."),
    "replay": ("milepost.journal.cli.checking:replay", "Fold again from nothing, check every invariant."),
    "prune": ("milepost.journal.cli.pruning:prune", "Apply retention now, or say what would go and why."),
    "publish": ("milepost.journal.cli.moving:publish", "Archive a checkpoint or an artifact in an object store."),
    "fetch": ("milepost.journal.cli.moving:fetch", "An archive into a new directory, every file proven."),
    "prune-verified": ("milepost.journal.cli.moving:pruned", "Remove payload whose archive is proven."),
    "copy": ("milepost.journal.cli.moving:copy", "Objects from one address to another."),
    "download": ("milepost.journal.cli.moving:download", "Objects below an address onto a disk."),
    "probe": ("milepost.journal.cli.moving:probe", "Try what an object store can promise."),
    "slurm": ("milepost.journal.cli.scheduling:slurm", "The sbatch wiring for preemption, to paste."),
}
"""Where each verb is, and what it is for. `demo` is imported by whoever asks for it."""

_EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (NewerVersion, 4),
    (Corrupt, 3),
    (Refused, 2),
    (NotResumable, 2),
    (Misconfigured, 2),
    (MilepostError, 1),
    (OSError, 1),
)


class Verbs(click.Group):
    """The group. A failure that milepost expects is one message on stderr and its exit code, never a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _, name = VERBS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, meaning) for verb, (_, meaning) in VERBS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # whoever read the output has enough; click leaves quietly
        except (MilepostError, OSError) as failure:
            click.echo(f"milepost: {failure}", err=True)
            ctx.exit(next(code for kind, code in _EXIT_CODES if isinstance(failure, kind)))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="milepost")
def main() -> None:
    """Look into the runs of milepost: what is there, what happened, is it whole.

    RUN is a run directory (…/<RUN_TS>), its journal/, one of its checkpoints or artifacts, or the <name>/ above the
    attempts: then the newest one. A verb that only reads takes all of these in a bucket too, as s3://bucket/….

    No verb but prune changes a run, and a writer may go on beside every other one; publish adds a receipt to a
    directory, and prune-verified takes payload that was archived.

    \b
    Example:
        milepost ls outputs/milepost/default/run

    \b
    Exit codes:
        0 clean    1 findings, or a disk that failed    2 usage
        3 corrupt journal    4 written by a newer version
        5 payload missing or wrong    6 torn tail only
    """
