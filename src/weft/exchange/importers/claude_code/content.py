"""What a line says: its content blocks in one shape whatever the version or the tool that wrote them, and the form
in which they are part of a turn's identity."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson

from weft.exchange.importers.claude_code.kinds import JsonObject

Block = JsonObject

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_DEEPEST: Final = 200


def text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def count_or_none(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None


def object_or_empty(value: Any) -> JsonObject:
    return value if isinstance(value, dict) else {}


def moment(value: Any) -> tuple[int | None, str | None]:
    """A time stamp as Unix milliseconds; or its own words, where they name no zone or are no time."""
    if isinstance(value, str) and value:
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            return None, value
        if found.tzinfo is None:
            return None, value
        return (found - _EPOCH) // _MILLISECOND, None
    return None, None if value is None or value == "" else str(value)[:64]


def blocks_of(record: JsonObject) -> list[Block]:
    """The content blocks of a line. A plain text is one text block; what is no block at all becomes an unknown one."""
    message = record.get("message")
    if isinstance(message, dict):
        content = message.get("content")
        if content is None:
            return _other_blocks(record, message)
    else:
        content = message
        if content is None:
            return _bare_blocks(record)
    if isinstance(content, str):
        if record.get("type") == "tool_result":
            return [{"type": "tool_result", "content": content}]
        return [{"type": "text", "text": content}]
    if isinstance(content, list):
        return [_block(each) for each in content]
    return [{"type": "?", "value": content}]


def _block(value: Any) -> Block:
    if isinstance(value, dict):
        return value
    return {"type": "text", "text": value} if isinstance(value, str) else {"type": "?", "value": value}


def _other_blocks(record: JsonObject, message: JsonObject) -> list[Block]:
    """Messages of tools that borrowed the line format: Gemini's parts, or one line for a call and its result."""
    parts = message.get("parts")
    if isinstance(parts, list):
        return [_from_part(part) for part in parts]
    if "tool_name" in message:
        made: list[Block] = [
            {
                "type": "tool_use",
                "id": record.get("uuid"),
                "name": message["tool_name"],
                "input": message.get("tool_input"),
            }
        ]
        if "tool_output" in message:
            made.append({"type": "tool_result", "tool_use_id": record.get("uuid"), "content": message["tool_output"]})
        return made
    return []


def _from_part(part: Any) -> Block:
    if not isinstance(part, dict):
        return _block(part)
    call, result = part.get("functionCall"), part.get("functionResponse")
    if isinstance(call, dict):
        return {"type": "tool_use", "id": call.get("id"), "name": call.get("name"), "input": call.get("args")}
    if isinstance(result, dict):
        answer = object_or_empty(result.get("response"))
        failed = "error" in answer
        content = answer.get("error") if failed else answer.get("output", result.get("response"))
        return {"type": "tool_result", "tool_use_id": result.get("id"), "content": content, "is_error": failed}
    if isinstance(part.get("text"), str):
        kind = "thinking" if part.get("thought") is True else "text"
        return {"type": kind, kind: part["text"]}
    return {"type": "?", "value": part}


def _bare_blocks(record: JsonObject) -> list[Block]:
    """Lines without a message: calls and results that stand alone."""
    if record.get("type") == "tool_use":
        return [{"type": "tool_use", "id": record.get("id", record.get("uuid")), **_named(record, "name", "input")}]
    if record.get("type") == "tool_result":
        return [{"type": "tool_result", "tool_use_id": record.get("tool_use_id"), "content": record.get("output")}]
    return []


def _named(record: JsonObject, *names: str) -> JsonObject:
    return {name: record.get(name) for name in names}


def call_id(block: Block, uuid: str | None, place: int) -> str:
    """The id of a tool call; one that has none is named by its line and its place there."""
    return text_or_none(block.get("id")) or f"{uuid or ''}:{place}"


def opening_text(blocks: list[Block]) -> str:
    for block in blocks:
        if block.get("type") == "text" and isinstance(text := block.get("text"), str):
            return text
    return ""


def reduced(block: Block) -> list[Any]:
    """A block as part of the turn's identity: its contents, without what later versions add or drop around them."""
    match block.get("type"):
        case "text":
            return ["text", block.get("text")]
        case "thinking":
            return ["thinking", block.get("thinking")]
        case "tool_use":
            return ["tool_use", block.get("id"), block.get("name"), block.get("input")]
        case "tool_result":
            failed = block.get("is_error") is True
            return ["tool_result", block.get("tool_use_id"), block.get("content"), failed]
        case _:
            return ["block", block]


def packed(value: Any) -> bytes:
    """Bytes that are equal where the values are."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # lone surrogates, integers beyond 64 bits, nesting beyond 254
        return _spelled(value).encode()


def storable(value: Any) -> Any:
    """The value, or its text where it is nested too deeply for others to take."""
    if isinstance(value, str | int | None):
        return value
    try:
        orjson.dumps(value)
    except TypeError:
        return _spelled(value) if _is_deep(value) else value
    return value


def _spelled(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        return "(nested too deeply)"


def _is_deep(value: Any) -> bool:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            return True
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return False
