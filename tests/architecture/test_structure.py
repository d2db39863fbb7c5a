"""The size of modules and how much they import of each other: a reader opens few files to follow one thought.

Counted as the package's structure is compared with that of others: lines that hold code (no blank line, comment or
docstring), and an import of a module once for each module that imports it, a name of an `__init__` at its own module.
"""

from __future__ import annotations

import ast
import io
import tokenize
from functools import cache
from pathlib import Path

import pytest

from tests.sources import LOAD, Module, shipped

pytestmark = LOAD

MOST_MODULES = 420
LEAST_MEDIAN = 400
"""Half of the code lies in modules of at least so many lines."""
MOST_EDGES = 32
"""By 1,000 lines of code."""
SMALL, LARGE, MOST_OF_EACH = 60, 800, 40
NO_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
EMPTY = 5
"""An `__init__` with a docstring and an import or two is no small module."""


def code_lines(module: Module) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in module.nodes:
        for child in getattr(node, "body", ()) if isinstance(node, DOCUMENTED) else ():
            match child:
                case ast.Expr(value=ast.Constant(value=str())):
                    lines.difference_update(range(child.lineno, (child.end_lineno or child.lineno) + 1))
    return len(lines)


@cache
def sizes() -> dict[str, int]:
    return {module.name: code_lines(module) for module in shipped()}


def edges() -> int:
    """How many modules the modules import, all together."""
    packages = {module.name: module for module in shipped() if Path(module.path).name == "__init__.py"}
    passed_on = {
        package: {
            alias.asname or alias.name: node.module
            for node in module.nodes_of(ast.ImportFrom)
            if node.module
            for alias in node.names
        }
        for package, module in packages.items()
    }
    count = 0
    for module in shipped():
        targets = set()
        for node in module.nodes_of(ast.ImportFrom):
            if (node.module or "").startswith("weft"):
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    home = passed_on.get(str(node.module), {}).get(alias.name, node.module)
                    targets.add(full if full in packages else home)
        count += len(targets - {module.name})
    return count


def median(values: list[int]) -> int:
    """Half of the sum lies in values of at least this one."""
    gathered = 0
    for value in sorted(values, reverse=True):
        gathered += value
        if gathered * 2 >= sum(values):
            return value
    raise AssertionError("there are no modules")


@pytest.mark.slow("reads every token of the package")
def test_there_are_few_modules_and_most_code_lies_in_large_ones() -> None:
    assert len(sizes()) <= MOST_MODULES
    assert median(list(sizes().values())) >= LEAST_MEDIAN


def test_few_modules_are_tiny_and_few_are_huge() -> None:
    tiny = sorted(name for name, size in sizes().items() if EMPTY < size < SMALL)
    huge = sorted(name for name, size in sizes().items() if size > LARGE)
    assert len(tiny) <= MOST_OF_EACH, tiny
    assert len(huge) <= MOST_OF_EACH, huge


def test_modules_import_few_others() -> None:
    assert edges() * 1000 <= MOST_EDGES * sum(sizes().values())


def test_the_half_of_the_code_is_found() -> None:
    assert median([1, 1, 2, 10]) == 10
    assert median([4, 3, 3]) == 3
