"""Answers about tools, toolsets and turns that work with them; about MCP servers; the answer
of `sandbox run`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from weft.runtime.sandbox.toolchains import HiddenProgram, ToolchainRow
from weft.runtime.tools.mcp_server_settings import DefinitionState, McpServer
from weft.surfaces.wire.answers import SentMessage

# --- Answers about tools, toolsets, and turns that work with them.


class WatchedCall(Struct, frozen=True, kw_only=True):
    """A tool call of a turn that was waited for. `about` is what it is used on, for reading; `outcome` is `ok`,
    `denied` or the code of an error, and null where it still waits."""

    tool: str
    about: str
    decision: str | None = None
    by: str | None = None
    outcome: str | None = None
    error: str | None = None


class AgentRun(SentMessage, frozen=True, kw_only=True):
    """`agent run`: the last message of the work and its answer, as `send` tells them, with the task and the tool calls
    of its turns. `reason` says why the task failed."""

    workspace: str | None
    toolset: str | None
    calls: tuple[WatchedCall, ...]
    task: str
    task_state: str
    turns: int
    reason: str | None = None


class ListedToolset(Struct, frozen=True, kw_only=True):
    """`toolset`: what a turn that names it may use at most. `allow` is null where every tool is allowed; `sandbox` is
    the profile that its tools run in, as far as the toolset decides it."""

    name: str
    description: str
    is_built_in: bool
    allow: tuple[str, ...] | None
    deny: tuple[str, ...]
    sandbox: str
    version: int | None
    state: str | None


class OfferedTool(Struct, frozen=True, kw_only=True):
    """A tool that a turn could have. `source` is `built in`, `code` or the name of an MCP server; `use` says what the
    permissions leave of it: `all`, `some` or `none`. With `none` the model is not offered it."""

    name: str
    source: str
    is_read_only: bool
    use: str
    allow: tuple[str, ...]
    deny: tuple[str, ...]


class OfferedTools(Struct, frozen=True, kw_only=True):
    """`tools`: what the next turn of an agent or a session would have. Without a toolset it would have none of them."""

    agent: str
    session: str | None
    workspace: str | None
    toolset: str | None
    sandbox: str
    tools: tuple[OfferedTool, ...]
    troubles: dict[str, str]
    """MCP servers that could not be used, and why."""


# --- What `weft mcp` answers.


class ListedServer(Struct, frozen=True, kw_only=True):
    """`mcp list`: a server, and how many of its tools are approved."""

    server: McpServer
    approved: int


class ListedTool(Struct, frozen=True, kw_only=True):
    """`mcp tools`: a tool of a server as it is defined now. `digest` is null where it is defined no more;
    `difference` is what changed since it was approved, as lines of JSON."""

    name: str
    state: DefinitionState
    digest: str | None
    description: str
    difference: str


class ApprovedTools(Struct, frozen=True, kw_only=True):
    """`mcp add`, `approve`: the tools of a server that may be used now, by their names."""

    server: str
    tools: tuple[str, ...]


# --- The JSON form of a command that ran in the sandbox.


class SandboxRun(Struct, frozen=True, kw_only=True, rename={"plan_digest": "bound"}):
    """`sandbox run`: what was executed, under which profile, and what came of it as the tool `shell` tells it. `error`
    is set where a limit ended the command. `toolchains` are those of the home folder that it was shown, and
    `hidden_programs` those to which the workspace leads and that it was not."""

    argv: Sequence[str]
    cwd: str
    profile: str
    granted_by: str | None
    plan_digest: str
    files: Mapping[str, str]
    result: Mapping[str, Any]
    error: str | None
    toolchains: Sequence[ToolchainRow] = ()
    hidden_programs: Sequence[HiddenProgram] = ()
