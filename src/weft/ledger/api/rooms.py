"""The group `rooms`: conversations of people and agents; and what a broker needs of a ledger to
have triggers fire, which post to conversations and send messages, and which no public verb gives
away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.kernel.enums import MessageRole, QueueMode, RoomHistory, RoomStatus
from weft.kernel.errors import InvalidInput, quoted
from weft.ledger import room_members, room_reading
from weft.ledger.api.base import LedgerBase, LedgerPart
from weft.ledger.arguments import (
    as_messages,
    checked_list,
    checked_member,
    checked_names,
    checked_number,
    checked_record,
    checked_text,
)
from weft.ledger.model import MessagesInput
from weft.ledger.read.access import access_of
from weft.ledger.read.search_matches import Hit, parse_query
from weft.ledger.read.sessions import Page
from weft.ledger.room_posting import NewPost, post
from weft.ledger.room_reading import posted_messages, search_messages
from weft.ledger.room_records import (
    ROOM_LIMITS,
    AgentProfile,
    Invitation,
    Participant,
    PersonProfile,
    PostedMessage,
    ReachedAgent,
    Room,
    RoomHit,
    RoomLimits,
    RoomMessage,
    find_conversation,
    set_read_position,
)
from weft.ledger.triggers import (
    CursorMove,
    EventPlace,
    Firing,
    FiringOutcome,
    MissedTimes,
    NewFiring,
    TriggerCursor,
    TriggerStanding,
    events_after,
    fire,
    last_changes,
    listed_firings,
    listed_gaps,
    load_cursors,
    move_cursor,
    place_of,
    record_error,
    record_missed,
    trigger_standing,
)
from weft.ledger.views.rows import load_program
from weft.ledger.write.transaction import requires

# --- Conversations of people and agents.

MOST_MESSAGES = 1000


class Rooms(LedgerPart):
    """`ledger.rooms`: conversations of people and agents."""

    # --- reading ---------------------------------------------------------------------------------------------------

    def get(self, room: str) -> Room:
        """A conversation by its id, the end of it, or its title."""
        with self._store.read() as txn:
            return room_reading.load_room(txn, checked_text(room, "room"))

    def participants(self, room: str, *, removed: bool = False) -> list[Participant]:
        """Who takes part, and with `removed` who did; an agent is `thinking` while it has something to answer."""
        with self._store.read() as txn:
            return room_reading.room_participants(txn, checked_text(room, "room"), removed=removed)

    def messages(
        self, room: str, *, before: int | None = None, after: int | None = None, limit: int = 50
    ) -> list[RoomMessage]:
        """What was said, the oldest first: the newest before a position, or with `after` the first behind one."""
        with self._store.read() as txn:
            return room_reading.room_messages(
                txn,
                checked_text(room, "room"),
                before=None if before is None else checked_number(before, "before"),
                after=None if after is None else checked_number(after, "after"),
                limit=_checked_limit(limit),
            )

    def invitations(self, room: str | None = None) -> list[Invitation]:
        """People who were mentioned and take no part: in one conversation, or wherever the reader sees it."""
        with self._store.read() as txn:
            return room_reading.listed_invitations(txn, None if room is None else checked_text(room, "room"))

    def pending(self, room: str, message: str | None = None) -> list[ReachedAgent]:
        """What agents have still to answer: all of it, or what goes back to one message of a person, by its id."""
        with self._store.read() as txn:
            root = None if message is None else checked_text(message, "message")
            return room_reading.pending_answers(txn, checked_text(room, "room"), root)

    def list(self, *, status: str | None = "active", limit: int = 100) -> list[Room]:
        """Those that whoever reads takes or took part in; where somebody spoke last comes first."""
        wanted = None if status is None else checked_member(RoomStatus, status, "status").value
        with self._store.read() as txn:
            return room_reading.listed_rooms(txn, status=wanted, limit=_checked_limit(limit))

    def search(
        self, words: str, *, room: str | None = None, limit: int = 20, after: str | None = None
    ) -> Page[RoomHit]:
        """Messages that hold all these words, as `ledger.search` reads them: of the newest room first, and there the
        newest message first; of one room where it is named. A page may have fewer than `limit` hits and a further page
        all the same, since a bounded number of messages is looked through for each."""
        query = parse_query(checked_text(words, "words"))
        if not query.phrases:
            raise InvalidInput("there is nothing to search for", "give a word")
        name = None if room is None else self._room_id(room)
        request = self._ledger._request("rooms.search", {"words": words, "room": name}, _checked_limit(limit), after)
        with self._store.read() as txn:
            start = self._ledger._begin(request, txn)
            found = search_messages(txn, query, name, start, _checked_limit(limit))
        return request.page_until(start, found.hits, found.stopped)

    def posted_as(self, hits: Sequence[Hit]) -> tuple[str | None, ...]:
        """For each hit of `ledger.search` the id of the message of a room whose text an agent was sent there, or
        answered with; None for any other."""
        with self._store.read() as txn:
            return posted_messages(txn, [checked_record(hit, Hit, "hits") for hit in checked_list(hits, "hits")])

    def agent(self, name: str) -> AgentProfile:
        """What an agent tells of itself, by its name or id. A private one is there for those it works for."""
        with self._store.read() as txn:
            return room_members.agent_profile(txn, checked_text(name, "agent"))

    def person(self, name: str) -> PersonProfile:
        """What a person tells of themselves, by their name or id."""
        with self._store.read() as txn:
            return room_members.person_profile(txn, checked_text(name, "person"))

    # --- changing --------------------------------------------------------------------------------------------------

    @requires("room:create")
    def create(
        self,
        title: str | None = None,
        *,
        agents: Sequence[str] = (),
        people: Sequence[str] = (),
        history: str = "joined",
        key: str | None = None,
    ) -> Room:
        """Make a conversation with these agents and people. `history` says what those read who join it later: `joined`,
        what is said from then on, or `all`. Only people do that."""
        new = room_members.NewRoom(
            title=None if title is None else checked_text(title, "title"),
            history=checked_member(RoomHistory, history, "history"),
            agents=tuple(checked_names(agents, "agent")),
            people=tuple(checked_names(people, "person")),
        )
        return self._load_room(room_members.create(self._writer, new, key=key))

    @requires("room:post")
    def post(
        self,
        room: str,
        message: MessagesInput,
        *,
        mode: str = "followup",
        meta: Any = None,
        key: str | None = None,
        limits: RoomLimits = ROOM_LIMITS,
    ) -> PostedMessage:
        """Say something. Agents that it mentions are to answer; one that mentions nobody goes to the triage agent.
        `mode` is the queue mode in which they take it. With `key`, a retry key, it is posted once."""
        messages = as_messages(message, MessageRole.USER, "message")
        if len(messages) != 1:
            raise InvalidInput(f"message is a list of {len(messages)}", "post one message at a time")
        if not isinstance(limits, RoomLimits):
            raise InvalidInput(f"limits are {quoted(limits)}", "give RoomLimits")
        new = NewPost(message=messages[0], meta=meta, mode=checked_member(QueueMode, mode, "mode"))
        return post(self._writer, self._room_id(room), new, key=key, limits=limits)

    @requires("room:add")
    def add(self, room: str, agent: str) -> Room:
        """Let an agent in that works for whoever acts. Only people do that."""
        return self._load_room(room_members.add_agent(self._writer, self._room_id(room), checked_text(agent, "agent")))

    @requires("room:invite")
    def invite(self, room: str, person: str) -> Room:
        """Let a person in; that confirms an invitation where there is one. Only participants do that."""
        return self._load_room(room_members.invite(self._writer, self._room_id(room), checked_text(person, "person")))

    @requires("room:invite")
    def decline(self, room: str, person: str) -> None:
        """End an invitation without anybody joining."""
        room_members.decline(self._writer, checked_text(room, "room"), checked_text(person, "person"))

    @requires("room:remove")
    def remove(self, room: str, who: str) -> None:
        """Take an agent or a person out. People are removed by whoever made the conversation; system agents stay."""
        room_members.remove(self._writer, self._room_id(room), checked_text(who, "who"))

    @requires("room:leave")
    def leave(self, room: str) -> None:
        """Whoever acts takes part no longer."""
        room_members.remove(self._writer, self._room_id(room), None)

    @requires("room:title")
    def retitle(self, room: str, title: str) -> Room:
        return self._load_room(room_members.retitle(self._writer, self._room_id(room), checked_text(title, "title")))

    @requires("room:archive")
    def archive(self, room: str) -> Room:
        """Take no more messages, and leave the lists. Whoever made it does that."""
        return self._load_room(room_members.set_status(self._writer, self._room_id(room), RoomStatus.ARCHIVED))

    @requires("room:archive")
    def restore(self, room: str) -> Room:
        """Take messages again."""
        return self._load_room(room_members.set_status(self._writer, self._room_id(room), RoomStatus.ACTIVE))

    @requires("room:fork")
    def fork(self, room: str, at: int | None = None, *, title: str | None = None) -> Room:
        """A new conversation that goes on from a message, by its position, else from the newest one. The agents that
        were there come along, with forks of their sessions; of the people only whoever forks."""
        position = None if at is None else checked_number(at, "at")
        text = None if title is None else checked_text(title, "title")
        return self._load_room(room_members.fork(self._writer, self._room_id(room), position, title=text))

    @requires("room:read")
    def mark_read(self, room: str, position: int | None = None) -> int:
        """Remember up to which message whoever acts has read; without a position, all of it. Returns the position."""
        with self._store.read() as txn:
            row, _ = find_conversation(txn, access_of(txn), checked_text(room, "room"))
            reader = room_reading.reader_of(txn)
        at = row.position if position is None else min(row.position, checked_number(position, "position"))
        self._writer.write(lambda append: set_read_position(append.sql, row.id, reader, at))
        return at

    def _room_id(self, room: str) -> str:
        """The id of a conversation that whoever acts takes or took part in."""
        with self._store.read() as txn:
            return find_conversation(txn, access_of(txn), checked_text(room, "room"))[0].id

    def _load_room(self, id: str) -> Room:
        with self._store.read() as txn:
            return room_reading.load_room(txn, id)


def _checked_limit(limit: int) -> int:
    number = checked_number(limit, "limit")
    if not 0 < number <= MOST_MESSAGES:
        raise InvalidInput(f"limit is {number}", f"it lies between 1 and {MOST_MESSAGES}")
    return number


# --- What a broker needs of a ledger to have triggers fire; no public verb gives it away.


class TriggerLog:
    """What triggers did and have looked at, and their firing. It reads and writes everything: no public verb gives it
    away."""

    def __init__(self, ledger: LedgerBase) -> None:
        self._store, self._writer = ledger._store, ledger._writer

    def standing(self, trigger: str) -> TriggerStanding | None:
        """A trigger, by its id, as this ledger counts it; None where nobody here configured it or took it over."""
        with self._store.read() as txn:
            row = load_program(txn.sql, trigger)
            return None if row is None else trigger_standing(txn, row)

    def last_changes(self) -> tuple[tuple[str, int], ...]:
        """The active triggers, each with the number of the last event about it: what is read of them is good while
        this stays the same."""
        with self._store.read() as txn:
            return last_changes(txn.sql)

    def cursors(self) -> dict[str, TriggerCursor]:
        """How far each trigger has looked, by its id."""
        with self._store.read() as txn:
            return load_cursors(txn.sql)

    def fire(self, new: NewFiring) -> FiringOutcome:
        """Fire for an occasion, once: the fact and the message in one transaction."""
        return fire(self._writer, new)

    def record_error(self, new: NewFiring, error: Exception) -> FiringOutcome:
        return record_error(self._writer, new, error)

    def record_missed(self, trigger: str, times: Sequence[int], reason: str, cursor: CursorMove) -> None:
        """Record times of a schedule at which a trigger did not fire, but for those that are recorded."""
        record_missed(self._writer, trigger, times, reason, cursor)

    def move_cursor(self, trigger: str, cursor: CursorMove) -> bool:
        return move_cursor(self._writer, trigger, cursor)

    def firings(self, trigger: str, limit: int = 20) -> list[Firing]:
        """What a trigger, by its id, did here, the newest first."""
        with self._store.read() as txn:
            return listed_firings(txn, trigger, limit)

    def missed(self, trigger: str, limit: int = 20) -> list[MissedTimes]:
        """Times that it missed here, the newest first."""
        with self._store.read() as txn:
            return listed_gaps(txn, trigger, limit)

    def newest(self) -> int:
        with self._store.read() as txn:
            return txn.facts.tip().n

    def events_after(self, n: int, limit: int) -> tuple[int, list[tuple[int, dict[str, Any]]]]:
        """How far was looked, and the events of this ledger behind an arrival number."""
        with self._store.read() as txn:
            until = min(n + limit, txn.facts.tip().n)
            return until, list(events_after(txn, n, until - n))

    def place_of(self, n: int, fields: dict[str, Any]) -> EventPlace:
        """Where an event belongs, and how many firings lie before it."""
        with self._store.read() as txn:
            return place_of(txn, n, fields)
