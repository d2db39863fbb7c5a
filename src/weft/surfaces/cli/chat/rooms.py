"""The commands of rooms: who takes part and what changes, what there is and what was said, a
message that is posted and what it is answered; rooms as people read them. How a shell completes
them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from zlib import crc32

import click
from msgspec import Struct

from weft.kernel.message_text import find_mentions, shown_name
from weft.kernel.typed_names import shell_line, shell_word
from weft.surfaces.cli import arguments
from weft.surfaces.cli.command_line import OWNER, Call, exit_code, hint_of, lines_of
from weft.surfaces.cli.command_line import command as weft_command
from weft.surfaces.cli.programs.program_call import as_actor, complete_programs, message_text, named
from weft.surfaces.cli.progress import counted
from weft.surfaces.cli.screen import STYLES, Line, Span, local_time
from weft.surfaces.plain_text import TAB, safe, safe_lines
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


# --- Rooms as people read them: a name to type, what was said with mentions as `@name`, and notices of the system.

SHORT_ID_LETTERS = 8
INDENT = " " * 6
NAME_STYLES = tuple(style for style in STYLES if style.startswith("name-"))


def short_id(id: str) -> str:
    """The end of a room's id, which names it as the whole does."""
    return id[-SHORT_ID_LETTERS:]


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
MOST_ROOMS = 1000


def complete_rooms(*statuses: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """The titles of the rooms of whoever acts; of one without a title the end of its id."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from weft.kernel.errors import WeftError

        try:
            with Call.completing(ctx).reading() as ledger:
                rooms = [room for status in statuses for room in ledger.rooms.list(status=status, limit=MOST_ROOMS)]
        except (WeftError, OSError):
            return []
        return [name for name in map(room_name, rooms) if name.startswith(incomplete)]

    return complete


def complete_participants(*kinds: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """The names of those who take part in the room that the line names."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from weft.kernel.errors import WeftError

        try:
            with Call.completing(ctx).reading() as ledger:
                participants = ledger.rooms.participants(str(ctx.params.get("room")))
        except (WeftError, OSError):
            return []
        names = [
            participant.name
            for participant in participants
            if participant.kind in kinds and participant.system_kind is None
        ]
        return [name for name in names if name.startswith(incomplete)]

    return complete


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


def in_persons_name(function: F) -> F:
    """`--as` behind the command means what it means before it. Whoever opened the ledger and takes no part in the room
    is told how to be let in."""

    @wraps(function)
    def run(call: Call, *arguments: Any, actor: str, **options: Any) -> Any:
        from weft.kernel.errors import NotAllowed

        call.actor = actor
        try:
            return function(call, *arguments, **options)
        except NotAllowed as error:
            if actor != OWNER or call.token is not None or "room" not in options:
                raise
            line = room_command_line(call, "invite", options["room"], OWNER)
            raise NotAllowed(error.right, error.chain, _refused_act(error), f"`{line}` lets you in") from error

    wrapped: F = as_actor(run)  # type: ignore[assignment]
    return wrapped


def _refused_act(error: NotAllowed) -> str:
    return str(error).partition(" may not ")[2]


def room_command_line(call: Call, *words: str) -> str:
    """A command of rooms as whoever acts would type it."""
    name = () if call.actor == OWNER or call.token is not None else ("--as", call.actor)
    return f"weft {shell_line(('room', *words, *name))}"


# --- The commands that change a room or who takes part in it.

HISTORIES = ("joined", "all")


def room_line(room: Room, *words: Span | str) -> Line:
    return ["room ", Span(short_id(room.id), "id"), " ", Span(room.title or "", "label"), *words]


@weft_command("create")
@click.argument("title", required=False)
@click.option(
    "--agent", "agents", metavar="AGENT", multiple=True, shell_complete=complete_programs("agent"),
    help="An agent that takes part; repeatable.",
)  # fmt: skip
@click.option(
    "--person", "people", metavar="PERSON", multiple=True, shell_complete=complete_programs("human"),
    help="A person who takes part beside you; repeatable.",
)  # fmt: skip
@click.option(
    "--history", type=click.Choice(HISTORIES), default="joined",
    help="What those read who join later: what is said from then on, or all. Default: joined.",
)  # fmt: skip
@arguments.key_option
@in_persons_name
def create(
    call: Call,
    title: str | None,
    agents: tuple[str, ...],
    people: tuple[str, ...],
    history: str,
    key: str | None,
) -> None:
    """Make a room, with agents and people in it. You take part, and so does the triage agent."""
    with call.writing() as ledger:
        room = ledger.rooms.create(title, agents=agents, people=people, history=history, key=key)
    call.answer(room, room_line(room))
    call.note("undo: ", room_command_line(call, "archive", short_id(room.id)))


@weft_command("add")
@room_argument()
@named("agents", "agent", nargs=-1, required=True, metavar="AGENT...")
@in_persons_name
def add(call: Call, room: str, agents: tuple[str, ...]) -> None:
    """Add agents to a room: public ones, and private ones that work for you."""
    _let_in(call, room, agents, lambda ledger, id, agent: ledger.rooms.add(id, agent))


@weft_command("invite")
@room_argument()
@named("people", "human", nargs=-1, required=True, metavar="PERSON...")
@in_persons_name
def invite(call: Call, room: str, people: tuple[str, ...]) -> None:
    """Let people into a room. That confirms the invitation of somebody who was mentioned there."""
    _let_in(call, room, people, lambda ledger, id, person: ledger.rooms.invite(id, person))


def _let_in(call: Call, room: str, names: tuple[str, ...], let_in: Callable[[Ledger, str, str], Room]) -> None:
    """Each name is a change of its own: those before one that is refused have taken place."""
    with call.writing() as ledger:
        changed = ledger.rooms.get(room)
        for name in dict.fromkeys(names):
            changed = let_in(ledger, changed.id, name)
    call.answer(changed, room_line(changed, ": ", ", ".join(names), " takes part" if len(names) == 1 else " take part"))
    for name in names:
        call.note("undo: ", room_command_line(call, "remove", room, name))


@weft_command("decline")
@room_argument()
@named("person", "human", required=False)
@in_persons_name
def decline(call: Call, room: str, person: str | None) -> None:
    """End an invitation without anybody joining: your own, or as a participant that of PERSON."""
    invited = person or call.actor
    with call.writing() as ledger:
        ledger.rooms.decline(room, invited)
    declined = DeclinedInvitation(room=room, person=invited)
    call.answer(declined, ["the invitation of ", Span(invited, "user"), " is over"])


@weft_command("remove")
@room_argument()
@click.argument("who", shell_complete=complete_participants("agent", "user"))
@in_persons_name
def remove(call: Call, room: str, who: str) -> None:
    """Take an agent or a person out of a room. What was said stays; what an agent has not begun to answer is dropped.

    People are removed by whoever made the room. An agent's owner may keep its removal to
    themselves; system agents stay.
    """
    with call.writing() as ledger:
        record = ledger.rooms.get(room)
        participant = next(
            (member for member in ledger.rooms.participants(record.id) if who in (member.name, member.node)), None
        )
        ledger.rooms.remove(record.id, who)
        changed = ledger.rooms.get(record.id)
    call.answer(changed, room_line(changed, ": ", who, " takes part no longer"))
    if participant is not None:
        verb = "add" if participant.kind == "agent" else "invite"
        call.note("undo: ", room_command_line(call, verb, room, who))


@weft_command("leave")
@room_argument()
@in_persons_name
def leave(call: Call, room: str) -> None:
    """Leave a room. What was said until then you can still read."""
    with call.writing() as ledger:
        record = ledger.rooms.get(room)
        participants = ledger.rooms.participants(record.id)
        ledger.rooms.leave(record.id)
        left = ledger.rooms.get(record.id)
    call.answer(left, room_line(left, ": you take part no longer"))
    is_agent = any(
        participant.kind == "agent" and call.actor in (participant.name, participant.node)
        for participant in participants
    )
    verb = "add" if is_agent else "invite"
    call.note("a participant can let you in again: ", f"weft room {verb} {shell_word(room)} {shell_word(call.actor)}")


@weft_command("title")
@room_argument()
@click.argument("title")
@in_persons_name
def title(call: Call, room: str, title: str) -> None:
    """Give a room another title."""
    with call.writing() as ledger:
        before = ledger.rooms.get(room)
        changed = ledger.rooms.retitle(before.id, title)
    call.answer(changed, room_line(changed))
    if before.title:
        call.note("undo: ", room_command_line(call, "title", short_id(changed.id), before.title))


@weft_command("archive")
@room_argument()
@in_persons_name
def archive(call: Call, room: str) -> None:
    """Archive a room: nothing more is said in it, and lists leave it out. Whoever made it does that."""
    with call.writing() as ledger:
        archived = ledger.rooms.archive(room)
    call.answer(archived, room_line(archived, " is archived"))
    call.note("undo: ", room_command_line(call, "restore", short_id(archived.id)))


@weft_command("restore")
@room_argument("archived")
@in_persons_name
def restore(call: Call, room: str) -> None:
    """Bring an archived room back."""
    with call.writing() as ledger:
        restored = ledger.rooms.restore(room)
    call.answer(restored, room_line(restored, " takes messages again"))
    call.note("undo: ", room_command_line(call, "archive", short_id(restored.id)))


@weft_command("fork")
@room_argument("active", "archived")
@click.argument("position", required=False, type=click.IntRange(1))
@click.option("--title", metavar="TITLE", help="The new room's title. Default: that of the other one.")
@in_persons_name
def fork(call: Call, room: str, position: int | None, title: str | None) -> None:
    """Make a new room that goes on from a message of another one, by default its newest.

    The agents that were there come along, with forks of their sessions; of the people only you. Both rooms go on
    independently.
    """
    with call.writing() as ledger:
        forked = ledger.rooms.fork(room, position, title=title)
    call.answer(forked, room_line(forked, f" goes on from message {forked.fork_position}"))
    if title is None and forked.title is not None:
        call.note("both rooms have that title: name this one by its id, or `weft room title` gives it another")
    call.note("undo: ", room_command_line(call, "archive", short_id(forked.id)))


# --- `weft room list`, `show`, `profile`, `read` and `invitations`: what there is, and what was said.

PAGE_MESSAGES = 1000
SHOWN_MESSAGES = 50
EMPTY = "you are in no room; `weft room create TITLE` makes one"


@weft_command("list")
@click.option("--archived", is_flag=True, help="Only archived rooms.")
@click.option("--all", "is_every", is_flag=True, help="Archived rooms too.")
@click.option(
    "-n",
    "--limit",
    "limit",
    metavar="N",
    type=click.IntRange(1, MOST_ROOMS),
    default=100,
    help="At most N rooms. Default: 100.",
)
@in_persons_name
def list_(call: Call, archived: bool, is_every: bool, limit: int) -> None:
    """List your rooms, with what you have not read; where somebody spoke last comes first.

    A row also says how often you are mentioned in what you have not read.
    """
    if archived and is_every:
        raise click.UsageError("say --archived or --all")
    status = None if is_every else "archived" if archived else "active"
    with call.reading() as ledger:
        rooms = ledger.rooms.list(status=status, limit=limit)
        invitations = ledger.rooms.invitations()
    if call.json:
        call.documents(rooms)
        return
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
        for room in rooms
    ]
    if rows:
        header = ["room", "in it", "unread", "mentions", "last message", "title", "state"]
        call.screen.table(rows, header, numbers=("in it", "unread", "mentions"), spare=["last message", "in it"])
    else:
        call.note("no room was archived" if archived else EMPTY)
    if invitations:
        waiting = counted(len(invitations), "invitation")
        call.note(f"{waiting} open: `weft room invitations` lists them")


def _room_state(room: Room) -> str:
    words = [] if room.status == "active" else [room.status]
    return ", ".join([*words, *(["of another ledger"] if room.is_foreign else []), *(["left"] if room.is_left else [])])


@weft_command("show")
@room_argument("active", "archived")
@click.option("--removed", is_flag=True, help="Those, too, who take part no longer.")
@in_persons_name
def show(call: Call, room: str, removed: bool) -> None:
    """Show a room: its title, who takes part and what they do, what you have not read, who waits to be let in.

    An agent is thinking while it has something to answer.
    """
    with call.reading() as ledger:
        record = ledger.rooms.get(room)
        participants = ledger.rooms.participants(record.id, removed=removed)
        shown = ShownRoom(
            room=record,
            members=tuple(room_member(ledger, participant) for participant in participants),
            invitations=tuple(ledger.rooms.invitations(record.id)),
        )
    if call.json:
        call.document(shown)
        return
    call.screen.page([*_room_lines(record), *map(member_line, shown.members), *map(_waiting_line, shown.invitations)])
    if any(participant.is_abandoned for participant in participants):
        call.note("the process that was answering is gone: `weft broker` goes on with it")
    if shown.invitations:
        line = room_command_line(call, "invite", room, shown.invitations[0].name)
        call.note(f"`{line}` lets them in")


def room_member(ledger: Ledger, participant: Participant) -> RoomMember:
    """How somebody in a room is shown, as far as whoever looks may know them."""
    from weft.kernel.errors import NotFound

    try:
        if participant.agent_id is None:
            person = ledger.rooms.person(participant.node)
            picture, emoji, active = person.image, person.emoji, person.last_active_time
        else:
            agent = ledger.rooms.agent(participant.node)
            picture, emoji, active = agent.avatar_url, agent.emoji, agent.last_active_time
    except NotFound:
        return RoomMember(participant=participant)
    return RoomMember(participant=participant, avatar_url=picture, emoji=emoji, last_active_time=active)


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


@weft_command("profile")
@named("name", "agent", "human")
@in_persons_name
def profile(call: Call, name: str) -> None:
    """Show what an agent or a person tells of themselves. Private agents are there for those they work for.

    Of an agent these are its description, personality, tools, who made it and whether it is public, picture or emoji,
    and when it was last active.
    """
    from weft.kernel.errors import Action, NotFound

    with call.reading() as ledger:
        for look in (ledger.rooms.agent, ledger.rooms.person):
            with suppress(NotFound):
                record = look(name)
                call.answer(record, *_profile_lines(record))
                return
    raise NotFound("agent or person", name, Action.LIST_PROGRAMS)


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


@weft_command("invitations")
@click.argument("room", required=False)
@in_persons_name
def invitations(call: Call, room: str | None) -> None:
    """List people who were mentioned in a room and take no part in it: of ROOM, or of all your rooms and of yourself.

    A participant lets them in with `weft room invite`; `weft room decline` ends an invitation.
    """
    with call.reading() as ledger:
        waiting = ledger.rooms.invitations(room)
    if call.json:
        call.documents(waiting)
        return
    rows: list[list[Span | str]] = [
        [
            Span(short_id(invitation.conversation_id), "id"),
            Span(invitation.name, "user"),
            invitation.invited_by,
            local_time(invitation.invited_at),
            Span(invitation.conversation_title or "", "label"),
        ]
        for invitation in waiting
    ]
    if not rows:
        call.note("nobody waits to be let in")
        return
    call.screen.table(rows, ["room", "who", "mentioned by", "when", "title"], spare=["when"])
    if any(invitation.name != call.actor for invitation in waiting):
        call.note("`weft room invite ROOM PERSON` lets one in, `weft room decline ROOM PERSON` ends the invitation")
    if any(invitation.name == call.actor for invitation in waiting):
        call.note(
            "a participant lets you in; `", room_command_line(call, "decline", "ROOM"), "` ends your own invitation"
        )


@weft_command("read")
@room_argument("active", "archived")
@click.option(
    "-n",
    "--limit",
    "limit",
    metavar="N",
    type=click.IntRange(1, PAGE_MESSAGES),
    help="At most N messages. Default: 50.",
)
@click.option("--before", metavar="POSITION", type=click.IntRange(1), help="The newest messages before this position.")
@click.option("--after", metavar="POSITION", type=click.IntRange(0), help="Start after this position.")
@click.option("--all", "is_every", is_flag=True, help="All of them.")
@click.option("--keep-unread", is_flag=True, help="Do not mark them as read.")
@in_persons_name
def read(
    call: Call,
    room: str,
    limit: int | None,
    before: int | None,
    after: int | None,
    is_every: bool,
    keep_unread: bool,
) -> None:
    """Print what was said in a room, the oldest first, and mark it as read.

    Without options these are the newest messages. The room counts as read once its newest message was printed.
    """
    if is_every and (limit, before, after) != (None, None, None):
        raise click.UsageError("--all stands without -n, --before and --after")
    if before is not None and after is not None:
        raise click.UsageError("say --before or --after")
    with call.reading() if keep_unread else call.writing() as ledger:
        record = ledger.rooms.get(room)
        wanted = limit or SHOWN_MESSAGES
        if is_every:
            messages = list(_all_messages(ledger, record.id))
        else:
            messages = ledger.rooms.messages(record.id, before=before, after=after, limit=wanted)
        has_newest = before is None and (after is None or len(messages) < wanted)
        has_earlier = bool(messages and ledger.rooms.messages(record.id, before=messages[0].position, limit=1))
        names = {
            participant.node: participant.name for participant in ledger.rooms.participants(record.id, removed=True)
        }
        if messages and record.unread and has_newest and not keep_unread:
            ledger.rooms.mark_read(record.id, messages[-1].position)
    if call.json:
        call.documents(messages)
    else:
        call.screen.page(line for message in messages for line in message_lines(message, names))
    if not messages and (before, after) != (None, None):
        where = f"behind message {after}" if before is None else f"before message {before}"
        call.note(f"there is nothing to read {where}; the room has {counted(record.position, 'message')}")
    elif not messages:
        call.note("there is nothing to read; `", room_command_line(call, "post", room, "TEXT"), "` says something")
    elif after is not None and not has_newest:
        call.note("there is more: ", room_command_line(call, "read", room, "--after", str(messages[-1].position)))
    elif after is None and has_earlier:
        call.note("earlier messages: ", room_command_line(call, "read", room, "--before", str(messages[0].position)))


def _all_messages(ledger: Ledger, room: str) -> Iterator[RoomMessage]:
    after = 0
    while page := ledger.rooms.messages(room, after=after, limit=PAGE_MESSAGES):
        yield from page
        after = page[-1].position


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


def _names(ledger: Ledger, room: str) -> dict[str, str]:
    """Who takes or took part, by id."""
    return {participant.node: participant.name for participant in ledger.rooms.participants(room, removed=True)}


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
