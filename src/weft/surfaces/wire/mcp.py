"""What `weft mcp-server` answers."""

from __future__ import annotations

from msgspec import Struct

from weft.runtime.tools.mcp_server_settings import DefinitionState, McpServer


class ListedServer(Struct, frozen=True, kw_only=True):
    """`mcp-server list`: a server, and how many of its tools are approved."""

    server: McpServer
    approved: int


class ListedTool(Struct, frozen=True, kw_only=True):
    """`mcp-server tools`: a tool of a server as it is defined now. `digest` is null where it is defined no more;
    `difference` is what changed since it was approved, as lines of JSON."""

    name: str
    state: DefinitionState
    digest: str | None
    description: str
    difference: str


class ApprovedTools(Struct, frozen=True, kw_only=True):
    """`mcp-server add`, `approve`: the tools of a server that may be used now, by their names."""

    server: str
    tools: tuple[str, ...]
