"""Sessions by their names: those whose title or project holds what is looked for, each as a hit."""

from __future__ import annotations

from collections.abc import Iterable

from weft.ledger.model import UNDATED
from weft.ledger.read.access import access_of
from weft.ledger.read.listing import HERE, of_project
from weft.ledger.read.projects import Projects, session_folders
from weft.ledger.search.entries import EntryPlace
from weft.ledger.search.filters import Filters
from weft.ledger.search.hits import Hit, TextMatch, look_through, snippet
from weft.ledger.search.query import Query
from weft.ledger.views.rows import SESSION, SessionRow
from weft.ledger.views.values import text_of
from weft.store.port import ReadTxn

OF_ENTRIES = ("session", "role", "tool", "path", "model")
"""Filters that speak of messages and calls: no session is found by its name where one is given."""
ROLE = "session"


def named_sessions(txn: ReadTxn, query: Query, filters: Filters, projects: Projects) -> list[Hit]:
    """Sessions with a turn whose title and project together hold the whole query: by title first, the latest first."""
    if not query.phrases or any(getattr(filters, name) is not None for name in OF_ENTRIES):
        return []
    rows = [row for row in _latest(txn) if row.head is not None and _fits(row, filters)]
    if filters.project is not None:
        rows = of_project(txn, rows, filters.project, projects)
    txn.facts.hold(row.title for row in rows if row.title is not None)
    folders = zip(rows, session_folders(txn, rows), strict=True)
    matches = [
        (row, match) for row, folder in folders if (match := _match(txn, row, query, projects.name(folder))) is not None
    ]
    matches.sort(key=lambda pair: pair[1].place is not EntryPlace.TITLE)
    return [_to_hit(txn, row, match) for row, match in matches]


def _latest(txn: ReadTxn) -> Iterable[SessionRow]:
    rows = (SessionRow(*row) for row in txn.sql.all(f"{SESSION.select} ORDER BY updated_at DESC, n DESC"))
    return filter(access_of(txn).may_read, rows)


def _fits(row: SessionRow, filters: Filters) -> bool:
    """What has no time fits none."""
    return (
        (filters.origin is None or (row.origin or HERE).casefold() == filters.origin.casefold())
        and ((filters.since is None and filters.until is None) or row.updated_at != UNDATED)
        and (filters.since is None or row.updated_at >= filters.since)
        and (filters.until is None or row.updated_at <= filters.until)
    )


def _match(txn: ReadTxn, row: SessionRow, query: Query, project: str) -> TextMatch | None:
    title = text_of(txn, row.title) or ""
    return look_through(query, ((EntryPlace.TITLE, title), (EntryPlace.PROJECT, project)))


def _to_hit(txn: ReadTxn, row: SessionRow, match: TextMatch) -> Hit:
    text, marks = snippet(match)
    return Hit(
        message_id=None,
        tool_call_id=None,
        tool=None,
        turn_id=row.head or "",
        role=ROLE,
        created_at=row.updated_at,
        time_known=row.updated_at != UNDATED,
        session=row.label,
        session_title=text_of(txn, row.title),
        session_status=row.status,
        heads=(row.label,) if row.status == "active" else (),
        model=None,
        origin=row.origin or HERE,
        place=match.place.value,
        snippet=text,
        marks=marks,
    )
