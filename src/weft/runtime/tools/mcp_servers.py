"""The MCP servers that a broker works with, and their tools as tools of the runtime.

They are started when a turn is planned, shared by its turns, and closed with the broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Struct

from weft.kernel.contents import dumps
from weft.kernel.errors import InvalidInput, NoCanonicalForm, Unsupported, WeftError
from weft.ledger.api import Runs
from weft.runtime.egress.credentials import Variable
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.inference.model_requests import ToolSpec
from weft.runtime.ledger_port import Executor
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.tool.tool_contract import SEPARATOR, CallPlan, ToolCallContext, ToolFailure, ToolOutput, Tools
from weft.runtime.tools.mcp_server_settings import (
    ComparedTool,
    McpServer,
    PinnedTools,
    ToolDefinition,
    compared,
    ensure_distinct,
    has_packages,
    remove_packages,
    usable,
)

if TYPE_CHECKING:
    from weft.runtime.egress.connections import Connections
    from weft.runtime.tools.mcp_connection import McpConnection, OnNotice, ResourceNotice, ServerLink


# --- A tool of an MCP server as a tool of the runtime: planned, approved and performed as every other.


class ServerPool(Protocol):
    """What a tool needs of the servers that are connected."""

    def approved(self, server: McpServer, tool: str) -> str | None:
        """The digest of the definition that may be called now; None where the tool, or the server, is not allowed."""

    async def connection(self, server: McpServer) -> McpConnection:
        """Raises ToolFailure where the server cannot be spoken with."""


class McpTool:
    """One tool of one server, as a person approved it."""

    def __init__(self, servers: ServerPool, server: McpServer, definition: ToolDefinition) -> None:
        self._servers, self._server, self._definition = servers, server, definition
        self._digest = definition.digest
        self._spec = ToolSpec(
            name=tool_name(server.name, definition.name),
            description=definition.description,
            schema=definition.input_schema or {"type": "object", "properties": {}},
        )

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    @property
    def server(self) -> str:
        return self._server.name

    @property
    def is_idempotent(self) -> bool:
        return self.is_read_only or (self._server.trusts_hints and self._definition.has_hint("idempotentHint"))

    @property
    def is_read_only(self) -> bool:
        return self._server.trusts_hints and self._definition.has_hint("readOnlyHint")

    @property
    def is_repeatable(self) -> bool:
        return False

    async def plan(self, arguments: Any, context: ToolCallContext) -> CallPlan:
        if not isinstance(arguments, dict):
            raise InvalidInput(f"the arguments of {self._spec.name} are {type(arguments).__name__}", "give an object")
        if context.acting is not None:
            for credential in self._server.credentials:
                context.acting.ensure_credential(credential)
        self._ensure_approved()
        exact = {
            "server": self._server.identity,
            "tool": self._definition.name,
            "definition": self._digest,
            "arguments": arguments,
        }
        try:
            shown = msgspec.json.format(dumps(arguments)).decode()
        except NoCanonicalForm as error:
            raise InvalidInput(f"the arguments of {self._spec.name} have no JSON form: {error}") from None
        return CallPlan(
            tool=self._spec.name,
            exact=exact,
            subjects=self._subjects(arguments),
            shown=f"{self._spec.name} {shown}",
            is_read_only=self.is_read_only,
            is_outward=True,
        )

    def _subjects(self, arguments: dict[str, Any]) -> tuple[str, ...] | None:
        """The one text that the definition requires; where it requires none or several, all arguments as JSON."""
        schema = self._definition.input_schema
        properties, required = schema.get("properties"), schema.get("required")
        texts = []
        if isinstance(properties, dict) and isinstance(required, list):
            texts = [name for name in required if _is_text(properties.get(name))]
        if len(texts) != 1:
            return (dumps(arguments).decode(),)
        value = arguments.get(texts[0])
        return (value,) if isinstance(value, str) else None

    def _ensure_approved(self) -> None:
        """The user may have removed or changed the server, or its tool may be defined otherwise by now."""
        if self._servers.approved(self._server, self._definition.name) != self._digest:
            raise self._changed()

    def _changed(self) -> ToolFailure:
        return ToolFailure("changed", f"{self._spec.name} is not defined as it was approved: a person must look at it")

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        """Ask the server for its definitions once more, and call the tool where this one is as approved."""
        from weft.runtime.tools.mcp_connection import output_of

        exact, name = plan.exact, self._definition.name
        is_own = plan.tool == self._spec.name and exact.get("tool") == name
        if not is_own or exact.get("server") != self._server.identity or exact.get("definition") != self._digest:
            raise self._changed()
        self._ensure_approved()
        connection = await self._servers.connection(self._server)
        definitions = await connection.definitions(again=True)
        if not any(one.name == name and one.digest == self._digest for one in definitions):
            raise self._changed()
        started = time.monotonic()
        answer = await connection.call(name, exact["arguments"], context.turn)
        duration_ms = round((time.monotonic() - started) * 1000)
        try:
            output = output_of(answer)
        except ToolFailure as failure:
            raise ToolFailure(
                failure.code, connection.hidden(failure.message), connection.hidden(failure.details)
            ) from None
        return msgspec.structs.replace(
            output,
            result=connection.hidden(output.result),
            duration_ms=duration_ms,
        )

    async def invoke(self, arguments: Any, context: ToolCallContext) -> Any:
        return (await self.perform(await self.plan(arguments, context), context)).result


def tool_name(server: str, tool: str) -> str:
    """`github/create_issue`: a server's name has no slash, so this names one tool of one server."""
    return f"{server}{SEPARATOR}{tool}"


def _is_text(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "string"


# --- The MCP servers that a broker works with: started when a turn is planned, shared by its turns, closed with it.

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
            task = asyncio.create_task(connection.wait_for_end())
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
        from weft.runtime.tools.mcp_connection import McpConnection, ServerLink
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


# --- Records what servers say of their resources while a broker runs.


def notice_recorder(runs: Runs, crossing: Executor) -> OnNotice:
    """For `McpServers`: each notice becomes an event of the ledger's own stream. A notice is
    not written again while the same one is being written."""
    writing: set[ResourceNotice] = set()

    async def record(notice: ResourceNotice) -> None:
        if notice in writing:
            return
        writing.add(notice)
        try:
            await crossing.run(partial(runs.record_resource_change, notice.server, notice.uri, notice.run))
        finally:
            writing.remove(notice)

    return record
