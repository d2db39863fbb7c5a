"""What the configuration says of an MCP server, and what of its own words a person has seen.

Each definition of a tool is pinned by its hash. A command that fetches its server (`uvx PACKAGE`,
`npx PACKAGE`) is given what that needs.
"""

from __future__ import annotations

import configparser
import difflib
import hashlib
import os
import re
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from weft.kernel.contents import dumps
from weft.kernel.errors import InvalidInput, NoCanonicalForm, quoted
from weft.kernel.permission_subjects import endpoints_of
from weft.runtime.egress.credentials import Variable, origin_of
from weft.runtime.sandbox.profiles import SandboxProfile, parse_profile
from weft.runtime.sandbox.sandbox_plan import named_caches

# --- What the user's configuration says of an MCP server: how it is reached, how it is confined, what it is trusted
# with.

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


# --- Servers whose command fetches them: `uvx PACKAGE`, `npx PACKAGE` and the longer forms of these.

FETCH_SECONDS = 300.0
"""So long the first start may take, which fetches."""
_LARGEST_FILE_BYTES = 256 * 1024
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


class PackageIndex(StrEnum):
    PYPI = "PyPI"
    NPM = "npm"


class _IndexHosts(Struct, frozen=True):
    hosts: tuple[str, ...]
    variable: str
    """The variable that names another index to the programs that fetch."""


_USUAL = {
    PackageIndex.PYPI: _IndexHosts(("pypi.org", "files.pythonhosted.org"), "UV_DEFAULT_INDEX"),
    PackageIndex.NPM: _IndexHosts(("registry.npmjs.org",), "npm_config_registry"),
}
_PROGRAMS: dict[str, tuple[PackageIndex, tuple[tuple[str, ...], ...]]] = {
    "uvx": (PackageIndex.PYPI, ((),)),
    "uv": (PackageIndex.PYPI, (("tool", "run"), ("x",))),
    "npx": (PackageIndex.NPM, ((),)),
    "npm": (PackageIndex.NPM, (("exec",), ("x",))),
}
"""Programs that fetch what they run, each with the first words of the commands that do."""
INSTALLERS = {
    "uvx": "uv", "uv": "uv", "npx": "Node.js", "npm": "Node.js", "node": "Node.js", "python": "Python",
    "python3": "Python", "deno": "Deno", "bun": "Bun", "bunx": "Bun", "docker": "Docker", "pipx": "pipx",
}  # fmt: skip
"""What people install to have a program."""


def cache_name(server: McpServer) -> str:
    """By which the caches of a server are found again. They are its own: no other server, nor any command of an agent,
    writes what it will start."""
    return f"mcp-server {server.identity}"


def package_caches(server: McpServer, caches: Path | None) -> Path | None:
    """Where a server's packages lie once they were fetched, beneath a person's caches for the sandbox."""
    return None if caches is None else named_caches(caches, cache_name(server))


def has_packages(server: McpServer, caches: Path | None) -> bool:
    folder = package_caches(server, caches)
    return folder is not None and folder.is_dir()


def remove_packages(server: McpServer, caches: Path | None) -> None:
    """They are fetched again where a person agrees."""
    folder = package_caches(server, caches)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


class PackageUse(Struct, frozen=True, kw_only=True):
    """How a server is started that fetches its packages, or has fetched them."""

    profile: SandboxProfile
    variables: dict[str, str]
    is_fetching: bool


def package_use(server: McpServer, caches: Path | None, *, may_fetch: bool) -> PackageUse | None:
    """None for a server that fetches nothing. `may_fetch`: a person agreed. Raises InvalidInput where the packages are
    not here and nobody agreed to fetch them."""
    settings = server.transport
    if isinstance(settings, HttpServer) or settings.packages is None:
        return None
    index = package_index((settings.command, *settings.args))
    is_fetching = not has_packages(server, caches)
    if index is None:
        raise InvalidInput(f"the command of {server.name} fetches no packages that are known of", "add it again")
    if is_fetching and not may_fetch:
        raise InvalidInput(
            f"the packages of the server {server.name} are not here: they were not fetched yet, or were removed",
            "approve it again, which asks whether it may fetch them",
        )
    is_online = is_fetching or bool(settings.sandbox.endpoints)
    return PackageUse(
        profile=settings.first_sandbox if is_fetching else settings.sandbox,
        variables=fetch_variables(index, settings.packages, is_online=is_online),
        is_fetching=is_fetching,
    )


def package_index(words: Sequence[str]) -> PackageIndex | None:
    """Where the packages come from that a command fetches; None: it fetches none that is known of."""
    index, beginnings = _PROGRAMS.get(os.path.basename(words[0]), (None, ()))
    following = tuple(words[1:])
    return index if any(following[: len(beginning)] == beginning for beginning in beginnings) else None


def package_source(index: PackageIndex, variable: Variable) -> PackageSource:
    """The hosts that a first start reaches: of the usual index, or of the one that the configuration of pip, uv or npm
    on this machine names. Raises InvalidInput for an index that wants a key: the sandbox has none."""
    named = next(filter(None, _named_indexes(index, variable)), None)
    if named is None:
        return PackageSource(hosts=_USUAL[index].hosts)
    url = urlsplit(named)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise InvalidInput(
            f"the package index {quoted(_without_key(named), 200)} is no address of the web",
            "install the server yourself, and add it with the whole path of its program",
        )
    if url.username or url.password:
        raise InvalidInput(
            f"the package index {_without_key(named)} wants a key, which no server in the sandbox is given",
            "install the server yourself, and add it with the whole path of its program",
        )
    host = url.hostname if url.port in (None, 80, 443) else f"{url.hostname}:{url.port}"
    return PackageSource(hosts=(host,), index=named)


def _without_key(address: str) -> str:
    return re.sub(r"//[^/@]*@", "//", address)


def fetch_variables(index: PackageIndex, source: PackageSource, *, is_online: bool) -> dict[str, str]:
    """What tells the programs that fetch which index to use, and whether it can be reached."""
    variables = {_USUAL[index].variable: source.index} if source.index is not None else {}
    if index is PackageIndex.PYPI:
        variables |= {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1"}
        # the system's certificates are shown only to what has hosts, and uv does not start without them
        return {**variables, **({"UV_SYSTEM_CERTS": "true"} if is_online else {"UV_OFFLINE": "1"})}
    variables |= {"npm_config_update_notifier": "false", "npm_config_audit": "false", "npm_config_fund": "false"}
    if not is_online:
        return {**variables, "npm_config_offline": "true"}
    return {**variables, **({"NODE_EXTRA_CA_CERTS": _CERTIFICATES} if os.path.exists(_CERTIFICATES) else {})}


def _named_indexes(index: PackageIndex, variable: Variable) -> Iterator[str | None]:
    """What this machine's configuration names, in the order in which it counts."""
    home = variable("HOME") or ""
    folders = [Path(home)] if home.startswith("/") else []
    if index is PackageIndex.NPM:
        yield variable("npm_config_registry")
        yield variable("NPM_CONFIG_REGISTRY")
        for file in (*(folder / ".npmrc" for folder in folders), Path("/etc/npmrc")):
            yield _npm_registry(_text_of(file))
        return
    yield variable("UV_DEFAULT_INDEX")
    yield variable("UV_INDEX_URL")
    for file in (*(folder / ".config/uv/uv.toml" for folder in folders), Path("/etc/uv/uv.toml")):
        yield _uv_index(_text_of(file))
    yield variable("PIP_INDEX_URL")
    pip_files = [folder / name for folder in folders for name in (".config/pip/pip.conf", ".pip/pip.conf")]
    for file in (*pip_files, Path("/etc/pip.conf")):
        yield _pip_index(_text_of(file))


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_LARGEST_FILE_BYTES).decode(errors="replace")
    except OSError:  # most people have none of them
        return ""


def _npm_registry(text: str) -> str | None:
    matches = re.findall(r"(?m)^[ \t]*registry[ \t]*=[ \t]*(\S+)[ \t]*$", text)
    return matches[-1].strip("\"'") if matches else None


def _uv_index(text: str) -> str | None:
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    indexes = document.get("index")
    default = [
        one.get("url")
        for one in (indexes if isinstance(indexes, list) else [])
        if isinstance(one, dict) and one.get("default") is True
    ]
    return next((url for url in (*default, document.get("index-url")) if isinstance(url, str)), None)


def _pip_index(text: str) -> str | None:
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return None
    return parser.get("global", "index-url", fallback=None)


# --- What a server says of its tools, and what of that a person has seen: each definition is pinned by its hash.

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


# --- The files that a server is started from: whoever changes them has what the server has.

_PROGRAM_ENDINGS = frozenset(
    ".py .pyz .pyw .js .mjs .cjs .jsx .ts .mts .cts .tsx .rb .pl .php .lua .sh .bash .zsh .fish .ps1 .jar .wasm".split()
)
_ENVIRONMENT_FILE = "pyvenv.cfg"
_PACKAGE_FOLDER = "node_modules"
_SCRIPT_SIGN = b"#!"


def program_places(server: McpServer) -> tuple[str, ...]:
    """The real paths of what a server is started from: its command and the scripts among its arguments, each with the
    folder that it lies in and its environment, and the folders that it is said to be installed in. Arguments of another
    kind are what it works on."""
    settings = server.transport
    if not isinstance(settings, CommandServer):
        return ()
    folder = settings.folder or "/"
    command, *arguments = (os.path.join(folder, word) for word in (settings.command, *settings.args))
    programs = [command] if "/" in settings.command else []
    programs += filter(is_script, arguments)
    places = [place for program in programs for place in _places_of(program)]
    return tuple(dict.fromkeys(map(os.path.realpath, (*places, *settings.readable))))


def is_script(path: str) -> bool:
    """Whether a file is executed, or read by an interpreter, by its name, its mode or its first bytes."""
    if not os.path.isfile(path):
        return False
    if os.path.splitext(path)[1].lower() in _PROGRAM_ENDINGS or os.access(path, os.X_OK):
        return True
    try:
        with open(path, "rb") as file:
            return file.read(len(_SCRIPT_SIGN)) == _SCRIPT_SIGN
    except OSError:  # it cannot be read, so it is no script of theirs
        return False


def _places_of(program: str) -> Iterator[str]:
    """The program is where a link leads, and the environment around the link is its own."""
    for path in dict.fromkeys((os.path.normpath(program), os.path.realpath(program))):
        yield path
        above = os.path.dirname(path)
        yield above
        if os.path.isfile(os.path.join(os.path.dirname(above), _ENVIRONMENT_FILE)):
            yield os.path.dirname(above)
        parts = path.split("/")
        if _PACKAGE_FOLDER in parts:
            yield "/".join(parts[: parts.index(_PACKAGE_FOLDER) + 1])
