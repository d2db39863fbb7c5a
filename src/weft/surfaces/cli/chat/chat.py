"""`weft chat`: talk with a model; every exchange is a turn."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from weft.surfaces.cli import arguments
from weft.surfaces.cli.command_line import Call
from weft.surfaces.cli.command_line import command as weft_command

if TYPE_CHECKING:
    from weft.runtime.replies import TurnReply
    from weft.surfaces.cli.chat.conversation import Conversation
    from weft.surfaces.cli.turn_files import TurnNotes
    from weft.verbs.answers import ChatReply


def complete_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from weft.runtime.inference.local_models import model_folder
    from weft.surfaces.cli.chat.models import keyed
    from weft.surfaces.cli.programs.program_call import complete_programs

    here = [file.name for file in model_folder(os.environ.get).fetched()]
    models = ["local", *here, *(vendor.kind.value for vendor, _ in keyed(os.environ.get))]
    return [
        *(name for name in models if name.startswith(incomplete)),
        *complete_programs("model")(ctx, param, incomplete),
    ]


@weft_command("chat")
@arguments.session(required=False)
@click.option(
    "--model",
    metavar="NAME",
    shell_complete=complete_models,
    help="Who answers: local, a fetched model, a model program, a provider, or a provider/NAME.",
)
@click.option("--system", metavar="TEXT", help="What the model is told before everything else.")
@click.option("--new", is_flag=True, help="Begin a new session.")
def chat_command(call: Call, session: str | None, model: str | None, system: str | None, new: bool) -> None:
    """Chat with a model; every exchange is a turn.

    Goes on in SESSION, by default the session chat, where it stood. The embedded model answers, which needs no key and
    no network; with a key in ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY or GOOGLE_API_KEY that provider does.

    On a terminal /help lists what else can be done. In a pipe one message goes in and one answer comes out.

    On a terminal answers come as they are made. docs/models.md#chat has the details.

    \b
    weft chat                                   go on in the session chat
    weft chat ideas --model anthropic           in another one, answered by Anthropic
    echo "What is a ledger?" | weft chat --new  one message, one answer
    """
    from weft.surfaces.cli.user_files import find_ledger

    path = find_ledger(call.ledger)
    message = None if _is_at_terminal(call) else _piped()
    with _talking(call, system) as talk:
        talk.sit_down(session, is_new=new)
        _choose(call, talk, model, is_asked=message is None)
        if message is None:
            from weft.surfaces.cli.chat.terminal import Terminal

            Terminal(call, talk, path).run()
        else:
            _answer_once(call, talk, message)


@contextmanager
def _talking(call: Call, system: str | None) -> Iterator[Conversation]:
    with call.writing() as ledger:
        ledger.trust.ensure("send a message to a model")
        from weft.programs import Programs
        from weft.surfaces.cli.chat.conversation import Conversation
        from weft.surfaces.cli.programs.program_call import acting_person, note_retry
        from weft.surfaces.cli.work.approvals import ApprovalPrompts

        on_retry, programs = partial(note_retry, call), Programs(ledger)
        talk = Conversation(
            ledger,
            os.environ.get,
            person=lambda: acting_person(call, programs),
            system=system,
            on_retry=on_retry,
            on_note=call.note,
        )
        talk.prompts = ApprovalPrompts(call, ledger, talk.people)
        try:
            yield talk
        finally:
            talk.close()


def _is_at_terminal(call: Call) -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and not call.json


def _choose(call: Call, talk: Conversation, model: str | None, *, is_asked: bool) -> None:
    """Who answers. Where nobody said so, servers that run on this machine are offered, in a pipe named."""
    from weft.surfaces.cli.chat.conversation import hints, offer

    if talk.is_undecided(model) and (is_asked or not (call.quiet or call.json)):
        servers = talk.running_servers()
        if is_asked and (chosen := offer(call, servers)) is not None:
            talk.choose_served(call, chosen)
            return
        for hint in () if is_asked else hints(servers):
            call.note(hint)
    talk.choose(model)


def _piped() -> str:
    from weft.kernel.errors import InvalidInput
    from weft.surfaces.cli.arguments import stdin_bytes

    data = stdin_bytes().read()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the message is not UTF-8: {error}", "pipe text") from None
    if not text.strip():
        raise click.UsageError("there is no message: pipe one in, or run it on a terminal")
    return text.strip("\n")


def _answer_once(call: Call, talk: Conversation, message: str) -> None:
    sent = talk.say(message)
    if sent is None:
        raise click.Abort
    from weft.surfaces.cli.turn_files import note_turn, turn_notes_of

    notes = turn_notes_of(call, talk.ledger, [sent.turn.id])
    if call.json:
        call.document(_reply_form(talk.label, sent, notes))
        return
    from weft.surfaces.plain_text import safe_lines

    for line in safe_lines(sent.reply.text):
        call.screen.show(line)
    note_turn(call, notes)


def _reply_form(label: str, sent: TurnReply, notes: TurnNotes) -> ChatReply:
    from weft.surfaces.cli.work.broker_call import reply_fields
    from weft.verbs.answers import ChatReply

    reply = sent.reply
    return ChatReply(
        session=label,
        latency_ms=reply.latency_ms,
        request_id=reply.request_id,
        attempts=len(reply.attempts),
        **notes.fields(),
        **reply_fields(sent),
    )
