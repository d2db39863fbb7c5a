"""Servers that are reached over HTTP: through the guarded egress alone, with a key for their origin alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.runtime.mcp.configured import Workplace, called, run
from weft.kernel.authority import Principal, PrincipalKind
from weft.kernel.errors import ConnectionForbidden, CredentialWithheld, ProviderUnreachable
from weft.runtime.egress.credentials import Credential
from weft.runtime.egress.execution_context import ExecutionContext, context_from_env
from weft.runtime.tool.tool_contract import ToolFailure
from weft.runtime.tools.mcp_server_settings import HttpServer, McpServer

if TYPE_CHECKING:  # tests that are only collected do without the library
    from mcp.server import MCPServer

KEY = "sk-canary-of-a-server"


def tracker() -> MCPServer:
    from mcp.server import MCPServer

    server = MCPServer("tracker")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    def large() -> str:
        """Answer at length."""
        return "x" * 200_000

    return server


class Watched:
    """An application whose requests are looked at; `redirect` sends calls elsewhere."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner
        self.keys: set[str | None] = set()
        self.redirect: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        self.keys.add(Request(scope).headers.get("authorization"))
        if self.redirect is None:
            await self._inner(scope, receive, send)
        else:
            response: Response = RedirectResponse(self.redirect, 307)
            await response(scope, receive, send)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[str, Watched]]:
    app = Watched(tracker().streamable_http_app(json_response=True))
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on"))
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", app
    finally:
        server.should_exit = True
        await task
        listening.close()


def acting(origin: str) -> ExecutionContext:
    credential = Credential(id="tracker", origin=origin, env="TRACKER_KEY")
    return context_from_env(Principal(PrincipalKind.HUMAN, "ada"), {"TRACKER_KEY": KEY}.get, credentials=[credential])


def at(url: str, **options: Any) -> McpServer:
    return McpServer(name="tracker", transport=HttpServer(url=url, **options))


def test_tools_are_called_with_the_key_and_nothing_is_followed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.runtime.tools.mcp_connection.MOST_ANSWER_BYTES", 100_000)

    async def work() -> None:
        async with serving() as (origin, app):
            server = at(f"{origin}/mcp", credential="tracker")
            async with Workplace(server, acting=acting(origin)) as place:
                await place.approve()
                tools = await place.tools()
                assert (await called(tools, "tracker/add", a=2, b=3)).result == 5
                assert app.keys == {f"Bearer {KEY}"}
                with pytest.raises(ToolFailure, match="more than 100000 bytes"):
                    await called(tools, "tracker/large")
                app.redirect = "http://localhost:1/mcp"
                with pytest.raises(ToolFailure, match=r"[Rr]edirect"):
                    await called(tools, "tracker/add", a=2, b=3)
                app.redirect, place.now = None, 6.0
                assert (await called(tools, "tracker/add", a=2, b=3)).result == 5

    run(work)


def test_a_key_of_another_origin_is_withheld_and_private_names_are_not_reached() -> None:
    async def work() -> None:
        async with Workplace(
            at("http://127.0.0.1:1/mcp", credential="tracker"), acting=acting("https://example.org")
        ) as place:
            with pytest.raises(CredentialWithheld):
                await place.approve()
        async with Workplace(at("http://example.org/mcp")) as place:
            with pytest.raises(ConnectionForbidden):
                await place.approve()
        async with Workplace(at("http://127.0.0.1:1/mcp")) as place:
            with pytest.raises(ProviderUnreachable):
                await place.approve()

    run(work)
