"""Actions: one code each, sentences that name no command, and arguments that every use gives in full."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Formatter

import pytest

from weft.kernel.advice import Action, Advice, advice_of
from weft.kernel.errors import InvalidInput, NotFound, WeftError

SOURCE = Path(__file__).parents[2] / "src" / "weft"
USES = sorted(file for file in SOURCE.rglob("*.py") if file.name not in ("advice.py", "hints.py"))


def placeholders(sentence: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(sentence) if name}


@cache
def uses(file: Path) -> tuple[tuple[str, set[str], int], ...]:
    """Each `Action.X` of a module with the arguments that it is given there."""
    source = file.read_text()
    return tuple(_uses(ast.parse(source))) if "Action" in source else ()


def _uses(tree: ast.Module) -> Iterator[tuple[str, set[str], int]]:
    given: dict[int, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "of":
            given[id(node.func.value)] = {str(keyword.arg) for keyword in node.keywords}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Action":
            yield node.attr, given.get(id(node), set()), node.lineno


LATER = {
    "runtime/invoke/model_settings.py": {"PUBLISH_PROGRAM", "VALIDATE_INFORMATION"},
    "runtime/invoke/agents_and_tasks.py": {"RESUME_AGENT", "RESET_AGENT", "WAIT_FOR_ANSWER_OR_RESET_AGENT"},
}
"""Actions that are chosen first and given their arguments afterwards; the tests of those modules read the hints."""


def test_every_use_of_an_action_gives_the_arguments_that_its_sentence_names() -> None:
    wrong = [
        (str(file.relative_to(SOURCE)), line, name)
        for file in USES
        for name, given, line in uses(file)
        if name not in LATER.get(str(file.relative_to(SOURCE)), ()) and given != placeholders(Action[name].sentence)
    ]
    assert wrong == []


def test_every_action_is_used() -> None:
    used = {name for file in USES for name, _, _ in uses(file)}
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
    error = NotFound("vector", "x", Action.GIVE_VECTOR.of(node="x"))
    assert (error.action, error.advice.arguments, error.hint) == (Action.GIVE_VECTOR, {"node": "x"}, "embed 'x' first")


def test_a_sentence_for_one_case_stands_in_place_of_the_sentence_of_the_action() -> None:
    error = InvalidInput("no", "count from one")
    assert (error.action, error.hint) == (Action.CORRECT_VALUE, "count from one")
    assert advice_of("", Action.READ_AGAIN) == Advice(Action.READ_AGAIN)
    assert WeftError("no").hint == ""


def test_an_argument_with_braces_is_shown_as_it_is() -> None:
    assert Action.GIVE_VECTOR.of(node="{x} {}").hint == "embed '{x} {}' first"
