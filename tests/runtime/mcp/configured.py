"""Scripted and real MCP servers as a user would configure them, and the tools that come of that."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tests.sandbox import UNPROTECTED
from weft.kernel.authority import Principal, PrincipalKind
from weft.runtime.egress.execution_context import ExecutionContext, context_for
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.tool.tool_contract import CallPlan, ToolCallContext, ToolOutput, Tools
from weft.runtime.tools.mcp_server_settings import CommandServer, McpServer, PinnedTools, approve, checked_server
from weft.runtime.tools.mcp_servers import McpConfiguration, McpServers, inspected

if TYPE_CHECKING:  # it loads the MCP library, which tests that are only collected do without
    from weft.runtime.tools.mcp_connection import OnNotice

Answer = TypeVar("Answer")
SCRIPT = Path(__file__).with_name("scripted_server.py")
PERSON = context_for(Principal(PrincipalKind.HUMAN, "ada"))
CALL = ToolCallContext(turn="turn", call="call")
PYTHON = str(Path(sys.executable).resolve())


def scripted(way: str, name: str = "other", **options: Any) -> McpServer:
    """A server of `scripted_server.py`, in the sandbox."""
    of_server = {key: options.pop(key) for key in tuple(options) if key in McpServer.__struct_fields__}
    transport = CommandServer(
        command=PYTHON,
        args=("-I", "-S", "-B", str(SCRIPT), way),
        readable=(sys.base_prefix, str(SCRIPT)),
        **options,
    )
    return checked_server(McpServer(name=name, transport=transport, **of_server))


def pinned_to(server: McpServer, *definitions: Any) -> PinnedTools:
    return PinnedTools(server=server.name, identity=server.identity, tools=definitions)


async def approved(server: McpServer, acting: ExecutionContext = PERSON) -> PinnedTools:
    """What a person pins who approves all that the server defines."""
    tools = await inspected(server, None, acting=acting, variable=os.environ.get, runner=CommandRunner(UNPROTECTED))
    return approve(server.name, server.identity, tools)


class Workplace:
    """Servers whose configuration a test can change at any time."""

    def __init__(
        self,
        *servers: McpServer,
        acting: ExecutionContext = PERSON,
        variables: Mapping[str, str] | None = None,
        on_notice: OnNotice | None = None,
    ) -> None:
        self.configuration = McpConfiguration(servers=servers)
        self.variable = os.environ.get if variables is None else variables.get
        self.now = 0.0
        self.servers = McpServers(
            lambda: self.configuration,
            acting=acting,
            variable=self.variable,
            runner=CommandRunner(UNPROTECTED),
            on_notice=on_notice,
            monotonic=lambda: self.now,
        )

    async def approve(self) -> None:
        """Pin everything as it is defined now."""
        pins = []
        for server in self.configuration.servers:
            await self.servers.reload()
            tools = await self.servers.comparison(server)
            pins.append(approve(server.name, server.identity, tools))
        self.configuration = msgspec.structs.replace(self.configuration, pins=tuple(pins))

    async def tools(self) -> Tools:
        return await self.servers.tools()

    async def __aenter__(self) -> Workplace:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.servers.aclose()


async def called(tools: Tools, name: str, **arguments: Any) -> ToolOutput:
    tool: Any = tools[name]
    plan: CallPlan = await tool.plan(arguments, CALL)
    output: ToolOutput = await tool.perform(plan, CALL)
    return output


def run(work: Callable[[], Awaitable[Answer]]) -> Answer:
    async def main() -> Answer:
        return await work()

    return asyncio.run(main())
