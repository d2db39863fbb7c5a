"""Telling Kiro's files from others, and its session files from those that they bring along."""

from __future__ import annotations

import re
from enum import Enum, auto
from pathlib import Path
from typing import Any

from weft.exchange.importers.databases import MAGIC
from weft.exchange.importers.jsonl import BOM, first_objects
from weft.exchange.importers.kiro import events, logs
from weft.exchange.importers.port import Source
from weft.exchange.importers.values import mapping

TABLE = re.compile(rb'CREATE TABLE\s+(?:IF NOT EXISTS\s+)?["`]?conversations(?:_v2)?["`]?\s*\(', re.IGNORECASE)
CONVERSATION = re.compile(rb'"(?:Prompt|ToolUseResults|CancelledToolUses)"\s*:\s*\{')
ANSWER = re.compile(rb'"(?:Response|ToolUse)"\s*:\s*\{')
EDITOR = re.compile(rb'"history"\s*:\s*\[\s*\{\s*"message"\s*:\s*\{')


class Container(Enum):
    DATABASE = auto()
    CONVERSATION = auto()
    """One conversation of the first engine, as a file."""
    LOG = auto()
    EVENTS = auto()
    EDITOR = auto()


def container(source: Source) -> Container | None:
    head = source.head
    if head.startswith(MAGIC):
        has_columns = TABLE.search(head) is not None and b"key" in head and b"value" in head
        is_named = source.path.name.endswith("data.sqlite3") or b"conversations_v2" in head
        return Container.DATABASE if has_columns and is_named else None
    objects = first_objects(head, limit=16)
    if any(is_log(value) for value in objects):
        return Container.LOG
    if any(is_event(value) for value in objects):
        return Container.EVENTS
    return _document(head)


def _document(head: bytes) -> Container | None:
    if not head.removeprefix(BOM).lstrip().startswith(b"{"):
        return None
    if b'"conversation_id"' in head and b'"history"' in head:
        return Container.CONVERSATION if CONVERSATION.search(head) or ANSWER.search(head) else None
    return Container.EDITOR if b'"sessionId"' in head and EDITOR.search(head) else None


def is_log(value: dict[str, Any]) -> bool:
    return str(value.get("kind")) in logs.KINDS and isinstance(value.get("data"), dict) and "type" not in value


def is_event(value: dict[str, Any]) -> bool:
    payload = mapping(value.get("payload"))
    if "type" in value or not isinstance(payload.get("type"), str):
        return False
    known = payload["type"] in events.MAKERS or payload["type"] in events.ASIDE
    return known and "id" in value and ("content" in payload or len(payload) > 1 or payload["type"].startswith("turn_"))


def whole_of(path: Path) -> Path | None:
    """The log or the events that a session's file is told beside."""
    found = path.with_name("messages.jsonl") if path.name == "session.json" else path.with_suffix(".jsonl")
    return found if found.is_file() else None


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
