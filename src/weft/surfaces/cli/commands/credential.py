"""`weft credential`: where keys are found. The keys themselves are never kept."""

from __future__ import annotations

import shlex
from typing import Any

import click

from weft.kernel.typed_names import shell_line
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.screen import Span
from weft.surfaces.wire.exchange import Removed

ACTIONS = ("add", "list", "remove")


def complete_ids(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """A shell in the middle of a line wants names or nothing, never an error."""
    from weft.kernel.errors import WeftError
    from weft.surfaces.cli.credentials import load_credentials

    try:
        return [item.id for item in load_credentials() if item.id.startswith(incomplete)]
    except (WeftError, OSError):
        return []


@weft_command("credential")
@click.argument("action", type=click.Choice(ACTIONS), default="list")
@click.argument("id", required=False, shell_complete=complete_ids)
@click.option("--env", metavar="VARIABLE", help="The key is in this environment variable.")
@click.option("--cmd", metavar="COMMAND", help="This command prints the key.")
@click.option("--origin", metavar="URL", help="The server it is for. Default: whose key VARIABLE usually holds.")
@click.option(
    "--for", "given_to", multiple=True, metavar="PRINCIPAL", help="Who may have it, as agent:NAME. Default: all."
)
def command(call: Call, action: str, id: str | None, **options: Any) -> None:
    """Manage credentials: where keys are found.

    A key itself is never kept, only the variable or the command it is read from, the one server it is for, and who may
    have it. Without an action the credentials are listed.
    """
    has_options = any(options.values())
    if action == "list" and (id is not None or has_options):
        raise click.UsageError("list takes no id and no options of its own")
    if action != "list" and id is None:
        raise click.UsageError(f"{action} needs the id of a credential")
    if action == "remove" and has_options:
        raise click.UsageError("remove takes an id alone")
    {"add": _add, "list": _list, "remove": _remove}[action](call, id or "", options)


def _add(call: Call, id: str, options: dict[str, Any]) -> None:
    from weft.kernel.errors import LabelTaken
    from weft.runtime.egress.credentials import ORIGINS, Credential, checked_credential
    from weft.surfaces.cli.credentials import change_credentials

    env, cmd = options["env"], options["cmd"]
    if (env is None) == (cmd is None):
        raise click.UsageError("say where the key is found: --env VARIABLE or --cmd COMMAND")
    origin = options["origin"] or ORIGINS.get(env or "")
    if origin is None:
        raise click.UsageError("say which server it is for: --origin https://…")
    credential = checked_credential(
        Credential(id=id, origin=origin, env=env, command=_words(cmd), given_to=options["given_to"] or ("*",))
    )

    def change(credentials: tuple[Credential, ...]) -> tuple[Credential, ...]:
        if any(item.id == id for item in credentials):
            raise LabelTaken(id, "a credential")
        return (*credentials, credential)

    change_credentials(change)
    call.answer(credential, [Span(id, "label"), f" is read from {_place(credential)} for {credential.origin}"])


def _words(cmd: str | None) -> tuple[str, ...]:
    try:
        return () if cmd is None else tuple(shlex.split(cmd))
    except ValueError as error:
        raise click.UsageError(f"--cmd: {error}") from None


def _place(item: Any) -> str:
    return f"${item.env}" if item.env else f"`{shell_line(item.command)}`"


def _list(call: Call, _: str, __: dict[str, Any]) -> None:
    from weft.surfaces.cli.credentials import load_credentials

    credentials = load_credentials()
    if call.json:
        call.document(list(credentials))
    elif not credentials:
        call.note("no credentials yet: `weft credential add anthropic --env ANTHROPIC_API_KEY`")
    else:
        rows = [(Span(item.id, "label"), _place(item), item.origin, ", ".join(item.given_to)) for item in credentials]
        call.screen.table(rows, ("id", "found in", "for", "given to"))


def _remove(call: Call, id: str, _: dict[str, Any]) -> None:
    from weft.kernel.errors import CredentialMissing
    from weft.runtime.egress.credentials import Credential
    from weft.surfaces.cli.credentials import change_credentials

    def change(credentials: tuple[Credential, ...]) -> tuple[Credential, ...]:
        if not any(item.id == id for item in credentials):
            raise CredentialMissing(id, "there is none of this name")
        return tuple(item for item in credentials if item.id != id)

    change_credentials(change)
    call.answer(Removed(removed=id), [Span(id, "label"), " is no longer known; the key itself was never here"])
