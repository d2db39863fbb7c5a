"""`weft session`: a session as a program: made with a model, paused, resumed, completed."""

from __future__ import annotations

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.program_call import (
    acting,
    answer,
    changing,
    complete_programs,
    given,
    session_argument,
    set_fields,
    with_fields,
)

command = group("session", "Make sessions with a model; pause, resume and complete them.")


@command.verb("create")
@click.argument("label", required=False)
@click.option("--model", metavar="NAME", shell_complete=complete_programs("model"), help="The model that it asks.")
@click.option("--owner", metavar="NAME", shell_complete=complete_programs("agent"), help="The agent that owns it.")
@set_fields
@acting
def create(
    call: Call,
    label: str | None,
    model: str | None,
    owner: str | None,
    fields: tuple[str, ...],
    actor: str,
    retry_key: str | None,
) -> None:
    """Make a session; without a label it gets one."""
    with changing(call, actor) as programs:
        made = programs.create_session(label, model=model, owner=owner, config=with_fields({}, fields), key=retry_key)
        answer(call, made)


@command.verb("configure")
@session_argument()
@click.option("--model", metavar="NAME", shell_complete=complete_programs("model"), help="Ask this model from now on.")
@set_fields
@acting
def configure(
    call: Call, session: str, model: str | None, fields: tuple[str, ...], actor: str, retry_key: str | None
) -> None:
    """Change some fields of a session's configuration."""
    with changing(call, actor) as programs:
        found = programs.ledger.session(session)
        answer(call, programs.change(found.id, with_fields(given(defaultModel=model), fields), key=retry_key))


def _step(verb: str, help: str) -> None:
    @session_argument()
    @click.option("--reason", metavar="TEXT", help="Why.")
    @acting
    def step(call: Call, session: str, reason: str | None, actor: str, retry_key: str | None) -> None:
        with changing(call, actor) as programs:
            found = programs.ledger.session(session)
            answer(call, programs.step_session(found.id, verb, reason=reason, key=retry_key))

    step.__doc__ = help
    command.verb(verb)(step)


_step("pause", "Let a session take no turns for now.")
_step("resume", "Let a paused session go on.")
_step("complete", "Let a session take no more turns; it can be forked.")
