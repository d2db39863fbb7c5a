"""Messages of conversations by their words: those that whoever asks may read, each once.

No index holds them: they are looked through, a bounded number for a page. A fork shows the messages of its origin; they
are found in the oldest conversation that shows them to whoever asks. Mentions are looked through by the names that
those who are meant have now. Notices of the system are not looked through.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from weft.kernel.contents import ERASED
from weft.kernel.enums import MessageRole
from weft.kernel.fields import TextFact
from weft.kernel.mentions import Mention, render_mentions, shown_name
from weft.ledger.read.access import access_of
from weft.ledger.read.pages import Cursor, Position
from weft.ledger.read.sessions import agent_names
from weft.ledger.rooms.model import RoomHit
from weft.ledger.rooms.reading import message_places, posted_event
from weft.ledger.rooms.rows import (
    ConversationRow,
    all_conversations,
    conversations_of,
    find_conversation,
    readable_ranges,
)
from weft.ledger.search.entries import EntryPlace
from weft.ledger.search.hits import Hit, look_through, snippet
from weft.ledger.search.query import Query
from weft.ledger.views.rows import load_turn
from weft.ledger.views.values import text_of
from weft.store.erased_contents import is_husk
from weft.store.port import ReadTxn
from weft.store.replica_names import OwnEvents
from weft.store.sql import rows_in

MOST_MESSAGES = 5000
"""So many messages are looked through for one page."""
ROWS_AT_ONCE = 250
Bounds = tuple[int, int]
"""Positions behind the first number, up to the second."""


class Stretch(Struct, frozen=True):
    """Messages of a conversation that are read in it, or in a fork of it."""

    room: ConversationRow
    conversation: str
    low: int
    high: int


class FoundMessages(Struct, frozen=True):
    """Hits, each with its place in the order, and where the search stopped; None: at the end."""

    hits: list[tuple[Position, RoomHit]]
    stopped: Position | None


def search_messages(txn: ReadTxn, query: Query, room: str | None, start: Cursor, limit: int) -> FoundMessages:
    """Of the newest conversation first, and in each the newest message first."""
    rooms = [find_conversation(txn, access_of(txn), room)[0]] if room is not None else _readable_rooms(txn)
    hits: list[tuple[Position, RoomHit]] = []
    looked = 0
    for stretch, rows in _chunks(txn, _stretches(txn, rooms), start):
        texts = _texts(txn, rows)
        for row in rows:
            place = (stretch.room.n, row[0])
            looked += 1
            hit = _hit(txn, query, stretch.room, row, texts.get(row[1], ""))
            if hit is not None:
                hits.append((place, hit))
            if len(hits) == limit or looked == MOST_MESSAGES:
                return FoundMessages(hits, place)
    return FoundMessages(hits, None)


def _readable_rooms(txn: ReadTxn) -> list[ConversationRow]:
    access = access_of(txn)
    if access.is_unlimited:
        return list(all_conversations(txn.sql, None))
    return conversations_of(txn, access, OwnEvents(txn.sql))


def _stretches(txn: ReadTxn, rooms: Sequence[ConversationRow]) -> list[Stretch]:
    """What can be read, each position once, in the order of the search."""
    access, own = access_of(txn), OwnEvents(txn.sql)
    covered: dict[str, list[Bounds]] = {}
    stretches: list[list[Stretch]] = []
    for room in sorted(rooms, key=lambda row: row.n):
        ranges = readable_ranges(txn.sql, access, room, own)
        of_room: list[Stretch] = []
        for conversation, low, high in message_places(txn, room, 0, room.position + 1, is_forward=False):
            for since, until in ranges[::-1]:
                bounds = max(low, since), min(high - 1, until)
                free = _without(bounds, covered.get(conversation, ()))
                covered.setdefault(conversation, []).append(bounds)
                of_room += (Stretch(room, conversation, first, last) for first, last in free[::-1])
        stretches.append(of_room)
    return [stretch for of_room in stretches[::-1] for stretch in of_room]


def _without(bounds: Bounds, others: Sequence[Bounds]) -> list[Bounds]:
    """The parts of a range that lie in none of these others, in order."""
    free = [bounds] if bounds[0] < bounds[1] else []
    for low, high in others:
        pieces = [piece for first, last in free for piece in ((first, min(last, low)), (max(first, high), last))]
        free = [piece for piece in pieces if piece[0] < piece[1]]
    return free


def _chunks(
    txn: ReadTxn, stretches: Sequence[Stretch], start: Cursor
) -> Iterator[tuple[Stretch, list[tuple[Any, ...]]]]:
    """The messages of the stretches behind a cursor, some at once, that had arrived when the first page was read."""
    room_number, position = start.position or (None, None)
    own, is_unlimited = OwnEvents(txn.sql), access_of(txn).is_unlimited
    for stretch in stretches:
        if room_number is not None and stretch.room.n > room_number:
            continue
        high = stretch.high
        if position is not None and stretch.room.n == room_number:
            high = min(high, position - 1)
        while high > stretch.low:
            rows = txn.sql.all(
                "SELECT position, id, n, replica, node, posted_at FROM room_message WHERE conversation = ?"
                " AND position > ? AND position <= ? AND kind = 'participant' ORDER BY position DESC LIMIT ?",
                (stretch.conversation, stretch.low, high, ROWS_AT_ONCE),
            )
            if not rows:
                break
            high = rows[-1][0] - 1
            yield (
                stretch,
                [row for row in rows if row[2] <= start.arrival and (is_unlimited or own.has(row[2], row[3]))],
            )


def _texts(txn: ReadTxn, rows: Sequence[Sequence[Any]]) -> dict[str, str]:
    """What each message says, by its id, as people read it; nothing of what was erased."""
    events = {row[1]: posted_event(txn, row[2]) for row in rows}
    refs = {
        id: [bytes.fromhex(part.text) for part in event.parts if isinstance(part, TextFact)]
        for id, event in events.items()
    }
    all_refs = {ref for of_message in refs.values() for ref in of_message}
    numbers = txn.facts.find_contents(all_refs)
    txn.facts.hold(numbers.values())
    names: dict[str, str] = {}

    def shown(mention: Mention) -> str:
        if mention.id not in names:
            names[mention.id] = agent_names(txn.sql, [mention.id])[mention.id]
        name = names[mention.id]
        return f"@{shown_name(mention.name if name == mention.id else name) or mention.id}"

    return {
        id: render_mentions("\n\n".join(_text(txn, numbers[ref]) for ref in of_message if ref in numbers), shown)
        for id, of_message in refs.items()
    }


def _text(txn: ReadTxn, n: int) -> str:
    text = text_of(txn, n) or ""
    return "" if text == ERASED and is_husk(txn.sql, n) else text


def _hit(txn: ReadTxn, query: Query, room: ConversationRow, row: Sequence[Any], text: str) -> RoomHit | None:
    match = look_through(query, ((EntryPlace.TEXT, text),))
    if match is None:
        return None
    position, id, _, _, node, at = row
    piece, marks = snippet(match)
    return RoomHit(
        message_id=id,
        room=room.id,
        room_title=text_of(txn, room.title),
        position=position,
        author_id=node,
        author_name=None if node is None else agent_names(txn.sql, [node])[node],
        posted_at=at,
        snippet=piece,
        marks=marks,
    )


def posted_messages(txn: ReadTxn, hits: Sequence[Hit]) -> tuple[str | None, ...]:
    """For each hit among turns the message of a conversation that it stands for: what an agent was sent or answered.
    Of turns that whoever asks cannot read nothing is told."""
    access = access_of(txn)
    rows = ((hit.turn_id, load_turn(txn.sql, hit.turn_id)) for hit in hits)
    turns = [turn for turn, row in rows if row is not None and access.may_read_turn(row)]
    deliveries = "SELECT i.turn, d.posted FROM inbox i JOIN room_delivery d ON d.message = i.message WHERE i.turn IN"
    queries: dict[str, str] = dict(rows_in(txn.sql, deliveries, turns))
    responses: dict[str, str] = dict(rows_in(txn.sql, "SELECT id, response FROM turn WHERE id IN", queries))
    authors = (
        "SELECT DISTINCT p.id FROM turn t JOIN session s ON s.n = t.session JOIN participant p ON p.session = s.id"
        " WHERE t.id IN"
    )
    posted = "SELECT turn, id FROM room_message WHERE author = ? AND turn IS NOT NULL"
    answers: dict[str, str] = {}
    for (author,) in rows_in(txn.sql, authors, queries):
        answers |= {responses[turn]: id for turn, id in txn.sql.all(posted, (author,)) if turn in responses}
    return tuple(
        None
        if hit.message_id is None or hit.tool_call_id is not None
        else queries.get(hit.turn_id)
        if hit.role == MessageRole.USER
        else answers.get(hit.message_id)
        for hit in hits
    )
