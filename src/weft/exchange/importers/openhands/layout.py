"""Where conversations lie: exported as one list, as lines, or as a folder with a file for each event.

V0: `<conversation>/events/<n>.json`, beside it `metadata.json`. V1: `<conversation>/events/event-<n>-<id>.json`, beside
it `base_state.json`. A folder is read through one of its files, which stands for all: the state, or the first event.
"""

from __future__ import annotations

import os
import re
from enum import Enum, auto
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from weft.exchange.importers.jsonl import BOM, first_objects
from weft.exchange.importers.port import Source
from weft.exchange.importers.values import mapping, sequence, text

EVENT_FILE = re.compile(r"event-(\d{5,})-[0-9A-Za-z-]{4,}\.json|(\d{1,9})\.json")
LINES = frozenset({".jsonl", ".ndjson"})
STATE, DETAILS = "base_state.json", "metadata.json"
STATE_SIGNS = ("execution_status", "agent_status", "persistence_dir", "stats", "confirmation_policy", "workspace")
LIST = re.compile(rb'\s*(?:\{\s*"trajectory"\s*:\s*)?\[\s*\{')
LIST_SIGNS = (b'"source"', b'"timestamp"', b'"args"', b'"extras"', b'"cause"', b'"tool_call_id"', b'"llm_message"')


class Container(Enum):
    LIST = auto()
    LINES = auto()
    """Events, or results of an evaluation, each with the history of a conversation."""
    FOLDER = auto()


def container(source: Source) -> Container | None:
    head = source.head.removeprefix(BOM)
    if source.path.name == STATE:
        return Container.FOLDER if is_state(_object(head)) else None
    if event_number(source.path) is not None and is_event(_object(head)):
        return Container.FOLDER if stands_for_folder(source.path) else None
    found = [value for value in first_objects(head, 8) if is_event(value) or is_result(value)]
    if len(found) > 1 or (found and source.path.suffix in LINES):
        return Container.LINES
    return Container.LIST if _is_list(source, head) else None


def is_part(source: Source) -> bool:
    path = source.path
    if path.parent.name == "event_cache":
        return path.parent.parent.joinpath("events").is_dir()
    if path.name == DETAILS:
        return path.parent.joinpath("events").is_dir() and b'"conversation_id"' in source.head
    is_told = event_number(path) is not None and is_event(_object(source.head))
    return is_told and not stands_for_folder(path)


def _object(head: bytes) -> dict[str, Any]:
    """A whole document, or, of a long one, its first fields as far as signs tell them."""
    try:
        return mapping(orjson.loads(head))
    except orjson.JSONDecodeError:
        names = re.findall(rb'"([a-z_]{2,32})"\s*:', head[:65536]) if head.lstrip().startswith(b"{") else []
        return {name.decode(): "..." for name in names}


def is_event(value: dict[str, Any]) -> bool:
    """An event of either form."""
    if "source" not in value or "timestamp" not in value:
        return False
    if "kind" in value:
        kind = text(value.get("kind")) or ""
        return kind == "..." or kind.endswith(("Event", "Observation")) or kind.startswith("Condensation")
    told = ("action" in value and "args" in value) or ("observation" in value and "content" in value)
    return told and "message" in value


def is_result(value: dict[str, Any]) -> bool:
    """A line of an evaluation's output."""
    history = sequence(value.get("history"))
    return "instance_id" in value and any(is_event(each) for each in flattened(history[:4]))


def flattened(history: list[Any]) -> list[dict[str, Any]]:
    """Older evaluations pair each action with its observation."""
    found: list[dict[str, Any]] = []
    for each in history:
        found += [item for item in each if isinstance(item, dict)] if isinstance(each, list) else [mapping(each)]
    return found


def is_state(value: dict[str, Any]) -> bool:
    return "agent" in value and "id" in value and sum(name in value for name in STATE_SIGNS) >= 2


def _is_list(source: Source, head: bytes) -> bool:
    if LIST.match(head) is None:
        return False
    if source.size > len(source.head):
        return sum(sign in head for sign in LIST_SIGNS) >= 3
    try:
        value = orjson.loads(head)
    except orjson.JSONDecodeError:
        return sum(sign in head for sign in LIST_SIGNS) >= 3
    events = value if isinstance(value, list) else sequence(value.get("trajectory"))
    return any(is_event(event) for event in flattened(events[:8]))


def event_number(path: Path) -> int | None:
    """The place of an event's file in its folder."""
    match = EVENT_FILE.fullmatch(path.name) if path.parent.name == "events" else None
    return None if match is None else int(match[1] or match[2])


def stands_for_folder(path: Path) -> bool:
    """Does this file stand for its conversation? Where the state lies beside the events, that does."""
    return main_file(path.parent.parent) == path


def main_file(conversation: Path) -> Path | None:
    """The file that stands for a conversation's folder."""
    state = conversation / STATE
    if state.is_file():
        return state
    try:
        changed = (conversation / "events").stat().st_mtime_ns
    except OSError:
        return None
    first = _first(str(conversation / "events"), changed)
    return None if first is None else conversation / "events" / first


@lru_cache(maxsize=8)
def _first(folder: str, changed: int) -> str | None:
    files = event_files(Path(folder))
    return files[0].name if files else None


def whole_of(path: Path) -> Path | None:
    """The file that stands for the conversation which this one is a part of."""
    return main_file(path.parent if path.name == DETAILS else path.parent.parent)


def parts_of(path: Path) -> list[Path]:
    """All files of a conversation but the one that stands for it."""
    is_event = event_number(path) is not None
    if not is_event and path.name != STATE:
        return []
    home = path.parent.parent if is_event else path.parent
    return [each for each in (*event_files(home / "events"), home / DETAILS) if each != path and each.is_file()]


def event_files(folder: Path) -> list[Path]:
    """In order; links may lead anywhere and are left out."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []
    numbered = ((event_number(folder / name), name) for name in names)
    return [folder / name for number, name in sorted((n, name) for n, name in numbered if n is not None)]
