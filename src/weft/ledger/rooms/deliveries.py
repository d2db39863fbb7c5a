"""What an agent is sent of a conversation: who said what since it was last sent something, then the message itself.

The contents of the messages are referred to, never copied; only the lines that say who speaks are contents of their
own. An agent that is sent something for the first time is told where it is and who is there.
"""

from __future__ import annotations

from typing import Any

from weft.kernel.conversation_events import MessagePosted
from weft.kernel.enums import ParticipantKind, RoomMessageKind
from weft.kernel.fields import PartFact, TextFact
from weft.ledger.rooms.model import RoomLimits
from weft.ledger.rooms.open_room import OpenRoom
from weft.ledger.rooms.rows import ParticipantRow, load_conversation, load_participant, participants_of
from weft.ledger.views.program_rows import load_program
from weft.ledger.views.values import text_of
from weft.store.port import ReadTxn

NAMED_PARTICIPANTS = 40
"""So many of those present are named to an agent that comes in."""


def delivered_parts(
    room: OpenRoom, participant: ParticipantRow, position: int, n: int, limits: RoomLimits
) -> tuple[tuple[PartFact, ...], dict[str, Any], bool]:
    """The parts that an agent is sent with a message, what its context says of them, and whether an agent wrote any of
    them. A system agent is sent the message alone."""
    agent = load_program(room.append.sql, participant.node)
    is_system = agent is not None and agent.system_kind is not None
    missed, left_out = ([], 0) if is_system else _missed(room, participant, position, limits.missed)
    parts: list[PartFact] = []
    if not is_system and _is_first(room, participant):
        parts.append(_text(room, _introduction(room, participant)))
    if left_out:
        parts.append(_text(room, f"({left_out} earlier messages are left out.)"))
    is_untrusted = False
    for number in (*missed, n):
        event = room.posted(number)
        parts += _spoken(room, event)
        is_untrusted = is_untrusted or _is_agents(room, event)
    context = {
        "room": room.row.id,
        "message": room.posted(n).message,
        "position": position,
        "earlier": len(missed),
        "left_out": left_out,
    }
    return tuple(parts), context, is_untrusted


def _text(room: OpenRoom, text: str) -> TextFact:
    return TextFact(text=room.contents.put_text(text))


def _spoken(room: OpenRoom, event: MessagePosted) -> list[PartFact]:
    """A message with the line that says whose it is."""
    if event.message_kind is RoomMessageKind.SYSTEM or not isinstance(event.author, str):
        return [_text(room, "The system:"), *event.parts]
    author = load_participant(room.append.sql, event.author)
    speaker = "Somebody" if author is None else room.mention(author.node)
    return [_text(room, f"{speaker}:"), *event.parts]


def _is_agents(room: OpenRoom, event: MessagePosted) -> bool:
    author = load_participant(room.append.sql, event.author) if isinstance(event.author, str) else None
    return author is not None and author.kind == ParticipantKind.AGENT


def _is_first(room: OpenRoom, participant: ParticipantRow) -> bool:
    query = "SELECT 1 FROM room_delivery WHERE session = ? LIMIT 1"
    return room.append.sql.one(query, (participant.session,)) is None


def _missed(room: OpenRoom, participant: ParticipantRow, position: int, most: int) -> tuple[list[int], int]:
    """The arrival numbers of what was said behind the last message that the agent was sent, its own words excepted; and
    how many older ones are left out."""
    numbers: list[int] = []
    conversation, high, low = room.row.id, position, participant.seen
    while conversation is not None and high > low + 1:
        row = load_conversation(room.append.sql, conversation)
        if row is None:
            break
        rows = room.append.sql.all(
            "SELECT n, replica FROM room_message WHERE conversation = ? AND position > ? AND position < ?"
            " AND (node IS NULL OR node <> ?) ORDER BY position DESC LIMIT ?",
            (conversation, max(low, row.forked_at), high, participant.node, most - len(numbers)),
        )
        numbers += [n for n, replica in rows if room.own.has(n, replica)]
        if len(numbers) >= most:
            break
        conversation, high = row.forked_from or "", min(high, row.forked_at + 1)
        if not conversation:
            break
    numbers.reverse()
    first = participant.seen + 1
    oldest = None if not numbers else _position_of(room, numbers[0])
    left_out = 0 if oldest is None or len(numbers) < most else max(0, oldest - first)
    return numbers, left_out


def _position_of(room: OpenRoom, n: int) -> int:
    row = room.append.sql.one("SELECT position FROM room_message WHERE id = ?", (room.posted(n).message,))
    return 0 if row is None else int(row[0])


def _introduction(room: OpenRoom, participant: ParticipantRow) -> str:
    append = room.append
    title = text_of(ReadTxn(append.sql, append.txn.facts), room.row.title)
    others = [
        room.mention(row.node)
        for row in participants_of(append.sql, room.row.id, room.own)
        if row.removed_n is None and row.node != participant.node
    ]
    shown = ", ".join(others[:NAMED_PARTICIPANTS])
    more = f" and {len(others) - NAMED_PARTICIPANTS} more" if len(others) > NAMED_PARTICIPANTS else ""
    place = "a conversation" if title is None else f"the conversation “{title}”"
    return (
        f"You are {room.mention(participant.node)} in {place}. Also there: {shown or 'nobody'}{more}.\n"
        "Each message below begins with the name of whoever wrote it. Your answer is posted to everybody there. To ask"
        " another agent there, or to call a person's attention, write their name as it stands above, with @, brackets"
        " and id; leave it out where nobody else needs to act."
    )
