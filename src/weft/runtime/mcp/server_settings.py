"""What the user's configuration says of an MCP server: how it is reached, how it is confined, what it is trusted with.

Commands, URLs and names of variables are the user's alone and stand in no ledger. Values of variables and keys stand
nowhere: they are read when a server is started. A server is identified by the digest of all that decides what it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import msgspec
from msgspec import Struct

from weft.kernel.contents import dumps
from weft.kernel.errors import InvalidInput, quoted
from weft.kernel.permission_subjects import endpoints_of
from weft.runtime.egress.credentials import origin_of
from weft.runtime.sandbox.profiles import SandboxProfile, parse_profile

_is_name = re.compile(r"[a-z0-9](?:[a-z0-9]|-(?!-)){0,30}(?<!-)").fullmatch
_is_variable = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}").fullmatch
_is_header = re.compile(r"[A-Za-z0-9-]{1,64}").fullmatch
LONGEST_CALL_SECONDS = 3600.0


class VariableSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the value of a variable is found: a variable of the user's environment, or a credential."""

    env: str | None = None
    credential: str | None = None


class PackageSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the packages come from that a command such as `uvx` or `npx` fetches."""

    hosts: tuple[str, ...]
    """What the first start may reach, beside what the profile grants. Later starts reach none of them."""
    index: str | None = None
    """The address of the index, where it is not the usual one."""


class CommandServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="stdio"):
    """A server that is started here, and spoken with over its standard input and output."""

    command: str
    args: tuple[str, ...] = ()
    variables: dict[str, VariableSource] = {}
    folder: str | None = None
    """Where it starts. It writes there unless its profile says otherwise."""
    readable: tuple[str, ...] = ()
    """What it is shown of the user's files beside its folder: the folders that it is installed in."""
    profile: str = "workspace"
    """How it is confined, as `SandboxProfile` writes it."""
    granted_by: str | None = None
    """The person who granted the profile `none`."""
    packages: PackageSource | None = None
    """Where its first start fetches what the command names; None: it fetches nothing."""

    @property
    def sandbox(self) -> SandboxProfile:
        """Raises InvalidInput where the text names no profile, or nobody granted that there is none."""
        return parse_profile(self.profile, granted_by=self.granted_by)

    @property
    def first_sandbox(self) -> SandboxProfile:
        """Of the start that fetches its packages."""
        if self.packages is None:
            return self.sandbox
        endpoints = self.sandbox.endpoints | endpoints_of(self.packages.hosts)
        return SandboxProfile(files=self.sandbox.files, endpoints=endpoints, granted_by=self.granted_by)


class HttpServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="http"):
    """A server that is reached over streamable HTTP."""

    url: str
    credential: str | None = None
    header: str = "authorization"
    """Where the key is put; `authorization` has `Bearer` before it."""
    allow_private: bool = False


class McpServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server of the user's configuration."""

    name: str
    transport: CommandServer | HttpServer
    is_enabled: bool = True
    trusts_hints: bool = False
    """Whether what the server says of its tools (read-only, idempotent) is believed."""
    call_seconds: float = 120.0
    start_seconds: float = 60.0
    subscriptions: tuple[str, ...] = ()
    """The URIs of resources whose changes the server is asked to tell."""

    @property
    def identity(self) -> str:
        """The digest of everything that decides what is spoken with, without what can be switched at any time."""
        fields = msgspec.to_builtins(self)
        for name in ("is_enabled", "call_seconds", "start_seconds"):
            del fields[name]
        if fields["transport"].get("packages") is None:  # so what was approved before there was this field stays so
            fields["transport"].pop("packages", None)
        return hashlib.sha256(dumps(fields)).hexdigest()

    @property
    def credentials(self) -> tuple[str, ...]:
        """The ids of the credentials that it is given."""
        if isinstance(self.transport, HttpServer):
            return () if self.transport.credential is None else (self.transport.credential,)
        sources = self.transport.variables.values()
        return tuple(dict.fromkeys(source.credential for source in sources if source.credential is not None))


def checked_server(server: McpServer) -> McpServer:
    """The server, or what is wrong with it."""
    if not _is_name(server.name):
        raise InvalidInput(
            f"the name of a server is {quoted(server.name, 40)}",
            "small letters, digits and single hyphens between them, at most 31",
        )
    for what, seconds in (("call", server.call_seconds), ("start", server.start_seconds)):
        if not 0 < seconds <= LONGEST_CALL_SECONDS:
            raise InvalidInput(f"{what}_seconds of {server.name} is {seconds}", "at most an hour")
    if isinstance(server.transport, HttpServer):
        _check_http(server.transport)
    else:
        _check_command(server.transport)
    return server


def _check_http(transport: HttpServer) -> None:
    origin_of(transport.url)
    if "#" in transport.url:
        raise InvalidInput("the URL of a server has a fragment", "give it without #")
    if not _is_header(transport.header):
        raise InvalidInput(f"{quoted(transport.header, 40)} is no name of a header", "letters, digits and hyphens")


def _check_command(transport: CommandServer) -> None:
    words = (transport.command, *transport.args, *transport.readable, transport.folder or "")
    if not transport.command or any("\0" in word for word in words):
        raise InvalidInput("a command without words, or with a NUL in them", "give a program and its arguments")
    for place in (*transport.readable, *(() if transport.folder is None else (transport.folder,))):
        if not place.startswith("/"):
            raise InvalidInput(f"the path {quoted(place)} does not begin at the root", "give whole paths")
    if transport.first_sandbox.is_unconfined and transport.packages is not None:
        raise InvalidInput("a server without a sandbox has hosts for its first start", "leave them out")
    for name, source in transport.variables.items():
        if not _is_variable(name) or (source.env is not None and not _is_variable(source.env)):
            raise InvalidInput(f"{quoted(name, 40)} is no name of a variable", "name the variable, not its value")
        if (source.env is None) == (source.credential is None):
            raise InvalidInput(f"the variable {name} has no single source", "name a variable or a credential")


def ensure_distinct(servers: Iterable[McpServer]) -> None:
    """One name, one server: nothing that one server offers can stand in for what another does."""
    names: set[str] = set()
    for server in servers:
        if server.name in names:
            raise InvalidInput(f"two servers are named {server.name}", "rename or remove one of them")
        names.add(server.name)


def variable_source(text: str) -> tuple[str, VariableSource]:
    """`NAME`, `NAME=env:OTHER` or `NAME=credential:ID`. A value is never written down."""
    name, separator, source = text.partition("=")
    kind, colon, found = source.partition(":")
    if not separator:
        return name, VariableSource(env=name)
    if colon and found and kind in ("env", "credential"):
        return name, VariableSource(env=found) if kind == "env" else VariableSource(credential=found)
    raise InvalidInput(
        f"the variable {quoted(name, 40)} is given a value", "write NAME, NAME=env:OTHER or NAME=credential:ID"
    )
