"""What a broker needs of a ledger to have triggers fire; no public verb gives it away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.ledger.api.base import LedgerBase
from weft.ledger.triggers.causes import EventPlace, place_of
from weft.ledger.triggers.firing import fire, move_cursor, record_error, record_missed
from weft.ledger.triggers.model import (
    CursorMove,
    Firing,
    FiringOutcome,
    MissedTimes,
    NewFiring,
    TriggerCursor,
    TriggerStanding,
)
from weft.ledger.triggers.reading import (
    events_after,
    last_changes,
    listed_firings,
    listed_gaps,
    load_cursors,
    trigger_standing,
)
from weft.ledger.views.program_rows import load_program


class TriggerLog:
    """What triggers did and have looked at, and their firing. It reads and writes everything: no public verb gives it
    away."""

    def __init__(self, ledger: LedgerBase) -> None:
        self._store, self._writer = ledger._store, ledger._writer

    def standing(self, trigger: str) -> TriggerStanding | None:
        """A trigger, by its id, as this ledger counts it; None where nobody here configured it or took it over."""
        with self._store.read() as txn:
            row = load_program(txn.sql, trigger)
            return None if row is None else trigger_standing(txn, row)

    def last_changes(self) -> tuple[tuple[str, int], ...]:
        """The active triggers, each with the number of the last event about it: what is read of them is good while
        this stays the same."""
        with self._store.read() as txn:
            return last_changes(txn.sql)

    def cursors(self) -> dict[str, TriggerCursor]:
        """How far each trigger has looked, by its id."""
        with self._store.read() as txn:
            return load_cursors(txn.sql)

    def fire(self, new: NewFiring) -> FiringOutcome:
        """Fire for an occasion, once: the fact and the message in one transaction."""
        return fire(self._writer, new)

    def record_error(self, new: NewFiring, error: Exception) -> FiringOutcome:
        return record_error(self._writer, new, error)

    def record_missed(self, trigger: str, times: Sequence[int], reason: str, cursor: CursorMove) -> None:
        """Record times of a schedule at which a trigger did not fire, but for those that are recorded."""
        record_missed(self._writer, trigger, times, reason, cursor)

    def move_cursor(self, trigger: str, cursor: CursorMove) -> bool:
        return move_cursor(self._writer, trigger, cursor)

    def firings(self, trigger: str, limit: int = 20) -> list[Firing]:
        """What a trigger, by its id, did here, the newest first."""
        with self._store.read() as txn:
            return listed_firings(txn, trigger, limit)

    def missed(self, trigger: str, limit: int = 20) -> list[MissedTimes]:
        """Times that it missed here, the newest first."""
        with self._store.read() as txn:
            return listed_gaps(txn, trigger, limit)

    def newest(self) -> int:
        with self._store.read() as txn:
            return txn.facts.tip().n

    def events_after(self, n: int, limit: int) -> tuple[int, list[tuple[int, dict[str, Any]]]]:
        """How far was looked, and the events of this ledger behind an arrival number."""
        with self._store.read() as txn:
            until = min(n + limit, txn.facts.tip().n)
            return until, list(events_after(txn, n, until - n))

    def place_of(self, n: int, fields: dict[str, Any]) -> EventPlace:
        """Where an event belongs, and how many firings lie before it."""
        with self._store.read() as txn:
            return place_of(txn, n, fields)
