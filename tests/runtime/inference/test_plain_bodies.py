"""A conversation that is sent as it is: the same bytes as the client's own way."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI

from weft.runtime.inference.plain_bodies import PlainOpenAI

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief"},
    {
        "role": "user",
        "content": [{"type": "text", "text": 'ä \u2028 \\ "'}, {"type": "image_url", "image_url": {"url": "x"}}],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "5"},
]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "format": "date"}}}]


def body(kind: type[AsyncOpenAI], *, responses: bool = False, **arguments: Any) -> bytes:
    """What a client of this kind sends."""
    sent: list[bytes] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request.content)
        return httpx2.Response(200, json={"id": "1", "object": "x", "choices": [], "output": [], "created": 1})

    async def ask() -> None:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        async with kind(api_key="none", base_url="http://server/v1", http_client=http, max_retries=0) as client:
            if responses:
                await client.responses.create(model="m", **arguments)
            else:
                await client.chat.completions.create(model="m", **arguments)

    asyncio.run(ask())
    (only,) = sent
    return only


@pytest.mark.parametrize("more", [{}, {"extra_body": {"min_p": 0.5}}, {"tools": TOOLS, "temperature": 0.5, "seed": 1}])
def test_a_request_has_the_same_bytes(more: dict[str, Any]) -> None:
    assert body(PlainOpenAI, messages=TALK, **more) == body(AsyncOpenAI, messages=TALK, **more)


def test_a_body_that_brings_its_own_messages_keeps_them() -> None:
    arguments: dict[str, Any] = {"messages": TALK, "extra_body": {"messages": TALK[:1]}}
    assert body(PlainOpenAI, **arguments) == body(AsyncOpenAI, **arguments)


@pytest.mark.parametrize("given", ["hello", TALK[:2]])
def test_so_has_one_of_the_responses_protocol(given: Any) -> None:
    plain, own = (body(kind, responses=True, input=given, store=False) for kind in (PlainOpenAI, AsyncOpenAI))
    assert plain == own


def test_its_messages_are_not_walked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the client would do to each of them is done to none."""
    walked: list[object] = []
    from openai._utils import _transform

    inner = _transform._async_transform_typeddict

    async def spied(data: Any, expected: Any) -> Any:
        walked.append(data)
        return await inner(data, expected)

    monkeypatch.setattr(_transform, "_async_transform_typeddict", spied)
    body(PlainOpenAI, messages=TALK)
    assert not any(message in walked for message in TALK)
    body(AsyncOpenAI, messages=TALK)
    assert all(message in walked for message in TALK)
