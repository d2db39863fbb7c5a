"""`weft config`: what the next message to a session would be answered with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.kernel.typed_names import shell_word
from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import complete_messages
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.configuration import (
    configuration_rows,
    configured_turn,
    override_options,
    read_configuration,
)

if TYPE_CHECKING:
    from weft.ledger.api import Ledger
    from weft.ledger.model import Session
    from weft.runtime.assembly.configuration_layers import MessageOverrides


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
def command(
    call: Call,
    session: str,
    model: str | None,
    situation: str | None,
    toolset: str | None,
    settings: tuple[str, ...],
    deny: tuple[str, ...],
    message: str | None,
) -> None:
    """Show the effective configuration of a session's next turn.

    Each value stands with the layer that it comes from: provider, model, situation, persona, thread, session, message.
    A later layer replaces the values of an earlier one; permissions only narrow. With options: as if a message were
    sent with them.
    """
    from weft.runtime.assembly.configuration_layers import parse_overrides

    if message is not None and (model or situation or toolset or settings or deny):
        raise click.UsageError("--for stands without other options: the message has its own")
    overrides = parse_overrides(model=model, situation=situation, toolset=toolset, settings=settings, deny=deny)
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
