"""`ls`, `show`, `state`, `diff`: what is there."""

from __future__ import annotations

from pathlib import Path

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
from milepost.journal.forensics.listing import Listed, Shown, Stage, listing, shown
from milepost.journal.forensics.questions import Difference, difference, fields_of
from milepost.journal.forensics.reading import Place
from milepost.journal.forensics.sentences import loop_told, roles_told, sentence, size
from milepost.journal.forensics.timeline import Located, entry_at, state_at
from milepost.journal.log.codec import CODEC
from milepost.transitions.errors import Refused
from milepost.transitions.machine import State
from milepost.transitions.retention import kept
from milepost.transitions.saving import Save
from milepost.transitions.values import Component, parse_iteration

_STYLES = {
    Stage.SEALED: "",
    Stage.ARTIFACT: "",
    Stage.OPTIMIZER_RELEASED: "",
    Stage.DAMAGED: "red",
    Stage.UNRECORDED: "dim",
}


@click.command()
@run_argument
@click.pass_context
def ls(ctx: click.Context, run: str, *, credentials: Path | None, as_json: bool) -> None:
    """The checkpoints and artifacts of RUN, by step, at a quick look: small files and sizes, no digest.

    A checkpoint is sealed; evaluation-pending or publication-pending, while its validation is under way; pruning or
    optimizer-released, where retention takes or took a part of it; damaged, where its files are not those that were
    sealed; open or unsettled, while or after its writer made it; unrecorded, where the journal does not know it. What
    retention removed is not listed. An artifact holds some components and is never resumed from. Exits with 5 where
    one is damaged.

    \b
    Example:
        milepost ls outputs/milepost/default/run
    JSON:
        {"run", "pointer": name | null, "checkpoints": [{"name",
         "kind": "checkpoint" | "artifact", "step", "save": id | null, "stage",
         "reason", "components": [those that are there],
         "roles": [{"role", "clocks": {"attempt_id", "optimizer_step",
         "skipped_total", "skipped_consecutive"}}], "size": bytes, "at": UTC,
         "latest", "archived": has an archive's receipt, "resumable", "detail"}]}
    """
    place = open_run(run, credentials)
    found = listing(place)
    rows = tuple(one for one in found.checkpoints if place.means(one.kind, one.name))
    if as_json:
        print_json(evolve(found, checkpoints=rows))
    elif not rows:
        click.echo(f"no checkpoint in {found.run}")
    else:
        _print_listing(rows)
    ctx.exit(5 if any(one.stage is Stage.DAMAGED for one in rows) else 0)


def _print_listing(rows: tuple[Listed, ...]) -> None:
    age = "AGE" if on_terminal() else "AT"
    several, kept = any(one.roles for one in rows), any(one.archived for one in rows)
    names = ("NAME", "KIND", "STEP", "STATE", "REASON", "HOLDS", *several * ("ROLES",), "SIZE", age, "LATEST")
    print_table(
        (*names, *kept * ("ARCHIVE",), "RESUME"),
        [
            (
                one.name,
                one.kind.value,
                str(one.step),
                one.stage.value,
                one.reason or "-",
                components(one),
                *several * (roles(one),),
                size(one.size),
                when(one.at),
                "latest" if one.latest else "-",
                *kept * ("archived" if one.archived else "-",),
                "yes" if one.resumable else "no",
            )
            for one in rows
        ],
        styles=[_STYLES.get(one.stage, "yellow") for one in rows],
    )
    for one in rows:
        if one.detail and one.stage is not Stage.OPTIMIZER_RELEASED:  # the table says it
            click.echo(f"{one.name}: {one.detail}")


def components(row: Listed) -> str:
    """The components that are there, in a word where they are all."""
    if len(row.components) == len(Component):
        return "everything"
    return ",".join(part.value for part in row.components) or "-"


def roles(row: Listed) -> str:
    """The roles that it joins, each with its optimizer step: `critic:9,policy:4`."""
    return ",".join(f"{one.role}:{one.clocks.optimizer_step}" for one in row.roles) or "-"


@click.command()
@run_argument
@click.argument("what", required=False)
def show(run: str, what: str | None, *, credentials: Path | None, as_json: bool) -> None:
    """One entry of RUN's journal by its seq, or what lies in either tree under a name, whole.

    WHAT may be left out where RUN is the directory of a checkpoint or an artifact.

    \b
    Examples:
        milepost show outputs/milepost/default/run 12
        milepost show outputs/milepost/default/run iter_000000100
    JSON of an entry:
        {"seq", "epoch", "at", "synced", "crit", "segment", "offset": bytes,
         "records": [record], "sentences": [text], "prev", "sum", "line": raw text}
    JSON of a checkpoint or an artifact; of both, where both have the name, an array:
        {"listed": a row of ls, "where", "run_ts", "milepost", "checkpoint_format",
         "world_size", "witness": {"seq", "sum"} | null, "manifest": file | null,
         "files": [{"path", "size", "digest"}],
         "loop_state": [{"name", "value": JSON text}],
         "generation": what it says of its validation | null,
         "released": [the files that it says are gone],
         "events": [{"seq", "epoch", "at", "kind", "text"}]}
    """
    place = open_run(run, credentials)
    what = what or place.checkpoint
    if what.isascii() and what.isdigit():
        _show_entry(entry_at(place.log, int(what)), as_json=as_json)
    elif parse_iteration(what) is not None:
        found = shown(place, what)
        _show_json(found) if as_json else _show_published(found)
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


def _show_json(found: tuple[Shown, ...]) -> None:
    documents = [shape_of(Shown).write(one) for one in found]
    print_document(documents[0] if len(documents) == 1 else documents)


def _show_published(found: tuple[Shown, ...]) -> None:
    for one in found:
        _show_one(one)
        click.echo()
    if events := found[0].events:
        print_table(("SEQ", "AT", "RECORD"), [(str(one.seq), one.at, one.text) for one in events])


def _show_one(found: Shown) -> None:
    row = found.listed
    latest = ", latest" if row.latest else ""
    click.echo(f"{row.name}, {row.kind.value} of step {row.step}: {row.stage.value}{latest}; holds {components(row)}")
    click.echo(found.where)
    if row.detail:
        click.echo(row.detail)
    if row.roles:
        click.echo(f"joins {roles_told(row.roles)}")
    if found.loop_state:
        click.echo(f"the loop says {loop_told(found.loop_state)}")
    if found.generation is not None:
        click.echo(f"says of itself: {found.generation.value}")
    if found.manifest is not None:
        click.echo(
            f"save {row.save or 'unknown'}, run {found.run_ts}, {found.checkpoint_format}, milepost {found.milepost}"
        )
        click.echo(f"manifest {found.manifest.digest}, {found.manifest.size} bytes")
    if found.witness is not None:
        click.echo(f"sealed when entry {found.witness.seq} with sum {found.witness.sum} was durable")
    if found.files:
        click.echo()
        rows = [
            (one.path, str(one.size), "released" if one.path in found.released else one.digest) for one in found.files
        ]
        print_table(("FILE", "SIZE", "DIGEST"), rows)


@click.command()
@run_argument
@click.option("--at", "point", default="head", metavar="POINT", help="A seq, a checkpoint, or head (the default).")
def state(run: str, point: str, *, credentials: Path | None, as_json: bool) -> None:
    """The folded state of RUN behind an entry.

    \b
    Example:
        milepost state outputs/milepost/default/run --at 12
    JSON:
        {"seq", "state": {"run", "updates", "saving", "boundary", "validation",
         "archiving", "retention", "pointer", "debris", "emergency", "sampling"}},
        each part as the fields of its class; a map is an array of [key, value]
    """
    place = open_run(run, credentials)
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
    _print_saves("checkpoints", list(kept(then.retention, saving=then.saving)))
    _print_saves("artifacts", list(then.saving.artifacts.values()))


def _print_saves(title: str, saves: list[Save]) -> None:
    click.secho(f"\n{title}", bold=True)
    for save in sorted(saves, key=lambda save: save.id.step):
        click.echo(f"  {save.id.directory}: save {save.id}, {save.reason.value}, {size(save.size)}")
    if not saves:
        click.echo("  none")


@click.command()
@run_argument
@click.argument("old")
@click.argument("new", default="head")
def diff(run: str, old: str, new: str, *, credentials: Path | None, as_json: bool) -> None:
    """What changed in the state of RUN from point OLD to point NEW: seqs, checkpoints, or head (the default of NEW).

    \b
    Example:
        milepost diff outputs/milepost/default/run 12 iter_000000100
    JSON:
        {"old": seq, "new": seq,
         "changes": [{"part", "field", "old": JSON text, "new": JSON text}],
         "added": [names of checkpoints], "artifacts": [names of artifacts],
         "archived": [names of either],
         "released": [checkpoints that lost their optimizer], "removed": [checkpoints]}
    """
    place = open_run(run, credentials)
    found = difference(place, old, new)
    if as_json:
        print_json(found)
    else:
        _print_difference(place, found)


def _print_difference(place: Place, found: Difference) -> None:
    click.echo(f"from entry {found.old} to entry {found.new} of {place.where}")
    told = (
        *((f"+ {name}", "green") for name in found.added),
        *((f"+ artifact {name}", "green") for name in found.artifacts),
        *((f"archived {name}", "green") for name in found.archived),
        *((f"- optimizer of {name}", "yellow") for name in found.released),
        *((f"- {name}", "yellow") for name in found.removed),
    )
    for line, colour in told:
        click.secho(line, fg=colour)
    part = ""
    for change in found.changes:
        if change.part != part:
            part = change.part
            click.secho(f"\n{part}", bold=True)
        click.echo(f"  {change.field}: {change.old or '(none)'} -> {change.new or '(none)'}")
    if not found.changes and not told:
        click.echo("nothing changed")
