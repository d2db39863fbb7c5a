"""The line that comes before the embedded model reads a long history."""

from __future__ import annotations

from typing import Any

import pytest

from tests.surfaces.shell import Shell
from weft.surfaces.cli.chat.conversation import LONG_HISTORY_TOKENS, Conversation

WORDS = "a word " * LONG_HISTORY_TOKENS


@pytest.fixture(autouse=True)
def _not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model is chosen, and not asked."""
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def admitted(talk: Conversation, *_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr(Conversation, "_admit_and_answer", admitted)


def test_a_long_history_is_announced_before_the_embedded_model_reads_it(weft: Shell) -> None:
    weft.record(WORDS, session="long")
    weft.record("and now?", session="long")
    notes = weft("chat", "long", "--model", "local", stdin="hi").err
    assert "the embedded model first reads 2 turns of history, about " in notes
    assert "first reads" not in weft("chat", "long", "--model", "local", "--quiet", stdin="hi").err


def test_a_short_history_and_a_new_session_are_not_announced(weft: Shell) -> None:
    weft.record("a word", session="short")
    for session in ("short", "new"):
        assert "first reads" not in weft("chat", session, "--model", "local", stdin="hi").err


def test_a_history_is_announced_once_while_the_chat_is_open(weft: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    weft.record(WORDS, session="long")
    say = Conversation.say

    def say_twice(talk: Conversation, text: str) -> Any:
        say(talk, text)
        return say(talk, text)

    monkeypatch.setattr(Conversation, "say", say_twice)
    assert weft("chat", "long", "--model", "local", stdin="hi").err.count("first reads") == 1
