"""`weft provider`: where models are reached."""

from __future__ import annotations

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import group
from weft.surfaces.cli.program_call import (
    acting,
    answer,
    as_actor,
    changing,
    expecting,
    given,
    invoked,
    looking,
    named,
    set_fields,
    show_list,
    with_fields,
)
from weft.surfaces.wire.forms import JsonValue

command = group("provider", "Manage model providers: gateways, vendors, local servers.")
TYPES = "anthropic, openai, google, openai-compatible, cloudflare-ai-gateway, local"
MAKE = "make one with `weft provider create NAME --type TYPE`"


@command.verb("create")
@click.argument("name")
@click.option("--type", "kind", metavar="TYPE", required=True, help=f"One of {TYPES}.")
@click.option("--base-url", metavar="URL", help="Where it answers.")
@click.option("--key-env", metavar="VAR", help="The variable that holds its key; the key itself is never stored.")
@set_fields
@click.option("--draft", is_flag=True, help="Do not publish it yet.")
@acting
def create(
    call: Call,
    name: str,
    kind: str,
    base_url: str | None,
    key_env: str | None,
    fields: tuple[str, ...],
    draft: bool,
    actor: str,
    retry_key: str | None,
) -> None:
    """Make a provider."""
    key = None if key_env is None else f"${{{key_env}}}"
    config = with_fields(given(providerType=kind, baseUrl=base_url, apiKey=key), fields)
    with changing(call, actor) as programs:
        answer(call, programs.create("provider", name, config, draft=draft, key=retry_key))
    if kind not in TYPES.split(", "):
        call.note(f"nothing here speaks to providers of the type {kind}: its models cannot be asked; there are {TYPES}")


@command.verb("configure")
@named("name", "provider")
@click.option("--base-url", metavar="URL", help="Where it answers.")
@click.option("--key-env", metavar="VAR", help="The variable that holds its key.")
@set_fields
@expecting
@acting
def configure(
    call: Call,
    name: str,
    base_url: str | None,
    key_env: str | None,
    fields: tuple[str, ...],
    expected: int | None,
    actor: str,
    retry_key: str | None,
) -> None:
    """Change some fields of a provider's configuration; null takes one away."""
    key = None if key_env is None else f"${{{key_env}}}"
    changes = with_fields(given(baseUrl=base_url, apiKey=key), fields)
    with changing(call, actor) as programs:
        provider = programs.get(name, "provider")
        changed = programs.change(provider.id, changes, expected=expected, key=retry_key)
    answer(call, changed)
    dropped = [field for field in provider.config if field not in changed.config and field not in changes]
    if dropped:
        call.note(
            f"it goes to somebody else now, and left {', '.join(dropped)} behind; give it anew with --key-env VAR"
        )


@command.verb("list")
def list_(call: Call) -> None:
    """List providers."""
    with looking(call) as programs:
        show_list(call, programs.all("provider"), "provider", MAKE)


@command.verb("models")
@named("name", "provider")
@as_actor
def models(call: Call, name: str, actor: str) -> None:
    """Ask a provider which models it has; that also tells whether it is there and takes the key."""
    from weft.runtime.invoke.invocation import Invocation

    with looking(call) as programs:
        provider = programs.get(name, "provider")
    listed = invoked(call, actor, provider.id, Invocation()).result["models"]
    call.answer(JsonValue(listed), *([name] for name in listed))
    if not listed:
        call.note(f"{name} answers, and has no models")
