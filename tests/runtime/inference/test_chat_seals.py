"""What servers that speak as OpenAI's Chat does want back where tools were called."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runtime.inference.asking import ask, provider
from tests.runtime.scripted import CLOSE, STREAM_HEAD, Step, chat, chat_saying, chunk, events
from weft.kernel.enums import MessageRole
from weft.ledger.model import NewMessage, ReasoningPart, TextPart, ToolResultPart
from weft.runtime.inference.dialects.model_clients import conversation_in
from weft.runtime.inference.model_requests import Dialect, ModelSettings, route_of

CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "get", "arguments": "{}"},
    "extra_content": {"google": {"thought_signature": "c2ln"}},
}
RESULT = NewMessage(role=MessageRole.TOOL, content=(ToolResultPart("c1", "5"),))


def next_message(message: dict[str, Any], *, streamed: bool, vendor: str | None = None) -> dict[str, Any]:
    """How an answer is sent back with the next request."""
    pieces: list[dict[str, Any]] = (
        [{"reasoning_content": "H"}, {"reasoning_content": "m."}] if "reasoning_content" in message else []
    )
    pieces += [{name: message[name]} for name in ("reasoning", "content") if name in message]
    pieces += [{"tool_calls": [{"index": 0, **call}]} for call in message.get("tool_calls", ())]
    stream: list[Step] = [STREAM_HEAD, *events(*map(chunk, pieces), chunk({}, "tool_calls"), "[DONE]"), CLOSE]
    asked = ask(stream if streamed else chat_saying(message, "tool_calls"), stream=streamed)
    assert asked.reply is not None
    route = route_of(ModelSettings(id="m", name="m-1", provider=provider(asked.server.url)))
    conversation = conversation_in(Dialect.OPENAI_CHAT, images=True, vendor=route.vendor if vendor is None else vendor)
    answer = NewMessage(role=MessageRole.ASSISTANT, content=asked.reply.parts, metadata=asked.reply.metadata)
    conversation.extend([NewMessage(role=MessageRole.USER, content="Look"), answer, RESULT])
    sent: dict[str, Any] = conversation.wire_messages().messages[1]
    return sent


@pytest.mark.parametrize("streamed", [False, True])
def test_thoughts_and_signatures_of_calls_go_back_to_the_server_that_gave_them(streamed: bool) -> None:
    message = {"reasoning_content": "Hm.", "content": None, "tool_calls": [CALL]}
    sent = next_message(message, streamed=streamed)
    assert sent == {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [CALL]}
    elsewhere = next_message(message, streamed=streamed, vendor="http://elsewhere.example")
    assert {"reasoning_content", "c2ln"} & set(json.dumps(elsewhere).split('"')) == set()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_thought_without_a_call_or_by_another_name_is_not_sent_back(streamed: bool) -> None:
    said = next_message({"reasoning_content": "Hm.", "content": "Yes"}, streamed=streamed)
    assert said == {"role": "assistant", "content": "Yes"}
    plain = {name: value for name, value in CALL.items() if name != "extra_content"}
    named = next_message({"reasoning": "Hm.", "content": None, "tool_calls": [plain]}, streamed=streamed)
    assert named == {"role": "assistant", "content": None, "tool_calls": [plain]}


def test_a_refusal_has_no_seals() -> None:
    asked = ask(chat_saying({"refusal": "No", "reasoning_content": "Hm.", "tool_calls": [CALL]}), attempts=1)
    assert asked.reply is not None
    assert (asked.reply.parts, asked.reply.metadata) == ((TextPart("No"),), {})
    asked = ask(chat())
    assert asked.reply is not None
    assert not any(isinstance(part, ReasoningPart) for part in asked.reply.parts)
