"""`log` and `why`: what happened, and what would happen next."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import orjson

from milepost.journal.cli.rendering import open_run, print_json, print_table, run_argument
from milepost.journal.forensics.foreseeing import Start, Why, WhyOne, why_one
from milepost.journal.forensics.foreseeing import why as why_run
from milepost.journal.forensics.sentences import sentence
from milepost.journal.forensics.timeline import Ending, Epoch, Wanted, follow, parse_since, records
from milepost.journal.log.codec import CODEC
from milepost.journal.log.entries import Entry
from milepost.transitions.machine import RECORDS, Record
from milepost.transitions.values import parse_iteration

POLL_S = 0.5
POLL_BUCKET_S = 2.0

_KINDS = tuple(sorted(record.KIND for record in RECORDS))  # type: ignore[attr-defined]
_COLOURS = {
    "save-sealed": "green",
    "artifact-sealed": "green",
    "prune-failed": "red",
    "save-abandoned": "red",
    "run-opened": "cyan",
    "run-ended": "cyan",
}


@click.command()
@run_argument
@click.option("--kind", "kinds", multiple=True, type=click.Choice(_KINDS), help="Only this kind; repeatable.")
@click.option("--since", default="0", metavar="SEQ|TIME", help="From this entry or time on (UTC, 2026-11-29T16:09).")
@click.option("--step", type=int, help="Only records that speak of this step.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the last so many of them.")
@click.option("--oneline", is_flag=True, help="Without epoch and time.")
@click.option("--follow", "following", is_flag=True, help="Go on with what is appended, until interrupted.")
def log(
    run: str,
    kinds: tuple[str, ...],
    since: str,
    step: int | None,
    limit: int | None,
    *,
    oneline: bool,
    following: bool,
    credentials: Path | None,
    as_json: bool,
) -> None:
    """The records of RUN's journal, oldest first, a line each: seq, epoch, time, kind, and what it says.

    A checkpoint directory as RUN means the records of its step. --follow looks again every half second, into a bucket
    every two seconds.

    \b
    Examples:
        milepost log outputs/milepost/default/run --kind save-sealed --limit 5
        milepost log outputs/milepost/default/run --follow --oneline
    JSON, one object a line:
        {"seq", "epoch", "at": UTC, "kind", "sentence", "record": as in the journal}
    """
    if following and limit is not None:
        raise click.UsageError("--follow shows everything from --since on: it takes no --limit")
    place = open_run(run, credentials)
    if step is None and place.checkpoint:
        step = parse_iteration(place.checkpoint)
    wanted = Wanted(kinds=kinds, since=parse_since(since), step=step)
    if following:
        with suppress(KeyboardInterrupt):
            pause_s = POLL_BUCKET_S if place.remote else POLL_S
            _print_records(follow(place.log, wanted, wait=lambda: time.sleep(pause_s)), oneline, as_json)
        return
    found = records(place.log, wanted)
    _print_records(found if limit is None else iter(deque(found, maxlen=limit)), oneline, as_json)


def _print_records(found: Iterator[tuple[Entry, Record]], oneline: bool, as_json: bool) -> None:
    for entry, record in found:
        if as_json:
            click.echo(orjson.dumps(_document(entry, record)))
            continue
        kind = click.style(f"{record.KIND:<20}", fg=_COLOURS.get(record.KIND))
        place = f"{entry.seq:>7}" if oneline else f"{entry.seq:>7}  {entry.epoch:>3}  {entry.at}"
        click.echo(f"{place}  {kind}  {sentence(record)}")


def _document(entry: Entry, record: Record) -> dict[str, object]:
    return {
        "seq": entry.seq,
        "epoch": entry.epoch,
        "at": entry.at,
        "kind": record.KIND,
        "sentence": sentence(record),
        "record": CODEC.encode(record),
    }


@click.command()
@run_argument
@click.argument("checkpoint", required=False)
@click.pass_context
def why(ctx: click.Context, run: str, checkpoint: str | None, *, credentials: Path | None, as_json: bool) -> None:
    """What a start with resume=auto would take from RUN now, and why not each other candidate; how each epoch ended.

    With CHECKPOINT, or a checkpoint directory as RUN: everything that the journal knows of that one. A checkpoint
    whose validation is pending is taken like any other, and it is said what is done about it: evaluated again, or
    only published. Exits with 5 where a start would be refused as the newest checkpoint is damaged, with 1 where it
    would be refused otherwise: a newer artifact lies there.

    \b
    Examples:
        milepost why outputs/milepost/default/run
        milepost why outputs/milepost/default/run iter_000000100
    JSON:
        {"run", "start": "fresh" | "exact" | "refused" | "busy",
         "taken": name | null, "reason", "passed_over": [{"name", "reason", "detail"}],
         "foreseen": [text], "evaluates": name | null, "exit_code",
         "epochs": [{"epoch", "host", "pid", "opened_at",
         "first_seq", "last_seq", "last_at", "step", "resumed", "ending", "detail",
         "open_save": id | null, "settled"}]}
    JSON of one checkpoint:
        {"run", "name", "taken", "reason",
         "events": [{"seq", "epoch", "at", "kind", "text"}]}
    """
    place = open_run(run, credentials)
    name = checkpoint or place.checkpoint
    if name:
        one = why_one(place, name)
        print_json(one) if as_json else _print_one(one)
        return
    found = why_run(place)
    print_json(found) if as_json else _print_why(found)
    ctx.exit(found.exit_code)


def _print_why(found: Why) -> None:
    for words in found.foreseen:
        click.echo(words)
    headline = {
        Start.FRESH: "resume=auto starts fresh",
        Start.EXACT: f"resume=auto takes {found.taken}",
        Start.REFUSED: "resume=auto is refused",
        Start.BUSY: "resume=auto is refused: busy",
    }[found.start]
    click.secho(headline, bold=True, fg="red" if found.start in (Start.REFUSED, Start.BUSY) else "green")
    click.echo(f"  because: {found.reason}")
    for one in found.passed_over:
        click.echo(f"  not {one.name}: {one.reason}{f' ({one.detail})' if one.detail else ''}")
    for epoch in found.epochs:
        click.echo()
        _print_epoch(epoch, running=found.start is Start.BUSY and epoch is found.epochs[-1])


def _print_epoch(epoch: Epoch, *, running: bool) -> None:
    click.secho(f"epoch {epoch.epoch}", bold=True, nl=False)
    click.echo(f": entries {epoch.first_seq} to {epoch.last_seq}, {epoch.opened_at} to {epoch.last_at}")
    click.echo(f"  by process {epoch.pid} on {epoch.host}: {epoch.resumed or 'its resume was not decided'}")
    click.echo(f"  {_ending(epoch, running=running)}")
    if epoch.open_save is not None:
        click.echo(f"  save {epoch.open_save} was open then: {epoch.settled or 'not settled yet'}")


def _ending(epoch: Epoch, *, running: bool) -> str:
    detail = f" ({epoch.detail})" if epoch.detail else ""
    if epoch.ending is Ending.KILLED:
        return f"killed in or after step {epoch.step}: the next epoch found no end"
    if epoch.ending is not Ending.UNENDED:
        return f"ended by itself after step {epoch.step}: {epoch.ending.value}{detail}"
    if running:
        return f"running, in or after step {epoch.step}"
    return f"no end is recorded, and no writer is seen on this machine: killed in or after step {epoch.step}"


def _print_one(one: WhyOne) -> None:
    click.secho(f"resume=auto {'takes' if one.taken else 'does not take'} {one.name}", bold=True)
    click.echo(f"  because: {one.reason}")
    if one.events:
        click.echo()
        print_table(("SEQ", "AT", "RECORD"), [(str(event.seq), event.at, event.text) for event in one.events])
