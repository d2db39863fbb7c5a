"""`weft room list`, `show`, `profile`, `read` and `invitations`: what there is, and what was said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from weft.surfaces.cli.call import Call
from weft.surfaces.cli.command import command as weft_command
from weft.surfaces.cli.figures import counted
from weft.surfaces.cli.program_call import named
from weft.surfaces.cli.rooms.options import MOST_ROOMS, in_persons_name, room_argument, room_command_line
from weft.surfaces.cli.rooms.text import message_lines, short_id
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.cli.times import local_time
from weft.surfaces.plain_text import safe_lines
from weft.surfaces.wire.rooms import RoomMember, ShownRoom

if TYPE_CHECKING:
    from weft.ledger.api import AgentProfile, Invitation, Ledger, Participant, PersonProfile, Room, RoomMessage

PAGE_MESSAGES = 1000
SHOWN_MESSAGES = 50
EMPTY = "you are in no room; `weft room create TITLE` makes one"


@weft_command("list")
@click.option("--archived", is_flag=True, help="Those that were archived.")
@click.option("--all", "is_every", is_flag=True, help="Both those in use and those that were archived.")
@click.option("-n", "limit", metavar="N", type=click.IntRange(1, MOST_ROOMS), default=100, help="At most so many.")
@in_persons_name
def list_(call: Call, archived: bool, is_every: bool, limit: int) -> None:
    """List your rooms, with what you have not read; where somebody spoke last comes first."""
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
            Span(_state(room), "dim"),
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


def _state(room: Room) -> str:
    words = [] if room.status == "active" else [room.status]
    return ", ".join([*words, *(["of another ledger"] if room.is_foreign else []), *(["left"] if room.is_left else [])])


@weft_command("show")
@room_argument("active", "archived")
@click.option("--removed", is_flag=True, help="Those, too, who take part no longer.")
@in_persons_name
def show(call: Call, room: str, removed: bool) -> None:
    """Show a room: its title, who takes part and what they do, what you have not read, who waits to be let in."""
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
        ("state", _state(room) or None),
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
    """Show what an agent or a person tells of themselves. Private agents are there for those they work for."""
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
            Span(short_id(one.conversation_id), "id"),
            Span(one.name, "user"),
            one.invited_by,
            local_time(one.invited_at),
            Span(one.conversation_title or "", "label"),
        ]
        for one in waiting
    ]
    if not rows:
        call.note("nobody waits to be let in")
        return
    call.screen.table(rows, ["room", "who", "mentioned by", "when", "title"], spare=["when"])
    if any(one.name != call.actor for one in waiting):
        call.note("`weft room invite ROOM PERSON` lets one in, `weft room decline ROOM PERSON` ends the invitation")
    if any(one.name == call.actor for one in waiting):
        call.note(
            "a participant lets you in; `", room_command_line(call, "decline", "ROOM"), "` ends your own invitation"
        )


@weft_command("read")
@room_argument("active", "archived")
@click.option("-n", "limit", metavar="N", type=click.IntRange(1, PAGE_MESSAGES), help="So many. Default: 50.")
@click.option("--before", metavar="POSITION", type=click.IntRange(1), help="The newest before this message.")
@click.option("--after", metavar="POSITION", type=click.IntRange(0), help="The first behind this message.")
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
        names = {one.node: one.name for one in ledger.rooms.participants(record.id, removed=True)}
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
