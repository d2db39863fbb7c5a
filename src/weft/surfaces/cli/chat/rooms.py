"""The commands of rooms: who takes part and what changes, what there is and what was said, a
message that is posted and what it is answered; rooms as people read them. How a shell completes
them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from zlib import crc32

import click
from msgspec import Struct

from weft.kernel.message_text import find_mentions, shown_name
from weft.kernel.typed_names import shell_line, shell_word
from weft.surfaces.cli import arguments
from weft.surfaces.cli.command_line import OWNER, Call, SharedCommand, exit_code, hint_of, lines_of
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.programs.program_call import as_actor, message_text
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import STYLES, Line, Span, local_time
from weft.surfaces.cli.verb_commands import ROOM_ID_LETTERS, command_of, complete_rooms, shows
from weft.surfaces.plain_text import TAB, safe, safe_lines
from weft.verbs import message_verbs as verbs
from weft.verbs.answers import Listing
from weft.verbs.program_answers import AnsweredPost, DeclinedInvitation, RoomMember, ShownRoom

if TYPE_CHECKING:
    from weft.chat.triage import FailedAnswer
    from weft.kernel.errors import NotAllowed
    from weft.kernel.message_text import Addressee, TypedMentions
    from weft.ledger.api import (
        AgentProfile,
        Invitation,
        Ledger,
        Participant,
        PersonProfile,
        PostedMessage,
        Room,
        RoomMessage,
    )
    from weft.ledger.model import NewMessage, Part
    from weft.surfaces.cli.work.broker_call import BrokerAccess
    from weft.verbs.declaration import Verb


# --- Rooms as people read them: a name to type, what was said with mentions as `@name`, and notices of the system.

INDENT = " " * 6
NAME_STYLES = tuple(style for style in STYLES if style.startswith("name-"))


def short_id(id: str) -> str:
    """The end of a room's id, which names it as the whole does."""
    return id[-ROOM_ID_LETTERS:]


def name_style(name: str) -> str:
    """The colour of a name: everywhere and always the same one."""
    return NAME_STYLES[crc32(name.casefold().encode(errors="replace")) % len(NAME_STYLES)]


def room_name(room: Room) -> str:
    """What to type for a room."""
    return room.title or short_id(room.id)


def plain_text(text: str, names: Mapping[str, str]) -> str:
    """A text with its mentions as `@name`, by the names that those have now."""
    return "".join(span.text for span in mention_spans(text, names))


def mention_spans(text: str, names: Mapping[str, str], style: str = "") -> Iterator[Span]:
    """The same in pieces, so that mentions can be seen."""
    end = 0
    for mention in find_mentions(text):
        yield Span(text[end : mention.start], style)
        name = names.get(mention.id, mention.name)
        yield Span(f"@{shown_name(name)}", style or name_style(name))
        end = mention.end
    yield Span(text[end:], style)


def message_lines(message: RoomMessage, participants: Mapping[str, str]) -> list[Line]:
    """A message: at which position, who said it and when, and below it what. A notice is dim and has no author.
    `participants` are names by id."""
    names = {**participants, **{mention.id: mention.name for mention in message.mentions}}
    position = Span(f"{message.position:>4}  ", "dim")
    if message.kind == "system" and message.author_name is None:
        lines = list(_text_lines(message.text, names, "dim"))
        return [[position if number == 0 else INDENT, *line] for number, line in enumerate(lines)]
    head: Line = [
        position,
        Span(shown_name(message.author_name or "somebody"), name_style(message.author_name or "")),
        Span(f"  {local_time(message.posted_at)}", "dim"),
        Span("  interrupted" if {"turn", "interrupted"} <= message.meta.keys() else "", "warn"),
    ]
    return [head, *([INDENT, *line] for line in _content_lines(message, names))]


def _content_lines(message: RoomMessage, names: Mapping[str, str]) -> Iterator[Line]:
    from weft.ledger.model import ImagePart, TextPart

    for part in message.content:
        if isinstance(part, TextPart) and isinstance(part.text, str):
            yield from _text_lines(part.text, names)
        elif isinstance(part, TextPart):
            yield [Span("(erased)" if message.is_erased else "(its text is not there)", "dim")]
        elif isinstance(part, ImagePart):
            yield [Span("[image]", "dim")]


def _text_lines(text: str, names: Mapping[str, str], style: str = "") -> Iterator[Line]:
    """The lines of a text, each with its mentions as spans of their own."""
    line: list[Span | str] = []
    shown = text.replace("\r\n", "\n").rstrip("\n").replace("\t", TAB)
    for words, kind in mention_spans(shown, names, style):
        first, *more = words.split("\n")
        line.append(Span(first, kind))
        for next_line in more:
            yield line
            line = [Span(next_line, kind)]
    yield line


# --- What the commands of rooms take: a room, those who take part, and in whose name; and how a shell completes them.

F = TypeVar("F", bound=Callable[..., Any])


def complete_mentions(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """A message whose last word begins with an @: whom those letters may mean, participants first."""
    from weft.kernel.errors import WeftError

    before, at, letters = incomplete.rpartition("@")
    if not at:
        return []
    try:
        from weft.chat.room_stream import suggestions

        with Call.completing(ctx).reading() as ledger:
            names = [suggestion.name for suggestion in suggestions(ledger, str(ctx.params.get("room")), letters)]
    except (WeftError, OSError):
        return []
    return [f'{before}@"{name}"' if " " in name else f"{before}@{name}" for name in names]


def room_argument(*statuses: str) -> Callable[[F], F]:
    """An argument that names a room: by its title, its id or the end of that."""
    return click.argument("room", shell_complete=complete_rooms(*(statuses or ("active",))))


@contextmanager
def _told_who_lets_in(call: Call, actor: str, options: Mapping[str, Any]) -> Iterator[None]:
    """`--as` behind the command means what it means before it. Whoever opened the ledger and takes no part in the room
    is told how to be let in."""
    from weft.kernel.errors import NotAllowed

    call.actor = actor
    try:
        yield
    except NotAllowed as error:
        if actor != OWNER or call.token is not None or "room" not in options:
            raise
        line = room_command_line(call, "invite", options["room"], OWNER)
        raise NotAllowed(error.right, error.chain, _refused_act(error), f"`{line}` lets you in") from error


def in_persons_name(function: F) -> F:
    @wraps(function)
    def run(call: Call, *arguments: Any, actor: str, **options: Any) -> Any:
        with _told_who_lets_in(call, actor, options):
            return function(call, *arguments, **options)

    wrapped: F = as_actor(run)  # type: ignore[assignment]
    return wrapped


def room_verb(verb: Verb[..., Any]) -> SharedCommand:
    """The command of a verb, in whose name `--as` says; that option stands behind `--key`."""
    command = command_of(verb)
    run_verb = command.callback
    assert run_verb is not None

    @wraps(run_verb)
    def run(*arguments: Any, actor: str, **options: Any) -> Any:
        with _told_who_lets_in(click.get_current_context().ensure_object(Call), actor, options):
            return run_verb(*arguments, actor=actor, **options)

    command.callback = run
    names = [param.name for param in command.params]
    if "retry_key" in names:
        actor_at = names.index("actor")
        command.params.insert(names.index("retry_key"), command.params.pop(actor_at))
    return command


def _refused_act(error: NotAllowed) -> str:
    return str(error).partition(" may not ")[2]


def room_command_line(call: Call, *words: str) -> str:
    """A command of rooms as whoever acts would type it."""
    name = () if call.actor == OWNER or call.token is not None else ("--as", call.actor)
    return f"weft {shell_line(('room', *words, *name))}"


# --- The commands that change a room or who takes part in it.


def room_line(room: Room, *words: Span | str) -> Line:
    return ["room ", Span(short_id(room.id), "id"), " ", Span(room.title or "", "label"), *words]


@shows(verbs.room_create)
def show_created(call: Call, room: Room) -> None:
    call.screen.show(*room_line(room))
    call.note("undo: ", room_command_line(call, "archive", short_id(room.id)))


@shows(verbs.room_add)
def show_added(call: Call, changed: Room, room: str, agents: tuple[str, ...]) -> None:
    _show_let_in(call, changed, room, agents)


@shows(verbs.room_invite)
def show_invited(call: Call, changed: Room, room: str, people: tuple[str, ...]) -> None:
    _show_let_in(call, changed, room, people)


def _show_let_in(call: Call, changed: Room, room: str, names: tuple[str, ...]) -> None:
    words = " takes part" if len(names) == 1 else " take part"
    call.screen.show(*room_line(changed, ": ", ", ".join(names), words))
    for name in names:
        call.note("undo: ", room_command_line(call, "remove", room, name))


@shows(verbs.room_decline)
def show_declined(call: Call, declined: DeclinedInvitation) -> None:
    call.screen.show("the invitation of ", Span(declined.person, "user"), " is over")


@shows(verbs.room_remove)
def show_removed(call: Call, changed: verbs.ChangedRoom, room: str, who: str) -> None:
    call.screen.show(*room_line(changed.room, ": ", who, " takes part no longer"))
    if changed.who is not None:
        call.note("undo: ", room_command_line(call, _way_in(changed.who), room, who))


def _way_in(participant: Participant | None) -> str:
    return "add" if participant is not None and participant.kind == "agent" else "invite"


@shows(verbs.room_leave)
def show_left(call: Call, left: verbs.ChangedRoom, room: str) -> None:
    call.screen.show(*room_line(left.room, ": you take part no longer"))
    line = f"weft room {_way_in(left.who)} {shell_word(room)} {shell_word(call.actor)}"
    call.note("a participant can let you in again: ", line)


@shows(verbs.room_title)
def show_titled(call: Call, changed: verbs.ChangedRoom) -> None:
    call.screen.show(*room_line(changed.room))
    if changed.before.title:
        call.note("undo: ", room_command_line(call, "title", short_id(changed.room.id), changed.before.title))


@shows(verbs.room_archive)
def show_archived(call: Call, archived: Room) -> None:
    call.screen.show(*room_line(archived, " is archived"))
    call.note("undo: ", room_command_line(call, "restore", short_id(archived.id)))


@shows(verbs.room_restore)
def show_restored(call: Call, restored: Room) -> None:
    call.screen.show(*room_line(restored, " takes messages again"))
    call.note("undo: ", room_command_line(call, "archive", short_id(restored.id)))


@shows(verbs.room_fork)
def show_fork(call: Call, forked: Room, title: str | None) -> None:
    call.screen.show(*room_line(forked, f" goes on from message {forked.fork_position}"))
    if title is None and forked.title is not None:
        call.note("both rooms have that title: name this one by its id, or `weft room title` gives it another")
    call.note("undo: ", room_command_line(call, "archive", short_id(forked.id)))


# --- `weft room list`, `show`, `profile`, `read` and `invitations`: what there is, and what was said.

EMPTY = "you are in no room; `weft room create TITLE` makes one"


@shows(verbs.room_list)
def show_rooms(call: Call, rooms: verbs.RoomList, archived: bool) -> None:
    rows: list[list[Span | str]] = [
        [
            Span(short_id(room.id), "id"),
            str(room.participants),
            Span(str(room.unread or ""), "warn"),
            Span(str(room.unread_mentions or ""), "bad"),
            local_time(room.last_message_time or room.created_at),
            Span(room.title or "", "label"),
            Span(_room_state(room), "dim"),
        ]
        for room in rooms.items
    ]
    if rows:
        header = ["room", "in it", "unread", "mentions", "last message", "title", "state"]
        call.screen.table(rows, header, numbers=("in it", "unread", "mentions"), spare=["last message", "in it"])
    else:
        call.note("no room was archived" if archived else EMPTY)
    if rooms.invitations:
        waiting = counted(rooms.invitations, "invitation")
        call.note(f"{waiting} open: `weft room invitations` lists them")


def _room_state(room: Room) -> str:
    words = [] if room.status == "active" else [room.status]
    return ", ".join([*words, *(["of another ledger"] if room.is_foreign else []), *(["left"] if room.is_left else [])])


@shows(verbs.room_show)
def show_room(call: Call, shown: ShownRoom, room: str) -> None:
    lines = [*_room_lines(shown.room), *map(member_line, shown.members), *map(_waiting_line, shown.invitations)]
    call.screen.page(lines)
    if any(member.participant.is_abandoned for member in shown.members):
        call.note("the process that was answering is gone: `weft broker` goes on with it")
    if shown.invitations:
        line = room_command_line(call, "invite", room, shown.invitations[0].name)
        call.note(f"`{line}` lets them in")


def _room_lines(room: Room) -> Iterator[Line]:
    yield ["room ", Span(short_id(room.id), "id"), " ", Span(room.title or "(without a title)", "label")]
    history = "everything" if room.history == "all" else "what is said from then on"
    unread = f"{room.unread} not read, {counted(room.unread_mentions, 'mention')} of you" if room.unread else "all read"
    origin = None if room.forked_from is None else f"room {short_id(room.forked_from)} at message {room.fork_position}"
    for what, value in (
        ("made", f"by {room.created_by_name}, {local_time(room.created_at)}"),
        ("forked", origin),
        ("state", _room_state(room) or None),
        ("history", f"whoever joins reads {history}"),
        ("messages", f"{room.position}, {unread}"),
    ):
        if value:
            yield [Span(f"  {what:<9}", "dim"), value]
    yield ["takes part:"]


def member_line(member: RoomMember) -> Line:
    """Who somebody is, and what they do."""
    participant = member.participant
    kind = "system agent" if participant.system_kind else "agent" if participant.kind == "agent" else "person"
    status = participant.status if participant.kind == "agent" else ""
    if participant.is_abandoned:
        status = f"{status}, but nobody works on it"
    if participant.is_deleted or participant.is_removed:
        status = "deleted" if participant.is_deleted else "left"
    return [
        f"  {member.emoji or ' '} ",
        Span(participant.name, "user" if participant.kind == "user" else "assistant"),
        Span(f"  {kind}", "dim"),
        Span(f"  {status}" if status else "", "warn" if participant.status == "thinking" else "dim"),
        Span(f"  {member.avatar_url}" if member.avatar_url else "", "dim"),
    ]


def _waiting_line(invitation: Invitation) -> Line:
    return [
        "    ",
        Span(invitation.name, "user"),
        Span(f"  person  was mentioned by {invitation.invited_by}, not let in", "dim"),
    ]


@shows(verbs.room_profile)
def show_profile(call: Call, record: AgentProfile | PersonProfile) -> None:
    for line in _profile_lines(record):
        call.screen.show(*line)


def _profile_lines(record: AgentProfile | PersonProfile) -> Iterator[Line]:
    """The fields that there is something to tell of."""
    from weft.ledger.api import AgentProfile

    is_agent = isinstance(record, AgentProfile)
    yield [f"{record.emoji} ", Span(record.name, "assistant" if is_agent else "user")]
    for field in record.__struct_fields__:
        value = getattr(record, field)
        if field in ("name", "emoji", "created_by") or value in (None, (), False):
            continue
        if field.endswith(("_at", "_time")):
            value = local_time(value)
        text = ", ".join(value) if isinstance(value, tuple) else "yes" if value is True else str(value)
        words = field.removeprefix("is_").replace("_", " ")
        for number, line in enumerate(safe_lines(text) or [""]):
            yield [Span(f"  {words if number == 0 else '':<18}", "dim"), line]


@shows(verbs.room_invitations)
def show_invitations(call: Call, waiting: Listing[Invitation]) -> None:
    rows: list[list[Span | str]] = [
        [
            Span(short_id(invitation.conversation_id), "id"),
            Span(invitation.name, "user"),
            invitation.invited_by,
            local_time(invitation.invited_at),
            Span(invitation.conversation_title or "", "label"),
        ]
        for invitation in waiting.items
    ]
    if not rows:
        call.note("nobody waits to be let in")
        return
    call.screen.table(rows, ["room", "who", "mentioned by", "when", "title"], spare=["when"])
    if any(invitation.name != call.actor for invitation in waiting.items):
        call.note("`weft room invite ROOM PERSON` lets one in, `weft room decline ROOM PERSON` ends the invitation")
    if any(invitation.name == call.actor for invitation in waiting.items):
        call.note(
            "a participant lets you in; `", room_command_line(call, "decline", "ROOM"), "` ends your own invitation"
        )


@shows(verbs.room_read)
def show_messages(call: Call, read: verbs.ReadMessages, room: str, before: int | None, after: int | None) -> None:
    messages = read.items
    call.screen.page(line for message in messages for line in message_lines(message, read.names))
    if not messages and (before, after) != (None, None):
        where = f"behind message {after}" if before is None else f"before message {before}"
        call.note(f"there is nothing to read {where}; the room has {counted(read.room.position, 'message')}")
    elif not messages:
        call.note("there is nothing to read; `", room_command_line(call, "post", room, "TEXT"), "` says something")
    elif after is not None and not read.has_newest:
        call.note("there is more: ", room_command_line(call, "read", room, "--after", str(messages[-1].position)))
    elif after is None and read.has_earlier:
        call.note("earlier messages: ", room_command_line(call, "read", room, "--before", str(messages[0].position)))


# --- `weft room post`: say something in a room, and see what it is answered.

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

    A name that nobody has whom you can reach, or several have, stays text; the room says so, and triage is not asked.
    People are told of mentions by the channel that they prefer (`weft human create --channel`). Answers are printed as
    they are posted, also those of agents that other answers mention. Where an agent could not answer, a notice of the
    room says why, and the command ends with that error. Ctrl-C interrupts what is being answered.

    \b
    weft room post plans "@helper what is next?"
    weft room post plans "Who knows about taxes?" --no-wait
    """
    from weft.kernel.errors import InvalidInput

    words = message_text(text) or ""
    if not words.strip() and not attach:
        raise InvalidInput("the message is empty", "give a text, or pipe one in with -")
    if no_wait or call.token is not None:
        with call.writing() as ledger:
            receipt = _post_text(ledger, room, words, attach, key)
        _show_receipt(call, room, receipt.typed, receipt.posted)
        return
    answered, failures = _post_and_answer(call, room, words, attach, key)
    if call.json:
        call.document(answered)
    if failures:
        _end_with(call, failures)


def _post_text(ledger: Ledger, room: str, words: str, attach: tuple[str, ...], key: str | None) -> PostedText:
    from weft.kernel.message_text import write_typed_mentions

    record = ledger.rooms.get(room)
    is_all_read = not record.unread
    typed = write_typed_mentions(words, addressees(ledger, record.id) if "@" in words else ())
    posted = ledger.rooms.post(record.id, _message(typed.text, attach), key=key)
    return PostedText(typed, posted, is_all_read=is_all_read)


def _message(text: str, attach: tuple[str, ...]) -> NewMessage:
    from weft.kernel.enums import MessageRole
    from weft.ledger.model import NewMessage, TextPart
    from weft.surfaces.cli.work.broker_call import image_part

    parts: list[Part] = [*([TextPart(text)] if text.strip() else []), *map(image_part, attach)]
    return NewMessage(role=MessageRole.USER, content=tuple(parts))


def addressees(ledger: Ledger, room: str) -> list[Addressee]:
    """Whom a message of a room can mention by name: those who take part, and the agents and people that whoever acts
    can see."""
    from weft.kernel.message_text import Addressee
    from weft.ledger.model import DEFAULT_AGENT
    from weft.programs import Programs

    participants = ledger.rooms.participants(room)
    present = {
        participant.node: Addressee(kind=participant.kind, id=participant.node, name=participant.name, is_present=True)
        for participant in participants
    }
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


def _post_and_answer(
    call: Call, room: str, words: str, attach: tuple[str, ...], key: str | None
) -> tuple[AnsweredPost, list[FailedAnswer]]:
    """Post, and have it answered; answers are printed as they are posted."""
    from weft.surfaces.cli.work.broker_call import mention_notices, with_broker

    async def work(access: BrokerAccess) -> tuple[AnsweredPost, list[FailedAnswer]]:
        from weft.chat.triage import answer_pending
        from weft.runtime.broker.broker import to_the_end

        ledger, crossing = call.of_owner().in_name_of(call.actor, access.ledger), access.mirror.crossing
        mentions = await crossing.run(lambda: mention_notices(call, access))
        text = await to_the_end(crossing.run(lambda: _post_text(ledger, room, words, attach, key)))
        typed, posted = text.typed, text.posted
        _note_names(call, typed)
        call.note(f"posted as message {posted.position}")
        _note_invited(call, room, posted)
        await mentions.tell_new()
        names = await crossing.run(lambda: verbs.names_in(ledger, posted.conversation_id))
        answers: list[RoomMessage] = []

        def on_message(message: RoomMessage) -> None:
            answers.append(message)
            if not call.json:
                for line in message_lines(message, names):
                    call.screen.show(*line)

        access.prompts.answer_as(ledger)
        with access.prompts.typed():
            failures = await answer_pending(access.mirror, ledger, posted, access.planner, on_message=on_message)
        await mentions.tell_new()
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
        names = ", ".join(agent.name for agent in posted.reached)
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
