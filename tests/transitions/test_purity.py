"""`transitions/` touches nothing: its imports, names and module-level state are held to a short list.

The check reads the source. What it refuses is planted below, one violation at a time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TRANSITIONS = Path(__file__).parents[2] / "transitions"
SOURCES = sorted(TRANSITIONS.glob("**/*.py"))

IMPORTS = ("__future__", "attrs", "collections.abc", "enum", "rpds", "typing", "milepost.transitions")

FORBIDDEN_NAMES = {
    *("open", "print", "input", "help", "breakpoint", "exit", "quit"),  # reach the world
    *(
        "exec",
        "eval",
        "compile",
        "__import__",
        "__builtins__",
        "globals",
        "locals",
        "vars",
    ),  # reach around the source
    *("setattr", "delattr", "memoryview"),  # change what is frozen
    *("hash", "id"),  # differ between processes
}

DUNDERS = {"__name__", "__init__"}  # a name in a message, and what an error's constructor calls

MUTABLE_DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
MUTABLE_MAKERS = frozenset({"dict", "list", "set", "bytearray", "defaultdict", "deque", "Counter"})
READ_ONLY = frozenset({"Mapping", "Table", "Sequence", "Set", "tuple"})


def impurities(source: str) -> list[str]:
    """What in the source is not allowed, in the order of its lines; `line: what`."""
    tree = ast.parse(source)
    found = [(node.lineno, what) for node in ast.walk(tree) for what in _of_node(node)]  # type: ignore[attr-defined]
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef)]
    found += [(node.lineno, what) for scope in scopes for node in scope.body for what in _shared_state(node)]
    return [f"{line}: {what}" for line, what in sorted(found)]


def _of_node(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (f"imports {alias.name}" for alias in node.names if not _allowed(alias.name))
    elif isinstance(node, ast.ImportFrom):
        if node.level or not _allowed(node.module or ""):
            yield f"imports {'.' * node.level}{node.module or ''}"
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in FORBIDDEN_NAMES:
        yield f"uses {node.id}"
    elif isinstance(node, ast.Attribute) and node.attr.startswith("__") and node.attr not in DUNDERS:
        yield f"reaches for {node.attr}"
    elif isinstance(node, ast.Global | ast.Nonlocal):
        yield f"rebinds {', '.join(node.names)}"
    elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
        yield "waits"


def _allowed(module: str) -> bool:
    return any(module == allowed or module.startswith(allowed + ".") for allowed in IMPORTS)


def _shared_state(node: ast.stmt) -> Iterator[str]:
    """What every caller would share: a mutable value that is not annotated as read-only."""
    if isinstance(node, ast.AugAssign):
        yield "changes a value at import"
    elif isinstance(node, ast.Assign) and _mutable(node.value):
        yield "holds a mutable value without a read-only type"
    elif isinstance(node, ast.AnnAssign) and node.value is not None and _mutable(node.value):
        annotation = node.annotation.value if isinstance(node.annotation, ast.Subscript) else node.annotation
        if not (isinstance(annotation, ast.Name) and annotation.id in READ_ONLY):
            yield f"holds a mutable value as {ast.unparse(node.annotation)}"


def _mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        called = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return called in MUTABLE_MAKERS
    return isinstance(value, MUTABLE_DISPLAYS)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_a_room_is_pure(path: Path) -> None:
    assert impurities(path.read_text(encoding="utf-8")) == []


def test_every_room_is_looked_at_where_it_lives() -> None:
    assert {"machine.py", "saving.py", "run.py", "invariants.py"} <= {path.name for path in SOURCES}
    assert [path.name for path in SOURCES if path.is_symlink()] == []


PLANTED = {
    "import os": "imports os",
    "import torch": "imports torch",
    "import attrsx": "imports attrsx",
    "import collections": "imports collections",
    "from pathlib import Path": "imports pathlib",
    "from milepost.engines import disks": "imports milepost.engines",
    "from milepost import journal": "imports milepost",
    "from . import run": "imports .",
    "def f():\n    import time": "imports time",
    "if True:\n    from random import random": "imports random",
    "open('x')": "uses open",
    "def f(x):\n    print(x)": "uses print",
    "def f(x):\n    return hash(x)": "uses hash",
    "key = id": "uses id",
    "os = __import__('os')": "uses __import__",
    "def f():\n    return eval('1')": "uses eval",
    "def f():\n    globals()['x'] = 1": "uses globals",
    "def f(x):\n    return x.__globals__": "reaches for __globals__",
    "def f(x):\n    return x.__class__.__subclasses__()": "reaches for __class__",
    "def f():\n    global seen\n    seen = 1": "rebinds seen",
    "async def f():\n    pass": "waits",
    "seen = {}": "holds a mutable value without a read-only type",
    "seen = [1]": "holds a mutable value without a read-only type",
    "seen = set()": "holds a mutable value without a read-only type",
    "seen: dict[str, int] = {}": "holds a mutable value as dict[str, int]",
    "seen: Final = [x for x in ()]": "holds a mutable value as Final",
    "class A:\n    seen: ClassVar[list[int]] = []": "holds a mutable value as ClassVar[list[int]]",
    "count = 0\ncount += 1": "changes a value at import",
}


@pytest.mark.parametrize("source", PLANTED)
def test_a_planted_impurity_is_found(source: str) -> None:
    assert any(found.endswith(PLANTED[source]) for found in impurities(source))


@pytest.mark.parametrize(
    "source",
    [
        "from milepost.transitions.run import Run",
        "from collections.abc import Mapping",
        "TABLE: Mapping[int, int] = {1: 2}",
        "TABLE: Table[Stage] = {}",
        "ORDER: tuple[int, ...] = (1, 2)",
        "def f():\n    found = []\n    return tuple(found)",
        "def f(x):\n    return type(x).__name__",
        "class Save:\n    id: int\n    open: tuple[int, ...] = ()",
    ],
)
def test_what_a_room_needs_is_allowed(source: str) -> None:
    assert impurities(source) == []
