"""`weft mcp`: servers are added, listed and removed, and what their tools are is shown and approved; and this ledger is
served as one, which coding agents are told of in their files.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from weft.kernel.errors import InvalidInput, NotApplicable, Unsupported, without_credentials
from weft.kernel.typed_names import shell_line, shell_word
from weft.runtime.tools.mcp_server_settings import McpServer, PinnedTools, checked_server
from weft.surfaces.cli.arguments import RenamedOption
from weft.surfaces.cli.command_line import OK, Call, NobodyToAsk, SharedGroup, ask, confirm, is_person_there
from weft.surfaces.cli.credentials import change_servers, find_server, keep_pins, load_mcp_servers
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.plain_text import safe_lines
from weft.verbs.exchange_answers import Removed

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.runtime.tools.mcp_server_settings import ComparedTool, McpServer, PinnedTools
    from weft.verbs.program_answers import ListedTool


# --- `weft mcp`: servers whose tools agents may call, and what of them was approved.

CODING_TOOLS = ("claude-code", "codex", "cursor", "opencode")


def complete_servers(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """A shell in the middle of a line wants names or nothing, never an error."""
    from weft.kernel.errors import WeftError

    try:
        return [server.name for server in load_mcp_servers().servers if server.name.startswith(incomplete)]
    except (WeftError, OSError):
        return []


def _list_by_default(**_: object) -> None:
    """All but `serve` works on files of the person who runs it: in nobody else's name."""
    ctx = click.get_current_context()
    if ctx.invoked_subcommand != "serve":
        ctx.ensure_object(Call).ensure_owner("mcp")
    if ctx.invoked_subcommand is None:
        list_servers(ctx.ensure_object(Call))


mcp_command = SharedGroup(
    "mcp",
    callback=_list_by_default,
    invoke_without_command=True,
    help="""Manage MCP servers, approve their tools, and serve this ledger as one.

    `weft mcp add NAME -- COMMAND…` adds a server that is started here, in a sandbox, and --url one elsewhere. Its tools
    are shown and pinned by their hashes: one that changes, or is new, is not used until you approve it. Without a
    command the servers are listed. docs/tools.md#mcp-servers tells how they are confined and used.

    `weft mcp config TOOL` prints, or writes, the configuration by which a coding agent starts `weft mcp serve` and
    reads this ledger: docs/reading.md#let-a-coding-agent-read-its-own-past.""",
)
server_name = click.argument("name", shell_complete=complete_servers)


@mcp_command.verb("add")
@click.argument("name")
@click.argument("words", nargs=-1, metavar="[COMMAND...]")
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
@click.option(
    "--in", "folder", cls=RenamedOption, old=("--folder",), metavar="DIR", help="Where it starts, and what it works on."
)
@click.option(
    "--readable", multiple=True, metavar="PATH", help="Another path that it may read, such as where it is installed."
)
@click.option("--profile", metavar="PROFILE", help="How it is confined: workspace, read-only, network:HOST,…")
@click.option(
    "--no-sandbox",
    is_flag=True,
    help="Run it without a sandbox, with your full access. It sees all your files and keys.",
)
@click.option("--trust-hints", is_flag=True, help="Trust what it says of which tools only read.")
@click.option("--subscribe", multiple=True, metavar="URI", help="A resource whose changes are recorded.")
@click.option(
    "--timeout",
    "call_seconds",
    cls=RenamedOption,
    old=("--call-seconds",),
    type=float,
    metavar="SECONDS",
    help="How long a call may take. Default: 120.",
)
@click.option("--no-start", is_flag=True, help="Add it without starting it; `approve` it later.")
@click.option("-y", "--yes", is_flag=True, help="Let the first start fetch packages without asking.")
def add_server(call: Call, name: str, words: tuple[str, ...], **options: Any) -> None:
    """Add a server, show its tools and pin them as they are.

    Where COMMAND fetches what it runs, as `uvx` and `npx` do, you are asked whether the first start may reach the hosts
    of its index; later ones have no network for it.
    """
    _add(call, name, words, options)


@mcp_command.verb("list")
def list_command(call: Call) -> None:
    """List the servers: how each is reached, how it is confined, how many of its tools are approved."""
    list_servers(call)


@mcp_command.verb("remove")
@server_name
def remove_server(call: Call, name: str) -> None:
    """Forget a server, and what was approved of it."""
    _remove(call, name)


@mcp_command.verb("tools")
@click.argument("name", required=False, shell_complete=complete_servers)
def show_tools(call: Call, name: str | None) -> None:
    """Start a server, or all of them, and show the tools that it offers."""
    _tools(call, name)


@mcp_command.verb("approve")
@server_name
@click.argument("words", nargs=-1, metavar="[TOOL]...")
@click.option("-y", "--yes", is_flag=True, help="Approve, and let the start fetch packages, without asking.")
def approve_tools(call: Call, name: str, words: tuple[str, ...], yes: bool) -> None:
    """Show what of a server's tools differs from what was approved, ask, and approve it."""
    _approve(call, name, words, yes)


@mcp_command.verb("enable")
@server_name
def enable_server(call: Call, name: str) -> None:
    """Enable a server again."""
    _switch(call, name, is_enabled=True)


@mcp_command.verb("disable")
@server_name
def disable_server(call: Call, name: str) -> None:
    """Disable a server until it is enabled again; what was approved stays."""
    _switch(call, name, is_enabled=False)


@mcp_command.verb("serve")
@click.option(
    "--allow-writes",
    "writes",
    multiple=True,
    metavar="TOOL,...",
    help="Offer these tools, too: fork, send. Without it the tools only read.",
)
@click.option(
    "--session",
    "sessions",
    multiple=True,
    metavar="SESSION",
    help="Only this session can be read, or those of a pattern such as 'notes-*'. Can be repeated.",
)
def serve_ledger(call: Call, writes: tuple[str, ...], sessions: tuple[str, ...]) -> None:
    """Serve this ledger to an agent, over standard input and output, as an MCP server.

    A coding agent starts it, as `weft mcp config` writes into its configuration. It acts as the token in WEFT_TOKEN or
    --token-file, else as you, and only reads unless writing tools are named. It ends with its input.
    """
    _serve(call, writes, sessions)


@mcp_command.verb("config")
@click.argument("tool", type=click.Choice(CODING_TOOLS))
@click.option("--write", is_flag=True, help="Write it into the tool's file; the change is shown first.")
@click.option("--remove", is_flag=True, help="Take it out of the tool's file again.")
@click.option("--project", is_flag=True, help="The file of this folder, not that of your home folder.")
@click.option("--name", default="weft", metavar="NAME", help="What the server is called there. Default: weft.")
@click.option("--allow-writes", "writes", multiple=True, metavar="TOOL,...", help="Passed on to `weft mcp serve`.")
@click.option("--session", "sessions", multiple=True, metavar="SESSION", help="Passed on to `weft mcp serve`.")
@click.option("-y", "--yes", is_flag=True, help="Write without asking.")
def configure_tool(call: Call, tool: str, **options: Any) -> None:
    """Print the configuration by which a coding agent starts `weft mcp serve`, or write it.

    TOOL is claude-code, codex, cursor or opencode. What stands in its file stays as it is, with comments. With --ledger
    that ledger is served, else the one that is found from the folder in which the tool works.
    """
    _configure(call, tool, options)


def _add(call: Call, name: str, words: tuple[str, ...], options: dict[str, Any]) -> None:
    from weft.kernel.errors import LabelTaken
    from weft.runtime.tools.mcp_server_settings import McpServer

    server = checked_server(
        McpServer(
            name=name,
            transport=_http(words, options) if options["url"] else _program(words, options),
            trusts_hints=options["trust_hints"],
            subscriptions=options["subscribe"],
            call_seconds=options["call_seconds"] or 120.0,
        )
    )
    if any(server.name == name for server in load_mcp_servers().servers):
        raise LabelTaken(name, "an MCP server")
    tools: tuple[ComparedTool, ...] = ()
    if not options["no_start"]:
        tools = _inspected(call, server, None, may_fetch=_agree_to_fetch(call, server, options["yes"]))

    def change(servers: tuple[McpServer, ...]) -> tuple[McpServer, ...]:
        if any(other.name == name for other in servers):
            raise LabelTaken(name, "an MCP server")
        return (*servers, server)

    change_servers(change)
    if options["no_start"]:
        _answer_approved(call, name, (), f" was added; `weft mcp approve {shell_word(name)}` shows its tools")
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
            raise NobodyToAsk(what, "say --yes if it may, or add it with --no-start")
        ask(f"{what}, later ones do not. May it?")
    return True


def _inspected(
    call: Call, server: McpServer, pinned: PinnedTools | None, *, may_fetch: bool = False
) -> tuple[ComparedTool, ...]:
    from weft.runtime.tools.mcp_servers import inspected
    from weft.surfaces.cli.credentials import person_acting, variable_of_programs
    from weft.surfaces.cli.work.sandbox_access import command_runner, nearby_ledger

    runner = command_runner(nearby_ledger(call.ledger))
    return asyncio.run(
        inspected(
            server,
            pinned,
            acting=person_acting(),
            variable=variable_of_programs(os.environ.get),
            runner=runner,
            may_fetch=may_fetch,
        )
    )


def _listed(server: str, tools: tuple[ComparedTool, ...]) -> list[ListedTool]:
    from weft.runtime.tools.mcp_server_settings import DefinitionState
    from weft.runtime.tools.mcp_servers import tool_name
    from weft.verbs.program_answers import ListedTool

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


def list_servers(call: Call) -> None:
    from weft.verbs.program_answers import ListedServer

    configuration = load_mcp_servers()
    listed = []
    for server in configuration.servers:
        pinned = configuration.pinned(server.name)
        is_current = pinned is not None and pinned.identity == server.identity
        listed.append(ListedServer(server=server, approved=len(pinned.tools) if pinned and is_current else 0))
    if call.json:
        call.document(listed)
    elif not listed:
        call.note("no MCP servers yet: `weft mcp add NAME -- COMMAND …`")
    else:
        rows = [
            (Span(row.server.name, "label"), _place(row.server), _confined(row.server), f"{row.approved} approved")
            for row in listed
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


def _remove(call: Call, name: str) -> None:
    from weft.runtime.tools.mcp_server_settings import remove_packages
    from weft.surfaces.cli.work.sandbox_access import sandbox_caches

    server = find_server(name)
    change_servers(lambda servers: tuple(server for server in servers if server.name != name))
    remove_packages(server, sandbox_caches())
    call.answer(Removed(removed=name), [Span(name, "label"), " is no longer known, nor what was approved of it"])


def _switch(call: Call, name: str, *, is_enabled: bool) -> None:
    from msgspec import structs

    find_server(name)

    def change(servers: tuple[McpServer, ...]) -> tuple[McpServer, ...]:
        return tuple(
            structs.replace(server, is_enabled=is_enabled) if server.name == name else server for server in servers
        )

    change_servers(change)
    words = " may be used again" if is_enabled else " is not used until it is enabled"
    call.answer(find_server(name), [Span(name, "label"), words])


def _tools(call: Call, name: str | None) -> None:
    configuration = load_mcp_servers()
    servers = (find_server(name),) if name else tuple(server for server in configuration.servers if server.is_enabled)
    tools: list[ListedTool] = []
    for server in servers:
        tools += _listed(server.name, _inspected(call, server, configuration.pinned(server.name)))
    if call.json:
        call.document(tools)
        return
    call.screen.page(_tool_lines(tools))
    waiting = dict.fromkeys(tool.name.partition("/")[0] for tool in tools if tool.difference)
    for server_name in waiting:
        call.note(f"not all is as approved: `weft mcp approve {shell_word(server_name)}` shows what differs")


def _approve(call: Call, name: str, words: tuple[str, ...], is_sure: bool) -> None:
    from weft.runtime.tools.mcp_server_settings import DefinitionState, approve

    server = find_server(name)
    pinned = load_mcp_servers().pinned(name)
    tools = _inspected(call, server, pinned, may_fetch=_agree_to_fetch(call, server, is_sure))
    names = tuple(word.removeprefix(f"{name}/") for word in words) or None
    approved = approve(name, server.identity, tools, pinned, names)
    differing = [
        tool for tool in tools if tool.state is not DefinitionState.APPROVED and (names is None or tool.name in names)
    ]
    if differing:
        _confirm(call, _listed(name, tuple(differing)), is_sure)
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
        raise NobodyToAsk("nobody is there to approve the tools", "read them, then say --yes")
    ask(f"use {'this tool' if len(tools) == 1 else f'these {len(tools)} tools'}?")


def _answer_approved(call: Call, name: str, tools: tuple[Any, ...], words: str) -> None:
    from weft.runtime.tools.mcp_servers import tool_name
    from weft.verbs.program_answers import ApprovedTools

    names = tuple(tool_name(name, tool.name) for tool in tools)
    call.answer(ApprovedTools(server=name, tools=names), [Span(name, "label"), words])


# --- `weft mcp serve`: this ledger as a server.


WRITING_TOOLS = ("fork", "send")


def writing_tools(writes: tuple[str, ...], option: str = "--allow-writes") -> tuple[str, ...]:
    """The tools that write, as they were named."""
    named = tuple(dict.fromkeys(word.strip() for words in writes for word in words.split(",")))
    if unknown := [word for word in named if word not in WRITING_TOOLS]:
        raise click.UsageError(f"{option} {unknown[0]!r}: the tools that write are {', '.join(WRITING_TOOLS)}")
    return named


def _serve(call: Call, writes: tuple[str, ...], sessions: tuple[str, ...]) -> int:
    """The library of the protocol is loaded here alone."""
    writing, server = writing_tools(writes), _loaded_server()
    with call.writing() if writing else call.reading() as ledger:
        acting = ledger.acting_as(server.caller_authority(ledger.authority, writing, sessions))
        asyncio.run(_served(call, server, acting, writing))
    return OK


async def _served(call: Call, server: Any, ledger: Ledger, writing: tuple[str, ...]) -> None:
    from weft.aio.crossing import Pool
    from weft.aio.open_ledger import AsyncOpenLedger, SharedInference

    pool = Pool()
    try:
        await server.serve(AsyncOpenLedger(ledger, pool, SharedInference(os.environ.get)), writing, call.note)
    finally:
        await pool.close(lambda: None)


def _loaded_server() -> Any:
    try:
        from weft.surfaces.mcp import server
    except ImportError as error:
        raise Unsupported(
            f"serving MCP needs the package {error.name}", "install it with `pip install 'weft[mcp]'`"
        ) from None
    return server


# --- `weft mcp config`: this ledger as a server in the files of coding agents.


def _configure(call: Call, tool_name: str, options: dict[str, Any]) -> None:
    from weft.surfaces.mcp import client_settings

    if options["write"] and options["remove"]:
        raise click.UsageError("--write and --remove cannot be used together")
    tool, name = client_settings.TOOLS[tool_name], options["name"]
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise click.UsageError("--name has letters, digits, _ and - alone, and at most 64 of them")
    entry = tool.entry((*_program_words(options["project"]), *_serving_words(call, options)))
    file = Path(tool.project_file).absolute() if options["project"] else tool.user_file(os.environ.get)
    if not (options["write"] or options["remove"]):
        shown = client_settings.added(tool, None, name, entry)
        _answer_configured(call, tool_name, file, name, "shown", entry, "", *([line] for line in safe_lines(shown)))
        call.note(f"it belongs in {shell_word(str(file))}; --write puts it there")
        return
    before = client_settings.read_text(file)
    try:
        if options["remove"]:
            after = client_settings.removed(tool, before, name)
        else:
            after = client_settings.added(tool, before, name, entry)
    except (InvalidInput, NotApplicable) as error:
        raise type(error)(f"{file}: {error}", error.advice) from None
    left = None if options["remove"] else entry
    if after == before:
        _answer_configured(call, tool_name, file, name, "unchanged", left, "", [f"{file} has it already"])
        return
    difference = _file_difference(file, before, after)
    if not call.json:
        for line in safe_lines(difference):
            call.note(line)
    confirm(call, f"write {file}?", "read the change above, then say --yes", is_sure=options["yes"])
    client_settings.replace_text(file, before, after)
    is_there = before is not None and name in client_settings.served_names(tool, before)
    change = "removed" if options["remove"] else "changed" if is_there else "added"
    words = "is no longer in" if options["remove"] else "is in"
    _answer_configured(
        call,
        tool_name,
        file,
        name,
        change,
        left,
        difference,
        [Span(name, "label"), f" {words} {shell_word(str(file))}"],
    )


def _program_words(is_shared: bool) -> tuple[str, ...]:
    """A file of a project is for others, too: they have the program somewhere else."""
    from weft.surfaces.mcp.client_settings import program_words

    return ("weft",) if is_shared else program_words()


def _serving_words(call: Call, options: dict[str, Any]) -> list[str]:
    words = ["mcp", "serve"]
    if call.ledger is not None:
        if without_credentials(call.ledger) != call.ledger:
            raise InvalidInput("the address of the ledger may hold a password", "set WEFT_LEDGER where the tool runs")
        is_file = "://" not in call.ledger
        words = ["--ledger", os.path.abspath(os.path.expanduser(call.ledger)) if is_file else call.ledger, *words]
    if named := writing_tools(options["writes"]):
        words += ["--allow-writes", ",".join(named)]
    for session in options["sessions"]:
        words += ["--session", session]
    return words


def _file_difference(file: Path, before: str | None, after: str | None) -> str:
    old, new = ((text or "").splitlines(keepends=True) for text in (before, after))
    names = ("/dev/null" if before is None else str(file), "/dev/null" if after is None else str(file))
    lines = unified_diff(old, new, *names)
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _answer_configured(
    call: Call,
    tool: str,
    file: Path,
    name: str,
    change: str,
    entry: dict[str, Any] | None,
    difference: str,
    *lines: Line,
) -> None:
    from weft.verbs.program_answers import ConfiguredAgent

    configured = ConfiguredAgent(
        tool=tool, file=str(file), name=name, change=change, entry=entry, difference=difference
    )
    call.answer(configured, *lines)
