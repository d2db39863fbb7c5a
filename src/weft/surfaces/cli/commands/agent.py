"""`weft agent`: who works."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from weft.surfaces.cli.arguments import key_option
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.configuration import RUN_TOOLSET, ensure_toolset
from weft.surfaces.cli.program_call import (
    acting,
    answer,
    changing,
    complete_programs,
    expecting,
    given,
    line_of,
    looking,
    named,
    said,
    set_fields,
    show_list,
    with_fields,
)
from weft.surfaces.cli.screen import Line, Span

if TYPE_CHECKING:
    from weft.ledger.api import Admission, Ledger
    from weft.programs import Programs
    from weft.programs.model import Program

command = group("agent", "Describe agents, give them tasks, and see what they are doing.")
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
@click.argument("text")
@click.option("--in", "folder", metavar="DIR", type=click.Path(), required=True, help="The folder that it works in.")
@click.option("--session", metavar="SESSION", help="Its session, made if there is none. Default: NAME:main.")
@click.option("--toolset", metavar="NAME", help="What its tools are at most. Default: worker, if none is configured.")
@key_option
def run(
    call: Call, name: str, text: str, folder: str, session: str | None, toolset: str | None, key: str | None
) -> None:
    """Have an agent work in a folder, and show what it says and does.

    Its files and commands are confined to the folder. TEXT is read from standard input where it is -. A line tells of
    each tool call; where a person is asked, the turn waits. Ctrl-C ends the turn with what it has.
    """
    from weft.kernel.errors import InvalidInput
    from weft.surfaces.cli.attachments import message_with
    from weft.surfaces.cli.trust import workspace_of

    words = said(text) or ""
    if not words.strip():
        raise InvalidInput("the message is empty", "say something")
    workspace = workspace_of(folder) or ""
    message = message_with(words, (), workspace)
    chosen: list[str | None] = []

    def admit(ledger: Ledger) -> Admission:
        label = session or f"{name}:main"
        chosen.append(_toolset(ledger, name, label, toolset))
        overrides = {"toolset": chosen[0]} if chosen[0] is not None else None
        return ledger.inbox.admit(message, session=label, persona=name, overrides=overrides, key=key)

    _show_run(call, admit, workspace, chosen)


def _show_run(call: Call, admit: Callable[[Ledger], Admission], workspace: str, chosen: list[str | None]) -> None:
    from weft.surfaces.cli.broker_call import answered, sent_fields
    from weft.surfaces.cli.run_view import RunView
    from weft.surfaces.plain_text import safe_lines
    from weft.surfaces.wire.tools import AgentRun

    view = RunView(call)
    try:
        admission, reply = answered(call, admit, view.token, view.observe)
    finally:
        view.end()
    fields = sent_fields(admission, reply)
    run = AgentRun(**fields, workspace=workspace, toolset=chosen[0], calls=tuple(view.calls))
    call.answer(run, *([] if view.has_answer else [[line] for line in safe_lines(reply.reply.text)]))


def _toolset(ledger: Ledger, name: str, label: str, toolset: str | None) -> str | None:
    """The toolset that the message names: the one that was asked for, or where nothing is configured the default one.
    Raises NotApplicable where the session is that of another agent, NotFound where there is no such toolset."""
    from weft.kernel.errors import NotApplicable, NotFound
    from weft.programs import Programs

    programs = Programs(ledger)
    agent = programs.get(name, "agent")
    configs = [agent.config]
    try:
        opened = ledger.session(label)
    except NotFound:
        pass
    else:
        if opened.persona_id not in (agent.id, agent.name):
            raise NotApplicable(f"session {opened.label!r} is not one of {agent.name}", "name another with --session")
        configs.append(programs.get(opened.id, "session").config)
    ensure_toolset(ledger, toolset)
    is_configured = any(isinstance(config, dict) and config.get("toolset") for config in configs)
    return toolset or (None if is_configured else RUN_TOOLSET)


@command.verb("assign")
@named("name", "agent")
@named("task", "task")
@acting
def assign(call: Call, name: str, task: str, actor: str, retry_key: str | None) -> None:
    """Give an idle agent a task; a session for it is made."""
    with changing(call, actor) as programs:
        agent = programs.assign(name, task, key=retry_key)
    answer(call, agent, ["  works on ", Span(str(agent.current_task), "label"), f" in {agent.current_session}"])


@command.verb("status")
@named("name", "agent")
def status(call: Call, name: str) -> None:
    """Show what an agent is doing, and for whom it works."""
    with looking(call) as programs:
        agent = programs.get(name, "agent")
    lines: list[Line] = []
    for what, value in (
        ("task", agent.current_task),
        ("session", agent.current_session),
        ("turns", agent.turn_count),
        ("checkpoint", agent.last_checkpoint),
    ):
        if value is not None:
            lines.append([Span(f"  {what:<11}", "dim"), str(value)])
    lines += _visibility_lines(agent)
    call.answer(agent, line_of(agent), *lines)


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
_step("pause", "Pause an agent.")
_step("resume", "Let a paused agent go on where it was.")
