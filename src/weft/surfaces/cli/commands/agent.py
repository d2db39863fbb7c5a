"""`weft agent`: who works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.surfaces.cli.arguments import key_option
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.configuration import ensure_toolset
from weft.surfaces.cli.program_call import (
    acting,
    answer,
    changing,
    complete_programs,
    expecting,
    given,
    line_of,
    looking,
    message_text,
    named,
    set_fields,
    show_list,
    with_fields,
)
from weft.surfaces.cli.screen import Line, Span

if TYPE_CHECKING:
    from weft.programs import Programs
    from weft.programs.program_records import Program
    from weft.surfaces.wire.work import AgentStatus

command = group("agent", "Create agents, give them tasks, and see what they are doing.")
TOOLSET = "What its tools are at most; `weft toolset list` shows them."
MAKE = "make one with `weft agent create NAME --prompt TEXT --model MODEL`"


@command.verb("create")
@click.argument("name")
@click.option("--prompt", metavar="TEXT", help="Its soul: who it is and how it works.")
@click.option("--model", metavar="NAME", shell_complete=complete_programs("model"), help="The model that it asks.")
@click.option("--toolset", metavar="NAME", help=TOOLSET)
@click.option("--tool", "tools", metavar="NAME", multiple=True, help="A tool, or @(id) of a code program; repeatable.")
@set_fields
@acting
def create(
    call: Call,
    name: str,
    prompt: str | None,
    model: str | None,
    toolset: str | None,
    tools: tuple[str, ...],
    fields: tuple[str, ...],
    actor: str,
    retry_key: str | None,
) -> None:
    """Make an agent, or describe one that was only named so far."""
    config = with_fields(given(systemPrompt=prompt, defaultModel=model, toolset=toolset, tools=list(tools)), fields)
    with changing(call, actor) as programs:
        answer(call, programs.create("agent", name, config, key=retry_key))
        _note_missing(call, programs, toolset)


@command.verb("configure")
@named("name", "agent")
@click.option("--prompt", metavar="TEXT", help="Its soul: who it is and how it works.")
@click.option("--model", metavar="NAME", shell_complete=complete_programs("model"), help="The model that it asks.")
@click.option("--toolset", metavar="NAME", help=TOOLSET)
@set_fields
@expecting
@acting
def configure(
    call: Call,
    name: str,
    prompt: str | None,
    model: str | None,
    toolset: str | None,
    fields: tuple[str, ...],
    expected: int | None,
    actor: str,
    retry_key: str | None,
) -> None:
    """Change some fields of an agent's configuration; null takes one away."""
    soul = {} if prompt is None else {"identity": {"soul": prompt}}
    changes = with_fields({**soul, **given(defaultModel=model, toolset=toolset)}, fields)
    with changing(call, actor) as programs:
        agent = programs.get(name, "agent")
        answer(call, programs.change(agent.id, changes, expected=expected, key=retry_key))
        _note_missing(call, programs, toolset)


def _note_missing(call: Call, programs: Programs, toolset: str | None) -> None:
    """A toolset may be made after an agent that names it; until then turns of the agent are refused."""
    from weft.kernel.errors import NotFound

    try:
        ensure_toolset(programs.ledger, toolset)
    except NotFound:
        call.note(Span(f"there is no toolset {toolset!r}", "warn"), ", so its turns are refused until there is one")


@command.verb("list")
def list_(call: Call) -> None:
    """List agents."""
    with looking(call) as programs:
        show_list(call, programs.all("agent"), "agent", MAKE)


@command.verb("run")
@named("name", "agent")
@click.argument("text", required=False)
@click.option("--in", "folder", metavar="DIR", type=click.Path(), help="The folder that it works in.")
@click.option("--task", "task", metavar="TASK", shell_complete=complete_programs("task"), help="A task that exists.")
@click.option("--session", metavar="SESSION", help="Its session, made if there is none. Default: NAME:main.")
@click.option("--toolset", metavar="NAME", help="What its tools are at most. Default: worker, if none is configured.")
@key_option
def run(
    call: Call,
    name: str,
    text: str | None,
    folder: str | None,
    task: str | None,
    session: str | None,
    toolset: str | None,
    key: str | None,
) -> int:
    """Have an agent work on a task until it is done, and show what it says and does.

    The task is made of TEXT, which is read from standard input where it is -, or is named with --task. With --in its
    files and commands are confined to that folder. A line tells of each tool call; where a person is asked, the turn
    waits. Ctrl-C ends the turn with what it has, and the task that was made of TEXT with it.
    """
    from weft.surfaces.cli.agent_run import AgentRunRequest, run_agent

    words = message_text(text)
    if (task is None) == (words is None):
        raise click.UsageError("give either what is to be done, or --task")
    return run_agent(
        call,
        AgentRunRequest(agent=name, words=words, task=task, folder=folder, session=session, toolset=toolset, key=key),
    )


@command.verb("assign")
@named("name", "agent")
@named("task", "task")
@acting
def assign(call: Call, name: str, task: str, actor: str, retry_key: str | None) -> None:
    """Give an idle agent a task; a session for it is made. Where a broker runs, the work begins."""
    with changing(call, actor) as programs:
        _ensure_workspace(programs.get(task, "task"))
        agent = programs.assign(name, task, key=retry_key)
    answer(call, agent, ["  works on ", Span(str(agent.current_task), "label"), f" in {agent.current_session}"])
    call.note("a broker goes on with it: `weft broker` runs one; `weft agent status` shows how far it is")


def _ensure_workspace(task: Program) -> None:
    """Refuse a task whose criteria look into a folder that it does not name: a broker has none of its own."""
    from weft.kernel.errors import NotApplicable
    from weft.kernel.typed_names import shell_word
    from weft.programs.tasks import criteria_of

    config = task.config if isinstance(task.config, dict) else {}
    needs_folder = any("path" in one or one.get("type") == "command" for one in criteria_of(config))
    if needs_folder and not config.get("workspace"):
        raise NotApplicable(
            f"the criteria of task {task.name!r} look into a workspace, and it has none",
            f"name one: `weft task configure {shell_word(task.name)} --workspace FOLDER`",
        )


@command.verb("status")
@named("name", "agent", required=False)
def status(call: Call, name: str | None) -> None:
    """Show what an agent is doing, what it has spent, and for whom it works; without NAME, all that have a task."""
    from weft.kernel.typed_names import shell_word
    from weft.surfaces.cli.work_progress import progress_line, progress_lines

    with looking(call) as programs:
        agents = programs.all("agent") if name is None else [programs.get(name, "agent")]
        statuses = [_status(call, programs, agent) for agent in agents]
    if name is None:
        statuses = [one for one in statuses if one.work is not None]
        if not statuses:
            call.note("no agent has a task; `weft agent assign NAME TASK` gives it one")
        lines = [progress_line(one.agent.name, one.work) for one in statuses if one.work is not None]
        call.answer(statuses, *lines)
        return
    (one,) = statuses
    agent = one.agent
    fields: list[Line] = [
        [Span(f"  {what:<11}", "dim"), str(value)]
        for what, value in (
            ("task", agent.current_task),
            ("session", agent.current_session),
            ("turns", agent.turn_count if one.work is None else None),
            ("checkpoint", agent.last_checkpoint),
        )
        if value is not None
    ]
    work_lines = [] if one.work is None else progress_lines(one.work)
    call.answer(one, line_of(agent), *fields, *work_lines, *_visibility_lines(agent))
    if agent.state == "error":
        call.note(f"`weft agent reset {shell_word(agent.name)}` lets it be idle again, without its task")


def _status(call: Call, programs: Programs, agent: Program) -> AgentStatus:
    """An agent with its work, as far as whoever looks may know of its task and its session. What is wrong with one
    agent's configuration is noted, and the others are shown."""
    from weft.kernel.clock import SystemClock
    from weft.kernel.errors import InvalidConfig
    from weft.runtime.agent_work import WorkReader, progress_of
    from weft.surfaces.wire.work import AgentStatus

    is_shown = agent.current_task is not None and agent.current_session is not None
    try:
        facts = WorkReader(programs).facts(agent.id) if is_shown else None
    except InvalidConfig as error:
        call.note(Span(f"agent {agent.name}: {error}", "warn"))
        facts = None
    return AgentStatus(agent=agent, work=None if facts is None else progress_of(facts, SystemClock().now_ms()))


@command.verb("stop")
@named("name", "agent")
@click.option("--reason", metavar="TEXT", help="Why.")
@acting
def stop(call: Call, name: str, reason: str | None, actor: str, retry_key: str | None) -> None:
    """End an agent's work: the turn is cut short, its task fails, and the agent is idle."""
    words = "it was stopped" if reason is None else f"it was stopped: {reason}"
    with changing(call, actor) as programs:
        answer(call, programs.stop_work(name, reason=words, key=retry_key))


@command.verb("resume")
@named("name", "agent")
@click.option("--reason", metavar="TEXT", help="Why.")
@acting
def resume(call: Call, name: str, reason: str | None, actor: str, retry_key: str | None) -> None:
    """Let an agent go on: one that was paused, or whose work stands still since a turn failed or was cut short."""
    from weft.surfaces.cli.agent_run import resume_agent

    with changing(call, actor) as programs:
        agent = programs.get(name, "agent")
        is_at_work = agent.current_task is not None and agent.state in ("thinking", "executing", "waiting")
        if not is_at_work:
            agent = programs.step_agent(name, "resume", reason=reason, key=retry_key)
        if not is_at_work and (agent.current_task is None or agent.state != "waiting"):
            answer(call, agent)
            return
    resume_agent(call, actor, agent)
    with looking(call) as programs:
        answer(call, programs.get(agent.id, "agent"))


def _sharing(verb: str, help: str) -> None:
    @named("name", "agent")
    @named("principals", "human", "agent", metavar="WITH...", nargs=-1, required=True)
    @acting
    def share(call: Call, name: str, principals: tuple[str, ...], actor: str, retry_key: str | None) -> None:
        with changing(call, actor) as programs:
            change = programs.share_agent if verb == "share" else programs.unshare_agent
            keys = [None if retry_key is None else f"{retry_key} {principal}" for principal in principals]
            agents = [change(name, principal, key=key) for principal, key in zip(principals, keys, strict=True)]
        answer(call, agents[-1], *_visibility_lines(agents[-1]))

    share.__doc__ = help
    command.verb(verb)(share)


_sharing("share", "Let a private agent work for people and agents, by their names.")
_sharing("unshare", "Let a private agent work for people and agents no longer.")


@command.verb("visibility")
@named("name", "agent")
@click.argument("visibility", type=click.Choice(["public", "private"]))
@expecting
@acting
def visibility(call: Call, name: str, visibility: str, expected: int | None, actor: str, retry_key: str | None) -> None:
    """Let an agent work for everybody, or only for its creator and those it is shared with."""
    with changing(call, actor) as programs:
        agent = programs.get(name, "agent")
        agent = programs.change(agent.id, {"visibility": visibility}, expected=expected, key=retry_key)
    answer(call, agent, *_visibility_lines(agent))


def _visibility_lines(agent: Program) -> list[Line]:
    """Who made it, and for whom it works."""
    whom = "everybody" if agent.visibility == "public" else ", ".join((agent.created_by, *agent.shared_with))
    return [[Span(f"  {'visibility':<11}", "dim"), agent.visibility], [Span(f"  {'works for':<11}", "dim"), whom]]


def _step(verb: str, help: str) -> None:
    @named("name", "agent")
    @click.option("--reason", metavar="TEXT", help="Why.")
    @acting
    def step(call: Call, name: str, reason: str | None, actor: str, retry_key: str | None) -> None:
        with changing(call, actor) as programs:
            answer(call, programs.step_agent(name, verb, reason=reason, key=retry_key))

    step.__doc__ = help
    command.verb(verb)(step)


_step("reset", "Let an agent be idle again, whatever it was doing, without a task.")
_step("pause", "Pause an agent: the turn under way ends, and no other one begins until it is resumed.")
