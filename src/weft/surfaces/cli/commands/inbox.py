"""`weft inbox`: the messages that wait, and those that could not be answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from weft.kernel.typed_names import shell_word
from weft.surfaces.cli import arguments
from weft.surfaces.cli.arguments import complete_messages
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.screen import Span
from weft.surfaces.cli.times import local_time

if TYPE_CHECKING:
    from weft.ledger.api import InboxMessage, Ledger

PAGE_MESSAGES = 500
WORDS = 60
"""So many characters of a message are shown."""


@weft_command("inbox")
@click.option("--dead", is_flag=True, help="Those whose turn failed instead: with the error, and what can be done.")
@arguments.session_option("Only those of this session.")
@click.option(
    "--cancel", metavar="ID", shell_complete=complete_messages("queued"), help="Take a message out that waits."
)
@click.option(
    "--again",
    metavar="ID",
    shell_complete=complete_messages("dead"),
    help="Send a message once more that is dead, or waits elsewhere.",
)
def command(call: Call, dead: bool, session: str | None, cancel: str | None, again: str | None) -> None:
    """List the messages that wait, and those that failed.

    They stand in the order in which each session answers them. A message is `taken` while a turn answers it, and gone
    from the list once it is answered. One whose turn failed is dead: it waits for a person, and stops nobody else. One
    that waits `elsewhere` was sent to the ledger that this one is a copy of, or that it came from.
    """
    if cancel is not None or again is not None:
        if (cancel is not None and again is not None) or dead or session:
            raise click.UsageError("--cancel and --again stand alone")
        _change(call, cancel, again)
        return
    with call.reading() as ledger:
        messages = list(_messages(ledger, session, ("dead",) if dead else ("queued", "taken")))
    if not dead:
        messages = _in_order(messages)
    if call.json:
        call.documents(messages)
    elif not messages:
        call.note("no message is dead" if dead else "no message waits; `weft inbox --dead` lists those that failed")
    elif dead:
        _show_dead(call, messages)
    else:
        _show_waiting(call, messages)


def _messages(ledger: Ledger, session: str | None, states: tuple[str, ...]) -> Iterator[InboxMessage]:
    after = 0
    while page := ledger.inbox.list(session=session, states=states, limit=PAGE_MESSAGES, after=after):
        yield from page
        after = page[-1].n


def _in_order(messages: list[InboxMessage]) -> list[InboxMessage]:
    """Session by session; within one, what a turn has, then the rest as it is answered."""
    first: dict[str, int] = {}
    for message in messages:
        first.setdefault(message.session_id, message.n)
    return sorted(messages, key=lambda one: (first[one.session_id], one.state == "queued", -one.priority, one.n))


def _show_waiting(call: Call, messages: list[InboxMessage]) -> None:
    rows: list[list[Span | str]] = [
        [
            Span(message.id, "id"),
            Span(message.session, "label"),
            Span("elsewhere" if message.is_elsewhere else message.state, "good" if message.state == "taken" else ""),
            message.mode,
            str(message.priority),
            message.sender,
            local_time(message.admitted_at),
            _words(message),
        ]
        for message in messages
    ]
    header = ["message", "session", "state", "queue", "priority", "sender", "since", "text"]
    call.screen.table(rows, header, numbers=["priority"], spare=["priority", "sender", "since", "queue"])
    elsewhere = next((message for message in messages if message.is_elsewhere), None)
    if elsewhere is not None:
        again = f"`weft inbox --again {shell_word(elsewhere.id)}`"
        call.note(f"what waits elsewhere is answered in the ledger that it was sent to; {again} sends it here, too")


def _show_dead(call: Call, messages: list[InboxMessage]) -> None:
    for message in messages:
        at = local_time(message.settled_at or message.admitted_at)
        call.screen.show(Span(message.id, "id"), " ", Span(message.session, "label"), f" {at}  {_words(message)}")
        call.screen.show("  ", Span(message.error or "no error was told", "bad"))
        retry = f"; `weft retry {shell_word(message.turn)}` goes on from its turn" if message.turn else ""
        call.screen.show(Span(f"  `weft inbox --again {shell_word(message.id)}` sends it once more{retry}", "dim"))


def _words(message: InboxMessage) -> str:
    from weft.ledger.model import TextPart
    from weft.surfaces.plain_text import cut_at_word, safe

    texts = [str(part.text) for part in message.content if isinstance(part, TextPart)]
    return cut_at_word(safe(" ".join(" ".join(texts).split())), WORDS)


def _change(call: Call, cancel: str | None, again: str | None) -> None:
    with call.writing() as ledger:
        if cancel is not None:
            ledger.inbox.cancel(cancel, reason="cancelled by hand")
            message = ledger.inbox.get(cancel)
            call.answer(message, [Span(message.id, "id"), " is cancelled"])
            return
        admission = ledger.inbox.send_again(str(again))
        message = ledger.inbox.get(admission.message)
    call.answer(message, [Span(message.id, "id"), " waits in session ", Span(message.session, "label")])
    call.note(f"`weft inbox --session {shell_word(message.session)}` shows it; a broker answers it")
