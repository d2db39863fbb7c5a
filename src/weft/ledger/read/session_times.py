"""When sessions had last changed at a moment: the order in which a list of them goes on from page to page.

A session's row has the time of its last change. Of one that changed since the moment, which is an arrival number, the
time before that is found again: that of its last movement until then, or of the last event of its own behind that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from hashlib import sha256

from weft.ledger.read.pages import Position
from weft.ledger.views.projector import when_of
from weft.ledger.views.recorded_events import fields_of, recorded, stream_of
from weft.ledger.views.rows import SessionRow
from weft.store.facts import FactReader
from weft.store.port import ReadTxn

_SIGHTING = b'"kind":"sighting"'
_STREAM = "session:"


class SessionChanges:
    """What the events beyond an arrival number say of sessions."""

    def __init__(self, facts: FactReader, arrival: int) -> None:
        self.ids: set[str] = set()
        """Sessions that they say something of."""
        self.before: dict[str, str | None] = {}
        """By the id of an event in the stream of a session: that of the event before it."""
        for n, line in facts.lines(arrival):
            stream = stream_of(n, line)
            if stream.startswith(_STREAM):
                self.ids.add(stream.removeprefix(_STREAM))
                self.before[sha256(line).hexdigest()] = fields_of(n, line).get("prev")
            elif _SIGHTING in line:
                self.ids.add(str(fields_of(n, line).get("session")))


class SessionTimes:
    """The times of the last change of sessions, as of an arrival number."""

    def __init__(self, txn: ReadTxn, arrival: int) -> None:
        self._txn, self.arrival = txn, arrival

    @cached_property
    def changes(self) -> SessionChanges:
        return SessionChanges(self._txn.facts, self.arrival)

    def position_of(self, row: SessionRow) -> Position | None:
        """A session's position in a list by time; none if it was made later."""
        if row.id not in self.changes.ids:
            return row.updated_at, row.n
        event_id: str | None = bytes(row.last_event).hex()
        while event_id in self.changes.before:
            event_id = self.changes.before[event_id]
        return None if event_id is None else (self._changed_at(row, event_id), row.n)

    def _changed_at(self, row: SessionRow, last: str) -> int:
        """When a session had changed, whose last event was this one."""
        if row.origin is not None:
            return self._imported_changed_at(row, last)
        query = "SELECT since, n FROM history WHERE session = ? AND n <= ? ORDER BY k DESC LIMIT 1"
        moved_at, moved = self._txn.sql.one(query, (row.n, self.arrival)) or (row.created_at, 0)
        return max([int(moved_at), *self._event_times(last, moved)])

    def _imported_changed_at(self, row: SessionRow, last: str) -> int:
        """Sources tell when the turns ended that the session moved to; the time of the import, which is that of the
        session's first event, does not count."""
        query = (
            "SELECT h.changed_at, t.synthesised FROM history h JOIN turn t ON t.id = h.turn"
            " WHERE h.session = ? AND h.n <= ? ORDER BY h.k"
        )
        moves = self._txn.sql.all(query, (row.n, self.arrival))
        times = list(self._event_times(last, 0))[:-1]
        return max([*times, *(at for at, is_arrival in moves if is_arrival == 0)], default=row.created_at)

    def _event_times(self, last: str | None, after: int) -> Iterator[int]:
        """The times of a session's events from this one back to an arrival number."""
        while last is not None:
            n = self._txn.facts.find_event(bytes.fromhex(last))
            if n is None or n <= after:
                return
            logged = self._txn.facts.log(n - 1, 1)[0]
            event = recorded(n, logged.lines()[n - logged.first]).event
            yield when_of(event, logged.at)
            last = event.prev
