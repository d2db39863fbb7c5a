"""Lookups: turns, messages, tool calls and sessions by what they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Unpack

from weft.kernel.errors import InvalidInput, NotFound
from weft.kernel.weft_error import quoted
from weft.ledger.api.reading import ReadVerbs
from weft.ledger.api.search import SearchVerbs
from weft.ledger.arguments import checked_id, checked_text
from weft.ledger.model import Message, Session, ToolCall, Turn
from weft.ledger.read.access import READ_LEDGER, access_of
from weft.ledger.read.pages import NEWEST, Cursor, Page, PageRequest, Position, mapped
from weft.ledger.read.request_inputs import find_message
from weft.ledger.read.revisions import require
from weft.ledger.read.session_times import SessionTimes
from weft.ledger.read.sessions import to_sessions
from weft.ledger.read.turn_lists import CurrentTurns
from weft.ledger.read.turns import calls_of, to_turns
from weft.ledger.search import lookups
from weft.ledger.search.entries import known_name
from weft.ledger.search.filters import Filters, SearchFilters, as_filters
from weft.ledger.search.lookups import SessionCriteria, TurnCriteria
from weft.ledger.search.passages import UNREMARKABLE
from weft.ledger.search.session_lists import in_order
from weft.ledger.views.program_rows import agent_id, load_program
from weft.ledger.views.rows import TURN, TurnRow, load_turn_number
from weft.store.port import ReadTxn


class LookupVerbs(SearchVerbs):
    """What answers to columns rather than to words."""

    def find_turns(
        self,
        *,
        limit: int | None = None,
        after: str | None = None,
        parent: str | None = None,
        persona: str | None = None,
        **wanted: Unpack[TurnCriteria],
    ) -> Page[Turn]:
        """Turns, the newest first. By parent (a turn), persona, type, status, role, source_event, has_children, since
        and until. Pages are as those of `log`."""
        request = self._request("find_turns", {"parent": parent, "persona": persona, **wanted}, limit, after)
        times = self._period(wanted, request.now)
        _check_names(wanted, lookups.TurnsWanted)
        if wanted.get("has_children") is not None:
            self._writer.ensure_whole(READ_LEDGER)  # a child may be a turn that cannot be read
        self._let_index_catch_up()
        with self._store.read() as txn:
            start = self._begin(request, txn)
            above = None if parent is None else self._resolve(txn, parent).turn
            agent = None if persona is None else _agent(txn, persona)
            fields: dict[str, Any] = {**wanted, **times, "parent": above, "persona": agent}
            index, current = self._store.word_index(txn.sql), CurrentTurns(txn, start.arrival)
            place, chunk = start.position or NEWEST, request.rows_at_once
            rows = lookups.find_turns(txn, index, lookups.TurnsWanted(**fields), current, place, chunk)
            return mapped(
                request.page(start, ((current.position_of(row), row) for row in rows)), partial(to_turns, txn)
            )

    def find_messages(
        self, *, limit: int | None = None, after: str | None = None, **filters: Unpack[SearchFilters]
    ) -> Page[Message]:
        """Messages, the newest first; by the filters of `search`."""
        request = self._request("find_messages", filters, limit, after)
        wanted = as_filters(filters, self._period(filters, request.now))
        self._let_index_catch_up()
        with self._store.read() as txn:
            index, start = self._store.word_index(txn.sql), self._begin(request, txn)
            entries = lookups.find_entries(
                txn, index, wanted, lambda entry: entry.call is None and entry.message is not None, start.position
            )
            page = request.page(start, ((position, str(entry.message)) for position, entry in entries))
            messages = (find_message(txn, id) for id in page)
            return Page((message for message in messages if message is not None), page.next)

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
        self, *, limit: int | None = None, after: str | None = None, **wanted: Unpack[SessionCriteria]
    ) -> Page[Session]:
        """Sessions, the latest changed first; by persona, parent (a session), origin, routing_key or since. Pages are
        as those of `sessions`."""
        request = self._request("find_sessions", wanted, limit, after)
        _check_names(wanted, lookups.SessionsWanted)
        if not any(value is not None for value in wanted.values()):
            raise InvalidInput("there is nothing to find sessions by", "give persona, parent, origin or routing_key")
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
            rows = lookups.find_sessions(txn, lookups.SessionsWanted(**fields))
            page = request.page(start, in_order(rows, SessionTimes(txn, start.arrival), start.position))
            return mapped(page, partial(to_sessions, txn))

    def _calls_of_tool(self, txn: ReadTxn, tool: str, request: PageRequest, start: Cursor) -> Page[ToolCall]:
        index, facts = self._store.word_index(txn.sql), txn.facts
        entries = lookups.find_entries(
            txn,
            index,
            Filters(tool=tool),
            lambda entry: entry.call is not None and known_name(facts, entry.call.tool) == tool,
            start.position,
        )
        page = request.page(start, entries)
        calls = ((entry, row, call) for entry in page for row, call in calls_of(txn, entry.turn))
        return Page((call for entry, row, call in calls if entry.call and row.seq == entry.call.seq), page.next)


def _calls_of_message(txn: ReadTxn, message: str) -> Iterator[tuple[Position, ToolCall]]:
    """A message's id lies just behind its turn's."""
    row = txn.sql.one(f"{TURN.select} WHERE id < ? ORDER BY id DESC LIMIT 1", (message,))
    turn = TurnRow(*row) if row else None
    calls = calls_of(txn, turn) if turn and access_of(txn).may_read_turn(turn) else []
    return (((call_row.turn, call_row.seq), call) for call_row, call in calls if call.message_id == message)


def _calls_that_spawned(txn: ReadTxn, session: int) -> Iterator[tuple[Position, ToolCall]]:
    query = "SELECT turn, seq FROM tool_call WHERE spawned IS NOT NULL AND spawned = ? ORDER BY turn, seq"
    for n, seq in txn.sql.all(query, (session,)):
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


def _check_names(wanted: Mapping[str, Any], record: Any) -> None:
    for name in wanted.keys() - set(record.__struct_fields__):
        raise InvalidInput(
            f"nothing is found by {quoted(name)}", f"it is found by {', '.join(record.__struct_fields__)}"
        )


class ReadingLedger(ReadVerbs, LookupVerbs):
    """What reads turns, and finds them by their columns."""
