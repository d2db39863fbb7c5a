"""Conversations read back: which there are, who takes part, what was said, what is new behind a
position, and messages by their words. Nobody reads what was said while they took no part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from weft.kernel.contents import ERASED
from weft.kernel.enums import (
    ApprovalState,
    InvitationState,
    MessageRole,
    OpenRunState,
    ParticipantKind,
    ParticipantStatus,
)
from weft.kernel.errors import FactDamaged, InvalidInput, NotFound
from weft.kernel.events import ImageFact, MessagePosted, PartFact, TextFact
from weft.kernel.message_text import Mention, render_mentions, shown_name
from weft.ledger.arguments import checked_count, checked_text
from weft.ledger.broker.inbox import ReferenceNumbers, is_left, own_queue
from weft.ledger.broker.session_stream import PartialReply, load_partial
from weft.ledger.model import DEFAULT_AGENT, TextPart
from weft.ledger.read.access import access_of, system_kind_of
from weft.ledger.read.search_index import EntryPlace
from weft.ledger.read.search_matches import Hit, SearchQuery, look_through, snippet
from weft.ledger.read.sessions import PageCursor, Position, agent_names
from weft.ledger.read.turns import to_part
from weft.ledger.room_records import (
    ConversationRow,
    Invitation,
    Participant,
    ParticipantRow,
    Ranges,
    ReachedAgent,
    Room,
    RoomHit,
    RoomMention,
    RoomMessage,
    all_conversations,
    conversations_of,
    ended_memberships,
    find_conversation,
    load_conversation,
    load_participant,
    may_read_rooms,
    memberships,
    participants_of,
    present,
    readable_ranges,
)
from weft.ledger.views.rows import decoded, json_of, load_program, load_turn, text_of
from weft.ledger.views.turns import part_columns
from weft.store.fact_log import is_erased_content
from weft.store.port import ReadTxn, Store
from weft.store.replicas import OwnEvents, is_dead
from weft.store.sql import Sql, rows_in

# --- Conversations read back: which there are, who takes part, what was said.

MOST_UNREAD = 1000
"""More unread messages are not counted."""
NO_END = 2**62
"""Behind every event: nothing that happens is kept from the reader."""
_MESSAGE = "SELECT position, id, n, replica, kind, author, node, notice, root, hops, answers, turn, posted_at"


def load_room(txn: ReadTxn, name: str) -> Room:
    row, ranges = find_conversation(txn, access_of(txn), name)
    return _to_room(txn, row, ranges, OwnEvents(txn.sql))


def listed_rooms(txn: ReadTxn, *, status: str | None, limit: int) -> list[Room]:
    """Those that whoever reads takes or took part in, where somebody spoke last first."""
    access, own = access_of(txn), OwnEvents(txn.sql)
    if access.is_unlimited:
        rows: Iterable[ConversationRow] = all_conversations(txn.sql, status)
    else:
        own_rows = conversations_of(txn, access, own)
        rows = sorted(
            (row for row in own_rows if status is None or row.status == status),
            key=lambda row: (row.last_message_at or row.created_at, row.id),
            reverse=True,
        )
    return [_to_room(txn, row, readable_ranges(txn.sql, access, row, own), own) for row in islice(rows, limit)]


def _to_room(txn: ReadTxn, row: ConversationRow, ranges: Ranges, own: OwnEvents) -> Room:
    reader = reader_of(txn)
    unread, mentions = _unread_counts(txn, row, ranges, reader)
    end = _reading_end(txn, row)
    (count,) = txn.sql.fetch_row(
        "SELECT count(*) FROM participant WHERE conversation = ? AND n <= ? AND (removed_n IS NULL OR removed_n > ?)",
        (row.id, end, end),
    ) or (0,)
    newest = memberships(txn.sql, row.id, reader, own)[-1:]
    return Room(
        id=row.id,
        title=text_of(txn, row.title),
        created_by=row.created_by,
        created_by_name=agent_names(txn.sql, [row.created_by])[row.created_by],
        created_at=row.created_at,
        last_message_time=row.last_message_at,
        status=row.status,
        history=row.history,
        position=row.position,
        forked_from=row.forked_from,
        fork_position=row.forked_at if row.forked_from is not None else None,
        is_foreign=not own.has(row.n, row.replica),
        participants=count,
        unread=unread,
        unread_mentions=mentions,
        is_left=any(one.removed_n is not None for one in newest),
    )


def reader_of(txn: ReadTxn) -> str:
    """Who reads: the nearest of those in whose name that is done."""
    ids = access_of(txn).ids
    return ids[-1] if ids else DEFAULT_AGENT


def read_position(txn: ReadTxn, conversation: str, node: str) -> int:
    row = txn.sql.fetch_row("SELECT position FROM room_read WHERE conversation = ? AND node = ?", (conversation, node))
    return 0 if row is None else int(row[0])


def _unread_counts(txn: ReadTxn, row: ConversationRow, ranges: Ranges, reader: str) -> tuple[int, int]:
    """What others said behind the last message that was read, and where it mentions the reader."""
    since = max(read_position(txn, row.id, reader), row.forked_at)
    unread = mentions = 0
    for low, high in ranges:
        bounds = (row.id, max(low, since), min(high, row.position))
        (count,) = txn.sql.fetch_row(
            "SELECT count(*) FROM (SELECT 1 FROM room_message WHERE conversation = ? AND position > ? AND position <= ?"
            " AND kind = 'participant' AND (node IS NULL OR node <> ?) LIMIT ?) unread",
            (*bounds, reader, MOST_UNREAD),
        ) or (0,)
        (mention_count,) = txn.sql.fetch_row(
            "SELECT count(*) FROM mention WHERE conversation = ? AND position > ? AND position <= ? AND node = ?",
            (*bounds, reader),
        ) or (0,)
        unread, mentions = unread + count, mentions + mention_count
    return unread, mentions


def room_participants(txn: ReadTxn, name: str, *, removed: bool) -> list[Participant]:
    """Those who take part, in the order in which they came; with `removed` also those who did. Whoever left is told of
    those who took part then."""
    row, _ = find_conversation(txn, access_of(txn), name)
    rows = participants_of(txn.sql, row.id, OwnEvents(txn.sql))
    end = _reading_end(txn, row)
    rows = [_as_of(one, end) for one in rows if one.n <= end]
    rows = [one for one in rows if removed or one.removed_n is None]
    names = agent_names(txn.sql, [one.node for one in rows])
    own_inbox = own_queue(txn.sql, "i") if end == NO_END else None
    return [_to_participant(txn, one, names[one.node], own_inbox) for one in rows]


def _as_of(participant: ParticipantRow, end: int) -> ParticipantRow:
    """A membership as it stood before the event behind `end`."""
    if participant.removed_n is None or participant.removed_n <= end:
        return participant
    return replace(participant, removed_by=None, removed_at=None, removed_n=None, until=None)


def _reading_end(txn: ReadTxn, row: ConversationRow) -> int:
    """The last event of a conversation that whoever reads hears of: the one that removed them, for those who left."""
    ended = ended_memberships(txn.sql, access_of(txn), row, OwnEvents(txn.sql))
    return min((one.removed_n for one in ended if one.removed_n is not None), default=NO_END)


def takes_part(txn: ReadTxn, row: ConversationRow) -> bool:
    """Whether whoever reads takes part now; whoever opened the ledger reads everything."""
    access, own = access_of(txn), OwnEvents(txn.sql)
    if access.is_unlimited:
        return True
    return all(present(txn.sql, row.id, id, own) is not None for id in access.ids)


def _to_participant(
    txn: ReadTxn, row: ParticipantRow, name: str, own_inbox: tuple[str, tuple[Any, ...]] | None
) -> Participant:
    """`own_inbox` is the condition on what an agent has to answer here; None: the reader is not told."""
    is_agent = row.kind == ParticipantKind.AGENT
    session = None
    status = ParticipantStatus.INACTIVE
    if row.session is not None:
        own, values = own_inbox or ("1 = 0", ())
        session_row = txn.sql.fetch_row(
            "SELECT s.label, EXISTS (SELECT 1 FROM inbox i WHERE i.session = s.n AND i.state IN ('queued', 'taken')"
            f" AND {own}) FROM session s WHERE s.id = ?",
            (*values, row.session),
        )
        session = None if session_row is None else session_row[0]
        if session_row is not None and session_row[1] and row.removed_n is None:
            status = ParticipantStatus.THINKING
    program = load_program(txn.sql, row.node)
    is_deleted = program is not None and bool(program.deleted)
    return Participant(
        id=row.id,
        conversation_id=row.conversation,
        kind=row.kind,
        user_id=None if is_agent else row.node,
        agent_id=row.node if is_agent else None,
        name=name,
        added_at=row.added_at,
        added_by=row.added_by,
        status=status.value,
        is_removed=row.removed_n is not None,
        removed_at=row.removed_at,
        session=session,
        system_kind=system_kind_of(txn, program) if is_agent else None,
        is_deleted=is_deleted,
        is_abandoned=status is ParticipantStatus.THINKING and _is_abandoned(txn, row.session),
    )


def _is_abandoned(txn: ReadTxn, session: str | None) -> bool:
    """Whether a turn of a session, by its id, can go on, and the process that ran it is certainly gone."""
    turn = txn.sql.fetch_row(
        "SELECT o.turn FROM open_run o JOIN session s ON s.n = o.session WHERE s.id = ? AND o.state = ?",
        (session, OpenRunState.RUNNING.value),
    )
    return turn is not None and is_left(txn, turn[0], lambda lease: is_dead(lease.owner))


def room_messages(
    txn: ReadTxn, name: str, *, before: int | None = None, after: int | None = None, limit: int = 50
) -> list[RoomMessage]:
    """What was said, the oldest first: the newest `limit` before a position, or the first behind one."""
    row, ranges = find_conversation(txn, access_of(txn), name)
    own = OwnEvents(txn.sql)
    low, high = after or 0, (row.position + 1 if before is None else before)
    is_forward = after is not None
    rows: list[tuple[Any, ...]] = []
    for part in message_places(txn, row, low, high, is_forward=is_forward):
        rows += _rows_between(txn, *part, ranges, own, limit - len(rows), is_forward=is_forward)
        if len(rows) >= limit:
            break
    messages = [_to_message(txn, row.id, message_row) for message_row in rows]
    return messages if is_forward else messages[::-1]


def message_places(
    txn: ReadTxn, row: ConversationRow, low: int, high: int, *, is_forward: bool
) -> list[tuple[str, int, int]]:
    """The conversations that positions between two bounds lie in: this one, and those that it was forked from."""
    parts: list[tuple[str, int, int]] = []
    at: ConversationRow | None = row
    while at is not None and high > low + 1:
        parts.append((at.id, max(low, at.forked_at), high))
        high = min(high, at.forked_at + 1)
        at = None if at.forked_from is None else load_conversation(txn.sql, at.forked_from)
    return parts[::-1] if is_forward else parts


def _rows_between(
    txn: ReadTxn,
    conversation: str,
    low: int,
    high: int,
    ranges: Ranges,
    own: OwnEvents,
    limit: int,
    *,
    is_forward: bool,
) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    order = "ASC" if is_forward else "DESC"
    for since, until in ranges if is_forward else ranges[::-1]:
        message_rows = txn.sql.fetch_rows(
            f"{_MESSAGE} FROM room_message WHERE conversation = ? AND position > ? AND position < ?"
            f" ORDER BY position {order} LIMIT ?",
            (conversation, max(low, since), min(high, until + 1), limit - len(rows)),
        )
        rows += [row for row in message_rows if own.has(row[2], row[3]) or access_of(txn).is_unlimited]
        if len(rows) >= limit:
            break
    return rows


def _to_message(txn: ReadTxn, conversation: str, row: Sequence[Any]) -> RoomMessage:
    position, id, n, _, kind, author, node, notice, root, hops, answers, turn, at = row
    event = posted_event(txn, n)
    content = tuple(to_part(txn, part_columns(ReferenceNumbers(txn), part)) for part in event.parts)
    mentions = () if event.mentions is UNSET else event.mentions
    nodes = [mention.id for mention in mentions]
    names = agent_names(txn.sql, [*nodes, *([node] if node else [])])
    participant = None if author is None else load_participant(txn.sql, author)
    relations = {"turn": turn, "answers": answers, "root": root if root != id else None, "hops": hops or None}
    return RoomMessage(
        id=id,
        conversation_id=conversation,
        position=position,
        kind=kind,
        content=content,
        text="\n\n".join(part.text for part in content if isinstance(part, TextPart) and isinstance(part.text, str)),
        author_participant_id=author,
        author_kind=None if participant is None else participant.kind,
        author_id=node,
        author_name=_trigger_name(txn, event) if node is None else names[node],
        mentions=tuple(
            RoomMention(kind=mention.kind.value, id=mention.id, name=names[mention.id]) for mention in mentions
        ),
        notice=notice,
        meta={
            **{name: value for name, value in _author_meta(txn, event).items() if name not in relations},
            **{name: value for name, value in relations.items() if value is not None},
        },
        posted_at=at,
        is_erased=any(_is_erased(txn, part) for part in event.parts),
    )


def _trigger_name(txn: ReadTxn, event: MessagePosted) -> str | None:
    """Who says what no participant says: a trigger; None where it is the system itself."""
    if event.author is not UNSET or event.actor == DEFAULT_AGENT:
        return None
    return f"trigger {agent_names(txn.sql, [event.actor])[event.actor]}"


def _author_meta(txn: ReadTxn, event: MessagePosted) -> dict[str, Any]:
    meta = None if event.meta is UNSET else json_of(txn, ReferenceNumbers(txn).number(event.meta))
    return meta if isinstance(meta, dict) else {} if meta is None else {"meta": meta}


def _is_erased(txn: ReadTxn, part: PartFact) -> bool:
    ref = part.text if isinstance(part, TextFact) else part.url if isinstance(part, ImageFact) else None
    n = None if ref is None else txn.facts.find_content(bytes.fromhex(ref))
    return n is not None and is_erased_content(txn.sql, n)


def pending_answers(txn: ReadTxn, name: str, root: str | None) -> list[ReachedAgent]:
    """What agents have still to answer in a conversation: all of it, or what goes back to one message of a person."""
    row, _ = find_conversation(txn, access_of(txn), name)
    if not takes_part(txn, row):
        return []
    of_root = "" if root is None else " AND d.root = ?"
    own, own_values = own_queue(txn.sql, "i")
    reached = reached_agents(
        txn.sql,
        "JOIN participant p ON p.session = s.id JOIN inbox i ON i.session = s.n AND i.message = d.message",
        f"p.conversation = ? AND i.state IN ('queued', 'taken') AND {own}{of_root} ORDER BY i.n",
        (row.id, *own_values, *(() if root is None else (root,))),
    )
    return list(reached)


def reached_agents(sql: Sql, joins: str, where: str, values: tuple[Any, ...]) -> tuple[ReachedAgent, ...]:
    """The agents behind some deliveries: `d` is the delivery, `s` the session that it went to."""
    rows = sql.fetch_rows(
        "SELECT s.persona, coalesce((SELECT name FROM program a WHERE a.id = s.persona), s.persona), d.message,"
        f" s.label, s.id FROM room_delivery d JOIN session s ON s.id = d.session {joins} WHERE {where}",
        values,
    )
    return tuple(
        ReachedAgent(agent=agent, name=name, message=message, session=label, session_id=id)
        for agent, name, message, label, id in rows
    )


def posted_event(txn: ReadTxn, n: int) -> MessagePosted:
    line = txn.facts.line(n)
    event = None if line is None else decoded(n, line)
    if not isinstance(event, MessagePosted):
        raise FactDamaged("event number", str(n), "it posts no message")
    return event


def listed_invitations(txn: ReadTxn, name: str | None) -> list[Invitation]:
    """Open invitations: of one conversation, or those of whoever reads and of the rooms that they are in."""
    access, own = access_of(txn), OwnEvents(txn.sql)
    query = (
        "SELECT conversation, node, n, replica, message, state, invited_by, invited_at FROM invitation WHERE state = ?"
    )
    rows = txn.sql.fetch_rows(f"{query} ORDER BY n", (InvitationState.OPEN.value,))
    only = None if name is None else find_conversation(txn, access, name)[0].id
    if not may_read_rooms(access):
        return []
    invitations = []
    for conversation, node, n, replica, message, state, by, at in rows:
        row = load_conversation(txn.sql, conversation)
        if row is None or not own.has(n, replica) or only not in (None, conversation):
            continue
        is_member = takes_part(txn, row)
        if not is_member and access.ids != (node,):
            continue
        names = agent_names(txn.sql, [node, by])
        invitations.append(
            Invitation(
                conversation_id=conversation,
                conversation_title=text_of(txn, row.title),
                user_id=node,
                name=names[node],
                state=state,
                invited_by=names[by],
                invited_at=at,
                message=message,
            )
        )
    return invitations


# --- A conversation as somebody follows it: what is new behind a position, read in one transaction.

BATCH_MESSAGES = 100
"""So many positions are read together."""


class OpenAnswer(Struct, frozen=True, kw_only=True):
    """A turn under way that answers messages of a conversation."""

    participant: str
    agent: str
    name: str
    session: str
    """Its id."""
    turn: str
    requests: tuple[str, ...] = ()
    """The ids of the tool calls of it that wait for a person."""


class RoomNews(Struct, frozen=True, kw_only=True):
    """What is new for somebody who follows a conversation, all of one moment."""

    title: str | None
    status: str
    messages: tuple[RoomMessage, ...]
    has_more: bool
    """Whether messages lie behind these; participants and answers are read with the last of them."""
    participants: tuple[Participant, ...] = ()
    answers: tuple[OpenAnswer, ...] = ()
    sessions: tuple[str, ...] = ()
    """The ids of those that the agents answer in who take part."""
    ended: str | None = None
    """Why nothing more comes: `left`, `removed`, or `gone` where the conversation can be read no longer."""


class RoomFeed:
    """One subscriber of a conversation. Everything is read with the rights of whoever acts."""

    def __init__(self, store: Store, room: str, after: int | None) -> None:
        self._store = store
        with store.read() as txn:
            row, _ = find_conversation(txn, access_of(txn), checked_text(room, "room"))
            self.id = row.id
            self.position = row.position if after is None else checked_count(after, "position")
            if self.position > row.position:
                problem = f"position {self.position} is beyond the newest message, {row.position}"
                raise InvalidInput(problem, "give one that an item had; 0 is the beginning")
            self.newest = txn.facts.tip().n
            self._memberships = _present_memberships(txn, row.id)
            self._is_limited = not access_of(txn).is_unlimited
        self.scanned = self.position
        """The last position that was looked at; what lies between it and the last message could not be read."""

    def read(self) -> RoomNews:
        """What is new behind the last position that was looked at."""
        with self._store.read() as txn:
            try:
                row, _ = find_conversation(txn, access_of(txn), self.id)
            except NotFound:
                return RoomNews(title=None, status="", messages=(), has_more=False, ended="gone")
            low, high = self.scanned, min(row.position, self.scanned + BATCH_MESSAGES)
            messages = (
                room_messages(txn, row.id, after=low, before=high + 1, limit=BATCH_MESSAGES) if high > low else []
            )
            ended, has_more = self._feed_end(txn), high < row.position
            self.scanned = high
            is_whole = ended is None and not has_more
            return RoomNews(
                title=None if ended else text_of(txn, row.title),
                status=row.status,
                messages=tuple(messages),
                has_more=has_more,
                participants=tuple(room_participants(txn, row.id, removed=True)) if is_whole else (),
                answers=tuple(_open_answers(txn, row)) if is_whole else (),
                sessions=tuple(_participant_sessions(txn, row)) if is_whole else (),
                ended=None if has_more else ended,
            )

    def go_back(self, position: int) -> None:
        """Read again behind a position."""
        self.scanned = position

    def read_partials(self, turns: list[str]) -> dict[str, PartialReply] | None:
        """By turn what the brokers of other processes kept of their answers. None: whoever follows takes part no
        longer, and is told nothing more of any answer."""
        with self._store.read() as txn:
            if self._feed_end(txn) is not None:
                return None
            partials = ((turn, load_partial(txn, turn)) for turn in turns)
            return {turn: partial for turn, partial in partials if partial is not None}

    def _feed_end(self, txn: ReadTxn) -> str | None:
        rows = [load_participant(txn.sql, id) for id in self._memberships]
        for row in rows:
            if row is None or row.removed_n is not None:
                return "left" if row is not None and row.removed_by == row.node else "removed"
        return "removed" if self._is_limited and not rows else None


def _present_memberships(txn: ReadTxn, conversation: str) -> tuple[str, ...]:
    """The ids of the memberships that whoever follows has, one for each in whose name that is done; none where one of
    them takes no part."""
    own, ids = OwnEvents(txn.sql), access_of(txn).ids or (DEFAULT_AGENT,)
    rows: list[ParticipantRow | None] = [present(txn.sql, conversation, id, own) for id in ids]
    return () if None in rows else tuple(row.id for row in rows if row is not None)


def _open_answers(txn: ReadTxn, row: ConversationRow) -> list[OpenAnswer]:
    rows = txn.sql.fetch_rows(
        "SELECT DISTINCT p.id, p.node, coalesce(a.name, p.node), s.id, i.turn FROM participant p"
        " JOIN session s ON s.id = p.session JOIN inbox i ON i.session = s.n AND i.state = 'taken'"
        " JOIN room_delivery d ON d.message = i.message LEFT JOIN program a ON a.id = p.node"
        " WHERE p.conversation = ? AND p.kind = ? AND p.removed_n IS NULL AND i.turn IS NOT NULL ORDER BY i.turn",
        (row.id, ParticipantKind.AGENT.value),
    )
    return [
        OpenAnswer(
            participant=participant,
            agent=agent,
            name=name,
            session=session,
            turn=turn,
            requests=_open_requests(txn, turn),
        )
        for participant, agent, name, session, turn in rows
    ]


def _open_requests(txn: ReadTxn, turn: str) -> tuple[str, ...]:
    query = "SELECT request FROM approval WHERE turn = ? AND state = ? ORDER BY n"
    return tuple(request for (request,) in txn.sql.fetch_rows(query, (turn, ApprovalState.OPEN.value)))


def _participant_sessions(txn: ReadTxn, row: ConversationRow) -> list[str]:
    query = "SELECT session FROM participant WHERE conversation = ? AND session IS NOT NULL AND removed_n IS NULL"
    return [session for (session,) in txn.sql.fetch_rows(query, (row.id,))]


# --- Messages of conversations by their words: those that whoever asks may read, each once.

MOST_MESSAGES = 5000
"""So many messages are looked through for one page."""
ROWS_AT_ONCE = 250
Bounds = tuple[int, int]
"""Positions behind the first number, up to the second."""


class RoomRange(Struct, frozen=True):
    """Messages of a conversation that are read in it, or in a fork of it."""

    room: ConversationRow
    conversation: str
    low: int
    high: int


class FoundMessages(Struct, frozen=True):
    """Hits, each with its place in the order, and where the search stopped; None: at the end."""

    hits: list[tuple[Position, RoomHit]]
    stopped: Position | None


def search_messages(txn: ReadTxn, query: SearchQuery, room: str | None, start: PageCursor, limit: int) -> FoundMessages:
    """Of the newest conversation first, and in each the newest message first."""
    rooms = [find_conversation(txn, access_of(txn), room)[0]] if room is not None else _readable_rooms(txn)
    hits: list[tuple[Position, RoomHit]] = []
    looked = 0
    for stretch, rows in _message_chunks(txn, _readable_ranges(txn, rooms), start):
        texts = _message_texts(txn, rows)
        for row in rows:
            place = (stretch.room.n, row[0])
            looked += 1
            hit = _room_hit(txn, query, stretch.room, row, texts.get(row[1], ""))
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


def _readable_ranges(txn: ReadTxn, rooms: Sequence[ConversationRow]) -> list[RoomRange]:
    """What can be read, each position once, in the order of the search."""
    access, own = access_of(txn), OwnEvents(txn.sql)
    covered: dict[str, list[Bounds]] = {}
    stretches: list[list[RoomRange]] = []
    for room in sorted(rooms, key=lambda row: row.n):
        ranges = readable_ranges(txn.sql, access, room, own)
        of_room: list[RoomRange] = []
        for conversation, low, high in message_places(txn, room, 0, room.position + 1, is_forward=False):
            for since, until in ranges[::-1]:
                bounds = max(low, since), min(high - 1, until)
                free = _bounds_without(bounds, covered.get(conversation, ()))
                covered.setdefault(conversation, []).append(bounds)
                of_room += (RoomRange(room, conversation, first, last) for first, last in free[::-1])
        stretches.append(of_room)
    return [stretch for of_room in stretches[::-1] for stretch in of_room]


def _bounds_without(bounds: Bounds, others: Sequence[Bounds]) -> list[Bounds]:
    """The parts of a range that lie in none of these others, in order."""
    free = [bounds] if bounds[0] < bounds[1] else []
    for low, high in others:
        pieces = [piece for first, last in free for piece in ((first, min(last, low)), (max(first, high), last))]
        free = [piece for piece in pieces if piece[0] < piece[1]]
    return free


def _message_chunks(
    txn: ReadTxn, stretches: Sequence[RoomRange], start: PageCursor
) -> Iterator[tuple[RoomRange, list[tuple[Any, ...]]]]:
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
            rows = txn.sql.fetch_rows(
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


def _message_texts(txn: ReadTxn, rows: Sequence[Sequence[Any]]) -> dict[str, str]:
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
        id: render_mentions(
            "\n\n".join(_message_text(txn, numbers[ref]) for ref in of_message if ref in numbers), shown
        )
        for id, of_message in refs.items()
    }


def _message_text(txn: ReadTxn, n: int) -> str:
    text = text_of(txn, n) or ""
    return "" if text == ERASED and is_erased_content(txn.sql, n) else text


def _room_hit(txn: ReadTxn, query: SearchQuery, room: ConversationRow, row: Sequence[Any], text: str) -> RoomHit | None:
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
        answers |= {responses[turn]: id for turn, id in txn.sql.fetch_rows(posted, (author,)) if turn in responses}
    return tuple(
        None
        if hit.message_id is None or hit.tool_call_id is not None
        else queries.get(hit.turn_id)
        if hit.role == MessageRole.USER
        else answers.get(hit.message_id)
        for hit in hits
    )
