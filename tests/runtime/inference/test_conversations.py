"""Conversations translated for the model layer: the next request costs what is new in it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import messages as m

from tests.runtime.inference.asking import ask
from tests.runtime.scripted import chat
from weft.kernel.enums import MessageRole
from weft.kernel.errors import InvalidInput
from weft.ledger.model import ImagePart, NewMessage, TextPart, ToolResultPart, ToolUsePart
from weft.runtime.inference import inference
from weft.runtime.inference.conversations import KeptConversations

SYSTEM = NewMessage(role=MessageRole.SYSTEM, content="Be brief")
ASK = NewMessage(role=MessageRole.USER, content="Add two and three")
CALL = NewMessage(role=MessageRole.ASSISTANT, content=(ToolUsePart("c1", "add", {"a": 2, "b": 3}),))
RESULT = NewMessage(role=MessageRole.TOOL, content=(ToolResultPart("c1", 5),))
ANSWER = NewMessage(role=MessageRole.ASSISTANT, content=(TextPart("Five"),))
THANKS = NewMessage(role=MessageRole.USER, content="Thanks")
PICTURE = NewMessage(role=MessageRole.USER, content=(ImagePart("data:image/png;base64,AAAA"),))


def parts(messages: list[m.ModelMessage]) -> list[list[tuple[str, Any, Any]]]:
    """What is said, without the time at which it was translated."""
    return [
        [(part.part_kind, getattr(part, "content", None), getattr(part, "tool_name", None)) for part in message.parts]
        for message in messages
    ]


def is_extended(before: list[m.ModelMessage], after: list[m.ModelMessage]) -> bool:
    return all(one is other for one, other in zip(before, after, strict=False))


def test_a_request_that_extends_the_last_one_translates_only_what_is_new() -> None:
    kept = KeptConversations()
    first = kept.translate((SYSTEM, ASK), images=True)
    second = kept.translate((SYSTEM, ASK, CALL, RESULT), images=True)
    third = kept.translate((SYSTEM, ASK, CALL, RESULT, ANSWER, THANKS), images=True)
    assert is_extended(first, second)
    assert is_extended(second, third)
    whole = KeptConversations().translate((SYSTEM, ASK, CALL, RESULT, ANSWER, THANKS), images=True)
    assert parts(third) == parts(whole)
    assert parts(third)[2] == [("tool-return", 5, "add")]  # the name comes from a call that was translated before
    assert [len(first), len(second), len(third)] == [1, 3, 5]


def test_what_was_given_out_stays_when_a_message_joins_the_last_request() -> None:
    kept = KeptConversations()
    first = kept.translate((ASK,), images=True)
    second = kept.translate((ASK, THANKS), images=True)
    assert parts(first) == [[("user-prompt", "Add two and three", None)]]
    assert parts(second) == [[("user-prompt", "Add two and three", None), ("user-prompt", "Thanks", None)]]


def test_a_conversation_that_is_no_longer_the_same_is_translated_from_its_beginning() -> None:
    kept = KeptConversations()
    first = kept.translate((ASK, ANSWER, THANKS), images=True)
    other = NewMessage(role=MessageRole.ASSISTANT, content=(TextPart("Six"),))
    assert parts(kept.translate((ASK, other, THANKS), images=True))[1] == [("text", "Six", None)]
    shorter = kept.translate((ASK,), images=True)
    assert parts(shorter) == parts(first)[:1]
    equal = NewMessage(role=MessageRole.ASSISTANT, content=(ToolUsePart("c1", "add", {"a": 2.0, "b": 3}),))
    kept.translate((ASK, CALL, RESULT), images=True)
    call = kept.translate((ASK, equal, RESULT), images=True)[1].parts[0]
    assert isinstance(call, m.ToolCallPart)
    assert repr(call.args) == "{'a': 2.0, 'b': 3}"  # equal to what was kept, and not the same


def test_conversations_with_images_and_those_used_longest_ago_are_not_kept() -> None:
    kept = KeptConversations(most_messages=3)
    with_picture = kept.translate((PICTURE,), images=True)
    assert not is_extended(with_picture, kept.translate((PICTURE, ANSWER, THANKS), images=True))
    words = kept.translate((PICTURE,), images=False)
    assert "cannot see" in str(words[0].parts[0].content)  # type: ignore[union-attr]
    old = kept.translate((ASK,), images=True)
    kept.translate((THANKS, ANSWER, ASK), images=True)
    assert not is_extended(old, kept.translate((ASK, ANSWER, THANKS), images=True))


def test_a_conversation_that_ends_with_an_answer_is_refused() -> None:
    for messages in ((), (ASK, ANSWER)):
        with pytest.raises(InvalidInput, match="nothing for the model to answer"):
            KeptConversations().translate(messages, images=True)


def test_tokens_are_not_estimated_where_no_money_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(_: object) -> int:
        raise AssertionError("a long conversation was counted for nothing")

    monkeypatch.setattr(inference, "estimated_tokens", counted)
    assert ask(chat()).error is None
