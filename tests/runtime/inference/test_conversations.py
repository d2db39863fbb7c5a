"""Conversations translated for a dialect: the next request costs what is new in it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.inference.asking import ask
from tests.runtime.scripted import chat
from weft.kernel.enums import MessageRole
from weft.kernel.errors import InvalidInput
from weft.ledger.model import ImagePart, NewMessage, TextPart, ToolResultPart, ToolUsePart
from weft.runtime.inference import inference
from weft.runtime.inference.dialects.dialect_port import WireMessages
from weft.runtime.inference.dialects.model_clients import KeptConversations
from weft.runtime.inference.model_requests import Dialect

SYSTEM = NewMessage(role=MessageRole.SYSTEM, content="Be brief")
ASK = NewMessage(role=MessageRole.USER, content="Add two and three")
CALL = NewMessage(role=MessageRole.ASSISTANT, content=(ToolUsePart("c1", "add", {"a": 2, "b": 3}),))
RESULT = NewMessage(role=MessageRole.TOOL, content=(ToolResultPart("c1", 5),))
ANSWER = NewMessage(role=MessageRole.ASSISTANT, content=(TextPart("Five"),))
THANKS = NewMessage(role=MessageRole.USER, content="Thanks")
PICTURE = NewMessage(role=MessageRole.USER, content=(ImagePart("data:image/png;base64,AAAA"),))


CHAT = Dialect.OPENAI_CHAT
TALK = (SYSTEM, ASK, CALL, RESULT, ANSWER, THANKS)


def contents(conversation: WireMessages) -> list[Any]:
    return [message["content"] for message in conversation.messages]


def is_extended(before: WireMessages, after: WireMessages) -> bool:
    return all(one is other for one, other in zip(before.messages, after.messages, strict=False))


def test_a_request_that_extends_the_last_one_translates_only_what_is_new() -> None:
    kept = KeptConversations()
    first = kept.translate((SYSTEM, ASK), CHAT, images=True)
    second = kept.translate((SYSTEM, ASK, CALL, RESULT), CHAT, images=True)
    third = kept.translate(TALK, CHAT, images=True)
    assert is_extended(first, second)
    assert is_extended(second, third)
    assert third == KeptConversations().translate(TALK, CHAT, images=True)
    assert [len(one.messages) for one in (first, second, third)] == [2, 4, 6]


@pytest.mark.parametrize("dialect", Dialect)
def test_the_name_of_a_tool_comes_from_a_call_that_was_translated_before(dialect: Dialect) -> None:
    calls = (ToolUsePart("c1", "add", {"a": 2, "b": 3}), ToolUsePart("c2", "multiply", {"a": 2, "b": 3}))
    both_called = NewMessage(role=MessageRole.ASSISTANT, content=calls)
    talk = (SYSTEM, ASK, both_called, RESULT, NewMessage(role=MessageRole.TOOL, content=(ToolResultPart("c2", 6),)))
    kept = KeptConversations()
    kept.translate(talk[:-1], dialect, images=True)
    grown = kept.translate(talk, dialect, images=True)
    whole = KeptConversations().translate(talk, dialect, images=True)
    if dialect is Dialect.GOOGLE:  # whose parts carry the time at which they were made
        assert [part.tool_name for part in grown.messages[-1].parts] == ["add", "multiply"]
        assert len(grown.messages) == len(whole.messages)
    else:
        assert grown == whole


@pytest.mark.parametrize("dialect", Dialect)
def test_what_was_given_out_stays_when_a_message_joins_the_last_request(dialect: Dialect) -> None:
    kept = KeptConversations()
    first = kept.translate((ASK,), dialect, images=True)
    before = str(first.messages)
    second = kept.translate((ASK, THANKS), dialect, images=True)
    assert "Add two and three" in before
    assert "Thanks" not in before
    assert str(first.messages) == before
    assert all(text in str(second.messages) for text in ("Add two and three", "Thanks"))


def test_each_dialect_has_a_conversation_of_its_own() -> None:
    kept = KeptConversations()
    kept.translate(TALK, CHAT, images=True)
    assert "input" not in str(kept.translate(TALK, CHAT, images=True).messages)
    assert "tool_use" in str(kept.translate(TALK, Dialect.ANTHROPIC, images=True).messages)
    assert "function_call_output" in str(kept.translate(TALK, Dialect.OPENAI_RESPONSES, images=True).messages)


def test_a_conversation_that_is_no_longer_the_same_is_translated_from_its_beginning() -> None:
    kept = KeptConversations()
    first = kept.translate((ASK, ANSWER, THANKS), CHAT, images=True)
    other = NewMessage(role=MessageRole.ASSISTANT, content=(TextPart("Six"),))
    assert contents(kept.translate((ASK, other, THANKS), CHAT, images=True))[1] == "Six"
    shorter = kept.translate((ASK,), CHAT, images=True)
    assert contents(shorter) == contents(first)[:1]
    equal = NewMessage(role=MessageRole.ASSISTANT, content=(ToolUsePart("c1", "add", {"a": 2.0, "b": 3}),))
    kept.translate((ASK, CALL, RESULT), CHAT, images=True)
    message = kept.translate((ASK, equal, RESULT), CHAT, images=True).messages[1]
    (call,) = message["tool_calls"]
    assert call["function"]["arguments"] == '{"a":2.0,"b":3}'  # equal to what was kept, and not the same


def test_conversations_with_images_and_those_used_longest_ago_are_not_kept() -> None:
    kept = KeptConversations(most_messages=3)
    with_picture = kept.translate((PICTURE,), CHAT, images=True)
    assert not is_extended(with_picture, kept.translate((PICTURE, ANSWER, THANKS), CHAT, images=True))
    words = kept.translate((PICTURE,), CHAT, images=False)
    assert "cannot see" in contents(words)[0]
    old = kept.translate((ASK,), CHAT, images=True)
    kept.translate((THANKS, ANSWER, ASK), CHAT, images=True)
    assert not is_extended(old, kept.translate((ASK, ANSWER, THANKS), CHAT, images=True))


@pytest.mark.parametrize("dialect", Dialect)
def test_a_conversation_that_ends_with_an_answer_is_refused(dialect: Dialect) -> None:
    for messages in ((), (ASK, ANSWER)):
        with pytest.raises(InvalidInput, match="nothing for the model to answer"):
            KeptConversations().translate(messages, dialect, images=True)


def test_tokens_are_not_estimated_where_no_money_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(_: object) -> int:
        raise AssertionError("a long conversation was counted for nothing")

    monkeypatch.setattr(inference, "estimated_tokens", counted)
    assert ask(chat()).error is None
