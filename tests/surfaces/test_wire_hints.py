"""What the command line says for each action."""

from string import Formatter

import pytest

from weft.kernel.errors import Action, Advice, LedgerMissing
from weft.surfaces.wire.hints import COMMAND_LINE, phrase


def placeholders(sentence: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(sentence) if name}


@pytest.mark.parametrize("action", sorted(set(Action) - {Action.OTHER}))
def test_every_action_has_a_phrase_with_its_arguments(action: Action) -> None:
    arguments = dict.fromkeys(placeholders(action.sentence), "value")
    shown = phrase(action.of(**arguments))
    assert shown
    assert "{" not in shown
    assert placeholders(COMMAND_LINE.get(action, action.sentence)) == set(arguments)


def test_sentences_of_the_command_line_differ_from_those_of_the_library() -> None:
    assert [action for action, sentence in COMMAND_LINE.items() if sentence == action.sentence] == []


def test_the_same_error_is_phrased_by_the_surface_that_shows_it() -> None:
    error = LedgerMissing("x.db")
    assert error.hint == "create one at x.db, or name another"
    assert phrase(error.advice) == "`weft init x.db` makes it, or name another with --ledger"
    assert phrase(error.advice, {}) == error.hint


def test_a_sentence_for_one_case_is_shown_as_it_is() -> None:
    assert phrase(Advice(Action.LIST_SESSIONS, {}, "name another session")) == "name another session"
