"""`data.sqlite3` of the first engine: a conversation for each folder, later several. Of its tables only these are read;
others hold the person's tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.exchange.importers.databases import UNREADABLE, Database, opened
from weft.exchange.importers.kiro import conversation
from weft.exchange.importers.kiro.turns import Turns
from weft.exchange.importers.lines import Lines
from weft.exchange.importers.loading import loaded_object
from weft.exchange.importers.port import Report
from weft.exchange.importers.transcript import Transcript
from weft.exchange.importers.values import millis, text


class Row(Struct, frozen=True):
    table: str
    folder: str
    id: str | None
    data: bytes
    created: int | None = None
    updated: int | None = None


def read_database(path: Path, report: Report) -> Iterator[Transcript]:
    with opened(path, report) as database:
        if database is None:
            return
        try:
            rows = list(_rows(database))
        except UNREADABLE as error:
            report.problem(None, f"the database is not readable: {error}"[:300])
            return
        for row in rows:
            if (made := _transcript(row, report)) is not None:
                yield made


def _rows(database: Database) -> Iterator[Row]:
    if database.has("conversations_v2", "key", "conversation_id", "value"):
        names = ("created_at", "updated_at")
        times = ", ".join(name if database.has("conversations_v2", name) else "NULL" for name in names)
        sql = f"SELECT key, conversation_id, CAST(value AS BLOB), {times} FROM conversations_v2 ORDER BY 4, 2"
        for key, id, data, created, updated in database.walk(sql):
            yield Row("conversations_v2", str(key), text(id), data or b"", _time(created), _time(updated))
    if database.has("conversations", "key", "value"):
        for key, data in database.walk("SELECT key, CAST(value AS BLOB) FROM conversations ORDER BY key"):
            yield Row("conversations", str(key), None, data or b"")


def _time(when: Any) -> int | None:
    """Seconds or milliseconds, as the version had it."""
    found = millis(when)
    return found * 1000 if found is not None and found < 10**11 else found


def _transcript(row: Row, report: Report) -> Transcript | None:
    report.found += 1
    try:
        value = loaded_object(row.data)
    except ValueError as error:
        report.damaged += 1
        report.problem(None, f"the conversation of {row.folder} is not readable: {error}"[:300])
        return None
    report.mapped["conversation"] += 1
    lines = Lines()
    lines.add(f"{row.table}:{row.folder}", row.data, id=row.id, created=row.created)
    id = text(value.get("conversation_id")) or row.id or row.folder
    session = conversation.session_of(value, id, row.folder, row.created)
    return Transcript(
        session=session,
        turns=Turns(session, id, row.updated or 0).walk(conversation.steps(value, report)),
        raw=lines.finish(),
    )
