"""`spec/` says what the code does: drawn pages are drawn from it, written pages name what exists."""

from __future__ import annotations

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from milepost.journal.log.codec import CODEC
from milepost.transitions.invariants import ON_SEALED, ON_STATE, ON_STEP
from milepost.transitions.machine import RECORDS
from spec.generate import drifted, main, pages
from tests.transitions.samples import PARTS, record_for, state_in

CHECKOUT = Path(__file__).parents[2]
SPEC = CHECKOUT / "spec"
INVARIANTS = (SPEC / "invariants.md").read_text(encoding="utf-8")
SECTIONS = {part[:6]: part for part in re.split(r"^## (?=INV-\d\d )", INVARIANTS, flags=re.M)[1:]}

NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NAMED_OBJECT = re.compile(r"`(milepost(?:\.\w+)+)`")
NAMED_FILE = re.compile(r"`((?:spec|transitions|engines|journal|decisions)/[\w./-]+\.(?:py|md|json))`")


def written_pages() -> list[Path]:
    return [path for path in sorted(SPEC.rglob("*.md")) if path.name not in pages()]


def test_the_drawn_pages_are_what_the_code_says_now() -> None:
    assert drifted() == []


def test_the_check_fails_on_a_page_that_differs_and_writing_repairs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("spec.generate.HERE", tmp_path)
    assert main(["--check"]) == 1
    assert "spec/lifecycle.md differs from the code; run `python spec/generate.py`" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert main([]) == 0
    assert main(["--check"]) == 0
    page = tmp_path / "lifecycle.md"
    page.write_text(page.read_text(encoding="utf-8").replace("SEALED", "DONE"), encoding="utf-8")
    assert drifted() == ["lifecycle.md"]
    assert main(["--chek"]) == 2


def test_the_generator_runs_as_a_script() -> None:
    script = [sys.executable, str(SPEC / "generate.py"), "--check"]
    assert subprocess.run(script, cwd=CHECKOUT, check=False).returncode == 0


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_the_schema_accepts_what_is_written_and_nothing_beside_it(kind: type) -> None:
    validator = jsonschema.Draft202012Validator(CODEC.schema())
    state = state_in("run", next(iter(PARTS["run"])), kind)
    document = CODEC.encode(record_for(kind, state))
    assert validator.is_valid(document)
    assert not validator.is_valid({**document, "more": 1})
    assert not validator.is_valid({**document, "kind": "no-such-record"})
    for name in document:
        assert not validator.is_valid({key: value for key, value in document.items() if key != name})


def test_every_invariant_that_is_cited_anywhere_has_its_section() -> None:
    cited = {
        number
        for folder in ("transitions", "engines", "journal", "tests", "spec")
        for path in sorted((CHECKOUT / folder).rglob("*"))
        if path.suffix in (".py", ".md")
        for number in re.findall(r"INV-\d\d", path.read_text(encoding="utf-8"))
    }
    assert cited <= set(SECTIONS)
    assert sorted(SECTIONS) == [f"INV-{number:02}" for number in range(1, len(SECTIONS) + 1)]


def test_every_predicate_is_named_under_its_number() -> None:
    for number, predicate in (*ON_SEALED, *ON_STATE, *ON_STEP):
        assert f"`{predicate.__module__}.{predicate.__qualname__}`" in SECTIONS[number], predicate.__qualname__


@pytest.mark.parametrize("number", SECTIONS)
def test_an_invariant_names_its_proof_or_says_that_it_is_not_built(number: str) -> None:
    assert (
        NAMED_TEST.search(SECTIONS[number])
        or "not built yet" in SECTIONS[number]
        or "is built yet" in SECTIONS[number]
    )


@pytest.mark.parametrize("page", written_pages(), ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for file, name in NAMED_TEST.findall(text):
        assert name in defined_in(CHECKOUT / file), f"{file}::{name}"
    for dotted in NAMED_OBJECT.findall(text):
        pkgutil.resolve_name(dotted)
    for file in NAMED_FILE.findall(text):
        assert (CHECKOUT / file).is_file() or (page.parent / file).is_file(), file


def defined_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_decisions_are_numbered_without_a_gap_and_have_the_same_parts() -> None:
    decisions = sorted((SPEC / "decisions").glob("*.md"))
    assert [path.name[:4] for path in decisions] == [f"{number:04}" for number in range(1, len(decisions) + 1)]
    for path in decisions:
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {path.name[:4]} "), path.name
        assert path.name[:4] == "0006" or re.findall(r"^## (\w+)", text, flags=re.M) == [
            "Context",
            "Decision",
            "Alternatives",
            "Consequences",
        ], path.name
