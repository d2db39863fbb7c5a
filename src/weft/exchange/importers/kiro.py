"""Sessions of Kiro and of Amazon Q before it: three stores of the command line, and those of the
editor.

Some are one JSON document each, others JSON lines. All five containers are read into one form of
steps, and one mapping makes turns of them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.foreign_files import (
    BOM,
    MAGIC,
    UNREADABLE,
    Database,
    Record,
    RowLines,
    first_objects,
    open_database,
    read_beneath,
    read_whole,
    records,
)
from weft.exchange.importers.foreign_values import (
    json_object,
    json_value,
    mapping,
    millis,
    present,
    sequence,
    text,
    whole_number,
)
from weft.exchange.importers.kiro_turns import Kind, Outcome, Step, Turns, image_part, plain_content
from weft.exchange.importers.port import NativeCall, NativeSession, Place, Report, Source, Tokens, Transcript
from weft.ledger.model import Part, ReasoningPart, TextPart

# --- Sessions of Kiro that are one JSON document each.

METADATA_FIELDS = ("model_info", "latest_summary", "user_turn_metadata", "mcp_enabled")


def conversation_session(value: dict[str, Any], id: str, workspace: str | None, created: int | None) -> NativeSession:
    return NativeSession(
        id=id,
        workspace=workspace,
        created=created,
        metadata=present(**{name: value.get(name) for name in METADATA_FIELDS}, model=value.get("model")),
    )


def conversation_steps(value: dict[str, Any], report: Report, offset: int = 0) -> Iterator[Step]:
    model = text(mapping(value.get("model_info")).get("model_id")) or text(value.get("model"))
    for number, entry in enumerate(sequence(value.get("history"))):
        report.found += 1
        user, assistant, request = _history_entry(entry)
        if not user and not assistant:
            report.damaged += 1
            report.problem(None, "an entry of the history is neither a prompt nor an answer")
            continue
        report.mapped["exchange"] += 1
        position = offset + number
        yield from _prompt_steps(user, position)
        if (answer := _answer_steps(assistant, request, model, position)) is not None:
            yield answer


def _history_entry(entry: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    if isinstance(entry, list):
        pair: list[dict[str, Any]] = [*map(mapping, entry), {}, {}]
        return pair[0], pair[1], {}
    fields = mapping(entry)
    return mapping(fields.get("user")), mapping(fields.get("assistant")), mapping(fields.get("request_metadata"))


def _prompt_steps(user: dict[str, Any], number: int) -> Iterator[Step]:
    content = mapping(user.get("content"))
    cancelled = mapping(content.get("CancelledToolUses"))
    results = mapping(content.get("ToolUseResults")) or cancelled
    outcomes = [
        _conversation_outcome(mapping(result), bool(cancelled)) for result in sequence(results.get("tool_use_results"))
    ]
    if outcomes:
        identity = [[outcome.id, outcome.result, outcome.failed] for outcome in outcomes]
        yield Step(
            kind=Kind.RESULTS,
            outcomes=outcomes,
            identity=identity,
            stopped=bool(cancelled),
            offset=number,
            end=number + 1,
        )
    words = text(mapping(content.get("Prompt")).get("prompt")) or text(cancelled.get("prompt"))
    images = [part for image in sequence(user.get("images")) if (part := image_part(image)) is not None]
    if words is None and not images:
        return
    parts: list[Part] = [TextPart(words)] if words else []
    timestamp, environment = user.get("timestamp"), mapping(mapping(user.get("env_context")).get("env_state"))
    time = millis(timestamp)
    yield Step(
        kind=Kind.PROMPT,
        at=time,
        literal_time=text(timestamp) if time is None else None,
        parts=[*parts, *images],
        context=present(additional=text(user.get("additional_context"))),
        workspace=text(environment.get("current_working_directory")),
        identity=[words, [part.url for part in images]],
        offset=number,
        end=number + 1,
    )


def _conversation_outcome(fields: dict[str, Any], cancelled: bool) -> Outcome:
    failed = str(fields.get("status")).lower() == "error"
    return Outcome(text(fields.get("tool_use_id")) or "", plain_content(fields.get("content")), failed, cancelled)


def _answer_steps(assistant: dict[str, Any], request: dict[str, Any], model: str | None, number: int) -> Step | None:
    fields = mapping(assistant.get("ToolUse")) or mapping(assistant.get("Response"))
    if not fields:
        return None
    id, words = text(fields.get("message_id")), text(fields.get("content"))
    started = millis(request.get("request_start_timestamp_ms"))
    calls = [_conversation_call(mapping(tool_use), started) for tool_use in sequence(fields.get("tool_uses"))]
    return Step(
        kind=Kind.ANSWER,
        id=id,
        at=started,
        done=millis(request.get("stream_end_timestamp_ms")),
        parts=[TextPart(words)] if words else [],
        calls=calls,
        model=text(request.get("model_id")) or model,
        metadata=present(request=request.get("request_id"), context_usage=request.get("context_usage_percentage")),
        identity=[words, [[call.id, call.name, call.arguments] for call in calls]],
        offset=number,
        end=number + 1,
    )


def _conversation_call(fields: dict[str, Any], time: int | None) -> NativeCall:
    name = text(fields.get("name")) or text(fields.get("orig_name")) or ""
    arguments = fields.get("args", fields.get("orig_args"))
    return NativeCall(id=text(fields.get("id")) or "", name=name, arguments=arguments, at=time)


class Row(Struct, frozen=True):
    table: str
    folder: str
    id: str | None
    data: bytes
    created: int | None = None
    updated: int | None = None


def read_database(path: Path, report: Report) -> Iterator[Transcript]:
    with open_database(path, report) as database:
        if database is None:
            return
        try:
            rows = list(_rows(database))
        except UNREADABLE as error:
            report.problem(None, f"the database is not readable: {error}"[:300])
            return
        for row in rows:
            if (transcript := _transcript(row, report)) is not None:
                yield transcript


def _rows(database: Database) -> Iterator[Row]:
    if database.has("conversations_v2", "key", "conversation_id", "value"):
        names = ("created_at", "updated_at")
        times = ", ".join(name if database.has("conversations_v2", name) else "NULL" for name in names)
        sql = f"SELECT key, conversation_id, CAST(value AS BLOB), {times} FROM conversations_v2 ORDER BY 4, 2"
        for key, id, data, created, updated in database.walk(sql):
            yield Row("conversations_v2", str(key), text(id), data or b"", _time(created), _time(updated))
    if database.has("conversations", "key", "value"):
        for key, data in database.walk("SELECT key, CAST(value AS BLOB) FROM conversations ORDER BY key"):
            yield Row("conversations", str(key), None, data or b"")


def _time(value: Any) -> int | None:
    """Seconds or milliseconds, as the version had it."""
    time = millis(value)
    return time * 1000 if time is not None and time < 10**11 else time


def _transcript(row: Row, report: Report) -> Transcript | None:
    report.found += 1
    try:
        value = json_object(row.data)
    except ValueError as error:
        report.damaged += 1
        report.problem(None, f"the conversation of {row.folder} is not readable: {error}"[:300])
        return None
    report.mapped["conversation"] += 1
    lines = RowLines()
    lines.add(f"{row.table}:{row.folder}", row.data, id=row.id, created=row.created)
    id = text(value.get("conversation_id")) or row.id or row.folder
    session = conversation_session(value, id, row.folder, row.created)
    return Transcript(
        session=session,
        turns=Turns(session, id, row.updated or 0).walk(conversation_steps(value, report)),
        raw=lines.finish(),
    )


ROLES = {
    "user": Kind.PROMPT,
    "human": Kind.PROMPT,
    "assistant": Kind.ANSWER,
    "bot": Kind.ANSWER,
    "system": Kind.INJECTED,
}


def folder_name(path: Path) -> str | None:
    """The workspace that a folder's name stands for."""
    name = path.parent.name.replace("-", "+").replace("_", "/")
    try:
        folder = base64.b64decode(name + "=" * (-len(name) % 4), validate=True).decode()
    except (ValueError, binascii.Error):
        return None
    return folder if folder.isprintable() and ("/" in folder or "\\" in folder) else None


def editor_session(value: dict[str, Any], path: Path) -> NativeSession:
    return NativeSession(
        id=text(value.get("sessionId")) or path.stem,
        title=text(value.get("title")),
        workspace=text(value.get("workspaceDirectory")) or text(value.get("workspacePath")) or folder_name(path),
        created=millis(value.get("dateCreated")) or millis(value.get("createdAt")),
        metadata=present(model=value.get("selectedModel") or value.get("modelId"), kind=value.get("sessionType")),
    )


def editor_steps(value: dict[str, Any], report: Report) -> Iterator[Step]:
    model = text(value.get("selectedModel")) or text(value.get("modelId"))
    for number, entry in enumerate(sequence(value.get("history")) or sequence(value.get("messages"))):
        report.found += 1
        fields = mapping(entry)
        message = mapping(fields.get("message")) or fields
        role = text(message.get("role")) or "none"
        kind = ROLES.get(role)
        if kind is None:
            report.kept[f"message.{role}"] += 1
            report.unknown[f"message.{role}"] += 1
            continue
        report.mapped[f"message.{role}"] += 1
        parts = _editor_parts(message.get("content"))
        yield Step(
            kind=kind,
            id=text(message.get("id")),
            at=millis(message.get("timestamp")) or millis(fields.get("timestamp")),
            parts=parts,
            model=model if kind is Kind.ANSWER else None,
            context=present(items=fields.get("contextItems")) if kind is Kind.PROMPT else None,
            metadata=present(execution=fields.get("executionId")),
            identity=message.get("content"),
            offset=number,
            end=number + 1,
        )


def _editor_parts(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [TextPart(content)] if content else []
    parts: list[Part] = []
    for block in map(mapping, sequence(content)):
        if (words := text(block.get("text"))) is not None:
            parts.append(TextPart(words))
        elif (url := text(mapping(block.get("imageUrl")).get("url"))) and (part := image_part({"source": url})):
            parts.append(part)
    return parts


# --- Sessions of Kiro that are JSON lines.

KINDS = {
    "Prompt": Kind.PROMPT,
    "AssistantMessage": Kind.ANSWER,
    "ToolResults": Kind.RESULTS,
    "Compaction": Kind.COMPACTION,
    "Clear": Kind.CLEAR,
    "CancelledPrompt": Kind.BESIDE,
}


class SessionFile(Struct):
    """The file beside a log."""

    fields: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What a turn cost, by the id of its last answer."""

    @property
    def state(self) -> dict[str, Any]:
        return mapping(self.fields.get("session_state"))

    @property
    def model(self) -> str | None:
        return text(mapping(mapping(self.state.get("rts_model_state")).get("model_info")).get("model_id"))


def session_file(path: Path) -> SessionFile:
    try:
        fields = mapping(json_value(read_beneath(path.with_suffix(".json"), path.parent)))
    except (OSError, ValueError):
        return SessionFile()
    file = SessionFile(fields)
    turns = mapping(file.state.get("conversation_metadata")).get("user_turn_metadatas")
    for turn in map(mapping, sequence(turns)):
        last = text(mapping(mapping(turn.get("result")).get("Ok")).get("id"))
        message_ids = [id for message_id in sequence(turn.get("message_ids")) if (id := text(message_id))]
        if (id := last or (message_ids[-1] if message_ids else None)) is not None:
            file.costs[id] = turn
    return file


def log_session(path: Path, file: SessionFile) -> NativeSession:
    fields, state = file.fields, file.state
    return NativeSession(
        id=text(fields.get("session_id")) or path.stem,
        title=text(fields.get("title")),
        workspace=text(fields.get("cwd")),
        created=millis(fields.get("created_at")),
        parent=text(fields.get("parent_session_id")),
        agent=text(state.get("agent_name")),
        told_at=millis(fields.get("updated_at")),
        metadata=present(
            reason=fields.get("session_created_reason"), updated=fields.get("updated_at"), model=file.model
        ),
    )


def log_steps(source: Source, report: Report, file: SessionFile) -> Iterator[Step]:
    for record in records(source, report):
        name = text(record.value.get("kind")) or "none"
        kind = KINDS.get(name)
        if kind is None:
            report.kept[name] += 1
            report.unknown[name] += 1
            continue
        report.mapped[name] += 1
        yield _log_step(kind, record, file)


def _log_step(kind: Kind, record: Record, file: SessionFile) -> Step:
    data = mapping(record.value.get("data"))
    blocks = [mapping(value) for value in sequence(data.get("content"))]
    seconds = mapping(data.get("meta")).get("timestamp")
    step = Step(kind=kind, offset=record.offset, end=record.end, id=text(data.get("message_id")), at=_log_time(seconds))
    step.identity = blocks
    step.parts = [part for block in blocks if (part := _log_part(block)) is not None]
    step.calls = [_log_call(mapping(block.get("data"))) for block in blocks if block.get("kind") == "toolUse"]
    step.outcomes = [_log_outcome(mapping(block.get("data"))) for block in blocks if block.get("kind") == "toolResult"]
    if kind is Kind.COMPACTION:
        step.words = text(data.get("summary")) or ""
        step.identity = step.words
    elif kind is Kind.BESIDE:
        step.stopped = True
    elif kind is Kind.ANSWER:
        step.model = text(data.get("model")) or file.model
        _take_cost(step, file.costs.get(step.id or "", {}))
    return step


def _log_time(value: Any) -> int | None:
    """Counted in seconds, where it is a number."""
    number = whole_number(value)
    return number * 1000 if number is not None and 0 < number < 10**11 else millis(value)


def _log_part(block: dict[str, Any]) -> Part | None:
    kind, data = block.get("kind"), block.get("data")
    if kind == "text":
        return TextPart(data) if isinstance(data, str) and data else None
    if kind in ("thinking", "reasoning"):
        words = text(data) or text(mapping(data).get("text"))
        return ReasoningPart(words) if words else None
    return image_part(data) if kind == "image" else None


def _log_call(fields: dict[str, Any]) -> NativeCall:
    return NativeCall(
        id=text(fields.get("toolUseId")) or "", name=text(fields.get("name")) or "", arguments=fields.get("input")
    )


def _log_outcome(fields: dict[str, Any]) -> Outcome:
    status = str(fields.get("status")).lower()
    return Outcome(
        text(fields.get("toolUseId")) or "",
        plain_content(fields.get("content")),
        status == "error",
        status in ("cancelled", "canceled"),
    )


def _take_cost(step: Step, turn: dict[str, Any]) -> None:
    """Of a whole turn, told with its last answer. Noughts stand for what was not counted."""
    names = ("input_token_count", "output_token_count", "cache_read_input_token_count", "cache_write_input_token_count")
    counts = [whole_number(turn.get(name)) for name in names]
    if any(counts):
        step.tokens = Tokens(input=counts[0], output=counts[1], cached=counts[2], cache_write=counts[3])
    step.model = text(turn.get("model")) or step.model
    step.done = millis(turn.get("end_timestamp"))
    credits = [usage for usage in map(mapping, sequence(turn.get("metering_usage"))) if usage]
    step.metadata = present(metering=credits, context_usage=turn.get("context_usage_percentage"))


ELIDED = frozenset({"...", "…"})
"""What stands for thoughts that were not kept."""
ASIDE = frozenset(
    {"session_metadata", "session_event", "sub_agent_start", "sub_agent_end", "focus_update", "tombstone"}
)
"""Known, and told by the verbatim copy alone."""


def event_session(path: Path) -> NativeSession:
    """An execution of a subagent lies in a folder of the session's."""
    folder = path.parent
    is_child = folder.name == "sub-executions"
    home = folder.parent if is_child else folder
    try:
        fields = mapping(json_value(read_beneath(home / "session.json", home)))
    except (OSError, ValueError):
        fields = {}
    id = text(fields.get("id")) or home.name
    places = [place for value in sequence(fields.get("workspacePaths")) if (place := text(value))]
    return NativeSession(
        id=f"{id}/{path.stem}" if is_child else id,
        title=None if is_child else text(fields.get("title")),
        workspace=places[0] if places else None,
        created=None if is_child else millis(fields.get("createdAt")),
        parent=id if is_child else text(fields.get("parentSessionId")),
        told_at=millis(fields.get("lastModifiedAt")),
        metadata=present(
            model=fields.get("modelId"),
            reason=fields.get("createdReason"),
            updated=fields.get("lastModifiedAt"),
            workspaces=places[1:],
        ),
    )


def event_steps(source: Source, report: Report, model: str | None) -> Iterator[Step]:
    """A session's first event may hold the prompt, or what Kiro tells the model about itself: it is the prompt if an
    answer follows without another."""
    opening: Step | None = None
    for record in records(source, report):
        payload = mapping(record.value.get("payload"))
        name = text(payload.get("type")) or "none"
        maker = MAKERS.get(name)
        if maker is None:
            report.kept[name] += 1
            if name not in ASIDE:
                report.unknown[name] += 1
            continue
        report.mapped[name] += 1
        step = maker(payload)
        step.offset, step.end, step.at = record.offset, record.end, millis(record.value.get("timestamp"))
        step.id = _id(record.value.get("id"))
        step.model = model if step.kind is Kind.ANSWER else None
        if name == "session_start":
            if opening is not None:
                yield opening
            opening = step if step.parts else None
            continue
        if opening is not None:
            if step.kind in (Kind.ANSWER, Kind.RESULTS) or name == "turn_start":
                opening.kind = Kind.PROMPT
            yield opening
            opening = None
        if name != "turn_start":
            yield step
    if opening is not None:
        yield opening


def _id(value: Any) -> str | None:
    number = whole_number(value)
    return text(value) or (None if number is None else str(number))


def _start(payload: dict[str, Any]) -> Step:
    words = text(payload.get("content"))
    return Step(kind=Kind.INJECTED, parts=[TextPart(words)] if words else [], identity=words)


def _user(payload: dict[str, Any]) -> Step:
    words = text(payload.get("content"))
    images = [part for image in sequence(payload.get("images")) if (part := image_part(image)) is not None]
    parts: list[Part] = [TextPart(words)] if words else []
    return Step(
        kind=Kind.PROMPT,
        parts=[*parts, *images],
        metadata=present(source=payload.get("source"), documents=payload.get("documents")),
        identity=[words, [part.url for part in images]],
    )


def _assistant(payload: dict[str, Any]) -> Step:
    words, operation = text(payload.get("content")), text(payload.get("operationType"))
    is_thought = operation == "Reasoning"
    shown_parts: list[Part] = [] if words is None else [ReasoningPart(words) if is_thought else TextPart(words)]
    return Step(
        kind=Kind.ANSWER if words is not None and words not in ELIDED else Kind.BESIDE,
        parts=[] if words in ELIDED else shown_parts,
        metadata=present(
            sub_execution=payload.get("subExecutionId"),
            operation=None if operation in ("Say", "Reasoning") else operation,
        ),
        identity=[operation, words],
    )


def _event_call(payload: dict[str, Any]) -> Step:
    call = NativeCall(
        id=text(payload.get("toolCallId")) or "",
        name=text(payload.get("toolName")) or "",
        arguments=payload.get("args"),
        detail=present(
            action=payload.get("actionType"),
            choice=payload.get("selectedOption"),
            sub_execution=payload.get("subExecutionId"),
        ),
    )
    return Step(kind=Kind.ANSWER, calls=[call], identity=[call.id, call.name, call.arguments])


def _result(payload: dict[str, Any]) -> Step:
    content, failed = payload.get("content"), payload.get("success") is False
    cancelled = text(payload.get("status")) in ("cancelled", "canceled", "rejected", "aborted")
    outcome = Outcome(
        text(payload.get("toolCallId")) or "", content, failed, cancelled, whole_number(payload.get("durationMs"))
    )
    return Step(kind=Kind.RESULTS, outcomes=[outcome], identity=[outcome.id, content, failed])


def _turn_start(payload: dict[str, Any]) -> Step:
    return Step(kind=Kind.BESIDE, metadata=present(execution=payload.get("executionId")))


def _turn_end(payload: dict[str, Any]) -> Step:
    reason = (text(payload.get("stopReason")) or text(payload.get("status")) or "").lower()
    failed = any(word in reason for word in ("error", "fail", "refus", "limit"))
    stopped = any(word in reason for word in ("cancel", "abort", "interrupt"))
    words = text(payload.get("error")) or text(mapping(payload.get("error")).get("message"))
    return Step(kind=Kind.ENDED, error=words or (reason if failed else None), stopped=stopped, identity=reason)


def _usage(payload: dict[str, Any]) -> Step:
    """In credits; Kiro counts no tokens here."""
    fields = present(metering=payload.get("promptTurnSummaries"), elapsed_ms=payload.get("elapsedTime"))
    return Step(kind=Kind.BESIDE, metadata=fields)


def _summary(payload: dict[str, Any]) -> Step:
    words = text(payload.get("summary")) or text(payload.get("content")) or ""
    return Step(kind=Kind.COMPACTION, words=words, identity=words)


MAKERS: dict[str, Callable[[dict[str, Any]], Step]] = {
    "session_start": _start,
    "user": _user,
    "assistant": _assistant,
    "tool_call": _event_call,
    "tool_result": _result,
    "turn_start": _turn_start,
    "turn_end": _turn_end,
    "usage_summary": _usage,
    "summarization": _summary,
    "compaction": _summary,
}


# --- The importer of Kiro: five containers, one form of steps, one mapping.

TABLE = re.compile(rb'CREATE TABLE\s+(?:IF NOT EXISTS\s+)?["`]?conversations(?:_v2)?["`]?\s*\(', re.IGNORECASE)
CONVERSATION = re.compile(rb'"(?:Prompt|ToolUseResults|CancelledToolUses)"\s*:\s*\{')
ANSWER = re.compile(rb'"(?:Response|ToolUse)"\s*:\s*\{')
EDITOR = re.compile(rb'"history"\s*:\s*\[\s*\{\s*"message"\s*:\s*\{')


class StorageForm(Enum):
    DATABASE = auto()
    CONVERSATION = auto()
    """One conversation of the first engine, as a file."""
    LOG = auto()
    EVENTS = auto()
    EDITOR = auto()


def container(source: Source) -> StorageForm | None:
    head = source.head
    if head.startswith(MAGIC):
        has_columns = TABLE.search(head) is not None and b"key" in head and b"value" in head
        is_named = source.path.name.endswith("data.sqlite3") or b"conversations_v2" in head
        return StorageForm.DATABASE if has_columns and is_named else None
    objects = first_objects(head, limit=16)
    if any(is_log(value) for value in objects):
        return StorageForm.LOG
    if any(is_event(value) for value in objects):
        return StorageForm.EVENTS
    return _document_kind(head)


def _document_kind(head: bytes) -> StorageForm | None:
    if not head.removeprefix(BOM).lstrip().startswith(b"{"):
        return None
    if b'"conversation_id"' in head and b'"history"' in head:
        return StorageForm.CONVERSATION if CONVERSATION.search(head) or ANSWER.search(head) else None
    return StorageForm.EDITOR if b'"sessionId"' in head and EDITOR.search(head) else None


def is_log(value: dict[str, Any]) -> bool:
    return str(value.get("kind")) in KINDS and isinstance(value.get("data"), dict) and "type" not in value


def is_event(value: dict[str, Any]) -> bool:
    payload = mapping(value.get("payload"))
    if "type" in value or not isinstance(payload.get("type"), str):
        return False
    is_known_kind = payload["type"] in MAKERS or payload["type"] in ASIDE
    return (
        is_known_kind
        and "id" in value
        and ("content" in payload or len(payload) > 1 or payload["type"].startswith("turn_"))
    )


def session_file_of(path: Path) -> Path | None:
    """The log or the events that a session's file is told beside."""
    log = path.with_name("messages.jsonl") if path.name == "session.json" else path.with_suffix(".jsonl")
    return log if log.is_file() else None


def is_part(source: Source) -> bool:
    """What is told of a session beside its log or events, and the list of an editor's sessions."""
    path = source.path
    if path.suffix != ".json":
        return False
    if path.name == "sessions.json" and path.parent.parent.name == "workspace-sessions":
        return True
    if path.name == "session.json":
        return path.with_name("messages.jsonl").is_file() and path.parent.name.startswith("sess_")
    return b'"session_id"' in source.head and path.with_suffix(".jsonl").is_file() and path.parent.name == "cli"


EDITORS = (".config", "Library/Application Support", "AppData/Roaming")
STORES = (".local/share", "Library/Application Support", "AppData/Local")
AGENT = "Kiro/User/globalStorage/kiro.kiroagent/workspace-sessions"


class Kiro:
    origin = "kiro"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        folder = environment.get("KIRO_HOME")
        places = [Place((Path(folder) if folder else home / ".kiro") / "sessions", "Kiro")]
        places += [Place(home / base / AGENT, "Kiro before 1.0") for base in EDITORS]
        for tool, label in (("kiro-cli", "Kiro's first engine"), ("amazon-q", "Amazon Q")):
            places += [Place(home / base / tool / "data.sqlite3", label) for base in STORES]
        return places

    def recognises(self, source: Source) -> bool:
        return container(source) is not None

    def is_part(self, source: Source) -> bool:
        return is_part(source)

    def session_file(self, source: Source) -> Path | None:
        return session_file_of(source.path)

    def part_files(self, path: Path) -> list[Path]:
        return []

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        kind = container(source)
        if kind is StorageForm.DATABASE or source.head.startswith(MAGIC):
            yield from read_database(source.path, report)
        elif kind in (StorageForm.CONVERSATION, StorageForm.EDITOR):
            yield from _document(source, report, kind)
        elif kind is StorageForm.EVENTS:
            session = event_session(source.path)
            model = text(mapping(session.metadata).get("model"))
            steps = event_steps(source, report, None if model == "auto" else model)
            yield Transcript(session=session, turns=Turns(session).walk(steps))
        else:
            file = session_file(source.path)
            session = log_session(source.path, file)
            yield Transcript(session=session, turns=Turns(session).walk(log_steps(source, report, file)))


def _document(source: Source, report: Report, kind: StorageForm) -> Iterator[Transcript]:
    report.found += 1
    try:
        value: dict[str, Any] = json_object(read_whole(source).removeprefix(BOM))
    except ValueError as error:
        report.damaged += 1
        report.problem(1, f"the document is not readable: {error}"[:300])
        return
    report.mapped["conversation"] += 1
    if kind is StorageForm.EDITOR:
        session = editor_session(value, source.path)
        yield Transcript(session=session, turns=Turns(session, session.id).walk(editor_steps(value, report)))
        return
    id = text(value.get("conversation_id")) or source.path.stem
    session = conversation_session(value, id, None, None)
    yield Transcript(session=session, turns=Turns(session, id).walk(conversation_steps(value, report)))
