"""The ledgers at the ends of a sync.

A ledger as a source: its log in batches, and contents by their references. A ledger as a sink: what
it lacks, and batches taken whole. What a push that is limited to some sessions may send. What a
ledger remembers of those it syncs with: local state, which no fact and no export holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import chain, islice

from msgspec import UNSET, Struct

from weft.exchange.sync.fact_transfer import (
    MOST_LACKING,
    BatchEnd,
    BatchTaken,
    EventBatch,
    HelloFrame,
    KnownLog,
    OutgoingContent,
    ReceiverReady,
    SkippedRun,
    WouldTake,
)
from weft.kernel.contents import ROW_BYTES
from weft.kernel.errors import (
    Action,
    ContentGone,
    ContentMissing,
    InvalidInput,
    LabelTaken,
    NotFound,
    ReplicaDiverged,
    quoted,
)
from weft.kernel.events import AgentForked, Event, Substitution, ToolResult, UnknownEvent
from weft.kernel.foreign_input import KINDS, content_refs
from weft.kernel.ledger_events import AgentCreated, ContentErased, SessionCreated, SessionMoved, Sighting
from weft.ledger.api import place_of_event, stream_of
from weft.ledger.arguments import checked_label
from weft.ledger.upkeep.facts_file import (
    Fact,
    NewEvent,
    RefusedEvents,
    begun_by,
    count_refused,
    forgery_of,
    refused_among,
    says_written_by,
    take_batch,
)
from weft.ledger.views.rows import GOES_ON, SessionRow, load_session
from weft.store.fact_log import KEY_BYTES, LACKS, UNPROVEN, ContentHead, FactReader, LogRow, checked_pieces
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.replicas import NOTE
from weft.store.sql import Row, Sql, rows_in

# --- What a ledger remembers of those it syncs with: local state, which no fact and no export holds.

_PEER = "SELECT n, chain FROM peer WHERE replica = ?"
_DISPUTED = "disputed:"
"""Local state: a row per peer that remembers something of our log which is not in it, with what it remembers."""
_WHOLE = "whole-offer:"
"""Local state: a row per peer whose next offer leaves out nothing, since the last one did not prove a place."""
_REMOTE = "SELECT name, address, sessions, shares_imports, added_at FROM remote"
NAME_LENGTH = 64
MOST_REMOTES = 1000
"""A damaged file may give rows without end."""
EventRange = tuple[int, int]
"""The arrival numbers of the first and the last of some events of our log."""


class Remote(Struct, frozen=True, kw_only=True):
    """A ledger to sync with, by a name of our own."""

    name: str
    address: str
    sessions: tuple[str, ...] = ()
    """Ids of the sessions that a push is limited to; none: everything."""
    shares_imports: bool = False
    added_at: int = 0


def remembered(sql: Sql, replica: str) -> KnownLog:
    """The last proven place in that peer's log."""
    row = sql.fetch_row(_PEER, (replica,))
    return KnownLog(n=row[0], chain=bytes(row[1]).hex()) if row and row[0] else KnownLog()


def cursor(sql: Sql, replica: str, *, empty: bool) -> ReceiverReady:
    place = remembered(sql, replica)
    is_whole = sql.fetch_row("SELECT 1 FROM local WHERE key = ?", (_WHOLE + replica,)) is not None
    return ReceiverReady(after=place.n, chain=place.chain, empty=empty, whole=is_whole)


def note_taken(sql: Sql, replica: str, mark: BatchEnd, now_ms: int) -> None:
    """Its log is taken up to there, which was proven; that only moves on, whoever else takes from it."""
    sql.run(
        "INSERT INTO peer(replica, n, chain, seen, seen_chain, at) VALUES (?, 0, ?, 0, ?, ?)"
        " ON CONFLICT (replica) DO NOTHING",
        (replica, b"", b"", now_ms),
    )
    chain = bytes.fromhex(mark.chain)
    sql.run(
        "UPDATE peer SET n = ?, chain = ?, seen = ?, seen_chain = ?, at = ? WHERE replica = ? AND n < ?",
        (mark.n, chain, mark.n, chain, now_ms, replica, mark.n),
    )


def note_unproven(sql: Sql, replica: str, is_unproven: bool) -> None:
    """Whether the next offer of that peer must leave out nothing."""
    key = (_WHOLE + replica,)
    if is_unproven:
        sql.run(NOTE, (*key, ""))
    else:
        sql.run("DELETE FROM local WHERE key = ?", key)


def is_disputed(sql: Sql, replica: str, claim: KnownLog) -> bool:
    """Whether that peer said before that it remembers this of our log, which does not hold it."""
    row = sql.fetch_row("SELECT value FROM local WHERE key = ?", (_DISPUTED + replica,))
    return row is not None and row[0] == f"{claim.n}:{claim.chain}"


def note_dispute(sql: Sql, replica: str, claim: KnownLog) -> None:
    sql.run(NOTE, (_DISPUTED + replica, f"{claim.n}:{claim.chain}"))


def drop_memory(sql: Sql, replica: str) -> None:
    """What is kept of a replica is not what it says of itself: somebody else may have spoken under its name. The next
    sync with it begins anew; nothing that it is offered is left out, and nothing that it offers."""
    sql.run("UPDATE peer SET n = 0, chain = ?, seen = 0, seen_chain = ? WHERE replica = ?", (b"", b"", replica))
    for event_range in event_ranges_from(sql, replica, 0):
        note_doubt(sql, replica, event_range)


def forget_peer(sql: Sql, replica: str) -> None:
    if sql.fetch_row("SELECT 1 FROM peer WHERE replica = ?", (replica,)) is None:
        raise NotFound("other replica", replica, Action.FIND_REFUSED_REPLICA)
    drop_memory(sql, replica)
    sql.run("DELETE FROM peer WHERE replica = ?", (replica,))


def note_range(sql: Sql, replica: str, first: int, last: int) -> None:
    """These events came from that peer; a range that goes on where the last one ended is one with it."""
    row = sql.fetch_row("SELECT first, last FROM came_from WHERE replica = ? ORDER BY first DESC LIMIT 1", (replica,))
    if row is not None and row[1] + 1 == first:
        sql.run("UPDATE came_from SET last = ? WHERE replica = ? AND first = ?", (last, replica, row[0]))
    else:
        sql.run("INSERT INTO came_from(replica, first, last) VALUES (?, ?, ?)", (replica, first, last))


def event_ranges_from(sql: Sql, replica: str, after: int) -> list[EventRange]:
    """Ranges of our log beyond `after` that came from that peer."""
    rows = sql.fetch_rows(
        "SELECT first, last FROM came_from WHERE replica = ? AND last > ? ORDER BY first", (replica, after)
    )
    return [(first, last) for first, last in rows]


def held_by(sql: Sql, replica: str, after: int) -> list[EventRange]:
    """Those of them that the log of that peer is proven to hold."""
    rows = sql.fetch_rows("SELECT key, value FROM local WHERE key LIKE ?", (f"{UNPROVEN}{replica}:%",))
    doubted = sorted((int(key.rpartition(":")[2]), int(last)) for key, last in rows)
    return list(_without(event_ranges_from(sql, replica, after), doubted))


def note_doubt(sql: Sql, replica: str, event_range: EventRange) -> None:
    """That peer told these events; whether they are in the log that goes by its name is not proven."""
    sql.run(NOTE, (f"{UNPROVEN}{replica}:{event_range[0]}", str(event_range[1])))


def settle_doubt(sql: Sql, replica: str, event_range: EventRange) -> None:
    sql.run("DELETE FROM local WHERE key = ?", (f"{UNPROVEN}{replica}:{event_range[0]}",))


def _without(event_ranges: list[EventRange], doubted: list[EventRange]) -> Iterator[EventRange]:
    for first, last in event_ranges:
        for start, end in doubted:
            if start <= last and end >= first:
                if first < start:
                    yield first, start - 1
                first = end + 1
        if first <= last:
            yield first, last


# --- remotes ------------------------------------------------------------------------------------------------------


def load_remotes(sql: Sql) -> list[Remote]:
    return [_remote(row) for row in sql.fetch_rows(f"{_REMOTE} ORDER BY name LIMIT ?", (MOST_REMOTES,))]


def load_remote(sql: Sql, name: str) -> Remote:
    row = sql.fetch_row(f"{_REMOTE} WHERE name = ?", (name,))
    if row is None:
        raise NotFound("remote", name, Action.LIST_REMOTES)
    return _remote(row)


def _remote(row: Row) -> Remote:
    name, address, sessions, shares, added_at = row
    return Remote(
        name=name,
        address=address,
        sessions=tuple(json.loads(sessions)),
        shares_imports=bool(shares),
        added_at=added_at,
    )


def note_remote(sql: Sql, remote: Remote) -> None:
    name = checked_label(remote.name, "remote's name")
    if name != remote.name or len(name) > NAME_LENGTH or not name.replace("-", "").replace("_", "").isalnum():
        raise InvalidInput(f"a remote called {quoted(remote.name)}", "use letters, digits, - and _")
    if sql.fetch_row("SELECT 1 FROM remote WHERE name = ?", (remote.name,)) is not None:
        raise LabelTaken(remote.name, "a remote")
    sql.run(
        "INSERT INTO remote(name, address, sessions, shares_imports, added_at) VALUES (?, ?, ?, ?, ?)",
        (remote.name, remote.address, json.dumps(remote.sessions), int(remote.shares_imports), remote.added_at),
    )


def remove_remote(sql: Sql, name: str) -> None:
    load_remote(sql, name)
    sql.run("DELETE FROM remote WHERE name = ?", (name,))


# --- What a push that is limited to some sessions may send: their threads with all ancestry, their own events, and of
# the rest only what these cannot do without.


class OwnEvent(Struct, frozen=True, gc=False):
    """An event of some ledger's own stream."""

    n: int
    event: Event | UnknownEvent


class Selection:
    """Which events and contents may go."""

    def __init__(self, sessions: Sequence[str]) -> None:
        self.sessions = set(sessions)
        self.turns: set[str] = set()
        self.cut: dict[str, int] = {}
        """Turns that these sessions left in the middle, and how many of their events belong to them."""
        self._last: dict[str, int] = {}
        """The last of those events, by its arrival number."""
        self.agents: set[str] = set()
        self.contents: set[bytes] = set()
        self._excerpts: set[int] = set()
        """Arrival numbers of events of ledgers' own streams."""

    def holds(self, n: int, line: bytes) -> bool:
        stream = stream_of(n, line)
        kind, _, name = stream.partition(":")
        if kind == "run":
            return name in self.turns and n <= self._last.get(name, n)
        if kind == "session":
            return name in self.sessions
        if kind == "import":
            return (name in self.turns or name in self.sessions) and self._is_chosen(KINDS.decode(line))
        if kind == "ledger":
            return n in self._excerpts
        return kind == "program" and name in self.agents and isinstance(KINDS.decode(line), AgentCreated)

    def take_event(self, n: int, stream: str, line: bytes) -> None:
        """An event of some stream: if it is chosen, so are the contents that it names and the agents that act in it."""
        kind, _, name = stream.partition(":")
        if kind == "run" and not self._is_reached(n, name):
            return
        is_turn, is_session = name in self.turns, name in self.sessions
        if not {"run": is_turn, "session": is_session, "import": is_turn or is_session}.get(kind):
            return
        event = KINDS.decode(line)
        if self._is_chosen(event):
            self.take_refs(event)
            self.agents.update(_agents(event))

    def _is_reached(self, n: int, turn: str) -> bool:
        """Do these sessions' threads get to the turn's next event, which came as number `n`?"""
        if turn not in self.cut:
            return True
        self.cut[turn] -= 1
        if self.cut[turn] >= 0:
            self._last[turn] = n
        return self.cut[turn] >= 0

    def _is_chosen(self, event: Event | UnknownEvent) -> bool:
        """A turn that several sessions have is told of as each of them saw it: not what others' sources say of it, nor
        of one that was left in the middle."""
        return not isinstance(event, Sighting) or (event.session in self.sessions and event.turn not in self.cut)

    def take_refs(self, event: Event | UnknownEvent) -> None:
        raw = event.raw if isinstance(event, Sighting) else UNSET
        self.contents.update(bytes.fromhex(ref) for ref in content_refs(event) if ref != raw)

    def take_excerpts(self, txn: ReadTxn, events: list[OwnEvent]) -> None:
        """Once it is known which contents are chosen."""
        for own_event in events:
            if self._concerns(txn, own_event.event):
                self._excerpts.add(own_event.n)
                self.take_refs(own_event.event)
            if isinstance(own_event.event, Substitution) and own_event.n in self._excerpts:
                self._take_replacement(txn, own_event.event)

    def _take_replacement(self, txn: ReadTxn, substitution: Substitution) -> None:
        """What is shown instead, where it was recorded for that. An event of a turn that does not go stays here."""
        n = txn.facts.find_event(bytes.fromhex(substitution.replacement_event.event_id))
        line = None if n is None else txn.facts.line(n)
        if n is not None and line is not None and stream_of(n, line).startswith("ledger:"):
            self._excerpts.add(n)
            self.take_refs(KINDS.decode(line))

    def _concerns(self, txn: ReadTxn, event: Event | UnknownEvent) -> bool:
        if isinstance(event, ContentErased):
            is_about_chosen = event.turn in self.turns or event.session in self.sessions
            return is_about_chosen or bytes.fromhex(event.content) in self.contents
        if isinstance(event, ToolResult):
            return self._holds_event(txn, event.call.event_id)
        return isinstance(event, Substitution) and self._holds_event(txn, event.original_event.event_id)

    def _holds_event(self, txn: ReadTxn, id: str) -> bool:
        n = txn.facts.find_event(bytes.fromhex(id))
        line = None if n is None else txn.facts.line(n)
        return n is not None and line is not None and self.holds(n, line)


def select_threads(store: Store, sessions: Sequence[str]) -> Selection:
    """The selection of these sessions, by their ids, as the ledger is now."""
    chosen = Selection(sessions)
    with store.read() as txn:
        rows = [_session(txn.sql, session) for session in sessions]
        places = ThreadPlaces()
        chosen.turns = _with_ancestors(txn.sql, _turns(txn, rows, chosen.sessions, places), places)
        chosen.cut = places.left_inside()
        names: dict[str, AgentCreated] = {}
        own_events: list[OwnEvent] = []
        for n, line in txn.facts.lines():
            stream = stream_of(n, line)
            if stream.startswith("ledger:"):
                own_events.append(OwnEvent(n, KINDS.decode(line)))
            elif stream.startswith("program:"):
                if isinstance(event := KINDS.decode(line), AgentCreated):
                    names[stream[8:]] = event
            else:
                chosen.take_event(n, stream, line)
        for agent in chosen.agents & names.keys():
            chosen.take_refs(names[agent])
        chosen.take_excerpts(txn, own_events)
    return chosen


def _session(sql: Sql, session: str) -> SessionRow:
    row = load_session(sql, session)
    if row is None:
        raise NotFound("session", session, Action.LIST_SESSIONS)
    return row


def _agents(event: Event | UnknownEvent) -> Iterator[str]:
    yield event.actor
    if isinstance(event, Event) and event.on_behalf_of is not UNSET:
        yield from event.on_behalf_of
    if isinstance(event, SessionCreated):
        yield event.persona


class ThreadPlaces:
    """How far threads reach into turns."""

    def __init__(self) -> None:
        self._whole: set[str] = set()
        self._events: dict[str, int] = {}

    def add(self, turn: str, events: int | None = None) -> None:
        """All of a turn is reached, or so many of its events."""
        if events is None:
            self._whole.add(turn)
        else:
            self._events[turn] = max(events, self._events.get(turn, 0))

    def left_inside(self) -> dict[str, int]:
        return {turn: events for turn, events in self._events.items() if turn not in self._whole}


def _turns(txn: ReadTxn, rows: list[SessionRow], sessions: set[str], places: ThreadPlaces) -> set[str]:
    """Every turn that a session has made or stood at, on any branch."""
    turn_ids: set[str] = set()
    for row in rows:
        own_turns = {turn for (turn,) in txn.sql.fetch_rows("SELECT id FROM turn WHERE session = ?", (row.n,))}
        turn_ids |= own_turns
        for turn in own_turns:
            places.add(turn)
        if row.head:
            turn_ids.add(row.head)
            places.add(row.head, row.head_events)
    streams = [f'"stream":"session:{session}"'.encode() for session in sessions]
    for _, line in txn.facts.lines():
        if any(stream in line for stream in streams):
            event = KINDS.decode(line)
            if isinstance(event, SessionMoved):
                turn_ids.update(turn for turn in (event.to, event.before) if turn)
                if event.to:
                    places.add(event.to, None if event.at is UNSET else _events_up_to(txn, event.at))
            elif isinstance(event, AgentForked):
                turn_ids.add(event.at_turn)
                places.add(event.at_turn, _events_up_to(txn, event.at_event.event_id))
    return turn_ids


def _events_up_to(txn: ReadTxn, event: str) -> int | None:
    """How many events of its turn there are up to this one; None if that is all there will be."""
    turn, position = place_of_event(txn.sql, txn.facts, event)
    return None if turn.closed and turn.digest == event else position + 1


def _with_ancestors(sql: Sql, turns: set[str], places: ThreadPlaces) -> set[str]:
    """Every turn of the threads that end there, also beyond the links across which a thread goes on."""
    known_turns, edge = set(turns), set(turns)
    query = (
        "SELECT t.parent, t.depth - s.base, s.parent_events FROM turn t JOIN segment s ON s.n = t.segment"
        " WHERE t.parent IS NOT NULL AND t.id IN"
    )
    while edge:
        above = _across_links(sql, edge)
        for turn in above:
            places.add(turn)
        for parent, further, events in rows_in(sql, query, edge):
            above.add(parent)
            places.add(parent, None if further else events)
        edge = above - known_turns
        known_turns |= edge
    return known_turns


def _across_links(sql: Sql, turns: set[str]) -> set[str]:
    """Where the threads of those that are roots go on in another chain."""
    query = (
        "SELECT l.child, p.current, p.id FROM link l JOIN turn t ON t.id = l.child JOIN turn p ON p.id = l.parent"
        f" WHERE {GOES_ON} AND t.parent IS NULL AND l.child IN"
    )
    best_parents: dict[str, tuple[bool, str]] = {}
    for child, current, parent in rows_in(sql, query, turns):
        first = best_parents.get(child)
        best_parents[child] = (not current, parent) if first is None else min(first, (not current, parent))
    return {parent for _, parent in best_parents.values()}


# --- A ledger as a source: its log in batches, and contents by their references, hashed on their way out.

BATCH_EVENTS, BATCH_BYTES = 1024, 1024 * 1024
ROWS_AT_ONCE = 256
CONTENTS_AT_ONCE = 256
HELD_BYTES = 1024 * 1024


class FoundEvent(Struct, frozen=True, gc=False):
    index: int
    head: ContentHead


class LedgerSource:
    """One ledger, for one run of sending."""

    def __init__(self, store: Store, selection: Selection | None = None) -> None:
        self._store, self._selection = store, selection
        self._weighed: set[int] = set()
        with store.read() as txn:
            tip = txn.facts.tip()
        self._hello = HelloFrame(replica=store.replica, n=tip.n, chain=tip.chain.hex())

    def hello(self) -> HelloFrame:
        return self._hello

    def chain_at(self, n: int) -> str | None:
        with self._store.read() as txn:
            chain = txn.facts.chain_at(n)
        return None if chain is None else chain.hex()

    def batches(self, after: int, peer: str, limited: bool, is_whole: bool = False) -> Iterator[EventBatch]:
        """Up to where the log ended when the conversation began: it may be growing all the while."""
        with self._store.read() as txn:
            theirs = [] if is_whole else held_by(txn.sql, peer, after)
        gathering = BatchGathering(self._selection if limited else None, theirs)
        while after < self._hello.n:
            with self._store.read() as txn:
                rows = txn.facts.log(after, ROWS_AT_ONCE)
            for row in rows:
                if row.n > self._hello.n:
                    break
                yield from gathering.add_row(row)
            after = rows[-1].n
            self._store.pause_reading()
        if (last := gathering.last_batch()) is not None:
            yield last

    def contents(self, refs: Sequence[bytes], limited: bool) -> Iterator[OutgoingContent]:
        for start in range(0, len(refs), CONTENTS_AT_ONCE):
            yield from self._some_contents(refs[start : start + CONTENTS_AT_ONCE], start, limited)

    def _some_contents(self, refs: Sequence[bytes], start: int, limited: bool) -> Iterator[OutgoingContent]:
        allowed = self._selection.contents if limited and self._selection else None
        with self._store.read() as txn:
            heads = [
                FoundEvent(start + i, head)
                for i, head in _heads(txn.sql, refs).items()
                if allowed is None or head.ref in allowed
            ]
        small = [candidate for candidate in heads if candidate.head.size <= ROW_BYTES]
        while small:
            yield from self._take_small(small)
        for candidate in heads:
            head = candidate.head
            if head.size > ROW_BYTES:
                yield OutgoingContent(
                    candidate.index, head.salt, head.size, checked_pieces(head, partial(self._content_piece, head))
                )

    def _take_small(self, waiting: list[FoundEvent]) -> list[OutgoingContent]:
        """Some of those that wait, in one snapshot: as many as fit into memory without anybody noticing."""
        outgoing, weight = [], 0
        with self._store.read() as txn:
            while waiting and weight < HELD_BYTES:
                candidate = waiting.pop(0)
                try:
                    data = txn.facts.content(candidate.head.n)
                except (ContentGone, ContentMissing):
                    continue  # erased since, or its bytes were never here
                outgoing.append(OutgoingContent(candidate.index, candidate.head.salt, len(data), (data,)))
                weight += len(data)
        return outgoing

    def _content_piece(self, head: ContentHead, idx: int) -> bytes:
        with self._store.read() as txn:
            return txn.facts.content_piece(head, idx)

    def weigh(self, lines: Sequence[bytes]) -> WouldTake:
        refs = {bytes.fromhex(ref) for line in lines for ref in content_refs(KINDS.decode(line))}
        allowed = self._selection.contents if self._selection else None
        wanted_refs = sorted(refs if allowed is None else refs & allowed)
        with self._store.read() as txn:
            heads = [head for head in _heads(txn.sql, wanted_refs).values() if head.n not in self._weighed]
        self._weighed.update(head.n for head in heads)
        return WouldTake(
            events=len(lines),
            event_bytes=sum(map(len, lines)),
            contents=len(heads),
            content_bytes=sum(head.size for head in heads),
        )


def _heads(sql: Sql, refs: Sequence[bytes]) -> dict[int, ContentHead]:
    """Contents that are here and were not erased, by their place among those asked for."""
    keys = {ref[:KEY_BYTES] for ref in refs}
    query = "SELECT c.n, c.ref, c.salt, c.size FROM lookup_content l JOIN content c ON c.n = l.n WHERE l.key IN"
    mark = FactReader(sql).watermark("lookup_content")
    tail = f"SELECT n, ref, salt, size FROM content WHERE n > {mark} AND ref IN"
    rows = chain(rows_in(sql, query, keys), rows_in(sql, tail, refs))
    heads_by_ref = {
        bytes(ref): ContentHead(n, bytes(ref), bytes(salt), size) for n, ref, salt, size in rows if len(salt)
    }
    erased = {bytes(ref) for (ref,) in rows_in(sql, "SELECT ref FROM erasure WHERE ref IN", list(heads_by_ref))}
    return {i: heads_by_ref[ref] for i, ref in enumerate(refs) if ref in heads_by_ref and ref not in erased}


class BatchGathering:
    """Rows of the log gathered into batches, without what the peer has given us itself."""

    def __init__(self, selection: Selection | None, theirs: list[tuple[int, int]]) -> None:
        self._selection, self._theirs = selection, theirs
        self._lines: list[bytes] = []
        self._size = self._next = 0
        self._skipped: list[SkippedRun] = []
        self._ended: LogRow | None = None

    def add_row(self, row: LogRow) -> Iterator[EventBatch]:
        """A batch may end in the midst of a row; the place in the log is then the end of the row before."""
        for n, line in enumerate(row.lines(), row.first):
            if self._skips(n, line):
                continue
            self._lines.append(line)
            self._size += len(line)
            if n < row.n and self._is_full():
                yield self._batch(n)
        self._ended = row
        if self._is_full():
            yield self._batch(row.n)

    def last_batch(self) -> EventBatch | None:
        return None if self._ended is None else self._batch(self._ended.n)

    def _is_full(self) -> bool:
        return len(self._lines) >= BATCH_EVENTS or self._size >= BATCH_BYTES

    def _skips(self, n: int, line: bytes) -> bool:
        while self._next < len(self._theirs) and self._theirs[self._next][1] < n:
            self._next += 1
        if self._next < len(self._theirs) and self._theirs[self._next][0] <= n:
            self._note_skipped(n, line)
            return True
        return self._selection is not None and not self._selection.holds(n, line)

    def _note_skipped(self, n: int, line: bytes) -> None:
        last = self._skipped[-1] if self._skipped else None
        if last is not None and last.first + last.count == n:
            self._skipped[-1] = SkippedRun(last.first, last.count + 1, last.id)
        else:
            self._skipped.append(SkippedRun(n, 1, sha256(line).hexdigest()))

    def _batch(self, done: int) -> EventBatch:
        row = self._ended if self._selection is None else None
        mark = BatchEnd()
        if row is not None:
            mark = BatchEnd(n=row.n, chain=row.chain.hex(), skipped=tuple(self._skipped))
            self._skipped = []
        batch = EventBatch(self._lines, [sha256(line).digest() for line in self._lines], mark, done)
        self._lines, self._size = [], 0
        return batch


# --- A ledger as a sink: what it lacks, and batches taken whole.

ENDING_REFUSALS_LIMIT = 2
"""So many forged events of a peer end a run each. More of them keep nobody from taking the rest."""


class LedgerSink:
    """One ledger, for one run of receiving from one peer."""

    def __init__(self, store: Store, peer: str) -> None:
        self._store, self._peer = store, peer
        self._ranges: list[EventRange] = []
        """Ranges of our log that came from the peer since its last proven place."""
        self._reasons: list[str] = []
        store.catch_up()

    def ready(self, peer: str) -> ReceiverReady:
        with self._store.read() as txn:
            empty = txn.facts.tip().n == 0
            return cursor(txn.sql, peer, empty=empty)

    def size(self) -> int:
        with self._store.read() as txn:
            return txn.facts.tip().n

    def lacking(self) -> list[bytes]:
        with self._store.read() as txn:
            rows = txn.sql.fetch_rows(
                "SELECT key FROM local WHERE key LIKE ? ORDER BY key LIMIT ?", (f"{LACKS}%", MOST_LACKING)
            )
        return [bytes.fromhex(key.removeprefix(LACKS)) for (key,) in rows]

    def unknown(self, ids: Sequence[bytes]) -> list[bool]:
        with self._store.read() as txn:
            known_ids = _known_events(txn, ids)
        return [id not in known_ids for id in ids]

    def refused(self, ids: Sequence[bytes]) -> set[bytes]:
        with self._store.read() as txn:
            return refused_among(txn.sql, ids)

    def own_run(self, first: bytes, count: int) -> list[bytes]:
        with self._store.read() as txn:
            n = _number_of(txn, first)
            return [] if n is None else list(islice(_ids_not_from(txn, self._peer, n), count))

    def missing(self, refs: Sequence[bytes]) -> list[bool]:
        query = "SELECT c.ref FROM lookup_content l JOIN content c ON c.n = l.n WHERE l.key IN"
        with self._store.read() as txn:
            known_refs = {bytes(ref) for (ref,) in rows_in(txn.sql, query, {ref[:KEY_BYTES] for ref in refs})}
            erased = {bytes(ref) for (ref,) in rows_in(txn.sql, "SELECT ref FROM erasure WHERE ref IN", list(refs))}
        return [ref not in known_refs and ref not in erased for ref in refs]

    def without_forged(self, events: Sequence[NewEvent]) -> list[NewEvent]:
        """Before their contents are asked for."""
        forged = [new for new in events if says_written_by(new, self._store.replica)]
        if forged:
            self._refuse(forged)
        return [new for new in events if not says_written_by(new, self._store.replica)]

    def _refuse(self, forged: Sequence[NewEvent]) -> None:
        with self._store.read() as txn:
            before = refused_among(txn.sql, [new.id for new in forged])
            ends = count_refused(txn.sql, self._peer) < ENDING_REFUSALS_LIMIT
        fresh = [new for new in forged if new.id not in before]
        if not fresh:
            return
        if not self._store.read_only:
            self._store.write(partial(self._note_forged, fresh))
        reasons = [forgery_of(new, self._store.replica) for new in fresh]
        if ends:
            raise ReplicaDiverged(reasons[0])
        self._reasons += reasons

    def _note_forged(self, forged: Sequence[NewEvent], txn: WriteTxn) -> None:
        refused = RefusedEvents(txn.sql, self._peer)
        for new in forged:
            refused.add(new.id, begun_by(new.event))

    def take_facts(self, facts: Sequence[Fact], mark: BatchEnd, *, covers: bool) -> BatchTaken:
        taken, reasons = self._store.write(partial(self._take_in_transaction, facts, mark, covers))
        self._reasons += reasons
        if facts:
            self._store.catch_up()
        return taken

    def _take_in_transaction(
        self, facts: Sequence[Fact], mark: BatchEnd, covers: bool, txn: WriteTxn
    ) -> tuple[BatchTaken, list[str]]:
        """Ranges are kept from one transaction to the next; one that is run again begins with those of the last."""
        first = txn.facts.tip().n + 1
        refused = RefusedEvents(txn.sql, self._peer)
        brought = take_batch(list(enumerate(facts, 1)), txn, excerpts=True, refused=refused)
        earlier = [event_range for event_range in self._ranges if event_range[1] < first]
        latest = [(first, txn.facts.tip().n)] if txn.facts.tip().n >= first else []
        for event_range in latest:
            note_range(txn.sql, self._peer, *event_range)
            note_doubt(txn.sql, self._peer, event_range)
        self._ranges = earlier + latest
        if mark.n:
            note_taken(txn.sql, self._peer, mark, txn.facts.now_ms)
            for event_range in self._ranges if covers else earlier:
                settle_doubt(txn.sql, self._peer, event_range)
            self._ranges = [] if covers else latest
        taken = BatchTaken(events=brought.events, contents=brought.contents, known=brought.known, erased=brought.erased)
        return taken, refused.reasons

    def finish(self, *, is_unproven: bool, was_whole: bool) -> None:
        """The run is at its end. Raises ReplicaDiverged where something was refused for the first time."""
        if is_unproven or was_whole:
            self._store.write(lambda txn: note_unproven(txn.sql, self._peer, is_unproven))
        if self._reasons:
            other_count = len(self._reasons) - 1
            further = f", and {other_count} more like it" if other_count else ""
            raise ReplicaDiverged(
                f"refused what replica {self._peer} told: {self._reasons[0]}{further}; everything else was taken",
                "what is here stays; ask the ledgers that you sync with which of them wrote it",
            )


def _ids_not_from(txn: ReadTxn, peer: str, n: int) -> Iterator[bytes]:
    """The ids of our events from `n` on, without those that came from this peer."""
    theirs = event_ranges_from(txn.sql, peer, n - 1)
    for number, line in txn.facts.lines(n - 1):
        while theirs and theirs[0][1] < number:
            theirs.pop(0)
        if not theirs or number < theirs[0][0]:
            yield sha256(line).digest()


def _number_of(txn: ReadTxn, event: bytes) -> int | None:
    """The arrival number of an event that is here."""
    for (n,) in txn.sql.fetch_rows("SELECT n FROM lookup_event WHERE key = ?", (event[:KEY_BYTES],)):
        line = txn.facts.line(n)
        if line is not None and sha256(line).digest() == event:
            return int(n)
    tail = txn.facts.lines(txn.facts.watermark("lookup_event"))
    return next((n for n, line in tail if sha256(line).digest() == event), None)


def _known_events(txn: ReadTxn, ids: Sequence[bytes]) -> set[bytes]:
    """Which of these events are here: found by the beginning of their ids, then held against the whole of it."""
    wanted_ids, known_ids = set(ids), set()
    rows = rows_in(txn.sql, "SELECT n FROM lookup_event WHERE key IN", {id[:KEY_BYTES] for id in ids})
    numbers = sorted(n for (n,) in rows)
    while numbers:
        row = txn.facts.log(numbers[0] - 1, 1)[0]
        lines = row.lines()
        while numbers and numbers[0] <= row.n:
            known_ids.add(sha256(lines[numbers.pop(0) - row.first]).digest())
    tail = txn.facts.lines(txn.facts.watermark("lookup_event"))
    known_ids.update(sha256(line).digest() for _, line in tail)
    return known_ids & wanted_ids
