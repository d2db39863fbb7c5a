"""`weft model`: what is asked, and how."""

from __future__ import annotations

from typing import Any

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.program_call import (
    F,
    acting,
    answer,
    answer_invoked,
    as_actor,
    changing,
    complete_programs,
    expecting,
    given,
    invoked,
    looking,
    named,
    said,
    set_fields,
    show_list,
    with_fields,
)

command = group("model", "Say what is asked, and how: a model of a provider, with its parameters.")
MAKE = "make one with `weft model create NAME --backend MODEL --provider PROVIDER`"


def parameters(function: F) -> F:
    for option in (
        click.option("--top-p", type=float, help="Nucleus sampling, 0 to 1."),
        click.option("--max-tokens", type=int, help="The longest answer."),
        click.option("--temperature", type=float, help="How freely it speaks, 0 to 2."),
    ):
        function = option(function)
    return function


def _parameters(temperature: float | None, max_tokens: int | None, top_p: float | None) -> dict[str, Any]:
    whole = int(temperature) if temperature is not None and temperature == int(temperature) else temperature
    return given(temperature=whole, maxTokens=max_tokens, topP=top_p)


@command.verb("create")
@click.argument("name")
@click.option("--backend", metavar="MODEL", required=True, help="The model's name at its provider.")
@click.option(
    "--provider", metavar="NAME", required=True, shell_complete=complete_programs("provider"), help="Its provider."
)
@parameters
@set_fields
@click.option("--draft", is_flag=True, help="Do not publish it yet.")
@acting
def create(
    call: Call,
    name: str,
    backend: str,
    provider: str,
    temperature: float | None,
    max_tokens: int | None,
    top_p: float | None,
    fields: tuple[str, ...],
    draft: bool,
    actor: str,
    retry_key: str | None,
) -> None:
    """Make a model."""
    config = {"modelId": backend, "provider": provider, **_parameters(temperature, max_tokens, top_p)}
    with changing(call, actor) as programs:
        answer(call, programs.create("model", name, with_fields(config, fields), draft=draft, key=retry_key))


@command.verb("configure")
@named("name", "model")
@click.option("--backend", metavar="MODEL", help="The model's name at its provider.")
@click.option("--provider", metavar="NAME", shell_complete=complete_programs("provider"), help="Its provider.")
@parameters
@click.option("--situation", metavar="NAME", help="Set the parameters for this situation alone.")
@set_fields
@expecting
@acting
def configure(
    call: Call,
    name: str,
    backend: str | None,
    provider: str | None,
    temperature: float | None,
    max_tokens: int | None,
    top_p: float | None,
    situation: str | None,
    fields: tuple[str, ...],
    expected: int | None,
    actor: str,
    retry_key: str | None,
) -> None:
    """Change some fields of a model's configuration, or its parameters in one situation."""
    asked = _parameters(temperature, max_tokens, top_p)
    if situation is not None and not asked:
        raise click.UsageError("--situation needs a parameter to set, such as --temperature")
    chosen = asked if situation is None else {"situations": {situation: asked}}
    changes = with_fields({**given(modelId=backend, provider=provider), **chosen}, fields)
    with changing(call, actor) as programs:
        model_program = programs.get(name, "model")
        answer(call, programs.change(model_program.id, changes, expected=expected, key=retry_key))


@command.verb("list")
def list_(call: Call) -> None:
    """List models."""
    with looking(call) as programs:
        show_list(call, programs.all("model"), "model", MAKE)


@command.verb("invoke")
@named("name", "model")
@click.option("--message", metavar="TEXT", help="What it is asked; - reads it from standard input.")
@click.option("--stream", is_flag=True, help="Show the answer as it comes.")
@click.option("--situation", metavar="NAME", help="Ask with the parameters of this situation.")
@parameters
@as_actor
def invoke(
    call: Call,
    name: str,
    message: str | None,
    stream: bool,
    situation: str | None,
    temperature: float | None,
    max_tokens: int | None,
    top_p: float | None,
    actor: str,
) -> None:
    """Ask a model by itself, without anything that was said before; recorded in the session model:NAME."""
    from weft.runtime.inference.settings import Parameters
    from weft.runtime.invoke.invocation import Invocation

    with looking(call) as programs:
        model_program = programs.get(name, "model")
    own = Parameters(**given(temperature=temperature, max_tokens=max_tokens, top_p=top_p))
    asked = Invocation(message=said(message), situation=situation, parameters=own)
    answer_invoked(call, invoked(call, actor, model_program.id, asked, stream=stream), shown=stream)
