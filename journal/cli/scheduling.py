"""`slurm`: the batch script's part of preemption.

Source: the checkpointing contract, "Preemption on a QOS-preempting cluster"; sbatch(1), scancel(1).
"""

from __future__ import annotations

import shlex

import click
from attrs import frozen

from milepost.journal.cli.rendering import as_json, print_json
from milepost.transitions.errors import Refused

_SCRIPT = """\
#!/bin/bash
# Slurm sends SIGUSR1 to this shell (B:) {grace_s} seconds before the job's end, and when the job is preempted on a
# cluster with PreemptParameters=send_user_signal. One step and one emergency save have to fit into that time.
#SBATCH --signal=B:SIGUSR1@{grace_s}
# A preempted job starts again with the same command, and resume=auto continues it.
#SBATCH --requeue

# On a file system that every node sees. In a container: mount it there, and pass the variable on.
export SLURM_LOG_DIR="{log_dir}"
mkdir -p "$SLURM_LOG_DIR"

# The signal does not reach a container; this file does. The run looks for it at every step boundary.
trap 'touch "$SLURM_LOG_DIR/SIGUSR1_RECEIVED"' USR1

# In the background: bash runs a trap only once the command in its foreground has ended.
{command} &
_lp=$!

# The first wait returns when the signal arrives, the second when the run has saved and ended. Without a signal the
# first one has its exit status, and the second gives the same again.
wait $_lp
wait $_lp
"""


@frozen(kw_only=True)
class Script:
    """An sbatch script."""

    script: str


@click.command()
@as_json
@click.option(
    "--grace",
    "grace_s",
    type=click.IntRange(1, 65535),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="How long before the end the run is told: at least one step and one save.",
)
@click.option(
    "--log-dir",
    default="$SLURM_SUBMIT_DIR/slurm-logs/$SLURM_JOB_ID",
    show_default=True,
    metavar="DIR",
    help="A directory on a shared file system; variables of the job may stand in it.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def slurm(command: tuple[str, ...], grace_s: int, log_dir: str, *, as_json: bool) -> None:
    """The sbatch script that lets a run survive preemption and its time limit, for COMMAND (srun and what it runs).

    \b
    Example:
        milepost slurm --grace 900 -- srun python train.py > job.sh
    JSON:
        {"script": text}
    """
    text = script(command or ("srun", "python", "train.py"), grace_s=grace_s, log_dir=log_dir)
    if as_json:
        print_json(Script(script=text))
    else:
        click.echo(text, nl=False)


def script(command: tuple[str, ...], *, grace_s: int, log_dir: str) -> str:
    """The script; `Refused` for a directory that would not stand between double quotes in bash."""
    if not log_dir or any(mark in log_dir for mark in '"`\\\n') or "$(" in log_dir:
        raise Refused(f"--log-dir {log_dir!r}: expected a path, in which $VARIABLES may stand and no quotes")
    return _SCRIPT.format(grace_s=grace_s, log_dir=log_dir, command=shlex.join(command))
