"""`weft room post`: say something in a room, and see what it is answered."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import click
from msgspec import Struct

from weft.surfaces.cli import arguments
from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.exits import exit_code, hint_of, lines_of
from weft.surfaces.cli.program_call import message_text
from weft.surfaces.cli.rooms.options import complete_mentions, in_persons_name, room_argument, room_command_line
from weft.surfaces.cli.rooms.text import message_lines, plain_text
from weft.surfaces.cli.screen import Span
from weft.surfaces.plain_text import safe
from weft.surfaces.wire.rooms import AnsweredPost

if TYPE_CHECKING:
    from weft.chat.triage import FailedAnswer
    from weft.kernel.message_text import Addressee, TypedMentions
    from weft.ledger.api import Ledger, PostedMessage, RoomMessage
    from weft.ledger.model import NewMessage, Part
    from weft.surfaces.cli.broker_call import BrokerAccess

MOST_MARKED = 1000
"""At most so many messages behind one that was posted are marked as read with its answers."""


class PostedText(Struct, frozen=True):
    """A message that was posted, as it was typed, and whether its author had read all that came before."""

    typed: TypedMentions
    posted: PostedMessage
    is_all_read: bool


@weft_command("post")
@room_argument()
@click.argument("text", shell_complete=complete_mentions)
@click.option("--attach", metavar="FILE", type=click.Path(), multiple=True, help="An image; repeatable.")
@click.option("--no-wait", is_flag=True, help="Post it and end; `weft broker` has it answered.")
@arguments.key_option
@in_persons_name
def post(call: Call, room: str, text: str, attach: tuple[str, ...], no_wait: bool, key: str | None) -> None:
    """Say something in a room, and show what it is answered.

    TEXT is read from standard input where it is -. `@name` mentions a participant, an agent or a person, `@"two words"`
    one whose name has spaces. Agents that are mentioned answer; a message that mentions nobody goes to the triage
    agent, which finds who is meant. It is recorded before anything is asked: if this process dies, any broker goes on.
    Whoever acts with a token leaves it to a broker, as with --no-wait.

    \b
    weft room post plans "@helper what is next?"
    weft room post plans "Who knows about taxes?" --no-wait
    """
    from weft.kernel.errors import InvalidInput

    words = message_text(text) or ""
    if not words.strip() and not attach:
        raise InvalidInput("the message is empty", "say something")
    if no_wait or call.token is not None:
        with call.writing() as ledger:
            receipt = _posted(ledger, room, words, attach, key)
        _show_receipt(call, room, receipt.typed, receipt.posted)
        return
    answered, failures = _answered(call, room, words, attach, key)
    if call.json:
        call.document(answered)
    if failures:
        _end_with(call, failures)


def _posted(ledger: Ledger, room: str, words: str, attach: tuple[str, ...], key: str | None) -> PostedText:
    from weft.kernel.message_text import write_typed_mentions

    record = ledger.rooms.get(room)
    is_all_read = not record.unread
    typed = write_typed_mentions(words, addressees(ledger, record.id) if "@" in words else ())
    posted = ledger.rooms.post(record.id, _message(typed.text, attach), key=key)
    return PostedText(typed, posted, is_all_read=is_all_read)


def _message(text: str, attach: tuple[str, ...]) -> NewMessage:
    from weft.kernel.enums import MessageRole
    from weft.ledger.model import NewMessage, TextPart
    from weft.surfaces.cli.attachments import image_part

    parts: list[Part] = [*([TextPart(text)] if text.strip() else []), *map(image_part, attach)]
    return NewMessage(role=MessageRole.USER, content=tuple(parts))


def addressees(ledger: Ledger, room: str) -> list[Addressee]:
    """Whom a message of a room can mention by name: those who take part, and the agents and people that whoever acts
    can see."""
    from weft.kernel.message_text import Addressee
    from weft.ledger.model import DEFAULT_AGENT
    from weft.programs import Programs

    participants = ledger.rooms.participants(room)
    present = {one.node: Addressee(kind=one.kind, id=one.node, name=one.name, is_present=True) for one in participants}
    programs = Programs(ledger)
    others = [
        Addressee(kind=kind, id=program.id, name=program.name, is_present=False)
        for kind, program_kind in (("agent", "agent"), ("user", "human"))
        for program in programs.all(program_kind)
        if program.id not in present
    ]
    if DEFAULT_AGENT not in present:
        others.append(Addressee(kind="user", id=DEFAULT_AGENT, name=DEFAULT_AGENT, is_present=False))
    return [*present.values(), *others]


def _answered(
    call: Call, room: str, words: str, attach: tuple[str, ...], key: str | None
) -> tuple[AnsweredPost, list[FailedAnswer]]:
    """Post, and have it answered; answers are printed as they are posted."""
    from weft.surfaces.cli.broker_call import with_broker

    async def work(access: BrokerAccess) -> tuple[AnsweredPost, list[FailedAnswer]]:
        from weft.chat.triage import answer_pending
        from weft.runtime.broker.broker import to_the_end

        ledger, crossing = call.of_owner().in_name_of(call.actor, access.ledger), access.mirror.crossing
        text = await to_the_end(crossing.run(lambda: _posted(ledger, room, words, attach, key)))
        typed, posted = text.typed, text.posted
        _note_names(call, typed)
        call.note(f"posted as message {posted.position}")
        _note_invited(call, room, posted)
        names = await crossing.run(lambda: _names(ledger, posted.conversation_id))
        answers: list[RoomMessage] = []

        def on_message(message: RoomMessage) -> None:
            answers.append(message)
            if not call.json:
                for line in message_lines(message, names):
                    call.screen.show(*line)

        access.prompts.answer_as(ledger)
        with access.prompts.typed():
            failures = await answer_pending(access.mirror, ledger, posted, access.planner, on_message=on_message)
        if text.is_all_read:
            await crossing.run(lambda: _mark_read(ledger, posted, {answer.id for answer in answers}))
        waiting = await crossing.run(lambda: ledger.rooms.pending(posted.conversation_id, posted.message))
        unknown = (*typed.unknown, *typed.ambiguous)
        answered = AnsweredPost(posted=posted, answers=tuple(answers), waiting=tuple(waiting), unknown=unknown)
        return answered, failures

    return with_broker(call.of_owner(), work)


def _mark_read(ledger: Ledger, posted: PostedMessage, printed: set[str]) -> None:
    """Up to the last message before which everything was printed: whoever posted had read all that came before."""
    position = posted.position
    for message in ledger.rooms.messages(posted.conversation_id, after=position, limit=MOST_MARKED):
        if message.kind == "participant" and message.id not in printed:
            break
        position = message.position
    ledger.rooms.mark_read(posted.conversation_id, position)


def _names(ledger: Ledger, room: str) -> dict[str, str]:
    """Who takes or took part, by id."""
    return {one.node: one.name for one in ledger.rooms.participants(room, removed=True)}


def _show_receipt(call: Call, room: str, typed: TypedMentions, posted: PostedMessage) -> None:
    _note_names(call, typed)
    answered = AnsweredPost(posted=posted, waiting=posted.reached, unknown=(*typed.unknown, *typed.ambiguous))
    call.answer(
        answered,
        [Span(posted.message, "id"), f" is message {posted.position}"],
        *([Span(plain_text(notice, {}), "dim")] for notice in posted.notices),
    )
    _note_invited(call, room, posted)
    if posted.reached:
        names = ", ".join(one.name for one in posted.reached)
        call.note(f"{names} will answer when a broker runs: `weft broker` is one")
        call.note("what is said: ", room_command_line(call, "read", room))


def _note_invited(call: Call, room: str, posted: PostedMessage) -> None:
    for name in posted.invited:
        call.note("let them in: ", room_command_line(call, "invite", room, name))


def _note_names(call: Call, typed: TypedMentions) -> None:
    for name in typed.unknown:
        call.note(f"nobody is called {name!r}: @{name} stays text")
    for name in typed.ambiguous:
        call.note(f"several are called {name!r}: @{name} stays text; write @[{name}](agent:ID)")


def _end_with(call: Call, failures: Sequence[FailedAnswer]) -> NoReturn:
    """The agents that could not answer, each once; the last of them ends the command. At a terminal the room's notice
    has told why, and only what to do about it is said."""
    is_reason_shown = call.screen.terminal and sys.stderr.isatty() and not call.json
    last = failures[-1].error
    for failure in () if call.json else failures if is_reason_shown else failures[:-1]:
        for line in () if is_reason_shown else lines_of(failure.error):
            click.echo(line, err=True)
        if not call.quiet and (hint := hint_of(failure.error)):
            click.echo(f"hint: {safe(hint)}", err=True)
    if is_reason_shown:
        click.get_current_context().exit(exit_code(last))
    raise last
