"""Conversations of OpenHands, whichever form their events have.

Where they lie, what their events are, and their events in order; and their turns, event by event.
Both forms of events say the same things; here they are said once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import Enum, auto
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.foreign_files import (
    BOM,
    RowLines,
    first_objects,
    names_beneath,
    read_beside,
    read_document,
    read_whole,
    records,
    report_damage,
)
from weft.exchange.importers.foreign_values import (
    JsonObject,
    canonical,
    fingerprint,
    mapping,
    millis,
    present,
    sequence,
    text,
    whole_number,
)
from weft.exchange.importers.native_turns import PendingCall, finished_items, identity, summed_tokens
from weft.exchange.importers.port import Item, NativeCompaction, NativeMessage, NativeTurn, Report, Source, Tokens
from weft.kernel.enums import FileKind, MessageRole, MessageSource
from weft.ledger.model import FileNote, TextPart

# --- Where conversations lie, what their events are, and their events in order.


class EventTreatment(Enum):
    """What an event is to the turns."""

    MAPPED = auto()
    """A turn or its session is made of it."""
    ASIDE = auto()
    """Known, and said by nothing but the verbatim copy."""
    UNKNOWN = auto()


CALLS = frozenset(
    {
        "read", "write", "edit", "run", "run_ipython", "browse", "browse_interactive", "call_tool_mcp", "delegate",
        "think", "finish", "reject", "task_tracking", "push", "send_pr", "loop_recovery",
    }
)  # fmt: skip
"""V0: actions that are tool calls."""
ACTIONS = CALLS | {"message", "system", "recall", "condensation", "change_agent_state"}
QUIET_ACTIONS = frozenset({"null", "start", "pause", "resume", "stop", "condensation_request"})
OBSERVATIONS = frozenset(
    {
        "read", "write", "edit", "browse", "run", "run_ipython", "chat", "delegate", "message", "error", "success",
        "think", "agent_state_changed", "user_rejected", "recall", "mcp", "download", "task_tracking", "loop_detection",
    }
)  # fmt: skip
QUIET_OBSERVATIONS = frozenset({"null", "condense", "llm_response"})
EVENTS = frozenset(
    {
        "SystemPromptEvent", "MessageEvent", "ActionEvent", "ObservationEvent", "AgentErrorEvent",
        "UserRejectObservation", "Condensation", "ConversationStateUpdateEvent", "ConversationErrorEvent", "PauseEvent",
        "InterruptEvent", "ACPToolCallEvent",
    }
)  # fmt: skip
"""V1."""
QUIET_EVENTS = frozenset(
    {
        "CondensationRequest", "CondensationSummaryEvent", "TokenEvent", "LLMCompletionLogEvent", "HookExecutionEvent",
        "StreamingDeltaEvent", "ServerErrorEvent", "ResumeTranscriptEvent",
    }
)  # fmt: skip
DONE = frozenset({"finished", "awaiting_user_input", "stopped", "error", "rejected", "idle", "stuck", "deleting"})
"""States in which no more of the turn is to come."""
MAPPED_KEYS = frozenset({"stats", "execution_status", "agent_status", "full_state"})


def is_v1(event: dict[str, Any]) -> bool:
    return isinstance(event.get("kind"), str)


def classify(event: dict[str, Any]) -> tuple[str, EventTreatment]:
    """An event's kind, as it is counted, and what becomes of it."""
    if is_v1(event):
        kind = str(event["kind"])
        if kind == "ConversationStateUpdateEvent":
            key = text(event.get("key")) or "none"
            return f"{kind}.{key}", EventTreatment.MAPPED if key in MAPPED_KEYS else EventTreatment.ASIDE
        return kind, _treatment(kind, EVENTS, QUIET_EVENTS)
    if (action := text(event.get("action"))) is not None:
        return f"action.{action}", _treatment(action, ACTIONS, QUIET_ACTIONS)
    if (observed := text(event.get("observation"))) is not None:
        return f"observation.{observed}", _treatment(observed, OBSERVATIONS, QUIET_OBSERVATIONS)
    return "untyped", EventTreatment.UNKNOWN


def _treatment(kind: str, mapped: frozenset[str], quiet: frozenset[str]) -> EventTreatment:
    return (
        EventTreatment.MAPPED if kind in mapped else EventTreatment.ASIDE if kind in quiet else EventTreatment.UNKNOWN
    )


EVENT_FILE = re.compile(r"event-(\d{5,})-[0-9A-Za-z-]{4,}\.json|(\d{1,9})\.json")
LINES = frozenset({".jsonl", ".ndjson"})
STATE, DETAILS = "base_state.json", "metadata.json"
STATE_SIGNS = ("execution_status", "agent_status", "persistence_dir", "stats", "confirmation_policy", "workspace")
LIST = re.compile(rb'\s*(?:\{\s*"trajectory"\s*:\s*)?\[\s*\{')
LIST_SIGNS = (b'"source"', b'"timestamp"', b'"args"', b'"extras"', b'"cause"', b'"tool_call_id"', b'"llm_message"')


class StorageForm(Enum):
    LIST = auto()
    LINES = auto()
    """Events, or results of an evaluation, each with the history of a conversation."""
    FOLDER = auto()


def container(source: Source) -> StorageForm | None:
    head = source.head.removeprefix(BOM)
    if source.path.name == STATE:
        return StorageForm.FOLDER if is_state(_object(head)) else None
    if event_number(source.path) is not None and is_event(_object(head)):
        return StorageForm.FOLDER if stands_for_folder(source.path) else None
    values = [value for value in first_objects(head, 8) if is_event(value) or is_result(value)]
    if len(values) > 1 or (values and source.path.suffix in LINES):
        return StorageForm.LINES
    return StorageForm.LIST if _is_list(source, head) else None


def is_part(source: Source) -> bool:
    path = source.path
    if path.parent.name == "event_cache":
        return path.parent.parent.joinpath("events").is_dir()
    if path.name == DETAILS:
        return path.parent.joinpath("events").is_dir() and b'"conversation_id"' in source.head
    is_event_file = event_number(path) is not None and is_event(_object(source.head))
    return is_event_file and not stands_for_folder(path)


def _object(head: bytes) -> dict[str, Any]:
    """A whole document, or, of a long one, its first fields as far as signs tell them."""
    try:
        return mapping(orjson.loads(head))
    except orjson.JSONDecodeError:
        names = re.findall(rb'"([a-z_]{2,32})"\s*:', head[:65536]) if head.lstrip().startswith(b"{") else []
        return {name.decode(): "..." for name in names}


def is_event(value: dict[str, Any]) -> bool:
    """An event of either form."""
    if "source" not in value or "timestamp" not in value:
        return False
    if "kind" in value:
        kind = text(value.get("kind")) or ""
        return kind == "..." or kind.endswith(("Event", "Observation")) or kind.startswith("Condensation")
    is_action_or_observation = ("action" in value and "args" in value) or (
        "observation" in value and "content" in value
    )
    return is_action_or_observation and "message" in value


def is_result(value: dict[str, Any]) -> bool:
    """A line of an evaluation's output."""
    history = sequence(value.get("history"))
    return "instance_id" in value and any(is_event(event) for event in flattened(history[:4]))


def flattened(history: list[Any]) -> list[dict[str, Any]]:
    """Older evaluations pair each action with its observation."""
    objects: list[dict[str, Any]] = []
    for entry in history:
        objects += [item for item in entry if isinstance(item, dict)] if isinstance(entry, list) else [mapping(entry)]
    return objects


def is_state(value: dict[str, Any]) -> bool:
    return "agent" in value and "id" in value and sum(name in value for name in STATE_SIGNS) >= 2


def _is_list(source: Source, head: bytes) -> bool:
    if LIST.match(head) is None:
        return False
    if source.size > len(source.head):
        return sum(sign in head for sign in LIST_SIGNS) >= 3
    try:
        value = orjson.loads(head)
    except orjson.JSONDecodeError:
        return sum(sign in head for sign in LIST_SIGNS) >= 3
    events = value if isinstance(value, list) else sequence(value.get("trajectory"))
    return any(is_event(event) for event in flattened(events[:8]))


def event_number(path: Path) -> int | None:
    """The place of an event's file in its folder."""
    match = EVENT_FILE.fullmatch(path.name) if path.parent.name == "events" else None
    return None if match is None else int(match[1] or match[2])


def stands_for_folder(path: Path) -> bool:
    """Does this file stand for its conversation? Where the state lies beside the events, that does."""
    return main_file(path.parent.parent) == path


def main_file(conversation: Path) -> Path | None:
    """The file that stands for a conversation's folder."""
    state = conversation / STATE
    if state.is_file():
        return state
    try:
        changed = (conversation / "events").stat().st_mtime_ns
    except OSError:
        return None
    first = _first(str(conversation / "events"), changed)
    return None if first is None else conversation / "events" / first


@lru_cache(maxsize=8)
def _first(folder: str, changed: int) -> str | None:
    files = event_files(Path(folder))
    return files[0].name if files else None


def session_file_of(path: Path) -> Path | None:
    """The file that stands for the conversation which this one is a part of."""
    return main_file(path.parent if path.name == DETAILS else path.parent.parent)


def part_files_of(path: Path) -> list[Path]:
    """All files of a conversation but the one that stands for it."""
    is_event = event_number(path) is not None
    if not is_event and path.name != STATE:
        return []
    home = path.parent.parent if is_event else path.parent
    return [file for file in (*event_files(home / "events"), home / DETAILS) if file != path and file.is_file()]


def event_files(folder: Path) -> list[Path]:
    """In order; links may lead anywhere and are left out."""
    numbered = ((event_number(folder / name), name) for name in names_beneath(folder, folder.parent))
    return [folder / name for number, name in sorted((n, name) for n, name in numbered if n is not None)]


HEX = re.compile(r"([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})")


class Event(Struct, frozen=True):
    value: JsonObject
    offset: int = 0
    end: int = 0


class Conversation(Struct):
    id: str
    events: list[Event] = field(default_factory=list)
    state: JsonObject = field(default_factory=dict)
    details: JsonObject = field(default_factory=dict)
    """What V0 keeps beside the events: title, repository, branch; or what an evaluation tells."""
    raw: bytes | None = None


def read_list(source: Source, report: Report) -> Iterator[Conversation]:
    """An export: a list, or an object that holds it."""
    document = read_document(read_whole(source))
    report_damage(document, report)
    value = document.value
    fields = mapping(value)
    for name in fields:
        if name != "trajectory":
            report.found += 1
            report.kept[f"export.{name}"] += 1
            report.unknown[f"export.{name}"] += 1
    listed = sequence(fields.get("trajectory")) if fields else sequence(value)
    events = _objects(listed, report)
    if events:
        id = f"trajectory@{fingerprint(_beginning(events))}"
        yield Conversation(id, [Event(event, 0, source.size) for event in events])


def _objects(listed: list[Any], report: Report) -> list[JsonObject]:
    """Events, also where they stand in pairs; what is no object is damaged."""
    report.found += sum(max(len(entry), 1) if isinstance(entry, list) else 1 for entry in listed)
    events = [event for event in flattened(listed) if event]
    damaged_count = sum(max(len(entry), 1) if isinstance(entry, list) else 1 for entry in listed) - len(events)
    if damaged_count:
        report.damaged += damaged_count
        report.problem(None, f"{damaged_count} of the events are no objects")
    return events


def _beginning(events: list[JsonObject]) -> list[Any]:
    """Events tell the time to the microsecond."""
    names = ("id", "timestamp", "source", "message", "action", "observation", "content", "args")
    return [{name: event.get(name) for name in names if name in event} for event in events[:1]]


def read_lines(source: Source, report: Report) -> Iterator[Conversation]:
    """Events of one conversation, or a conversation a line."""
    events: list[Event] = []
    for record in records(source, report):
        if is_result(record.value):
            report.mapped["result"] += 1
            yield _result(record.value, record.offset, record.end, report)
        else:
            events.append(Event(record.value, record.offset, record.end))
    if events:
        first = next((id for event in events if (id := text(event.value.get("id"))) is not None), None)
        id = first or f"trajectory@{fingerprint(_beginning([event.value for event in events]))}"
        yield Conversation(id, events)


def _result(value: JsonObject, offset: int, end: int, report: Report) -> Conversation:
    events = _objects(sequence(value.get("history")), report)
    id = f"{value.get('instance_id')}@{fingerprint(_beginning(events))}"[:200]
    details = {name: value[name] for name in ("instance_id", "error", "instruction") if value.get(name)}
    return Conversation(id, [Event(event, offset, end) for event in events], details=details)


def read_folder(source: Source, report: Report) -> Iterator[Conversation]:
    folder = source.path.parent if source.path.name == STATE else source.path.parent.parent
    lines = RowLines()
    state, details = (_read_state(folder / name, lines, report) for name in (STATE, DETAILS))
    conversation = Conversation(_folder_name(state, details, folder), state=state, details=details)
    for file in event_files(folder / "events"):
        value = _read_file(file, folder, lines, report)
        if value is not None:
            conversation.events.append(Event(value, lines.count - 1, lines.count))
    conversation.raw = lines.finish()
    yield conversation


def _folder_name(state: JsonObject, details: JsonObject, folder: Path) -> str:
    """The conversation's id; V1 calls its folder by the same without dashes."""
    words = text(state.get("id")) or text(details.get("conversation_id")) or folder.name
    match = HEX.fullmatch(words)
    return "-".join(match.groups()) if match else words or "conversation"


def _read_state(file: Path, lines: RowLines, report: Report) -> JsonObject:
    if not file.is_file():
        return {}
    value = _read_file(file, file.parent, lines, report)
    if value is None:
        return {}
    report.mapped[file.stem] += 1
    return value


def _read_file(file: Path, root: Path, lines: RowLines, report: Report) -> JsonObject | None:
    """One file's object. It may vanish or be cut while it is read."""
    data = read_beside(file, root, report)
    if data is None:
        return None
    lines.add(file.name, data)
    report.found += 1
    document = read_document(data)
    if document.damage is None and isinstance(document.value, dict):
        return document.value
    report.damaged += 1
    report.problem(None, f"{file.name} is not readable: {document.damage or 'no object'}"[:300])
    return None


# --- Turns of a conversation, event by event.


def event_time(event: dict[str, Any]) -> tuple[int | None, str | None]:
    """Unix milliseconds, or the words that name no zone."""
    timestamp = event.get("timestamp")
    time = millis(timestamp) if isinstance(timestamp, str) else None
    return time, text(timestamp) if time is None else None


LISTED = "Here's the files and directories"
"""How the editor begins where it was to view a folder."""
EDITORS = frozenset({"file_editor", "str_replace_editor", "planning_file_editor"})


def action_files(action: str, arguments: dict[str, Any]) -> tuple[FileNote, ...]:
    """V0: actions are named by what they do."""
    path = text(arguments.get("path"))
    if path is None or action not in ("read", "write", "edit"):
        return ()
    if action != "read":
        return (FileNote(kind=FileKind.WRITTEN, path=path),)
    line_range = sequence(arguments.get("view_range")) or [arguments.get("start"), arguments.get("end")]
    return (_read_note(path, line_range),)


def _read_note(path: str, line_range: list[Any]) -> FileNote:
    """From a line to a line; an end of -1 is that of the file."""
    first, last = (whole_number(number) for number in [*line_range, None, None][:2])
    end = last if last is not None and last > 0 else None
    start = first if end is not None or (first or 0) > 0 else None
    return FileNote(kind=FileKind.READ, path=path, line_start=start, line_end=end)


def tool_files(tool: str, arguments: Any) -> tuple[FileNote, ...]:
    """V1: the editor that Anthropic defined."""
    fields = mapping(arguments)
    path, command = text(fields.get("path")), text(fields.get("command"))
    if tool not in EDITORS or path is None:
        return ()
    if command == "view":
        return (_read_note(path, sequence(fields.get("view_range"))),)
    return (FileNote(kind=FileKind.WRITTEN, path=path),)


def settled_files(notes: tuple[FileNote, ...], result: Any, is_error: bool) -> tuple[FileNote, ...]:
    """As the outcome shows them: a failed call touched nothing, and a folder is no file."""
    if is_error:
        return ()
    if isinstance(result, str) and result.startswith(LISTED):
        return tuple(FileNote(kind=FileKind.REFERENCED, path=note.path) for note in notes)
    return notes


class Span(Struct, frozen=True):
    """Where an event lies in its source, and by which id the conversation knows it."""

    id: str
    offset: int = 0
    end: int = 0


class TurnDraft(Struct):
    """A turn under way."""

    key: str
    parent: int | None
    offset: int
    end: int = 0
    items: list[NativeMessage | PendingCall] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    literal: str | None = None
    injected: list[Any] = field(default_factory=list)
    """What was put beside the prompt: rules, knowledge, the workspace."""
    forgotten: tuple[str, ...] | None = None
    """Of a condensation: the events that left the context."""
    compaction: NativeCompaction | None = None
    error: str | None = None
    is_interrupted: bool = False
    is_done: bool = False
    """The agent said, or was said to be in a state, that ends a turn."""
    tools: tuple[str, ...] | None = None

    @property
    def has_prompt(self) -> bool:
        return any(isinstance(item, NativeMessage) and item.role is MessageRole.USER for item in self.items)

    @property
    def is_answered(self) -> bool:
        return any(isinstance(item, PendingCall) or item.role is MessageRole.ASSISTANT for item in self.items)


class TurnEvents:
    """Takes what the events say, one after another."""

    def __init__(self, prefix: str) -> None:
        """`prefix` makes the ids of events unique where they only count within a conversation."""
        self._prefix = prefix
        self.drafts: list[TurnDraft] = []
        self._groups: dict[str, int] = {}
        self._calls: dict[str, PendingCall] = {}
        self._turn_of: dict[str, int] = {}
        self._prompt_key: str | None = None
        self._keys: set[str] = set()
        self.tools: tuple[str, ...] | None = None
        self.workspace: str | None = None

    def _draft(self, span: Span) -> TurnDraft:
        """The turn that an event belongs to; it begins one if none is under way."""
        if not self.drafts or self.drafts[-1].forgotten is not None:
            self._begin_turn(span, None if self._prompt_key is None else f"{self._prompt_key}#{span.id}")
        draft = self.drafts[-1]
        draft.end = max(draft.end, span.end)
        draft.names.append(span.id)
        self._turn_of[span.id] = len(self.drafts) - 1
        return draft

    def _begin_turn(self, span: Span, key: str | None = None) -> None:
        unique = base_key = key or f"{self._prefix}{span.id}"
        number = 1
        while unique in self._keys:
            number += 1
            unique = f"{base_key}~{number}"
        self._keys.add(unique)
        parent = len(self.drafts) - 1 if self.drafts else None
        self.drafts.append(TurnDraft(key=unique, parent=parent, offset=span.offset, tools=self.tools))
        self._groups = {}

    def add_prompt(self, span: Span, message: NativeMessage) -> None:
        """A user's message: a turn begins, unless nothing has happened in this one yet but what comes before."""
        last_draft = self.drafts[-1] if self.drafts else None
        if last_draft is None or last_draft.forgotten is not None or last_draft.is_answered or last_draft.has_prompt:
            self._begin_turn(span)
        draft = self._draft(span)
        self._prompt_key = draft.key
        draft.items.append(message)
        self._note_time(draft, message)
        draft.is_done = False

    def add_message(self, span: Span, message: NativeMessage) -> None:
        """Words that neither begin a turn nor are a response."""
        draft = self._draft(span)
        draft.items.append(message)
        self._note_time(draft, message)

    def inject(self, span: Span, value: Any) -> None:
        self._draft(span).injected.append(value)

    def respond(self, span: Span, message: NativeMessage, calls: Iterable[PendingCall], group: str | None) -> None:
        """A response; calls that came with one that is known already join it."""
        draft = self._draft(span)
        new_calls = list(calls)
        place = None if group is None else self._groups.get(group)
        if place is None:
            self._groups = {} if group is None else {group: len(draft.items)}
            draft.items.append(message)
        else:
            draft.items[place] = _joined(draft.items[place], message)
        draft.items += new_calls
        for call in new_calls:
            self._calls[span.id] = self._calls[call.id] = call
        self._note_time(draft, message)
        draft.is_done = draft.is_interrupted = False
        draft.error = None

    def call(self, *names: str | None) -> PendingCall | None:
        """The call of this id, or that this event made."""
        return next(
            (pending_call for name in names if name is not None and (pending_call := self._calls.get(name))), None
        )

    def touch(self, span: Span) -> TurnDraft:
        return self._draft(span)

    def compact(self, span: Span, compaction: NativeCompaction, forgotten: Iterable[str], items: list[Item]) -> None:
        self._begin_turn(span)
        draft = self._draft(span)
        draft.compaction, draft.forgotten, draft.is_done = compaction, tuple(forgotten), True
        draft.items += [item for item in items if isinstance(item, NativeMessage)]

    def set_state(self, name: str | None, error: str | None = None) -> None:
        """The agent is in a state now."""
        if not self.drafts or name is None:
            return
        draft = self.drafts[-1]
        if draft.is_answered or error is not None:
            draft.is_done = name in DONE
        if error is not None:
            draft.error = error

    def fail(self, span: Span, error: str) -> None:
        draft = self._draft(span)
        draft.error, draft.is_done = error, True

    def interrupt(self) -> None:
        if self.drafts:
            self.drafts[-1].is_interrupted = True

    def spend(self, tokens: Tokens) -> None:
        """What was spent after the last response, or beside it: it counts with that."""
        for draft in reversed(self.drafts):
            for place in range(len(draft.items) - 1, -1, -1):
                item = draft.items[place]
                if isinstance(item, NativeMessage) and item.role is MessageRole.ASSISTANT:
                    total = tokens if item.tokens is None else summed_tokens(item.tokens, tokens)
                    draft.items[place] = replace(item, tokens=total)
                    return

    def _note_time(self, draft: TurnDraft, message: NativeMessage) -> None:
        if message.at is not None:
            draft.times.append(message.at)
        elif draft.literal is None:
            draft.literal = message.literal_time

    def turns(self, size: int) -> list[NativeTurn]:
        return [self._turn(number, draft, size) for number, draft in enumerate(self.drafts)]

    def _turn(self, number: int, draft: TurnDraft, size: int) -> NativeTurn:
        items = _finished(draft)
        is_last = number == len(self.drafts) - 1
        return NativeTurn(
            key=draft.key,
            records=identity(items) + (() if draft.compaction is None else (canonical([draft.compaction.summary]),))
            or (canonical([draft.key]),),
            names=tuple(dict.fromkeys(draft.names)),
            items=tuple(items),
            parent=draft.parent,
            compaction=self._compaction(number, draft),
            closed=not is_last or draft.is_done,
            error=draft.error,
            interrupted=draft.is_interrupted,
            started=min(draft.times, default=None),
            ended=max(draft.times, default=None),
            literal_time=draft.literal if not draft.times else None,
            workspace=self.workspace,
            tools=draft.tools,
            offset=draft.offset,
            end=draft.end or size,
        )

    def _compaction(self, number: int, draft: TurnDraft) -> NativeCompaction | None:
        """Up to the turn of the last event forgotten, keeping from the turn of the first event after it."""
        if draft.compaction is None:
            return None
        forgotten = set(draft.forgotten or ())
        order = [(id, turn) for id, turn in self._turn_of.items() if turn < number]
        last = max((place for place, (id, _) in enumerate(order) if id in forgotten), default=None)
        if last is None:
            return draft.compaction
        first_kept = order[last + 1][1] if last + 1 < len(order) else None
        return replace(draft.compaction, through=order[last][1], first_kept=first_kept)


def _joined(response: NativeMessage | PendingCall, addition: NativeMessage) -> NativeMessage | PendingCall:
    """One response told by several events: each says what the others leave out."""
    if isinstance(response, PendingCall) or not addition.parts or addition.parts == response.parts:
        return response
    return replace(
        response, parts=response.parts + tuple(part for part in addition.parts if part not in response.parts)
    )


def _finished(draft: TurnDraft) -> list[Item]:
    items: list[Item] = list(finished_items(draft.items))
    if draft.injected:
        place = next((n for n, item in enumerate(items) if getattr(item, "role", None) is MessageRole.USER), None)
        if place is None:
            items.insert(0, NativeMessage(role=MessageRole.SYSTEM, parts=(), source=MessageSource.EVENT))
            place = 0
        prompt = items[place]
        if isinstance(prompt, NativeMessage):
            items[place] = replace(prompt, context=present(**mapping(prompt.context), injected=draft.injected))
    return items


def summary_message(summary: str | None, **fields: Any) -> list[Item]:
    if not summary:
        return []
    return [NativeMessage(role=MessageRole.ASSISTANT, parts=(TextPart(summary),), **fields)]
