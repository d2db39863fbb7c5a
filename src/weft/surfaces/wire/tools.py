"""Answers about tools, toolsets, and turns that work with them."""

from __future__ import annotations

from msgspec import Struct

from weft.surfaces.wire.broker import SentMessage


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
