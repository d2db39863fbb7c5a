"""`weft config`: what the next message to a session would be answered with."""

from __future__ import annotations

from weft.kernel.shell_words import shell_word
from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.configuration import (
    configuration_rows,
    configured_turn,
    override_options,
    read_configuration,
)


@weft_command("config")
@arguments.session()
@override_options
def command(
    call: Call, session: str, model: str | None, situation: str | None, settings: tuple[str, ...], deny: tuple[str, ...]
) -> None:
    """Show what the next message to a session is answered with, and why.

    Each value stands with the layer that it comes from: provider, model, situation, persona, thread, session, message.
    A later layer replaces the values of an earlier one; permissions only narrow. With options: as if a message were
    sent with them.
    """
    from weft.runtime.configuration.message_overrides import parse_overrides

    overrides = parse_overrides(model=model, situation=situation, settings=settings, deny=deny)
    with call.reading() as ledger:
        opened = ledger.session(session)
        turn = configured_turn(opened.label, read_configuration(call, ledger, opened.id, overrides))
    if call.json:
        call.document(turn)
        return
    call.screen.table(configuration_rows(turn), ["key", "value", "from"])
    if turn.model is None:
        call.note(f"no layer names a model; `weft session configure {shell_word(opened.label)} --model NAME` does")
    unsent = [value.key for value in turn.values if not value.sent]
    if unsent:
        call.note(f"{turn.model} does not take {', '.join(unsent)}")
