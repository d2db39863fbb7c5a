"""Sessions of Kiro that are one JSON document each.

The first engine has conversations, `{conversation_id, history: [{user, assistant, request_metadata}]}`, as rows of its
database or as files that a person saved; before that an entry was a pair. The database, `data.sqlite3`, has a
conversation for each folder, later several; of its tables only these are read, for others hold the person's tokens. The
editor before 1.0 has documents in a folder that is named by its workspace in base64.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from weft.exchange.importers.databases import UNREADABLE, Database, RowLines, opened
from weft.exchange.importers.kiro.turns import Kind, Outcome, Step, Turns, image_part, plain
from weft.exchange.importers.port import NativeCall, NativeSession, Report, Transcript
from weft.exchange.importers.records.values import json_object, mapping, millis, present, sequence, text
from weft.ledger.model import Part, TextPart

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
        at = offset + number
        yield from _prompt_steps(user, at)
        if (answer := _answer_steps(assistant, request, model, at)) is not None:
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
    at = millis(timestamp)
    yield Step(
        kind=Kind.PROMPT,
        at=at,
        literal_time=text(timestamp) if at is None else None,
        parts=[*parts, *images],
        context=present(additional=text(user.get("additional_context"))),
        workspace=text(environment.get("current_working_directory")),
        identity=[words, [part.url for part in images]],
        offset=number,
        end=number + 1,
    )


def _conversation_outcome(fields: dict[str, Any], cancelled: bool) -> Outcome:
    failed = str(fields.get("status")).lower() == "error"
    return Outcome(text(fields.get("tool_use_id")) or "", plain(fields.get("content")), failed, cancelled)


def _answer_steps(assistant: dict[str, Any], request: dict[str, Any], model: str | None, number: int) -> Step | None:
    fields = mapping(assistant.get("ToolUse")) or mapping(assistant.get("Response"))
    if not fields:
        return None
    id, words = text(fields.get("message_id")), text(fields.get("content"))
    begun = millis(request.get("request_start_timestamp_ms"))
    calls = [_conversation_call(mapping(tool_use), begun) for tool_use in sequence(fields.get("tool_uses"))]
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


def _conversation_call(fields: dict[str, Any], at: int | None) -> NativeCall:
    name = text(fields.get("name")) or text(fields.get("orig_name")) or ""
    arguments = fields.get("args", fields.get("orig_args"))
    return NativeCall(id=text(fields.get("id")) or "", name=name, arguments=arguments, at=at)


class Row(Struct, frozen=True):
    table: str
    folder: str
    id: str | None
    data: bytes
    created: int | None = None
    updated: int | None = None


def read_database(path: Path, report: Report) -> Iterator[Transcript]:
    with opened(path, report) as database:
        if database is None:
            return
        try:
            rows = list(_rows(database))
        except UNREADABLE as error:
            report.problem(None, f"the database is not readable: {error}"[:300])
            return
        for row in rows:
            if (made := _transcript(row, report)) is not None:
                yield made


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


def _time(when: Any) -> int | None:
    """Seconds or milliseconds, as the version had it."""
    at = millis(when)
    return at * 1000 if at is not None and at < 10**11 else at


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
        found = base64.b64decode(name + "=" * (-len(name) % 4), validate=True).decode()
    except (ValueError, binascii.Error):
        return None
    return found if found.isprintable() and ("/" in found or "\\" in found) else None


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
