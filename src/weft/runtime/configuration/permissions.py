"""What a turn may do: limits of several layers, which only narrow.

A tool may be used where every layer that lists allowed tools allows it and no layer denies it. Credentials are those
that every layer with a list of them names. Of the sandbox each part is the strictest that a layer asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.authority import (
    EVERYTHING,
    TOOL_PREFIX,
    Rights,
    SandboxFiles,
    rights,
    split_tool_rule,
    strictest_files,
)
from weft.kernel.authority import Layer as RightsLayer
from weft.kernel.errors import InvalidInput, quoted
from weft.kernel.permission_subjects import ANY_HOST, Endpoint, common_endpoints, endpoints_of, host_texts
from weft.runtime.context import ExecutionContext
from weft.runtime.sandbox.profiles import NO_SANDBOX, SandboxProfile

BESIDE_TOOLS = ("model:*", "provider:*", "code:*", "human:*")
"""What a turn may do whatever its tools are."""


class SandboxLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the sandbox of a turn's tools leaves open. What is None is limited by nobody."""

    files: SandboxFiles | None = None
    network: bool | None = None
    hosts: tuple[str, ...] | None = None
    """The hosts that may be reached; without them an open network is every public host."""

    def profile(self, *, granted_by: str | None = None) -> SandboxProfile:
        """The one profile that leaves this and no more. `none` is meant where files are `everything` and nothing limits
        the network; it needs the person who granted it."""
        is_network_limited = self.network is False or self.hosts is not None
        if self.files is SandboxFiles.EVERYTHING and not is_network_limited:
            return SandboxProfile(files=SandboxFiles.EVERYTHING, granted_by=granted_by)
        is_read_only = self.files is SandboxFiles.READ_ONLY
        return SandboxProfile(
            files=SandboxFiles.READ_ONLY if is_read_only else SandboxFiles.WORKSPACE, endpoints=self._endpoints()
        )

    @property
    def text(self) -> str:
        """The profile's name; that of `none` also where nobody granted it."""
        is_open = self.files is SandboxFiles.EVERYTHING and self.network is not False and self.hosts is None
        return NO_SANDBOX if is_open else str(self.profile())

    def _endpoints(self) -> frozenset[Endpoint]:
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
    common: frozenset[Endpoint] = reduce(common_endpoints, layers)
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
        networks = [layer.limits.sandbox.network for layer in self.layers]
        return SandboxLimits(
            files=strictest_files(layer.limits.sandbox.files for layer in self.layers),
            network=False if False in networks else True if True in networks else None,
            hosts=_common_hosts(layer.limits.sandbox.hosts for layer in self.layers),
        )

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
