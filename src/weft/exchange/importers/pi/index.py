"""The first pass over a session file of pi: what each record is, and which records make which turn.

Entries form a tree by `id` and `parentId`. A place in it is a turn and how many of the turn's entries lead there; what
carries no words of the conversation (settings, labels, extensions' state) stands where its parent does.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.port import Report
from weft.exchange.importers.records.jsonl import Record
from weft.exchange.importers.records.planned_turns import (
    LONGEST_SHARED_RECORDS,
    Entry,
    PlannedTurn,
    TurnPlan,
    entry_of,
)
from weft.exchange.importers.records.roles import IN_TURNS, Role, count_kept
from weft.exchange.importers.records.values import mapping, millis, names, present, sequence, text, whole

LONGEST_WAY_TURNS = 1000
TERMINAL = frozenset({"stop", "length", "error", "aborted"})

MESSAGE_ROLES = {
    "user": Role.PROMPT,
    "assistant": Role.ANSWER,
    "toolResult": Role.ANSWER,
    "bashExecution": Role.INJECTED,
    "pythonExecution": Role.INJECTED,
    "fileMention": Role.INJECTED,
    "custom": Role.INJECTED,
    "hookMessage": Role.INJECTED,
    "branchSummary": Role.INJECTED,
    "compactionSummary": Role.INJECTED,
    "developer": Role.INJECTED,
    "system": Role.INJECTED,
}

RECORD_ROLES = {
    "custom_message": Role.INJECTED,
    "branch_summary": Role.INJECTED,
    "session_init": Role.INJECTED,
    "compaction": Role.COMPACTION,
    "model_change": Role.SETTING,
    "thinking_level_change": Role.SETTING,
    "mode_change": Role.SETTING,
    "service_tier_change": Role.SETTING,
    "active_tools_change": Role.SETTING,
    "reset_boundary": Role.SETTING,
    "session": Role.SESSION,
    "session_info": Role.SESSION,
    "title": Role.SESSION,
    "title_change": Role.SESSION,
    "label": Role.SESSION,
    "model_usage": Role.SESSION,
    "custom": Role.IGNORED,
    "archive": Role.IGNORED,
    "credential_pin": Role.IGNORED,
    "ttsr_injection": Role.IGNORED,
}

CORE_CUSTOM = frozenset({"tool_execution_start", "session_exit"})
"""`custom` records that oh-my-pi itself writes and that tell of calls or the session."""


def classify(value: dict[str, Any]) -> tuple[str, Role]:
    """A record's kind, as it is counted, and its role."""
    kind = text(value.get("type")) or "untyped"
    if kind == "message":
        role = text(mapping(value.get("message")).get("role")) or "none"
        return f"message.{role}", MESSAGE_ROLES.get(role, Role.UNKNOWN)
    if kind == "custom" and (custom := text(value.get("customType"))) in CORE_CUSTOM:
        return f"custom.{custom}", Role.SESSION
    return kind, RECORD_ROLES.get(kind, Role.UNKNOWN)


class Settings(Struct, frozen=True):
    """What turns run with, as the records before them have set it."""

    model: str | None = None
    provider: str | None = None
    thinking: str | None = None
    mode: str | None = None
    tier: Any = None
    tools: tuple[str, ...] | None = None
    is_reset: bool = False
    """The context was cleared, and no turn has begun since."""

    def begun(self, header: dict[str, Any]) -> Settings:
        """The first version of the format has them in its header."""
        return replace(
            self,
            model=text(header.get("modelId")),
            provider=text(header.get("provider")),
            thinking=text(header.get("thinkingLevel")),
        )

    def changed(self, kind: str, value: dict[str, Any]) -> Settings:
        """As they are after a record of this kind."""
        if kind == "model_change":
            provider, model = text(value.get("provider")), text(value.get("modelId"))
            if model is None and (both := text(value.get("model"))) is not None:  # oh-my-pi: provider/model
                provider, model = both.split("/", 1) if "/" in both else (None, both)
            return replace(self, provider=provider, model=model)
        if kind == "thinking_level_change":
            return replace(self, thinking=text(value.get("thinkingLevel")))
        if kind == "mode_change":
            return replace(self, mode=text(value.get("mode")))
        if kind == "service_tier_change":
            return replace(self, tier=value.get("serviceTier"))
        if kind == "active_tools_change":
            return replace(self, tools=names(value.get("activeToolNames")) or None)
        return replace(self, is_reset=True)

    def config(self) -> dict[str, Any] | None:
        return present(
            model=self.model, provider=self.provider, thinking=self.thinking, mode=self.mode, service_tier=self.tier
        )


class Place(Struct, frozen=True):
    """A point in the tree: after `depth` entries of a turn."""

    turn: int | None
    depth: int
    settings: Settings
    is_entry: bool = False
    """The last of those entries is the one that stands here; else something that has no place of its own."""


ROOT = Place(None, 0, Settings())


class PiTurn(PlannedTurn, kw_only=True):
    root: int
    """The first turn of its tree."""
    settings: Settings

    @property
    def is_begun(self) -> bool:
        return self.prompt is not None or self.is_answered


class Index(Struct):
    """What the pass has found."""

    header: dict[str, Any] = field(default_factory=dict)
    title: str | None = None
    init: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    exit: Any = None
    other_usage: list[Any] = field(default_factory=list)
    """Of model calls that are no part of the conversation."""
    plan: TurnPlan[PiTurn] = field(default_factory=TurnPlan[PiTurn])
    call_starts: dict[str, int] = field(default_factory=dict)
    first_time: int | None = None


class Indexer:
    """Takes the records one after another."""

    def __init__(self, report: Report, fallback_id: str) -> None:
        self.index = Index()
        self._plan = self.index.plan
        self._report, self._fallback = report, fallback_id
        self._places: dict[str, Place] = {}
        self._calls: dict[str, int] = {}
        self._order: list[Place] = []
        self._last = ROOT
        self._has_prompt = False

    @property
    def session_id(self) -> str:
        return text(self.index.header.get("id")) or self._fallback

    def take(self, record: Record) -> None:
        kind, role = classify(record.value)
        is_session_updated = role is Role.SESSION and self._update_session(kind, record.value)
        if is_session_updated or role is Role.SETTING:
            self._report.mapped[kind] += 1
        elif role not in IN_TURNS:
            count_kept(self._report, kind, role)
        if kind == "session":
            self._order.append(self._last)
        elif kind != "title":
            self._arrive(record, kind, role)

    def _arrive(self, record: Record, kind: str, role: Role) -> None:
        value = record.value
        place = self._origin(value)
        if role in IN_TURNS:
            place = self._grow(place, entry_of(record, kind), role, value)
        elif role is Role.SETTING:
            place = Place(place.turn, place.depth, place.settings.changed(kind, value))
        elif place.is_entry:
            place = replace(place, is_entry=False)
        if self.index.first_time is None:
            self.index.first_time = millis(value.get("timestamp"))
        self._last = place
        self._order.append(place)
        if (id := text(value.get("id"))) is not None:
            self._places[id] = place

    def _origin(self, value: dict[str, Any]) -> Place:
        """Where a record continues: after its parent; in the first, linear version after the record before it."""
        if "parentId" not in value:
            return self._last
        parent = text(value["parentId"])
        if parent is not None and (place := self._places.get(parent)) is not None:
            return place
        if parent is not None and (turn := self._calls.get(parent)) is not None:  # OpenClaw hangs a result on its call
            planned = self._plan.turns[turn]
            return Place(turn, len(planned.entries), planned.settings)
        if not self._has_prompt and (parent is None or parent == self.index.header.get("id")):
            return self._last
        return ROOT

    def _grow(self, place: Place, entry: Entry, role: Role, value: dict[str, Any]) -> Place:
        planned = None if place.turn is None else self._plan.turns[place.turn]
        tip = place.turn if planned is not None and place.depth == len(planned.entries) else None
        if role is Role.COMPACTION:
            turn = self._compact(place, planned, value)
        elif role is Role.ANSWER:
            turn = self._answer(place, planned, tip)
        elif planned is None or tip is None or planned.is_finished or (planned.is_begun and role is Role.PROMPT):
            turn = self._plan.begin(self._planned(place))
        else:
            turn = tip
        self._has_prompt |= role is Role.PROMPT
        return self._append(turn, entry, role, value, place.settings)

    def _compact(self, place: Place, before: PiTurn | None, value: dict[str, Any]) -> int:
        compaction = self._planned(place)
        compaction.is_compaction = compaction.is_finished = True
        if before is not None:
            compaction.compacted_prompt = before.compacted_prompt if before.is_compaction else self._key_of(before)
        self._keep_from(compaction, value)
        return self._plan.begin(compaction)

    def _answer(self, place: Place, planned: PiTurn | None, tip: int | None) -> int:
        if planned is None:
            return self._plan.begin(self._planned(place))
        if planned.is_compaction:
            return self._plan.begin(self._planned(place, planned.compacted_prompt))
        if tip is not None:
            return tip
        if place.depth > LONGEST_SHARED_RECORDS:
            return self._plan.begin(self._planned(place, self._key_of(planned)))
        again = self._planned(Place(planned.parent, 0, planned.settings), self._key_of(planned))
        return self._plan.begin_again(again, planned, place.depth)

    def _planned(self, place: Place, continues: str | None = None) -> PiTurn:
        turns = self._plan.turns
        root = len(turns) if place.turn is None else turns[place.turn].root
        return PiTurn(parent=place.turn, root=root, settings=place.settings, continues=continues)

    def _append(self, turn: int, entry: Entry, role: Role, value: dict[str, Any], settings: Settings) -> Place:
        planned = self._plan.turns[turn]
        number = self._plan.append(turn, entry)
        if role is Role.PROMPT and planned.prompt is None:
            planned.prompt = number
        if not planned.is_answered:
            planned.settings = replace(settings, is_reset=settings.is_reset or planned.settings.is_reset)
        if entry.kind == "message.assistant":
            self._note_answer(turn, planned, mapping(value.get("message")))
        elif entry.kind == "session_init" and not self.index.init:
            self.index.init = {name: field for name, field in value.items() if name != "systemPrompt"}
        after = replace(settings, is_reset=False) if settings.is_reset else settings
        return Place(turn, len(planned.entries), after, is_entry=True)

    def _note_answer(self, turn: int, planned: PiTurn, message: dict[str, Any]) -> None:
        calls = [block for block in sequence(message.get("content")) if mapping(block).get("type") == "toolCall"]
        for block in calls:
            if (id := text(block.get("id"))) is not None:
                self._calls[id] = turn
        stop = text(message.get("stopReason"))
        planned.is_answered = True
        planned.is_finished = not calls if stop is None else stop in TERMINAL

    def _keep_from(self, compaction: PiTurn, value: dict[str, Any]) -> None:
        kept = self._places.get(text(value.get("firstKeptEntryId")) or "")
        if kept is None and (number := whole(value.get("firstKeptEntryIndex"))) is not None:
            kept = self._order[number] if 0 < number < len(self._order) else None
        if kept is not None and kept.is_entry:
            compaction.first_kept, compaction.is_split = kept.turn, kept.depth > 1
        elif kept is not None:
            compaction.first_kept = self._turn_after(kept.turn, compaction.parent)

    def _turn_after(self, turn: int | None, tip: int | None) -> int | None:
        """The turn that follows one on the way to another: what is kept is recent, so the way is short."""
        if turn is None:
            return None if tip is None else self._plan.turns[tip].root
        for _ in range(LONGEST_WAY_TURNS):
            if tip is None or tip == turn:
                break
            parent = self._plan.turns[tip].parent
            if parent == turn:
                return tip
            tip = parent
        return None

    def _key_of(self, planned: PiTurn) -> str:
        return self._plan.prompt_key(planned, self._name)

    def _name(self, number: int) -> str:
        """An entry's id; the first version of the format has none, so its place in the session stands for it."""
        return self._plan.entries[number].id or f"{self.session_id}#{number}"

    def finish(self) -> Index:
        self._plan.assign_keys(self._name)
        return self.index

    def _update_session(self, kind: str, value: dict[str, Any]) -> bool:
        """What a record tells of the session; False if it tells nothing."""
        index = self.index
        if kind == "session":
            if index.header:
                return False
            index.header = value
            index.title = text(value.get("title")) or index.title
            self._last = Place(None, 0, self._last.settings.begun(value))
        elif kind in ("title", "title_change"):
            index.title = text(value.get("title")) or index.title
        elif kind == "session_info":
            index.title = (text(value.get("name")) or "").strip() or index.title
        elif kind == "label":
            self._label(value)
        elif kind == "model_usage":
            index.other_usage.append({k: v for k, v in value.items() if k not in ("type", "id", "parentId")})
        elif kind == "custom.session_exit":
            index.exit = value.get("data")
        else:
            self._note_start(mapping(value.get("data")))
        return True

    def _label(self, value: dict[str, Any]) -> None:
        target, label = text(value.get("targetId")), text(value.get("label"))
        if target is not None and label is not None:
            self.index.labels[target] = label
        elif target is not None:
            self.index.labels.pop(target, None)

    def _note_start(self, data: dict[str, Any]) -> None:
        call, began = text(data.get("toolCallId")), millis(data.get("startedAt"))
        if call is not None and began is not None:
            self.index.call_starts.setdefault(call, began)
