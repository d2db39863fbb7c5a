"""The first pass over a droid's session file: what each record is, which records make a turn, which turn each follows.

Only ids and places are kept; the records are read again when their turn is mapped.
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from weft.exchange.importers.port import Report
from weft.exchange.importers.records.jsonl import Record
from weft.exchange.importers.records.planned_turns import Entry, PlannedTurn, TurnPlan, entry_of
from weft.exchange.importers.records.roles import Role, count_kept
from weft.exchange.importers.records.values import mapping, sequence, text

REMINDER = "<system-reminder>"
HIDDEN = frozenset({"llm_only", "user_only"})
"""Whom a message is shown to, where that is not everybody: then no person wrote it."""
HUMAN = frozenset({"user", "human", "cli", "tui", "web", "desktop", "ide"})


RECORD_ROLES = {
    "session_start": Role.SESSION,
    "session_settings": Role.SESSION,
    "session_end": Role.SESSION,
    "todo_state": Role.SESSION,
    "agent_turn_outcome": Role.END,
    "compaction_state": Role.COMPACTION,
}
MESSAGE_ROLES = frozenset({"user", "assistant", "system", "tool"})


def kind_of(value: dict[str, Any]) -> str:
    kind = text(value.get("type")) or "none"
    return f"message.{text(mapping(value.get('message')).get('role')) or 'none'}" if kind == "message" else kind


def role_of(value: dict[str, Any]) -> Role:
    kind, message = text(value.get("type")) or "", mapping(value.get("message"))
    if kind != "message":
        return RECORD_ROLES.get(kind, Role.UNKNOWN)
    role = text(message.get("role"))
    if role not in MESSAGE_ROLES:
        return Role.UNKNOWN
    if role == "system":
        return Role.INJECTED
    if role != "user" or is_outcome(message):
        return Role.ANSWER
    return Role.INJECTED if is_injected(message) else Role.PROMPT


def blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    listed = sequence(content) if isinstance(content, list) else [content]
    objects = [{"type": "text", "text": block} if isinstance(block, str) else mapping(block) for block in listed]
    return [block if isinstance(block.get("type", ""), str) else {**block, "type": ""} for block in objects]


def is_outcome(message: dict[str, Any]) -> bool:
    contents = blocks(message)
    has_results = any(block.get("type") == "tool_result" for block in contents)
    return has_results and not any(own_words(block) for block in contents)


def own_words(block: dict[str, Any]) -> str | None:
    """The text of a block that is not one of the tool's reminders."""
    words = text(block.get("text")) if block.get("type") == "text" else None
    return None if words is None or words.lstrip().startswith(REMINDER) else words


def is_injected(message: dict[str, Any]) -> bool:
    if text(message.get("visibility")) in HIDDEN or message.get("hookEventName"):
        return True
    contents = blocks(message)
    return bool(contents) and all(block.get("type") == "text" and own_words(block) is None for block in contents)


class DroidTurn(PlannedTurn, kw_only=True):
    ends: list[int] = field(default_factory=list)
    """The records that tell how it ended."""


class Index:
    def __init__(self, report: Report, fallback: str) -> None:
        self._report, self.session = report, fallback
        self.start: dict[str, Any] = {}
        self.session_records: dict[str, dict[str, Any]] = {}
        """Other records that tell of the session, of each kind the last."""
        self.plan: TurnPlan[DroidTurn] = TurnPlan()
        self.turns: dict[str, int] = {}
        """The turn of each message, by its id."""
        self._waiting: list[int] = []
        self._summaries: list[Entry] = []
        self._keys: set[str] = set()

    def take(self, record: Record) -> None:
        value = record.value
        kind, role = kind_of(value), role_of(value)
        entry = entry_of(record, kind)
        if role is Role.UNKNOWN:
            count_kept(self._report, kind, role)
        elif role is Role.SESSION:
            self._report.mapped[kind] += 1
            self._session(kind, value)
        elif role is Role.END:
            self._end(entry, text(value.get("turnId")))
        elif role is Role.COMPACTION:
            self._summaries.append(entry)
        elif role is Role.INJECTED:
            self._waiting.append(self.plan.add(entry))
        else:
            self._message(entry, role, text(value.get("parentId")))

    def finish(self) -> None:
        if self._waiting:
            first = self.plan.entries[self._waiting[0]]
            self._join(self._begin(first) if not self.plan.turns else self.plan.turns[-1])
        self._sum_up()
        for planned in self.plan.turns:
            planned.entries += planned.ends

    def _session(self, kind: str, value: dict[str, Any]) -> None:
        if kind == "session_start" and not self.start:
            self.start = mapping(value.get("session")) or value
            self.session = text(self.start.get("id")) or self.session
        else:
            self.session_records[kind] = value

    def _end(self, entry: Entry, turn: str | None) -> None:
        number = self.turns.get(turn or "", len(self.plan.turns) - 1)
        if number >= 0:
            self.plan.turns[number].ends.append(self.plan.add(entry))
        else:
            self._report.mapped[entry.kind] += 1

    def _message(self, entry: Entry, role: Role, parent: str | None) -> None:
        if role is Role.PROMPT or not self.plan.turns:
            self._sum_up()
            planned = self._begin(entry)
            before = self.turns.get(parent or "")
            if before is not None and not self._has_summary_after(before):
                planned.parent = before
        planned = self.plan.turns[-1]
        if role is Role.PROMPT or self._waiting:
            self._join(planned)
        self.plan.append(len(self.plan.turns) - 1, entry)
        self._note_turn(entry)

    def _has_summary_after(self, turn: int) -> bool:
        """A summary that follows a turn stands between it and what grows from it."""
        return any(planned.is_compaction and planned.parent == turn for planned in self.plan.turns)

    def _begin(self, entry: Entry) -> DroidTurn:
        key = entry.id if entry.id is not None and entry.id not in self._keys else f"{self.session}#{entry.offset}"
        self._keys.add(key)
        last = len(self.plan.turns) - 1
        self.plan.begin(DroidTurn(key=key, parent=last if last >= 0 else None))
        return self.plan.turns[-1]

    def _join(self, planned: DroidTurn) -> None:
        planned.entries += self._waiting
        for number in self._waiting:
            self._note_turn(self.plan.entries[number])
        self._waiting = []

    def _note_turn(self, entry: Entry) -> None:
        if entry.id is not None:
            self.turns.setdefault(entry.id, len(self.plan.turns) - 1)

    def _sum_up(self) -> None:
        """Summaries come after the turn in which they were made."""
        for entry in self._summaries:
            planned = self._begin(entry)
            planned.is_compaction = True
            planned.entries = [self.plan.add(entry)]
            self._note_turn(entry)
        self._summaries = []
