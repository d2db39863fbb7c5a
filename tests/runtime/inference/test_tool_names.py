"""Names of tools on the wire: every provider takes them, and each names one tool."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.inference.asking import ask, model, provider
from tests.runtime.scripted import GOOGLE, MESSAGE, RESPONSES, Script, answer, chat_saying
from weft.kernel.enums import MessageRole
from weft.ledger.model import NewMessage, TextPart, ToolResultPart, ToolUsePart
from weft.runtime.inference.dialects.dialect_port import WireNames, wire_name
from weft.runtime.inference.model_requests import OpenAIApi, ProviderKind, ToolSpec

NAMES = st.text(st.sampled_from("ab_-/.h0\u202e"), min_size=1, max_size=12) | st.text(max_size=90)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("read", "read"),
        ("mcp__github__create_issue", "mcp__github__create_issue"),
        ("github/create_issue", "github--create_issue"),
        ("my-server/do-it", "my-server--do-it"),
    ],
)
def test_names_that_people_use_stay_readable(name: str, sent: str) -> None:
    assert wire_name(name) == sent


@pytest.mark.parametrize(
    "name",
    ["github--create_issue", "a/b/c", "a/b.c", "a-/b", "a/-b", "a--b/c", "x" * 65, f"a/{'x' * 63}", "\ud800", ""],
)
def test_every_other_name_is_told_apart_by_a_hash(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_]+--h--[0-9a-f]{20}", wire_name(name))


@given(NAMES, NAMES)
def test_no_two_names_are_sent_alike_and_every_provider_takes_them(one: str, other: str) -> None:
    assert (wire_name(one) == wire_name(other)) == (one == other)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wire_name(one))
    assert WireNames([one, other]).name(wire_name(one)) == one


def test_a_name_that_was_not_offered_stays_as_it_was_called() -> None:
    assert WireNames(["github/read"]).name("github--write") == "github--write"


CHAT_CALL = {"id": "2", "function": {"name": "github--read", "arguments": "{}"}}
BLOCK = {"type": "tool_use", "id": "2", "name": "github--read", "input": {}}
ITEM = {"type": "function_call", "call_id": "2", "name": "github--read", "arguments": "{}"}
GOOGLE_CALL = {"candidates": [{"content": {"role": "model", "parts": [
    {"functionCall": {"name": "github--read", "args": {}, "id": "2"}}]}, "finishReason": "STOP"}]}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "api", "reply"),
    [
        (ProviderKind.OPENAI, OpenAIApi.CHAT, chat_saying({"content": None, "tool_calls": [CHAT_CALL]}, "tool_calls")),
        (ProviderKind.OPENAI, OpenAIApi.RESPONSES, answer(200, {**RESPONSES, "output": [ITEM]})),
        (ProviderKind.ANTHROPIC, None, answer(200, {**MESSAGE, "content": [BLOCK], "stop_reason": "tool_use"})),
        (ProviderKind.GOOGLE, None, answer(200, {**GOOGLE, **GOOGLE_CALL})),
    ],
)
def test_a_conversation_is_sent_with_them_and_read_back(kind: ProviderKind, api: Any, reply: Script) -> None:
    earlier = (
        NewMessage(role=MessageRole.USER, content="go"),
        NewMessage(role=MessageRole.ASSISTANT, content=(TextPart("so"), ToolUsePart("1", "github/read", {}))),
        NewMessage(role=MessageRole.TOOL, content=(ToolResultPart("1", "done"),)),
    )
    asked = ask(
        reply,
        make=lambda url: model(url, provider=provider(url, kind, api=api)),
        messages=earlier,
        tools=(ToolSpec(name="github/read"),),
    )
    assert asked.error is None
    sent = str(asked.server.received[0].body)
    assert "github/read" not in sent
    assert sent.count("'github--read'") >= 2  # the call and the tool; Google's results name it, too
    assert asked.reply is not None
    assert asked.reply.calls == (ToolUsePart("2", "github/read", {}),)
