"""What a server says of its tools, and what of that a person has seen: each definition is pinned by its hash.

A definition is what a model is told of a tool: a server that changes it changes what the model does. Only a definition
that equals the pinned one is offered; a changed or new one waits until a person approves it.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.contents import dumps
from weft.kernel.errors import InvalidInput, NoCanonicalForm, quoted

MOST_TOOLS = 512
LARGEST_DEFINITION_BYTES = 256 * 1024
LONGEST_NAME = 128
"""Of server, slash and tool: as long as a name in an event may be."""
_is_tool_name = re.compile(r"[A-Za-z0-9_./-]{1,128}").fullmatch


class ToolDefinition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tool as its server defines it."""

    name: str
    title: str | None = None
    description: str = ""
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(dumps(_fields(self))).hexdigest()

    def has_hint(self, name: str) -> bool:
        """What the server claims of the tool."""
        return self.annotations is not None and self.annotations.get(name) is True


class PinnedTools(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The definitions of one server that a person approved, for the server as it was configured then."""

    server: str
    identity: str
    tools: tuple[ToolDefinition, ...] = ()


class DefinitionState(StrEnum):
    """Whether a tool is defined as approved, otherwise, newly or no more."""

    APPROVED = "approved"
    CHANGED = "changed"
    NEW = "new"
    GONE = "gone"
    """Approved, but the server does not define it any more."""


class ComparedTool(Struct, frozen=True, kw_only=True):
    """A tool as it is defined now beside what was approved."""

    name: str
    state: DefinitionState
    digest: str | None
    definition: ToolDefinition | None = None
    approved: ToolDefinition | None = None

    @property
    def description(self) -> str:
        """What a model is, or was, told of it."""
        definition = self.definition or self.approved
        return "" if definition is None else definition.description

    @property
    def difference(self) -> str:
        """The lines that differ, as JSON. Whoever shows them escapes what a terminal would obey."""
        before, after = _lines(self.approved), _lines(self.definition)
        return "\n".join(difflib.unified_diff(before, after, "approved", "now", n=2, lineterm=""))


def checked_definitions(server: str, definitions: Sequence[ToolDefinition]) -> tuple[ToolDefinition, ...]:
    """The definitions of one listing, or what is wrong with it as a whole: what a name means must be certain."""
    if len(definitions) > MOST_TOOLS:
        raise InvalidInput(f"server {server} lists {len(definitions)} tools", f"at most {MOST_TOOLS} are taken")
    names: set[str] = set()
    for definition in definitions:
        name = definition.name
        if not _is_tool_name(name) or len(server) + 1 + len(name) > LONGEST_NAME:
            raise InvalidInput(
                f"server {server} names a tool {quoted(name, 60)}",
                f"letters, digits, _ . / and -, with the server's name at most {LONGEST_NAME}",
            )
        if name in names:
            raise InvalidInput(f"server {server} lists two tools named {name}", "none of its tools is used")
        names.add(name)
        try:
            size = len(dumps(_fields(definition)))
        except NoCanonicalForm as error:
            raise InvalidInput(f"the tool {name} of server {server} is not defined in JSON: {error}") from None
        if size > LARGEST_DEFINITION_BYTES:
            raise InvalidInput(
                f"the definition of {name} of server {server} has {size} bytes",
                f"at most {LARGEST_DEFINITION_BYTES} are taken",
            )
    return tuple(definitions)


def compared(
    identity: str, definitions: Iterable[ToolDefinition], pinned: PinnedTools | None
) -> tuple[ComparedTool, ...]:
    """Every tool that is defined or was approved. What was approved for another configuration counts as changed."""
    approved: Mapping[str, ToolDefinition] = {tool.name: tool for tool in (pinned.tools if pinned else ())}
    is_same_server = pinned is not None and pinned.identity == identity
    tools = [_compared(definition, approved.get(definition.name), is_same_server) for definition in definitions]
    names = {tool.name for tool in tools}
    gone = [
        ComparedTool(name=name, state=DefinitionState.GONE, digest=None, approved=definition)
        for name, definition in approved.items()
        if name not in names
    ]
    return (*tools, *gone)


def _compared(definition: ToolDefinition, approved: ToolDefinition | None, is_same_server: bool) -> ComparedTool:
    digest = definition.digest
    if approved is None:
        state = DefinitionState.NEW
    else:
        is_same = is_same_server and approved.digest == digest
        state = DefinitionState.APPROVED if is_same else DefinitionState.CHANGED
    return ComparedTool(name=definition.name, state=state, digest=digest, definition=definition, approved=approved)


def usable(tools: Iterable[ComparedTool]) -> dict[str, ToolDefinition]:
    """Those that a person approved as they are, by their names on the server."""
    return {
        tool.name: tool.definition
        for tool in tools
        if tool.state is DefinitionState.APPROVED and tool.definition is not None
    }


def definition_of(tool: Any) -> ToolDefinition:
    """A tool of the client library."""
    fields = tool.model_dump(by_alias=True, mode="json", exclude_none=True)
    return ToolDefinition(
        name=fields["name"],
        title=fields.get("title"),
        description=fields.get("description", ""),
        input_schema=fields.get("inputSchema", {}),
        output_schema=fields.get("outputSchema"),
        annotations=fields.get("annotations"),
    )


def _fields(definition: ToolDefinition | None) -> dict[str, Any]:
    return {} if definition is None else msgspec.to_builtins(definition)


def _lines(definition: ToolDefinition | None) -> list[str]:
    if definition is None:
        return []
    return msgspec.json.format(dumps(_fields(definition))).decode().split("\n")


def approve(
    server: str,
    identity: str,
    tools: Sequence[ComparedTool],
    pinned: PinnedTools | None = None,
    names: Sequence[str] | None = None,
) -> PinnedTools:
    """The pins after a person approved what differs: all of it, or the named tools. A changed tool that is not named
    keeps its old pin, and stays disabled, unless the configuration differs: then nothing that is not named stays."""
    known = {tool.name for tool in tools}
    for name in names or ():
        if name not in known:
            raise InvalidInput(f"server {server} has no tool {quoted(name)}", "name one that the server defines")
    is_same_server = pinned is not None and pinned.identity == identity
    pins: list[ToolDefinition | None] = []
    for tool in tools:
        if names is None or tool.name in names:
            pins.append(tool.definition)
        elif is_same_server:
            pins.append(tool.approved)
    return PinnedTools(server=server, identity=identity, tools=tuple(pin for pin in pins if pin is not None))
