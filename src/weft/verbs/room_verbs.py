"""Rooms: made, forked, titled and archived; who takes part and who is asked to; what is said and read there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from weft.kernel.errors import Action, NotFound
from weft.ledger.api import AgentProfile, Invitation, Participant, PersonProfile, Room, RoomMessage
from weft.verbs.answers import Answer, Listing
from weft.verbs.declaration import (
    Names,
    OpenMode,
    RequestError,
    RetryKey,
    arg,
    opt,
    program,
    verb,
)
from weft.verbs.program_answers import DeclinedInvitation, RoomMember, ShownRoom

if TYPE_CHECKING:
    from weft.ledger.api import Ledger

MOST_ROOMS = 1000
PAGE_MESSAGES = 1000
SHOWN_MESSAGES = 50

ActiveRoom = Annotated[str, arg("A room: its title, its id or the end of that.", names=Names("room", ("active",)))]
AnyRoom = Annotated[
    str, arg("A room: its title, its id or the end of that.", names=Names("room", ("active", "archived")))
]


class ChangedRoom(Answer, frozen=True, kw_only=True):
    """A room as it is after a change; `before` is what it was, and `who` took part in it, where that changed."""

    DOCUMENT: ClassVar[str] = "room"
    room: Room
    before: Room
    who: Participant | None = None


# --- Rooms are made and changed.


@verb("room create", right="room:create", method="rooms.create", opens=OpenMode.WRITING, takes_actor=True)
def room_create(
    ledger: Ledger,
    title: Annotated[str | None, arg("Its title.")] = None,
    agents: Annotated[
        tuple[str, ...],
        opt("An agent that takes part; repeatable.", "--agent", metavar="AGENT", names=program("agent")),
    ] = (),
    people: Annotated[
        tuple[str, ...],
        opt("A person who takes part beside you; repeatable.", "--person", metavar="PERSON", names=program("human")),
    ] = (),
    history: Annotated[
        Literal["joined", "all"],
        opt("What those read who join later: what is said from then on, or all. Default: joined."),
    ] = "joined",
    retry_key: RetryKey = None,
) -> Room:
    """Make a room, with agents and people in it. You take part, and so does the triage agent."""
    return ledger.rooms.create(title, agents=agents, people=people, history=history, key=retry_key)


@verb("room title", right="room:title", method="rooms.retitle", opens=OpenMode.WRITING, takes_actor=True)
def room_title(ledger: Ledger, room: ActiveRoom, title: Annotated[str, arg("The new title.")]) -> ChangedRoom:
    """Give a room another title."""
    before = ledger.rooms.get(room)
    return ChangedRoom(room=ledger.rooms.retitle(before.id, title), before=before)


@verb("room archive", right="room:archive", method="rooms.archive", opens=OpenMode.WRITING, takes_actor=True)
def room_archive(ledger: Ledger, room: ActiveRoom) -> Room:
    """Archive a room: nothing more is said in it, and lists leave it out. Whoever made it does that."""
    return ledger.rooms.archive(room)


@verb("room restore", right="room:archive", method="rooms.restore", opens=OpenMode.WRITING, takes_actor=True)
def room_restore(
    ledger: Ledger,
    room: Annotated[str, arg("A room: its title, its id or the end of that.", names=Names("room", ("archived",)))],
) -> Room:
    """Bring an archived room back."""
    return ledger.rooms.restore(room)


@verb("room fork", right="room:fork", method="rooms.fork", opens=OpenMode.WRITING, takes_actor=True)
def room_fork(
    ledger: Ledger,
    room: AnyRoom,
    position: Annotated[int | None, arg("The message that the new room goes on from.", least=1)] = None,
    title: Annotated[str | None, opt("The new room's title. Default: that of the other one.", metavar="TITLE")] = None,
) -> Room:
    """Make a new room that goes on from a message of another one, by default its newest.

    The agents that were there come along, with forks of their sessions; of the people only you. Both rooms go on
    independently.
    """
    return ledger.rooms.fork(room, position, title=title)


# --- Who takes part, and who is asked to.


@verb("room add", right="room:add", method="rooms.add", opens=OpenMode.WRITING, takes_actor=True)
def room_add(
    ledger: Ledger,
    room: ActiveRoom,
    agents: Annotated[tuple[str, ...], arg("The agents.", metavar="AGENT...", names=program("agent"))],
) -> Room:
    """Add agents to a room: public ones, and private ones that work for you."""
    return _let_in(ledger, room, agents, ledger.rooms.add)


@verb("room invite", right="room:invite", method="rooms.invite", opens=OpenMode.WRITING, takes_actor=True)
def room_invite(
    ledger: Ledger,
    room: ActiveRoom,
    people: Annotated[tuple[str, ...], arg("The people.", metavar="PERSON...", names=program("human"))],
) -> Room:
    """Let people into a room. That confirms the invitation of somebody who was mentioned there."""
    return _let_in(ledger, room, people, ledger.rooms.invite)


def _let_in(ledger: Ledger, room: str, names: tuple[str, ...], let_in: Callable[[str, str], Room]) -> Room:
    """Each name is a change of its own: those before one that is refused have taken place."""
    changed = ledger.rooms.get(room)
    for name in dict.fromkeys(names):
        changed = let_in(changed.id, name)
    return changed


@verb("room decline", right="room:invite", method="rooms.decline", opens=OpenMode.WRITING, takes_actor=True)
def room_decline(
    ledger: Ledger,
    room: ActiveRoom,
    person: Annotated[str | None, arg("Whose invitation; without a name your own.", names=program("human"))] = None,
) -> DeclinedInvitation:
    """End an invitation without anybody joining: your own, or as a participant that of PERSON."""
    invited = person or ledger.authority.principal.id
    ledger.rooms.decline(room, invited)
    return DeclinedInvitation(room=room, person=invited)


@verb("room remove", right="room:remove", method="rooms.remove", opens=OpenMode.WRITING, takes_actor=True)
def room_remove(
    ledger: Ledger,
    room: ActiveRoom,
    who: Annotated[str, arg("An agent or a person.", names=Names("participant", ("agent", "user")))],
) -> ChangedRoom:
    """Take an agent or a person out of a room. What was said stays; what an agent has not begun to answer is dropped.

    People are removed by whoever made the room. An agent's owner may keep its removal to
    themselves; system agents stay.
    """
    before = ledger.rooms.get(room)
    participant = _participant(ledger, before.id, who)
    ledger.rooms.remove(before.id, who)
    return ChangedRoom(room=ledger.rooms.get(before.id), before=before, who=participant)


def _participant(ledger: Ledger, room: str, who: str) -> Participant | None:
    members = ledger.rooms.participants(room)
    return next((member for member in members if who in (member.name, member.node)), None)


@verb("room leave", right="room:leave", method="rooms.leave", opens=OpenMode.WRITING, takes_actor=True)
def room_leave(ledger: Ledger, room: ActiveRoom) -> ChangedRoom:
    """Leave a room. What was said until then you can still read."""
    before = ledger.rooms.get(room)
    participant = _participant(ledger, before.id, ledger.authority.principal.id)
    ledger.rooms.leave(before.id)
    return ChangedRoom(room=ledger.rooms.get(before.id), before=before, who=participant)


# --- What there is.


class RoomList(Listing[Room], frozen=True, kw_only=True):
    invitations: int = 0
    """How many people wait to be let in, or wait for whoever asks."""


def _check_list(archived: bool, every: bool) -> None:
    if archived and every:
        raise RequestError("say {archived} or {every}")


@verb("room list", takes_actor=True, check=_check_list)
def room_list(
    ledger: Ledger,
    archived: Annotated[bool, opt("Only archived rooms.")] = False,
    every: Annotated[bool, opt("Archived rooms too.", "--all")] = False,
    limit: Annotated[
        int, opt("At most N rooms. Default: 100.", "-n", "--limit", metavar="N", least=1, most=MOST_ROOMS)
    ] = 100,
) -> RoomList:
    """List your rooms, with what you have not read; where somebody spoke last comes first.

    A row also says how often you are mentioned in what you have not read.
    """
    status = None if every else "archived" if archived else "active"
    rooms = ledger.rooms.list(status=status, limit=limit)
    return RoomList(items=rooms, invitations=len(ledger.rooms.invitations()))


@verb("room show", takes_actor=True)
def room_show(
    ledger: Ledger, room: AnyRoom, removed: Annotated[bool, opt("Those, too, who take part no longer.")] = False
) -> ShownRoom:
    """Show a room: its title, who takes part and what they do, what you have not read, who waits to be let in.

    An agent is thinking while it has something to answer.
    """
    record = ledger.rooms.get(room)
    participants = ledger.rooms.participants(record.id, removed=removed)
    return ShownRoom(
        room=record,
        members=tuple(room_member(ledger, participant) for participant in participants),
        invitations=tuple(ledger.rooms.invitations(record.id)),
    )


def room_member(ledger: Ledger, participant: Participant) -> RoomMember:
    """How somebody in a room is shown, as far as whoever looks may know them."""
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


@verb("room profile", takes_actor=True)
def room_profile(
    ledger: Ledger, name: Annotated[str, arg("An agent or a person.", names=program("agent", "human"))]
) -> AgentProfile | PersonProfile:
    """Show what an agent or a person tells of themselves. Private agents are there for those they work for.

    Of an agent these are its description, personality, tools, who made it and whether it is public, picture or emoji,
    and when it was last active.
    """
    with suppress(NotFound):
        return ledger.rooms.agent(name)
    with suppress(NotFound):
        return ledger.rooms.person(name)
    raise NotFound("agent or person", name, Action.LIST_PROGRAMS)


@verb("room invitations", takes_actor=True)
def room_invitations(
    ledger: Ledger, room: Annotated[str | None, arg("A room; without one all of yours.")] = None
) -> Listing[Invitation]:
    """List people who were mentioned in a room and take no part in it: of ROOM, or of all your rooms and of yourself.

    A participant lets them in with `weft room invite`; `weft room decline` ends an invitation.
    """
    return Listing(items=ledger.rooms.invitations(room))


# --- What was said, and is said now.


class ReadMessages(Listing[RoomMessage], frozen=True, kw_only=True):
    room: Room
    """As it was before it counted as read."""
    names: dict[str, str]
    """Who takes or took part, by id."""
    has_newest: bool
    has_earlier: bool


def _check_read(limit: int | None, before: int | None, after: int | None, every: bool) -> None:
    if every and (limit, before, after) != (None, None, None):
        raise RequestError("{every} stands without {limit}, {before} and {after}")
    if before is not None and after is not None:
        raise RequestError("say {before} or {after}")


@verb(
    "room read",
    right="room:read",
    method="rooms.mark_read",
    opens=OpenMode.WRITING,
    reads_with=("keep_unread",),
    takes_actor=True,
    check=_check_read,
)
def room_read(
    ledger: Ledger,
    room: AnyRoom,
    limit: Annotated[
        int | None, opt("At most N messages. Default: 50.", "-n", "--limit", metavar="N", least=1, most=PAGE_MESSAGES)
    ] = None,
    before: Annotated[int | None, opt("The newest messages before this position.", metavar="POSITION", least=1)] = None,
    after: Annotated[int | None, opt("Start after this position.", metavar="POSITION", least=0)] = None,
    every: Annotated[bool, opt("All of them.", "--all")] = False,
    keep_unread: Annotated[bool, opt("Do not mark them as read.")] = False,
) -> ReadMessages:
    """Print what was said in a room, the oldest first, and mark it as read.

    Without options these are the newest messages. The room counts as read once its newest message was printed.
    """
    record = ledger.rooms.get(room)
    wanted = limit or SHOWN_MESSAGES
    if every:
        messages = list(_all_messages(ledger, record.id))
    else:
        messages = ledger.rooms.messages(record.id, before=before, after=after, limit=wanted)
    has_newest = before is None and (after is None or len(messages) < wanted)
    answer = ReadMessages(
        items=messages,
        room=record,
        names=names_in(ledger, record.id),
        has_newest=has_newest,
        has_earlier=bool(messages and ledger.rooms.messages(record.id, before=messages[0].position, limit=1)),
    )
    if messages and record.unread and has_newest and not keep_unread:
        ledger.rooms.mark_read(record.id, messages[-1].position)
    return answer


def _all_messages(ledger: Ledger, room: str) -> Iterator[RoomMessage]:
    after = 0
    while page := ledger.rooms.messages(room, after=after, limit=PAGE_MESSAGES):
        yield from page
        after = page[-1].position


def names_in(ledger: Ledger, room: str) -> dict[str, str]:
    """Who takes or took part, by id."""
    return {participant.node: participant.name for participant in ledger.rooms.participants(room, removed=True)}
