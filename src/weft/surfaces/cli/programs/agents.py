"""`weft agent`, and what a turn of an agent or a session has: `config` shows how it is
configured, `tools` and `toolset` which tools it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from weft.kernel.typed_names import shell_word
from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import complete_messages, key_option
from weft.surfaces.cli.command_line import Call, group
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.programs.program_call import (
    RUN_TOOLSET,
    acting,
    acting_person,
    answer,
    changing,
    complete_programs,
    configuration_rows,
    configured_turn,
    ensure_toolset,
    line_of,
    looking,
    message_text,
    named,
    override_options,
    read_configuration,
    show_list,
    show_program,
)
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.turn_lists import withheld_words
from weft.surfaces.cli.verb_commands import command_of, group_of, shows
from weft.verbs import agent_verbs
from weft.verbs.answers import Listing
from weft.verbs.declaration import Verb
from weft.verbs.program_answers import ListedToolset, OfferedTool, OfferedTools

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.ledger.model import Session
    from weft.programs import Programs
    from weft.programs.program_records import Program
    from weft.runtime.assembly.configuration_layers import MessageOverrides
    from weft.runtime.assembly.turn_configuration import TurnConfiguration
    from weft.runtime.invoke.toolbox import SourcedTool
    from weft.verbs.program_answers import AgentStatus


# --- `weft agent`: who works.

agent_command = group(
    "agent",
    """Create agents, give them tasks, and see what they are doing.

    An agent and the persona of a session are one thing; one that was only named so far is described by create.
    """,
)
MAKE = "make one with `weft agent create NAME --prompt TEXT --model MODEL`"


def _add(*verbs: Verb[..., Any]) -> None:
    for verb in verbs:
        agent_command.add_command(command_of(verb))


@shows(agent_verbs.agent_create)
def show_created_agent(call: Call, agent: Program, ledger: Ledger, toolset: str | None) -> None:
    call.screen.show(*line_of(agent))
    _note_visibility(call, agent)
    _note_missing(call, ledger, toolset)


def _note_visibility(call: Call, agent: Program) -> None:
    """Who can mention a new agent, and how that is changed."""
    if agent.visibility == "private":
        call.note(
            "private: only its creator and those it is shared with can mention it;"
            f" `weft agent share {shell_word(agent.name)} PERSON` shares it"
        )
    else:
        call.note(
            "public: everybody in this ledger can mention it; `--private` makes one that only its creator can,"
            f" `weft agent visibility {shell_word(agent.name)} private` changes this one"
        )


@shows(agent_verbs.agent_configure)
def show_configured_agent(call: Call, agent: Program, ledger: Ledger, toolset: str | None) -> None:
    call.screen.show(*line_of(agent))
    _note_missing(call, ledger, toolset)


def _note_missing(call: Call, ledger: Ledger, toolset: str | None) -> None:
    """A toolset may be made after an agent that names it; until then turns of the agent are refused."""
    from weft.kernel.errors import NotFound

    try:
        ensure_toolset(ledger, toolset)
    except NotFound:
        call.note(Span(f"there is no toolset {toolset!r}", "warn"), ", so its turns are refused until there is one")


@shows(agent_verbs.agent_list)
def show_agents(call: Call, listed: Listing[Program]) -> None:
    show_list(call, list(listed.items), "agent", MAKE)


shows(agent_verbs.agent_show)(show_program)
_add(agent_verbs.agent_create, agent_verbs.agent_configure, agent_verbs.agent_list, agent_verbs.agent_show)


@agent_command.verb("run")
@named("name", "agent")
@click.argument("text", required=False)
@click.option("--in", "folder", metavar="DIR", type=click.Path(), help="The folder that it works in.")
@click.option("--task", "task", metavar="TASK", shell_complete=complete_programs("task"), help="A task that exists.")
@click.option("--session", metavar="SESSION", help="Its session, made if there is none. Default: NAME:main.")
@click.option("--toolset", metavar="NAME", help="What its tools are at most. Default: worker, if none is configured.")
@click.option("--model", metavar="NAME", shell_complete=complete_programs("model"), help="The model that is asked.")
@key_option
def run_agent_work(
    call: Call,
    name: str,
    text: str | None,
    folder: str | None,
    task: str | None,
    session: str | None,
    toolset: str | None,
    model: str | None,
    key: str | None,
) -> int:
    """Have an agent work on a task until it is done, and show what it says and does.

    The task is made of TEXT, which is read from standard input where it is -, or is named with --task. With --in its
    files and commands are confined to that folder. A line tells of each tool call; where a person is asked, the turn
    waits. Ctrl-C ends the turn with what it has, and the task that was made of TEXT with it.

    Without --in it has no folder but the task's own. While somebody else runs the agent, the command waits. An agent
    that has another task is refused, unless a command waits for that. Where nothing names a model the
    command fails. docs/agents.md#work-on-tasks has the details.

    A turn that fails ends the command with the exit code of its error, one that ends because a call was denied with 4,
    and one that Ctrl-C ends with 130; a task that was made of TEXT has failed then, and the agent is idle. A task that
    the harness gave up ends it with 1, one that is not finished, because the agent was paused, with 9.
    """
    from weft.surfaces.cli.work.tasks import AgentRunRequest, run_agent

    words = message_text(text)
    if (task is None) == (words is None):
        raise click.UsageError("give either what is to be done, or --task")
    return run_agent(
        call,
        AgentRunRequest(
            agent=name,
            words=words,
            task=task,
            folder=folder,
            session=session,
            toolset=toolset,
            model=model,
            key=key,
        ),
    )


@shows(agent_verbs.agent_assign)
def show_assigned(call: Call, agent: Program) -> None:
    call.screen.show(*line_of(agent))
    call.screen.show("  works on ", Span(str(agent.current_task), "label"), f" in {agent.current_session}")
    call.note("a broker goes on with it: `weft broker` runs one; `weft agent status` shows how far it is")


_add(agent_verbs.agent_assign)


@agent_command.verb("status")
@named("name", "agent", required=False)
def agent_status(call: Call, name: str | None) -> None:
    """Show what an agent is doing, what it has spent, and for whom it works; without NAME, all that have a task.

    It tells the turns, tokens, money and seconds of the work with their limits, which criteria held when they were
    checked last, and the agent's own plan. --json tells the same under work, which is null where the agent has no task.
    """
    from weft.kernel.typed_names import shell_word
    from weft.surfaces.cli.programs.program_call import progress_line, progress_lines

    with looking(call) as programs:
        agents = programs.all("agent") if name is None else [programs.get(name, "agent")]
        statuses = [_status(call, programs, agent) for agent in agents]
    if name is None:
        statuses = [status for status in statuses if status.work is not None]
        if not statuses:
            call.note("no agent has a task; `weft agent assign NAME TASK` gives it one")
        lines = [progress_line(status.agent.name, status.work) for status in statuses if status.work is not None]
        call.answer(statuses, *lines)
        return
    (status,) = statuses
    agent = status.agent
    fields: list[Line] = [
        [Span(f"  {what:<11}", "dim"), str(value)]
        for what, value in (
            ("task", agent.current_task),
            ("session", agent.current_session),
            ("turns", agent.turn_count if status.work is None else None),
            ("checkpoint", agent.last_checkpoint),
        )
        if value is not None
    ]
    work_lines = [] if status.work is None else progress_lines(status.work)
    call.answer(status, line_of(agent), *fields, *work_lines, *_visibility_lines(agent))
    if agent.state == "error":
        call.note(f"`weft agent reset {shell_word(agent.name)}` lets it be idle again, without its task")


def _status(call: Call, programs: Programs, agent: Program) -> AgentStatus:
    """An agent with its work, as far as whoever looks may know of its task and its session. What is wrong with one
    agent's configuration is noted, and the others are shown."""
    from weft.kernel.clock import SystemClock
    from weft.kernel.errors import InvalidConfig
    from weft.runtime.agent_work import WorkReader, progress_of
    from weft.verbs.program_answers import AgentStatus

    is_shown = agent.current_task is not None and agent.current_session is not None
    try:
        facts = WorkReader(programs).facts(agent.id) if is_shown else None
    except InvalidConfig as error:
        call.note(Span(f"agent {agent.name}: {error}", "warn"))
        facts = None
    return AgentStatus(agent=agent, work=None if facts is None else progress_of(facts, SystemClock().now_ms()))


@shows(agent_verbs.agent_stop, agent_verbs.agent_reset, agent_verbs.agent_pause)
def show_stopped(call: Call, agent: Program) -> None:
    call.screen.show(*line_of(agent))


_add(agent_verbs.agent_stop)


@agent_command.verb("resume")
@named("name", "agent")
@click.option("--reason", metavar="TEXT", help="Why.")
@acting
def resume_agent_work(call: Call, name: str, reason: str | None, actor: str, retry_key: str | None) -> None:
    """Let an agent go on: one that was paused, or whose work stands still since a turn failed or was cut short.

    A broker goes on with the work.
    """
    from weft.surfaces.cli.work.tasks import resume_agent

    with changing(call, actor) as programs:
        agent = programs.get(name, "agent")
        is_at_work = agent.current_task is not None and agent.recorded_state in ("thinking", "executing", "waiting")
        if not is_at_work:
            agent = programs.step_agent(name, "resume", reason=reason, key=retry_key)
        if not is_at_work and (agent.current_task is None or agent.recorded_state != "waiting"):
            answer(call, agent)
            return
    resume_agent(call, actor, agent)
    with looking(call) as programs:
        answer(call, programs.get(agent.id, "agent"))


@shows(agent_verbs.agent_share, agent_verbs.agent_unshare, agent_verbs.agent_visibility)
def show_sharing(call: Call, agent: Program) -> None:
    for line in (line_of(agent), *_visibility_lines(agent)):
        call.screen.show(*line)


def _visibility_lines(agent: Program) -> list[Line]:
    """Who made it, and for whom it works."""
    whom = "everybody" if agent.visibility == "public" else ", ".join((agent.created_by, *agent.shared_with))
    return [[Span(f"  {'visibility':<11}", "dim"), agent.visibility], [Span(f"  {'works for':<11}", "dim"), whom]]


_add(agent_verbs.agent_share, agent_verbs.agent_unshare, agent_verbs.agent_visibility)
_add(agent_verbs.agent_reset, agent_verbs.agent_pause)


# --- `weft config`: what the next message to a session would be answered with.


@weft_command("config")
@arguments.session()
@override_options
@click.option(
    "--for",
    "message",
    metavar="MESSAGE",
    shell_complete=complete_messages("queued", "taken", "dead"),
    help="What this message of its inbox is answered with: its own options count.",
)
def config_command(
    call: Call,
    session: str,
    message: str | None,
    **options: Any,
) -> None:
    """Show the effective configuration of a session's next turn.

    Each value is shown with the layer that it comes from: provider, model, situation, persona, thread, session,
    message. A later layer replaces the values of an earlier one; permissions only narrow. With options: as if a message
    were sent with them.

    docs/models.md#configuration-of-a-turn tells what each layer holds.
    """
    from weft.runtime.assembly.configuration_layers import parse_overrides

    if message is not None and any(options.values()):
        raise click.UsageError("--for stands without other options: the message has its own")
    overrides = parse_overrides(**options)
    with call.reading() as ledger:
        opened = ledger.session(session)
        if message is not None:
            overrides = _overrides_of(ledger, opened, message)
        configuration = read_configuration(call, ledger, opened.id, overrides, message or "")
        turn = configured_turn(opened.label, configuration)
    if call.json:
        call.document(turn)
        return
    call.screen.table(configuration_rows(turn), ["key", "value", "from"])
    if turn.model is None:
        call.note(f"no layer names a model; `weft session configure {shell_word(opened.label)} --model NAME` does")
    unsent = [value.key for value in turn.values if not value.sent]
    if unsent:
        call.note(f"{turn.model} does not take {', '.join(unsent)}")


def _overrides_of(ledger: Ledger, session: Session, message: str) -> MessageOverrides:
    """What a message of the session's inbox was sent with."""
    from weft.kernel.errors import NotApplicable
    from weft.runtime.assembly.configuration_layers import read_overrides

    waiting = ledger.inbox.get(message)
    if waiting.session_id != session.id:
        hint = f"`weft config {shell_word(waiting.session)} --for {shell_word(waiting.id)}` shows it"
        raise NotApplicable(f"message {waiting.id} was sent to session {waiting.session!r}", hint)
    return read_overrides(waiting.overrides, waiting.id)


# --- `weft tools`: which tools a turn would have, and why.

STYLES = {"all": "good", "some": "warn", "none": "bad"}


@weft_command("tools")
@click.option("--agent", metavar="NAME", shell_complete=complete_programs("agent"), help="Of a turn of this agent.")
@arguments.session_option("Of the next turn of this session.")
@click.option("--in", "folder", metavar="DIR", type=click.Path(), help="Where it works. Default: here, if trusted.")
@click.option("--toolset", metavar="NAME", help="As if a message were sent with this toolset.")
def tools_command(call: Call, agent: str | None, session: str | None, folder: str | None, toolset: str | None) -> None:
    """List the tools that a turn of an agent or a session would have.

    Each tool is listed with its origin and with what the permissions allow of it: all, some or none of its uses. MCP
    servers are started to list their tools; those that cannot be used are named with the reason.

    Tools are built in, code programs, or an MCP server's. The columns are name, origin, whether it only reads, what is
    allowed of it, and which uses. A model is not told of a tool of which nothing is allowed. Where nothing names a
    toolset a turn has the code programs in the agent's own list of tools, else none; `weft agent run` uses worker then.
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
    if answer.toolset is None and answer.gives_allowed:
        call.note(f"nothing names a toolset: a turn has what agent {shell_word(answer.agent)} is allowed")
    elif answer.toolset is None and answer.tools:
        call.note(f"nothing names a toolset: a turn has what the agent itself lists; {_how_to_name(answer, agent)}")
    elif answer.toolset is None:
        call.note(f"nothing names a toolset, so a turn has no tools: {_how_to_name(answer, agent)}")
        call.note(
            f"`weft agent run` uses the toolset {RUN_TOOLSET} then:"
            f" `weft tools --toolset {shell_word(RUN_TOOLSET)}` shows it"
        )
    else:
        call.note(f"toolset {answer.toolset}, sandbox {answer.sandbox}")
    for tools in answer.withheld:
        call.note(withheld_words(tools))
    for server, why in answer.troubles.items():
        call.note(Span(f"MCP server {server}: ", "warn"), why)


async def _answer(
    call: Call, agent: str | None, session: str | None, folder: str | None, toolset: str | None
) -> tuple[OfferedTools, str | None]:
    """The tools, and what withholds some of them from turns that nobody watches."""
    from weft.aio.crossing import Pool
    from weft.programs import Programs
    from weft.runtime.invoke.toolbox import withheld_tools
    from weft.surfaces.acting_ledger import ToolAccess
    from weft.surfaces.cli.trust import workspace_of

    ledger, pool = call.writing(), Pool()
    try:
        label, configuration = _configuration(call, ledger, agent, session, toolset)
        workspace = workspace_of(folder) if folder is not None else configuration.workspace or workspace_of(None)
        sourced: list[SourcedTool] = []
        troubles: dict[str, str] = {}
        if configuration.has_tools:
            programs = Programs(ledger)
            access = ToolAccess(ledger, pool, programs, lambda: acting_person(call, programs))
            try:
                toolbox = access.toolbox()
                sourced, troubles = await toolbox.available(configuration, workspace), dict(toolbox.troubles)
            finally:
                await access.aclose()
    finally:
        await pool.close(ledger.close)
    tools = tuple(_offered(configuration, tool) for tool in sourced)
    answer = OfferedTools(
        agent=configuration.persona_name,
        session=label,
        workspace=workspace,
        toolset=configuration.effective.toolset,
        sandbox=configuration.effective.permissions.sandbox.text,
        tools=tools,
        gives_allowed=configuration.gives_allowed_tools,
        withheld=tuple(withheld_tools(configuration, workspace, [tool.name for tool in tools if tool.use != "none"])),
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


# --- `weft toolset`: named lists of tools with the sandbox that they run in.


@shows(agent_verbs.toolset_create, agent_verbs.toolset_edit)
def show_toolset_change(call: Call, toolset: Program, allow: tuple[str, ...], deny: tuple[str, ...]) -> None:
    call.screen.show(*line_of(toolset))
    _note_unknown(call, (*allow, *deny))


@shows(agent_verbs.toolset_list)
def show_toolsets(call: Call, listed: Listing[ListedToolset]) -> None:
    rows: list[list[Span | str]] = [
        [
            Span(toolset.name, "label"),
            "built in" if toolset.is_built_in else str(toolset.state),
            toolset.sandbox,
            _patterns(toolset),
        ]
        for toolset in listed.items
    ]
    call.screen.table(rows, ["name", "state", "sandbox", "tools"])


@shows(agent_verbs.toolset_show)
def show_toolset(call: Call, toolset: ListedToolset) -> None:
    call.screen.show("toolset ", Span(toolset.name, "label"), " (built in)" if toolset.is_built_in else "")
    for what, value in (
        ("what", toolset.description),
        ("allow", "everything" if toolset.allow is None else ", ".join(toolset.allow)),
        ("deny", ", ".join(toolset.deny)),
        ("sandbox", toolset.sandbox),
    ):
        if value:
            call.screen.show(Span(f"  {what:<8}", "dim"), value)


@shows(agent_verbs.toolset_delete)
def show_deleted_toolset(call: Call, deleted: Program) -> None:
    call.screen.show("toolset ", Span(deleted.name, "label"), " is deleted")


toolset_command = group_of(
    agent_verbs.toolset_group,
    agent_verbs.toolset_create,
    agent_verbs.toolset_list,
    agent_verbs.toolset_show,
    agent_verbs.toolset_edit,
    agent_verbs.toolset_delete,
)


def _note_unknown(call: Call, patterns: tuple[str, ...]) -> None:
    """Tools may come later, with an MCP server or from Python; so what fits none now is told, and not refused."""
    from difflib import get_close_matches

    from weft.runtime.tool.toolsets import BUILT_IN_TOOLS, unknown_tools
    from weft.surfaces.cli.credentials import load_mcp_servers

    for pattern in unknown_tools(patterns, [server.name for server in load_mcp_servers().servers]):
        near = get_close_matches(pattern.partition("(")[0], BUILT_IN_TOOLS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        call.note(Span("no tool now fits ", "warn"), Span(pattern, "label"), meant)


def _patterns(form: ListedToolset) -> str:
    allowed = "everything" if form.allow is None else ", ".join(form.allow)
    return f"{allowed} but {', '.join(form.deny)}" if form.deny else allowed
