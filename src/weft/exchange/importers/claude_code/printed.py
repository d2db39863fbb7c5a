"""What Claude Code prints (`--output-format stream-json`, or `json` as one list) instead of what it keeps.

The lines are the same messages with other words around them: the session they were printed for is `session_id`, and a
subagent's lines name the call that asked for them. Of when and where only the first line tells something.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from msgspec import Raw

from weft.exchange.importers.claude_code.content import text_or_none
from weft.exchange.importers.claude_code.kinds import JsonObject
from weft.exchange.importers.jsonl import BOM, Record

_MOST: Final = 64
_list: Final = msgspec.json.Decoder(list[Raw])


def print_of(record: JsonObject, known: dict[str, str]) -> str | None:
    """The session that a printed line belongs to, a run of its own: what is printed when a session is resumed tells
    nothing of what came before. Known are those that began, by the session they were printed for."""
    session = text_or_none(record.get("session_id")) if "sessionId" not in record else None
    if session is None:
        return None
    if session not in known or record.get("subtype") == "init":
        known[session] = f"{session}/print-{(text_or_none(record.get('uuid')) or 'whole')[:8]}"
    return known[session]


def asker_of(record: JsonObject) -> str | None:
    """The call that a subagent's printed line answers."""
    return None if "sessionId" in record else text_or_none(record.get("parent_tool_use_id"))


def elements(data: bytes) -> list[Record]:
    """The records of a list; nothing where it is none, or holds something else."""
    try:
        raws = _list.decode(data.removeprefix(BOM))
        values: list[Any] = [msgspec.json.decode(raw) for raw in raws]
    except (ValueError, RecursionError):
        return []
    if not all(isinstance(value, dict) for value in values):
        return []
    found, at = [], 0
    for number, (raw, value) in enumerate(zip(raws, values, strict=True), 1):
        at = data.find(raw, at)
        found.append(Record(number, at, at + len(raw), value))
        at += len(raw)
    return found


def first_elements(head: bytes) -> list[JsonObject]:
    """The objects that a list begins with, as far as they are there."""
    words = head.removeprefix(BOM).decode(errors="replace").lstrip()
    if not words.startswith("["):
        return []
    found: list[JsonObject] = []
    reader, at = json.JSONDecoder(), 1
    while len(found) < _MOST:
        while at < len(words) and words[at] in " \t\r\n,":
            at += 1
        try:
            value, at = reader.raw_decode(words, at)
        except (ValueError, RecursionError):
            break
        if not isinstance(value, dict):
            return []
        found.append(value)
    return found
