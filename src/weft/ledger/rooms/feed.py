"""A conversation as somebody follows it: what is new behind a position, read in one transaction.

The one who follows is the membership that they had when they began. When it ends, what they may read ends with it: the
messages until then are given, and then that it ended. Whoever opened the ledger reads on without taking part.
"""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.enums import ApprovalState, ParticipantKind
from weft.kernel.errors import InvalidInput, NotFound
from weft.ledger.arguments import checked_count, checked_text
from weft.ledger.model import DEFAULT_AGENT
from weft.ledger.read.access import access_of
from weft.ledger.rooms.model import Participant, RoomMessage
from weft.ledger.rooms.reading import room_messages, room_participants
from weft.ledger.rooms.rows import (
    ConversationRow,
    ParticipantRow,
    find_conversation,
    load_participant,
    present,
)
from weft.ledger.runs.partial_replies import PartialReply, load_partial
from weft.ledger.views.values import text_of
from weft.store.port import ReadTxn, Store
from weft.store.replica_names import OwnEvents

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
            ended, has_more = self._end(txn), high < row.position
            self.scanned = high
            is_whole = ended is None and not has_more
            return RoomNews(
                title=None if ended else text_of(txn, row.title),
                status=row.status,
                messages=tuple(messages),
                has_more=has_more,
                participants=tuple(room_participants(txn, row.id, removed=True)) if is_whole else (),
                answers=tuple(_open_answers(txn, row)) if is_whole else (),
                sessions=tuple(_sessions(txn, row)) if is_whole else (),
                ended=None if has_more else ended,
            )

    def go_back(self, position: int) -> None:
        """Read again behind a position."""
        self.scanned = position

    def read_partials(self, turns: list[str]) -> dict[str, PartialReply] | None:
        """By turn what the brokers of other processes kept of their answers. None: whoever follows takes part no
        longer, and is told nothing more of any answer."""
        with self._store.read() as txn:
            if self._end(txn) is not None:
                return None
            partials = ((turn, load_partial(txn, turn)) for turn in turns)
            return {turn: partial for turn, partial in partials if partial is not None}

    def _end(self, txn: ReadTxn) -> str | None:
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
    rows = txn.sql.all(
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
    return tuple(request for (request,) in txn.sql.all(query, (turn, ApprovalState.OPEN.value)))


def _sessions(txn: ReadTxn, row: ConversationRow) -> list[str]:
    query = "SELECT session FROM participant WHERE conversation = ? AND session IS NOT NULL AND removed_n IS NULL"
    return [session for (session,) in txn.sql.all(query, (row.id,))]
