"""`weft mcp-server`: the user's MCP servers, and what was approved of their tools."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from msgspec import Struct

from weft.kernel.errors import InvalidInput, NotFound
from weft.kernel.typed_names import shell_line, shell_word
from weft.runtime.tools.mcp_server_settings import McpServer, PinnedTools, checked_server, ensure_distinct
from weft.runtime.tools.mcp_servers import McpConfiguration
from weft.surfaces.cli.command_line import Call, ask, is_person_there
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.credentials import replace_json, sole_writer
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.user_files import configuration_folder
from weft.surfaces.plain_text import safe_lines
from weft.surfaces.wire.exchange_answers import Removed

if TYPE_CHECKING:
    from weft.runtime.tools.mcp_server_settings import ComparedTool
    from weft.surfaces.wire.tool_answers import ListedTool


# --- The user's MCP servers, and the definitions of their tools that were approved: two files beside the credentials.

SERVERS_FILE = "mcp-servers.json"
PINS_FILE = "mcp-pins.json"


class _ServerFile(Struct, forbid_unknown_fields=True):
    servers: tuple[McpServer, ...] = ()


class _PinFile(Struct, forbid_unknown_fields=True):
    pins: tuple[PinnedTools, ...] = ()


_File = TypeVar("_File", _ServerFile, _PinFile)


def load_mcp_servers() -> McpConfiguration:
    """For `McpServers`, which reads it again at every turn."""
    servers = tuple(map(checked_server, _loaded(SERVERS_FILE, _ServerFile).servers))
    ensure_distinct(servers)
    return McpConfiguration(servers=servers, pins=_loaded(PINS_FILE, _PinFile).pins)


def find_server(name: str) -> McpServer:
    server = next((server for server in load_mcp_servers().servers if server.name == name), None)
    if server is None:
        raise NotFound("MCP server", name)
    return server


def change_servers(change: Callable[[tuple[McpServer, ...]], tuple[McpServer, ...]]) -> None:
    """Read, change and put back, as one step. What was approved of servers that are gone is forgotten."""
    path = configuration_folder() / SERVERS_FILE
    with sole_writer(path):
        servers = change(load_mcp_servers().servers)
        ensure_distinct(servers)
        names = {server.name for server in servers}
        pins = _loaded(PINS_FILE, _PinFile).pins
        if any(pin.server not in names for pin in pins):
            replace_json(path.with_name(PINS_FILE), _PinFile(tuple(pin for pin in pins if pin.server in names)))
        replace_json(path, _ServerFile(servers))


def keep_pins(pinned: PinnedTools) -> None:
    """In place of what was approved of this server before."""
    folder = configuration_folder()
    with sole_writer(folder / SERVERS_FILE):
        pins = (pin for pin in _loaded(PINS_FILE, _PinFile).pins if pin.server != pinned.server)
        replace_json(folder / PINS_FILE, _PinFile((*pins, pinned)))


def _loaded(name: str, kind: type[_File]) -> _File:
    path: Path = configuration_folder() / name
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return kind()
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise InvalidInput(f"{path}: {error}", "mend the file, or remove it and add the servers again") from None


# --- `weft mcp-server`: servers whose tools agents may call, and what of them was approved.

ACTIONS = ("add", "list", "remove", "tools", "approve", "enable", "disable")


def complete_servers(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """A shell in the middle of a line wants names or nothing, never an error."""
    from weft.kernel.errors import WeftError

    try:
        return [server.name for server in load_mcp_servers().servers if server.name.startswith(incomplete)]
    except (WeftError, OSError):
        return []


@weft_command("mcp-server")
@click.argument("action", type=click.Choice(ACTIONS), default="list", metavar="[ACTION]")
@click.argument("name", required=False, shell_complete=complete_servers)
@click.argument("words", nargs=-1, metavar="[COMMAND... | TOOL...]")
@click.option("--url", metavar="URL", help="It is reached over HTTP, at this address.")
@click.option("--credential", metavar="ID", help="The key that is sent to the URL; see `weft credential`.")
@click.option("--header", metavar="NAME", help="Where the key is put. Default: authorization, as a bearer.")
@click.option("--allow-private", is_flag=True, help="The URL's name may lead to a private address.")
@click.option(
    "--variable",
    "variables",
    multiple=True,
    metavar="NAME[=SOURCE]",
    help="A variable that it gets: NAME, NAME=env:OTHER or NAME=credential:ID. Values are not kept.",
)
@click.option("--folder", metavar="DIR", help="Where it starts, and what it works on.")
@click.option("--readable", multiple=True, metavar="PATH", help="What it may read beside: where it is installed.")
@click.option("--profile", metavar="PROFILE", help="How it is confined: workspace, read-only, network:HOST,…")
@click.option(
    "--no-sandbox",
    is_flag=True,
    help="Run it without a sandbox, with your full access. It sees all your files and keys.",
)
@click.option("--trust-hints", is_flag=True, help="Trust what it says of which tools only read.")
@click.option("--subscribe", multiple=True, metavar="URI", help="A resource whose changes are recorded.")
@click.option("--call-seconds", type=float, metavar="SECONDS", help="How long a call may take. Default: 120.")
@click.option("--no-start", is_flag=True, help="Add it without starting it; `approve` it later.")
@click.option("--yes", is_flag=True, help="Approve, and let the first start fetch packages, without asking.")
def mcp_server_command(call: Call, action: str, name: str | None, words: tuple[str, ...], **options: Any) -> None:
    """Manage MCP servers, and approve their tools.

    ACTION is add, list, remove, tools, approve, enable or disable. `weft mcp-server add NAME -- COMMAND…` adds one that
    is started here, in a sandbox, and `--url` one elsewhere. Its tools are shown and pinned by their hashes: one that
    changes is not used until you `approve` it. Where COMMAND fetches what it runs, as `uvx` and `npx` do, you are asked
    whether the first start may; later ones have no network for it.
    """
    chosen = [option for option, value in options.items() if value]
    allowed = {"add": list(options), "approve": ["yes"]}.get(action, [])
    misplaced = [option for option in chosen if option not in allowed]
    if misplaced:
        name_of = {"variables": "variable"}.get(misplaced[0], misplaced[0])
        raise click.UsageError(f"{action} takes no --{name_of.replace('_', '-')}")
    if action not in ("list", "tools") and name is None:
        raise click.UsageError(f"{action} needs the name of a server")
    if (action == "list" and name is not None) or (words and action not in ("add", "approve")):
        raise click.UsageError(f"{action} takes {'no name' if action == 'list' else 'one name'}")
    work = {"add": _add, "list": _list, "remove": _remove, "tools": _tools, "approve": _approve}
    if action in work:
        work[action](call, name or "", words, options)
    else:
        _switch(call, name or "", action == "enable")


def _add(call: Call, name: str, words: tuple[str, ...], options: dict[str, Any]) -> None:
    from weft.kernel.errors import LabelTaken
    from weft.runtime.tools.mcp_server_settings import McpServer, checked_server

    server = checked_server(
        McpServer(
            name=name,
            transport=_http(words, options) if options["url"] else _program(words, options),
            trusts_hints=options["trust_hints"],
            subscriptions=options["subscribe"],
            call_seconds=options["call_seconds"] or 120.0,
        )
    )
    if any(one.name == name for one in load_mcp_servers().servers):
        raise LabelTaken(name, "an MCP server")
    tools: tuple[ComparedTool, ...] = ()
    if not options["no_start"]:
        tools = _inspected(call, server, None, may_fetch=_agree_to_fetch(call, server, options["yes"]))

    def change(servers: tuple[McpServer, ...]) -> tuple[McpServer, ...]:
        if any(one.name == name for one in servers):
            raise LabelTaken(name, "an MCP server")
        return (*servers, server)

    change_servers(change)
    if options["no_start"]:
        _answer_approved(call, name, (), f" was added; `weft mcp-server approve {shell_word(name)}` shows its tools")
        return
    from weft.runtime.tools.mcp_server_settings import approve

    pinned = approve(name, server.identity, tools)
    keep_pins(pinned)
    if not call.json:
        call.screen.page(_tool_lines(_listed(name, tools)))
    _answer_approved(call, name, pinned.tools, " was added, and its tools approved as they are")


def _http(words: tuple[str, ...], options: dict[str, Any]) -> Any:
    from weft.runtime.tools.mcp_server_settings import HttpServer

    local = ("variables", "folder", "readable", "profile", "no_sandbox")
    if words or any(options[option] for option in local):
        raise click.UsageError("--url is for a server elsewhere: it takes no command, folder, variable or profile")
    return HttpServer(
        url=options["url"],
        credential=options["credential"],
        header=options["header"] or "authorization",
        allow_private=options["allow_private"],
    )


def _program(words: tuple[str, ...], options: dict[str, Any]) -> Any:
    from weft.runtime.tools.mcp_server_settings import CommandServer, package_index, package_source, variable_source
    from weft.surfaces.cli.credentials import person_acting

    if not words:
        raise click.UsageError("say how it is reached: --url URL, or -- COMMAND …")
    if any(options[option] for option in ("credential", "header", "allow_private")):
        raise click.UsageError("--credential, --header and --allow-private are for --url; a command gets --variable")
    if options["no_sandbox"] and options["profile"]:
        raise click.UsageError("--no-sandbox leaves no profile")
    if options["profile"] == "none":
        raise click.UsageError("what takes the sandbox away is --no-sandbox")
    folder, index = options["folder"], package_index(words)
    return CommandServer(
        command=words[0],
        args=words[1:],
        variables=dict(map(variable_source, options["variables"])),
        folder=None if folder is None else os.path.abspath(os.path.expanduser(folder)),
        readable=tuple(os.path.abspath(os.path.expanduser(path)) for path in options["readable"]),
        profile="none" if options["no_sandbox"] else options["profile"] or "workspace",
        granted_by=str(person_acting().principal) if options["no_sandbox"] else None,
        packages=None if index is None or options["no_sandbox"] else package_source(index, os.environ.get),
    )


def _agree_to_fetch(call: Call, server: McpServer, is_sure: bool) -> bool:
    """Ask the person whether the start that comes now may fetch packages, where it would. Whether it may."""
    from weft.runtime.tools.mcp_server_settings import CommandServer, has_packages
    from weft.surfaces.cli.work.sandbox_access import sandbox_caches

    transport = server.transport
    if not isinstance(transport, CommandServer) or transport.packages is None:
        return False
    if has_packages(server, sandbox_caches()):
        return False
    if transport.first_sandbox == transport.sandbox:
        return True  # its profile names these hosts, for every start
    hosts = ", ".join(transport.packages.hosts)
    what = f"{shell_line((transport.command, *transport.args))} fetches packages: its first start reaches {hosts}"
    if not is_sure:
        if not is_person_there(call):
            raise InvalidInput(what, "say --yes if it may, or add it with --no-start")
        ask(f"{what}, later ones do not. May it?")
    return True


def _inspected(
    call: Call, server: McpServer, pinned: PinnedTools | None, *, may_fetch: bool = False
) -> tuple[ComparedTool, ...]:
    from weft.runtime.tools.mcp_servers import inspected
    from weft.surfaces.cli.credentials import person_acting
    from weft.surfaces.cli.work.sandbox_access import command_runner, nearby_ledger

    runner = command_runner(nearby_ledger(call.ledger))
    return asyncio.run(
        inspected(server, pinned, acting=person_acting(), variable=os.environ.get, runner=runner, may_fetch=may_fetch)
    )


def _listed(server: str, tools: tuple[ComparedTool, ...]) -> list[ListedTool]:
    from weft.runtime.tools.mcp_server_settings import DefinitionState
    from weft.runtime.tools.mcp_servers import tool_name
    from weft.surfaces.wire.tool_answers import ListedTool

    return [
        ListedTool(
            name=tool_name(server, tool.name),
            state=tool.state,
            digest=tool.digest,
            description=tool.description,
            difference="" if tool.state is DefinitionState.APPROVED else tool.difference,
        )
        for tool in tools
    ]


def _tool_lines(tools: list[ListedTool]) -> Iterator[Line]:
    """All that a model would be told, unabridged; what a terminal would obey is escaped."""
    for tool in tools:
        yield [Span(tool.name, "label"), f"  {tool.state.value}"]
        for line in safe_lines(tool.description):
            yield [f"  {line}"]


def _list(call: Call, _: str, __: tuple[str, ...], ___: dict[str, Any]) -> None:
    from weft.surfaces.wire.tool_answers import ListedServer

    configuration = load_mcp_servers()
    listed = []
    for server in configuration.servers:
        pinned = configuration.pinned(server.name)
        is_current = pinned is not None and pinned.identity == server.identity
        listed.append(ListedServer(server=server, approved=len(pinned.tools) if pinned and is_current else 0))
    if call.json:
        call.document(listed)
    elif not listed:
        call.note("no MCP servers yet: `weft mcp-server add NAME -- COMMAND …`")
    else:
        rows = [
            (Span(one.server.name, "label"), _place(one.server), _confined(one.server), f"{one.approved} approved")
            for one in listed
        ]
        call.screen.table(rows, ("server", "reached by", "runs", "tools"))


def _place(server: McpServer) -> str:
    from weft.runtime.tools.mcp_server_settings import HttpServer

    transport = server.transport
    return transport.url if isinstance(transport, HttpServer) else shell_line((transport.command, *transport.args))


def _confined(server: McpServer) -> str:
    from weft.runtime.tools.mcp_server_settings import HttpServer

    if not server.is_enabled:
        return "disabled"
    if isinstance(server.transport, HttpServer):
        return "elsewhere"
    profile = server.transport.sandbox
    return "without a sandbox" if profile.is_unconfined else f"in a sandbox: {profile}"


def _remove(call: Call, name: str, _: tuple[str, ...], __: dict[str, Any]) -> None:
    from weft.runtime.tools.mcp_server_settings import remove_packages
    from weft.surfaces.cli.work.sandbox_access import sandbox_caches

    server = find_server(name)
    change_servers(lambda servers: tuple(server for server in servers if server.name != name))
    remove_packages(server, sandbox_caches())
    call.answer(Removed(removed=name), [Span(name, "label"), " is no longer known, nor what was approved of it"])


def _switch(call: Call, name: str, is_enabled: bool) -> None:
    from msgspec import structs

    find_server(name)

    def change(servers: tuple[McpServer, ...]) -> tuple[McpServer, ...]:
        return tuple(
            structs.replace(server, is_enabled=is_enabled) if server.name == name else server for server in servers
        )

    change_servers(change)
    words = " may be used again" if is_enabled else " is not used until it is enabled"
    call.answer(find_server(name), [Span(name, "label"), words])


def _tools(call: Call, name: str, _: tuple[str, ...], __: dict[str, Any]) -> None:

    configuration = load_mcp_servers()
    servers = (find_server(name),) if name else tuple(one for one in configuration.servers if one.is_enabled)
    tools: list[ListedTool] = []
    for server in servers:
        tools += _listed(server.name, _inspected(call, server, configuration.pinned(server.name)))
    if call.json:
        call.document(tools)
        return
    call.screen.page(_tool_lines(tools))
    waiting = dict.fromkeys(tool.name.partition("/")[0] for tool in tools if tool.difference)
    for server_name in waiting:
        call.note(f"not all is as approved: `weft mcp-server approve {shell_word(server_name)}` shows what differs")


def _approve(call: Call, name: str, words: tuple[str, ...], options: dict[str, Any]) -> None:
    from weft.runtime.tools.mcp_server_settings import DefinitionState, approve

    server = find_server(name)
    pinned = load_mcp_servers().pinned(name)
    tools = _inspected(call, server, pinned, may_fetch=_agree_to_fetch(call, server, options["yes"]))
    names = tuple(word.removeprefix(f"{name}/") for word in words) or None
    approved = approve(name, server.identity, tools, pinned, names)
    differing = [
        tool for tool in tools if tool.state is not DefinitionState.APPROVED and (names is None or tool.name in names)
    ]
    if differing:
        _confirm(call, _listed(name, tuple(differing)), options["yes"])
    keep_pins(approved)
    words_of = ": its tools are approved as they are" if differing else ": all was approved before"
    _answer_approved(call, name, approved.tools, words_of)


def _confirm(call: Call, tools: list[ListedTool], yes: bool) -> None:
    """Show what differs, unabridged, and ask."""
    if not call.json:
        for tool in tools:
            call.note(Span(tool.name, "label"), f"  {tool.state.value}")
            for line in safe_lines(tool.difference):
                call.note(f"  {line}")
    if yes:
        return
    if not is_person_there(call):
        raise click.UsageError("approving needs a person at a terminal, or --yes")
    ask(f"use {'this tool' if len(tools) == 1 else f'these {len(tools)} tools'}?")


def _answer_approved(call: Call, name: str, tools: tuple[Any, ...], words: str) -> None:
    from weft.runtime.tools.mcp_servers import tool_name
    from weft.surfaces.wire.tool_answers import ApprovedTools

    names = tuple(tool_name(name, tool.name) for tool in tools)
    call.answer(ApprovedTools(server=name, tools=names), [Span(name, "label"), words])
