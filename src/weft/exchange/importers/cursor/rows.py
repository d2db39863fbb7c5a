"""The rows of `state.vscdb`: two tables of keys and values.

`cursorDiskKV` has the sessions of newer versions, `<what>:<session>[:<id>]`; `ItemTable` is VS Code's own, of which
only the few keys here are read, never accounts or tokens (`cursorAuth/…`). The newest versions list headers in a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.cursor.values import decoded
from weft.exchange.importers.databases import UNREADABLE, Database
from weft.exchange.importers.values import mapping, sequence, text

CHATS = "workbench.panel.aichat.view.aichat.chatdata"
COMPOSERS = "composer.composerData"
HEADERS = "composer.composerHeaders"
ASIDE = ("aiService.prompts", "aiService.generations")
"""What was typed in a workspace, without the sessions that it was typed in."""
ITEMS = (CHATS, COMPOSERS, HEADERS, *ASIDE)
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


class Found(Struct):
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

    def sessions(self) -> dict[str, Found]:
        """Keys by session. Those of no session (caches, contents by hash) are not looked at."""
        found: dict[str, Found] = {}
        others: list[tuple[str, str]] = []
        keys = self._database.walk("SELECT key FROM cursorDiskKV ORDER BY key") if self.has_disk else ()
        for (key,) in keys:
            kind, _, rest = key.partition(":") if isinstance(key, str) else ("", "", "")
            session = rest.partition(":")[0]
            if not session:
                continue
            if kind == COMPOSER:
                found.setdefault(session, Found()).composer = key
            elif kind == BUBBLE:
                found.setdefault(session, Found()).bubbles.append(key)
            elif kind == REQUEST:
                found.setdefault(session, Found()).requests.append(key)
            else:
                others.append((session, key))
        for session, key in others:
            if session in found:
                found[session].others.append(key)
        return found

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
    told = [mapping(each) for found in lists for each in sequence(found)]
    return {id: each for each in told if (id := text(each.get("composerId"))) is not None}


def _object(data: bytes | None) -> dict[str, Any]:
    try:
        return mapping(decoded(data))
    except ValueError:
        return {}
