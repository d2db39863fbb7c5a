"""Sessions by the time of their last change, the latest first, as of a moment.

The view of changes has every session by that time, as far as it has caught up. Sessions that changed since then, or
since the moment, are read as they are and take their places among the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge

from weft.ledger.read.pages import NEWEST, Position
from weft.ledger.read.session_times import SessionChanges, SessionTimes
from weft.ledger.search.passages import VIEW
from weft.ledger.views.rows import SESSION, SessionRow
from weft.store.facts import refuse_standstill
from weft.store.port import ReadTxn
from weft.store.sql import rows_in

LATE_EVENTS = 4096
"""Where the view is further behind, all sessions are read instead."""
Placed = tuple[Position, SessionRow]


def latest_sessions(txn: ReadTxn, times: SessionTimes, before: Position, chunk: int | None) -> Iterator[Placed]:
    """Every session behind this position, in order, each with its own; `chunk` are read at a time, or all at once."""
    before = before or NEWEST
    mark = txn.facts.watermark(VIEW)
    if chunk is None or txn.facts.tip().n - mark > LATE_EVENTS:
        return iter(in_order((SessionRow(*row) for row in txn.sql.all(SESSION.select)), times, before))
    changed = SessionChanges(txn.facts, mark).ids | times.changes.ids
    rows = [SessionRow(*row) for row in rows_in(txn.sql, f"{SESSION.select} WHERE id IN", changed)]
    numbers = {row.n for row in rows}
    others = _by_change(txn, before, numbers, chunk)
    return merge(in_order(rows, times, before), others, key=_position, reverse=True)


def in_order(rows: Iterable[SessionRow], times: SessionTimes, before: Position) -> list[Placed]:
    """Those of these sessions that come behind a position, in order."""
    positions = ((times.position_of(row), row) for row in rows)
    placed = [(place, row) for place, row in positions if place is not None and place < (before or NEWEST)]
    return sorted(placed, key=_position, reverse=True)


def _position(placed: Placed) -> Position:
    return placed[0]


def _by_change(txn: ReadTxn, before: Position, without: set[int], chunk: int) -> Iterator[Placed]:
    """As the view of changes has them, without those that it has not caught up with."""
    query = "SELECT at, session FROM session_change WHERE (at, session) < (?, ?) ORDER BY at DESC, session DESC LIMIT ?"
    while places := [(at, n) for at, n in txn.sql.all(query, (*before, chunk))]:
        wanted = [n for _, n in places if n not in without]
        rows = {row[0]: SessionRow(*row) for row in rows_in(txn.sql, f"{SESSION.select} WHERE n IN", wanted)}
        yield from ((place, rows[place[1]]) for place in places if place[1] in rows)
        refuse_standstill("session", before, places[-1])
        before = places[-1]
