"""One pass over a session file: which records make a turn, where they lie, and which turn each grew from.

Only ids and places are kept; the records are read again when their turn is mapped.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.factory_droid.kinds import Standing, kind_of, standing
from weft.exchange.importers.jsonl import Record
from weft.exchange.importers.port import Report
from weft.exchange.importers.values import mapping, text


class Entry(Struct, frozen=True):
    """A record's place, and what the index knows of it."""

    offset: int
    end: int
    standing: Standing
    id: str | None


class Plan(Struct):
    """A turn to be."""

    key: str
    entries: list[Entry] = field(default_factory=list)
    parent: int | None = None
    is_compaction: bool = False
    outcomes: list[Entry] = field(default_factory=list)


class Index:
    def __init__(self, report: Report, fallback: str) -> None:
        self._report, self.session = report, fallback
        self.start: dict[str, Any] = {}
        self.told: list[dict[str, Any]] = []
        """Other records that tell of the session, of each kind the last."""
        self.plans: list[Plan] = []
        self.turns: dict[str, int] = {}
        """The turn of each message, by its id."""
        self._waiting: list[Entry] = []
        self._summaries: list[Entry] = []
        self._taken: set[str] = set()
        self._told: dict[str, dict[str, Any]] = {}

    def take(self, record: Record) -> None:
        value = record.value
        kind, stands = kind_of(value), standing(value)
        if stands is Standing.UNKNOWN:
            self._report.kept[kind] += 1
            self._report.unknown[kind] += 1
            return
        self._report.mapped[kind] += 1
        entry = Entry(record.offset, record.end, stands, text(value.get("id")))
        if stands is Standing.SESSION:
            self._session(kind, value)
        elif stands is Standing.OUTCOME:
            self._outcome(entry, text(value.get("turnId")))
        elif stands is Standing.COMPACTION:
            self._summaries.append(entry)
        elif stands is Standing.INJECTED:
            self._waiting.append(entry)
        else:
            self._message(entry, text(value.get("parentId")))

    def finish(self) -> None:
        if self._waiting:
            self._join(self._plan(self._waiting[0]) if not self.plans else self.plans[-1])
        self._sum_up()

    def _session(self, kind: str, value: dict[str, Any]) -> None:
        if kind == "session_start" and not self.start:
            self.start = mapping(value.get("session")) or value
            self.session = text(self.start.get("id")) or self.session
        else:
            self._told[kind] = value
        self.told = list(self._told.values())

    def _outcome(self, entry: Entry, turn: str | None) -> None:
        at = self.turns.get(turn or "", len(self.plans) - 1)
        if at >= 0:
            self.plans[at].outcomes.append(entry)

    def _message(self, entry: Entry, parent: str | None) -> None:
        if entry.standing is Standing.PROMPT or not self.plans:
            self._sum_up()
            plan = self._plan(entry)
            known = self.turns.get(parent or "")
            if known is not None and not self._has_summary_after(known):
                plan.parent = known
        plan = self.plans[-1]
        if entry.standing is Standing.PROMPT or self._waiting:
            self._join(plan)
        plan.entries.append(entry)
        self._name(entry)

    def _has_summary_after(self, turn: int) -> bool:
        """A summary that follows a turn stands between it and what grows from it."""
        return any(plan.is_compaction and plan.parent == turn for plan in self.plans)

    def _plan(self, entry: Entry) -> Plan:
        key = entry.id if entry.id is not None and entry.id not in self._taken else f"{self.session}#{entry.offset}"
        self._taken.add(key)
        self.plans.append(Plan(key, parent=len(self.plans) - 1 if self.plans else None))
        return self.plans[-1]

    def _join(self, plan: Plan) -> None:
        plan.entries += self._waiting
        for entry in self._waiting:
            self._name(entry)
        self._waiting = []

    def _name(self, entry: Entry) -> None:
        if entry.id is not None:
            self.turns.setdefault(entry.id, len(self.plans) - 1)

    def _sum_up(self) -> None:
        """Summaries come after the turn in which they were made."""
        for entry in self._summaries:
            plan = self._plan(entry)
            plan.is_compaction, plan.entries = True, [entry]
            self._name(entry)
        self._summaries = []
