"""The MCP servers that a broker works with: started when a turn is planned, shared by its turns, closed with it.

The configuration is read at every planning, so that what a person adds, approves or removes holds from the next turn.
A server that ended is started again when it is next needed; one that does not start is left alone for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from weft.kernel.errors import InvalidInput, Unsupported, WeftError
from weft.runtime.broker.tools import Tools
from weft.runtime.context import ExecutionContext
from weft.runtime.egress.credentials import Variable
from weft.runtime.mcp.definitions import ComparedTool, PinnedTools, compared, usable
from weft.runtime.mcp.package_sources import has_packages, remove_packages
from weft.runtime.mcp.server_settings import McpServer, ensure_distinct
from weft.runtime.mcp.tools import McpTool
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.tools.calls import ToolFailure

if TYPE_CHECKING:
    from weft.runtime.egress.connections import Connections
    from weft.runtime.mcp.connection import McpConnection, OnNotice
    from weft.runtime.mcp.transports import ServerLink

_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 300.0


class McpConfiguration(Struct, frozen=True, kw_only=True):
    """The user's servers, and what of their tools was approved."""

    servers: tuple[McpServer, ...] = ()
    pins: tuple[PinnedTools, ...] = ()

    def pinned(self, server: str) -> PinnedTools | None:
        return next((pin for pin in self.pins if pin.server == server), None)


LoadConfiguration = Callable[[], McpConfiguration]


class _Failure(Struct):
    """A server that did not start: why, and when it is tried again."""

    error: WeftError | ToolFailure
    count: int
    retry_at: float


class McpServers:
    """The servers of one user, of one event loop. `acting` is in whose name they are started and given keys. With
    `may_fetch` a person agreed that a first start fetches packages."""

    def __init__(
        self,
        load: LoadConfiguration,
        *,
        acting: ExecutionContext,
        variable: Variable,
        runner: CommandRunner,
        on_notice: OnNotice | None = None,
        may_fetch: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load, self._acting, self._variable, self._on_notice = load, acting, variable, on_notice
        self._runner, self._may_fetch = runner, may_fetch
        self._monotonic = monotonic
        self._network: Connections | None = None
        self._configuration = McpConfiguration()
        self.open_connections: dict[str, McpConnection] = {}
        self._starting: dict[str, asyncio.Task[McpConnection]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._failures: dict[str, _Failure] = {}
        """Of starts, by the identity of the server."""
        self.troubles: dict[str, str] = {}
        """The servers that could not be used when tools were last asked for, and why."""
        self.starts = 0
        """How often a server was started."""
        self._is_closed = False

    async def tools(self) -> Tools:
        """What may be called now, by names. A server that cannot be used is left out; `troubles` says why."""
        await self.reload()
        servers = [server for server in self._configuration.servers if server.is_enabled and self._has_pins(server)]
        tools: dict[str, McpTool] = {}
        for server, comparison in zip(servers, await self._compared(servers), strict=True):
            definitions = usable(comparison).values() if comparison is not None else ()
            for definition in definitions:
                tool = McpTool(self, server, definition)
                tools[tool.spec.name] = tool
        return tools

    def _has_pins(self, server: McpServer) -> bool:
        """Nothing is started of which nothing was approved as it is configured."""
        pinned = self._configuration.pinned(server.name)
        return pinned is not None and pinned.identity == server.identity and bool(pinned.tools)

    async def reload(self) -> None:
        """Read the configuration, and let go of servers that it does not have any more as they are."""
        configuration = self._load()
        ensure_distinct(configuration.servers)
        self._configuration = configuration
        wanted = {server.name: server.identity for server in configuration.servers if server.is_enabled}
        for name, connection in list(self.open_connections.items()):
            if wanted.get(name) != connection.server.identity:
                self._let_go(name)
        self.troubles = {}

    async def _compared(self, servers: Sequence[McpServer]) -> list[tuple[ComparedTool, ...] | None]:
        async def one(server: McpServer) -> tuple[ComparedTool, ...] | None:
            try:
                return await self.comparison(server)
            except (WeftError, ToolFailure) as error:
                self.troubles[server.name] = str(error)
                return None

        return list(await asyncio.gather(*map(one, servers)))

    async def comparison(self, server: McpServer) -> tuple[ComparedTool, ...]:
        """Every tool of a server beside what was approved of it."""
        connection = await self.connection(server)
        definitions = await connection.definitions()
        return compared(server.identity, definitions, self._configuration.pinned(server.name))

    def approved(self, server: McpServer, tool: str) -> str | None:
        """By the configuration as it is now: a person may have taken the server away while a turn ran."""
        configuration = self._load()
        current = next((one for one in configuration.servers if one.name == server.name), None)
        pinned = configuration.pinned(server.name)
        if current is None or not current.is_enabled or current.identity != server.identity or pinned is None:
            return None
        if pinned.identity != server.identity:
            return None
        return next((one.digest for one in pinned.tools if one.name == tool), None)

    async def connection(self, server: McpServer) -> McpConnection:
        """The open connection, or a new one: several callers at once share one start."""
        if self._is_closed:
            raise ToolFailure("server_ended", "the servers of this broker were closed")
        name = server.name
        connection = self.open_connections.get(name)
        if connection is not None and connection.server.identity == server.identity and connection.is_usable:
            return connection
        self._let_go(name)
        failure = self._failures.get(server.identity)
        if failure is not None and self._monotonic() < failure.retry_at:
            raise failure.error
        starting = self._starting.get(name)
        if starting is None:
            starting = self._starting[name] = asyncio.create_task(self._start(server))
            starting.add_done_callback(lambda _: self._starting.pop(name, None))
        return await asyncio.shield(starting)

    async def _start(self, server: McpServer) -> McpConnection:
        self.starts += 1
        try:
            connection_type, link_type = await asyncio.to_thread(_connection_types)
            link = link_type(server, self._acting, self._variable, self._runner, self._shared_network(),
                             may_fetch=self._may_fetch)  # fmt: skip
            connection = connection_type(server, link, self._on_notice)
            await connection.open()
        except (WeftError, ToolFailure) as error:
            self._note_failure(server.identity, error)
            raise
        self._failures.pop(server.identity, None)
        self.open_connections[server.name] = connection
        return connection

    def _shared_network(self) -> Connections:
        if self._network is None:
            from weft.runtime.egress.connections import Connections

            self._network = Connections()
        return self._network

    def _note_failure(self, identity: str, error: WeftError | ToolFailure) -> None:
        count = self._failures[identity].count + 1 if identity in self._failures else 1
        pause = min(_FIRST_PAUSE_SECONDS * 2 ** (count - 1), _LONGEST_PAUSE_SECONDS)
        self._failures[identity] = _Failure(error, count, self._monotonic() + pause)

    def _let_go(self, name: str) -> None:
        """Close a connection when its calls have ended."""
        connection = self.open_connections.pop(name, None)
        if connection is not None:
            connection.retire()
            task = asyncio.create_task(connection.ended())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close every server. Nothing of them is left when this returns."""
        self._is_closed = True
        starting = list(self._starting.values())
        for task in starting:
            task.cancel()
        if starting:
            await asyncio.wait(starting)
        connections, self.open_connections = list(self.open_connections.values()), {}
        await asyncio.gather(*(connection.close() for connection in connections))
        if self._closing:
            await asyncio.wait(self._closing)
        if self._network is not None:
            await self._network.aclose()


def _connection_types() -> tuple[type[McpConnection], type[ServerLink]]:
    """The client library takes more than a second to load: only whoever connects loads it, in a thread."""
    try:
        from weft.runtime.mcp.connection import McpConnection
        from weft.runtime.mcp.transports import ServerLink
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("weft"):
            raise
        raise Unsupported("MCP servers need a client library", "install it with `pip install 'weft[mcp]'`") from None
    return McpConnection, ServerLink


async def inspected(
    server: McpServer,
    pinned: PinnedTools | None,
    *,
    acting: ExecutionContext,
    variable: Variable,
    runner: CommandRunner,
    may_fetch: bool = False,
) -> tuple[ComparedTool, ...]:
    """Start one server for a moment, to see its tools. Raises a WeftError where that does not work; of packages that it
    has fetched until then nothing is left, so that the next start fetches them anew."""
    pins = () if pinned is None else (pinned,)
    configuration = McpConfiguration(servers=(server,), pins=pins)
    servers = McpServers(lambda: configuration, acting=acting, variable=variable, runner=runner,
                         may_fetch=may_fetch)  # fmt: skip
    is_first = not has_packages(server, runner.person.caches)
    try:
        await servers.reload()
        tools = await servers.comparison(server)
    except ToolFailure as failure:
        usual = {"advice": f"check what is configured for the server {server.name}"}
        details = failure.details if isinstance(failure.details, dict) else usual
        raise InvalidInput(failure.message, details.get("advice", usual["advice"])) from None
    else:
        is_first = False  # they are whole, and stay
    finally:
        await servers.aclose()
        if is_first:
            await asyncio.to_thread(remove_packages, server, runner.person.caches)
    return tools
