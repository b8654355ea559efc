"""How results meet the eye: JSON for programs, tables and colours for a terminal, stable plain text for a pipe.

JSON is the result value itself by its type (`milepost.engines.shapes`): a field per attribute, enums as their
values, absent values as null. A field is never renamed; new ones may come.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click
import orjson

from milepost.engines.shapes import shape_of
from milepost.journal.forensics.reading import Place, locate

F = TypeVar("F", bound=Callable[..., Any])

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, see above for its shape.")


def credentials_option(
    name: str = "--credentials", *, meaning: str = "A JSON file; else what boto3 finds."
) -> Callable[[F], F]:
    """The path of the credentials of a store, which every verb that may reach one has."""
    return click.option(name, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help=meaning)


_run_credentials = credentials_option(meaning="For a run in a bucket: a JSON file; else what boto3 finds.")


def run_argument(function: F) -> F:
    """RUN, --credentials and --json, which every verb that reads a run has."""
    return click.argument("run", type=click.Path())(_run_credentials(as_json(function)))


def open_run(run: str, credentials: Path | None = None) -> Place:
    """The run that was named; what was chosen for the caller is said on stderr."""
    place = locate(run, credentials=credentials)
    for note in place.notes:
        click.echo(f"milepost: {note}", err=True)
    return place


def on_terminal() -> bool:
    return sys.stdout.isatty()


def print_json(value: Any) -> None:
    """A result value as one JSON document."""
    hint: Any = type(value)
    print_document(shape_of(hint).write(value))


def print_document(document: object) -> None:
    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, styles: Sequence[str] = ()) -> None:
    """Rows under a header. `styles` has a rich style per row; a pipe gets aligned columns and no colour."""
    rows = [tuple(row) for row in rows]
    if on_terminal():
        _print_rich(columns, rows, styles)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column is not columns[-1])
    for index, row in enumerate(rows):
        table.add_row(*map(Text, row), style=styles[index] if styles else None)
    Console().print(table)


def when(at: str) -> str:
    """A time of the journal: its age on a terminal, itself in a pipe, a dash for none."""
    if not at or not on_terminal():
        return at or "-"
    return age((datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds())


def age(seconds: float) -> str:
    """`3 min ago`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return f"{max(int(seconds), 0)} s ago"
