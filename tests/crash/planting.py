"""Bugs by machine: every durability call of the product, dropped, done one statement too late, or replacing.

1. Sites are found in the sources, not listed: a new call gets its mutants by itself. A site is named by module,
   function, verb and its place among the calls of this verb in the function, which survive edits elsewhere.
2. A mutant is the product's own function with its code changed for the time of a `with`; nothing else differs.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import CodeType, FunctionType
from typing import Literal, cast

from attrs import frozen

from tests.crash.promises import forget

MODULES = (
    "engines.attempts",
    "engines.checkpoints.local",
    "engines.checkpoints.released",
    "engines.checkpoints.tree",
    "engines.crew.company",
    "engines.crew.member",
    "engines.formats.writing",
    "engines.logs.segments",
    "engines.perform",
    "journal.boundaries",
    "journal.driver",
    "journal.leading",
    "journal.opening",
    "journal.restoring",
)

VERBS = frozenset(
    (
        "sync",
        "sync_file",
        "sync_dir",
        "publish",
        "rename",
        "link",
        "unlink",
        "fence",
        "fenced",
        "barrier",
        "drain",
        "resync",
        "resync_one",
        "rewrite",
    )
)

How = Literal["dropped", "late", "replacing"]


@frozen(order=True)
class Site:
    """One call: the `nth` of this verb in the function, counting from 1."""

    module: str
    function: str
    verb: str
    nth: int

    def __str__(self) -> str:
        return f"{self.module}:{self.function}:{self.verb}:{self.nth}"


@frozen(order=True)
class Mutant:
    """A site and what is done to it."""

    site: Site
    how: How

    def __str__(self) -> str:
        return f"{self.site} {self.how}"


def mutants(modules: Sequence[str] = MODULES) -> tuple[Mutant, ...]:
    """Every mutant that the sources of these modules have room for, in order."""
    found: list[Mutant] = []
    for module in modules:
        for function, node in functions(ast.parse(source_of(module))):
            counts: dict[str, int] = {}
            for call in _calls(node):
                verb = _verb(call)
                counts[verb] = counts.get(verb, 0) + 1
                site = Site(module, function, verb, counts[verb])
                found.append(Mutant(site, "dropped"))
                if _behind(node, call) is not None:
                    found.append(Mutant(site, "late"))
                if verb == "publish":
                    found.append(Mutant(site, "replacing"))
    return tuple(found)


@contextmanager
def planted(*mutants: Mutant) -> Iterator[None]:
    """The product with these mutants in it, no two of them at one call."""
    before: list[tuple[FunctionType, CodeType]] = []
    places = sorted({(mutant.site.module, mutant.site.function) for mutant in mutants})
    try:
        for module, name in places:
            function = function_at(module, name)
            before.append((function, function.__code__))
            mine = [mutant for mutant in mutants if (mutant.site.module, mutant.site.function) == (module, name)]
            function.__code__ = _bent(module, name, mine, function.__code__.co_filename)
        forget()
        yield
    finally:
        forget()
        for function, code in reversed(before):
            function.__code__ = code


def _bent(module: str, function: str, mutants: Sequence[Mutant], filename: str) -> CodeType:
    tree = ast.parse(source_of(module))
    node = dict(functions(tree))[function]
    late_first = sorted(mutants, key=lambda mutant: mutant.how != "late")
    calls = {mutant: _call(node, mutant.site) for mutant in late_first}
    for mutant, call in calls.items():
        if mutant.how == "late":
            place = _behind(node, call)
            assert place is not None, mutant
            block, at = place
            block[at], block[at + 1] = block[at + 1], block[at]
        elif mutant.how == "replacing":
            cast(ast.Attribute, call.func).attr = "rename"
        else:
            _Dropping(call).visit(node)
    return code_of(tree, function, filename)


def _call(node: ast.FunctionDef, site: Site) -> ast.Call:
    return [call for call in _calls(node) if _verb(call) == site.verb][site.nth - 1]


def code_of(tree: ast.Module, function: str, filename: str) -> CodeType:
    """The code of a function in this source."""
    module = compile(ast.fix_missing_locations(tree), filename, "exec", dont_inherit=True)
    return next(code for code in _codes(module) if code.co_qualname == function)


class _Dropping(ast.NodeTransformer):
    """Puts a constant where the call was: the answer of a call that found nothing to do."""

    def __init__(self, call: ast.Call) -> None:
        self._call = call

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if node is self._call:
            return ast.copy_location(ast.Constant(False if _verb(node) == "fenced" else None), node)
        return self.generic_visit(node)


def _behind(node: ast.AST, call: ast.Call) -> tuple[list[ast.stmt], int] | None:
    """The block in which the call is a statement of its own with another one behind it, and its place there."""
    for parent in ast.walk(node):
        for name in ("body", "orelse", "finalbody"):
            block: object = getattr(parent, name, None)
            if not isinstance(block, list):
                continue
            for at, statement in enumerate(block[:-1]):
                alone = isinstance(statement, ast.Expr) and statement.value is call
                behind = block[at + 1]
                acts = any(isinstance(node, ast.Call) for node in ast.walk(behind))
                if alone and acts and not isinstance(behind, ast.Return | ast.Raise):
                    return block, at
    return None


@cache
def source_of(module: str) -> str:
    """The source of a module of the product."""
    return inspect.getsource(importlib.import_module(f"milepost.{module}"))


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Every function and method in it, by its qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")


def _calls(function: ast.FunctionDef) -> list[ast.Call]:
    """The calls of a durability verb, as they stand in the source."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and _verb(node) in VERBS]
    return sorted(calls, key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0))


def _verb(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


@cache
def function_at(module: str, name: str) -> FunctionType:
    """A function of the product by its qualified name, out of whatever wraps it."""
    found: object = importlib.import_module(f"milepost.{module}")
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, classmethod | staticmethod):
        found = found.__func__
    if isinstance(found, property):
        found = found.fget
    function = inspect.unwrap(found)  # type: ignore[arg-type]
    assert isinstance(function, FunctionType), f"{module}:{name}"
    return function
