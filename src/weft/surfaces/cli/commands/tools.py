"""`weft tools`: which tools a turn would have, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.kernel.typed_names import shell_word
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.configuration import RUN_TOOLSET, read_configuration
from weft.surfaces.cli.program_call import acting_person, complete_programs
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.tools import OfferedTool, OfferedTools

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.runtime.assembly.turn_configuration import TurnConfiguration
    from weft.runtime.invoke.toolbox import SourcedTool

STYLES = {"all": "good", "some": "warn", "none": "bad"}


@weft_command("tools")
@click.option("--agent", metavar="NAME", shell_complete=complete_programs("agent"), help="Of a turn of this agent.")
@arguments.session_option("Of the next turn of this session.")
@click.option("--in", "folder", metavar="DIR", type=click.Path(), help="Where it works. Default: here, if trusted.")
@click.option("--toolset", metavar="NAME", help="As if a message were sent with this toolset.")
def command(call: Call, agent: str | None, session: str | None, folder: str | None, toolset: str | None) -> None:
    """List the tools that a turn of an agent or a session would have.

    Each tool stands with where it comes from and what the permissions leave of it: all, some or none of its uses. The
    MCP servers are started for that; those that cannot be used are named with the reason.
    """
    import asyncio

    answer, unattended = asyncio.run(_answer(call, agent, session, folder, toolset))
    if call.json:
        call.document(answer)
        return
    rows: list[list[Span | str]] = [
        [
            Span(tool.name, "label"),
            tool.source,
            "reads" if tool.is_read_only else "acts",
            Span(tool.use, STYLES[tool.use]),
            ", ".join([*tool.allow, *(f"not {pattern}" for pattern in tool.deny)]),
        ]
        for tool in answer.tools
    ]
    if rows:
        call.screen.table(rows, ["name", "source", "effect", "use", "limits"])
    _note(call, answer, agent)
    if unattended is not None:
        call.note(unattended)


def _how_to_name(answer: OfferedTools, agent: str | None) -> str:
    if answer.session is not None:
        return f"`weft session configure {shell_word(answer.session)} --set toolset=NAME`"
    if agent is not None:
        return f"`weft agent configure {shell_word(answer.agent)} --toolset NAME`"
    return "say --agent or --session for whose turn it is, or --toolset"


def _note(call: Call, answer: OfferedTools, agent: str | None) -> None:
    if answer.toolset is None:
        call.note(f"nothing names a toolset, so a turn has no tools: {_how_to_name(answer, agent)}")
        call.note(
            f"`weft agent run` uses the toolset {RUN_TOOLSET} then:"
            f" `weft tools --toolset {shell_word(RUN_TOOLSET)}` shows it"
        )
    else:
        call.note(f"toolset {answer.toolset}, sandbox {answer.sandbox}")
        if answer.workspace is None:
            call.note("without a workspace there are no tools for files and commands: name one with --in")
    for server, why in answer.troubles.items():
        call.note(Span(f"MCP server {server}: ", "warn"), why)


async def _answer(
    call: Call, agent: str | None, session: str | None, folder: str | None, toolset: str | None
) -> tuple[OfferedTools, str | None]:
    """The tools, and what withholds some of them from turns that nobody watches."""
    from weft.aio.crossing import Pool
    from weft.programs import Programs
    from weft.surfaces.cli.tool_access import ToolAccess
    from weft.surfaces.cli.trust import workspace_of

    ledger, pool = call.writing(), Pool()
    try:
        label, configuration = _configuration(call, ledger, agent, session, toolset)
        workspace = workspace_of(folder) if folder is not None else configuration.workspace or workspace_of(None)
        sourced: list[SourcedTool] = []
        troubles: dict[str, str] = {}
        if configuration.effective.toolset is not None:
            programs = Programs(ledger)
            access = ToolAccess(ledger, pool, programs, lambda: acting_person(call, programs))
            try:
                toolbox = access.toolbox()
                sourced, troubles = await toolbox.available(configuration, workspace), dict(toolbox.troubles)
            finally:
                await access.aclose()
    finally:
        await pool.close(ledger.close)
    answer = OfferedTools(
        agent=configuration.persona_name,
        session=label,
        workspace=workspace,
        toolset=configuration.effective.toolset,
        sandbox=configuration.effective.permissions.sandbox.text,
        tools=tuple(_offered(configuration, one) for one in sourced),
        troubles=troubles,
    )
    return answer, _unattended(ledger, configuration)


def _unattended(ledger: Ledger, configuration: TurnConfiguration) -> str | None:
    """What turns have less that somebody begins who is not the ledger's owner, and does not answer themselves."""
    from weft.runtime.assembly.turn_configuration import may_write_unattended

    if ledger.authority.is_local or may_write_unattended(configuration.persona):
        return None
    who, agent = ledger.authority.principal.id, configuration.persona_name
    return (
        f"turns that a trigger, a room or a worker of {who} begins, or a message that a broker of the owner answers,"
        " have no tools that act:"
        f" the ledger's owner has not set unattended_writes of the agent {agent!r}"
    )


def _configuration(
    call: Call, ledger: Ledger, agent: str | None, session: str | None, toolset: str | None
) -> tuple[str | None, TurnConfiguration]:
    from weft.runtime.assembly.configuration_layers import parse_overrides

    opened = None if session is None else ledger.session(session)
    overrides = parse_overrides(toolset=toolset)
    configuration = read_configuration(call, ledger, None if opened is None else opened.id, overrides, persona=agent)
    return None if opened is None else opened.label, configuration


def _offered(configuration: TurnConfiguration, sourced: SourcedTool) -> OfferedTool:
    from weft.runtime.tool.toolsets import permitted_use

    tool = sourced.tool
    use = permitted_use(configuration.context.authority, tool.spec.name)
    return OfferedTool(
        name=tool.spec.name,
        source=sourced.source,
        is_read_only=tool.is_read_only,
        use=use.extent,
        allow=use.allow,
        deny=use.deny,
    )
