"""Toolsets: named lists of tool patterns with the sandbox of their tools, and what a turn may do.

Limits come from several layers, which only narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import reduce
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from weft.kernel.authority import (
    EVERYTHING,
    TOOL_PREFIX,
    Authority,
    Rights,
    SandboxFiles,
    covers,
    pattern_matcher,
    rights,
    split_tool_rule,
    strictest_files,
)
from weft.kernel.authority import Layer as RightsLayer
from weft.kernel.enums import ProgramKind
from weft.kernel.errors import Action, InvalidInput, NotFound, quoted
from weft.kernel.permission_subjects import ANY_HOST, HostEndpoint, common_endpoints, endpoints_of, host_texts
from weft.programs.program_records import Program
from weft.programs.program_writer import ensure_own
from weft.programs.programs import Programs
from weft.runtime.egress.execution_context import ExecutionContext
from weft.runtime.sandbox.profiles import NO_SANDBOX, SandboxProfile

# --- What a turn may do: limits of several layers, which only narrow.

BESIDE_TOOLS = ("model:*", "provider:*", "code:*", "human:*")
"""What a turn may do whatever its tools are."""


class SandboxLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the sandbox of a turn's tools leaves open. What is None is limited by nobody."""

    files: SandboxFiles | None = None
    network: bool | None = None
    hosts: tuple[str, ...] | None = None
    """The hosts that may be reached; without them an open network is every public host."""
    only_narrows: bool = False
    """Whether it opens nothing: hosts that it names are reached only where another layer opens them, too."""

    def narrowed(self, other: SandboxLimits) -> SandboxLimits:
        """What these leave, and of it only what the other ones name."""
        reachable = endpoints_of((ANY_HOST,)) if self._is_open else self._allowed_endpoints()
        common = common_endpoints(reachable, other._allowed_endpoints())
        files = strictest_files((self.files, other.files)) or SandboxFiles.WORKSPACE
        hosts = None if not common or endpoints_of((ANY_HOST,)) == common else host_texts(common)
        return SandboxLimits(files=files, network=bool(common), hosts=hosts)

    def profile(self, *, granted_by: str | None = None) -> SandboxProfile:
        """The one profile that leaves this and no more. `none` is meant where files are `everything` and nothing limits
        the network; it needs the person who granted it."""
        if self._is_open:
            return SandboxProfile(files=SandboxFiles.EVERYTHING, granted_by=granted_by)
        is_read_only = self.files is SandboxFiles.READ_ONLY
        return SandboxProfile(
            files=SandboxFiles.READ_ONLY if is_read_only else SandboxFiles.WORKSPACE,
            endpoints=self._allowed_endpoints(),
        )

    @property
    def text(self) -> str:
        """The profile's name; that of `none` also where nobody granted it."""
        return NO_SANDBOX if self._is_open else str(self.profile())

    @property
    def _is_open(self) -> bool:
        """Whether nothing is confined."""
        return self.files is SandboxFiles.EVERYTHING and self.network is not False and self.hosts is None

    def _allowed_endpoints(self) -> frozenset[HostEndpoint]:
        if self.network is False or (self.network is None and self.hosts is None):
            return frozenset()
        return endpoints_of((ANY_HOST,) if self.hosts is None else self.hosts)


def sandbox_config(profile: SandboxProfile) -> dict[str, Any]:
    """A profile as configurations have it; `SandboxLimits` reads the same profile from it."""
    config: dict[str, Any] = {"files": profile.files.value}
    if profile.is_unconfined:
        return config
    config["network"] = bool(profile.endpoints)
    if profile.endpoints and ANY_HOST not in profile.hosts:
        config["hosts"] = list(profile.hosts)
    return config


class PermissionLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one layer leaves of everything. `allow` and `credentials` None: all of them."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    credentials: tuple[str, ...] | None = None
    sandbox: SandboxLimits = SandboxLimits()

    def beside(self, tools: Iterable[str]) -> PermissionLimits:
        """The same, with these tools beside those that it allows."""
        names = tuple(tools)
        return self if self.allow is None or not names else replace(self, allow=(*self.allow, *names))

    def rights(self) -> Rights:
        """The same limits on tools as rights of an execution context; without any, everything."""
        if self.allow is None and not self.deny:
            return EVERYTHING
        allowed = ("*",) if self.allow is None else self.allow
        return rights(
            [*BESIDE_TOOLS, *(TOOL_PREFIX + name for name in allowed)], [TOOL_PREFIX + name for name in self.deny]
        )


NO_LIMITS = PermissionLimits()


def limits_of_rights(layer: RightsLayer) -> PermissionLimits:
    """What one layer of an authority's rights leaves of tools."""
    allow, deny = _tool_patterns(layer.allow), _tool_patterns(layer.deny)
    return PermissionLimits(allow=None if "*" in allow else allow, deny=deny)


def _tool_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """The patterns for tools among those of rights; `*` stands for every right."""
    return tuple(
        pattern.removeprefix(TOOL_PREFIX) for pattern in patterns if pattern == "*" or pattern.startswith(TOOL_PREFIX)
    )


def limits_of(permissions: Any) -> PermissionLimits:
    """The limits in the `permissions` of a checked configuration."""
    fields = permissions if isinstance(permissions, dict) else {}
    tools, sandbox = fields.get("tools"), fields.get("sandbox")
    lists = tools if isinstance(tools, dict) else {}
    levels = sandbox if isinstance(sandbox, dict) else {}
    return msgspec.convert(
        {
            "allow": lists.get("allow"),
            "deny": lists.get("deny", ()),
            "credentials": fields.get("credentials"),
            "sandbox": {name: levels.get(name) for name in ("files", "network", "hosts")},
        },
        PermissionLimits,
    )


def common_tool_patterns(one: tuple[str, ...] | None, other: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Patterns for what both lists allow; None, no list, allows everything. Of two patterns that cover each other in
    part, nothing is left."""
    if one is None or other is None:
        return other if one is None else one
    within = [pattern for pattern in one if any(_is_within(pattern, wider) for wider in other)]
    return tuple(dict.fromkeys([*within, *(p for p in other if any(_is_within(p, wider) for wider in one))]))


def _is_within(pattern: str, wider: str) -> bool:
    """Whether every use that a pattern allows is surely one that the other one does."""
    if pattern == wider:
        return True
    name, _ = split_tool_rule(pattern) or ("", None)
    is_comparable = "?" not in wider or not {"*", "?"} & set(name)  # else `a*` would lie within `a?`
    return is_comparable and covers(TOOL_PREFIX + wider, TOOL_PREFIX + name) is True


def checked_tool_patterns(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Patterns such as `Bash`, `Bash(rm *)` or `mcp__*`. Raises InvalidInput where one fits no tool's name."""
    for pattern in patterns:
        if split_tool_rule(pattern) is None:
            raise InvalidInput(f"{quoted(pattern)} is no pattern for tools", "give NAME, NAME* or NAME(PATTERN)")
    return tuple(dict.fromkeys(patterns))


def _common_hosts(lists: Iterable[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """The hosts that every layer with a list of them names; None where no layer has one."""
    layers = [endpoints_of(hosts) for hosts in lists if hosts is not None]
    if not layers:
        return None
    common: frozenset[HostEndpoint] = reduce(common_endpoints, layers)
    return host_texts(common)


class LimitingLayer(Struct, frozen=True):
    """The limits of one layer, with its name and where they are written."""

    layer: str
    source: str
    limits: PermissionLimits


class GrantedPermissions(Struct, frozen=True):
    """What all layers together leave. Without any layer, everything."""

    layers: tuple[LimitingLayer, ...] = ()

    def allows(self, tool: str, subject: str | None = None) -> bool:
        """`subject` is what the tool is used on: a command, a path, a URL."""
        return self.rights().allows(TOOL_PREFIX + tool, subject)

    def rights(self) -> Rights:
        granted = EVERYTHING
        for layer in self.layers:
            granted = granted.narrowed(layer.limits.rights())
        return granted

    @property
    def credentials(self) -> frozenset[str] | None:
        """The credentials that every layer with a list of them names; None where no layer has one."""
        lists = [set(layer.limits.credentials) for layer in self.layers if layer.limits.credentials is not None]
        return frozenset(set.intersection(*lists)) if lists else None

    @property
    def sandbox(self) -> SandboxLimits:
        sandboxes = [layer.limits.sandbox for layer in self.layers]
        opening = [sandbox for sandbox in sandboxes if not sandbox.only_narrows]
        networks = [sandbox.network for sandbox in opening]
        left = SandboxLimits(
            files=strictest_files(sandbox.files for sandbox in opening),
            network=False if False in networks else True if True in networks else None,
            hosts=_common_hosts(sandbox.hosts for sandbox in opening),
        )
        return reduce(SandboxLimits.narrowed, (sandbox for sandbox in sandboxes if sandbox.only_narrows), left)

    def narrowed(self, context: ExecutionContext) -> ExecutionContext:
        """The same principals, with what these permissions leave of their rights and credentials."""
        return context.child(rights=self.rights(), credentials=self.credentials)

    def record(self) -> dict[str, Any]:
        """The JSON of a turn's `permissions_granted`, which the audit reads. No layers: nothing was limited."""
        credentials, sandbox = self.credentials, msgspec.to_builtins(self.sandbox)
        return {
            "layers": [_tool_record(layer) for layer in self.layers if layer.limits.rights() is not EVERYTHING],
            **({} if credentials is None else {"credentials": sorted(credentials)}),
            **({"sandbox": sandbox} if sandbox else {}),
        }


def _tool_record(layer: LimitingLayer) -> Mapping[str, Any]:
    allow = {} if layer.limits.allow is None else {"allow": list(layer.limits.allow)}
    deny = {"deny": list(layer.limits.deny)} if layer.limits.deny else {}
    return {"layer": layer.layer, "source": layer.source, **allow, **deny}


# --- Toolsets: named lists of tool patterns with the sandbox that their tools run in.

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
    return PermittedUse(extent, _patterns_without_prefix(allow), _patterns_without_prefix(deny))


def _patterns_without_prefix(patterns: Iterable[str]) -> tuple[str, ...]:
    return tuple(pattern.removeprefix(TOOL_PREFIX) for pattern in patterns)


def is_offered(authority: Authority, tool: str) -> bool:
    """Whether some use of a tool may be allowed: what is refused altogether, a model is not told of."""
    right = TOOL_PREFIX + tool
    return all(
        any(covers(pattern, right) is not False for pattern in layer.allow)
        and not any(covers(pattern, right) for pattern in layer.deny)
        for layer in authority.rights.layers
    )


# --- Why a turn does not have tools that somebody may expect.


class WithheldBy(StrEnum):
    """What a turn has tools withheld by. A surface says of each how it is changed."""

    EMBEDDED_MODEL = "embedded_model"
    UNATTENDED = "unattended"
    NOT_THE_OWNERS = "not_the_owners"
    NO_FOLDER = "no_folder"
    SANDBOX = "sandbox"
    NOTHING_FITS = "nothing_fits"


class WithheldTools(Struct, frozen=True, omit_defaults=True):
    """Tools that a turn does not have though its agent is allowed them or its toolset lists them, and why. Without
    names it is all of them."""

    by: WithheldBy
    why: str
    agent: str
    tools: tuple[str, ...] = ()
