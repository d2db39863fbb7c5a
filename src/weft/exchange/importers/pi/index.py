"""One pass over a session file: which records make which turn, and where they lie.

Entries form a tree by `id` and `parentId`. A place in it is a turn and how many of the turn's entries lead there; what
carries no words of the conversation (settings, labels, extensions' state) stands where its parent does.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.jsonl import Record
from weft.exchange.importers.pi.kinds import CONTENT, Standing, classify
from weft.exchange.importers.pi.settings import Settings
from weft.exchange.importers.port import Report
from weft.exchange.importers.values import mapping, millis, sequence, text, whole

LONGEST_WAY = 1000
LONGEST_SHARED = 256
"""An answer that leaves another one later than this is told as its continuation, not with all that led to it."""
TERMINAL = frozenset({"stop", "length", "error", "aborted"})


class Entry(Struct, frozen=True, gc=False):
    """A record of the conversation: where it lies, and by which id it is known."""

    kind: str
    id: str | None
    line: int
    offset: int
    end: int


class Place(Struct, frozen=True):
    """A point in the tree: after `depth` entries of a turn."""

    turn: int | None
    depth: int
    settings: Settings
    is_entry: bool = False
    """The last of those entries is the one that stands here; else something that has no place of its own."""


ROOT = Place(None, 0, Settings())


class Plan(Struct):
    """A turn to be: its entries, of which the first `shared` belong to an earlier answer to the same prompt too."""

    entries: list[int]
    parent: int | None
    root: int
    settings: Settings
    shared: int = 0
    prompt: int | None = None
    continues: str | None = None
    """Key of the prompt that this turn goes on answering, or answers again."""
    is_compaction: bool = False
    is_finished: bool = False
    is_answered: bool = False
    first_kept: int | None = None
    """Of a compaction: the first turn that stays in the context."""
    is_split: bool = False
    """Only the end of that turn does."""
    amid: str | None = None
    """Key of the prompt that was being answered when the context was compacted."""
    key: str = ""

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
    entries: list[Entry] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    call_starts: dict[str, int] = field(default_factory=dict)
    first_time: int | None = None


class Indexer:
    """Takes the records one after another."""

    def __init__(self, report: Report, fallback_id: str) -> None:
        self.index = Index()
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
        kind, standing = classify(record.value)
        is_told = standing is Standing.SESSION and self._tell(kind, record.value)
        if is_told or standing is Standing.SETTING:
            self._report.mapped[kind] += 1
        elif standing not in CONTENT:
            self._report.kept[kind] += 1
            if standing is Standing.UNKNOWN:
                self._report.unknown[kind] += 1
        if kind == "session":
            self._order.append(self._last)
        elif kind != "title":
            self._arrive(record, kind, standing)

    def _arrive(self, record: Record, kind: str, standing: Standing) -> None:
        value = record.value
        place = self._origin(value)
        id = text(value.get("id"))
        if standing in CONTENT:
            entry = Entry(kind, id, record.line, record.offset, record.end)
            place = self._grow(place, entry, standing, value)
        elif standing is Standing.SETTING:
            place = Place(place.turn, place.depth, place.settings.changed(kind, value))
        elif place.is_entry:
            place = replace(place, is_entry=False)
        if self.index.first_time is None:
            self.index.first_time = millis(value.get("timestamp"))
        self._last = place
        self._order.append(place)
        if id is not None:
            self._places[id] = place

    def _origin(self, value: dict[str, Any]) -> Place:
        """Where a record continues: after its parent; in the first, linear version after the record before it."""
        if "parentId" not in value:
            return self._last
        parent = text(value["parentId"])
        if parent is not None and (found := self._places.get(parent)) is not None:
            return found
        if parent is not None and (turn := self._calls.get(parent)) is not None:  # OpenClaw hangs a result on its call
            plan = self.index.plans[turn]
            return Place(turn, len(plan.entries), plan.settings)
        if not self._has_prompt and (parent is None or parent == self.index.header.get("id")):
            return self._last
        return ROOT

    def _grow(self, place: Place, entry: Entry, standing: Standing, value: dict[str, Any]) -> Place:
        plan = None if place.turn is None else self.index.plans[place.turn]
        tip = place.turn if plan is not None and place.depth == len(plan.entries) else None
        if standing is Standing.COMPACTION:
            amid = None if plan is None else plan.amid if plan.is_compaction else self._key_of(plan)
            turn = self._begin(place, is_compaction=True, is_finished=True, amid=amid)
            self._keep_from(self.index.plans[turn], value)
        elif standing is Standing.ANSWER:
            turn = self._answer(place, plan, tip)
        elif plan is None or tip is None or plan.is_finished or (plan.is_begun and standing is Standing.PROMPT):
            turn = self._begin(place)
        else:
            turn = tip
        self._has_prompt |= standing is Standing.PROMPT
        return self._append(turn, entry, standing, value, place.settings)

    def _answer(self, place: Place, plan: Plan | None, tip: int | None) -> int:
        if plan is None:
            return self._begin(place)
        if plan.is_compaction:
            return self._begin(place, continues=plan.amid)
        if tip is not None:
            return tip
        if place.depth > LONGEST_SHARED:
            return self._begin(place, continues=self._key_of(plan))
        again = self._begin(Place(plan.parent, 0, plan.settings), continues=self._key_of(plan), prompt=plan.prompt)
        self.index.plans[again].entries.extend(plan.entries[: place.depth])
        self.index.plans[again].shared = place.depth
        return again

    def _begin(self, place: Place, **what: Any) -> int:
        plans = self.index.plans
        root = len(plans) if place.turn is None else plans[place.turn].root
        plans.append(Plan(entries=[], parent=place.turn, root=root, settings=place.settings, **what))
        return len(plans) - 1

    def _append(self, turn: int, entry: Entry, standing: Standing, value: dict[str, Any], settings: Settings) -> Place:
        plan = self.index.plans[turn]
        plan.entries.append(len(self.index.entries))
        self.index.entries.append(entry)
        if standing is Standing.PROMPT and plan.prompt is None:
            plan.prompt = plan.entries[-1]
        if not plan.is_answered:
            plan.settings = replace(settings, is_reset=settings.is_reset or plan.settings.is_reset)
        if entry.kind == "message.assistant":
            self._note_answer(turn, plan, mapping(value.get("message")))
        elif entry.kind == "session_init" and not self.index.init:
            self.index.init = {name: told for name, told in value.items() if name != "systemPrompt"}
        after = replace(settings, is_reset=False) if settings.is_reset else settings
        return Place(turn, len(plan.entries), after, is_entry=True)

    def _note_answer(self, turn: int, plan: Plan, message: dict[str, Any]) -> None:
        calls = [block for block in sequence(message.get("content")) if mapping(block).get("type") == "toolCall"]
        for block in calls:
            if (id := text(block.get("id"))) is not None:
                self._calls[id] = turn
        stop = text(message.get("stopReason"))
        plan.is_answered = True
        plan.is_finished = not calls if stop is None else stop in TERMINAL

    def _keep_from(self, compaction: Plan, value: dict[str, Any]) -> None:
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
            return None if tip is None else self.index.plans[tip].root
        for _ in range(LONGEST_WAY):
            if tip is None or tip == turn:
                break
            parent = self.index.plans[tip].parent
            if parent == turn:
                return tip
            tip = parent
        return None

    def _key_of(self, plan: Plan) -> str:
        if plan.continues is not None:
            return plan.continues
        return self._name(plan.entries[0] if plan.prompt is None else plan.prompt)

    def _name(self, number: int) -> str:
        """An entry's id; the first version of the format has none, so its place in the session stands for it."""
        return self.index.entries[number].id or f"{self.session_id}#{number}"

    def finish(self) -> Index:
        taken: dict[str, int] = {}
        for plan in self.index.plans:
            key = plan.key = self._key_of(plan)
            if plan.continues is not None:
                key = plan.key = f"{key}#{self._name(plan.entries[plan.shared])}"
            while plan.key in taken:
                taken[key] += 1
                plan.key = f"{key}~{taken[key]}"
            taken[plan.key] = 1
        return self.index

    def _tell(self, kind: str, value: dict[str, Any]) -> bool:
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
