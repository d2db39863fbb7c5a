"""The records of a rollout as entries: one table for every kind that Codex has written, in all
three generations.

And which entries make one native turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from enum import IntEnum, auto
from hashlib import sha256
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.foreign_files import BOM, LINE_LIMIT, ReadPosition, first_objects, records
from weft.exchange.importers.foreign_values import (
    SOURCE_LIMITS,
    canonical_escaped,
    json_fault,
    mapping,
    sequence,
    text,
    whole_number,
)
from weft.exchange.importers.port import Report, Source
from weft.kernel.foreign_input import check_json

# --- The records of a rollout as entries: one table for every kind that Codex has written, in all three generations.


class EntryEffect(IntEnum):
    """What an entry does to the turn that it belongs to."""

    META = auto()
    SETTINGS = auto()
    START = auto()
    END = auto()
    ABORT = auto()
    PROMPT_EVENT = auto()
    """Tells that a person wrote a prompt; the prompt itself is a USER entry beside it."""
    USER = auto()
    NOTICE = auto()
    """A message of the user's role that something else than a person wrote for the agent to act on."""
    INJECTED = auto()
    """What Codex put beside a prompt: rules, environment, skills."""
    AGENT = auto()
    ANSWER_TEXT = auto()
    THOUGHT = auto()
    CALL = auto()
    ANSWER_TEXT_EVENT = auto()
    THOUGHT_EVENT = auto()
    OUTPUT = auto()
    TOOL_TEXT = auto()
    OUTCOME = auto()
    SETTLED = auto()
    """The end of a call with all that is told of it, as Codex prints it."""
    TOKENS = auto()
    USAGE = auto()
    COMPACTED = auto()
    COMPACTED_NOTE = auto()
    ROLLBACK = auto()
    ERROR = auto()
    TITLE = auto()
    WORLD = auto()
    TOOLS = auto()
    NOTE = auto()
    """Kept with the turn as it is."""
    SILENT = auto()
    """Known, and says nothing that a turn holds."""
    UNKNOWN = auto()


ANSWERS = frozenset({EntryEffect.ANSWER_TEXT, EntryEffect.THOUGHT, EntryEffect.CALL})
"""What a provider's response consists of."""

TOP = {
    "session_meta": EntryEffect.META,
    "turn_context": EntryEffect.SETTINGS,
    "compacted": EntryEffect.COMPACTED,
    "world_state": EntryEffect.WORLD,
    "inter_agent_communication": EntryEffect.AGENT,
    "inter_agent_communication_metadata": EntryEffect.SILENT,
    "token_usage_record": EntryEffect.USAGE,
    "security_risk_score": EntryEffect.NOTE,
    "realtime_item": EntryEffect.SILENT,
}
ITEMS = {
    "reasoning": EntryEffect.THOUGHT,
    "function_call": EntryEffect.CALL,
    "custom_tool_call": EntryEffect.CALL,
    "local_shell_call": EntryEffect.CALL,
    "web_search_call": EntryEffect.CALL,
    "tool_search_call": EntryEffect.CALL,
    "image_generation_call": EntryEffect.CALL,
    "function_call_output": EntryEffect.OUTPUT,
    "custom_tool_call_output": EntryEffect.OUTPUT,
    "mcp_tool_call_output": EntryEffect.OUTPUT,
    "local_shell_call_output": EntryEffect.OUTPUT,
    "tool_search_output": EntryEffect.OUTPUT,
    "agent_message": EntryEffect.AGENT,
    "additional_tools": EntryEffect.TOOLS,
    "ghost_snapshot": EntryEffect.SILENT,
    "compaction": EntryEffect.SILENT,
    "compaction_summary": EntryEffect.SILENT,
    "compaction_trigger": EntryEffect.SILENT,
    "context_compaction": EntryEffect.SILENT,
    "other": EntryEffect.SILENT,
}
EVENTS = {
    "task_started": EntryEffect.START,
    "turn_started": EntryEffect.START,
    "task_complete": EntryEffect.END,
    "turn_complete": EntryEffect.END,
    "turn_aborted": EntryEffect.ABORT,
    "user_message": EntryEffect.PROMPT_EVENT,
    "agent_message": EntryEffect.ANSWER_TEXT_EVENT,
    "agent_reasoning": EntryEffect.THOUGHT_EVENT,
    "agent_reasoning_raw_content": EntryEffect.THOUGHT_EVENT,
    "agent_reasoning_section_break": EntryEffect.SILENT,
    "token_count": EntryEffect.TOKENS,
    "exec_command_end": EntryEffect.OUTCOME,
    "patch_apply_end": EntryEffect.OUTCOME,
    "mcp_tool_call_end": EntryEffect.OUTCOME,
    "web_search_end": EntryEffect.OUTCOME,
    "image_generation_end": EntryEffect.OUTCOME,
    "view_image_tool_call": EntryEffect.OUTCOME,
    "dynamic_tool_call_request": EntryEffect.OUTCOME,
    "dynamic_tool_call_response": EntryEffect.OUTCOME,
    "collab_agent_spawn_end": EntryEffect.OUTCOME,
    "collab_agent_interaction_end": EntryEffect.OUTCOME,
    "collab_waiting_end": EntryEffect.OUTCOME,
    "collab_close_end": EntryEffect.OUTCOME,
    "collab_resume_end": EntryEffect.OUTCOME,
    "sub_agent_activity": EntryEffect.OUTCOME,
    "guardian_assessment": EntryEffect.OUTCOME,
    "context_compacted": EntryEffect.COMPACTED_NOTE,
    "thread_rolled_back": EntryEffect.ROLLBACK,
    "error": EntryEffect.ERROR,
    "stream_error": EntryEffect.NOTE,
    "warning": EntryEffect.NOTE,
    "thread_name_updated": EntryEffect.TITLE,
    "thread_settings_applied": EntryEffect.SETTINGS,
    "thread_goal_updated": EntryEffect.NOTE,
    "entered_review_mode": EntryEffect.NOTE,
    "exited_review_mode": EntryEffect.NOTE,
    "plan_update": EntryEffect.NOTE,
    "turn_diff": EntryEffect.NOTE,
    "undo_completed": EntryEffect.SILENT,
    "background_event": EntryEffect.SILENT,
    "shutdown_complete": EntryEffect.SILENT,
    "session_configured": EntryEffect.SILENT,
}
THREAD_ITEMS = {
    "usermessage": EntryEffect.PROMPT_EVENT,
    "agentmessage": EntryEffect.ANSWER_TEXT_EVENT,
    "reasoning": EntryEffect.THOUGHT_EVENT,
    "commandexecution": EntryEffect.OUTCOME,
    "filechange": EntryEffect.OUTCOME,
    "mcptoolcall": EntryEffect.OUTCOME,
    "dynamictoolcall": EntryEffect.OUTCOME,
    "collabagenttoolcall": EntryEffect.OUTCOME,
    "subagentactivity": EntryEffect.OUTCOME,
    "websearch": EntryEffect.OUTCOME,
    "imageview": EntryEffect.OUTCOME,
    "imagegeneration": EntryEffect.OUTCOME,
    "contextcompaction": EntryEffect.COMPACTED_NOTE,
    "plan": EntryEffect.NOTE,
    "hookprompt": EntryEffect.NOTE,
    "sleep": EntryEffect.NOTE,
    "enteredreviewmode": EntryEffect.NOTE,
    "exitedreviewmode": EntryEffect.NOTE,
    "extension": EntryEffect.NOTE,
}
"""Items of `item_completed`, which the newest history writes in place of the events."""

INJECTIONS = (
    "# agents.md instructions",
    "<environment_context>",
    "<user_instructions>",
    "<instructions>",
    "<permissions instructions>",
    "<collaboration_mode>",
    "<model_switch>",
    "<multi_agent_mode>",
    "<personality_spec>",
    "<realtime_conversation>",
    "<recommended_plugins>",
    "<plugins_instructions>",
    "<skills_instructions>",
    "<apps_instructions>",
    "<app-context>",
    "<skill>",
    "<goal_context>",
    "<codex_internal_context",
    "<additional_context",
    "<extension_context",
    "<context_window",
    "<token_budget",
    "<rollout_budget>",
    "<turn_aborted>",
)
"""How the texts begin that Codex puts beside a prompt in the user's role, in small letters."""
NOTICES = ("<subagent_notification>", "<user_shell_command>", "<hook_prompt")
_NAME = 80
"""Letters of a kind that are shown."""
_LONGEST = max(map(len, (*INJECTIONS, *NOTICES)))


class Entry(Struct, gc=False):
    """One record: where it lies, what it is, and its payload."""

    line: int
    offset: int
    end: int
    kind: str
    """As the report counts it; empty where another entry of the same record is counted."""
    sort: EntryEffect
    name: str
    """The payload's own type."""
    value: dict[str, Any]
    turn: str | None = None
    at: Any = None
    """Its time as written."""
    ordinal: Any = None


def entry_of(line: int, offset: int, end: int, record: dict[str, Any]) -> Entry:
    """An entry of a record of generation B or C, told apart by its own shape."""
    top, payload = record.get("type"), record.get("payload")
    if not isinstance(top, str):
        return _untyped(line, offset, end, record)
    if not isinstance(payload, dict):
        bare = top == "response_item" or top in ITEMS or top == "message"
        if not bare:
            return Entry(line, offset, end, top[:_NAME], EntryEffect.UNKNOWN, top, record)
        entry = item_entry(line, offset, end, record)
        entry.at = record.get("timestamp")
        return entry
    if top == "response_item":
        entry = item_entry(line, offset, end, payload)
        entry.kind = f"response_item/{entry.kind}"[:_NAME]
    elif top == "event_msg":
        entry = _event(line, offset, end, payload)
    else:
        sort = TOP.get(top, EntryEffect.UNKNOWN)
        entry = Entry(line, offset, end, top[:_NAME], sort, top, payload, text(payload.get("turn_id")))
    entry.at = record.get("timestamp") or payload.get("timestamp")
    entry.ordinal = record.get("ordinal")
    return entry


def _untyped(line: int, offset: int, end: int, record: dict[str, Any]) -> Entry:
    """The first line of generation B, and its lines of state."""
    if "record_type" in record:
        name = f"record_type/{record['record_type']!s:.40}"
        is_state = record["record_type"] == "state"
        return Entry(line, offset, end, name, EntryEffect.SILENT if is_state else EntryEffect.UNKNOWN, name, record)
    if text(record.get("id")) and "timestamp" in record:
        return Entry(line, offset, end, "session", EntryEffect.META, "session", record, at=record.get("timestamp"))
    return Entry(line, offset, end, "untyped", EntryEffect.UNKNOWN, "untyped", record)


def item_entry(line: int, offset: int, end: int, item: dict[str, Any]) -> Entry:
    """A ResponseItem, the same in all generations."""
    name = item.get("type")
    if not isinstance(name, str) or name == "response_item":
        name = "message" if isinstance(item.get("role"), str) else "untyped"
    sort = _message(item) if name == "message" else ITEMS.get(name, EntryEffect.UNKNOWN)
    return Entry(line, offset, end, name[:_NAME], sort, name, item, _turn_of_item(item))


def _turn_of_item(item: dict[str, Any]) -> str | None:
    passed = item.get("internal_chat_message_metadata_passthrough") or item.get("metadata")
    return text(passed.get("turn_id")) if isinstance(passed, dict) else None


def _message(item: dict[str, Any]) -> EntryEffect:
    role = item.get("role")
    if role == "assistant":
        return EntryEffect.ANSWER_TEXT
    if role in ("developer", "system"):
        return EntryEffect.INJECTED
    if role == "user":
        return _user(item.get("content"))
    return EntryEffect.TOOL_TEXT if role in ("tool", "function") else EntryEffect.UNKNOWN


def _user(content: Any) -> EntryEffect:
    for block in sequence(content):
        words = block.get("text") if isinstance(block, dict) else block
        if isinstance(words, str):
            begins = words.lstrip()[:_LONGEST].lower()
            if begins.startswith(INJECTIONS):
                return EntryEffect.INJECTED
            if begins.startswith(NOTICES):
                return EntryEffect.NOTICE
    return EntryEffect.USER


def _event(line: int, offset: int, end: int, payload: dict[str, Any]) -> Entry:
    name = payload.get("type")
    if not isinstance(name, str):
        return Entry(line, offset, end, "event_msg/untyped", EntryEffect.UNKNOWN, "untyped", payload)
    turn = text(payload.get("turn_id")) or text(payload.get("turnId"))
    if name != "item_completed":
        sort = EVENTS.get(name, EntryEffect.UNKNOWN)
        return Entry(line, offset, end, f"event_msg/{name}"[:_NAME], sort, name, payload, turn)
    item = mapping(payload.get("item"))
    name = text(item.get("type")) or "untyped"
    sort = THREAD_ITEMS.get(name.lower(), EntryEffect.UNKNOWN)
    return Entry(line, offset, end, f"event_msg/item_completed/{name}"[:_NAME], sort, name.lower(), item, turn)


def digest(value: Any) -> str:
    return sha256(canonical_escaped(value)).hexdigest()[:32]


_EXACT = ("utf-8", "surrogateescape")
_GENERATION_A = re.compile(rb'\s*\{\s*"(?:session|items)"\s*:\s*[{\[]')
_CUT_META = re.compile(rb'\{[^{}]{0,200}"type"\s*:\s*"session_meta"[^{}]{0,200}"payload"\s*:\s*\{')
_ITEM_SIGNS = {
    "message": lambda item: isinstance(item.get("role"), str) and _has_blocks(item.get("content")),
    "reasoning": lambda item: "summary" in item,
}


def _has_blocks(content: Any) -> bool:
    kinds = ("input_text", "output_text", "input_image")
    return any(mapping(block).get("type") in kinds for block in sequence(content))


def is_rollout(head: bytes) -> bool:
    """Does a file that begins like this hold a session of Codex?"""
    if is_generation_a(head):
        return True
    objects = first_objects(head)
    if not objects:
        return _CUT_META.match(head.removeprefix(BOM)) is not None
    if any(value.get("type") == "session_meta" and isinstance(value.get("payload"), dict) for value in objects):
        return True
    return sum(map(_is_sign, objects)) * 2 >= len(objects)


def is_generation_a(head: bytes) -> bool:
    """`{"session": {"id", "timestamp", "instructions"}, "items": [...]}`; long instructions may hide the items."""
    start = head.removeprefix(BOM)
    if _GENERATION_A.match(start) is None:
        return False
    items = re.search(rb'"items"\s*:\s*\[', start)
    return items is not None or re.search(rb'"instructions"\s*:\s*"', start[:400]) is not None


def _is_sign(record: dict[str, Any]) -> bool:
    top, payload = text(record.get("type")), record.get("payload")
    if isinstance(payload, dict):
        if top == "event_msg":
            return text(payload.get("type")) in EVENTS or payload.get("type") == "item_completed"
        return top in TOP or (top == "response_item" and ("role" in payload or text(payload.get("type")) in ITEMS))
    if top is None:
        return record.get("record_type") == "state" or {"id", "timestamp", "instructions"} <= record.keys()
    if top in _ITEM_SIGNS:
        return _ITEM_SIGNS[top](record)
    return top == "response_item" or (top in ITEMS and ("call_id" in record or "action" in record))


def entries(source: Source, report: Report, read_position: ReadPosition) -> Iterator[Entry]:
    """All of them, or those of the lines behind the place that was reached."""
    if is_generation_a(source.head):
        read_position.is_torn = True
        yield from _of_one_object(source, report)
        return
    for record in records(source, report, read_position):
        yield entry_of(record.line, record.offset, record.end, record.value)


def _of_one_object(source: Source, report: Report) -> Iterator[Entry]:
    """Generation A. Values are decoded one by one, so that a cut or damaged file gives all that is whole in it."""
    with source.path.open("rb") as file:
        data = file.read(LINE_LIMIT)
    check_json(data, SOURCE_LIMITS)
    scanner = _Scanner(data.removeprefix(BOM).decode(*_EXACT), len(data) - len(data.removeprefix(BOM)))
    try:
        for name, line, start, end, value in scanner.members():
            report.found += 1
            if not isinstance(value, dict):
                report.damaged += 1
                report.problem(line, f"a JSON {type(value).__name__} as {name}, not an object")
            elif name == "session":
                yield Entry(line, start, end, "session", EntryEffect.META, "session", value, at=value.get("timestamp"))
            else:
                yield item_entry(line, start, end, value)
    except (ValueError, RecursionError) as error:
        report.found += 1
        report.damaged += 1
        report.problem(None, f"not JSON to its end: {json_fault(error):.200}")


class _Scanner:
    """Walks `{"session": …, "items": [ … ]}` value by value, with the place of each in the file's bytes."""

    def __init__(self, text: str, skipped: int) -> None:
        self._text, self._position = text, 0
        self._decoder = json.JSONDecoder(parse_constant=str)
        self._known_at, self._known_byte, self._known_line = 0, skipped, 1

    def members(self) -> Iterator[tuple[str, int, int, int, Any]]:
        """Name, line, where it begins and ends, and value of the session and of each item."""
        self._expect("{")
        while not self._ends("}"):
            name = self._value()[3]
            self._expect(":")
            if name == "items" and self._peek() == "[":
                self._expect("[")
                while not self._ends("]"):
                    yield "items", *self._value()
            elif name == "session":
                yield "session", *self._value()
            else:
                self._value()

    def _value(self) -> tuple[int, int, int, Any]:
        self._peek()
        start = self._byte(self._position)
        line = self._known_line
        value, self._position = self._decoder.raw_decode(self._text, self._position)
        return line, start, self._byte(self._position), value

    def _byte(self, position: int) -> int:
        passed = self._text[self._known_at : position]
        self._known_line += passed.count("\n")
        self._known_byte += len(passed.encode(*_EXACT))
        self._known_at = position
        return self._known_byte

    def _peek(self) -> str:
        while self._text[self._position : self._position + 1].isspace():
            self._position += 1
        return self._text[self._position : self._position + 1]

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise ValueError(f"{sign!r} expected at character {self._position}, found {self._peek()!r}")
        self._position += 1

    def _ends(self, bracket: str) -> bool:
        """Past the comma before another member, or past the bracket at the end."""
        if self._peek() == ",":
            self._position += 1
        if self._peek() != bracket:
            return False
        self._position += 1
        return True


# --- Which entries make one native turn.

PREAMBLE = frozenset(
    {
        EntryEffect.META,
        EntryEffect.SETTINGS,
        EntryEffect.INJECTED,
        EntryEffect.WORLD,
        EntryEffect.TOOLS,
        EntryEffect.TITLE,
    }
)
"""Entries that stand before the prompt they belong to."""
_LOOSE = 4096
"""So many entries without any turn wait for one."""


class TurnEntries(Struct):
    """The entries of one native turn, in order."""

    entries: list[Entry] = field(default_factory=list)
    id: str | None = None
    explicit: bool = False
    """It began by `task_started`."""
    ended: bool = False
    """Its end is in the file."""
    closed: bool = False
    """It ended, or another followed it."""
    prompted: bool = False
    answered: bool = False
    compacts: bool = False
    half: EntryEffect | None = None
    """The half of a prompt (item or event) whose other half has not come yet."""
    end_at: int = 0
    """How many entries it had when it ended."""


class Rollback(Struct, frozen=True):
    """The last `turns` prompted turns are dropped: the next one grows from the one before them."""

    turns: int
    entry: Entry


class Assembler:
    """Gives each turn as soon as the next one begins, and in the end what is left."""

    def __init__(self) -> None:
        self._current: TurnEntries | None = None
        self._loose: list[Entry] = []
        """What came before the first turn."""
        self._finished: set[str] = set()
        self._moves: dict[EntryEffect, Callable[[Entry], Iterator[TurnEntries | Rollback]]] = {
            EntryEffect.START: self._start_turn,
            EntryEffect.END: self._end_turn,
            EntryEffect.ABORT: self._end_turn,
            EntryEffect.PROMPT_EVENT: self._add_prompt,
            EntryEffect.USER: self._add_prompt,
            EntryEffect.AGENT: self._add_agent_message,
            EntryEffect.ANSWER_TEXT_EVENT: self._add_answer,
            EntryEffect.COMPACTED: self._add_compaction,
            EntryEffect.ROLLBACK: self._roll_back,
            **dict.fromkeys(ANSWERS, self._add_answer),
        }

    def feed(self, entry: Entry) -> Iterator[TurnEntries | Rollback]:
        move = self._moves.get(entry.sort)
        if move is not None:
            yield from move(entry)
            return
        current = self._current
        if current is None:
            self._loose.append(entry)
            if len(self._loose) >= _LOOSE:
                yield TurnEntries(entries=self._loose)
                self._loose = []
            return
        current.entries.append(entry)
        if entry.sort == EntryEffect.SETTINGS and current.id is None and not current.answered and not current.ended:
            current.id = entry.turn

    @property
    def waiting(self) -> list[Entry]:
        """Entries whose turn may still go on."""
        return self._current.entries if self._current is not None else self._loose

    def finish(self) -> Iterator[TurnEntries]:
        if self._current is not None:
            self._current.closed = self._current.ended
            yield self._current
        elif self._loose:
            yield TurnEntries(entries=self._loose)

    def _start_turn(self, entry: Entry) -> Iterator[TurnEntries]:
        current = self._current
        if current is None or not self._adopts(current, entry):
            yield from self._begin_turn(entry, explicit=True)
            return
        current.entries.append(entry)
        current.explicit, current.id = True, entry.turn or current.id

    @staticmethod
    def _adopts(current: TurnEntries, entry: Entry) -> bool:
        """A prompt written just before its `task_started` belongs to it."""
        untouched = not (current.explicit or current.answered or current.ended or current.compacts)
        return untouched and (current.id is None or current.id == entry.turn)

    def _end_turn(self, entry: Entry) -> Iterator[TurnEntries]:
        current = self._current
        if current is None:
            self._loose.append(entry)
            return
        current.entries.append(entry)
        late = entry.turn is not None and entry.turn != current.id and entry.turn in self._finished
        if not late:
            current.ended, current.end_at = True, len(current.entries)
            current.id = current.id or entry.turn
        yield from ()

    def _add_prompt(self, entry: Entry) -> Iterator[TurnEntries]:
        current = self._current
        if current is None or not self._continues(current, entry):
            yield from self._begin_turn(entry)
            current = self._current
        else:
            current.entries.append(entry)
        if current is not None:
            current.prompted = True
            current.half = entry.sort if current.half is None and not current.answered else None

    @staticmethod
    def _continues(current: TurnEntries, entry: Entry) -> bool:
        """Is this prompt one more of the turn at hand, or the other half of its prompt?"""
        if entry.turn is not None and entry.turn == current.id:
            return True
        if current.ended:
            return False
        if current.explicit or not (current.prompted or current.answered):
            return True
        return not current.answered and current.half is not None and current.half != entry.sort

    def _add_agent_message(self, entry: Entry) -> Iterator[TurnEntries]:
        current = self._current
        if current is None or (current.ended and entry.turn != current.id):
            yield from self._begin_turn(entry)
        else:
            current.entries.append(entry)
        if self._current is not None:
            self._current.prompted = True

    def _add_answer(self, entry: Entry) -> Iterator[TurnEntries]:
        current = self._current
        elsewhere = current is not None and current.ended and entry.turn not in (None, current.id)
        if current is None or elsewhere:
            yield from self._begin_turn(entry)
            current = self._current
        else:
            current.entries.append(entry)
        if current is not None:
            current.answered, current.half = True, None
            current.id = current.id or entry.turn

    def _add_compaction(self, entry: Entry) -> Iterator[TurnEntries]:
        if self._current is None or self._current.ended:
            yield from self._begin_turn(entry)
        else:
            self._current.entries.append(entry)
        if self._current is not None:
            self._current.compacts = True

    def _roll_back(self, entry: Entry) -> Iterator[TurnEntries | Rollback]:
        current, self._current = self._current, None
        if current is not None:
            yield self._close(current)
        yield Rollback(max(whole_number(entry.value.get("num_turns")) or 0, 0), entry)

    def _begin_turn(self, entry: Entry, explicit: bool = False) -> Iterator[TurnEntries]:
        current = self._current
        if current is None:
            before, self._loose = self._loose, []
        else:
            before = _preamble(current)
            yield self._close(current)
        turn_id = next((earlier_entry.turn for earlier_entry in before if earlier_entry.turn is not None), None)
        self._current = TurnEntries([*before, entry], entry.turn or turn_id, explicit)

    def _close(self, group: TurnEntries) -> TurnEntries:
        group.closed = True
        if group.id is not None:
            self._finished.add(group.id)
        return group


def _preamble(group: TurnEntries) -> list[Entry]:
    """Takes from a turn what was written for the next one."""
    entries = group.entries
    if group.ended:
        late = entries[group.end_at :]
        group.entries = entries[: group.end_at] + [entry for entry in late if not _is_next(entry, group)]
        return [entry for entry in late if _is_next(entry, group)]
    if group.explicit:
        return []
    position = len(entries)
    while position and _is_next(entries[position - 1], group):
        position -= 1
    group.entries = entries[:position]
    return entries[position:]


def _is_next(entry: Entry, group: TurnEntries) -> bool:
    return entry.sort in PREAMBLE and (entry.turn is None or entry.turn != group.id)
