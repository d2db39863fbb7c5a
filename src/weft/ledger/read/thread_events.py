"""The facts of some threads and conversations and nothing beside: what a stranger needs to
follow them from their roots to their heads.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from typing import Any

import orjson
from msgspec import Struct

from weft.kernel.enums import LinkReason
from weft.kernel.errors import FactDamaged
from weft.kernel.events import conversation_stream, event_id
from weft.ledger.read.revisions import Revision
from weft.ledger.read.turns import CHUNK, SegmentRange, ranges_to
from weft.ledger.views.rows import event_at, find_session, place_of_event, stream_of
from weft.store.fact_log import ContentHead, FactReader, LogRow
from weft.store.port import ReadTxn
from weft.store.sql import rows_in

# --- The facts of some conversations: the chains of their events, and who takes part in them.


def conversation_events(txn: ReadTxn, conversations: Sequence[str]) -> set[int]:
    """The arrival numbers of their events."""
    numbers: set[int] = set()
    for id in conversations:
        tip = txn.sql.fetch_row("SELECT last FROM stream_tip WHERE stream = ?", (conversation_stream(id),))
        numbers |= _conversation_chain(txn, id, None if tip is None else bytes(tip[0]))
        row = txn.sql.fetch_row("SELECT forked_from, forked_at FROM conversation WHERE id = ?", (id,))
        while row is not None and row[0] is not None:
            origin, position = row
            numbers |= _chain_to_message(txn, origin, position)
            row = txn.sql.fetch_row("SELECT forked_from, forked_at FROM conversation WHERE id = ?", (origin,))
    return numbers


def participants_in(txn: ReadTxn, conversations: Sequence[str]) -> set[str]:
    """The ids of the agents and people who take or took part in them, or in those that they were forked from."""
    taking_part = "SELECT node FROM participant WHERE conversation IN"
    origins = "SELECT forked_from FROM conversation WHERE forked_from IS NOT NULL AND id IN"
    wanted, nodes = list(conversations), set[str]()
    while wanted:
        nodes |= {node for (node,) in rows_in(txn.sql, taking_part, wanted)}
        wanted = [id for (id,) in rows_in(txn.sql, origins, wanted)]
    return nodes


def _chain_to_message(txn: ReadTxn, conversation: str, position: int) -> set[int]:
    query = "SELECT n FROM room_message WHERE conversation = ? AND position <= ? ORDER BY position DESC LIMIT 1"
    row = txn.sql.fetch_row(query, (conversation, position))
    line = None if row is None else txn.facts.line(row[0])
    if row is None or line is None:
        return set()
    return {row[0], *_conversation_chain(txn, conversation, _room_event_before(line))}


def _conversation_chain(txn: ReadTxn, conversation: str, event: bytes | None) -> set[int]:
    """From an event of a conversation back to its first one."""
    numbers: set[int] = set()
    while event is not None:
        n = txn.facts.find_event(event)
        line = None if n is None else txn.facts.line(n)
        if n is None or line is None:
            raise FactDamaged("conversation", conversation, f"event {event.hex()} of its stream is not here")
        numbers.add(n)
        event = _room_event_before(line)
    return numbers


def _room_event_before(line: bytes) -> bytes | None:
    prev = orjson.loads(line)["prev"]
    return None if prev is None else bytes.fromhex(prev)


# --- The facts of some threads: what a stranger needs to follow them from their roots to their heads, and nothing
# beside.

IMPORTS = b'"stream":"import:'
ROWS_AT_ONCE = 256
_SIGHTING = b'"kind":"sighting"'
_TURN_FIELDS = frozenset(("started", "messages", "calls", "workspace", "metadata", "config"))
"""What a source tells of a turn; a sighting without any of it only says that the turn lies there."""
_IN_RANGE = "segment = ? AND depth BETWEEN ? AND ?"


class ThreadHead(Struct, frozen=True, order=True):
    """Where a thread ends: its turn, and the event whose id is the thread's digest."""

    turn: str
    event: str


class _Run(Struct, frozen=True, order=True):
    """A turn to come: the arrival number of its first event, and how many of its events belong to the threads."""

    n: int
    stream: str
    events: int


class ThreadFacts:
    """Some threads in one consistent view of the ledger."""

    def __init__(self, txn: ReadTxn, spots: Sequence[Revision], conversations: Sequence[str] = ()) -> None:
        self.txn = txn
        self._conversation_events = conversation_events(txn, conversations)
        """Arrival numbers of the events of conversations."""
        self._ranges = _merged_ranges(txn, spots)
        self._asked = _named_sessions(txn, spots)
        self.heads = sorted({_thread_head(txn, spot) for spot in spots})
        self._sessions: dict[str, str | None] = dict.fromkeys(self._made_by())
        """The last event that was given out of each session's stream."""
        self._over: set[str] = set()
        """Sessions whose stream goes on about other things."""
        self._members = participants_in(txn, conversations)
        self._agents = self._acting_personas() | self._members
        self._late = set(self._late_results()) | set(self._substitution_events())
        self._cut = self._cut_turns()
        self._shown: set[str] = set()
        """Events that were given out of turns that are shown in part."""

    def events(self) -> Iterator[tuple[int, bytes]]:
        """The threads' events as they are stored, with their numbers, in order of arrival. One walk at a time."""
        self._sessions, self._over, self._shown = dict.fromkeys(self._sessions), set(), set()
        runs, left = self._all_runs(), dict[str, int]()
        upcoming = next(runs, None)
        for row in rows_at(self.txn.facts, self._places(), left, IMPORTS if self._is_imported() else None):
            for n, line in enumerate(row.lines(), row.first):
                stream = stream_of(n, line)
                if upcoming is not None and n == upcoming.n:
                    left[stream] = upcoming.events
                    upcoming = next(runs, None)
                if stream in left:
                    left[stream] -= 1
                    if left[stream] == 0:
                        del left[stream]
                    if stream[4:] in self._cut:
                        self._shown.add(event_id(line))
                    yield n, line
                elif stream[:4] != "run:" and self._event_belongs(n, stream, line):
                    yield n, line

    def contains(self, turn: object) -> bool:
        """Is this turn in one of the threads, whole or in part?"""
        row = self.txn.sql.fetch_row("SELECT segment, depth FROM turn WHERE id = ?", (turn,)) if turn else None
        part = self._ranges.get(row[0]) if row else None
        return part is not None and row is not None and part.low <= row[1] <= part.high

    def contains_whole(self, turn: str) -> bool:
        return turn not in self._cut and self.contains(turn)

    def content(self, ref: str) -> ContentHead | None:
        """None where it never came here. Raises ContentGone."""
        n = self.txn.facts.find_content(bytes.fromhex(ref))
        return None if n is None else self.txn.facts.content_head(n)

    def tombstones(self, ref: str) -> list[bytes]:
        """The events that say that a content was erased."""
        rows = self.txn.sql.fetch_rows("SELECT n FROM erasure WHERE ref = ? ORDER BY n", (bytes.fromhex(ref),))
        lines = (self.txn.facts.line(n) for (n,) in rows)
        return [line for line in lines if line is not None]

    def _all_runs(self) -> Iterator[_Run]:
        return merge(*map(self._runs_in_range, self._ranges.values()))

    def _places(self) -> Iterator[int]:
        """Arrival numbers in order: where each turn begins, and of all else that has one."""
        begun = (run.n for run in self._all_runs())
        session_events = map(self._session_events, self._sessions)
        return merge(
            begun, sorted(self._late), sorted(self._conversation_events), sorted(self._made_agents()), *session_events
        )

    def _is_imported(self) -> bool:
        linked = "EXISTS (SELECT 1 FROM link WHERE child = turn.id)"
        return any(True for _ in self._each_range("1", f"AND (source IS NOT NULL OR {linked})"))

    def _made_agents(self) -> Iterator[int]:
        query = "SELECT n FROM program_history WHERE program = ? ORDER BY n LIMIT 1"
        found = (self.txn.sql.fetch_row(query, (agent,)) for agent in self._agents)
        return (row[0] for row in found if row is not None)

    def _session_events(self, session: str) -> Iterator[int]:
        """The chain of its events, followed back from the last one that can be about these turns alone."""
        numbers, event = array("q"), self._last_event(session)
        while event is not None:
            n = self.txn.facts.find_event(event)
            line = None if n is None else self.txn.facts.line(n)
            if n is None or line is None:
                raise FactDamaged("session", session, f"event {event.hex()} of its stream is not here")
            numbers.append(n)
            event = _event_before(line)
        return reversed(numbers)

    def _last_event(self, session: str) -> bytes | None:
        """The end of the session's stream, or where it first moves to a turn of another thread."""
        row = self.txn.sql.fetch_row("SELECT n, last_event FROM session WHERE id = ?", (session,))
        if row is None:
            return None
        away = self._first_move_away(row[0])
        line = None if away is None else self.txn.facts.line(away)
        if away is None or line is None or stream_of(away, line) != f"session:{session}":
            return bytes(row[1])
        return _event_before(line)

    def _first_move_away(self, session: int) -> int | None:
        query = "SELECT n, segment, depth, k FROM history WHERE session = ? AND k > ? ORDER BY k LIMIT ?"
        moves = self.txn.sql.fetch_rows(query, (session, -1, CHUNK))
        while moves:
            for n, segment, depth, _ in moves:
                part = self._ranges.get(segment)
                if segment is not None and (part is None or not part.low <= depth <= part.high):
                    return int(n)
            moves = self.txn.sql.fetch_rows(query, (session, moves[-1][3], CHUNK))
        return None

    def _runs_in_range(self, part: SegmentRange) -> Iterator[_Run]:
        query = f"SELECT n, id, events, depth FROM turn WHERE {_IN_RANGE} ORDER BY depth"
        for low in range(part.low, part.high + 1, CHUNK):
            high = min(low + CHUNK - 1, part.high)
            for n, turn, events, depth in self.txn.sql.fetch_rows(query, (part.segment, low, high)):
                cut = part.events if depth == part.high else None
                yield _Run(n, f"run:{turn}", events if cut is None else cut)

    def _event_belongs(self, n: int, stream: str, line: bytes) -> bool:
        kind, _, name = stream.partition(":")
        if kind == "ledger":
            return n in self._late
        if kind == "program":
            is_person = name in self._members and b'"kind":"human_created"' in line
            is_name = is_person or b'"kind":"agent_created"' in line
            return name in self._agents and is_name and b'"prev":null' in line
        if kind == "conversation":
            return n in self._conversation_events
        if kind == "session":
            return name in self._sessions and name not in self._over and self._goes_on(name, line)
        return kind == "import" and self._concerns_threads(line)

    def _goes_on(self, session: str, line: bytes) -> bool:
        """Is it the next event of the session's stream, about these turns alone? If not, the stream ends here."""
        event = orjson.loads(line)
        if event.get("prev") == self._sessions[session] and self._is_here(event):
            self._sessions[session] = event_id(line)
            return True
        self._over.add(session)
        return False

    def _is_here(self, event: dict[str, Any]) -> bool:
        turn, at = event.get("to") or event.get("at_turn"), event.get("at") or event.get("at_event")
        if turn is None:
            return True
        place = at.get("event_id") if isinstance(at, dict) else at
        return self.contains(turn) and (turn not in self._cut or place in self._shown)

    def _concerns_threads(self, line: bytes) -> bool:
        """What a source tells of these turns and sessions, without the source itself; or a link between two of them."""
        event = orjson.loads(line)
        if event.get("kind") == "turn_linked":
            joined = self.contains(event.get("child")) and self.contains(event.get("parent"))
            return joined and event.get("why") != LinkReason.SUBAGENT
        if event.get("kind") != "sighting" or event.get("session") not in self._sessions:
            return False
        turn = event.get("turn")
        return "raw" not in event if turn is None else self.contains(turn) and turn not in self._cut

    def _each_range(self, columns: str, more: str = "") -> Iterator[tuple[Any, ...]]:
        for part in self._ranges.values():
            place = (part.segment, part.low, part.high)
            yield from self.txn.sql.fetch_rows(f"SELECT DISTINCT {columns} FROM turn WHERE {_IN_RANGE} {more}", place)

    def _made_by(self) -> list[str]:
        numbers = {n for (n,) in self._each_range("session", "AND session IS NOT NULL")}
        query = "SELECT n, id, origin FROM session WHERE n IN"
        rows = list(rows_in(self.txn.sql, query, sorted(numbers)))
        others = {int(n) for n, id, origin in rows if origin is not None and id not in self._asked}
        makers = {int(n) for n, _, _ in rows} - (self._covered_by_asked(others) if others and self._asked else set())
        return sorted({id for n, id, _ in rows if n in makers} | (self._asked if others else set()))

    def _covered_by_asked(self, others: set[int]) -> set[int]:
        """Of these sessions, by number, those whose turns here are all told by a source of one that was asked for."""
        turns = {id: (session, n) for id, session, n in self._each_range("id, session, n") if session in others}
        sightings = self._sightings_of_asked(min(n for _, n in turns.values()))
        while turns and (event := next(sightings, None)) is not None:
            turns.pop(str(event.get("turn")), None)
        return others - {session for session, _ in turns.values()}

    def _sightings_of_asked(self, first: int) -> Iterator[dict[str, Any]]:
        """From an arrival number on, what sources of the sessions that were asked for tell of turns."""
        for row in self.txn.facts.rows(first - 1):
            for line in row.lines() if IMPORTS in row.events else ():
                event = orjson.loads(line) if _SIGHTING in line else {}
                if event.get("session") in self._asked and not _TURN_FIELDS.isdisjoint(event):
                    yield event

    def _acting_personas(self) -> set[str]:
        found = {persona for (persona,) in self._each_range("persona")}
        held = rows_in(self.txn.sql, "SELECT persona FROM session WHERE id IN", sorted(self._sessions))
        return found | {persona for (persona,) in held}

    def _late_results(self) -> Iterator[int]:
        """Arrival numbers; of a turn that is shown in part nothing counts that came later."""
        query = (
            "SELECT c.result_position, t.depth FROM turn t JOIN tool_call c ON c.turn = t.n"
            " WHERE t.segment = ? AND t.depth BETWEEN ? AND ? AND c.result_position < 0"
        )
        for part in self._ranges.values():
            for position, depth in self.txn.sql.fetch_rows(query, (part.segment, part.low, part.high)):
                if depth < part.high or part.events is None:
                    yield -position

    def _substitution_events(self) -> Iterator[int]:
        """Arrival numbers of those of events that are shown, and of what was recorded to be shown instead."""
        query = (
            "SELECT s.n, s.original, s.original_n, s.replacement_n, t.depth FROM turn t"
            " JOIN substitution s ON s.turn = t.n WHERE t.segment = ? AND t.depth BETWEEN ? AND ?"
        )
        for part in self._ranges.values():
            for n, original, original_n, replacement_n, depth in self.txn.sql.fetch_rows(
                query, (part.segment, part.low, part.high)
            ):
                if depth == part.high and part.events is not None:
                    is_late = not self._is_of_run(original_n)
                    if is_late or self._position_of_event(bytes(original).hex()) >= part.events:
                        continue
                yield n
                if not self._is_of_run(replacement_n):
                    yield replacement_n

    def _is_of_run(self, n: int) -> bool:
        line = self.txn.facts.line(n)
        return line is not None and stream_of(n, line).startswith("run:")

    def _position_of_event(self, event: str) -> int:
        return place_of_event(self.txn.sql, self.txn.facts, event)[1]

    def _cut_turns(self) -> set[str]:
        cut = [part for part in self._ranges.values() if part.events is not None]
        query = "SELECT id FROM turn WHERE segment = ? AND depth = ?"
        return {self.txn.sql.fetch_rows(query, (part.segment, part.high))[0][0] for part in cut}


def _event_before(line: bytes) -> bytes | None:
    """The event of the same stream that an event follows."""
    prev = orjson.loads(line)["prev"]
    return None if prev is None else bytes.fromhex(prev)


def rows_at(
    facts: FactReader, places: Iterator[int], unfinished: Mapping[str, int], holding: bytes | None
) -> Iterator[LogRow]:
    """The rows of the log that hold these numbers, and all rows while something is unfinished. With `holding`, every
    row between the first of them and the end of the log that holds these bytes, too."""
    after, limit, place = 0, 1, next(places, None)
    while place is not None or unfinished or holding:
        if place is not None and not (unfinished or (holding and after)):
            after = place - 1
        rows, used = facts.log(after, limit), 0
        for row in rows:
            wanted = bool(unfinished) or (place is not None and place <= row.n)
            if not (wanted or holding):
                break
            if wanted or (holding and holding in row.events):
                yield row
            after, used = row.n, used + 1
            while place is not None and place <= after:
                place = next(places, None)
        if not rows:
            return
        limit = min(2 * limit, ROWS_AT_ONCE) if used == len(rows) else 1


def _thread_head(txn: ReadTxn, spot: Revision) -> ThreadHead:
    whole = spot.events is None
    return ThreadHead(
        spot.turn.id, spot.turn.digest if whole else event_at(txn.facts, spot.turn, (spot.events or 1) - 1)
    )


def _merged_ranges(txn: ReadTxn, spots: Sequence[Revision]) -> dict[int, SegmentRange]:
    """Every segment once, as far as any of the threads goes in it."""
    found: dict[int, SegmentRange] = {}
    for spot in spots:
        for part in ranges_to(txn.sql, spot.turn.segment, spot.turn.depth, spot.events, across=True):
            known = found.get(part.segment)
            found[part.segment] = part if known is None else max(known, part, key=_range_reach)
    return found


def _named_sessions(txn: ReadTxn, spots: Sequence[Revision]) -> set[str]:
    """Imported sessions that were asked for: by name, or as those to which the named turns belong."""
    by_name = (find_session(txn.sql, spot.session) for spot in spots if spot.session is not None)
    numbers = {spot.turn.session for spot in spots if spot.session is None and spot.turn.session is not None}
    numbers |= {row.n for row in by_name if row is not None}
    rows = rows_in(txn.sql, "SELECT id FROM session WHERE origin IS NOT NULL AND n IN", sorted(numbers))
    return {id for (id,) in rows}


def _range_reach(part: SegmentRange) -> tuple[int, bool, int]:
    return part.high, part.events is None, part.events or 0
