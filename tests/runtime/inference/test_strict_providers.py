"""The strict server refuses what the real APIs refuse: one request for each rule, next to one that is accepted."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.runtime.inference.asking import HI, ask, provider
from tests.runtime.inference.strict_providers import RULES
from tests.runtime.scripted import MESSAGE, answer, chat, failure
from weft.kernel.enums import MessageRole
from weft.kernel.errors import RequestRefused
from weft.ledger.model import NewMessage, ReasoningPart, SealedItem, TextPart, sealed_metadata
from weft.runtime.inference.model_requests import Dialect, ModelSettings, OpenAIApi, ProviderKind, estimated_tokens

THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
CALL = {"type": "tool_use", "id": "t1", "name": "get", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "5"}]}
ANTHROPIC: dict[str, Any] = {
    "model": "claude-x",
    "max_tokens": 2000,
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Look"}]},
        {"role": "assistant", "content": [THINKING, CALL]},
        {"role": "user", "content": [RESULT, {"type": "text", "text": "Well?"}]},
    ],
    "tools": [{"name": "get", "input_schema": {"type": "object"}}],
}
MARKER = {"cache_control": {"type": "ephemeral"}}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
FUNCTION_CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get", "arguments": "{}"}
RESPONSES: dict[str, Any] = {
    "model": "gpt-x",
    "store": False,
    "input": [
        {"role": "user", "content": "Look"},
        REASONING,
        FUNCTION_CALL,
        {"type": "function_call_output", "call_id": "c1", "output": "5"},
    ],
}
CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": "Look"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
    ],
}
SIGNED = {"functionCall": {"name": "get", "args": {}}, "thoughtSignature": "c2ln"}
GOOGLE: dict[str, Any] = {
    "contents": [
        {"role": "user", "parts": [{"text": "Look"}]},
        {"role": "model", "parts": [SIGNED]},
        {"role": "user", "parts": [{"functionResponse": {"name": "get", "response": {}}}]},
    ],
}
ACCEPTED: dict[Dialect, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    Dialect.ANTHROPIC: (ANTHROPIC, [{"content": [THINKING, CALL]}]),
    Dialect.OPENAI_RESPONSES: (RESPONSES, [{"output": [REASONING, FUNCTION_CALL]}]),
    Dialect.OPENAI_CHAT: (CHAT, []),
    Dialect.GOOGLE: (GOOGLE, [{"parts": [SIGNED]}]),
}
Change = Callable[[dict[str, Any]], Any]


def without_thinking(body: dict[str, Any]) -> None:
    body["messages"][1]["content"].pop(0)


def with_five_markers(body: dict[str, Any]) -> None:
    body["system"] = [{"type": "text", "text": "Be brief", **MARKER} for _ in range(5)]


REFUSED: list[tuple[Dialect, Change, str]] = [
    (Dialect.ANTHROPIC, without_thinking, "Expected `thinking`"),
    (Dialect.ANTHROPIC, lambda body: body["messages"][1]["content"].reverse(), "final block"),
    (Dialect.ANTHROPIC, lambda body: body["messages"][1]["content"][0].update(thinking="Other"), "Invalid `signature`"),
    (Dialect.ANTHROPIC, lambda body: body["messages"][1]["content"][0].pop("signature"), "signature: Field required"),
    (Dialect.ANTHROPIC, lambda body: body["messages"][2]["content"].reverse(), "must come first"),
    (Dialect.ANTHROPIC, lambda body: body["messages"][2]["content"].pop(0), "immediately after"),
    (Dialect.ANTHROPIC, lambda body: body["messages"].insert(1, body["messages"][0]), "alternate"),
    (Dialect.ANTHROPIC, lambda body: body["messages"][1]["content"].append({"type": "text", "text": "\n"}), "white"),
    (Dialect.ANTHROPIC, lambda body: body.update(seed=1), "Extra inputs"),
    (Dialect.ANTHROPIC, lambda body: body.update(temperature=0.5), "temperature"),
    (Dialect.ANTHROPIC, lambda body: body.update(max_tokens=1024), "greater than `thinking.budget_tokens`"),
    (Dialect.ANTHROPIC, with_five_markers, "maximum of 4"),
    (Dialect.ANTHROPIC, lambda body: body.pop("thinking"), "When thinking is disabled"),
    (Dialect.OPENAI_RESPONSES, lambda body: body["input"].pop(1), "without its required 'reasoning' item"),
    (Dialect.OPENAI_RESPONSES, lambda body: body["input"].insert(2, body["input"][0]), "required following item"),
    (Dialect.OPENAI_RESPONSES, lambda body: body["input"][1].pop("encrypted_content"), "not persisted"),
    (Dialect.OPENAI_RESPONSES, lambda body: body["input"][1].update(encrypted_content="x"), "could not be verified"),
    (Dialect.OPENAI_RESPONSES, lambda body: body["input"].pop(3), "No tool output found"),
    (Dialect.OPENAI_RESPONSES, lambda body: body["input"].pop(2), "No tool call found"),
    (Dialect.OPENAI_RESPONSES, lambda body: body.pop("store"), "kept by the server"),
    (Dialect.OPENAI_RESPONSES, lambda body: body.update(stop=["x"]), "Extra inputs"),
    (Dialect.OPENAI_CHAT, lambda body: body["messages"].pop(2), "did not have response"),
    (Dialect.OPENAI_CHAT, lambda body: body["messages"].pop(1), "preceeding"),
    (Dialect.OPENAI_CHAT, lambda body: body["messages"][1].pop("tool_calls"), "got null"),
    (Dialect.OPENAI_CHAT, lambda body: body["messages"][1]["tool_calls"][0].update(id="x" * 41), "too long"),
    (Dialect.OPENAI_CHAT, lambda body: body["messages"][1].update(reasoning="Hm."), "Extra inputs"),
    (Dialect.GOOGLE, lambda body: body["contents"][1]["parts"][0].pop("thoughtSignature"), "missing a thought"),
    (Dialect.GOOGLE, lambda body: body["contents"][1]["parts"][0].update(thoughtSignature="x"), "not valid"),
    (Dialect.GOOGLE, lambda body: body["contents"][2]["parts"].clear(), "function response parts"),
    (Dialect.GOOGLE, lambda body: body["contents"].insert(1, body["contents"][0]), "alternate"),
    (Dialect.GOOGLE, lambda body: body.update(messages=[]), "Extra inputs"),
]


@pytest.mark.parametrize("dialect", Dialect)
def test_a_request_in_order_is_accepted(dialect: Dialect) -> None:
    body, served = ACCEPTED[dialect]
    assert list(RULES[dialect](body, served)) == []


@pytest.mark.parametrize(("dialect", "change", "why"), REFUSED)
def test_a_request_that_the_real_one_refuses_is_refused(dialect: Dialect, change: Change, why: str) -> None:
    accepted, served = ACCEPTED[dialect]
    body = copy.deepcopy(accepted)
    change(body)
    assert any(why in refusal for refusal in RULES[dialect](body, served)), list(RULES[dialect](body, served))


SEALED_ANSWER = NewMessage(
    role=MessageRole.ASSISTANT,
    content=(ReasoningPart("Hm."), TextPart("Yes")),
    metadata=sealed_metadata("anthropic", [SealedItem(0, 1, {"signature": "b2xk"})]),
)
TALK = (*HI, SEALED_ANSWER, *HI)
REFUSED_SEAL = failure(400, "messages.1.content.0: Invalid `signature` in `thinking` block")


def claude(url: str) -> ModelSettings:
    return ModelSettings(id="m", name="claude-x", provider=provider(url, ProviderKind.ANTHROPIC))


def test_what_a_provider_no_longer_opens_is_left_out_once() -> None:
    asked = ask(REFUSED_SEAL, answer(200, MESSAGE), make=claude, messages=TALK)
    assert asked.error is None
    first, second = (json.dumps(received.body["messages"]) for received in asked.server.received)
    assert ("b2xk" in first, "b2xk" in second, "Hm." in second) == (True, False, False)
    assert asked.retries == [("request_refused", "m", False)]
    assert asked.reply is not None
    assert [attempt.error for attempt in asked.reply.attempts] == ["request_refused", ""]
    for script, messages in ((REFUSED_SEAL, HI), (failure(400, "the prompt is bad"), TALK)):
        asked = ask(script, make=claude, messages=messages)
        assert isinstance(asked.error, RequestRefused)
        assert len(asked.server.received) == 1
    asked = ask(REFUSED_SEAL, make=claude, messages=TALK)
    assert isinstance(asked.error, RequestRefused)
    assert len(asked.server.received) == 2


def test_what_is_sealed_counts_as_a_part_of_the_prompt() -> None:
    bare = NewMessage(role=MessageRole.ASSISTANT, content=SEALED_ANSWER.content)
    long = SealedItem(0, 1, {"encrypted": "g" * 4000})
    sealed = NewMessage(role=bare.role, content=bare.content, metadata=sealed_metadata("openai", [long]))
    assert estimated_tokens([SEALED_ANSWER]) == estimated_tokens([bare]) + 1
    assert estimated_tokens([sealed]) == estimated_tokens([bare]) + 1000


def test_openai_is_told_to_keep_nothing_of_chats_and_other_servers_are_told_nothing() -> None:
    for kind, stored in ((ProviderKind.OPENAI, False), (ProviderKind.OPENAI_COMPATIBLE, None)):

        def there(url: str, kind: ProviderKind = kind) -> ModelSettings:
            return ModelSettings(id="m", name="gpt-4o", provider=provider(url, kind, api=OpenAIApi.CHAT))

        asked = ask(chat(), make=there)
        assert asked.error is None
        (received,) = asked.server.received
        assert received.body.get("store") is stored
