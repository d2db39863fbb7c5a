"""Lookups: turns, messages, tool calls and sessions by what they are."""

from __future__ import annotations

from itertools import islice
from typing import Any

from weft.kernel.errors import InvalidInput, NotFound
from weft.ledger.api.reading import ReadVerbs
from weft.ledger.api.search import SearchVerbs
from weft.ledger.arguments import checked_count, checked_text
from weft.ledger.model import Message, Session, ToolCall, Turn
from weft.ledger.read.request_inputs import find_message
from weft.ledger.read.revisions import require
from weft.ledger.read.sessions import to_sessions
from weft.ledger.read.turns import calls_of, to_turns
from weft.ledger.search import lookups
from weft.ledger.search.entries import known_name
from weft.ledger.search.filters import Filters, as_filters
from weft.ledger.search.passages import UNREMARKABLE
from weft.ledger.views.program_rows import agent_id
from weft.ledger.views.rows import TURN, TurnRow
from weft.ledger.write.turn_events import checked_id
from weft.store.port import ReadTxn


class LookupVerbs(SearchVerbs):
    """What answers to columns rather than to words."""

    def find_turns(
        self, *, limit: int | None = None, parent: str | None = None, persona: str | None = None, **wanted: Any
    ) -> list[Turn]:
        """Turns, the newest first. By parent (a turn), persona, type, status, role, source_event, has_children, since
        and until."""
        most = None if limit is None else checked_count(limit, "limit")
        times = {name: self._moment(wanted[name]) for name in ("since", "until") if wanted.get(name) is not None}
        _check_names(wanted, lookups.TurnsWanted)
        self._let_index_catch_up()
        with self._store.read() as txn:
            above = None if parent is None else self._resolve(txn, parent).turn
            agent = None if persona is None else _agent(txn, persona)
            fields = {**wanted, **times, "parent": above, "persona": agent}
            index = self._store.word_index(txn.sql)
            return to_turns(txn, lookups.find_turns(txn, index, lookups.TurnsWanted(**fields), most))

    def find_messages(self, *, limit: int | None = None, **filters: Any) -> list[Message]:
        """Messages, the newest first; by the filters of `search`."""
        most = None if limit is None else checked_count(limit, "limit")
        given = as_filters(filters, self._parse_time)
        self._let_index_catch_up()
        with self._store.read() as txn:
            index = self._store.word_index(txn.sql)
            entries = lookups.find_entries(
                txn, index, given, lambda entry: entry.call is None and entry.message is not None
            )
            ids = [str(entry.message) for entry in islice(entries, most)]
            found = (find_message(txn, id) for id in ids)
            return [message for message in found if message is not None]

    def find_tool_calls(
        self,
        *,
        tool: str | None = None,
        message: str | None = None,
        spawned: str | None = None,
        limit: int | None = None,
    ) -> list[ToolCall]:
        """Tool calls by the tool's whole name, the newest first; of one message; or that which started a session."""
        most = None if limit is None else checked_count(limit, "limit")
        if sum(given is not None for given in (tool, message, spawned)) != 1:
            raise InvalidInput("tool calls are found in one way at a time", "give tool, message or spawned")
        self._let_index_catch_up()
        with self._store.read() as txn:
            if message is not None:
                return self._calls_of_message(txn, checked_id(message, "message"))[:most]
            if spawned is not None:
                return _calls_that_spawned(txn, require(txn, spawned).n)[:most]
            return self._calls_of_tool(txn, checked_text(tool, "tool"), most)

    def find_sessions(self, *, limit: int | None = None, **wanted: Any) -> list[Session]:
        """Sessions, the latest changed first; by persona, parent (a session), origin, routing_key or since."""
        most = None if limit is None else checked_count(limit, "limit")
        _check_names(wanted, lookups.SessionsWanted)
        if not any(value is not None for value in wanted.values()):
            raise InvalidInput("there is nothing to find sessions by", "give persona, parent, origin or routing_key")
        self._let_index_catch_up()
        with self._store.read() as txn:
            fields = dict(wanted)
            if fields.get("persona") is not None:
                fields["persona"] = _agent(txn, fields["persona"])
            if fields.get("parent") is not None:
                fields["parent"] = require(txn, fields["parent"]).id
            if fields.get("since") is not None:
                fields["since"] = self._moment(fields["since"])
            found = lookups.find_sessions(txn, lookups.SessionsWanted(**fields))
            return to_sessions(txn, found[:most])

    def _calls_of_message(self, txn: ReadTxn, message: str) -> list[ToolCall]:
        """A message's id lies just behind its turn's."""
        row = txn.sql.one(f"{TURN.select} WHERE id < ? ORDER BY id DESC LIMIT 1", (message,))
        found = calls_of(txn, TurnRow(*row)) if row else []
        return [call for _, call in found if call.message_id == message]

    def _calls_of_tool(self, txn: ReadTxn, tool: str, limit: int | None) -> list[ToolCall]:
        index, facts = self._store.word_index(txn.sql), txn.facts
        entries = lookups.find_entries(
            txn,
            index,
            Filters(tool=tool),
            lambda entry: entry.call is not None and known_name(facts, entry.call.tool) == tool,
        )
        found: list[ToolCall] = []
        for entry in islice(entries, limit):
            found += [call for row, call in calls_of(txn, entry.turn) if entry.call and row.seq == entry.call.seq]
        return found


def _calls_that_spawned(txn: ReadTxn, session: int) -> list[ToolCall]:
    rows = txn.sql.all("SELECT turn, seq FROM tool_call WHERE spawned IS NOT NULL AND spawned = ?", (session,))
    found: list[ToolCall] = []
    for n, seq in rows:
        turn = txn.sql.one(f"{TURN.select} WHERE n = ?", (n,))
        found += [call for row, call in calls_of(txn, TurnRow(*turn)) if row.seq == seq] if turn else []
    return found


def _agent(txn: ReadTxn, name: str) -> str:
    known = agent_id(txn.sql, checked_text(name, "persona"))
    if known is None and name not in UNREMARKABLE:
        raise NotFound("agent", name)
    return known or name


def _check_names(wanted: dict[str, Any], record: Any) -> None:
    for name in wanted.keys() - set(record.__struct_fields__):
        raise InvalidInput(f"nothing is found by {name!r:.80}", f"it is found by {', '.join(record.__struct_fields__)}")


class ReadingLedger(ReadVerbs, LookupVerbs):
    """What reads turns, and finds them by their columns."""
