"""Actions: one code each, sentences that name no command, and arguments that every use gives in full."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from string import Formatter

import pytest

from tests.sources import LOAD, Module, shipped
from weft.kernel.errors import Action, Advice, InvalidInput, NotFound, WeftError, advice_of

pytestmark = LOAD


def placeholders(sentence: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(sentence) if name}


@cache
def uses() -> tuple[tuple[str, str, set[str], int], ...]:
    """Each `Action.X`: its module, its name, the arguments that it is given there, and its line."""
    modules = [one for one in shipped() if "Action" in one.source and not one.path.endswith(("advice.py", "hints.py"))]
    return tuple((module.path, *use) for module in modules for use in _uses(module))


def _uses(module: Module) -> Iterator[tuple[str, set[str], int]]:
    given: dict[int, set[str]] = {}
    for call in module.nodes_of(ast.Call):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "of":
            given[id(call.func.value)] = {str(keyword.arg) for keyword in call.keywords}
    for node in module.nodes_of(ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "Action":
            yield node.attr, given.get(id(node), set()), node.lineno


LATER = {
    "weft/runtime/assembly/turn_configuration.py": {"PUBLISH_PROGRAM", "VALIDATE_INFORMATION"},
    "weft/runtime/invoke/agents_and_tasks.py": {"RESUME_AGENT", "RESET_AGENT", "WAIT_FOR_ANSWER_OR_RESET_AGENT"},
}
"""Actions that are chosen first and given their arguments afterwards; the tests of those modules read the hints."""


def test_every_use_of_an_action_gives_the_arguments_that_its_sentence_names() -> None:
    wrong = [
        (path, line, name)
        for path, name, given, line in uses()
        if name not in LATER.get(path, ()) and given != placeholders(Action[name].sentence)
    ]
    assert wrong == []


def test_every_action_is_used() -> None:
    used = {name for _, name, _, _ in uses()}
    assert set(Action.__members__) - used == set()


@pytest.mark.parametrize("action", Action)
def test_a_code_is_its_name_and_a_sentence_names_no_command(action: Action) -> None:
    assert action.value == action.name.lower()
    assert not re.search(r"`weft |(?<!\w)--[a-z]", action.sentence)


def test_an_error_has_the_action_of_its_class_or_the_one_that_it_is_made_with() -> None:
    assert (NotFound("turn", "x").action, NotFound("turn", "x").hint) == (
        Action.LIST_HISTORY,
        Action.LIST_HISTORY.sentence,
    )
    error = NotFound("vector", "x", Action.EMBED_NODE.of(node="x"))
    assert (error.action, error.advice.arguments, error.hint) == (Action.EMBED_NODE, {"node": "x"}, "embed 'x' first")


def test_a_sentence_for_one_case_stands_in_place_of_the_sentence_of_the_action() -> None:
    error = InvalidInput("no", "count from one")
    assert (error.action, error.hint) == (Action.CORRECT_VALUE, "count from one")
    assert advice_of("", Action.READ_AGAIN) == Advice(Action.READ_AGAIN)
    assert WeftError("no").hint == ""


def test_an_argument_with_braces_is_shown_as_it_is() -> None:
    assert Action.EMBED_NODE.of(node="{x} {}").hint == "embed '{x} {}' first"
