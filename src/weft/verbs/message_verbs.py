"""What waits for an agent or for a person: messages in inboxes, turns that are to be cut short, and tool calls that a
person allows or refuses. Rooms: made, forked, titled and archived; who takes part and who is asked to; what is said
and read there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol, TypeVar

from weft.kernel.enums import ApprovalState, InboxState
from weft.kernel.errors import Action, NotFound
from weft.ledger.api import (
    AgentProfile,
    Approval,
    InboxMessage,
    Invitation,
    Participant,
    PersonProfile,
    Room,
    RoomMessage,
)
from weft.verbs.answers import Answer, AnsweredApproval, InterruptedTurn, Listing, exact_document
from weft.verbs.declaration import (
    SESSION,
    Names,
    OpenMode,
    PageCursor,
    PageLimit,
    Reason,
    RequestError,
    RetryKey,
    SessionName,
    arg,
    opt,
    program,
    verb,
)
from weft.verbs.program_answers import DeclinedInvitation, RoomMember, ShownRoom

if TYPE_CHECKING:
    from weft.ledger.api import Ledger


ANSWER = "approval:answer"
RECORD = "turn:record"
PAGE_RECORDS = 500


# --- Lists that are read page by page, by arrival.


class Arrived(Protocol):
    @property
    def n(self) -> int:
        """The arrival number."""


A = TypeVar("A", bound=Arrived)


def page_of(
    read: Callable[[int, int], Sequence[A]], limit: int | None, after: str | None
) -> tuple[list[A], str | None]:
    """So many records behind a cursor, or all; and the cursor of the next page. `read` takes how many at most, and
    behind which arrival number."""
    if after is not None and not (after.isascii() and after.isdecimal()):
        raise RequestError("{after} is no cursor of this list")
    if limit == 0:
        return [], after
    records: list[A] = []
    position = int(after or 0)
    while limit is None or len(records) <= limit:  # one more than asked for tells whether there is a next page
        page = read(PAGE_RECORDS if limit is None else min(PAGE_RECORDS, limit + 1 - len(records)), position)
        if not page:
            return records, None
        records += page
        position = page[-1].n
    return records[:limit], str(records[limit - 1].n)


# --- The messages that wait, and those that could not be answered.


def _check_inbox(dead: bool, session: str | None, cancel: str | None, again: str | None) -> None:
    if (cancel is not None or again is not None) and ((cancel is not None and again is not None) or dead or session):
        raise RequestError("{cancel} and {again} stand alone")


@verb(
    "inbox",
    right=RECORD,
    method="inbox.cancel",
    opens=OpenMode.WRITING,
    reads_without=("cancel", "again"),
    check=_check_inbox,
)
def inbox(
    ledger: Ledger,
    dead: Annotated[
        bool, opt("List messages whose turn failed instead: with the error, and what can be done.")
    ] = False,
    session: Annotated[str | None, opt("Only those of this session.", metavar="SESSION", names=SESSION)] = None,
    cancel: Annotated[
        str | None, opt("Cancel a message that waits.", metavar="ID", names=Names("message", ("queued",)))
    ] = None,
    again: Annotated[
        str | None,
        opt("Send a message again that is dead, or waits elsewhere.", metavar="ID", names=Names("message", ("dead",))),
    ] = None,
    limit: PageLimit = None,
    after: PageCursor = None,
) -> Listing[InboxMessage] | InboxMessage:
    """List the messages that wait, and those that failed.

    They stand in the order in which each session answers them. A message is `taken` while a turn answers it, and gone
    from the list once it is answered. One whose turn failed is dead: it waits for a person, and stops nobody else. One
    that waits `elsewhere` was sent to the ledger that this one is a copy of, or that it came from.
    """
    if cancel is not None:
        ledger.inbox.cancel(cancel, reason="cancelled by hand")
        return ledger.inbox.get(cancel)
    if again is not None:
        return ledger.inbox.get(ledger.inbox.send_again(again).message)
    states = (InboxState.DEAD,) if dead else (InboxState.QUEUED, InboxState.TAKEN)
    messages, following = page_of(
        lambda most, arrived: ledger.inbox.list(session=session, states=states, limit=most, after=arrived), limit, after
    )
    return Listing(items=messages if dead else _in_order(messages), next=following)


def _in_order(messages: list[InboxMessage]) -> list[InboxMessage]:
    """Session by session; within one, what a turn has, then the rest as it is answered."""
    first: dict[str, int] = {}
    for message in messages:
        first.setdefault(message.session_id, message.n)
    return sorted(
        messages,
        key=lambda message: (first[message.session_id], message.state == "queued", -message.priority, message.n),
    )


# --- A turn that runs in any process is cut short.


@verb("interrupt", right=RECORD, method="inbox.interrupt", opens=OpenMode.WRITING)
def interrupt(ledger: Ledger, session: SessionName) -> InterruptedTurn:
    """Interrupt the turn that runs in a session.

    Whichever process runs it ends it with what it has: open tool calls are interrupted, what came of the answer is
    kept, and the session goes on from there. Messages that wait are answered next.

    A session where no turn runs says so.
    """
    label = ledger.session(session).label
    return InterruptedTurn(session=label, turn=ledger.inbox.interrupt(label))


# --- Tool calls that wait for a person.

ApprovalId = Annotated[
    str | None, arg("A tool call that waits: its id, or the beginning of it.", names=Names("approval"))
]


def _check_approvals(id: str | None, every: bool, session: str | None) -> None:
    if id is not None and (every or session is not None):
        raise RequestError("an ID stands alone")


@verb("approvals", check=_check_approvals)
def approvals(
    ledger: Ledger,
    id: ApprovalId = None,
    every: Annotated[bool, opt("Also those that were answered.", "--all")] = False,
    session: Annotated[str | None, opt("Only those of this session.", metavar="SESSION", names=SESSION)] = None,
    limit: PageLimit = None,
    after: PageCursor = None,
) -> Listing[Approval] | Approval:
    """List the tool calls that wait for approval.

    With an ID that one is shown whole: what it would do, and exactly what would run. An approval allows that once, and
    nothing else: if anything of it changes before it runs, it does not run.

    A row is id, agent, session, tool, how long ago it was asked, until when it can be answered, and why. See
    docs/permissions.md#approvals.
    """
    if id is not None:
        return ledger.approvals.get(id)
    states = tuple(ApprovalState) if every else (ApprovalState.OPEN,)
    listed, following = page_of(
        lambda most, arrived: ledger.approvals.list(session=session, states=states, limit=most, after=arrived),
        limit,
        after,
    )
    return Listing(items=listed, next=following)


def _named(ledger: Ledger, id: str | None) -> Approval:
    if id is None:
        raise RequestError("name the tool call that is meant")
    return ledger.approvals.get(id)


def _check_approve(session_scope: bool, rule: bool) -> None:
    if session_scope and rule:
        raise RequestError("{session_scope} and {rule} exclude each other")


@verb("approve", right=ANSWER, method="approvals.grant", opens=OpenMode.WRITING, check=_check_approve)
def approve(
    ledger: Ledger,
    id: ApprovalId = None,
    session_scope: Annotated[bool, opt("Also allow the same use of the tool in this session from now on.")] = False,
    rule: Annotated[bool, opt("Allow it once, and propose a policy that allows it from then on.")] = False,
    reason: Reason = None,
    digest: Annotated[
        str | None,
        opt("Only if this is the digest of what was shown; else it is refused.", metavar="SHA256", is_hidden=True),
    ] = None,
) -> AnsweredApproval:
    """Approve a tool call that waits for a person.

    The call is shown in full first, and you are asked. The answer counts for exactly what was shown, once: if anything
    of it changes before it runs, it does not run. Without ID what waits is listed, and nothing is allowed.

    Where nobody is at a terminal nothing is allowed without --yes. Another person than the ledger's owner answers with
    `weft human approve`, or is named with `weft --as NAME approve`.
    """
    from weft.runtime.policies.policy_decisions import propose_rules, rule_proposals

    approval = _named(ledger, id)
    exact_document(approval)
    proposals = rule_proposals(ledger, approval) if rule else []
    granted = ledger.approvals.grant(
        approval.id,
        plan_digest=digest or approval.plan_digest,
        scope="session" if session_scope else "rule" if rule else "once",
        reason=reason,
    )
    policies = propose_rules(ledger, approval, proposals)  # after the grant, and not without it
    return AnsweredApproval(approval=granted, proposed=tuple(policy.id for policy in policies))


@verb("reject", right=ANSWER, method="approvals.deny", opens=OpenMode.WRITING)
def reject(
    ledger: Ledger,
    id: ApprovalId = None,
    abort: Annotated[bool, opt("End the agent's turn, too.")] = False,
    reason: Annotated[str | None, opt("Why; the model is told.", metavar="TEXT")] = None,
) -> AnsweredApproval:
    """Reject a tool call that waits for a person.

    It never runs. The model is told so and goes on; with --abort its turn ends. Without ID what waits is listed.
    """
    return AnsweredApproval(approval=ledger.approvals.deny(_named(ledger, id).id, abort=abort, reason=reason))


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
