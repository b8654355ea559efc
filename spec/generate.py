"""Draw the pages of `spec/` that follow from the code: the lifecycles, the records, their JSON schema, the knobs.

    python spec/generate.py            writes lifecycle.md, records.md, records.schema.json and configuration.md
    python spec/generate.py --check    writes nothing; exits 1 where a page differs from the code

A room's docstring carries its prose and, for every row of its TABLE, the promise that a reader may rely on. The
diagram is drawn from the TABLE itself; a test holds the two against each other.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType

import attrs

from milepost.journal.config import knobs
from milepost.journal.log.codec import CODEC
from milepost.transitions import (
    archiving,
    boundary,
    emergency,
    planning,
    pointing,
    resuming,
    retention,
    run,
    sampling,
    saving,
    sweeping,
    updates,
    validation,
)
from milepost.transitions.machine import RECORDS

HERE = Path(__file__).parent
ROOMS: tuple[ModuleType, ...] = (
    run,
    updates,
    saving,
    boundary,
    validation,
    archiving,
    retention,
    pointing,
    sweeping,
    emergency,
    sampling,
)
NOTICE = "<!-- Drawn from the code by spec/generate.py; change the code and run it again. -->"


# --- reading a room -------------------------------------------------------------------------------------------


def room_name(room: ModuleType) -> str:
    return room.__name__.rpartition(".")[2]


def stages(room: ModuleType) -> type[Enum]:
    return type(next(iter(room.TABLE.values())))


def prose_and_rows(room: ModuleType) -> tuple[str, list[list[str]]]:
    """The docstring without its table, and the table's cells with the header first."""
    prose: list[str] = []
    rows: list[list[str]] = []
    for block in inspect.cleandoc(room.__doc__ or "").split("\n\n"):
        lines = [line.strip() for line in block.splitlines()]
        if re.match(r"stage +record +next ", lines[0]):
            rows = [re.split(r" {2,}", line, maxsplit=3) for line in lines]
        else:
            prose.append(block)
    return "\n\n".join(prose), rows


def promises(room: ModuleType) -> dict[tuple[str, str], tuple[str, str]]:
    """What the docstring says for each pair of a stage and a record: the next stage and the promise.

    `any` stands for every stage, `the same` for the stage it stands beside, `(none)` for the stage NONE.
    """
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for at, record, then, promise in prose_and_rows(room)[1][1:]:
        for stage in [stage.name for stage in stages(room)] if at == "any" else [at.strip("()").upper()]:
            if (stage, record) in found:
                raise ValueError(f"{room_name(room)}: the docstring has ({stage}, {record}) twice")
            found[stage, record] = (stage if then == "the same" else then, promise)
    return found


# --- drawing --------------------------------------------------------------------------------------------------


def diagram(room: ModuleType) -> Iterator[str]:
    """A mermaid state diagram: one arrow for each pair of stages, labelled with the records that take it."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (stage, record), then in room.TABLE.items():
        arrows.setdefault((stage.name, then.name), []).append(record.__name__)
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield f"    [*] --> {next(iter(stages(room))).name}"
    for (stage, then), records in arrows.items():
        yield f"    {stage} --> {then}: {', '.join(records)}"
    yield "```"


def table(rows: list[list[str]]) -> Iterator[str]:
    header, *body = rows
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for cells in body:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def fenced(prose: str) -> Iterator[str]:
    """Paragraphs as they are; indented blocks, which are small tables, as text blocks."""
    for block in prose.split("\n\n"):
        yield from ("```text", inspect.cleandoc("\n" + block), "```", "") if block.startswith("    ") else (block, "")


def lifecycle_page() -> Iterator[str]:
    yield from (NOTICE, "", "# Lifecycles", "")
    yield "One section for each room of `transitions/`: from a stage, by a record, to a stage. A pair that a table"
    yield "does not have is refused with `IllegalTransition` before the record reaches the log."
    for room in ROOMS:
        prose, rows = prose_and_rows(room)
        yield from ("", f"## {room_name(room)}", "")
        yield from fenced(prose)
        yield from table(rows)
        yield ""
        yield from diagram(room)
    for rules in (planning, resuming):
        yield from ("", f"## {room_name(rules)}", "")
        yield from fenced(inspect.cleandoc(rules.__doc__ or "").rstrip())


def records_page() -> Iterator[str]:
    yield from (NOTICE, "", "# Records", "")
    yield "What the presence of a record in the journal promises. The JSON of each is in `records.schema.json`."
    for kind in RECORDS:
        yield from ("", f"## `{kind.KIND}`, version {kind.VERSION}", "")  # type: ignore[attr-defined]
        yield inspect.getdoc(kind) or ""
        yield from ("", f"Room: `{kind.__module__.rpartition('.')[2]}`. Class: `{kind.__name__}`.", "")
        yield from table([["field", "type"], *([f"`{f.name}`", f"`{f.type}`"] for f in attrs.fields(kind))])


# --- configuration.md -----------------------------------------------------------------------------------------


def configuration_page() -> Iterator[str]:
    yield from (NOTICE, "", "# Configuration", "")
    yield "A YAML file or a mapping with the sections `run` and `rl`, and dotlist overrides that win over it:"
    yield from ("", '    Config.load("run.yaml", overrides=["run.name=second", "rl.save_every=100"])', "")
    yield "Every wrong value is reported at once, with its key, what was found and what is allowed. A value whose"
    yield "engine this version does not have is refused (last column), never ignored."
    yield from ("", "| knob | default | allowed | meaning | not yet |", "|---|---|---|---|---|")
    for knob in knobs():
        cells = (f"`{knob.key}`", f"`{knob.default}`", knob.allowed, knob.meaning, ", ".join(knob.not_yet))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def pages() -> dict[str, str]:
    """Every drawn page: file name in `spec/` to text."""
    return {
        "lifecycle.md": "\n".join(lifecycle_page()).rstrip() + "\n",
        "records.md": "\n".join(records_page()) + "\n",
        "configuration.md": "\n".join(configuration_page()) + "\n",
        "records.schema.json": json.dumps(CODEC.schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n",
    }


def drifted() -> list[str]:
    """The names of the pages that differ from what the code says now."""
    return [
        name
        for name, text in pages().items()
        if not (HERE / name).is_file() or (HERE / name).read_text(encoding="utf-8") != text
    ]


def main(arguments: list[str]) -> int:
    stale = drifted()
    if arguments == ["--check"]:
        for name in stale:
            print(f"spec/{name} differs from the code; run `python spec/generate.py` and read what changed")
        return 1 if stale else 0
    if arguments:
        print(f"usage: {Path(__file__).name} [--check]")
        return 2
    for name in stale:
        (HERE / name).write_text(pages()[name], encoding="utf-8")
        print(f"spec/{name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
