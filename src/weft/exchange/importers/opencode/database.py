"""`opencode.db`, since version 1.2: the tables session, message and part, their JSON without the ids; since version 2
session_v2 and session_message, one row for a message with all it holds.

A copy is read, one session after the other, and of its tables only these; what others of them hold (accounts, tokens)
is not touched. Version 2 copies the sessions it finds into its own tables and leaves the others as they are: what both
hold is told by the first, which says more, and by the second what came after.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct
from msgspec.structs import replace

from weft.exchange.importers.databases import UNREADABLE, Database, opened
from weft.exchange.importers.opencode.copies import Copies, Fork, as_in_first_session
from weft.exchange.importers.opencode.rows import RowDraft, Session, Span, Verbatim
from weft.exchange.importers.opencode.versions import SETTINGS, Reshaped, Version2, is_known
from weft.exchange.importers.port import Report
from weft.exchange.importers.records.values import canonical, json_value, mapping, text

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

    def draft(self, session: Session, older: list[RowDraft], verbatim: Verbatim, is_migrated: bool) -> list[RowDraft]:
        """Those of a session that come after what the first version's tables told; none, if that had not ended: some of
        its releases wrote both."""
        rows = self._rows(session.info["id"])
        repeated = len(rows) if older and not is_migrated else _repeated(rows, {draft.message.id for draft in older})
        newer = Version2()
        drafted: list[tuple[RowDraft, Reshaped | None]] = []
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
                drafted.append((RowDraft(span, parts, before), made))
            elif value is None:
                drafted.append((RowDraft(span, [], before), None))
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
        value = json_value(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else str(value)


def fork_of(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Where a session was forked from, as its row tells."""
    parent = text(fields.get("fork_session_id"))
    if parent is None:
        return None
    boundary = mapping(fields.get("fork_boundary"))
    return {"session": parent, "message": text(boundary.get("messageID")) or text(fields.get("fork_message_id"))}


JSON_COLUMNS = frozenset({"revert", "permission", "summary_diffs", "model", "metadata", "goal", "fork_boundary"})
TOKENS = ("input", "output", "reasoning")
SESSIONS = ("session", "session_v2")
MESSAGES = ("message", "session_message")


def read_database(path: Path, report: Report) -> Iterator[Session]:
    with opened(path, report) as database:
        if database is not None:
            yield from _Database(database, report).sessions()


class _Database:
    def __init__(self, database: Database, report: Report) -> None:
        self._report = report
        self._rows, self._walk, self._has, self._columns = (
            database.rows,
            database.walk,
            database.has,
            database.columns,
        )
        self._newer, self._copies = NewerMessages(database), Copies(database)

    def sessions(self) -> Iterator[Session]:
        try:
            ids = self._session_ids()
        except UNREADABLE as error:
            self._report.problem(None, f"the database is not readable: {error}"[:300])
            return
        for id in ids:
            try:
                session = self._session(id)
            except UNREADABLE as error:
                self._report.problem(None, f"session {id} is not readable: {error}"[:300])
            else:
                yield session

    def _session_ids(self) -> list[str]:
        """Those of the table, then those that only messages name."""
        values: list[Any] = []
        for table in SESSIONS:
            if self._has(table, "id"):
                order = "time_created, id" if self._has(table, "time_created") else "id"
                values += self._rows(f"SELECT id FROM {table} ORDER BY {order}")
        for table in MESSAGES:
            if self._has(table, "session_id"):
                values += self._rows(f"SELECT DISTINCT session_id FROM {table} ORDER BY session_id")
        return [id for id in dict.fromkeys(row[0] for row in values) if isinstance(id, str)]

    def _session(self, id: str) -> Session:
        verbatim = Verbatim()
        rows = {table: row for table in SESSIONS if (row := self._one(table, "id", id))}
        fields: dict[str, Any] = {}
        for table, row in rows.items():
            verbatim.add(table, id, orjson.dumps(row, default=str))
            fields |= _info(row)
        session = Session(info=fields | {"id": id}, has_record=bool(rows))
        if len(rows) > 1:
            session.count_mapped("session_v2")
        fork = self._copies.find(id)
        if fork is not None:
            _add_fork(session.info, fork)
        drafted = self._messages(id, verbatim, fork=fork)
        if not drafted and (copied := self._newer.migrated(id)) is not None:
            drafted = self._messages(copied[0], verbatim, until=copied[1])
        drafted += self._newer.draft(session, drafted, verbatim, is_migrated="session_v2" in rows)
        session.todos = self._todos(id, verbatim)
        self._others(id, session, verbatim)
        session.raw, session.messages = verbatim.finish(drafted)
        return session

    def _one(self, table: str, column: str, value: str) -> dict[str, Any]:
        if not self._has(table, column):
            return {}
        found = self._rows(f"SELECT * FROM {table} WHERE {column} = ?", (value,))
        return dict(zip(self._columns[table], found[0], strict=False)) if found else {}

    def _messages(
        self, session: str, verbatim: Verbatim, until: str | None = None, fork: Fork | None = None
    ) -> list[RowDraft]:
        if not self._has("message", "id", "session_id", "data"):
            return []
        order = "time_created, id" if self._has("message", "time_created") else "id"
        created = "time_created" if self._has("message", "time_created") else "NULL"
        sql = f"SELECT id, {created}, CAST(data AS BLOB) FROM message WHERE session_id = ? ORDER BY {order}"
        drafted = []
        for id, when, data in self._walk(sql, (session,)):
            number = verbatim.count
            message = verbatim.add("message", _id(id), data or b"", time_created=when)
            rows = [(_id(part), text or b"") for part, text in self._parts(id)]
            draft = RowDraft(message, [verbatim.add("part", *row) for row in rows], number)
            drafted.append(draft if fork is None else as_in_first_session(draft, [(_id(id), data or b""), *rows], fork))
            if until is not None and id == until:
                break
        return drafted

    def _parts(self, message: Any) -> list[Any]:
        if not self._has("part", "id", "message_id", "data"):
            return []
        return self._rows("SELECT id, CAST(data AS BLOB) FROM part WHERE message_id = ? ORDER BY id", (message,))

    def _todos(self, session: str, verbatim: Verbatim) -> list[Any]:
        names = ("content", "status", "priority")
        if not self._has("todo", "session_id", "position", *names):
            return []
        sql = f"SELECT {', '.join(names)} FROM todo WHERE session_id = ? ORDER BY position"
        found = [dict(zip(names, row, strict=True)) for row in self._rows(sql, (session,))]
        for todo in found:
            verbatim.add("todo", None, orjson.dumps(todo, default=str))
        return found

    def _others(self, session: str, kept: Session, verbatim: Verbatim) -> None:
        """Parts without their message."""
        if self._has("part", "id", "message_id", "session_id", "data") and self._has("message", "id"):
            sql = (
                "SELECT id, CAST(data AS BLOB), message_id FROM part WHERE session_id = ?"
                " AND message_id NOT IN (SELECT id FROM message) ORDER BY id"
            )
            for id, data, message in self._walk(sql, (session,)):
                verbatim.add("part", _id(id), data or b"", message_id=message)
                kept.keep("part.without message", is_unknown=False)


def _add_fork(info: dict[str, Any], fork: Fork) -> None:
    info.setdefault("fork", {"session": fork.session, "message": fork.last})
    revert = info.get("revert")
    if isinstance(revert, dict) and isinstance(at := revert.get("messageID"), str):
        info["revert"] = revert | {"messageID": fork.ids.get(at, at)}


def _id(value: Any) -> str | None:
    return value if isinstance(value, str) else None if value is None else str(value)


def _info(row: dict[str, Any]) -> dict[str, Any]:
    """A session's row as an export tells it."""
    parsed_row = {name: _parsed(value) if name in JSON_COLUMNS else value for name, value in row.items()}
    get = parsed_row.get
    summary = {name: get(f"summary_{name}") for name in ("additions", "deletions", "files", "diffs")}
    time = {name: get(f"time_{name}") for name in ("created", "updated", "compacting", "archived")}
    tokens = {name: get(f"tokens_{name}") for name in TOKENS}
    info = {
        "projectID": get("project_id"),
        "parentID": get("parent_id"),
        "workspaceID": get("workspace_id"),
        "share": {"url": get("share_url")} if get("share_url") else None,
        "summary": {name: value for name, value in summary.items() if value is not None} or None,
        "time": {name: value for name, value in time.items() if value is not None},
        "tokens": tokens if any(value is not None for value in tokens.values()) else None,
        "fork": fork_of(parsed_row),
    }
    same = (
        "slug",
        "directory",
        "path",
        "title",
        "version",
        "agent",
        "model",
        "revert",
        "permission",
        "cost",
        "metadata",
    )
    info |= {name: get(name) for name in same}
    return {name: value for name, value in info.items() if value is not None}


def _parsed(value: Any) -> Any:
    if not isinstance(value, str | bytes):
        return value
    try:
        return json_value(value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value)
    except ValueError:
        return value
