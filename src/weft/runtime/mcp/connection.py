"""One connection to an MCP server: the official client's session, kept open by a task of its own.

Every call ends: with its result, by its time, or with the connection, whose fault then says why. What a server asks of
its client (sampling, elicitation, roots) is not offered and refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, TypeVar

import mcp
import msgspec
from mcp import Client
from mcp.client.session import IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolResult,
    EmptyResult,
    Implementation,
    PaginatedRequestParams,
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    SubscribeRequest,
    SubscribeRequestParams,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from msgspec import Struct
from pydantic import ValidationError

from weft.kernel.errors import WeftError
from weft.runtime.egress.connections import DecodingError, TransportError
from weft.runtime.egress.key_traces import KeyTraces
from weft.runtime.mcp.definitions import MOST_TOOLS, ToolDefinition, checked_definitions, definition_of
from weft.runtime.mcp.server_settings import McpServer
from weft.runtime.mcp.transports import ServerLink
from weft.runtime.tools.calls import ToolFailure

MOST_NOTICES = 256
"""So many notices of resources are taken until the server is asked something again."""
_Result = TypeVar("_Result")


class _WithoutLibrary(logging.Filter):
    """Drops what the client library logs: it is a server's text, and no terminal is to be shown it. One of its loggers
    has a name that others may use, too."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.pathname.startswith(os.path.dirname(mcp.__file__))


logging.getLogger("client").addFilter(_WithoutLibrary())
logging.getLogger("mcp").addHandler(logging.NullHandler())
logging.getLogger("mcp").propagate = False


class ResourceNotice(Struct, frozen=True, kw_only=True):
    """A server said that a resource changed, or, without `uri`, that its list of resources did."""

    server: str
    uri: str | None = None


OnNotice = Callable[[ResourceNotice], Awaitable[None]]


class McpConnection:
    """A server that is spoken with. `open` before anything else, `close` at the end; any task may call."""

    def __init__(self, server: McpServer, link: ServerLink, on_notice: OnNotice | None = None) -> None:
        self.server, self._link, self._on_notice = server, link, on_notice
        self._client: Client | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self.open_calls = 0
        self._is_retired = False
        self._notices_left = MOST_NOTICES
        self._definitions: tuple[ToolDefinition, ...] | None = None

    @property
    def is_usable(self) -> bool:
        return self._client is not None and not self._is_retired and self._link.fault is None

    async def open(self) -> None:
        """Raises ToolFailure where the server does not start, or does not speak the protocol, in its time."""
        self._task = asyncio.create_task(self._keep_open(), name=f"weft-mcp-{self.server.name}")
        try:
            async with asyncio.timeout(self._link.start_seconds):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            raise ToolFailure("not_started", f"{self._named} did not start in {self._link.start_seconds:g} s") from None
        except BaseException:  # it failed, or nobody waits for it any longer: nothing of it stays
            await self.close()
            raise

    async def _keep_open(self) -> None:
        client = Client(
            self._link.transport(),
            message_handler=self._take_message,
            client_info=Implementation(name="weft", version=version("weft")),
            cache=None,
        )
        try:
            async with client:
                self._client = client
                await self._subscribe(client)
                if not self._ready.done():
                    self._ready.set_result(None)
                await self._closing.wait()
        except Exception as error:  # whatever a stranger's server makes the library raise ends this connection alone
            if not self._ready.done():
                self._ready.set_exception(self._start_failure(error))
                self._ready.exception()  # nobody may be waiting any longer
            else:
                self._link.fault = self._link.fault or f"the connection broke: {_error_line(error)}"
        finally:
            self._client = None
            if self._listening is not None:
                self._listening.cancel()
            if not self._ready.done():
                self._ready.cancel()

    def _start_failure(self, error: Exception) -> Exception:
        """Errors of the configuration are raised as they are; the library wraps what happened beside it in groups."""
        causes = list(_leaves(error))
        own = next((cause for cause in causes if isinstance(cause, WeftError | ToolFailure)), None)
        if own is not None:
            return own
        reason = self._link.fault or "; ".join(dict.fromkeys(map(_error_line, causes)))
        advice = msgspec.UNSET if self._link.advice is None else {"advice": self._link.advice}
        return ToolFailure("not_started", self.hidden(f"{self._named} could not be started: {reason}"), advice)

    async def _subscribe(self, client: Client) -> None:
        """Ask for changes. Older servers send those of lists unasked."""
        if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
            self._listening = asyncio.create_task(self._listen(client), name=f"weft-mcp-{self.server.name}-changes")
            return
        resources = client.server_capabilities.resources
        if resources is not None and resources.subscribe:
            for uri in self.server.subscriptions:
                await client.session.send_request(SubscribeRequest(params=SubscribeRequestParams(uri=uri)), EmptyResult)

    async def _listen(self, client: Client) -> None:
        """What is listened for comes to `_take_message`, too."""
        try:
            async with client.listen(
                tools_list_changed=True,
                resources_list_changed=True,
                resource_subscriptions=self.server.subscriptions,
            ) as subscription:
                async for _ in subscription:
                    continue
        except Exception:  # it does not tell of changes, or no longer: definitions are compared before each call
            return

    async def _take_message(self, message: IncomingMessage) -> None:
        match message:
            case ToolListChangedNotification():
                self._definitions = None
            case ResourceListChangedNotification():
                await self._notice(ResourceNotice(server=self.server.name))
            case ResourceUpdatedNotification():
                await self._notice(ResourceNotice(server=self.server.name, uri=self.hidden(message.params.uri)))
            case _:
                return

    async def _notice(self, notice: ResourceNotice) -> None:
        self._notices_left -= 1
        if self._notices_left < 0:
            self._link.fault = f"it told of more than {MOST_NOTICES} changed resources unasked"
            self._closing.set()
        elif self._on_notice is not None:
            await self._on_notice(notice)

    async def definitions(self, *, again: bool = False) -> tuple[ToolDefinition, ...]:
        """The tools that the server defines; asked for `again`, or where it said that they changed."""
        if again or self._definitions is None:
            self._definitions = await self._request(self._listed(), self.server.start_seconds)
        return self._definitions

    async def _listed(self) -> tuple[ToolDefinition, ...]:
        definitions: list[ToolDefinition] = []
        cursor: str | None = None
        cursors: set[str] = set()
        while True:
            page = await self._session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            definitions.extend(map(definition_of, page.tools))
            cursor = page.next_cursor
            if cursor is None or len(definitions) > MOST_TOOLS:
                return checked_definitions(self.server.name, definitions)
            if cursor in cursors or len(cursors) >= MOST_TOOLS:
                raise ToolFailure("server_error", f"{self._named} lists its tools without end")
            cursors.add(cursor)

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Raises ToolFailure however else the call ends. A process that did not answer in time is not used again."""
        return await self._request(self._session.call_tool(tool, arguments), self.server.call_seconds)

    async def _request(self, asking: Awaitable[_Result], seconds: float) -> _Result:
        self._notices_left = MOST_NOTICES
        with self._counted():
            try:
                async with asyncio.timeout(seconds):
                    return await asking
            except TimeoutError:
                self.abandon()
                raise ToolFailure("timed_out", f"{self._named} did not answer in {seconds:g} s") from None
            except asyncio.CancelledError:
                self.abandon()
                raise
            except MCPError as error:
                raise self._refused(error) from None
            except ValidationError as error:
                raise ToolFailure("invalid_result", f"{self._named} answered what the protocol does not know: "
                                  f"{error.error_count()} faults") from None  # fmt: skip
            except RuntimeError as error:
                raise ToolFailure("invalid_result", self.hidden(f"{self._named}: {_error_line(error)}")) from None
            except (DecodingError, TransportError) as error:
                raise ToolFailure("server_ended", self.hidden(f"{self._named}: {_error_line(error)}")) from None

    def _refused(self, error: MCPError) -> ToolFailure:
        is_closed = error.code == CONNECTION_CLOSED and str(error) == "Connection closed"
        if is_closed or self._link.fault is not None:
            self.retire()
            return ToolFailure(
                "server_ended", self.hidden(f"{self._named} ended: {self._link.fault or _error_line(error)}")
            )
        details = {"code": error.code, "data": self.hidden(error.error.data)}
        return ToolFailure("server_error", self.hidden(f"{self._named}: {_error_line(error)}"), details)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.open_calls += 1
        try:
            yield
        finally:
            self.open_calls -= 1
            if self._is_retired and not self.open_calls:
                self._closing.set()

    @property
    def _session(self) -> Any:
        if self._client is None:
            raise ToolFailure("server_ended", self.hidden(f"{self._named} ended: {self._link.fault or 'closed'}"))
        return self._client.session

    def retire(self) -> None:
        """Take no further calls, and close when those that are open have ended: nothing goes on that nobody awaits."""
        self._is_retired = True
        if not self.open_calls:
            self._closing.set()

    def abandon(self) -> None:
        """Retire, and let a process have no time to end by itself: it works on what nobody awaits."""
        self._link.is_abandoned = True
        self.retire()

    async def ended(self) -> None:
        """Wait until nothing of the connection is left."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        self._is_retired = True
        self._closing.set()
        if self._task is None:
            return
        if not self._ready.done():
            self._task.cancel()
        await self.ended()

    @property
    def _named(self) -> str:
        return f"the MCP server {self.server.name}"

    def hidden(self, value: Any) -> Any:
        """A value from the server without traces of the keys that it was given."""
        return KeyTraces(self._link.secrets).hidden_in_value(value)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _error_line(error: BaseException) -> str:
    """An error in a line: what a server wrote is cut."""
    return " ".join(str(error).split())[:1000] or type(error).__name__
