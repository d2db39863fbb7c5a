"""Whole replies and streams, of every protocol, as plain values."""

from __future__ import annotations

import base64
import sys
from typing import Any

import pytest

from tests.runtime.inference.asking import CANARY, HI, ask, model, provider
from tests.runtime.scripted import (
    CHAT_STREAM,
    GOOGLE,
    MESSAGE,
    RESPONSES,
    answer,
    chat,
    chat_saying,
    message_stream,
)
from weft.kernel.enums import MessageRole
from weft.kernel.errors import InvalidInput, Unsupported
from weft.kernel.events import Usage
from weft.ledger.model import ImagePart, NewMessage, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from weft.runtime.inference.model_requests import ModelParameters, ModelSettings, OpenAIApi, ProviderKind, ToolSpec
from weft.runtime.replies import FinishReason, TokenKind

USED = Usage(
    input_tokens=12,
    output_tokens=5,
    cached_input_tokens=8,
    cache_write_tokens=0,
    reasoning_tokens=0,
    total_tokens=25,
)


PLAIN = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}


def anthropic(url: str) -> ModelSettings:
    return model(url, name="claude-x", provider=provider(url, ProviderKind.ANTHROPIC))


def google(url: str) -> ModelSettings:
    return model(url, name="gemini-x", provider=provider(url, ProviderKind.GOOGLE))


def responses(url: str) -> ModelSettings:
    return model(url, name="gpt-x", provider=provider(f"{url}/v1", ProviderKind.OPENAI, api=OpenAIApi.RESPONSES))


def test_a_whole_reply_comes_with_everything_that_is_known_of_it() -> None:
    asked = ask(chat())
    assert asked.error is None
    reply = asked.reply
    assert reply is not None
    assert (reply.text, reply.finish, reply.model, reply.provider) == ("Hello there", FinishReason.STOP, "m-1", "there")
    assert (reply.usage, reply.usage_fault) == (USED, "")
    assert reply.request_id == "req-7"
    assert reply.situation is None
    assert [attempt.error for attempt in reply.attempts] == [""]
    sent = asked.server.received[0]
    assert sent.path == "/chat/completions"
    assert sent.headers["authorization"] == f"Bearer {CANARY}"
    assert sent.body["messages"][-1] == {"role": "user", "content": "Say hello"}


def test_a_stream_tells_its_tokens_and_is_returned_whole() -> None:
    asked = ask(CHAT_STREAM, stream=True)
    assert asked.reply is not None
    assert asked.text == asked.reply.text == "Hello there"
    assert len(asked.tokens) == 3
    assert (asked.reply.usage, asked.reply.request_id) == (USED, "req-7")
    assert asked.server.received[0].body["stream"] is True


def test_anthropic_is_spoken_with_its_own_key_header() -> None:
    asked = ask(answer(200, MESSAGE, request_id="req-a"), make=anthropic)
    assert asked.reply is not None
    assert (asked.reply.text, asked.reply.finish, asked.reply.request_id) == ("Hello there", FinishReason.STOP, "req-a")
    assert asked.reply.usage == Usage(
        input_tokens=12,
        output_tokens=5,
        cached_input_tokens=8,
        cache_write_tokens=3,
        reasoning_tokens=0,
        total_tokens=28,
    )
    sent = asked.server.received[0]
    assert sent.path.startswith("/v1/messages")
    assert sent.headers["x-api-key"] == CANARY
    assert "authorization" not in sent.headers


def test_anthropic_tells_what_it_keeps_for_an_hour() -> None:
    durations = {"ephemeral_5m_input_tokens": 1, "ephemeral_1h_input_tokens": 2}
    usage = {**MESSAGE["usage"], "cache_creation": durations}
    asked = ask(answer(200, {**MESSAGE, "usage": usage}), make=anthropic)
    assert asked.reply is not None
    assert asked.reply.usage is not None
    assert (asked.reply.usage.cache_write_tokens, asked.reply.usage.cache_write_1h_tokens) == (3, 2)


def test_thinking_comes_apart_from_the_text() -> None:
    asked = ask(message_stream(), make=anthropic, stream=True)
    assert asked.reply is not None
    assert (asked.reply.thinking, asked.reply.text) == ("Hm. ", "Hello there")
    assert [token.text for token in asked.tokens if token.kind is TokenKind.THINKING] == ["Hm. "]


def test_thinking_of_earlier_turns_is_not_sent_again() -> None:
    earlier = NewMessage(role=MessageRole.ASSISTANT, content=(ReasoningPart("secret thought"), TextPart("ok")))
    asked = ask(chat(), messages=(*HI, earlier, *HI))
    assert "secret thought" not in str(asked.server.received[0].body)


def test_google_is_spoken_with_its_own_key_header() -> None:
    asked = ask(answer(200, GOOGLE), make=google)
    assert asked.error is None
    assert asked.reply is not None
    assert (asked.reply.text, asked.reply.finish, asked.reply.usage) == ("Hello there", FinishReason.STOP, USED)
    sent = asked.server.received[0]
    assert sent.path.endswith("/models/gemini-x:generateContent")
    assert sent.headers["x-goog-api-key"] == CANARY


def test_without_its_library_a_model_of_google_is_refused_and_another_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_ai", None)
    monkeypatch.delitem(sys.modules, "weft.runtime.inference.dialects.google", raising=False)
    monkeypatch.delattr("weft.runtime.inference.dialects.google", raising=False)
    asked = ask(answer(200, GOOGLE), make=google)
    assert isinstance(asked.error, Unsupported)
    assert "pydantic_ai" in str(asked.error)
    assert asked.server.received == []
    for reply, make in ((chat(), model), (answer(200, MESSAGE), anthropic), (answer(200, RESPONSES), responses)):
        assert ask(reply, make=make).error is None


def test_openai_responses_are_spoken() -> None:
    asked = ask(answer(200, RESPONSES), make=responses)
    assert asked.error is None
    assert asked.reply is not None
    assert (asked.reply.text, asked.reply.finish) == ("Hello there", FinishReason.STOP)
    assert asked.reply.usage is not None
    assert asked.reply.usage.reasoning_tokens == 2
    assert asked.server.received[0].path == "/v1/responses"


def test_without_a_credential_no_key_is_sent_whatever_the_environment_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, CANARY)
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", f"x-api-key: {CANARY}")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    for kind, reply in ((ProviderKind.OPENAI_COMPATIBLE, chat()), (ProviderKind.ANTHROPIC, answer(200, MESSAGE))):
        asked = ask(reply, make=lambda url, kind=kind: model(url, provider=provider(url, kind, credential=None)))  # type: ignore[misc]
        assert asked.error is None
        assert CANARY not in str(asked.server.received[0])


def test_a_situation_overrides_the_parameters_of_the_model() -> None:
    def make(url: str) -> ModelSettings:
        situations = {"coding": ModelParameters(temperature=0, max_tokens=99)}
        return model(url, parameters=ModelParameters(temperature=0.7, max_tokens=10, top_p=0.9), situations=situations)

    asked = ask(chat(), make=make, situation="coding", parameters=ModelParameters(max_tokens=7, stop=("END",)))
    assert asked.reply is not None
    assert asked.reply.situation == "coding"
    body = asked.server.received[0].body
    assert (body["temperature"], body["top_p"], body["stop"]) == (0, 0.9, ["END"])
    assert body.get("max_tokens", body.get("max_completion_tokens")) == 7


def test_a_situation_that_the_model_does_not_know_is_refused_before_it_is_asked() -> None:
    asked = ask(chat(), situation="cooking")
    assert isinstance(asked.error, InvalidInput)
    assert asked.server.received == []


def test_images_are_sent_as_their_bytes() -> None:
    png = base64.b64encode(b"\x89PNG....").decode()
    content = (TextPart("What is it?"), ImagePart(f"data:image/png;base64,{png}"))
    asked = ask(chat(), messages=(NewMessage(role=MessageRole.USER, content=content),))
    assert asked.error is None
    assert png in str(asked.server.received[0].body)


@pytest.mark.parametrize("url", ["data:text/plain;base64,eA==", "data:image/png;base64,@@", "/etc/passwd", "file:///x"])
def test_what_is_no_image_is_refused(url: str) -> None:
    asked = ask(chat(), messages=(NewMessage(role=MessageRole.USER, content=(ImagePart(url),)),))
    assert isinstance(asked.error, InvalidInput)
    assert asked.server.received == []


def test_an_image_elsewhere_is_never_fetched_from_here() -> None:
    far = (NewMessage(role=MessageRole.USER, content=(ImagePart("https://example.com/a.png"),)),)
    assert "https://example.com/a.png" in str(ask(chat(), messages=far).server.received[0].body)
    asked = ask(answer(200, GOOGLE), make=google, messages=far)
    assert isinstance(asked.error, InvalidInput)
    assert asked.server.received == []


CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def test_tool_calls_come_as_parts_and_their_results_go_back() -> None:
    spec = ToolSpec(name="add", description="adds", schema={"type": "object", "properties": {"a": {"type": "integer"}}})
    asked = ask(chat_saying({"content": None, "tool_calls": [CALL]}, "tool_calls"), tools=(spec,))
    assert asked.reply is not None
    assert (asked.reply.calls, asked.reply.finish) == (
        (ToolUsePart("call_1", "add", {"a": 1}),),
        FinishReason.TOOL_CALL,
    )
    assert asked.server.received[0].body["tools"][0]["function"]["name"] == "add"
    said = NewMessage(role=MessageRole.ASSISTANT, content=asked.reply.parts)
    result = NewMessage(role=MessageRole.TOOL, content=(ToolResultPart("call_1", {"sum": 2}),))
    again = ask(chat(), messages=(*HI, said, result), tools=(spec,))
    assert [item["role"] for item in again.server.received[0].body["messages"]] == ["user", "assistant", "tool"]


def test_calls_with_the_same_id_are_both_kept() -> None:
    asked = ask(chat_saying({"content": None, "tool_calls": [CALL, CALL]}, "tool_calls"))
    assert asked.reply is not None
    assert [call.id for call in asked.reply.calls] == ["call_1", "call_1"]


def test_arguments_that_are_no_json_stay_a_text() -> None:
    broken = {**CALL, "function": {"name": "add", "arguments": '{"a": '}}
    asked = ask(chat_saying({"content": None, "tool_calls": [broken]}, "tool_calls"))
    assert asked.reply is not None
    assert [(call.name, call.input) for call in asked.reply.calls] == [("add", '{"a": ')]


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -5, "completion_tokens": 5, "total_tokens": 0},
        {**PLAIN, "prompt_tokens_details": {"cached_tokens": 50}},
        {**PLAIN, "completion_tokens_details": {"reasoning_tokens": 9}},
        None,
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    ],
)
def test_usage_that_does_not_add_up_is_not_believed_and_the_reply_stands(usage: Any) -> None:
    asked = ask(chat(usage=usage))
    assert asked.error is None
    assert asked.reply is not None
    assert asked.reply.text == "Hello there"
    assert asked.reply.usage is None
    assert asked.reply.usage_fault


def test_a_reply_that_ran_out_of_room_says_so() -> None:
    asked = ask(chat_saying({"content": "Hel"}, "length"))
    assert asked.reply is not None
    assert asked.reply.finish is FinishReason.LENGTH


@pytest.mark.parametrize("messages", [(), (NewMessage(role=MessageRole.ASSISTANT, content="x"),)])
def test_without_a_question_nothing_is_asked(messages: Any) -> None:
    asked = ask(chat(), messages=messages)
    assert isinstance(asked.error, InvalidInput)
    assert asked.server.received == []
