"""Toolsets: named lists of tool patterns with the sandbox that their tools run in.

Three are built in; others are programs of the kind `toolset`. A turn has tools where its agent, its session or its
message names a toolset. A toolset only narrows what else is permitted.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from weft.kernel.authority import TOOL_PREFIX, Authority, SandboxFiles, covers, pattern_matcher, split_tool_rule
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import Action, NotFound
from weft.programs.foreign import ensure_own
from weft.programs.model import Program
from weft.programs.programs import Programs
from weft.runtime.configuration.permissions import PermissionLimits, SandboxLimits, limits_of

CODE = "code"
"""Before the names of code programs, as a server's name is before those of its tools."""
READING = ("read", "list", "glob", "grep", "read_result", "todo")

WORKERS = ("spawn", "await_workers", "message_worker")
BUILT_IN_TOOLS = (*READING, "write", "edit", "shell", "fetch_url", *WORKERS)


class Toolset(Struct, frozen=True, kw_only=True):
    """What a turn that names it may use at most."""

    name: str
    description: str
    limits: PermissionLimits
    workers: str | None = None
    """The toolset that workers of a turn with this one get; None: the same."""
    is_built_in: bool = False


BUILT_IN = {
    toolset.name: toolset
    for toolset in (
        Toolset(
            name="manager",
            description="reads, plans and has workers, whose toolset is `worker`; changes nothing itself",
            limits=PermissionLimits(
                allow=(*READING, "fetch_url", *WORKERS), sandbox=SandboxLimits(files=SandboxFiles.READ_ONLY)
            ),
            workers="worker",
            is_built_in=True,
        ),
        Toolset(
            name="worker",
            description="reads, changes files and runs commands in its workspace, without network",
            limits=PermissionLimits(
                allow=(*READING, "write", "edit", "shell", "code/*"),
                sandbox=SandboxLimits(files=SandboxFiles.WORKSPACE, network=False),
            ),
            is_built_in=True,
        ),
        Toolset(
            name="full",
            description="every tool that is configured, MCP servers included",
            limits=PermissionLimits(allow=("*",), sandbox=SandboxLimits(files=SandboxFiles.WORKSPACE)),
            is_built_in=True,
        ),
    )
}


def find_toolset(programs: Programs, name: str) -> Toolset:
    """Built in, or a program of this ledger. One that another ledger wrote counts once somebody takes it over."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    try:
        program = ensure_own(programs.get(name, ProgramKind.TOOLSET))
    except NotFound:
        raise NotFound("toolset", name, Action.LIST_TOOLSETS) from None
    return toolset_of(program)


def unknown_tools(patterns: Iterable[str], servers: Iterable[str]) -> list[str]:
    """The patterns that fit no tool that is built in, and no MCP server of these names."""
    sources = (CODE, *servers)

    def is_known(pattern: str) -> bool:
        name, _ = split_tool_rule(pattern) or ("", None)
        source, slash, _ = name.partition("/")
        fits = pattern_matcher(source)
        return any(map(fits, sources if slash else (*BUILT_IN_TOOLS, *sources)))

    return [pattern for pattern in patterns if not is_known(pattern)]


def toolset_of(program: Program) -> Toolset:
    """What a program of this kind says."""
    config = program.config if isinstance(program.config, dict) else {}
    description, workers = config.get("description"), config.get("workers")
    return Toolset(
        name=program.name,
        description=description if isinstance(description, str) else "",
        limits=limits_of(config),
        workers=workers if isinstance(workers, str) else None,
    )


class PermittedUse(Struct, frozen=True):
    """What permissions leave of a tool: `all`, `some` or `none` of its uses, and the patterns that say so."""

    extent: str
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


def permitted_use(authority: Authority, tool: str) -> PermittedUse:
    """`allow` and `deny` are the patterns that limit it to some uses, or refuse all of them."""
    right = TOOL_PREFIX + tool
    allow: dict[str, None] = {}
    deny: dict[str, None] = {}
    for layer in authority.rights.layers:
        if not any(covers(pattern, right) for pattern in layer.allow):
            allow |= dict.fromkeys(pattern for pattern in layer.allow if covers(pattern, right) is None)
        deny |= dict.fromkeys(pattern for pattern in layer.deny if covers(pattern, right) is not False)
    extent = "none" if not is_offered(authority, tool) else "some" if allow or deny else "all"
    return PermittedUse(extent, _tool_patterns(allow), _tool_patterns(deny))


def _tool_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    return tuple(pattern.removeprefix(TOOL_PREFIX) for pattern in patterns)


def is_offered(authority: Authority, tool: str) -> bool:
    """Whether some use of a tool may be allowed: what is refused altogether, a model is not told of."""
    right = TOOL_PREFIX + tool
    return all(
        any(covers(pattern, right) is not False for pattern in layer.allow)
        and not any(covers(pattern, right) for pattern in layer.deny)
        for layer in authority.rights.layers
    )
