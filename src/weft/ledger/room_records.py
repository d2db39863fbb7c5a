"""The rows of conversations and their participants, and which of them count here; with the
records that the conversations of a ledger take and give.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weft.kernel.clock import is_ulid, is_ulid_ending
from weft.kernel.enums import InvitationState, RoomHistory, RoomNotice, RoomStatus
from weft.kernel.errors import Action, AmbiguousName, FactDamaged, NotFound
from weft.kernel.events import ConversationCreated, ConversationRetitled
from weft.kernel.typed_names import name_in_address
from weft.ledger.model import Part
from weft.ledger.read.access import Access
from weft.ledger.views.rows import decoded, text_of
from weft.store.port import ReadTxn
from weft.store.replicas import OwnEvents
from weft.store.sql import Question, Sql

# --- What the conversations of a ledger take and give.


class RoomLimits(Struct, frozen=True, kw_only=True):
    """How far one message may reach."""

    mentions: int = 50
    """So many of those that a message mentions are reached; the others are named in a notice."""
    hops: int = 6
    """An answer to an answer to … a person's message: at most so many."""
    deliveries: int = 40
    """So many messages may reach agents that all go back to one message of a person."""
    missed: int = 40
    """So many earlier messages that an agent has not been sent come with the next one."""


ROOM_LIMITS = RoomLimits()


class Room(Struct, frozen=True, kw_only=True):
    """A conversation."""

    id: str
    title: str | None
    created_by: str
    created_by_name: str
    created_at: int
    last_message_time: int | None
    status: str
    history: str
    position: int
    """The number of its newest message, those of its origin included."""
    forked_from: str | None = None
    fork_position: int | None = None
    """The message of its origin that it goes on from."""
    is_foreign: bool = False
    """Whether it was made in another ledger: it can be read and forked here, and nothing can be said in it."""
    participants: int = 0
    unread: int = 0
    """Messages that the reader has not read."""
    unread_mentions: int = 0
    is_left: bool = False
    """Whether the reader took part and does so no longer. Whoever opened the ledger reads on; others see the room as it
    was when they left."""


class Participant(Struct, frozen=True, kw_only=True):
    """A person or an agent in a conversation, or who was there."""

    id: str
    conversation_id: str
    kind: str
    user_id: str | None
    agent_id: str | None
    name: str
    added_at: int
    added_by: str
    status: str
    is_removed: bool
    removed_at: int | None = None
    session: str | None = None
    """The session that an agent answers in, by its label."""
    system_kind: str | None = None
    is_deleted: bool = False
    """Whether an agent was deleted: it is named still, and nothing reaches it."""
    is_abandoned: bool = False
    """Whether an agent is `thinking` and the process that ran its turn is gone: any broker goes on with it."""

    @property
    def node(self) -> str:
        return self.user_id or self.agent_id or ""

    @property
    def valid_from(self) -> int:
        """Since when they take part, in Unix milliseconds, as nodes of the graph say it."""
        return self.added_at

    @property
    def valid_to(self) -> int | None:
        """Until when: they left or were removed. None: they take part."""
        return self.removed_at


class AgentProfile(Struct, frozen=True, kw_only=True):
    """What anybody may know of an agent that they see."""

    id: str
    name: str
    description: str | None
    personality: str | None
    tools: tuple[str, ...]
    toolset: str | None
    created_by: str
    created_by_name: str
    created_at: int
    kind: str
    """`user_agent`, or `system_agent` where the ledger made it itself."""
    system_agent_kind: str | None
    avatar_url: str | None
    emoji: str
    """Shown where there is no picture."""
    last_active_time: int | None
    """When it last said something in a conversation, or its newest turn ended."""
    public: bool
    private: bool
    is_deleted: bool


class PersonProfile(Struct, frozen=True, kw_only=True):
    """What anybody may know of a person that they see."""

    id: str
    name: str
    email: str | None = None
    image: str | None = None
    emoji: str
    """Shown where there is no picture."""
    presence: str | None = None
    last_active_time: int | None = None
    """When they last said something in a conversation."""
    is_deleted: bool = False


class RoomMention(Struct, frozen=True, kw_only=True):
    """Somebody whom a message mentions, by the name that they have now."""

    kind: str
    id: str
    name: str


class RoomMessage(Struct, frozen=True, kw_only=True):
    """Something that was said in a conversation."""

    id: str
    conversation_id: str
    position: int
    kind: str
    content: tuple[Part, ...]
    text: str
    """Its text parts; mentions stand in it as they were written."""
    author_participant_id: str | None
    author_kind: str | None
    author_id: str | None
    author_name: str | None
    mentions: tuple[RoomMention, ...]
    notice: str | None
    meta: dict[str, Any]
    """`turn`, the turn of an agent that it is the answer of; `answers`, the message that it answers; `root`, the
    person's message that it goes back to; `hops`, how many answers lie between; and what its author gave under other
    names."""
    posted_at: int
    is_erased: bool = False
    """Whether something that it said was erased: the text says so in its place."""


class RoomHit(Struct, frozen=True, kw_only=True):
    """A message of a conversation that holds what was looked for."""

    message_id: str
    room: str
    """The id of the conversation that it is read in: the oldest one that shows it."""
    room_title: str | None
    position: int
    author_id: str | None
    author_name: str | None
    posted_at: int
    snippet: str
    """A piece of its text, on one line."""
    marks: tuple[tuple[int, int], ...]
    """Where the words stand in the snippet: from, to."""


class Invitation(Struct, frozen=True, kw_only=True):
    """A person who was mentioned in a conversation and takes no part in it."""

    conversation_id: str
    conversation_title: str | None
    user_id: str
    name: str
    state: str
    invited_by: str
    invited_at: int
    message: str | None


class ReachedAgent(Struct, frozen=True, kw_only=True):
    """An agent that a message reached: the message of its inbox, and the session that answers."""

    agent: str
    name: str
    message: str
    session: str
    session_id: str


class PostedMessage(Struct, frozen=True, kw_only=True):
    """What became of a message that was posted."""

    message: str
    conversation_id: str
    position: int
    reached: tuple[ReachedAgent, ...]
    """The agents that are to answer; the triage agent where nobody was mentioned."""
    joined: tuple[str, ...] = ()
    """The names of agents that came in by being mentioned."""
    invited: tuple[str, ...] = ()
    """The names of people who were mentioned and take no part."""
    notices: tuple[str, ...] = ()
    """What the system said about it."""


# --- The rows of conversations and their participants, and which of them count here.

READ_ROOM = "room:read"
_CONVERSATION = (
    "SELECT id, n, replica, title, status, history, created_by, created_at, forked_from, forked_at, position,"
    " last_message_at FROM conversation"
)
_PARTICIPANT = (
    "SELECT id, conversation, kind, node, n, replica, session, added_by, added_at, since, seen, removed_by,"
    " removed_at, removed_n, until FROM participant"
)
Ranges = tuple[tuple[int, int], ...]
"""Positions that somebody may read: behind the first number, up to the second."""
EVERYTHING: Ranges = ((0, 2**62),)


class ConversationRow(Struct, gc=False):
    """A conversation as its view has it."""

    id: str
    n: int
    replica: str | None
    title: int | None
    status: str
    history: str
    created_by: str
    created_at: int
    forked_from: str | None
    forked_at: int
    position: int
    last_message_at: int | None


class ParticipantRow(Struct, gc=False):
    """A membership in a conversation as its view has it."""

    id: str
    conversation: str
    kind: str
    node: str
    n: int
    replica: str | None
    session: str | None
    added_by: str
    added_at: int
    since: int
    seen: int
    removed_by: str | None
    removed_at: int | None
    removed_n: int | None
    until: int | None


def load_conversation(sql: Sql, id: str) -> ConversationRow | None:
    row = sql.fetch_row(f"{_CONVERSATION} WHERE id = ?", (id,))
    return None if row is None else ConversationRow(*row)


def all_conversations(sql: Sql, status: str | None) -> Iterator[ConversationRow]:
    """Those where somebody spoke last come first."""
    where = "" if status is None else " WHERE status = ?"
    values = () if status is None else (status,)
    rows = sql.fetch_rows(
        f"{_CONVERSATION}{where} ORDER BY coalesce(last_message_at, created_at) DESC, id DESC", values
    )
    return (ConversationRow(*row) for row in rows)


def conversations_of(txn: ReadTxn, access: Access, own: OwnEvents) -> list[ConversationRow]:
    """Those that everybody in the chain takes or took part in, by what this ledger wrote, each `as_left`. Whoever
    opened the ledger reads all of them, also with fewer rights than they have."""
    if not may_read_rooms(access):
        return []
    if not access.ids:
        return list(all_conversations(txn.sql, None))
    query = "SELECT DISTINCT conversation FROM participant WHERE node = ?"
    ids = [{id for (id,) in txn.sql.fetch_rows(query, (node,))} for node in access.ids]
    rows = (load_conversation(txn.sql, id) for id in (set.intersection(*ids) if ids else ()))
    return [
        as_left(txn, access, row, own)
        for row in rows
        if row is not None and all(memberships(txn.sql, row.id, node, own) for node in access.ids)
    ]


def participants_of(sql: Sql, conversation: str, own: OwnEvents) -> list[ParticipantRow]:
    """Everybody who takes or took part, by what this ledger wrote; whoever came first stands first."""
    rows = sql.fetch_rows(f"{_PARTICIPANT} WHERE conversation = ? ORDER BY n, id", (conversation,))
    return [row for row in map(_participant_row, rows) if own.has(row.n, row.replica)]


def memberships(sql: Sql, conversation: str, node: str, own: OwnEvents) -> list[ParticipantRow]:
    """When somebody takes and took part, the newest last."""
    rows = sql.fetch_rows(f"{_PARTICIPANT} WHERE conversation = ? AND node = ? ORDER BY n", (conversation, node))
    return [row for row in map(_participant_row, rows) if own.has(row.n, row.replica)]


def present(sql: Sql, conversation: str, node: str, own: OwnEvents) -> ParticipantRow | None:
    """The membership of somebody who takes part now."""
    rows = memberships(sql, conversation, node, own)
    return next((row for row in reversed(rows) if row.removed_n is None), None)


def participant_of_session(sql: Sql, session: str, own: OwnEvents) -> ParticipantRow | None:
    """The agent that answers in a session of a conversation."""
    rows = sql.fetch_rows(*participant_question(session))
    return next((row for row in map(_participant_row, rows) if own.has(row.n, row.replica)), None)


def participant_question(session: str) -> Question:
    """What `participant_of_session` asks."""
    return f"{_PARTICIPANT} WHERE session = ? ORDER BY n DESC", (session,)


def load_participant(sql: Sql, id: str) -> ParticipantRow | None:
    row = sql.fetch_row(f"{_PARTICIPANT} WHERE id = ?", (id,))
    return None if row is None else _participant_row(row)


def _participant_row(row: Sequence[Any]) -> ParticipantRow:
    return ParticipantRow(*row)


def may_read_rooms(access: Access) -> bool:
    """Whether the rights of whoever reads leave them conversations at all."""
    return access.is_unlimited or access.authority.rights.allows_reading(READ_ROOM)


def readable_ranges(sql: Sql, access: Access, row: ConversationRow, own: OwnEvents) -> Ranges:
    """The positions that whoever reads may read: while they took part, or from the beginning where the conversation
    says so. Everybody in the chain must be allowed."""
    if access.is_unlimited:
        return EVERYTHING
    if not may_read_rooms(access):
        return ()
    ranges = EVERYTHING
    for id in access.ids:
        ranges = _common_ranges(ranges, _ranges_of(sql, row, id, own))
    return ranges


def _ranges_of(sql: Sql, row: ConversationRow, node: str, own: OwnEvents) -> Ranges:
    ranges: list[tuple[int, int]] = []
    for membership in memberships(sql, row.id, node, own):
        since = 0 if row.history == RoomHistory.ALL else membership.since
        until = EVERYTHING[0][1] if membership.until is None else membership.until
        if ranges and since <= ranges[-1][1]:
            ranges[-1] = (min(ranges[-1][0], since), max(ranges[-1][1], until))
        else:
            ranges.append((since, until))
    return tuple(ranges)


def _common_ranges(first: Ranges, second: Ranges) -> Ranges:
    return tuple(
        (max(low, other_low), min(high, other_high))
        for low, high in first
        for other_low, other_high in second
        if max(low, other_low) < min(high, other_high)
    )


def as_left(txn: ReadTxn, access: Access, row: ConversationRow, own: OwnEvents) -> ConversationRow:
    """A conversation with the title, the newest message and its time of when whoever asks left it; as it is for those
    who take part, and for whoever opened the ledger."""
    ends = [one.until for one in ended_memberships(txn.sql, access, row, own) if one.until is not None]
    if not ends:
        return row
    last = txn.sql.fetch_row(
        "SELECT posted_at FROM room_message WHERE conversation = ? AND position <= ? AND kind = 'participant'"
        " ORDER BY position DESC LIMIT 1",
        (row.id, min(ends)),
    )
    return replace(
        row,
        title=_title_at(txn, row, min(ends)),
        position=min(ends),
        last_message_at=None if last is None else int(last[0]),
    )


def ended_memberships(sql: Sql, access: Access, row: ConversationRow, own: OwnEvents) -> list[ParticipantRow]:
    """The newest membership of everybody in the chain who takes part no longer. Whoever opened the ledger has none."""
    newest = [memberships(sql, row.id, id, own)[-1:] for id in (() if access.is_unlimited else access.ids)]
    return [one for rows in newest for one in rows if one.removed_n is not None]


def _title_at(txn: ReadTxn, row: ConversationRow, position: int) -> int | None:
    """The number of the title that a conversation had at a position. A notice follows each change of it."""
    query = "SELECT n FROM room_message WHERE conversation = ? AND notice = ? AND position"
    values = (row.id, RoomNotice.RETITLED.value, position)
    if txn.sql.fetch_row(f"{query} > ? LIMIT 1", values) is None:
        return row.title
    notice = txn.sql.fetch_row(f"{query} <= ? ORDER BY position DESC LIMIT 1", values)
    n = row.n if notice is None else int(notice[0]) - 1
    line = txn.facts.line(n)
    event = None if line is None else decoded(n, line)
    if not isinstance(event, ConversationCreated | ConversationRetitled):
        raise FactDamaged("event number", str(n), "it gives a conversation no title")
    return None if event.title is UNSET else txn.facts.find_content(bytes.fromhex(event.title))


def find_conversation(txn: ReadTxn, access: Access, name: str) -> tuple[ConversationRow, Ranges]:
    """By id, by the end of an id, or by title: of those that whoever asks takes or took part in, `as_left`. Of several
    with one title the only active one is meant."""
    sql, own, name = txn.sql, OwnEvents(txn.sql), name_in_address(name)
    rooms: dict[str, tuple[ConversationRow, Ranges]] = {}
    for id in ids_named(sql, name.strip()):
        row = load_conversation(sql, id)
        ranges = () if row is None else readable_ranges(sql, access, row, own)
        if row is not None and (ranges or _was_member(sql, access, row, own)):
            as_seen = as_left(txn, access, row, own)
            if as_seen.title == row.title or id.endswith(name.strip().upper()):
                rooms[id] = (as_seen, ranges)
    for row in () if rooms or access.is_unlimited else conversations_of(txn, access, own):
        if text_of(txn, row.title) == name.strip() and _was_member(sql, access, row, own):
            rooms[row.id] = (row, readable_ranges(sql, access, row, own))
    if len(rooms) > 1:
        active = {id: (row, ranges) for id, (row, ranges) in rooms.items() if row.status == RoomStatus.ACTIVE}
        rooms = active or rooms
    if not rooms:
        raise NotFound("room", name, Action.LIST_ROOMS)
    if len(rooms) > 1:
        raise ambiguous_room(name, list(rooms))
    return next(iter(rooms.values()))


def ambiguous_room(name: str, ids: Sequence[str]) -> AmbiguousName:
    """The error for a title that several conversations have, or for the end of several ids."""
    is_end_of_id = all(id.endswith(name.strip().upper()) for id in ids)
    return AmbiguousName(name, ids, "" if is_end_of_id else "several rooms have that title: name one by its id")


def _was_member(sql: Sql, access: Access, row: ConversationRow, own: OwnEvents) -> bool:
    """Somebody who came last and has nothing to read yet is in the room all the same."""
    if not may_read_rooms(access):
        return False
    return access.is_unlimited or all(memberships(sql, row.id, id, own) for id in access.ids)


def has_open_invitation(sql: Sql, conversation: str, node: str) -> bool:
    query = "SELECT 1 FROM invitation WHERE conversation = ? AND node = ? AND state = ?"
    return sql.fetch_row(query, (conversation, node, InvitationState.OPEN.value)) is not None


def set_read_position(sql: Sql, conversation: str, node: str, position: int) -> None:
    """Remember up to which message somebody has read."""
    sql.run(
        "INSERT INTO room_read(conversation, node, position) VALUES (?, ?, ?)"
        " ON CONFLICT (conversation, node) DO UPDATE SET position = excluded.position",
        (conversation, node, position),
    )


def ids_named(sql: Sql, name: str) -> list[str]:
    """Of all conversations that a name may mean, whoever may read them: by id, by title, by the end of an id."""
    if is_ulid(name.upper()):
        return [name.upper()]
    rows = sql.fetch_rows(
        "SELECT c.id FROM lookup_text l JOIN conversation c ON c.title = l.content WHERE l.text = ?", (name,)
    )
    if not rows and is_ulid_ending(name):
        rows = sql.fetch_rows("SELECT id FROM conversation WHERE id LIKE ? LIMIT 10", (f"%{name.upper()}",))
    return [id for (id,) in rows]
