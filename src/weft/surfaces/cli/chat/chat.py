"""`weft chat`: talk with a model; every exchange is a turn. `weft room`, and of its commands those
that last: `chat` and `follow`, a room while things happen in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from weft.surfaces.cli import arguments
from weft.surfaces.cli.chat.rooms import in_persons_name, post, room_argument, room_command_line, room_verb
from weft.surfaces.cli.command_line import Call, group
from weft.surfaces.cli.command_line import command as weft_command
from weft.verbs import message_verbs as verbs

if TYPE_CHECKING:
    from weft.runtime.replies import TurnReply
    from weft.surfaces.cli.chat.conversation import Conversation
    from weft.surfaces.cli.turn_files import TurnNotes
    from weft.surfaces.cli.work.broker_call import BrokerAccess
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


# --- `weft room chat` and `weft room follow`: a room while things happen in it.


@weft_command("chat")
@room_argument()
@in_persons_name
def room_chat(call: Call, room: str) -> None:
    """Chat in a room: say things, see what others say, and answers while they are written.

    `@name` mentions somebody, and Tab completes it; agents that are mentioned answer, several at once. What you say is
    answered in this process, unless a broker is quicker. Tool calls that wait for a person are asked about here.

    On a terminal /help lists what else can be done. In a pipe every line is a message, answered before the next.

    Answers that are being written stand below what was said, one agent below the other; when they are posted they are
    shown whole, in their place among the messages. Ctrl-C drops the line that is typed; on an empty one it cuts the
    answers short that you wait for.

    \b
    weft room chat plans
    echo "@helper what is next?" | weft room chat plans
    """
    from weft.kernel.errors import NotApplicable
    from weft.surfaces.cli.chat.room_terminal import RoomTerminal, can_draw, run_piped
    from weft.surfaces.cli.work.broker_call import with_broker

    if call.json:
        raise click.UsageError("a conversation has no JSON form; `weft room post` and `weft room follow` have one")
    if call.token is not None:
        raise NotApplicable("whoever acts with a token runs no turns", "use `weft room post` and `weft room follow`")
    owner = call.of_owner()

    async def work(access: BrokerAccess) -> None:
        mirror = owner.in_name_of(call.actor, access.mirror)
        if can_draw():
            await RoomTerminal(owner, access, mirror).run(room)
        else:
            await run_piped(owner, access, mirror, room)

    with_broker(owner, work)


@weft_command("follow")
@room_argument("active", "archived")
@click.option("--after", type=int, metavar="POSITION", help="Start after this position; 0 is the beginning.")
@click.option("--wait", type=float, metavar="SECONDS", help="End when nothing has come for SECONDS; 0 does not wait.")
@in_persons_name
def room_follow(call: Call, room: str, after: int | None, wait: float | None) -> None:
    """Follow a room: what is said, who joins and leaves, and who is answering.

    It begins with what comes next, and goes on until it is interrupted or you take part no longer. With --after it goes
    on where somebody stopped: every message once and in order. With --json every line is a record
    with its `type`: messages, who came, went or is thinking, and answers piece by piece while they are written;
    docs/json.md has their fields.
    """
    import asyncio
    from contextlib import suppress

    from weft.surfaces.cli.chat.room_terminal import RoomPrinter

    printer = RoomPrinter(call)

    async def main() -> None:
        from weft.aio.crossing import Pool
        from weft.aio.ledger import AsyncLedger
        from weft.chat.room_stream import follow_room

        ledger, pool = call.reading(), Pool()
        try:
            async for item in follow_room(AsyncLedger(ledger, pool), room, after=after, wait=wait):
                printer.show(item)
        finally:
            await pool.close(ledger.close)

    with suppress(KeyboardInterrupt):  # how it ends
        asyncio.run(main())
    printer.close()
    if printer.position and not printer.is_ended and not call.json:
        call.note("what comes next: ", room_command_line(call, "follow", room, "--after", str(printer.position)))


# --- `weft room`: conversations of people and agents.

room_command = group(
    "room",
    """Talk in rooms: people and agents together.

    Agents answer where they are mentioned; a message that mentions nobody goes to the triage agent. ROOM is a title, an
    id or the end of one. Every command takes --as NAME: who acts, by default local, the ledger's owner, who reads every
    room. docs/rooms.md has the details.
    """,
    room_verb(verbs.room_create),
    room_verb(verbs.room_list),
    room_verb(verbs.room_show),
    post,
    room_verb(verbs.room_read),
    room_chat,
    room_follow,
    room_verb(verbs.room_add),
    room_verb(verbs.room_invite),
    room_verb(verbs.room_remove),
    room_verb(verbs.room_invitations),
    room_verb(verbs.room_decline),
    room_verb(verbs.room_profile),
    room_verb(verbs.room_title),
    room_verb(verbs.room_fork),
    room_verb(verbs.room_leave),
    room_verb(verbs.room_archive),
    room_verb(verbs.room_restore),
)
