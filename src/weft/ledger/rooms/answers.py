"""What a turn of an agent's session in a conversation ends with: its answer is posted in the transaction that ends it.

An agent's answer reaches the agents present that it mentions. What the triage agent answers is whom a person's message
is for: that message is then given to them as if its author had mentioned them. A turn that fails is told by a notice.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct

from weft.kernel.dag_events import Interruption
from weft.kernel.enums import ParticipantKind, RoomMessageKind, RoomNotice, RoomStatus, RunExit, SystemAgentKind
from weft.kernel.fields import ImageFact, PartFact, TextFact
from weft.ledger.rooms.model import ROOM_LIMITS
from weft.ledger.rooms.open_room import OpenRoom
from weft.ledger.rooms.posting import (
    MessageReach,
    RoomPost,
    mentions_by_agent,
    message_mentions,
    reach_mentioned,
    text_of_parts,
)
from weft.ledger.rooms.rows import (
    ParticipantRow,
    load_conversation,
    load_participant,
    participant_of_session,
)
from weft.ledger.runs.model import EndedRun, principals
from weft.ledger.runs.run_responses import response_of
from weft.ledger.views.program_rows import load_program
from weft.ledger.write.append import Append
from weft.store.replica_names import OwnEvents

ERROR_CHARACTERS = 500
"""So much of an error is told in the room."""


class PostedRow(Struct, frozen=True):
    """A message of a conversation that a turn answers."""

    id: str
    position: int
    n: int
    root: str
    hops: int


def post_answer(append: Append, run: EndedRun) -> None:
    """Post what an ended turn says to the conversation whose messages it answers; other turns are left alone."""
    participant = participant_of_session(append.sql, run.session, OwnEvents(append.sql))
    answered = [] if participant is None else _answered(append, run.messages)
    if participant is None or not answered or participant.removed_n is not None:
        return
    row = load_conversation(append.sql, participant.conversation)
    if row is None or row.status != RoomStatus.ACTIVE:
        return
    room, last = OpenRoom(append, row), answered[-1]
    if run.exit is not RunExit.SUCCESS:
        name = room.mention(participant.node)
        text = f"{name} could not answer: {_one_line(run.error or 'its turn failed')}"
        room.notice(RoomNotice.ERROR, text, root=last.root, answers=last.id, turn=run.turn or UNSET)
        return
    fact = None if run.turn is None else response_of(append, run.turn, run.events)
    parts = () if fact is None else tuple(part for part in fact.parts if isinstance(part, TextFact | ImageFact))
    if not parts:
        text = f"{room.mention(participant.node)} ended without an answer."
        room.notice(RoomNotice.ERROR, text, root=last.root, answers=last.id, turn=run.turn or UNSET)
        return
    _post(room, participant, run, answered, parts)


def _one_line(error: str) -> str:
    """What a provider or a tool gave as the reason: on one line, so that nothing in it looks like another message."""
    text = " ".join(error.split())
    return text if len(text) <= ERROR_CHARACTERS else f"{text[:ERROR_CHARACTERS]}…"


def _post(
    room: OpenRoom,
    participant: ParticipantRow,
    run: EndedRun,
    answered: Sequence[PostedRow],
    parts: tuple[PartFact, ...],
) -> None:
    last, append = answered[-1], room.append
    agent, text = load_program(append.sql, participant.node), text_of_parts(append, parts)
    is_triage = room.system_kind(agent) == SystemAgentKind.TRIAGE
    mentions = message_mentions(text) if is_triage else mentions_by_agent(room, text)
    hops, id = max(message.hops for message in answered) + 1, append.ulids.mint()
    cuts = [recorded.event.reason for recorded in run.events if isinstance(recorded.event, Interruption)]
    senders = (participant.node, *(principal for principal in run.principals if principal != participant.node))
    with append.in_name_of(senders):
        place = room.say(
            id,
            RoomMessageKind.PARTICIPANT,
            parts,
            author=participant.id,
            mentions=mentions[: ROOM_LIMITS.mentions],
            root=last.root,
            hops=hops,
            answers=last.id,
            turn=run.turn or UNSET,
            meta=room.contents.put_json({"interrupted": cuts[-1].value}, "meta") if cuts else UNSET,
        )
    if cuts:  # whom the rest would have mentioned, or taken back, nobody knows
        return
    if is_triage:
        for message in answered:
            reach_mentioned(room, _triaged(room, message, id), mentions, ROOM_LIMITS, MessageReach.nobody())
        return
    answer = RoomPost(
        id=id,
        position=place.position,
        n=place.n,
        author=participant,
        principals=senders,
        root=last.root,
        hops=hops,
        is_from_person=False,
    )
    reach_mentioned(room, answer, mentions, ROOM_LIMITS, MessageReach.nobody())


def _triaged(room: OpenRoom, message: PostedRow, chosen_by: str) -> RoomPost:
    """A person's message that triage has found somebody for, in its author's name; `chosen_by` is the id of what triage
    answered. It brings nobody in for a person who takes part no longer."""
    event = room.posted(message.n)
    author = load_participant(room.append.sql, event.author) if isinstance(event.author, str) else None
    assert author is not None, "what triage is asked about has an author"
    return RoomPost(
        id=message.id,
        position=message.position,
        n=message.n,
        author=author,
        principals=principals(event.actor, () if event.on_behalf_of is UNSET else event.on_behalf_of) or (author.node,),
        root=message.root,
        hops=message.hops,
        is_from_person=author.kind == ParticipantKind.USER and room.present(author.node) is not None,
        is_triaged=True,
        route={"triage": chosen_by},
    )


def _answered(append: Append, messages: Sequence[str]) -> list[PostedRow]:
    """The messages of the conversation behind messages of the inbox, in order."""
    rows = []
    for message in messages:
        row = append.sql.one(
            "SELECT m.id, m.position, m.n, m.root, m.hops FROM room_delivery d JOIN room_message m ON m.id = d.posted"
            " WHERE d.message = ?",
            (message,),
        )
        if row is not None:
            rows.append(PostedRow(*row))
    return rows
