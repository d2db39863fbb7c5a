"""`weft agent`: who works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
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
    set_fields,
    show_list,
    with_fields,
)
from weft.surfaces.cli.screen import Line, Span

if TYPE_CHECKING:
    from weft.programs.model import Program

command = group("agent", "Describe agents, give them tasks, and see what they are doing.")
MAKE = "make one with `weft agent create NAME --prompt TEXT --model MODEL`"


@command.verb("create")
@click.argument("name")
@click.option("--prompt", metavar="TEXT", help="Its soul: who it is and how it works.")
@click.option("--model", metavar="NAME", shell_complete=complete_programs("model"), help="The model that it asks.")
@click.option("--tool", "tools", metavar="NAME", multiple=True, help="A tool, or @(id) of a code program; repeatable.")
@set_fields
@acting
def create(
    call: Call,
    name: str,
    prompt: str | None,
    model: str | None,
    tools: tuple[str, ...],
    fields: tuple[str, ...],
    actor: str,
    retry_key: str | None,
) -> None:
    """Make an agent, or describe one that was only named so far."""
    config = with_fields(given(systemPrompt=prompt, defaultModel=model, tools=list(tools)), fields)
    with changing(call, actor) as programs:
        answer(call, programs.create("agent", name, config, key=retry_key))


@command.verb("configure")
@named("name", "agent")
@click.option("--prompt", metavar="TEXT", help="Its soul: who it is and how it works.")
@click.option("--model", metavar="NAME", shell_complete=complete_programs("model"), help="The model that it asks.")
@set_fields
@expecting
@acting
def configure(
    call: Call,
    name: str,
    prompt: str | None,
    model: str | None,
    fields: tuple[str, ...],
    expected: int | None,
    actor: str,
    retry_key: str | None,
) -> None:
    """Change some fields of an agent's configuration; null takes one away."""
    soul = {} if prompt is None else {"identity": {"soul": prompt}}
    changes = with_fields({**soul, **given(defaultModel=model)}, fields)
    with changing(call, actor) as programs:
        agent = programs.get(name, "agent")
        answer(call, programs.change(agent.id, changes, expected=expected, key=retry_key))


@command.verb("list")
def list_(call: Call) -> None:
    """List agents."""
    with looking(call) as programs:
        show_list(call, programs.all("agent"), "agent", MAKE)


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


@command.verb("share")
@named("name", "agent")
@named("principals", "human", "agent", metavar="WITH...", nargs=-1, required=True)
@acting
def share(call: Call, name: str, principals: tuple[str, ...], actor: str, retry_key: str | None) -> None:
    """Let a private agent work for people and agents, by their names."""
    with changing(call, actor) as programs:
        changed = [programs.share_agent(name, one, key=_key_for(retry_key, one)) for one in principals]
    answer(call, changed[-1], *_visibility_lines(changed[-1]))


@command.verb("unshare")
@named("name", "agent")
@named("principals", "human", "agent", metavar="WITH...", nargs=-1, required=True)
@acting
def unshare(call: Call, name: str, principals: tuple[str, ...], actor: str, retry_key: str | None) -> None:
    """Let a private agent work for people and agents no longer."""
    with changing(call, actor) as programs:
        changed = [programs.unshare_agent(name, one, key=_key_for(retry_key, one)) for one in principals]
    answer(call, changed[-1], *_visibility_lines(changed[-1]))


def _key_for(retry_key: str | None, principal: str) -> str | None:
    return None if retry_key is None else f"{retry_key} {principal}"


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
