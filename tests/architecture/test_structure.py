"""The size of modules and how much they import of each other: a reader opens few files to follow one thought.

Counted as the package's structure is compared with that of others: lines that hold code (no blank line, comment or
docstring), and an import of a module once for each module that imports it, a name of an `__init__` at its own module.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
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
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
NO_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)
DOCUMENTED: tuple[type[Documented], ...] = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
SAMPLE = '''"""Of the module.

No code."""
# nor this

import a  # 1


class B:  # 2
    """No code."""

    c = """3

# 5
6"""
    d = (  # 7
        "8"
        # no code

        f"9 {a}"
    )  # 10

    def e(self):  # 11
        """No
        code."""
        return 12 + \\
            13
'''
EMPTY = 5
"""An `__init__` with a docstring and an import or two is no small module."""


def code_lines(module: Module) -> int:
    """To read every token of the package takes seconds. Only in a string that goes over several lines can a line hold
    code that is blank or looks like a comment: those alone are read token by token."""
    texts = module.source.split("\n")
    lines = {
        number for number, text in enumerate(texts, 1) if (word := text.strip()) and word[0] != "#" and word != "\\"
    }
    documenting = set(docstrings(module))
    for node in (*module.nodes_of(ast.Constant), *module.nodes_of(ast.JoinedStr)):
        of_node = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if len(of_node) > 1 and node not in documenting and not lines.issuperset(of_node):
            segment = ast.get_source_segment(module.source, node) or ""
            lines.update(node.lineno - 1 + line for line in lines_by_tokens(f"({segment})"))
    for text in documenting:
        lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


def docstrings(module: Module) -> Iterator[ast.Constant]:
    """Those of the module, its classes and its functions, and texts that stand alone below what they explain."""
    for kind in DOCUMENTED:
        for node in module.nodes_of(kind):
            for child in node.body:
                match child:
                    case ast.Expr(value=ast.Constant(value=str()) as text):
                        yield text


def lines_by_tokens(source: str) -> set[int]:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


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


@pytest.mark.slow("parses the package")
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


def test_lines_that_hold_code_are_counted() -> None:
    assert code_lines(Module("weft/a.py", SAMPLE)) == 13


def test_the_half_of_the_code_is_found() -> None:
    assert median([1, 1, 2, 10]) == 10
    assert median([4, 3, 3]) == 3
