"""From a container to conversations: their events in order, and what is told beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from weft.exchange.importers.documents import read_document, report_damage
from weft.exchange.importers.identity import fingerprint
from weft.exchange.importers.jsonl import records
from weft.exchange.importers.lines import Lines
from weft.exchange.importers.openhands.layout import DETAILS, STATE, event_files, flattened, is_result
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.values import mapping, sequence, text

Json = dict[str, Any]
HEX = re.compile(r"([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})")


class Event(Struct, frozen=True):
    value: Json
    offset: int = 0
    end: int = 0


class Conversation(Struct):
    id: str
    events: list[Event] = field(default_factory=list)
    state: Json = field(default_factory=dict)
    details: Json = field(default_factory=dict)
    """What V0 keeps beside the events: title, repository, branch; or what an evaluation tells."""
    raw: bytes | None = None


def read_list(source: Source, report: Report) -> Iterator[Conversation]:
    """An export: a list, or an object that holds it."""
    document = read_document(source.path.read_bytes())
    report_damage(document, report)
    value = document.value
    told = mapping(value)
    for name in told:
        if name != "trajectory":
            report.found += 1
            report.kept[f"export.{name}"] += 1
            report.unknown[f"export.{name}"] += 1
    listed = sequence(told.get("trajectory")) if told else sequence(value)
    events = _objects(listed, report)
    if events:
        id = f"trajectory@{fingerprint(_beginning(events))}"
        yield Conversation(id, [Event(each, 0, source.size) for each in events])


def _objects(listed: list[Any], report: Report) -> list[Json]:
    """Events, also where they stand in pairs; what is no object is damaged."""
    report.found += sum(max(len(each), 1) if isinstance(each, list) else 1 for each in listed)
    found = [event for event in flattened(listed) if event]
    lost = sum(max(len(each), 1) if isinstance(each, list) else 1 for each in listed) - len(found)
    if lost:
        report.damaged += lost
        report.problem(None, f"{lost} of the events are no objects")
    return found


def _beginning(events: list[Json]) -> list[Any]:
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


def _result(value: Json, offset: int, end: int, report: Report) -> Conversation:
    events = _objects(sequence(value.get("history")), report)
    id = f"{value.get('instance_id')}@{fingerprint(_beginning(events))}"[:200]
    details = {name: value[name] for name in ("instance_id", "error", "instruction") if value.get(name)}
    return Conversation(id, [Event(each, offset, end) for each in events], details=details)


def read_folder(source: Source, report: Report) -> Iterator[Conversation]:
    folder = source.path.parent if source.path.name == STATE else source.path.parent.parent
    lines = Lines()
    state, details = (_beside(folder / name, lines, report) for name in (STATE, DETAILS))
    found = Conversation(_name(state, details, folder), state=state, details=details)
    for file in event_files(folder / "events"):
        value = _file(file, lines, report)
        if value is not None:
            found.events.append(Event(value, lines.count - 1, lines.count))
    found.raw = lines.finish()
    yield found


def _name(state: Json, details: Json, folder: Path) -> str:
    """The conversation's id; V1 calls its folder by the same without dashes."""
    told = text(state.get("id")) or text(details.get("conversation_id")) or folder.name
    match = HEX.fullmatch(told)
    return "-".join(match.groups()) if match else told or "conversation"


def _beside(file: Path, lines: Lines, report: Report) -> Json:
    if file.is_symlink() or not file.is_file():
        return {}
    value = _file(file, lines, report)
    if value is None:
        return {}
    report.mapped[file.stem] += 1
    return value


def _file(file: Path, lines: Lines, report: Report) -> Json | None:
    """One file's object. It may vanish or be cut while it is read."""
    try:
        data = file.read_bytes()
    except OSError as error:
        report.problem(None, f"{file.name}: {error.strerror}")
        return None
    lines.add(file.name, data)
    report.found += 1
    document = read_document(data)
    if document.damage is None and isinstance(document.value, dict):
        return document.value
    report.damaged += 1
    report.problem(None, f"{file.name} is not readable: {document.damage or 'no object'}"[:300])
    return None
