"""Conversations of the first engine: `{conversation_id, history: [{user, assistant, request_metadata}]}`, as rows of
its database or as a file that a person saved. Before that an entry was a pair."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.exchange.importers.kiro.steps import Kind, Outcome, Step, image_part, plain
from weft.exchange.importers.port import Report
from weft.exchange.importers.transcript import NativeCall, NativeSession
from weft.exchange.importers.values import mapping, millis, present, sequence, text
from weft.ledger.model import Part, TextPart

TOLD = ("model_info", "latest_summary", "user_turn_metadata", "mcp_enabled")


def session_of(value: dict[str, Any], id: str, workspace: str | None, created: int | None) -> NativeSession:
    return NativeSession(
        id=id,
        workspace=workspace,
        created=created,
        metadata=present(**{name: value.get(name) for name in TOLD}, model=value.get("model")),
    )


def steps(value: dict[str, Any], report: Report, offset: int = 0) -> Iterator[Step]:
    model = text(mapping(value.get("model_info")).get("model_id")) or text(value.get("model"))
    for number, entry in enumerate(sequence(value.get("history"))):
        report.found += 1
        user, assistant, request = _entry(entry)
        if not user and not assistant:
            report.damaged += 1
            report.problem(None, "an entry of the history is neither a prompt nor an answer")
            continue
        report.mapped["exchange"] += 1
        at = offset + number
        yield from _asked(user, at)
        if (answer := _answered(assistant, request, model, at)) is not None:
            yield answer


def _entry(entry: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    if isinstance(entry, list):
        pair: list[dict[str, Any]] = [*map(mapping, entry), {}, {}]
        return pair[0], pair[1], {}
    told = mapping(entry)
    return mapping(told.get("user")), mapping(told.get("assistant")), mapping(told.get("request_metadata"))


def _asked(user: dict[str, Any], number: int) -> Iterator[Step]:
    content = mapping(user.get("content"))
    cancelled = mapping(content.get("CancelledToolUses"))
    results = mapping(content.get("ToolUseResults")) or cancelled
    outcomes = [_outcome(mapping(each), bool(cancelled)) for each in sequence(results.get("tool_use_results"))]
    if outcomes:
        identity = [[each.id, each.result, each.failed] for each in outcomes]
        yield Step(
            kind=Kind.RESULTS,
            outcomes=outcomes,
            identity=identity,
            stopped=bool(cancelled),
            offset=number,
            end=number + 1,
        )
    words = text(mapping(content.get("Prompt")).get("prompt")) or text(cancelled.get("prompt"))
    images = [part for each in sequence(user.get("images")) if (part := image_part(each)) is not None]
    if words is None and not images:
        return
    parts: list[Part] = [TextPart(words)] if words else []
    told, environment = user.get("timestamp"), mapping(mapping(user.get("env_context")).get("env_state"))
    at = millis(told)
    yield Step(
        kind=Kind.PROMPT,
        at=at,
        literal_time=text(told) if at is None else None,
        parts=[*parts, *images],
        context=present(additional=text(user.get("additional_context"))),
        workspace=text(environment.get("current_working_directory")),
        identity=[words, [part.url for part in images]],
        offset=number,
        end=number + 1,
    )


def _outcome(told: dict[str, Any], cancelled: bool) -> Outcome:
    failed = str(told.get("status")).lower() == "error"
    return Outcome(text(told.get("tool_use_id")) or "", plain(told.get("content")), failed, cancelled)


def _answered(assistant: dict[str, Any], request: dict[str, Any], model: str | None, number: int) -> Step | None:
    told = mapping(assistant.get("ToolUse")) or mapping(assistant.get("Response"))
    if not told:
        return None
    id, words = text(told.get("message_id")), text(told.get("content"))
    begun = millis(request.get("request_start_timestamp_ms"))
    calls = [_call(mapping(each), begun) for each in sequence(told.get("tool_uses"))]
    return Step(
        kind=Kind.ANSWER,
        id=id,
        at=begun,
        done=millis(request.get("stream_end_timestamp_ms")),
        parts=[TextPart(words)] if words else [],
        calls=calls,
        model=text(request.get("model_id")) or model,
        metadata=present(request=request.get("request_id"), context_usage=request.get("context_usage_percentage")),
        identity=[words, [[call.id, call.name, call.arguments] for call in calls]],
        offset=number,
        end=number + 1,
    )


def _call(told: dict[str, Any], at: int | None) -> NativeCall:
    name = text(told.get("name")) or text(told.get("orig_name")) or ""
    arguments = told.get("args", told.get("orig_args"))
    return NativeCall(id=text(told.get("id")) or "", name=name, arguments=arguments, at=at)
