"""`slurm`: the batch script's part of preemption.

Source: the checkpointing contract, "Preemption on a QOS-preempting cluster"; sbatch(1), scancel(1).
"""

from __future__ import annotations

import shlex

import click
from attrs import frozen

from milepost.journal.cli.rendering import as_json, open_run, print_json
from milepost.journal.forensics.budgeting import Budget, budget
from milepost.transitions.errors import Refused

_SCRIPT = """\
#!/bin/bash
# Slurm sends SIGUSR1 to this shell (B:) {grace_s} seconds before the job's end, and when the job is preempted on a
# cluster with PreemptParameters=send_user_signal. One step and one emergency save have to fit into that time.
#SBATCH --signal=B:SIGUSR1@{grace_s}
# The job may start again: Slurm requeues it where it had to kill it, the last lines where the run ended in time.
#SBATCH --requeue

# On a file system that every node sees. In a container: mount it there, and pass the variable on.
export SLURM_LOG_DIR="{log_dir}"
mkdir -p "$SLURM_LOG_DIR"

# The signal does not reach a container; this file does. The run looks for it at every step boundary.
trap 'told=1; touch "$SLURM_LOG_DIR/SIGUSR1_RECEIVED"' USR1

# In the background: bash runs a trap only once the command in its foreground has ended.
{command} &
_lp=$!

# The first wait returns when the signal arrives, the second when the run has saved and ended. Without a signal the
# first one has its exit status, and the second gives the same again.
wait $_lp
wait $_lp
status=$?

# A run that was told to stop ended well, so that to Slurm the job is done: ask for the rest of it. The same command
# continues from the emergency save.
if [[ -n ${{told-}} && $status -eq 0 ]]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
"""


@frozen(kw_only=True)
class Script:
    """An sbatch script, and where a run was named, whether that run fits into its grace."""

    script: str
    budget: Budget | None


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
@click.option("--run", metavar="RUN", help="A run of the same training: whether one step and one save fit.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def slurm(
    ctx: click.Context, command: tuple[str, ...], grace_s: int, log_dir: str, run: str | None, *, as_json: bool
) -> None:
    """The sbatch script that lets a run survive preemption and its time limit, for COMMAND (srun and what it runs).

    With --run, the slowest step and the slowest save that the journal of RUN measured are held against the grace, on
    stderr: a run looks for the order to stop at step boundaries only, so both have to fit. Exits with 1 where they do
    not, with 0 where the journal has too few steps to tell.

    \b
    Example:
        milepost slurm --grace 900 --run outputs/milepost/default/run -- srun python train.py > job.sh
    JSON:
        {"script": text, "budget": null | {"run", "grace_s", "step": timing,
         "saves": [{"mode", "full", "took": timing}], "needed_s" | null,
         "fits": true | false | null, "words"}}
        timing: {"count", "median_s", "slowest_s"}
    """
    text = script(command or ("srun", "python", "train.py"), grace_s=grace_s, log_dir=log_dir)
    measured = None
    if run is not None:
        place = open_run(run)
        measured = budget(place.log, run=place.where, grace_s=grace_s)
        click.secho(f"milepost: {measured.words}", err=True, fg="red" if measured.fits is False else None)
    if as_json:
        print_json(Script(script=text, budget=measured))
    else:
        click.echo(text, nl=False)
    ctx.exit(1 if measured is not None and measured.fits is False else 0)


def script(command: tuple[str, ...], *, grace_s: int, log_dir: str) -> str:
    """The script; `Refused` for a directory that would not stand between double quotes in bash."""
    if not log_dir or any(mark in log_dir for mark in '"`\\\n') or "$(" in log_dir:
        raise Refused(f"--log-dir {log_dir!r}: expected a path, in which $VARIABLES may stand and no quotes")
    return _SCRIPT.format(grace_s=grace_s, log_dir=log_dir, command=shlex.join(command))
