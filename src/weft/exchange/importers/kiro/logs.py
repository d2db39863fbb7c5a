"""Sessions of Kiro that are JSON lines.

The second engine writes `sessions/cli/<session>.jsonl`, a kind and its data on each line, and beside it what Kiro tells
of the session and of the costs of its turns. The third engine, of the command line and of the editor since 1.0, writes
`sess_<id>/messages.jsonl`, a payload with its type on each line, and `session.json` beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.kiro.turns import Kind, Outcome, Step, image_part, plain
from weft.exchange.importers.port import NativeCall, NativeSession, Report, Source, Tokens
from weft.exchange.importers.records.jsonl import Record, records
from weft.exchange.importers.records.values import json_value, mapping, millis, present, sequence, text, whole
from weft.exchange.importers.sidecars import read_beneath
from weft.ledger.model import Part, ReasoningPart, TextPart

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
        named = [id for message_id in sequence(turn.get("message_ids")) if (id := text(message_id))]
        if (id := last or (named[-1] if named else None)) is not None:
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
    blocks = [mapping(each) for each in sequence(data.get("content"))]
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
        _cost(step, file.costs.get(step.id or "", {}))
    return step


def _log_time(value: Any) -> int | None:
    """Counted in seconds, where it is a number."""
    number = whole(value)
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
        plain(fields.get("content")),
        status == "error",
        status in ("cancelled", "canceled"),
    )


def _cost(step: Step, turn: dict[str, Any]) -> None:
    """Of a whole turn, told with its last answer. Noughts stand for what was not counted."""
    names = ("input_token_count", "output_token_count", "cache_read_input_token_count", "cache_write_input_token_count")
    counts = [whole(turn.get(name)) for name in names]
    if any(counts):
        step.tokens = Tokens(input=counts[0], output=counts[1], cached=counts[2], cache_write=counts[3])
    step.model = text(turn.get("model")) or step.model
    step.done = millis(turn.get("end_timestamp"))
    credits = [each for each in map(mapping, sequence(turn.get("metering_usage"))) if each]
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
    places = [place for each in sequence(fields.get("workspacePaths")) if (place := text(each))]
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
    number = whole(value)
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
    shown: list[Part] = [] if words is None else [ReasoningPart(words) if is_thought else TextPart(words)]
    return Step(
        kind=Kind.ANSWER if words is not None and words not in ELIDED else Kind.BESIDE,
        parts=[] if words in ELIDED else shown,
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
        text(payload.get("toolCallId")) or "", content, failed, cancelled, whole(payload.get("durationMs"))
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
