"""The ledger as an MCP server at /mcp, asked by the client library of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.surfaces.server.site import BASE_URL, Site, open_site
from weft.surfaces.mcp.tools import TOOLS, WRITING

T = TypeVar("T")
URL = f"{BASE_URL}/mcp"


@pytest.fixture
def site() -> Iterator[Site]:
    with open_site(mcp_writes=["fork"]) as site:
        site.ledger.record_turn(session="main", query=["Which store?"], response="We take sqlite.")
        site.ledger.record_turn(session="private", query=["secret words"], response="kept")
        yield site


async def talk(site: Site, question: Callable[[Client], Awaitable[T]], token: str, **options: Any) -> T:
    http = httpx2.AsyncClient(
        transport=httpx2.ASGITransport(site.application, raise_app_exceptions=True),
        headers={"authorization": f"Bearer {token}"},
    )
    async with http, asyncio.timeout(60), Client(streamable_http_client(URL, http_client=http), **options) as client:
        return await question(client)


def asked(site: Site, question: Callable[[Client], Awaitable[T]], token: str = "", **options: Any) -> T:
    return site.run(talk(site, question, token or site.token(), **options))


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_tools_and_resources_of_the_ledger_are_offered(site: Site, mode: str) -> None:
    async def question(client: Client) -> None:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert sorted(names) == sorted(name for name in TOOLS if name not in WRITING or name == "fork")
        found = await client.call_tool("search", {"words": "sqlite"})
        assert not found.is_error
        assert "We take sqlite." in str(found.content)
        listed = (await client.list_resources()).resources
        assert "weft://session/main" in [str(resource.uri) for resource in listed]
        (read,) = (await client.read_resource("weft://session/main")).contents
        assert "We take sqlite." in str(read)

    asked(site, question, mode=mode)


def test_a_tool_writes_where_it_was_named_and_the_token_may(site: Site) -> None:
    async def fork(client: Client) -> Any:
        return await client.call_tool("fork", {"at": "main", "label": "side"})

    assert asked(site, fork, site.token(allow=["*:read"])).is_error
    assert not asked(site, fork).is_error
    assert site.ledger.session("side").head == site.ledger.session("main").head

    async def send(client: Client) -> Any:
        return await client.call_tool("send", {"session": "main", "text": "hello"})

    refused = asked(site, send)
    assert refused.is_error
    assert "does not offer send" in str(refused.content)


def test_a_narrow_token_finds_what_it_may_read_alone(site: Site) -> None:
    narrow = site.token(allow=["session:read(main)"])

    async def sessions(client: Client) -> Any:
        return await client.call_tool("sessions", {})

    assert "private" in str(asked(site, sessions).content)
    told = asked(site, sessions, narrow)
    assert "main" in str(told.content)
    assert "private" not in str(told.content)


def test_nobody_is_let_in_without_a_token_that_counts(site: Site) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"accept": "application/json, text/event-stream"}
    assert site.ask("POST", "/mcp", body, token=None, headers=headers).status == 401
    assert site.ask("POST", "/mcp", body, token=site.token(expires_ms=1), headers=headers).status == 200
    site.now_ms = 1
    assert site.ask("POST", "/mcp", body, token=site.token(expires_ms=1), headers=headers).status == 401
    assert site.ask("POST", "/mcp", body, token=site.token(deny=["session:read"]), headers=headers).status == 403
    assert site.ask("POST", "/mcp", body, headers={**headers, "host": "evil.example"}).status == 421
    assert site.ask("POST", "/mcp", body, headers={**headers, "origin": "http://evil.example"}).status == 403
    answered = site.ask("POST", "/mcp", body, headers=headers)
    assert (answered.status, answered.headers["x-content-type-options"]) == (200, "nosniff")


def test_a_message_that_is_too_large_is_refused(site: Site) -> None:
    headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    assert site.ask("POST", "/mcp", content=b"x" * 2_000_000, headers=headers).status == 413


def test_a_subscription_ends_with_its_token(site: Site) -> None:
    token = site.token()
    caller = site.caller(token)

    async def question() -> float:
        message = {
            "jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen",
            "params": {
                "notifications": {"resourceSubscriptions": ["weft://session/main"]},
                "_meta": {
                    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                    "io.modelcontextprotocol/clientCapabilities": {},
                },
            },
        }  # fmt: skip
        headers = {
            "authorization": f"Bearer {token}", "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28", "mcp-method": "subscriptions/listen",
        }  # fmt: skip
        loop = asyncio.get_running_loop()
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(site.application), base_url=BASE_URL) as http:
            asking = asyncio.ensure_future(http.post("/mcp", json=message, headers=headers))
            await asyncio.sleep(1.5)
            assert not asking.done(), (await asking).text
            site.revoked.update(caller.ids)
            began = loop.time()
            async with asyncio.timeout(20):
                response = await asking
            assert response.status_code == 200
            return loop.time() - began

    assert site.run(question()) < 15
