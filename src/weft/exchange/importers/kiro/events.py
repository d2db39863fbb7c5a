"""Events of the third engine, of the command line and of the editor since 1.0: `sess_<id>/messages.jsonl`, a payload
with its type on each line, and `session.json` beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from weft.exchange.importers.jsonl import records
from weft.exchange.importers.kiro.steps import Kind, Outcome, Step, image_part
from weft.exchange.importers.loading import loaded
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.transcript import NativeCall, NativeSession
from weft.exchange.importers.values import mapping, millis, present, sequence, text, whole
from weft.ledger.model import Part, ReasoningPart, TextPart

ELIDED = frozenset({"...", "…"})
"""What stands for thoughts that were not kept."""
ASIDE = frozenset(
    {"session_metadata", "session_event", "sub_agent_start", "sub_agent_end", "focus_update", "tombstone"}
)
"""Known, and told by the verbatim copy alone."""


def session_of(path: Path) -> NativeSession:
    """An execution of a subagent lies in a folder of the session's."""
    folder = path.parent
    is_child = folder.name == "sub-executions"
    try:
        told = mapping(loaded((folder.parent if is_child else folder).joinpath("session.json").read_bytes()))
    except (OSError, ValueError):
        told = {}
    id = text(told.get("id")) or (folder.parent if is_child else folder).name
    places = [place for each in sequence(told.get("workspacePaths")) if (place := text(each))]
    return NativeSession(
        id=f"{id}/{path.stem}" if is_child else id,
        title=None if is_child else text(told.get("title")),
        workspace=places[0] if places else None,
        created=None if is_child else millis(told.get("createdAt")),
        parent=id if is_child else text(told.get("parentSessionId")),
        told_at=millis(told.get("lastModifiedAt")),
        metadata=present(
            model=told.get("modelId"),
            reason=told.get("createdReason"),
            updated=told.get("lastModifiedAt"),
            workspaces=places[1:],
        ),
    )


def steps(source: Source, report: Report, model: str | None) -> Iterator[Step]:
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


def _id(told: Any) -> str | None:
    number = whole(told)
    return text(told) or (None if number is None else str(number))


def _start(payload: dict[str, Any]) -> Step:
    words = text(payload.get("content"))
    return Step(kind=Kind.INJECTED, parts=[TextPart(words)] if words else [], identity=words)


def _user(payload: dict[str, Any]) -> Step:
    words = text(payload.get("content"))
    images = [part for each in sequence(payload.get("images")) if (part := image_part(each)) is not None]
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


def _call(payload: dict[str, Any]) -> Step:
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
    told = text(payload.get("error")) or text(mapping(payload.get("error")).get("message"))
    return Step(kind=Kind.ENDED, error=told or (reason if failed else None), stopped=stopped, identity=reason)


def _usage(payload: dict[str, Any]) -> Step:
    """In credits; Kiro counts no tokens here."""
    told = present(metering=payload.get("promptTurnSummaries"), elapsed_ms=payload.get("elapsedTime"))
    return Step(kind=Kind.BESIDE, metadata=told)


def _summary(payload: dict[str, Any]) -> Step:
    words = text(payload.get("summary")) or text(payload.get("content")) or ""
    return Step(kind=Kind.COMPACTION, words=words, identity=words)


MAKERS: dict[str, Callable[[dict[str, Any]], Step]] = {
    "session_start": _start,
    "user": _user,
    "assistant": _assistant,
    "tool_call": _call,
    "tool_result": _result,
    "turn_start": _turn_start,
    "turn_end": _turn_end,
    "usage_summary": _usage,
    "summarization": _summary,
    "compaction": _summary,
}
