"""Verbs that read: turns, threads, messages, contents, contexts and the feed of events; the
tree of turns; search and lookups; and what is told to whoever follows a session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from msgspec import UNSET

from weft.kernel.errors import InvalidInput, NotFound, StoreError
from weft.kernel.foreign_input import is_digest
from weft.ledger.api.base import LedgerBase, LedgerPart
from weft.ledger.arguments import (
    agent_named,
    checked_count,
    checked_flag,
    checked_id,
    checked_names,
    checked_record,
    checked_seconds,
    checked_text,
)
from weft.ledger.broker.session_stream import (
    StreamCursor,
    StreamItem,
    StreamPosition,
    open_cursor,
    parse_position,
    read_items,
)
from weft.ledger.model import Codeblock, Message, Session, SessionMove, ToolCall, Turn
from weft.ledger.read import search_index, turn_lookups
from weft.ledger.read.access import READ_LEDGER, access_of, session_of_number, session_owner
from weft.ledger.read.contexts import (
    Context,
    VouchedMessage,
    Voucher,
    context_after,
    context_of_turn,
    find_message,
    readable_prompt,
    strangers_of,
    vouchers_of,
)
from weft.ledger.read.full_threads import FullThreads, strands_to
from weft.ledger.read.revisions import require
from weft.ledger.read.search_index import UNREMARKABLE, known_name
from weft.ledger.read.search_matches import (
    Hit,
    MatchFilters,
    SearchFinder,
    as_filters,
    named_sessions,
    parse_query,
    to_hits,
)
from weft.ledger.read.session_list import CurrentTurns, SessionTimes, Touch, newest_turns, touches
from weft.ledger.read.sessions import (
    NEWEST,
    Page,
    PageCursor,
    PageRequest,
    Position,
    Projects,
    mapped,
    sessions_containing,
    to_sessions,
)
from weft.ledger.read.turn_lookups import RelatedTurns, find_related, in_order
from weft.ledger.read.turns import (
    Thread,
    ThreadDiff,
    calls_of,
    children,
    common_depth,
    diff,
    heads_without_children,
    in_their_thread,
    placed_messages,
    ranges_to,
    thread_turns_up,
    to_turn,
    to_turns,
    tree_rows,
)
from weft.ledger.views import turns
from weft.ledger.views.rows import (
    TURN,
    StoredEvent,
    TurnRow,
    agent_id,
    load_program,
    load_turn,
    load_turn_number,
    recorded_after,
    run_events,
)
from weft.ledger.write.transaction import reads_whole
from weft.ledger.write.turn_events import compaction_for
from weft.store.fact_log import ERASING, ContentHead, checked_pieces
from weft.store.port import ReadTxn, Store

# --- Reading: turns, threads, messages, contents, contexts and the feed of events.


class ReadVerbs(LedgerBase):
    """What answers without changing anything."""

    def turn(self, name: str) -> Turn:
        with self._store.read() as txn:
            return to_turn(txn, self._resolve(txn, name).turn, self._store)

    def thread(self, name: str) -> Thread:
        """A turn with all its ancestry."""
        with self._store.read() as txn:
            spot = self._resolve(txn, name)
        return Thread(self._store, spot.turn, spot.events, name)

    @reads_whole
    def full_threads(self, *names: str, trees: bool = False, requests: bool = False) -> FullThreads:
        """Threads in full, each turn once. `trees`: all that shares their roots; `requests`: what events tell, too."""
        with self._store.read() as txn:
            strands = strands_to(txn.sql, [self._resolve(txn, name) for name in names], trees=trees)
        return FullThreads(self._store, strands, requests=requests)

    def messages(self, turn: str) -> list[Message]:
        """The messages of one turn."""
        with self._store.read() as txn:
            spot = self._resolve(txn, turn)
            row = spot.turn
            placed = placed_messages(txn, row.segment, row.depth, spot.events)
            return in_their_thread(txn, (found.message for found in placed))

    def message(self, message: str) -> Message:
        with self._store.read() as txn:
            found = find_message(txn, checked_id(message, "message"))
            if found is not None and not _is_readable(txn, found):
                found = None
            if found is None:
                raise NotFound("message", message)
            return in_their_thread(txn, [found])[0]

    def tool_calls(self, turn: str) -> list[ToolCall]:
        with self._store.read() as txn:
            spot = self._resolve(txn, turn)
            return [call for _, call in calls_of(txn, spot.turn, spot.events)]

    @reads_whole
    def files(self, path: str) -> list[Touch]:
        """Every turn's note of a file, the newest first: that it was read, written, referred to or attached. A path
        that does not begin with `/` is the end of one."""
        with self._store.read() as txn:
            return touches(txn, checked_text(path, "path"))

    def codeblocks(self, message: str) -> list[Codeblock]:
        """The code blocks of an assistant's message."""
        checked_id(message, "message")
        turns.catch_up(self._store)
        with self._store.read() as txn:
            access = access_of(txn)
            record = None if access.is_unlimited else find_message(txn, message)
            if not access.is_unlimited and (record is None or not _is_readable(txn, record)):
                return []
            return turns.load(txn, message)

    def context(self, turn: str | None = None, *, session: str | None = None) -> Context:
        """What an agent saw at a turn; or, of a session, what its next turn would see."""
        if turn is not None and session is not None:
            raise InvalidInput("both a turn and a session are given", "ask for the context of one of them")
        with self._store.read() as txn:
            return self._context(txn, turn, session)

    def vouchers(self, turn: str | None = None, *, session: str | None = None) -> list[VouchedMessage]:
        """Who vouches for each part of the same context, message by message: a person here, an agent, a tool, an
        import or a peer."""
        if turn is not None and session is not None:
            raise InvalidInput("both a turn and a session are given", "ask for the context of one of them")
        with self._store.read() as txn:
            return vouchers_of(txn, self._context(txn, turn, session))

    def strangers(self, turn: str) -> list[Voucher]:
        """The import or the peer that a turn came from; nothing where it was written here."""
        with self._store.read() as txn:
            return strangers_of(txn, self._resolve(txn, turn).turn)

    def _context(self, txn: ReadTxn, turn: str | None, session: str | None) -> Context:
        if turn is not None:
            return context_of_turn(txn, self._resolve(txn, turn).turn, self._kept_turns)
        row = require(txn, session or "main")
        head = None if row.head is None else load_turn(txn.sql, row.head)
        compaction = compaction_for(row, head, row.head_events)
        chosen = None if compaction is UNSET else compaction
        prompt, owner = readable_prompt(txn, row), session_owner(txn, row)
        return context_after(txn, head, row.head_events, chosen, prompt, owner, self._kept_turns)

    def diff(self, left: str, right: str) -> ThreadDiff:
        """Where two threads part, and what each has alone."""
        with self._store.read() as txn:
            return diff(txn, self._resolve(txn, left).turn, self._resolve(txn, right).turn)

    def log(
        self,
        limit: int | None = None,
        *,
        after: str | None = None,
        thread: str | None = None,
        session: str | None = None,
    ) -> Page[Turn]:
        """Turns of all sessions, the newest first. `thread`: only the turn of this name and its ancestors; `session`:
        only turns that this session made.

        Pages show what was there when the first one was read: turns that arrive later are not in them, and a turn that
        another version replaces meanwhile still is, as not current.
        """
        filters = {"thread": thread, "session": session}
        request = self._request("log", filters, limit, after)
        with self._store.read() as txn:
            start = self._begin(request, txn)
            maker = None if session is None else require(txn, session).n
            if thread is not None:
                page = self._thread_page(txn, request, start, thread, maker)
            else:
                current, place = CurrentTurns(txn, start.arrival), start.position or NEWEST
                newest = newest_turns(txn.sql, current, place, session=maker, chunk=request.rows_at_once)
                rows = filter(access_of(txn).may_read_turn, newest)
                page = request.page(start, ((current.position_of(row), row) for row in rows))
            return mapped(page, partial(to_turns, txn, store=self._store))

    def _thread_page(
        self, txn: ReadTxn, request: PageRequest, start: PageCursor, name: str, maker: int | None
    ) -> Page[TurnRow]:
        """Positions begin with where the thread ends: the name may mean another turn by now."""
        end = start.position[:2]
        if not end:
            tip = self._resolve(txn, name).turn
            end = tip.segment, tip.depth
        rows = thread_turns_up(txn.sql, end, start.position[2:], chunk=request.rows_at_once)
        may_read = access_of(txn).may_read_turn
        made = (row for row in rows if maker in (None, row.session) and may_read(row))
        return request.page(start, (((*end, row.segment, row.depth), row) for row in made))

    def events(self, turn: str, *, limit: int | None = None, after: str | None = None) -> Page[StoredEvent]:
        """The events of a turn, in order."""
        request = self._request("events", {"turn": turn}, limit, after)
        with self._store.read() as txn:
            start = self._begin(request, txn)
            number, count, last = start.position or (0, 0, 0)
            row = load_turn_number(txn.sql, number) or self._resolve(txn, turn).turn
            access_of(txn).ensure_readable_turn(row, turn)
            found = enumerate(run_events(txn.facts, row, last or None, count), count + 1)
            return request.page(start, (((row.n, i, event.n), event) for i, event in found))

    @reads_whole
    def changes(self, after: int = 0, *, wait: float = 0.0) -> Iterator[StoredEvent]:
        """Every event beyond arrival number `after`, in order and without a gap; waits so long for the first."""
        checked_count(after, "after")
        if seconds := checked_seconds(wait, "wait"):
            self._store.changes(after, seconds)
        while True:
            with self._store.read() as txn:
                found = recorded_after(txn.facts, after, 64)
            if not found:
                return
            yield from found
            after = found[-1].n

    @reads_whole
    def newest(self) -> int:
        """The arrival number of the newest event; 0 where there is none."""
        with self._store.read() as txn:
            return txn.facts.tip().n

    @reads_whole
    def read_content(self, ref: str) -> Iterator[bytes]:
        """A content's bytes in pieces of at most 1 MiB, checked against its reference. Each piece is read in a moment
        of its own: whoever stops half-way holds nobody up."""
        with self._store.read() as txn:
            n = txn.facts.find_content(bytes.fromhex(ref)) if is_digest(checked_text(ref, "reference")) else None
            if n is None:
                raise NotFound("content", ref)
            head = txn.facts.content_head(n)
        return checked_pieces(head, partial(self._content_piece, head))

    def _content_piece(self, head: ContentHead, idx: int) -> bytes:
        with self._store.read() as txn:
            return txn.facts.content_piece(head, idx)


def _is_readable(txn: ReadTxn, message: Message) -> bool:
    """A message goes with its turn."""
    turn = load_turn(txn.sql, message.turn_id)
    return turn is not None and access_of(txn).may_read_turn(turn)


# --- Search: what was said and done, by its words.

MOMENT = 1.0
"""Seconds for which a search lets the index catch up before it looks through the rest by itself."""
INDEX_LAG_EVENTS = 128
"""So many events are looked through rather than indexed, which takes a commit."""


class SearchVerbs(LedgerBase):
    """What finds."""

    def search(
        self,
        words: str = "",
        *,
        session: str | None = None,
        role: str | None = None,
        tool: str | None = None,
        path: str | None = None,
        since: int | str | None = None,
        until: int | str | None = None,
        model: str | None = None,
        project: str | None = None,
        origin: str | None = None,
        limit: int | None = None,
        after: str | None = None,
        rank: bool = False,
    ) -> Page[Hit]:
        """Messages and tool calls that hold all these words, the newest first.

        `"a phrase"` stands together, as does what is typed without a space; the last word may be the beginning of one.
        `since` and `until` are Unix milliseconds, or words such as 'yesterday'; a day means all of it. With `rank` the
        best come first, by the engine's own idea of it; these have no further pages, since what is recorded meanwhile
        changes the order.
        """
        filters = _given(
            session=session,
            role=role,
            tool=tool,
            path=path,
            since=since,
            until=until,
            model=model,
            project=project,
            origin=origin,
        )
        query, ranked = parse_query(checked_text(words, "words")), checked_flag(rank, "rank")
        if ranked and after is not None:
            raise InvalidInput("ranked hits have no further pages", "raise the limit, or leave out rank")
        if ranked:
            self._writer.ensure_whole(READ_LEDGER)  # the engine ranks by the words of everything
        request = self._request("search", {"words": words, **filters}, limit, after)
        wanted = as_filters(filters, self._period(filters, request.now))
        if not query.phrases and not wanted.any:
            raise InvalidInput("there is nothing to search for", "give a word, or filter by role, tool or session")
        self._let_index_catch_up()
        with self._store.read() as txn:
            start = self._begin(request, txn)
            finder = SearchFinder(
                txn, self._store.word_index(txn.sql), query, wanted, start.position, Projects(txn, self._repository_of)
            )
            if ranked:
                return Page(to_hits(txn, list(islice(finder.best(), request.limit))))
            return mapped(request.page(start, finder.newest()), partial(to_hits, txn))

    def search_sessions(
        self,
        words: str,
        *,
        session: str | None = None,
        role: str | None = None,
        tool: str | None = None,
        path: str | None = None,
        since: int | str | None = None,
        until: int | str | None = None,
        model: str | None = None,
        project: str | None = None,
        origin: str | None = None,
        limit: int | None = None,
    ) -> list[Hit]:
        """Sessions whose title or project holds all these words, those with a title so first, then the latest first.

        Each is a hit with place `title` or `project`, at the turn where the session stands. Filters are those of
        `search`; one that speaks of messages or calls (session, role, tool, path, model) leaves nothing.
        """
        filters = _given(
            session=session,
            role=role,
            tool=tool,
            path=path,
            since=since,
            until=until,
            model=model,
            project=project,
            origin=origin,
        )
        query = parse_query(checked_text(words, "words"))
        request = self._request("search_sessions", {"words": words, **filters}, limit, None)
        wanted = as_filters(filters, self._period(filters))
        with self._store.read() as txn:
            return named_sessions(txn, query, wanted, Projects(txn, self._repository_of))[: request.limit]

    def related_turns(self, text: str, *, also: Sequence[str] = ()) -> RelatedTurns:
        """Turns that share words with a text, each with the words that it shares; a bounded number of them.

        Only turns that a message can be routed to: the newest version of a turn, of a session that is active, not
        completed and no subagent's. `also` names further turns by their ids, such as those with a similar meaning; ids
        of turns that cannot be read are passed over.
        """
        checked_text(text, "text")
        ids = checked_names(also, "also")
        self._let_index_catch_up()
        with self._store.read() as txn:
            return find_related(txn, self._store.word_index(txn.sql), text, ids)

    def _let_index_catch_up(self) -> None:
        with suppress(StoreError):  # a full disk keeps the index behind; what it lacks is looked through instead
            if search_index.lag_of(self._store) > INDEX_LAG_EVENTS:
                search_index.catch_up(self._store, MOMENT, self._clock.monotonic)


# --- Lookups: turns, messages, tool calls and sessions by what they are.


class LookupVerbs(SearchVerbs):
    """What answers to columns rather than to words."""

    def find_turns(
        self,
        *,
        parent: str | None = None,
        agent: str | None = None,
        type: str | None = None,
        status: str | None = None,
        role: str | None = None,
        source_event: str | None = None,
        has_children: bool | None = None,
        since: int | str | None = None,
        until: int | str | None = None,
        limit: int | None = None,
        after: str | None = None,
        persona: str | None = None,
    ) -> Page[Turn]:
        """Turns, the newest first; `parent` is a turn. Pages are as those of `log`. `persona` is an earlier spelling of
        `agent`."""
        persona = agent_named(agent, persona)
        wanted = _given(
            type=type,
            status=status,
            role=role,
            source_event=source_event,
            has_children=has_children,
            since=since,
            until=until,
        )
        request = self._request("find_turns", {"parent": parent, "persona": persona, **wanted}, limit, after)
        times = self._period(wanted, request.now)
        if wanted.get("has_children") is not None:
            self._writer.ensure_whole(READ_LEDGER)  # a child may be a turn that cannot be read
        self._let_index_catch_up()
        with self._store.read() as txn:
            start = self._begin(request, txn)
            above = None if parent is None else self._resolve(txn, parent).turn
            answering = None if persona is None else _agent(txn, persona)
            fields: dict[str, Any] = {**wanted, **times, "parent": above, "persona": answering}
            index, current = self._store.word_index(txn.sql), CurrentTurns(txn, start.arrival)
            place, chunk = start.position or NEWEST, request.rows_at_once
            rows = turn_lookups.find_turns(txn, index, turn_lookups.TurnsWanted(**fields), current, place, chunk)
            return mapped(
                request.page(start, ((current.position_of(row), row) for row in rows)),
                partial(to_turns, txn, store=self._store),
            )

    def find_messages(
        self,
        *,
        session: str | None = None,
        role: str | None = None,
        tool: str | None = None,
        path: str | None = None,
        since: int | str | None = None,
        until: int | str | None = None,
        model: str | None = None,
        project: str | None = None,
        origin: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[Message]:
        """Messages, the newest first; by the filters of `search`."""
        filters = _given(
            session=session,
            role=role,
            tool=tool,
            path=path,
            since=since,
            until=until,
            model=model,
            project=project,
            origin=origin,
        )
        request = self._request("find_messages", filters, limit, after)
        wanted = as_filters(filters, self._period(filters, request.now))
        self._let_index_catch_up()
        with self._store.read() as txn:
            index, start = self._store.word_index(txn.sql), self._begin(request, txn)
            entries = turn_lookups.find_entries(
                txn, index, wanted, lambda entry: entry.call is None and entry.message is not None, start.position
            )
            page = request.page(start, ((position, str(entry.message)) for position, entry in entries))
            messages = (find_message(txn, id) for id in page)
            return Page(in_their_thread(txn, (message for message in messages if message is not None)), page.next)

    def find_tool_calls(
        self,
        *,
        tool: str | None = None,
        message: str | None = None,
        spawned: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ToolCall]:
        """Tool calls by the tool's whole name, the newest first; of one message; or that which started a session."""
        filters = {"tool": tool, "message": message, "spawned": spawned}
        request = self._request("find_tool_calls", filters, limit, after)
        if sum(given is not None for given in (tool, message, spawned)) != 1:
            raise InvalidInput("tool calls are found in one way at a time", "give tool, message or spawned")
        self._let_index_catch_up()
        with self._store.read() as txn:
            start = self._begin(request, txn)
            if tool is not None:
                return self._calls_of_tool(txn, checked_text(tool, "tool"), request, start)
            if message is not None:
                calls = _calls_of_message(txn, checked_id(message, "message"))
            else:
                calls = _calls_that_spawned(txn, require(txn, checked_text(spawned, "spawned")).n)
            return request.page(start, (each for each in calls if each[0] > start.position))

    def find_sessions(
        self,
        *,
        agent: str | None = None,
        parent: str | None = None,
        origin: str | None = None,
        routing_key: str | None = None,
        since: int | str | None = None,
        limit: int | None = None,
        after: str | None = None,
        persona: str | None = None,
    ) -> Page[Session]:
        """Sessions, the latest changed first; `parent` is a session. Pages are as those of `sessions`. `persona` is an
        earlier spelling of `agent`."""
        persona = agent_named(agent, persona)
        wanted = _given(persona=persona, parent=parent, origin=origin, routing_key=routing_key, since=since)
        request = self._request("find_sessions", wanted, limit, after)
        if not wanted:
            raise InvalidInput("there is nothing to find sessions by", "give agent, parent, origin or routing_key")
        self._let_index_catch_up()
        with self._store.read() as txn:
            fields: dict[str, Any] = dict(wanted)
            if fields.get("persona") is not None:
                fields["persona"] = _agent(txn, fields["persona"])
            if fields.get("parent") is not None:
                fields["parent"] = require(txn, fields["parent"]).id
            if fields.get("since") is not None:
                fields["since"] = self._since(fields["since"], request.now)
            start = self._begin(request, txn)
            rows = turn_lookups.find_sessions(txn, turn_lookups.SessionsWanted(**fields))
            page = request.page(start, in_order(rows, SessionTimes(txn, start.arrival), start.position))
            return mapped(page, partial(to_sessions, txn))

    def _calls_of_tool(self, txn: ReadTxn, tool: str, request: PageRequest, start: PageCursor) -> Page[ToolCall]:
        index, facts = self._store.word_index(txn.sql), txn.facts
        entries = turn_lookups.find_entries(
            txn,
            index,
            MatchFilters(tool=tool),
            lambda entry: entry.call is not None and known_name(facts, entry.call.tool) == tool,
            start.position,
        )
        page = request.page(start, entries)
        calls = ((entry, row, call) for entry in page for row, call in calls_of(txn, entry.turn))
        return Page((call for entry, row, call in calls if entry.call and row.seq == entry.call.seq), page.next)


def _calls_of_message(txn: ReadTxn, message: str) -> Iterator[tuple[Position, ToolCall]]:
    """A message's id lies just behind its turn's."""
    row = txn.sql.fetch_row(f"{TURN.select} WHERE id < ? ORDER BY id DESC LIMIT 1", (message,))
    turn = TurnRow(*row) if row else None
    calls = calls_of(txn, turn) if turn and access_of(txn).may_read_turn(turn) else []
    return (((call_row.turn, call_row.seq), call) for call_row, call in calls if call.message_id == message)


def _calls_that_spawned(txn: ReadTxn, session: int) -> Iterator[tuple[Position, ToolCall]]:
    query = "SELECT turn, seq FROM tool_call WHERE spawned IS NOT NULL AND spawned = ? ORDER BY turn, seq"
    for n, seq in txn.sql.fetch_rows(query, (session,)):
        turn = load_turn_number(txn.sql, n)
        calls = calls_of(txn, turn) if turn and access_of(txn).may_read_turn(turn) else []
        yield from (((n, seq), call) for row, call in calls if row.seq == seq)


def _agent(txn: ReadTxn, name: str) -> str:
    known = agent_id(txn.sql, checked_text(name, "persona"))
    row = None if known is None else load_program(txn.sql, known)
    if row is not None and not access_of(txn).may_read_program(row):
        known = None
    if known is None and name not in UNREMARKABLE:
        raise NotFound("agent", name)
    return known or name


def _given(**arguments: Any) -> dict[str, Any]:
    """Those that say something."""
    return {name: value for name, value in arguments.items() if value is not None}


class ReadingLedger(ReadVerbs, LookupVerbs):
    """What reads turns, and finds them by their columns."""


# --- The tree of turns: children, heads, common ancestors, and which sessions a turn belongs to.


class Tree(LedgerPart):
    """`ledger.tree`: how turns hang together."""

    def children(self, turn: str) -> list[Turn]:
        with self._store.read() as txn:
            rows = children(txn.sql, self._resolve(txn, turn).turn)
            return to_turns(txn, filter(access_of(txn).may_read_turn, rows), self._store)

    @reads_whole
    def heads(self) -> list[Turn]:
        """Turns without a completed child: the tips of all trees, labelled or not."""
        with self._store.read() as txn:
            return to_turns(txn, heads_without_children(txn.sql), self._store)

    def common_ancestor(self, left: str, right: str) -> str | None:
        with self._store.read() as txn:
            rows = [self._resolve(txn, name).turn for name in (left, right)]
            common = common_depth(*(ranges_to(txn.sql, row.segment, row.depth) for row in rows))
            found = common and txn.sql.fetch_row("SELECT id FROM turn WHERE segment = ? AND depth = ?", common)
            return str(found[0]) if found else None

    def turns(self, turn: str) -> list[Turn]:
        """Every turn of the tree that this one belongs to, parents before children."""
        with self._store.read() as txn:
            rows = tree_rows(txn.sql, self._resolve(txn, turn).turn)
            return to_turns(txn, filter(access_of(txn).may_read_turn, rows), self._store)

    def sessions_containing(self, turn: str) -> list[Session]:
        """Every session whose thread has ever contained this turn."""
        with self._store.read() as txn:
            row = self._resolve(txn, turn).turn
            sessions = sessions_containing(txn, row.segment, row.depth)
            return to_sessions(txn, sessions)

    def moves_to(self, turn: str) -> list[SessionMove]:
        """Every movement of a session's head to this very turn, in order."""
        with self._store.read() as txn:
            rows = turn_lookups.moves_to(txn, self._resolve(txn, turn).turn)
            sessions = {row.session: session_of_number(txn, row.session) for row in rows}
            return [
                SessionMove(session=session.label, changed_at=row.changed_at, why=row.why)
                for row in rows
                if (session := sessions[row.session]) is not None
            ]


# --- What is told to whoever follows a session.

PARTIAL_POLL_SECONDS = 0.5
"""How often it is looked whether more has come of an answer that another process hears."""


class SessionStream:
    """One subscriber of a session. Everything is read with the rights of whoever acts."""

    def __init__(self, store: Store, session: str, after: StreamPosition | str | None) -> None:
        self._store = store
        self._name = checked_text(session, "session")
        position = parse_position(after) if isinstance(after, str) else after
        if position is not None:
            checked_record(position, StreamPosition, "after")
        with store.read() as txn:
            self.cursor: StreamCursor = open_cursor(txn, self._name, position)
            self.newest = txn.facts.tip().n
            self._erasures = txn.facts.watermark(ERASING)
        self._name = self.cursor.session  # it may be renamed meanwhile

    def read(self) -> list[StreamItem] | None:
        """The items of the next events; None where there are no more. Whoever hands them out slowly asks `is_outdated`
        before each."""
        with self._store.read() as txn:
            self._erasures = txn.facts.watermark(ERASING)
            return read_items(txn, self._name, self.cursor)

    def is_outdated(self, position: StreamPosition) -> bool:
        """Whether something was erased since items were read. What was not handed out of them is dropped then, and read
        again behind this position."""
        with self._store.read() as txn:
            if txn.facts.watermark(ERASING) == self._erasures:
                return False
            self.cursor = open_cursor(txn, self._name, position)
            return True

    def read_partial(self) -> list[StreamItem]:
        """What the broker of another process kept of the answer that it hears, beyond what was told of it."""
        if not self.cursor.is_open:
            return []
        with self._store.read() as txn:
            return self.cursor.partial_items(txn)

    def wait(self, seconds: float) -> bool:
        """Whether an event comes within so many seconds, of whatever session. Blocks."""
        return self._store.changes(self.cursor.scanned, seconds)


class StreamVerbs(LedgerBase):
    """Following a session."""

    def follow(
        self, session: str, *, after: StreamPosition | str | None = None, wait: float | None = None
    ) -> Iterator[StreamItem]:
        """What happens in a session, as it happens: messages, turns, tools, and the text of answers while they are
        written. Behind the position `after` it goes on without gap or repetition; without one it begins with the turn
        that is under way, else with what comes next; 0 is the beginning. It ends when nothing has come for `wait`
        seconds; without, never."""
        seconds = None if wait is None else checked_seconds(wait, "wait")
        return self._follow_stream(SessionStream(self._store, session, after), seconds)

    def _follow_stream(self, stream: SessionStream, wait: float | None) -> Iterator[StreamItem]:
        left = wait
        while True:
            before = stream.cursor.position
            position = before
            while (items := stream.read()) is not None:
                for item in items:
                    if stream.is_outdated(position):
                        break
                    yield item
                    position = item.position
            yield from stream.read_partial()
            left = left if stream.cursor.position == before else wait
            if left is not None and left <= 0:
                return
            some = PARTIAL_POLL_SECONDS if left is None else min(left, PARTIAL_POLL_SECONDS)
            if not stream.wait(some) and left is not None:
                left -= some
