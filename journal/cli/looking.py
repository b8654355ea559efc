"""`ls`, `show`, `state`, `diff`: what is there."""

from __future__ import annotations

import click
from attrs import evolve

from milepost.engines.shapes import shape_of
from milepost.journal.cli.rendering import (
    on_terminal,
    open_run,
    print_document,
    print_json,
    print_table,
    run_argument,
    when,
)
from milepost.journal.forensics.questions import Difference, Shown, Stage, difference, fields_of, listing, shown
from milepost.journal.forensics.reading import Place
from milepost.journal.forensics.sentences import sentence, size
from milepost.journal.forensics.timeline import Located, entry_at, state_at
from milepost.journal.log.codec import CODEC
from milepost.transitions.errors import Refused
from milepost.transitions.machine import State
from milepost.transitions.values import parse_iteration

_STYLES = {Stage.SEALED: "", Stage.DAMAGED: "red", Stage.UNRECORDED: "dim"}


@click.command()
@run_argument
@click.pass_context
def ls(ctx: click.Context, run: str, *, as_json: bool) -> None:
    """The checkpoints of RUN, by step, at a quick look: manifests and sizes, no digest.

    A checkpoint is sealed; damaged, where its files are not those that were sealed; open or unsettled, while or after
    its writer made it; unrecorded, where the journal does not know it. Exits with 5 where one is damaged.

    \b
    Example:
        milepost ls outputs/milepost/default/run
    JSON:
        {"run", "pointer": name | null, "checkpoints": [{"name", "step",
         "save": id | null, "stage", "reason", "size": bytes, "at": UTC,
         "latest", "resumable", "detail"}]}
    """
    place = open_run(run)
    found = listing(place)
    rows = tuple(one for one in found.checkpoints if place.checkpoint in ("", one.name))
    if as_json:
        print_json(evolve(found, checkpoints=rows))
    elif not rows:
        click.echo(f"no checkpoint in {found.run}")
    else:
        print_table(
            ("NAME", "STEP", "STATE", "REASON", "SIZE", "AGE" if on_terminal() else "AT", "LATEST", "RESUME"),
            [
                (
                    one.name,
                    str(one.step),
                    one.stage.value,
                    one.reason or "-",
                    size(one.size),
                    when(one.at),
                    "latest" if one.latest else "-",
                    "yes" if one.resumable else "no",
                )
                for one in rows
            ],
            styles=[_STYLES.get(one.stage, "yellow") for one in rows],
        )
        for one in rows:
            if one.detail:
                click.echo(f"{one.name}: {one.detail}")
    ctx.exit(5 if any(one.stage is Stage.DAMAGED for one in rows) else 0)


@click.command()
@run_argument
@click.argument("what", required=False)
def show(run: str, what: str | None, *, as_json: bool) -> None:
    """One entry of RUN's journal by its seq, or one checkpoint by its name, whole.

    WHAT may be left out where RUN is a checkpoint directory.

    \b
    Examples:
        milepost show outputs/milepost/default/run 12
        milepost show outputs/milepost/default/run iter_000000100
    JSON of an entry:
        {"seq", "epoch", "at", "synced", "crit", "segment", "offset": bytes,
         "records": [record], "sentences": [text], "prev", "sum", "line": raw text}
    JSON of a checkpoint:
        {"listed": a row of ls, "where", "run_ts", "milepost", "checkpoint_format",
         "world_size", "witness": {"seq", "sum"} | null, "manifest": file | null,
         "files": [{"path", "size", "digest"}],
         "events": [{"seq", "epoch", "at", "kind", "text"}]}
    """
    place = open_run(run)
    what = what or place.checkpoint
    if what.isascii() and what.isdigit():
        _show_entry(entry_at(place.log, int(what)), as_json=as_json)
    elif parse_iteration(what) is not None:
        _show_checkpoint(shown(place, what), as_json=as_json)
    else:
        raise Refused(f"{what!r} is neither: name the seq of an entry as 12, or a checkpoint as iter_000000100")


def _show_entry(found: Located, *, as_json: bool) -> None:
    entry = found.entry
    documents = [CODEC.encode(record) for record in entry.records]
    if as_json:
        print_document(
            {
                "seq": entry.seq,
                "epoch": entry.epoch,
                "at": entry.at,
                "synced": entry.synced,
                "crit": entry.crit,
                "segment": found.segment,
                "offset": found.offset,
                "records": documents,
                "sentences": [sentence(record) for record in entry.records],
                "prev": entry.prev,
                "sum": entry.sum,
                "line": found.line.decode().rstrip("\n"),
            }
        )
        return
    click.echo(f"entry {entry.seq} of epoch {entry.epoch}, {entry.at}, entry {entry.synced} known to be durable")
    click.echo(f"segment {found.segment}, byte {found.offset}, {len(found.line)} bytes; sum and chain are right")
    click.echo(f"prev {entry.prev}\nsum  {entry.sum}")
    for record, document in zip(entry.records, documents, strict=True):
        click.echo(f"\n{record.KIND}: {sentence(record)}")
        print_document(document)
    for tag in entry.unread:
        click.echo(f"\n{tag}: a record of a newer milepost that may be passed over")
    click.echo(f"\n{found.line.decode()}", nl=False)


def _show_checkpoint(found: Shown, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    row = found.listed
    click.echo(f"{row.name}, step {row.step}: {row.stage.value}{', latest' if row.latest else ''}")
    click.echo(found.where)
    if row.detail:
        click.echo(row.detail)
    if found.manifest is not None:
        click.echo(
            f"save {row.save or 'unknown'}, run {found.run_ts}, {found.checkpoint_format}, milepost {found.milepost}"
        )
        click.echo(f"manifest {found.manifest.digest}, {found.manifest.size} bytes")
    if found.witness is not None:
        click.echo(f"sealed when entry {found.witness.seq} with sum {found.witness.sum} was durable")
    if found.files:
        click.echo()
        print_table(("FILE", "SIZE", "DIGEST"), [(one.path, str(one.size), one.digest) for one in found.files])
    if found.events:
        click.echo()
        print_table(("SEQ", "AT", "RECORD"), [(str(one.seq), one.at, one.text) for one in found.events])


@click.command()
@run_argument
@click.option("--at", "point", default="head", metavar="POINT", help="A seq, a checkpoint, or head (the default).")
def state(run: str, point: str, *, as_json: bool) -> None:
    """The folded state of RUN behind an entry.

    \b
    Example:
        milepost state outputs/milepost/default/run --at 12
    JSON:
        {"seq", "state": {"run", "updates", "saving", "pointer", "debris",
         "emergency"}}, each part as the fields of its class; a map is an array
        of [key, value]
    """
    place = open_run(run)
    seq, then = state_at(place.log, point)
    if as_json:
        print_document({"seq": seq, "state": shape_of(State).write(then)})
        return
    click.echo(f"behind entry {seq}")
    part = ""
    for (section, name), value in fields_of(then):
        if section != part:
            part = section
            click.secho(f"\n{part}", bold=True)
        click.echo(f"  {name}: {value}")
    sealed = sorted(then.saving.sealed.values(), key=lambda save: save.id.step)
    click.secho("\ncheckpoints", bold=True)
    for save in sealed:
        click.echo(f"  {save.id.directory}: save {save.id}, {save.reason.value}, {size(save.size)}")
    if not sealed:
        click.echo("  none")


@click.command()
@run_argument
@click.argument("old")
@click.argument("new", default="head")
def diff(run: str, old: str, new: str, *, as_json: bool) -> None:
    """What changed in the state of RUN from point OLD to point NEW: seqs, checkpoints, or head (the default of NEW).

    \b
    Example:
        milepost diff outputs/milepost/default/run 12 iter_000000100
    JSON:
        {"old": seq, "new": seq,
         "changes": [{"part", "field", "old": JSON text, "new": JSON text}],
         "added": [names of checkpoints]}
    """
    place = open_run(run)
    found = difference(place, old, new)
    if as_json:
        print_json(found)
    else:
        _print_difference(place, found)


def _print_difference(place: Place, found: Difference) -> None:
    click.echo(f"from entry {found.old} to entry {found.new} of {place.where}")
    for name in found.added:
        click.secho(f"+ {name}", fg="green")
    part = ""
    for change in found.changes:
        if change.part != part:
            part = change.part
            click.secho(f"\n{part}", bold=True)
        click.echo(f"  {change.field}: {change.old or '(none)'} -> {change.new or '(none)'}")
    if not found.changes and not found.added:
        click.echo("nothing changed")
