"""How a model is told to think: a level or a budget, in the form of its provider, or refused when it is configured."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from tests.runtime.inference.asking import HI, ask, provider
from tests.runtime.scripted import failure
from weft.kernel.enums import MessageRole
from weft.kernel.errors import InvalidConfig
from weft.ledger.model import (
    NewMessage,
    ReasoningPart,
    SealedItem,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    sealed_metadata,
)
from weft.runtime.assembly.turn_configuration import ensure_thinking
from weft.runtime.inference.model_requests import (
    Dialect,
    ModelParameters,
    ModelSettings,
    OpenAIApi,
    ProviderKind,
    Thinking,
    route_of,
)

ANTHROPIC, OPENAI, GOOGLE, COMPATIBLE = (
    ProviderKind.ANTHROPIC, ProviderKind.OPENAI, ProviderKind.GOOGLE, ProviderKind.OPENAI_COMPATIBLE,
)  # fmt: skip


def settings(url: str, kind: ProviderKind, name: str, thinking: Thinking, **more: Any) -> ModelSettings:
    parameters = ModelParameters(thinking=thinking, **{"max_tokens": 20_000, **more})
    return ModelSettings(id="m", name=name, provider=provider(url, kind), parameters=parameters)


def sent(kind: ProviderKind, name: str, thinking: Thinking, messages: Any = None, **more: Any) -> dict[str, Any]:
    asked = ask(
        failure(500),
        make=lambda url: settings(url, kind, name, thinking, **more),
        **({} if messages is None else {"messages": messages}),
    )
    (received,) = asked.server.received
    body: dict[str, Any] = received.body
    return body


@pytest.mark.parametrize(
    ("kind", "name", "thinking", "place", "expected"),
    [
        (ANTHROPIC, "claude-sonnet-4-5", 5000, "thinking", {"type": "enabled", "budget_tokens": 5000}),
        (ANTHROPIC, "claude-sonnet-4-5", "low", "thinking", {"type": "enabled", "budget_tokens": 2048}),
        (ANTHROPIC, "house-model", 2000, "thinking", {"type": "enabled", "budget_tokens": 2000}),
        (ANTHROPIC, "claude-opus-4-7", "high", "output_config", {"effort": "high"}),
        (OPENAI, "gpt-11", "high", "reasoning", {"effort": "high"}),
        (OPENAI, "gpt-11", "high", "include", ["reasoning.encrypted_content"]),
        (COMPATIBLE, "house-model", "low", "reasoning_effort", "low"),
    ],
)
def test_it_is_sent_in_the_form_of_the_provider_also_to_models_that_no_table_has(
    kind: ProviderKind, name: str, thinking: Thinking, place: str, expected: Any
) -> None:
    assert sent(kind, name, thinking)[place] == expected


@pytest.mark.parametrize("name", ["gemini-2.5-flash", "gemini-9-house", "house-model"])
def test_google_is_sent_a_budget_or_a_level(name: str) -> None:
    budget = sent(GOOGLE, name, 3000)["generationConfig"]["thinkingConfig"]
    assert budget["thinkingBudget" if "thinkingBudget" in budget else "thinking_budget"] == 3000
    assert "thinkingConfig" in sent(GOOGLE, name, "high")["generationConfig"]


@pytest.mark.parametrize(
    ("kind", "name", "thinking", "why"),
    [
        (OPENAI, "gpt-4o", "low", "does not think"),
        (OPENAI, "gpt-5", 3000, "takes no budget"),
        (COMPATIBLE, "house-model", 3000, "takes no budget"),
        (ANTHROPIC, "claude-3-5-haiku-latest", "low", "does not think"),
        (ANTHROPIC, "claude-opus-4-7", 3000, "takes no budget"),
        (ANTHROPIC, "claude-sonnet-4-5", 1000, "at least 1024"),
        (ANTHROPIC, "claude-sonnet-4-5", 30_000, "no less than maxTokens"),
        (GOOGLE, "gemini-2.0-flash", True, "does not think"),
        (ProviderKind.LOCAL, "SmolLM2", True, "does not think"),
    ],
)
def test_what_cannot_be_sent_is_refused_when_it_is_configured(
    kind: ProviderKind, name: str, thinking: Thinking, why: str
) -> None:
    with pytest.raises(InvalidConfig) as raised:
        ensure_thinking(settings("http://x", kind, name, thinking))
    assert why in f"{raised.value} {raised.value.hint}"
    ensure_thinking(settings("http://x", kind, name, False))


def test_a_model_thinks_less_than_it_may_write_and_is_sent_no_sampling_beside_it() -> None:
    assert sent(ANTHROPIC, "claude-sonnet-4-5", "high", max_tokens=4000)["thinking"]["budget_tokens"] == 3999
    assert "thinking" not in sent(ANTHROPIC, "claude-sonnet-4-5", "high", max_tokens=1000)
    body = sent(ANTHROPIC, "claude-sonnet-4-5", "low", temperature=0.5, top_k=3)
    assert {"temperature", "top_k"} & body.keys() == set()


@pytest.mark.parametrize("name", ["claude-sonnet-4-5", "claude-opus-4-7"])
def test_a_loop_of_calls_that_was_not_thought_about_is_ended_without_thinking_where_the_server_wants_that(
    name: str,
) -> None:
    talk = (
        NewMessage(role=MessageRole.USER, content="Look"),
        NewMessage(role=MessageRole.ASSISTANT, content=(TextPart("So"), ToolUsePart("c1", "get", {}))),
        NewMessage(role=MessageRole.TOOL, content=(ToolResultPart("c1", 5),)),
    )
    assert ("thinking" in sent(ANTHROPIC, name, "low", talk)) == (name == "claude-opus-4-7")


@pytest.mark.parametrize(
    ("kind", "name", "of_provider", "of_model", "dialect"),
    [
        (OPENAI, "gpt-5", None, None, Dialect.OPENAI_RESPONSES),
        (OPENAI, "gpt-4o-search-preview", None, None, Dialect.OPENAI_CHAT),
        (OPENAI, "gpt-4o-audio-preview", None, None, Dialect.OPENAI_CHAT),
        (OPENAI, "gpt-5", OpenAIApi.CHAT, None, Dialect.OPENAI_CHAT),
        (OPENAI, "gpt-5", OpenAIApi.CHAT, OpenAIApi.RESPONSES, Dialect.OPENAI_RESPONSES),
        (COMPATIBLE, "house-model", None, None, Dialect.OPENAI_CHAT),
        (COMPATIBLE, "house-model", None, OpenAIApi.RESPONSES, Dialect.OPENAI_RESPONSES),
    ],
)
def test_a_model_is_asked_in_the_form_that_it_says_else_its_provider_else_its_name(
    kind: ProviderKind, name: str, of_provider: OpenAIApi | None, of_model: OpenAIApi | None, dialect: Dialect
) -> None:
    server = provider("http://x", kind, api=of_provider)
    assert route_of(ModelSettings(id="m", name=name, provider=server, api=of_model)).dialect is dialect


@pytest.mark.parametrize("thinking", [False, UNSET])
def test_a_model_that_is_no_longer_to_think_is_not_sent_the_thoughts_of_the_open_loop(thinking: Any) -> None:
    sealed = sealed_metadata("anthropic", [SealedItem(0, 1, {"signature": "c2ln"})])
    content = (ReasoningPart("Hm."), ToolUsePart("c1", "get", {}))
    called = NewMessage(role=MessageRole.ASSISTANT, content=content, metadata=sealed)
    talk = (
        NewMessage(role=MessageRole.USER, content="Look"),
        called,
        NewMessage(role=MessageRole.TOOL, content=(ToolResultPart("c1", 5),)),
    )
    open_loop = sent(ANTHROPIC, "claude-sonnet-4-5", thinking, talk)
    assert [block["type"] for block in open_loop["messages"][1]["content"]] == ["tool_use"]
    closed = (*talk, NewMessage(role=MessageRole.ASSISTANT, content="Five"), *HI)
    later = sent(ANTHROPIC, "claude-sonnet-4-5", thinking, closed)
    assert [block["type"] for block in later["messages"][1]["content"]] == ["thinking", "tool_use"]
    thought = sent(ANTHROPIC, "claude-sonnet-4-5", "low", talk)
    assert [block["type"] for block in thought["messages"][1]["content"]] == ["thinking", "tool_use"]
