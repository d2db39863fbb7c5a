"""The three containers of opencode's sessions.

- `opencode.db`, since version 1.2, with its forks: sessions with copies of the messages before them
under new ids.
- What `opencode export` writes: one JSON document.
- The folder of JSON files before version 1.2, and the older one under `project`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import orjson
from msgspec import UNSET, Raw, Struct, UnsetType, field
from msgspec.structs import replace

from weft.exchange.importers.foreign_files import (
    BOM,
    UNREADABLE,
    Database,
    names_beneath,
    open_database,
    read_beneath,
    read_beside,
    read_whole,
)
from weft.exchange.importers.foreign_values import (
    SOURCE_LIMITS,
    canonical,
    json_object,
    json_value,
    mapping,
    millis,
    sequence,
    text,
)
from weft.exchange.importers.opencode.rows import (
    SETTINGS,
    MessageRow,
    MessageWithParts,
    Row,
    RowDraft,
    Session,
    Span,
    Verbatim,
    Version2,
    from_first_form,
    has_first_form,
    is_known,
)
from weft.exchange.importers.port import Report, Source
from weft.kernel.foreign_input import check_json

# --- Forks of version 1 in its database: a session of its own, with copies of the messages before it under new ids.

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

    def find_fork(self, session: str) -> Fork | None:
        if session not in self._forks:
            self._forks[session] = self._search_fork(session)
        return self._forks[session]

    def _search_fork(self, session: str) -> Fork | None:
        if self._earlier is None:
            self._earlier = self._beginning_alike()
        own_messages, best, length = list[tuple[str, Any]](), None, LEAST - 1
        for earlier in self._earlier.get(session, ()):
            own_messages = own_messages or self._messages(session)
            shared = _shared(own_messages, earlier_messages := self._messages(earlier))
            if shared > length:
                best, length = (earlier, earlier_messages), shared
        return None if best is None else self._fork(best[0], own_messages[:length], best[1])

    def _fork(self, parent: str, copied: list[tuple[str, Any]], originals: list[tuple[str, Any]]) -> Fork:
        parent_fork = self.find_fork(parent)
        first_ids = {} if parent_fork is None else parent_fork.ids
        ids: dict[str, str] = {}
        for (copy, _), (original, _) in zip(copied, originals, strict=False):
            ids[copy] = first_ids.get(original, original)
            copied_parts, original_parts = self._part_ids(copy), self._part_ids(original)
            if len(copied_parts) == len(original_parts):
                ids |= {
                    copied_part: first_ids.get(original_part, original_part)
                    for copied_part, original_part in zip(copied_parts, original_parts, strict=True)
                }
        return Fork(parent, ids, ids[copied[-1][0]])

    def _beginning_alike(self) -> dict[str, list[str]]:
        """Every session with those before it whose first messages were made at the same moment."""
        if not self._database.has("message", "id", "session_id", "time_created"):
            return {}
        has_times = self._database.has("session", "id", "time_created")
        created_sql = "(SELECT s.time_created FROM session s WHERE s.id = m.session_id)" if has_times else "NULL"
        first_messages = self._database.walk(
            f"SELECT m.session_id, min(m.time_created), {created_sql} AS made FROM message m GROUP BY m.session_id"
            " ORDER BY made, m.session_id"
        )
        alike: dict[Any, list[str]] = {}
        earlier: dict[str, list[str]] = {}
        for session, begun, _ in first_messages:
            before = alike.setdefault(begun, [])
            if begun is not None and before:
                earlier[session] = list(before)
            before.append(session)
        return earlier

    def _messages(self, session: str) -> list[tuple[str, Any]]:
        sql = "SELECT id, time_created FROM message WHERE session_id = ? ORDER BY time_created, id"
        return [(str(id), created) for id, created in self._database.walk(sql, (session,))]

    def _part_ids(self, message: str) -> list[str]:
        if not self._database.has("part", "id", "message_id"):
            return []
        sql = "SELECT id FROM part WHERE message_id = ? ORDER BY id"
        return [str(id) for (id,) in self._database.rows(sql, (message,))]


def _shared(own_messages: list[tuple[str, Any]], earlier_messages: list[tuple[str, Any]]) -> int:
    """With how many messages of the same moments both begin."""
    pairs = zip(own_messages, earlier_messages, strict=False)
    return next(
        (k for k, (our, their) in enumerate(pairs) if our[1] != their[1]), min(len(own_messages), len(earlier_messages))
    )


def as_in_first_session(draft: RowDraft, rows: list[tuple[str | None, bytes]], fork: Fork) -> RowDraft:
    """A message with the ids that it and its parts had first; `rows` are their own ids and their JSON."""
    (message, data), *part_rows = rows
    if message not in fork.ids:
        return draft
    spans = [_renamed(span, *row, fork) for span, row in zip(draft.parts, part_rows, strict=True)]
    return RowDraft(_renamed(draft.message, message, data, fork), spans, draft.number)


def _renamed(span: Span, id: str | None, data: bytes, fork: Fork) -> Span:
    try:
        value = json_object(data)
    except ValueError:
        return span
    value |= {name: fork.ids.get(value[name], value[name]) for name in NAMED if isinstance(value.get(name), str)}
    return Span(0, 0, fork.ids.get(id or "", id), canonical(value))


# --- `opencode.db`, since version 1.2: the tables session, message and part, their JSON without the ids; since version
# 2 session_v2 and session_message, one row for a message with all it holds.

FORKED = ("session_v2", "session")
DEEPEST = 100
"""Forks of forks that are followed."""


class EventRow(Struct, frozen=True):
    id: str | None
    kind: str
    place: Any
    created: Any
    data: bytes


class RowIdentity(Struct, frozen=True):
    """What tells a copied row from others, and the id that it had first."""

    id: str | None
    kind: str
    created: Any


class NewerMessages:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._columns = [name for name in ("seq", "time_created") if database.has("session_message", name)]
        self._identities: dict[str, dict[Any, RowIdentity]] = {}

    def draft(self, session: Session, older: list[RowDraft], verbatim: Verbatim, is_migrated: bool) -> list[RowDraft]:
        """Those of a session that come after what the first version's tables told; none, if that had not ended: some of
        its releases wrote both."""
        rows = self._rows(session.info["id"])
        repeated = len(rows) if older and not is_migrated else _repeated(rows, {draft.message.id for draft in older})
        newer = Version2()
        drafted: list[tuple[RowDraft, MessageWithParts | None]] = []
        for number, row in enumerate(rows):
            before = verbatim.count
            span = verbatim.add("session_message", row.id, row.data, type=row.kind, seq=row.place)
            if number < repeated:
                session.count_kept(f"session_message.{row.kind}", is_unknown=False)
                continue
            value = _object(row.data)
            reshaped = None if value is None else newer.add_row(row.kind, row.id, value)
            if reshaped is not None:
                parts = [Span(0, 0, None, canonical(part)) for part in reshaped.parts]
                verbatim.count += len(parts)
                drafted.append((RowDraft(span, parts, before), reshaped))
            elif value is None:
                drafted.append((RowDraft(span, [], before), None))
            else:
                session.count(row.kind, row.kind in SETTINGS, is_known(row.kind))
        for draft, reshaped in drafted:
            if reshaped is not None:  # only now: a row may still be told how its turn ended
                draft.message = Span(0, 0, text(reshaped.info.get("id")), canonical(reshaped.info))
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

    def _rows(self, session: str) -> list[EventRow]:
        """In their order, each by the id that it had first."""
        if not self._database.has("session_message", "id", "session_id", "type", "data"):
            return []
        place, created = (name if name in self._columns else "NULL" for name in ("seq", "time_created"))
        order = ", ".join([*self._columns, "id"])
        sql = f"SELECT id, type, {place}, {created}, CAST(data AS BLOB) FROM session_message WHERE session_id = ?"
        stored_rows = self._database.walk(f"{sql} ORDER BY {order}", (session,))
        rows = [
            EventRow(_word(id), str(kind), place, created, data or b"")
            for id, kind, place, created, data in stored_rows
        ]
        first = self._copied(session, DEEPEST)
        return [
            replace(row, id=_first_id(first, row.place, RowIdentity(row.id, row.kind, row.created)).id) for row in rows
        ]

    def _copied(self, session: str, deepest: int) -> dict[Any, RowIdentity]:
        """What a fork may have copied: the rows of the session it comes from, by their places."""
        parent = self._forked_from(session)
        if parent is None or not deepest or len(self._columns) < 2:
            return {}
        if parent not in self._identities:
            self._identities[parent] = {}  # while it is found out, for forks that lead back to themselves
            sql = "SELECT seq, id, type, time_created FROM session_message WHERE session_id = ?"
            first = self._copied(parent, deepest - 1)
            self._identities[parent] = {
                place: _first_id(first, place, RowIdentity(_word(id), str(kind), created))
                for place, id, kind, created in self._database.walk(sql, (parent,))
            }
        return self._identities[parent]

    def _forked_from(self, session: str) -> str | None:
        for table in FORKED:
            if self._database.has(table, "id", "fork_session_id"):
                rows = self._database.rows(f"SELECT fork_session_id FROM {table} WHERE id = ?", (session,))
                if rows and (parent := text(rows[0][0])) is not None:
                    return parent
        return None


def _first_id(first: dict[Any, RowIdentity], place: Any, identity: RowIdentity) -> RowIdentity:
    copied = first.get(place)
    is_copy = copied is not None and (copied.kind, copied.created) == (identity.kind, identity.created)
    return copied if copied is not None and is_copy else identity


def _repeated(rows: list[EventRow], older: set[str | None]) -> int:
    """How many of the rows tell again what the first version's tables have told: up to the last one that both have; all
    of them where they share none."""
    if not older:
        return 0
    shared_numbers = [number for number, row in enumerate(rows, 1) if row.id in older]
    return shared_numbers[-1] if shared_numbers else len(rows)


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
    with open_database(path, report) as database:
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
        rows = {table: row for table in SESSIONS if (row := self._first_row(table, "id", id))}
        fields: dict[str, Any] = {}
        for table, row in rows.items():
            verbatim.add(table, id, orjson.dumps(row, default=str))
            fields |= _info(row)
        session = Session(info=fields | {"id": id}, has_record=bool(rows))
        if len(rows) > 1:
            session.count_mapped("session_v2")
        fork = self._copies.find_fork(id)
        if fork is not None:
            _add_fork(session.info, fork)
        drafted = self._messages(id, verbatim, fork=fork)
        if not drafted and (copied := self._newer.migrated(id)) is not None:
            drafted = self._messages(copied[0], verbatim, until=copied[1])
        drafted += self._newer.draft(session, drafted, verbatim, is_migrated="session_v2" in rows)
        session.todos = self._todos(id, verbatim)
        self._count_orphan_parts(id, session, verbatim)
        session.raw, session.messages = verbatim.finish(drafted)
        return session

    def _first_row(self, table: str, column: str, value: str) -> dict[str, Any]:
        if not self._has(table, column):
            return {}
        rows = self._rows(f"SELECT * FROM {table} WHERE {column} = ?", (value,))
        return dict(zip(self._columns[table], rows[0], strict=False)) if rows else {}

    def _messages(
        self, session: str, verbatim: Verbatim, until: str | None = None, fork: Fork | None = None
    ) -> list[RowDraft]:
        if not self._has("message", "id", "session_id", "data"):
            return []
        order = "time_created, id" if self._has("message", "time_created") else "id"
        created = "time_created" if self._has("message", "time_created") else "NULL"
        sql = f"SELECT id, {created}, CAST(data AS BLOB) FROM message WHERE session_id = ? ORDER BY {order}"
        drafted = []
        for id, time_created, data in self._walk(sql, (session,)):
            number = verbatim.count
            message = verbatim.add("message", _id(id), data or b"", time_created=time_created)
            rows = [(_id(part_id), text or b"") for part_id, text in self._part_rows(id)]
            draft = RowDraft(message, [verbatim.add("part", *row) for row in rows], number)
            drafted.append(draft if fork is None else as_in_first_session(draft, [(_id(id), data or b""), *rows], fork))
            if until is not None and id == until:
                break
        return drafted

    def _part_rows(self, message: Any) -> list[Any]:
        if not self._has("part", "id", "message_id", "data"):
            return []
        return self._rows("SELECT id, CAST(data AS BLOB) FROM part WHERE message_id = ? ORDER BY id", (message,))

    def _todos(self, session: str, verbatim: Verbatim) -> list[Any]:
        names = ("content", "status", "priority")
        if not self._has("todo", "session_id", "position", *names):
            return []
        sql = f"SELECT {', '.join(names)} FROM todo WHERE session_id = ? ORDER BY position"
        todos = [dict(zip(names, row, strict=True)) for row in self._rows(sql, (session,))]
        for todo in todos:
            verbatim.add("todo", None, orjson.dumps(todo, default=str))
        return todos

    def _count_orphan_parts(self, session_id: str, session: Session, verbatim: Verbatim) -> None:
        """Parts without their message."""
        if self._has("part", "id", "message_id", "session_id", "data") and self._has("message", "id"):
            sql = (
                "SELECT id, CAST(data AS BLOB), message_id FROM part WHERE session_id = ?"
                " AND message_id NOT IN (SELECT id FROM message) ORDER BY id"
            )
            for id, data, message in self._walk(sql, (session_id,)):
                verbatim.add("part", _id(id), data or b"", message_id=message)
                session.count_kept("part.without message", is_unknown=False)


def _add_fork(info: dict[str, Any], fork: Fork) -> None:
    info.setdefault("fork", {"session": fork.session, "message": fork.last})
    revert = info.get("revert")
    if isinstance(revert, dict) and isinstance(message := revert.get("messageID"), str):
        info["revert"] = revert | {"messageID": fork.ids.get(message, message)}


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


# --- What `opencode export` writes: one JSON document, `{info, messages: [{info, parts}]}`; version 2 gives its
# messages as they are, `{info, messages: [{id, type, …}]}`.

ANNOUNCED = re.compile(rb"\s*Exporting session: [^{]{0,200}(?=\{)")
KEY = re.compile(r'"(info|messages)"\s*:\s*')
KNOWN = frozenset({"info", "messages", "todos"})


class _Message(Struct):
    info: Raw
    parts: list[Raw] = field(default_factory=list)


class _Kind(Struct):
    type: Any = None
    info: Raw | UnsetType = UNSET


_kinds = msgspec.json.Decoder(list[_Kind])
_document = msgspec.json.Decoder(dict[str, Raw])
_messages = msgspec.json.Decoder(list[_Message])
_list = msgspec.json.Decoder(list[Raw])


def read_export(data: bytes, report: Report) -> Session:
    """Raises LimitExceeded for one that would take too much memory."""
    check_json(data, SOURCE_LIMITS)
    try:
        document = _sections(data.removeprefix(BOM)[announced(data.removeprefix(BOM)) :])
        info = json_value(document["info"]) if "info" in document else None
        session = Session(info=mapping(info), has_record=isinstance(info, dict))
        _take_messages(session, document.get("messages", Raw(b"[]")), data, report)
        session.todos = sequence(json_value(document["todos"])) if "todos" in document else []
    except (ValueError, RecursionError) as error:
        return _recovered(data, report, str(error))
    if info is not None and not session.has_record:
        _report_damaged(report, f"the session's info is a JSON {type(info).__name__}")
    for name in document.keys() - KNOWN:
        session.count_kept(f"export.{name}", is_unknown=True)
    return session


def announced(data: bytes) -> int:
    """How much stands before the document: releases before 1.2 said there what they exported."""
    match = ANNOUNCED.match(data)
    return match.end() if match else 0


def _take_messages(session: Session, raw: Raw, data: bytes, report: Report) -> None:
    newer = _newer_messages(raw)
    if newer is None:
        session.messages = _rows(raw, report)
        _locate_messages(data, session.messages)
        return
    folder = mapping(session.info.get("location")).get("directory")
    session.info.setdefault("directory", folder)
    _reshape(session, newer, data)


def _newer_messages(raw: Raw) -> list[Raw] | list[bytes] | None:
    """The messages of version 2: none of them has an info."""
    try:
        kinds = _kinds.decode(raw)
    except (ValueError, RecursionError):
        return None
    is_newer = any(isinstance(kind.type, str) for kind in kinds) and all(kind.info is UNSET for kind in kinds)
    return _raw_messages(raw) if is_newer else None


def _reshape(session: Session, raws: list[Raw] | list[bytes], data: bytes) -> None:
    converter, offset = Version2(), 0
    drafted: list[tuple[MessageRow, MessageWithParts]] = []
    for raw in raws:
        offset = max(data.find(raw, offset), offset)
        value = mapping(json_value(raw))
        kind = text(value.get("type")) or "none"
        reshaped = converter.add_row(kind, text(value.get("id")), value)
        if reshaped is None:
            session.count(kind, kind in SETTINGS, is_known(kind))
            continue
        parts = [Row(canonical(part)) for part in reshaped.parts]
        drafted.append((MessageRow(Row(b""), parts, offset, offset + len(raw)), reshaped))
        offset += len(raw)
    for message, reshaped in drafted:
        message.row = Row(canonical(reshaped.info))
    session.messages = [message for message, _ in drafted]
    if session.messages:
        session.messages[-1].end = len(data)


def _sections(data: bytes) -> dict[str, Raw]:
    """The document's values, unread where the quick reader takes it: it refuses lone surrogates, for one."""
    try:
        return _document.decode(data)
    except (ValueError, RecursionError):
        return {name: Raw(canonical(value)) for name, value in json_object(data).items()}


def _report_damaged(report: Report, problem: str) -> None:
    report.found += 1
    report.damaged += 1
    report.problem(None, problem)


def _rows(raw: Raw, report: Report) -> list[MessageRow]:
    try:
        return [
            MessageRow(Row(message.info), [Row(part) for part in message.parts]) for message in _messages.decode(raw)
        ]
    except (ValueError, RecursionError):  # one of them has another shape than it should
        rows = [_row(raw_message, report) for raw_message in _raw_messages(raw)]
        return [row for row in rows if row is not None]


def _raw_messages(raw: Raw) -> list[Raw] | list[bytes]:
    try:
        return _list.decode(raw)
    except (ValueError, RecursionError):
        messages = json_value(raw)
        if not isinstance(messages, list):
            raise ValueError(f"its messages are a JSON {type(messages).__name__}") from None
        return [canonical(message) for message in messages]


def _row(raw: Raw | bytes, report: Report) -> MessageRow | None:
    """What of an odd message is a message and its parts."""
    try:
        value = mapping(json_value(raw))
    except ValueError:
        value = {}
    if "info" not in value:
        _report_damaged(report, "a message has no info")
        return None
    parts = value.get("parts")
    rows = parts if isinstance(parts, list) else [] if parts is None else [parts]
    return MessageRow(Row(canonical(value["info"])), [Row(canonical(part)) for part in rows])


def _locate_messages(data: bytes, messages: list[MessageRow]) -> None:
    """Where each begins; it ends where the next one does."""
    offset = 0
    for message in messages:
        if isinstance(message.row.data, Raw):  # else it was put right, and its bytes are not these
            offset = max(data.find(message.row.data, offset), offset)
        message.offset = max(data.rfind(b"{", 0, offset), 0)
    for message, after in pairwise(messages):
        message.end = after.offset
    if messages:
        messages[-1].end = len(data)


def _recovered(data: bytes, report: Report, reason: str) -> Session:
    """As much as can be read of a document that is no JSON as a whole."""
    words = data.decode("utf-8", "surrogateescape")
    session = Session(info={}, has_record=False)
    reader = json.JSONDecoder(parse_constant=str, strict=False)
    position = 0
    for name in ("info", "messages"):
        match = next((match for match in KEY.finditer(words, position) if match[1] == name), None)
        if match is None:
            continue
        if name == "messages":
            _recover_messages(session, words, match.end(), reader, report)
            break
        try:
            info, position = reader.raw_decode(words, match.end())
        except (ValueError, RecursionError):
            continue
        session.info, session.has_record = mapping(info), isinstance(info, dict)
    _report_damaged(report, f"the document is damaged: {reason}"[:300])
    return session


def _recover_messages(session: Session, words: str, position: int, reader: json.JSONDecoder, report: Report) -> None:
    offset = _size(words[:position])
    while position < len(words):
        while position < len(words) and words[position] in " \t\r\n,[":
            position, offset = position + 1, offset + 1
        try:
            value, end_position = reader.raw_decode(words, position)
        except (ValueError, RecursionError):
            return
        size = _size(words[position:end_position])
        if (row := _row(canonical(value), report)) is not None:
            row.offset, row.end = offset, offset + size
            session.messages.append(row)
        position, offset = end_position, offset + size


def _size(words: str) -> int:
    return len(words.encode("utf-8", "surrogateescape"))


# --- The folder of JSON files that opencode kept before version 1.2, and the older one under `project`.


class _File(Struct, frozen=True):
    """A message's file."""

    id: str
    data: bytes
    value: dict[str, Any]


class Layout(Struct, frozen=True):
    """Where the files of a session lie."""

    root: Path
    is_first_form: bool

    def message_folder(self, session: str) -> Path:
        return self.root / "message" / session

    def part_folder(self, session: str, message: str) -> Path:
        return self.root / "part" / session / message if self.is_first_form else self.root / "part" / message

    def todo_file(self, session: str) -> Path:
        return self.root / "todo" / f"{session}.json"


def layout(path: Path) -> Layout:
    """The one around a session's file."""
    if path.parent.name == "info" and path.parent.parent.name == "session":
        return Layout(path.parent.parent, is_first_form=True)
    return Layout(path.parent.parent.parent, is_first_form=False)


def read_folder(source: Source, report: Report) -> Session | None:
    path, data = source.path, read_whole(source)
    try:
        info = json_object(data)
    except ValueError as error:
        report.found += 1
        report.damaged += 1
        report.problem(1, f"the session is not readable: {error}"[:300])
        return None
    verbatim = Verbatim()
    verbatim.add("session", path.stem, data)
    return _read_messages(Session(info=info), layout(path), path.stem, verbatim, report)


def read_orphans(path: Path, report: Report) -> Session:
    """Messages whose session is gone; `path` is the first of them."""
    session_layout = Layout(path.parents[2], is_first_form=path.parents[2].name == "session")
    session = _read_messages(Session(info={}, has_record=False), session_layout, path.parent.name, Verbatim(), report)
    ids = (text(_object_in_folder(bytes(message.row.data)).get("sessionID")) for message in session.messages[:1])
    session.info["id"] = next(ids, None) or path.parent.name
    return session


def is_first_orphan(path: Path) -> bool:
    """Is this the first message of a session whose own file is gone? It then brings in the others."""
    folder = path.parent
    sessions = folder.parent.parent / "session"
    name = f"{folder.name}.json"
    try:
        if (folder.parent.parent / "info" / name).exists() or any(
            (project_folder / name).exists() for project_folder in sessions.iterdir()
        ):
            return False
    except OSError:
        pass
    return _files(folder, folder.parent.parent)[:1] == [path]


def part_files_of(path: Path) -> list[Path]:
    """The messages and parts that a session's file, or the first of the messages that have lost it, stands for."""
    if path.parent.parent.name == "message":
        session_layout, id = Layout(path.parents[2], is_first_form=path.parents[2].name == "session"), path.parent.name
    elif path.parent.name == "info" or path.parent.parent.name == "session":
        session_layout, id = layout(path), path.stem
    else:
        return []
    messages = _files(session_layout.message_folder(id), session_layout.root)
    parts = [
        part_file
        for message in messages
        for part_file in _files(session_layout.part_folder(id, message.stem), session_layout.root)
    ]
    return [file for file in (*messages, *parts, session_layout.todo_file(id)) if file != path and file.is_file()]


def session_file_of(path: Path, session: str | None) -> Path | None:
    """The file that stands for a message, a part or what else is told of a session; `session`, if it names that."""
    for root in path.parents[:4]:
        folder = root / "session" if (root / "session").is_dir() else root
        id = session or (path.parent.name if path.parent.parent.name == "message" else path.stem)
        candidates = [project_folder / f"{id}.json" for project_folder in _folders(folder)]
        orphans = _files(root / "message" / id, root)
        if session_file := next(
            (candidate for candidate in candidates if candidate.is_file()), orphans[0] if orphans else None
        ):
            return session_file
    return None


def _folders(folder: Path) -> list[Path]:
    """Those in which session files lie: one for each project, or `info`."""
    if folder.name != "session":
        return []
    try:
        return sorted(project_folder for project_folder in folder.iterdir() if project_folder.is_dir())
    except OSError:
        return []


def _read_messages(session: Session, session_layout: Layout, id: str, verbatim: Verbatim, report: Report) -> Session:
    drafted = [
        _draft(file, session_layout, id, verbatim, report) for file in _messages_in_folder(session_layout, id, report)
    ]
    session.todos = _todos(session_layout.todo_file(id), session_layout.root, verbatim)
    session.raw, session.messages = verbatim.finish(drafted)
    return session


def _files(folder: Path, root: Path) -> list[Path]:
    """In order of their ids. Those being written have names that begin with a dot; links may lead anywhere, and so may
    those that are on the way to the folder."""
    names = names_beneath(folder, root)
    return sorted(folder / name for name in names if name.endswith(".json") and not name.startswith("."))


def _messages_in_folder(session_layout: Layout, session: str, report: Report) -> list[_File]:
    """As opencode orders them: by when they were made, then by id. One that is reverted meanwhile vanishes."""
    folder = session_layout.message_folder(session)
    read_files = (
        (file.stem, read_beside(file, session_layout.root, report)) for file in _files(folder, session_layout.root)
    )
    files = [_File(id, data, _object_in_folder(data)) for id, data in read_files if data is not None]
    return sorted(
        files, key=lambda file: (millis(mapping(_info_in_folder(file).get("time")).get("created")) or 0, file.id)
    )


def _object_in_folder(data: bytes) -> dict[str, Any]:
    try:
        return mapping(json_value(data))
    except ValueError:
        return {}


def _info_in_folder(file: _File) -> dict[str, Any]:
    return from_first_form(file.value)[0] if has_first_form(file.value) else file.value


def _draft(file: _File, session_layout: Layout, session: str, verbatim: Verbatim, report: Report) -> RowDraft:
    number = verbatim.count
    message, spans = verbatim.add("message", file.id, file.data), []
    if has_first_form(file.value):
        info, parts = from_first_form(file.value)
        message = Span(0, 0, file.id, canonical(info))
        spans = [Span(0, 0, None, canonical(part)) for part in parts]
        verbatim.count += len(parts)
    for part_file in _files(session_layout.part_folder(session, file.id), session_layout.root):
        if (part := read_beside(part_file, session_layout.root, report)) is not None:
            spans.append(verbatim.add("part", part_file.stem, part))
    return RowDraft(message, spans, number)


def _todos(file: Path, root: Path, verbatim: Verbatim) -> list[Any]:
    try:
        data = read_beneath(file, root)
        todos = sequence(json_value(data))
    except (OSError, ValueError):
        return []
    verbatim.add("todo", None, data)
    return todos
