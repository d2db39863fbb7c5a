"""Posting to a conversation: the message, those whom it brings in, and the agents that it reaches, in one transaction.

A person's message reaches the agents that it mentions, and brings in those of them that are absent and work for the
person; one that mentions nobody goes to the triage agent. What an agent says reaches agents that are present. Each
agent gets a message once, in its own session's inbox, in the name of whoever wrote it and of those on whose behalf.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct

from weft.kernel.conversation_events import ParticipantInvited
from weft.kernel.enums import (
    InboxState,
    MessageSource,
    ParticipantKind,
    ProgramKind,
    QueueMode,
    RoomMessageKind,
    RoomNotice,
)
from weft.kernel.errors import InboxFull, InvalidInput
from weft.kernel.fields import ImageFact, MentionFact, PartFact, TextFact
from weft.kernel.mentions import mentioned
from weft.kernel.typed_mentions import Addressee, write_typed_mentions
from weft.ledger.model import DEFAULT_AGENT, NewMessage, TextPart
from weft.ledger.read.agent_shares import creators_of, is_private
from weft.ledger.rooms.deliveries import delivered_parts
from weft.ledger.rooms.model import PostedMessage, ReachedAgent, RoomLimits
from weft.ledger.rooms.open_room import OpenRoom
from weft.ledger.rooms.reading import reached_agents
from weft.ledger.rooms.rows import ParticipantRow, has_open_invitation, participants_of
from weft.ledger.runs.admission import Delivery, deliver, scope_of
from weft.ledger.runs.inbox import admission_event
from weft.ledger.runs.model import DEFAULT_LIMITS
from weft.ledger.views.program_rows import ProgramRow, load_program
from weft.ledger.views.rows import SessionRow
from weft.ledger.views.values import text_of
from weft.ledger.write.append import Append, LedgerWriter
from weft.ledger.write.commands import Answer, keyed_command, once
from weft.ledger.write.new_turn import weigh
from weft.ledger.write.turn_events import TurnEvents
from weft.store.port import ReadTxn

POST = "room:post"


class RoomPost(Struct, frozen=True, kw_only=True):
    """A message of the conversation on its way to those whom it reaches."""

    id: str
    position: int
    n: int
    """The arrival number of the event that posted it."""
    author: ParticipantRow
    principals: tuple[str, ...]
    """In whose name it is sent: who wrote it, then those on whose behalf."""
    root: str
    hops: int
    is_from_person: bool
    """Whether a person wrote it: only then it brings in agents and invites people who are absent."""
    is_triaged: bool = False
    """Whether triage chose whom it reaches: only public agents are brought in."""
    route: Any = None
    mode: QueueMode = QueueMode.FOLLOWUP


class MessageReach(Struct):
    """Whom a message has reached so far."""

    reached: list[ReachedAgent]
    joined: list[str]
    invited: list[str]

    @classmethod
    def nobody(cls) -> MessageReach:
        return cls([], [], [])


class NewPost(Struct, frozen=True, kw_only=True):
    """A message on its way into a conversation, and how the agents that it mentions take it."""

    message: NewMessage
    meta: Any = None
    mode: QueueMode = QueueMode.FOLLOWUP


def post(
    writer: LedgerWriter, conversation: str, new: NewPost, *, key: str | None, limits: RoomLimits
) -> PostedMessage:
    """Say something in a conversation, by its id. The same key again gives the same answer."""
    if new.message.role != "user":
        raise InvalidInput(f"the message's role is {new.message.role}", "what is posted is a user's message")
    command = keyed_command("post_message", key, [conversation, new], writer.authority)
    id = writer.ulids.mint()
    weight = weigh([new.message], ())

    def work(append: Append) -> PostedMessage:
        room = OpenRoom.named(append, conversation)
        reach = MessageReach.nobody()
        answer = once(append, command, lambda: _posted(room, id, new, limits, reach))
        append.seal()
        return _outcome(append, answer, reach, room)

    if weight.large:
        writer.put_large(weight.large, scope_of(conversation))
    return writer.write(work, weight.size)


def _outcome(append: Append, answer: Answer, reach: MessageReach, room: OpenRoom) -> PostedMessage:
    return PostedMessage(
        message=answer.node,
        conversation_id=room.row.id,
        position=int(answer.details or 0),
        reached=tuple(reach.reached) or reached_agents(append.sql, "", "d.posted = ? ORDER BY s.n", (answer.node,)),
        joined=tuple(reach.joined),
        invited=tuple(reach.invited),
        notices=tuple(room.notices),
    )


def _posted(room: OpenRoom, id: str, new: NewPost, limits: RoomLimits, reach: MessageReach) -> Answer:
    append = room.append
    room.ensure_open()
    author = room.ensure_member(POST, "post to the room")
    is_person = author.kind == ParticipantKind.USER
    if is_person and any(_is_agent(append, principal) for principal in append.acting_ids):
        raise append.refusal(POST, "post in a person's name", "an agent posts as itself")
    parts = TurnEvents(append, id, actor=DEFAULT_AGENT, scope=room.scope).parts(new.message.content)
    if not all(isinstance(part, TextFact | ImageFact) for part in parts):
        raise InvalidInput("a message of a room holds text and images", "leave the other parts out")
    text = _text_of(new.message.content)
    mentions = message_mentions(text) if is_person else mentions_by_agent(room, text)
    place = room.say(
        id,
        RoomMessageKind.PARTICIPANT,
        parts,
        author=author.id,
        mentions=mentions[: limits.mentions],
        meta=UNSET if new.meta is None else room.contents.put_json(new.meta, "meta"),
        hops=UNSET if is_person else 1,
    )
    message = RoomPost(
        id=id,
        position=place.position,
        n=place.n,
        author=author,
        principals=append.acting_ids,
        root=id,
        hops=0 if is_person else 1,
        is_from_person=is_person,
        mode=new.mode,
    )
    reach_mentioned(room, message, mentions, limits, reach)
    if is_person and not mentions:
        reach_triage(room, message, limits, reach)
    return Answer(id, str(place.position))


def _is_agent(append: Append, principal: str) -> bool:
    row = load_program(append.sql, principal)
    return row is not None and row.kind == ProgramKind.AGENT


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n\n".join(part.text for part in content if isinstance(part, TextPart) and isinstance(part.text, str))


def message_mentions(text: str) -> tuple[MentionFact, ...]:
    """Whom a text mentions, each once."""
    return tuple(MentionFact(kind=kind, id=id) for kind, id in mentioned(text))


def mentions_by_agent(room: OpenRoom, text: str) -> tuple[MentionFact, ...]:
    """Whom a text of an agent mentions, each once: by id, or as `@name` where exactly one participant is called so."""
    if "@" not in text:
        return ()
    participants = participants_of(room.append.sql, room.row.id, room.own)
    addressees = [
        Addressee(kind=row.kind, id=row.node, name=room.name_of(row.node), is_present=True)
        for row in participants
        if row.removed_n is None
    ]
    return message_mentions(write_typed_mentions(text, addressees).text)


def text_of_parts(append: Append, parts: Sequence[PartFact]) -> str:
    """The text parts of a message whose contents are stored already."""
    txn = ReadTxn(append.sql, append.txn.facts)
    texts = [text_of(txn, append.number(part.text)) or "" for part in parts if isinstance(part, TextFact)]
    return "\n\n".join(texts)


def reach_mentioned(
    room: OpenRoom, message: RoomPost, mentions: Sequence[MentionFact], limits: RoomLimits, reach: MessageReach
) -> None:
    """Bring a message to everybody whom it mentions, as far as the limits go."""
    if len(mentions) > limits.mentions:
        text = f"The message mentions {len(mentions)}: only the first {limits.mentions} of them are reached."
        room.notice(RoomNotice.LIMIT, text, root=message.root)
    for mention in mentions[: limits.mentions]:
        if mention.kind is ParticipantKind.USER:
            _reach_person(room, message, mention.id, reach)
        else:
            _reach_agent(room, message, mention.id, limits, reach)


def _reach_person(room: OpenRoom, message: RoomPost, node: str, reach: MessageReach) -> None:
    """Whoever is present sees it; who is absent and was mentioned by a person can be let in by a participant."""
    if not message.is_from_person or message.is_triaged or room.present(node) is not None:
        return
    row = load_program(room.append.sql, node)
    is_person = node == DEFAULT_AGENT or (row is not None and row.kind == ProgramKind.HUMAN and not row.deleted)
    if not is_person:
        return
    if not has_open_invitation(room.append.sql, room.row.id, node):
        room.stream().add(ParticipantInvited, node=node, message=message.id)
        text = f"{room.mention(node)} takes no part in the room: a participant can let them in."
        room.notice(RoomNotice.INVITED, text, root=message.root)
    reach.invited.append(node if row is None else row.name)


def _reach_agent(room: OpenRoom, message: RoomPost, node: str, limits: RoomLimits, reach: MessageReach) -> None:
    if node == message.author.node:
        return
    agent = load_program(room.append.sql, node)
    if agent is None or agent.kind != ProgramKind.AGENT or agent.deleted:
        if message.is_from_person:
            _notice_absent(room, message)
        return
    if room.system_kind(agent) is not None and not message.is_from_person:
        return
    participant = room.present(node)
    if not room.works_for(agent, message.principals):
        if participant is None:
            _notice_absent(room, message)
        else:
            text = f"{room.mention(node)} is private: it answers only those it was shared with."
            room.notice(RoomNotice.PRIVATE, text, root=message.root)
        return
    if (limit := _limit_reached(room.append, message, limits)) is not None:
        _notice_once(room, message, RoomNotice.LIMIT, limit)
        return
    if participant is None:
        if not message.is_from_person or (message.is_triaged and is_private(room.reading, agent)):
            return
        participant = bring_in(room, agent, message)
        reach.joined.append(agent.name)
    _deliver(room, message, agent, participant, limits, reach)


def _notice_once(room: OpenRoom, message: RoomPost, notice: RoomNotice, text: str) -> None:
    if text not in room.notices:
        room.notice(notice, text, root=message.root)


def _notice_absent(room: OpenRoom, message: RoomPost) -> None:
    """The same words for an agent that does not exist and for one that does not work for whoever asked."""
    text = "The message mentions an agent that is not here and cannot be brought in."
    _notice_once(room, message, RoomNotice.ABSENT, text)


def bring_in(room: OpenRoom, agent: ProgramRow, message: RoomPost) -> ParticipantRow:
    """An agent joins because a message mentions it: it reads the conversation from that message on."""
    with room.append.in_name_of(message.principals):
        participant = room.add_agent(agent, message=message.id, since=message.position - 1)
    room.notice(RoomNotice.JOINED, f"{room.mention(agent.id)} joined.", root=message.root)
    return participant


def reach_triage(room: OpenRoom, message: RoomPost, limits: RoomLimits, reach: MessageReach) -> None:
    """Have the triage agent find out for whom a message is."""
    triage = room.triage_agent()
    participant = None if triage is None else room.present(triage.id)
    if triage is not None and participant is not None:
        _deliver(room, message, triage, participant, limits, reach)


def _deliver(
    room: OpenRoom,
    message: RoomPost,
    agent: ProgramRow,
    participant: ParticipantRow,
    limits: RoomLimits,
    reach: MessageReach,
) -> None:
    append = room.append
    session = None if participant.session is None else append.view.find_session_id(participant.session)
    if session is None or _is_delivered(append, message.id, session.id):
        return
    mode = message.mode
    if mode is QueueMode.INTERRUPT and not _may_interrupt(room, agent, session, message.principals):
        mode = QueueMode.FOLLOWUP
        room.add_private_notice(
            f"{room.mention(agent.id)} has somebody else to answer: the message waits until that is done."
        )
    parts, context, is_untrusted = delivered_parts(room, participant, message.position, message.n, limits)
    delivery = Delivery(
        posted=message.id,
        parts=parts,
        senders=message.principals,
        source=MessageSource.HUMAN if message.author.kind == ParticipantKind.USER else MessageSource.AGENT,
        context=context,
        scope=room.scope,
        route=message.route,
        mode=mode,
        is_untrusted=is_untrusted,
    )
    try:
        inbox_message = deliver(append, session, delivery, DEFAULT_LIMITS)
    except InboxFull:
        text = f"{room.mention(agent.id)} has too many messages waiting: this one was not given to it."
        room.notice(RoomNotice.LIMIT, text, root=message.root)
        return
    reach.reached.append(
        ReachedAgent(
            agent=agent.id, name=agent.name, message=inbox_message, session=session.label, session_id=session.id
        )
    )


def _may_interrupt(room: OpenRoom, agent: ProgramRow, session: SessionRow, principals: Sequence[str]) -> bool:
    """Whether a message may cut short what an agent answers, and overtake what it has to answer: that of whoever opened
    the ledger, of the agent's creators, and of those in whose names all of that was sent."""
    append, creators = room.append, creators_of(room.reading, agent)
    others = {principal for principal in principals if principal != DEFAULT_AGENT} - creators
    if not others:
        return True
    query = "SELECT n FROM inbox WHERE session = ? AND state IN (?, ?)"
    rows = append.sql.all(query, (session.n, InboxState.QUEUED.value, InboxState.TAKEN.value))
    events = (admission_event(append.txn.facts, n) for (n,) in rows)
    return all(
        others <= {event.actor, *(() if event.on_behalf_of is UNSET else event.on_behalf_of)} for event in events
    )


def _is_delivered(append: Append, message: str, session: str) -> bool:
    query = "SELECT 1 FROM room_delivery WHERE posted = ? AND session = ?"
    return append.sql.one(query, (message, session)) is not None


def _limit_reached(append: Append, message: RoomPost, limits: RoomLimits) -> str | None:
    if message.hops >= limits.hops:
        return f"Agents have answered each other {message.hops} times: nobody is asked further until a person speaks."
    (count,) = append.sql.one("SELECT count(*) FROM room_delivery WHERE root = ?", (message.root,)) or (0,)
    if count >= limits.deliveries:
        return f"One message has reached agents {count} times: nobody is asked further until a person speaks."
    return None
