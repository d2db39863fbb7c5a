"""The messages of opencode 2 in its database: the table session_message.

A fork of a session copies the rows before it: they keep their place and their time and get ids of their own. Here they
are told by the ids they had first, so that they are the same messages. (A session that version 1 had is copied with its
ids; what both tables hold is told by the first, which says more.)
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from weft.exchange.importers.databases import Database
from weft.exchange.importers.loading import loaded
from weft.exchange.importers.opencode.newer import SETTINGS, Newer, Reshaped, is_known
from weft.exchange.importers.opencode.rows import Session
from weft.exchange.importers.opencode.verbatim import Drafted, Span, Verbatim
from weft.exchange.importers.values import canonical, mapping, text

FORKED = ("session_v2", "session")
DEEPEST = 100
"""Forks of forks that are followed."""


class Row(Struct, frozen=True):
    id: str | None
    kind: str
    place: Any
    created: Any
    data: bytes


class Known(Struct, frozen=True):
    """What tells a copied row from others, and the id that it had first."""

    id: str | None
    kind: str
    created: Any


class NewerMessages:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._columns = [name for name in ("seq", "time_created") if database.has("session_message", name)]
        self._known: dict[str, dict[Any, Known]] = {}

    def draft(self, session: Session, older: list[Drafted], verbatim: Verbatim, is_migrated: bool) -> list[Drafted]:
        """Those of a session that come after what the first version's tables told; none, if that had not ended: some of
        its releases wrote both."""
        rows = self._rows(session.info["id"])
        repeated = len(rows) if older and not is_migrated else _repeated(rows, {draft.message.id for draft in older})
        newer = Newer()
        drafted: list[tuple[Drafted, Reshaped | None]] = []
        for number, row in enumerate(rows):
            before = verbatim.count
            span = verbatim.add("session_message", row.id, row.data, type=row.kind, seq=row.place)
            if number < repeated:
                session.keep(f"session_message.{row.kind}", is_unknown=False)
                continue
            value = _object(row.data)
            made = None if value is None else newer.take(row.kind, row.id, value)
            if made is not None:
                parts = [Span(0, 0, None, canonical(part)) for part in made.parts]
                verbatim.count += len(parts)
                drafted.append((Drafted(span, parts, before), made))
            elif value is None:
                drafted.append((Drafted(span, [], before), None))
            else:
                session.count(row.kind, row.kind in SETTINGS, is_known(row.kind))
        for draft, made in drafted:
            if made is not None:  # only now: a row may still be told how its turn ended
                draft.message = Span(0, 0, text(made.info.get("id")), canonical(made.info))
        return [draft for draft, _ in drafted]

    def migrated(self, session: str) -> tuple[str, str] | None:
        """Of a fork of a session that version 1 tells: that session, and the last of its messages that were copied."""
        root, seen = session, {session}
        while (parent := self._forked_from(root)) is not None and parent not in seen:
            root = parent
            seen.add(root)
        if root == session or not self._database.has("message", "id", "session_id"):
            return None
        older = {row[0] for row in self._database.rows("SELECT id FROM message WHERE session_id = ?", (root,))}
        last = next((row.id for row in reversed(self._rows(session)) if row.id in older), None) if older else None
        return None if last is None else (root, last)

    def _rows(self, session: str) -> list[Row]:
        """In their order, each by the id that it had first."""
        if not self._database.has("session_message", "id", "session_id", "type", "data"):
            return []
        place, created = (name if name in self._columns else "NULL" for name in ("seq", "time_created"))
        order = ", ".join([*self._columns, "id"])
        sql = f"SELECT id, type, {place}, {created}, CAST(data AS BLOB) FROM session_message WHERE session_id = ?"
        found = self._database.walk(f"{sql} ORDER BY {order}", (session,))
        rows = [Row(_word(id), str(kind), place, created, data or b"") for id, kind, place, created, data in found]
        first = self._copied(session, DEEPEST)
        return [replace(row, id=_first_id(first, row.place, Known(row.id, row.kind, row.created)).id) for row in rows]

    def _copied(self, session: str, deepest: int) -> dict[Any, Known]:
        """What a fork may have copied: the rows of the session it comes from, by their places."""
        parent = self._forked_from(session)
        if parent is None or not deepest or len(self._columns) < 2:
            return {}
        if parent not in self._known:
            self._known[parent] = {}  # while it is found out, for forks that lead back to themselves
            sql = "SELECT seq, id, type, time_created FROM session_message WHERE session_id = ?"
            first = self._copied(parent, deepest - 1)
            self._known[parent] = {
                place: _first_id(first, place, Known(_word(id), str(kind), created))
                for place, id, kind, created in self._database.walk(sql, (parent,))
            }
        return self._known[parent]

    def _forked_from(self, session: str) -> str | None:
        for table in FORKED:
            if self._database.has(table, "id", "fork_session_id"):
                found = self._database.rows(f"SELECT fork_session_id FROM {table} WHERE id = ?", (session,))
                if found and (parent := text(found[0][0])) is not None:
                    return parent
        return None


def _first_id(first: dict[Any, Known], place: Any, row: Known) -> Known:
    copied = first.get(place)
    is_copy = copied is not None and (copied.kind, copied.created) == (row.kind, row.created)
    return copied if copied is not None and is_copy else row


def _repeated(rows: list[Row], older: set[str | None]) -> int:
    """How many of the rows tell again what the first version's tables have told: up to the last one that both have; all
    of them where they share none."""
    if not older:
        return 0
    both = [number for number, row in enumerate(rows, 1) if row.id in older]
    return both[-1] if both else len(rows)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        value = loaded(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else str(value)


def fork_of(told: dict[str, Any]) -> dict[str, Any] | None:
    """Where a session was forked from, as its row tells."""
    parent = text(told.get("fork_session_id"))
    if parent is None:
        return None
    boundary = mapping(told.get("fork_boundary"))
    return {"session": parent, "message": text(boundary.get("messageID")) or text(told.get("fork_message_id"))}
