"""Only surfaces name commands: below them, errors and findings carry an action code that each surface phrases."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.sources import LOAD, Module, shipped
from weft.surfaces.cli.main import SUMMARIES

pytestmark = LOAD

COMMAND = re.compile(rf"`weft |(?<![\w/.])weft (?:{'|'.join(map(re.escape, SUMMARIES))})\b")
STARTED = {("weft/exchange/sync/commands.py", "weft sync-stdio")}
"""What a program starts at the other end of a connection, and no sentence."""


def commands(module: Module) -> Iterator[tuple[int, str]]:
    """Each text of a module that names a command of the command line, docstrings included."""
    for node in module.nodes_of(ast.Constant):
        if isinstance(node.value, str) and (named := COMMAND.search(node.value)):
            yield node.lineno, named[0]


def test_no_text_below_the_surfaces_names_a_command() -> None:
    named = [
        (module.path, line, text)
        for module in shipped()
        if {"surfaces", "verbs"}.isdisjoint(module.path.split("/"))  # a verb's help is the command's
        for line, text in commands(module)
        if (module.path, text) not in STARTED
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
    assert list(commands(Module("weft/named.py", source)))


@pytest.mark.parametrize("source", ["import weft", 'x = "upgrade weft, then open it again"', 'x = "~/.weft/import"'])
def test_the_rule_lets_other_texts_pass(source: str) -> None:
    assert list(commands(Module("weft/named.py", source))) == []


def cut_representations(module: Module) -> Iterator[int]:
    """Lines that cut `repr` of a value themselves: of some values Python cannot write any (`quoted` knows of them)."""
    for node in module.nodes_of(ast.FormattedValue):
        if node.conversion == ord("r") and node.format_spec is not None:
            yield node.lineno


def test_below_the_surfaces_a_value_in_a_message_is_quoted_one_way() -> None:
    found = [
        (module.path, line)
        for module in shipped()
        if "surfaces" not in module.path.split("/")
        for line in cut_representations(module)
    ]
    assert found == []


def test_the_rule_fails_on_a_representation_that_is_cut() -> None:
    assert list(cut_representations(Module("weft/named.py", 'raise InvalidInput(f"a depth is {depth!r:.80}")')))
    assert list(cut_representations(Module("weft/named.py", 'raise InvalidInput(f"a depth is {quoted(depth)}")'))) == []
