"""The rows of `state.vscdb`: two tables of keys and values.

`cursorDiskKV` has the sessions of newer versions, `<what>:<session>[:<id>]`; `ItemTable` is VS Code's own, of which
only the few keys here are read, never accounts or tokens (`cursorAuth/…`). The newest versions list headers in a table.

A session is made of rows: its headers alone tell the order of its bubbles, and which of them stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.cursor.bubbles import Bubble, begun_at, role_of
from weft.exchange.importers.cursor.encodings import decoded
from weft.exchange.importers.cursor.messages import is_empty, is_prompt
from weft.exchange.importers.databases import UNREADABLE, Database, RowLines
from weft.exchange.importers.port import Report
from weft.exchange.importers.records.values import mapping, sequence, text
from weft.exchange.importers.sidecars import read_beside
from weft.kernel.errors import quoted

CHATS = "workbench.panel.aichat.view.aichat.chatdata"
COMPOSERS = "composer.composerData"
HEADERS = "composer.composerHeaders"
IGNORED = ("aiService.prompts", "aiService.generations")
"""What was typed in a workspace, without the sessions that it was typed in."""
ITEMS = (CHATS, COMPOSERS, HEADERS, *IGNORED)
COMPOSER, BUBBLE, REQUEST = "composerData", "bubbleId", "messageRequestContext"
KNOWN = frozenset({"checkpointId", "codeBlockDiff", "composerVirtualRowHeights", "codeBlockPartialInlineDiffFates"})
"""Of a session, and told by the verbatim copy alone."""


class Row(Struct, frozen=True):
    key: str
    data: bytes | None
    """None: what it held was deleted."""
    place: int = 0
    """Where it lies in its table: rows that were written later lie further on."""
    error: str | None = None
    """Why it cannot be read, where the database is damaged."""


class SessionRows(Struct):
    """The keys of one session."""

    composer: str | None = None
    bubbles: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


class Rows:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.has_disk = database.has("cursorDiskKV", "key", "value")
        self.has_items = database.has("ItemTable", "key", "value")

    def items(self) -> Iterator[tuple[str, bytes]]:
        if not self.has_items:
            return
        for key in ITEMS:
            sql = "SELECT CAST(value AS BLOB) FROM ItemTable WHERE key = ? AND value IS NOT NULL"
            for (data,) in self._database.rows(sql, (key,)):
                yield key, data

    def sessions(self) -> dict[str, SessionRows]:
        """Keys by session. Those of no session (caches, contents by hash) are not looked at."""
        rows: dict[str, SessionRows] = {}
        others: list[tuple[str, str]] = []
        keys = self._database.walk("SELECT key FROM cursorDiskKV ORDER BY key") if self.has_disk else ()
        for (key,) in keys:
            kind, _, rest = key.partition(":") if isinstance(key, str) else ("", "", "")
            session = rest.partition(":")[0]
            if not session:
                continue
            if kind == COMPOSER:
                rows.setdefault(session, SessionRows()).composer = key
            elif kind == BUBBLE:
                rows.setdefault(session, SessionRows()).bubbles.append(key)
            elif kind == REQUEST:
                rows.setdefault(session, SessionRows()).requests.append(key)
            else:
                others.append((session, key))
        for session, key in others:
            if session in rows:
                rows[session].others.append(key)
        return rows

    def row(self, key: str) -> Row:
        sql = "SELECT CAST(value AS BLOB), rowid FROM cursorDiskKV WHERE key = ?"
        try:
            found = self._database.rows(sql, (key,))
        except UNREADABLE as error:
            return Row(key, None, error=str(error))
        data, place = found[0] if found else (None, 0)
        return Row(key, data, place)

    def headers(self) -> dict[str, dict[str, Any]]:
        """What the newest versions' table of headers tells of each session."""
        if not self._database.has("composerHeaders", "composerId", "value"):
            return {}
        found = self._database.walk("SELECT composerId, CAST(value AS BLOB) FROM composerHeaders")
        return {id: _object(data) for id, data in found if isinstance(id, str)}


def listed(items: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the lists of sessions tell of each, by its id."""
    lists = (mapping(items.get(key)).get("allComposers") for key in (COMPOSERS, HEADERS))
    fields = [mapping(each) for found in lists for each in sequence(found)]
    return {id: each for each in fields if (id := text(each.get("composerId"))) is not None}


def _object(data: bytes | None) -> dict[str, Any]:
    try:
        return mapping(decoded(data))
    except ValueError:
        return {}


class RowReader(Struct):
    """Reads the records of one session: each is counted, and kept on a line."""

    report: Report
    lines: RowLines

    def inline(self, values: list[Any]) -> list[Bubble]:
        """Bubbles that lie in the session's own record."""
        bubbles: list[Bubble] = []
        for value in values:
            self.report.found += 1
            number = self.lines.add_value("bubble", value)
            if isinstance(value, dict):
                bubbles.append(
                    Bubble(text(value.get("bubbleId")) or text(value.get("id")), value, role_of(value), number=number)
                )
            else:
                self._damaged(f"a bubble is a JSON {type(value).__name__}")
        return bubbles

    def row(self, row: Row, kind: str) -> dict[str, Any] | None:
        """The object in a row. One that was deleted left its key behind."""
        self.report.found += 1
        self.lines.add(row.key, row.data, place=row.place)
        if row.error is not None:
            self._damaged(f"{row.key} is not readable: {row.error}")
            return None
        if row.data is None:
            self.report.kept[f"{kind}.deleted"] += 1
            return None
        try:
            value = decoded(row.data)
        except ValueError as error:
            self._damaged(f"{row.key} is not readable: {error}")
            return None
        if not isinstance(value, dict):
            self._damaged(f"{row.key} is a JSON {type(value).__name__}, not an object")
            return None
        return value

    def _damaged(self, what: str) -> None:
        self.report.damaged += 1
        self.report.problem(None, what[:300])

    def keep(self, kind: str, is_unknown: bool = False) -> None:
        self.report.kept[kind] += 1
        if is_unknown:
            self.report.unknown[kind] += 1

    def messages(self, bubbles: list[Bubble]) -> list[Bubble]:
        """Those that are messages."""
        messages = []
        for bubble in bubbles:
            if bubble.role is None:
                self.keep(f"bubble.type {quoted(bubble.value.get('type'), 20)}", is_unknown=True)
            elif bubble.role == "user" and is_empty(bubble):
                self.keep("bubble.draft")
            else:
                self.report.mapped[f"bubble.{bubble.role}"] += 1
                messages.append(bubble)
        return messages

    def transcript(self, path: Path) -> None:
        """The lesser copy of the same session, line by line."""
        root = next((folder for folder in path.parents if folder.name == ".cursor"), path.parent)
        data = read_beside(path, root, self.report)
        if data is None:
            return
        for line in data.splitlines():
            self.report.found += 1
            self.report.kept["transcript"] += 1
            self.lines.add(f"transcript:{path.name}", line)


class DiskSession:
    """One session's rows, read and put in order."""

    def __init__(self, keys: SessionRows, rows: Rows, reading: RowReader) -> None:
        self.reading, self._rows = reading, rows
        self.composer = self._read_composer(keys)
        bubbles, places = self._read_bubbles(keys)
        inline = reading.inline(sequence(self.composer.get("conversation")))
        named, self.missing = in_order(sequence(self.composer.get("fullConversationHeadersOnly")), bubbles)
        chosen = {bubble.number for bubble in named}
        self.standing = reading.messages([*inline, *named])
        rest = [bubble for bubble in bubbles if bubble.number not in chosen]
        self.left = reading.messages(by_age(rest, places))
        """Bubbles that no header names."""
        for key in keys.others:
            self._keep(key)

    def _read_composer(self, keys: SessionRows) -> dict[str, Any]:
        if keys.composer is None:
            return {}
        value = self.reading.row(self._rows.row(keys.composer), "composer")
        if value is not None:
            self.reading.report.mapped["composer"] += 1
        return value or {}

    def _read_bubbles(self, keys: SessionRows) -> tuple[list[Bubble], dict[int, int]]:
        """Also by where their rows lie, for those whose order nothing else tells."""
        requests = self._read_requests(keys)
        found, places = [], {}
        for key in keys.bubbles:
            row, number = self._rows.row(key), self.reading.lines.count
            value = self.reading.row(row, "bubble")
            if value is not None:
                name = key.split(":", 2)[2]
                found.append(Bubble(name or None, value, role_of(value), requests.get(name, {}), number))
                places[number] = row.place
        return found, places

    def _read_requests(self, keys: SessionRows) -> dict[str, dict[str, Any]]:
        """What was sent along with a prompt, by the id of its bubble."""
        fields = {}
        for key in keys.requests:
            value = self.reading.row(self._rows.row(key), "request")
            if value is not None:
                self.reading.report.mapped["request"] += 1
                fields[key.rpartition(":")[2]] = value
        return fields

    def _keep(self, key: str) -> None:
        row, kind = self._rows.row(key), key.partition(":")[0]
        self.reading.report.found += 1
        self.reading.keep(kind, is_unknown=kind not in KNOWN)
        self.reading.lines.add(row.key, row.data, place=row.place)

    def starts(self) -> set[int]:
        """Of the bubbles without headers, those that begin anew: since the one before, another prompt was sent."""
        sent = [when for bubble in self.standing if is_prompt(bubble) and (when := begun_at(bubble.value))]
        times = [(begun_at(bubble.value), bubble.number) for bubble in self.left]
        return {
            number
            for (before, _), (when, number) in pairwise(times)
            if before is not None and when is not None and any(before < each <= when for each in sent)
        }


def in_order(headers: list[Any], bubbles: list[Bubble]) -> tuple[list[Bubble], list[str]]:
    """Bubbles as headers name them, and names that no bubble has."""
    named = {bubble.id: bubble for bubble in bubbles}
    inside = {
        bubble.value.get("bubbleId"): bubble for bubble in bubbles if isinstance(bubble.value.get("bubbleId"), str)
    }
    found: dict[int, Bubble] = {}
    missing: list[str] = []
    for header in map(mapping, headers):
        name = header.get("bubbleId")
        bubble = named.get(name) or inside.get(name) if isinstance(name, str) else None
        if bubble is not None:
            bubble.role = bubble.role or (role_of({}, header) if "type" not in bubble.value else None)
            found.setdefault(bubble.number, bubble)
        elif isinstance(name, str) and name:
            missing.append(name)
    return list(found.values()), missing


def by_age(bubbles: list[Bubble], places: dict[int, int]) -> list[Bubble]:
    """By their times where all have one, else by where their rows lie."""
    times = {bubble.number: begun_at(bubble.value) for bubble in bubbles}
    if all(when is not None for when in times.values()):
        return sorted(bubbles, key=lambda bubble: (times[bubble.number] or 0, places[bubble.number]))
    return sorted(bubbles, key=lambda bubble: places[bubble.number])
