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

from weft.exchange.importers.databases import UNREADABLE, Database, opened
from weft.exchange.importers.loading import loaded
from weft.exchange.importers.opencode.copies import Copies, Fork, told_as_first
from weft.exchange.importers.opencode.rows import Session
from weft.exchange.importers.opencode.tables import NewerMessages, fork_of
from weft.exchange.importers.opencode.verbatim import Drafted, Verbatim
from weft.exchange.importers.port import Report

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
        found: list[Any] = []
        for table in SESSIONS:
            if self._has(table, "id"):
                order = "time_created, id" if self._has(table, "time_created") else "id"
                found += self._rows(f"SELECT id FROM {table} ORDER BY {order}")
        for table in MESSAGES:
            if self._has(table, "session_id"):
                found += self._rows(f"SELECT DISTINCT session_id FROM {table} ORDER BY session_id")
        return [id for id in dict.fromkeys(row[0] for row in found) if isinstance(id, str)]

    def _session(self, id: str) -> Session:
        verbatim = Verbatim()
        rows = {table: row for table in SESSIONS if (row := self._one(table, "id", id))}
        told: dict[str, Any] = {}
        for table, row in rows.items():
            verbatim.add(table, id, orjson.dumps(row, default=str))
            told |= _info(row)
        session = Session(info=told | {"id": id}, is_told=bool(rows))
        if len(rows) > 1:
            session.tell("session_v2")
        fork = self._copies.find(id)
        if fork is not None:
            _tell_fork(session.info, fork)
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
    ) -> list[Drafted]:
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
            draft = Drafted(message, [verbatim.add("part", *row) for row in rows], number)
            drafted.append(draft if fork is None else told_as_first(draft, [(_id(id), data or b""), *rows], fork))
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


def _tell_fork(info: dict[str, Any], fork: Fork) -> None:
    info.setdefault("fork", {"session": fork.session, "message": fork.last})
    revert = info.get("revert")
    if isinstance(revert, dict) and isinstance(at := revert.get("messageID"), str):
        info["revert"] = revert | {"messageID": fork.ids.get(at, at)}


def _id(value: Any) -> str | None:
    return value if isinstance(value, str) else None if value is None else str(value)


def _info(row: dict[str, Any]) -> dict[str, Any]:
    """A session's row as an export tells it."""
    told = {name: _parsed(value) if name in JSON_COLUMNS else value for name, value in row.items()}
    get = told.get
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
        "fork": fork_of(told),
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
        return loaded(value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value)
    except ValueError:
        return value
