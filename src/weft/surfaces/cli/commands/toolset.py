"""`weft toolset`: named lists of tools with the sandbox that they run in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.program_call import acting, answer, changing, complete_programs, expecting, looking
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.tools import ListedToolset

if TYPE_CHECKING:
    from weft.programs import Program, Programs
    from weft.runtime.tool.toolsets import Toolset

command = group("toolset", "Manage toolsets: named lists of tools, each with a sandbox profile.")
ALLOW = "A tool that it has: NAME, NAME(PATTERN) or SERVER/*; repeatable."
DENY = "A tool, or a use of one, that it has not; repeatable."
SANDBOX = "workspace, read-only, network:HOST[,HOST] or read-only+network:HOST[,HOST]."
_name = click.argument("name", shell_complete=complete_programs("toolset"))


@command.verb("create")
@click.argument("name")
@click.option("--allow", metavar="PATTERN", multiple=True, required=True, help=ALLOW)
@click.option("--deny", metavar="PATTERN", multiple=True, help=DENY)
@click.option("--sandbox", metavar="PROFILE", help=SANDBOX)
@click.option("--description", metavar="TEXT", help="What it is for.")
@acting
def create(
    call: Call,
    name: str,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    sandbox: str | None,
    description: str | None,
    actor: str,
    retry_key: str | None,
) -> None:
    """Make a toolset. It only narrows what else is permitted."""
    config = _config(allow, deny, sandbox, description)
    with changing(call, actor) as programs:
        answer(call, programs.create("toolset", name, config, key=retry_key))
    _note_unknown(call, (*allow, *deny))


@command.verb("list")
def list_(call: Call) -> None:
    """List toolsets, those that are built in first."""
    from weft.runtime.tool.toolsets import BUILT_IN, toolset_of

    with looking(call) as programs:
        own = [(toolset_of(program), program) for program in programs.all("toolset")]
    listed = [*map(_form, BUILT_IN.values()), *(_form(toolset, program) for toolset, program in own)]
    if call.json:
        call.documents(listed)
        return
    rows: list[list[Span | str]] = [
        [Span(one.name, "label"), "built in" if one.is_built_in else str(one.state), one.sandbox, _patterns(one)]
        for one in listed
    ]
    call.screen.table(rows, ["name", "state", "sandbox", "tools"])


@command.verb("show")
@_name
def show(call: Call, name: str) -> None:
    """Show what a toolset allows and denies, and its sandbox."""
    with looking(call) as programs:
        toolset, program = _find(programs, name)
    form = _form(toolset, program)
    lines: list[list[Span | str]] = [["toolset ", Span(form.name, "label"), " (built in)" if form.is_built_in else ""]]
    for what, value in (
        ("what", form.description),
        ("allow", "everything" if form.allow is None else ", ".join(form.allow)),
        ("deny", ", ".join(form.deny)),
        ("sandbox", form.sandbox),
    ):
        if value:
            lines.append([Span(f"  {what:<8}", "dim"), value])
    call.answer(form, *lines)


@command.verb("edit")
@_name
@click.option("--allow", metavar="PATTERN", multiple=True, help="In place of all that it has; repeatable.")
@click.option("--deny", metavar="PATTERN", multiple=True, help="In place of all that it denies; repeatable.")
@click.option("--deny-nothing", is_flag=True, help="Take away all that it denies.")
@click.option("--sandbox", metavar="PROFILE", help=SANDBOX)
@click.option("--description", metavar="TEXT", help="What it is for.")
@expecting
@acting
def edit(
    call: Call,
    name: str,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    deny_nothing: bool,
    sandbox: str | None,
    description: str | None,
    expected: int | None,
    actor: str,
    retry_key: str | None,
) -> None:
    """Change a toolset; what is not named stays."""
    if deny and deny_nothing:
        raise click.UsageError("give --deny or --deny-nothing")
    changes = _config(allow, deny, sandbox, description)
    if deny_nothing:
        changes.setdefault("tools", {})["deny"] = []
    if not changes:
        raise click.UsageError("say what is to change")
    with changing(call, actor) as programs:
        program = _own(programs, name)
        answer(call, programs.change(program.id, changes, expected=expected, key=retry_key))
    _note_unknown(call, (*allow, *deny))


@command.verb("delete")
@_name
@click.option("--reason", metavar="TEXT", help="Why.")
@expecting
@acting
def delete(call: Call, name: str, reason: str | None, expected: int | None, actor: str, retry_key: str | None) -> None:
    """Delete a toolset. Turns of agents and sessions that name it are refused until they name another."""
    with changing(call, actor) as programs:
        program = _own(programs, name)
        deleted = programs.delete(program.id, expected=expected, reason=reason, key=retry_key)
    call.answer(deleted, ["toolset ", Span(deleted.name, "label"), " is deleted"])


def _config(
    allow: tuple[str, ...], deny: tuple[str, ...], sandbox: str | None, description: str | None
) -> dict[str, Any]:
    """The fields that were given, checked where the kind itself does not look into them."""
    from weft.runtime.sandbox.profiles import parse_profile
    from weft.runtime.tool.toolsets import checked_tool_patterns, sandbox_config

    tools = {
        name: list(checked_tool_patterns(patterns)) for name, patterns in (("allow", allow), ("deny", deny)) if patterns
    }
    config: dict[str, Any] = {"tools": tools} if tools else {}
    if sandbox is not None:
        config["sandbox"] = sandbox_config(parse_profile(sandbox))
    if description is not None:
        config["description"] = description
    return config


def _note_unknown(call: Call, patterns: tuple[str, ...]) -> None:
    """Tools may come later, with an MCP server or from Python; so what fits none now is told, and not refused."""
    from difflib import get_close_matches

    from weft.runtime.tool.toolsets import BUILT_IN_TOOLS, unknown_tools
    from weft.surfaces.cli.mcp_servers import load_mcp_servers

    for pattern in unknown_tools(patterns, [server.name for server in load_mcp_servers().servers]):
        near = get_close_matches(pattern.partition("(")[0], BUILT_IN_TOOLS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        call.note(Span("no tool now fits ", "warn"), Span(pattern, "label"), meant)


def _find(programs: Programs, name: str) -> tuple[Toolset, Program | None]:
    from weft.runtime.tool.toolsets import BUILT_IN, toolset_of

    if name in BUILT_IN:
        return BUILT_IN[name], None
    program = programs.get(name, "toolset")
    return toolset_of(program), program


def _own(programs: Programs, name: str) -> Program:
    """A toolset that can be changed."""
    from weft.kernel.errors import NotApplicable

    toolset, program = _find(programs, name)
    if program is None:
        raise NotApplicable(f"the toolset {toolset.name!r} is built in", "make one of your own: `weft toolset create`")
    return program


def _form(toolset: Toolset, program: Program | None = None) -> ListedToolset:
    limits = toolset.limits
    return ListedToolset(
        name=toolset.name,
        description=toolset.description,
        is_built_in=toolset.is_built_in,
        allow=limits.allow,
        deny=limits.deny,
        sandbox=limits.sandbox.text,
        version=None if program is None else program.version,
        state=None if program is None else program.state,
    )


def _patterns(form: ListedToolset) -> str:
    allowed = "everything" if form.allow is None else ", ".join(form.allow)
    return f"{allowed} but {', '.join(form.deny)}" if form.deny else allowed
