"""Where conversations lie, what their events are, and their events in order.

A conversation is exported as one list or as lines, or it is a folder with a file for each event. V0:
`<conversation>/events/<n>.json`, beside it `metadata.json`. V1: `<conversation>/events/event-<n>-<id>.json`, beside it
`base_state.json`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct, field

from weft.exchange.importers.databases import RowLines
from weft.exchange.importers.documents import read_document, report_damage
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.records.jsonl import BOM, first_objects, read_whole, records
from weft.exchange.importers.records.values import JsonObject, fingerprint, mapping, sequence, text
from weft.exchange.importers.sidecars import names_beneath, read_beside


class Treatment(Enum):
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


def classify(event: dict[str, Any]) -> tuple[str, Treatment]:
    """An event's kind, as it is counted, and what becomes of it."""
    if is_v1(event):
        kind = str(event["kind"])
        if kind == "ConversationStateUpdateEvent":
            key = text(event.get("key")) or "none"
            return f"{kind}.{key}", Treatment.MAPPED if key in MAPPED_KEYS else Treatment.ASIDE
        return kind, _treatment(kind, EVENTS, QUIET_EVENTS)
    if (action := text(event.get("action"))) is not None:
        return f"action.{action}", _treatment(action, ACTIONS, QUIET_ACTIONS)
    if (observed := text(event.get("observation"))) is not None:
        return f"observation.{observed}", _treatment(observed, OBSERVATIONS, QUIET_OBSERVATIONS)
    return "untyped", Treatment.UNKNOWN


def _treatment(kind: str, mapped: frozenset[str], quiet: frozenset[str]) -> Treatment:
    return Treatment.MAPPED if kind in mapped else Treatment.ASIDE if kind in quiet else Treatment.UNKNOWN


EVENT_FILE = re.compile(r"event-(\d{5,})-[0-9A-Za-z-]{4,}\.json|(\d{1,9})\.json")
LINES = frozenset({".jsonl", ".ndjson"})
STATE, DETAILS = "base_state.json", "metadata.json"
STATE_SIGNS = ("execution_status", "agent_status", "persistence_dir", "stats", "confirmation_policy", "workspace")
LIST = re.compile(rb'\s*(?:\{\s*"trajectory"\s*:\s*)?\[\s*\{')
LIST_SIGNS = (b'"source"', b'"timestamp"', b'"args"', b'"extras"', b'"cause"', b'"tool_call_id"', b'"llm_message"')


class Container(Enum):
    LIST = auto()
    LINES = auto()
    """Events, or results of an evaluation, each with the history of a conversation."""
    FOLDER = auto()


def container(source: Source) -> Container | None:
    head = source.head.removeprefix(BOM)
    if source.path.name == STATE:
        return Container.FOLDER if is_state(_object(head)) else None
    if event_number(source.path) is not None and is_event(_object(head)):
        return Container.FOLDER if stands_for_folder(source.path) else None
    values = [value for value in first_objects(head, 8) if is_event(value) or is_result(value)]
    if len(values) > 1 or (values and source.path.suffix in LINES):
        return Container.LINES
    return Container.LIST if _is_list(source, head) else None


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
    return "instance_id" in value and any(is_event(each) for each in flattened(history[:4]))


def flattened(history: list[Any]) -> list[dict[str, Any]]:
    """Older evaluations pair each action with its observation."""
    objects: list[dict[str, Any]] = []
    for each in history:
        objects += [item for item in each if isinstance(item, dict)] if isinstance(each, list) else [mapping(each)]
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


def whole_of(path: Path) -> Path | None:
    """The file that stands for the conversation which this one is a part of."""
    return main_file(path.parent if path.name == DETAILS else path.parent.parent)


def parts_of(path: Path) -> list[Path]:
    """All files of a conversation but the one that stands for it."""
    is_event = event_number(path) is not None
    if not is_event and path.name != STATE:
        return []
    home = path.parent.parent if is_event else path.parent
    return [each for each in (*event_files(home / "events"), home / DETAILS) if each != path and each.is_file()]


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
    report.found += sum(max(len(each), 1) if isinstance(each, list) else 1 for each in listed)
    events = [event for event in flattened(listed) if event]
    lost = sum(max(len(each), 1) if isinstance(each, list) else 1 for each in listed) - len(events)
    if lost:
        report.damaged += lost
        report.problem(None, f"{lost} of the events are no objects")
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
