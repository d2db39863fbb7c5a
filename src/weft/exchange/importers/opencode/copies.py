"""Forks of version 1 in its database: a session of its own, with copies of the messages before it under new ids.

Nothing names where they come from, but they keep their times. They are told by the ids they had first, so that they are
the same messages. Exports and the older folder hold no more of a fork than its copies: there they are told as they are.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from weft.exchange.importers.databases import Database
from weft.exchange.importers.opencode.rows import RowDraft, Span
from weft.exchange.importers.records.values import canonical, json_object

LEAST = 2
"""A prompt and its answer: fewer messages at the same moments may be chance."""
NAMED = ("parentID", "tail_start_id")
"""Fields of a message, and of a part, that name a message."""


class Fork(Struct, frozen=True):
    session: str
    """Where it was copied from."""
    ids: dict[str, str]
    """The ids that the copied messages and their parts had first."""
    last: str
    """The first id of the last message that was copied."""


class Copies:
    """Which sessions of a database begin with copies."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._earlier: dict[str, list[str]] | None = None
        self._forks: dict[str, Fork | None] = {}

    def find(self, session: str) -> Fork | None:
        if session not in self._forks:
            self._forks[session] = self._find(session)
        return self._forks[session]

    def _find(self, session: str) -> Fork | None:
        if self._earlier is None:
            self._earlier = self._beginning_alike()
        own, best, length = list[tuple[str, Any]](), None, LEAST - 1
        for earlier in self._earlier.get(session, ()):
            own = own or self._messages(session)
            shared = _shared(own, theirs := self._messages(earlier))
            if shared > length:
                best, length = (earlier, theirs), shared
        return None if best is None else self._fork(best[0], own[:length], best[1])

    def _fork(self, parent: str, copied: list[tuple[str, Any]], originals: list[tuple[str, Any]]) -> Fork:
        before = self.find(parent)
        first = {} if before is None else before.ids
        ids: dict[str, str] = {}
        for (copy, _), (original, _) in zip(copied, originals, strict=False):
            ids[copy] = first.get(original, original)
            parts, theirs = self._parts(copy), self._parts(original)
            if len(parts) == len(theirs):
                ids |= {part: first.get(their, their) for part, their in zip(parts, theirs, strict=True)}
        return Fork(parent, ids, ids[copied[-1][0]])

    def _beginning_alike(self) -> dict[str, list[str]]:
        """Every session with those before it whose first messages were made at the same moment."""
        if not self._database.has("message", "id", "session_id", "time_created"):
            return {}
        has_times = self._database.has("session", "id", "time_created")
        made = "(SELECT s.time_created FROM session s WHERE s.id = m.session_id)" if has_times else "NULL"
        found = self._database.walk(
            f"SELECT m.session_id, min(m.time_created), {made} AS made FROM message m GROUP BY m.session_id"
            " ORDER BY made, m.session_id"
        )
        alike: dict[Any, list[str]] = {}
        earlier: dict[str, list[str]] = {}
        for session, begun, _ in found:
            before = alike.setdefault(begun, [])
            if begun is not None and before:
                earlier[session] = list(before)
            before.append(session)
        return earlier

    def _messages(self, session: str) -> list[tuple[str, Any]]:
        sql = "SELECT id, time_created FROM message WHERE session_id = ? ORDER BY time_created, id"
        return [(str(id), created) for id, created in self._database.walk(sql, (session,))]

    def _parts(self, message: str) -> list[str]:
        if not self._database.has("part", "id", "message_id"):
            return []
        sql = "SELECT id FROM part WHERE message_id = ? ORDER BY id"
        return [str(id) for (id,) in self._database.rows(sql, (message,))]


def _shared(own: list[tuple[str, Any]], theirs: list[tuple[str, Any]]) -> int:
    """With how many messages of the same moments both begin."""
    pairs = zip(own, theirs, strict=False)
    return next((k for k, (ours, other) in enumerate(pairs) if ours[1] != other[1]), min(len(own), len(theirs)))


def as_in_first_session(drafted: RowDraft, rows: list[tuple[str | None, bytes]], fork: Fork) -> RowDraft:
    """A message with the ids that it and its parts had first; `rows` are their own ids and their JSON."""
    (message, data), *parts = rows
    if message not in fork.ids:
        return drafted
    spans = [_renamed(span, *row, fork) for span, row in zip(drafted.parts, parts, strict=True)]
    return RowDraft(_renamed(drafted.message, message, data, fork), spans, drafted.number)


def _renamed(span: Span, id: str | None, data: bytes, fork: Fork) -> Span:
    try:
        value = json_object(data)
    except ValueError:
        return span
    value |= {name: fork.ids.get(value[name], value[name]) for name in NAMED if isinstance(value.get(name), str)}
    return Span(0, 0, fork.ids.get(id or "", id), canonical(value))
