"""The importer of Kiro: five containers, one form of steps, one mapping.

Its files are told from others by their names, tables and first lines; files that a session brings along are its parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any

from weft.exchange.importers.databases import MAGIC
from weft.exchange.importers.kiro.documents import (
    conversation_session,
    conversation_steps,
    editor_session,
    editor_steps,
    read_database,
)
from weft.exchange.importers.kiro.logs import (
    ASIDE,
    KINDS,
    MAKERS,
    event_session,
    event_steps,
    log_session,
    log_steps,
    session_file,
)
from weft.exchange.importers.kiro.turns import Turns
from weft.exchange.importers.port import Place, Report, Source, Transcript
from weft.exchange.importers.records.jsonl import BOM, first_objects, read_whole
from weft.exchange.importers.records.values import json_object, mapping, text

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
    return _document_kind(head)


def _document_kind(head: bytes) -> Container | None:
    if not head.removeprefix(BOM).lstrip().startswith(b"{"):
        return None
    if b'"conversation_id"' in head and b'"history"' in head:
        return Container.CONVERSATION if CONVERSATION.search(head) or ANSWER.search(head) else None
    return Container.EDITOR if b'"sessionId"' in head and EDITOR.search(head) else None


def is_log(value: dict[str, Any]) -> bool:
    return str(value.get("kind")) in KINDS and isinstance(value.get("data"), dict) and "type" not in value


def is_event(value: dict[str, Any]) -> bool:
    payload = mapping(value.get("payload"))
    if "type" in value or not isinstance(payload.get("type"), str):
        return False
    known = payload["type"] in MAKERS or payload["type"] in ASIDE
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


EDITORS = (".config", "Library/Application Support", "AppData/Roaming")
STORES = (".local/share", "Library/Application Support", "AppData/Local")
AGENT = "Kiro/User/globalStorage/kiro.kiroagent/workspace-sessions"


class Kiro:
    origin = "kiro"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        folder = environment.get("KIRO_HOME")
        found = [Place((Path(folder) if folder else home / ".kiro") / "sessions", "Kiro")]
        found += [Place(home / base / AGENT, "Kiro before 1.0") for base in EDITORS]
        for tool, what in (("kiro-cli", "Kiro's first engine"), ("amazon-q", "Amazon Q")):
            found += [Place(home / base / tool / "data.sqlite3", what) for base in STORES]
        return found

    def recognises(self, source: Source) -> bool:
        return container(source) is not None

    def is_part(self, source: Source) -> bool:
        return is_part(source)

    def whole(self, source: Source) -> Path | None:
        return whole_of(source.path)

    def parts(self, path: Path) -> list[Path]:
        return []

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        kind = container(source)
        if kind is Container.DATABASE or source.head.startswith(MAGIC):
            yield from read_database(source.path, report)
        elif kind in (Container.CONVERSATION, Container.EDITOR):
            yield from _document(source, report, kind)
        elif kind is Container.EVENTS:
            session = event_session(source.path)
            model = text(mapping(session.metadata).get("model"))
            steps = event_steps(source, report, None if model == "auto" else model)
            yield Transcript(session=session, turns=Turns(session).walk(steps))
        else:
            found = session_file(source.path)
            session = log_session(source.path, found)
            yield Transcript(session=session, turns=Turns(session).walk(log_steps(source, report, found)))


def _document(source: Source, report: Report, kind: Container) -> Iterator[Transcript]:
    report.found += 1
    try:
        value: dict[str, Any] = json_object(read_whole(source).removeprefix(BOM))
    except ValueError as error:
        report.damaged += 1
        report.problem(1, f"the document is not readable: {error}"[:300])
        return
    report.mapped["conversation"] += 1
    if kind is Container.EDITOR:
        session = editor_session(value, source.path)
        yield Transcript(session=session, turns=Turns(session, session.id).walk(editor_steps(value, report)))
        return
    id = text(value.get("conversation_id")) or source.path.stem
    session = conversation_session(value, id, None, None)
    yield Transcript(session=session, turns=Turns(session, id).walk(conversation_steps(value, report)))
