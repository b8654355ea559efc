"""`verify` and `replay`: is it whole."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from milepost.journal.cli.rendering import open_run, print_json, run_argument
from milepost.journal.forensics.findings import Severity
from milepost.journal.forensics.questions import replayed
from milepost.journal.forensics.sentences import size
from milepost.journal.forensics.verifying import verify as verify_run


@click.command()
@run_argument
@click.option("--quick", is_flag=True, help="Manifests and sizes only, no digest.")
@click.pass_context
def verify(ctx: click.Context, run: str, *, quick: bool, credentials: Path | None, as_json: bool) -> None:
    """Hold the journal of RUN against the disk: every entry, every manifest, every digest, and what checkpoints say
    of their validation and of what retention took. All findings are reported. In a bucket every object is read for
    its digest; a tree there that never had a journal, as an archive, is held against its manifests.

    A checkpoint or an artifact as RUN leaves the others out. The worst finding decides the exit code: 3 corrupt
    journal, 4 newer version, 5 payload, 1 anything else that is damage, 6 a torn tail, 0 notes only.

    \b
    Example:
        milepost verify outputs/milepost/default/run --json
        milepost verify s3://bucket/run/checkpoints/iter_000000100 --credentials store.json
    JSON:
        {"run", "quick", "writer": pid | null, "entries", "checkpoints",
         "artifacts", "files", "bytes_hashed", "exit_code",
         "findings": [{"code", "effect": "journal" | "newer" | "payload" | "layout" |
         "torn" | "note", "severity": "damage" | "note", "place": path,
         "offset": bytes | null, "expected", "found", "action"}]}
    """
    place = open_run(run, credentials)
    with _progress() as advance:
        found = verify_run(place, quick=quick, advance=advance)
    if as_json:
        print_json(found)
        ctx.exit(found.exit_code)
    for one in found.findings:
        at = one.place if one.offset is None else f"{one.place}, byte {one.offset}"
        click.secho(f"{one.severity.value}: {one.code}", fg="red" if one.severity is Severity.DAMAGE else "yellow")
        click.echo(f"  place:    {at}\n  expected: {one.expected}\n  found:    {one.found}\n  next:     {one.action}")
    hashed = "no digest (quick)" if quick else f"{size(found.bytes_hashed)} hashed"
    click.echo(
        f"{found.entries} entries, {found.checkpoints} checkpoints, {found.artifacts} artifacts, "
        f"{found.files} files, {hashed}: "
        f"{sum(one.severity is Severity.DAMAGE for one in found.findings)} damaged, "
        f"{sum(one.severity is Severity.NOTE for one in found.findings)} notes"
    )
    ctx.exit(found.exit_code)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr where a person watches it."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("hashing", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@click.command()
@run_argument
@click.pass_context
def replay(ctx: click.Context, run: str, *, credentials: Path | None, as_json: bool) -> None:
    """Fold the journal of RUN again from its first byte and check every invariant at every entry.

    Exits with 1 at the first invariant that does not hold.

    \b
    Example:
        milepost replay outputs/milepost/default/run
    JSON:
        {"run", "entries", "records", "epochs", "checkpoints", "artifacts",
         "kinds": [{"kind", "records"}], "seconds",
         "broken": {"invariant", "what", "seq", "epoch", "at"} | null}
    """
    found = replayed(open_run(run, credentials))
    if as_json:
        print_json(found)
    else:
        rate = found.entries / found.seconds if found.seconds else 0
        click.echo(
            f"{found.entries} entries, {found.records} records, {found.epochs} epochs, {found.checkpoints} "
            f"checkpoints, {found.artifacts} artifacts in {found.seconds:.2f} s ({rate:.0f} entries/s)"
        )
        for count in found.kinds:
            click.echo(f"  {count.records:>7}  {count.kind}")
        if found.broken is None:
            click.secho("every invariant holds at every entry", fg="green")
        else:
            broken = found.broken
            click.secho(f"{broken.invariant} does not hold behind entry {broken.seq}", fg="red")
            click.echo(f"  epoch {broken.epoch}, {broken.at}: {broken.what}")
    ctx.exit(0 if found.broken is None else 1)
