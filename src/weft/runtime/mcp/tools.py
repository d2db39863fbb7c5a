"""A tool of an MCP server as a tool of the runtime: planned, approved and performed as every other.

Its name is that of the server, a slash and its name there, so that no server's tool can stand in for another's. A plan
names the server by the digest of its configuration, the definition by its hash, and the arguments. What a server claims
of its tools is believed only where the user's configuration says so.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from weft.kernel.contents import dumps
from weft.kernel.errors import InvalidInput, NoCanonicalForm
from weft.runtime.broker.tools import ToolCallContext
from weft.runtime.inference.settings import ToolSpec
from weft.runtime.mcp.definitions import ToolDefinition
from weft.runtime.mcp.server_settings import McpServer
from weft.runtime.tools.calls import CallPlan, ToolFailure, ToolOutput

if TYPE_CHECKING:
    from weft.runtime.mcp.connection import McpConnection

SEPARATOR = "/"


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
        from weft.runtime.mcp.results import output_of

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
        answer = await connection.call(name, exact["arguments"])
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
