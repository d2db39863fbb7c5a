"""Only surfaces name commands: below them, errors and findings carry an action code that each surface phrases."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.surfaces.cli.main import SUMMARIES

SOURCE = Path(__file__).parents[2] / "src" / "weft"
BELOW = sorted(file for file in SOURCE.rglob("*.py") if "surfaces" not in file.relative_to(SOURCE).parts)
COMMAND = re.compile(rf"`weft |(?<![\w/.])weft (?:{'|'.join(map(re.escape, SUMMARIES))})\b")
STARTED = {("exchange/sync/addresses.py", "weft sync-stdio")}
"""What a program starts at the other end of a connection, and no sentence."""


def commands(source: str) -> Iterator[tuple[int, str]]:
    """Each text of a module that names a command of the command line, docstrings included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (named := COMMAND.search(node.value)):
            yield node.lineno, named[0]


def test_no_text_below_the_surfaces_names_a_command() -> None:
    named = [
        (path, line, text)
        for file in BELOW
        for line, text in commands(file.read_text())
        if ((path := str(file.relative_to(SOURCE))), text) not in STARTED
    ]
    assert named == []


@pytest.mark.parametrize(
    "source",
    [
        'raise NotFound("session", name, "`weft sessions` lists them")',
        'error("views", "wrong", "weft rebuild")',
        'hint = f"`weft {verb} {name}` lets it go on"',
        'def f():\n    """As `weft import` does."""',
    ],
)
def test_the_rule_fails_on_a_text_that_names_a_command(source: str) -> None:
    assert list(commands(source))


@pytest.mark.parametrize("source", ["import weft", 'x = "upgrade weft, then open it again"', 'x = "~/.weft/import"'])
def test_the_rule_lets_other_texts_pass(source: str) -> None:
    assert list(commands(source)) == []
