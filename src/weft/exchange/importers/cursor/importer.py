"""The importer of Cursor: one mapping for bubbles, another for messages of roles and blocks.

Its files are told from others by their tables and keys, the shape of their lines, or the head of a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any

from weft.exchange.importers.cursor.database import read_database
from weft.exchange.importers.cursor.homes import CONFIGS, TRANSCRIPTS, is_held
from weft.exchange.importers.cursor.rows import CHATS, COMPOSERS, HEADERS
from weft.exchange.importers.cursor.store import read_store
from weft.exchange.importers.cursor.transcripts import is_export, read_export, read_text, read_transcript
from weft.exchange.importers.databases import MAGIC, peek
from weft.exchange.importers.port import HEAD_BYTES, Place, Report, Source, Transcript
from weft.exchange.importers.records.jsonl import first_objects
from weft.exchange.importers.records.values import mapping
from weft.exchange.importers.sidecars import open_beneath

ROLES = ("user", "assistant")
MARKED = re.compile(rb"\s*(?:user|assistant|A):")


class Container(Enum):
    STATE = auto()
    """`state.vscdb`, of a workspace or of all."""
    STORE = auto()
    """`store.db` of one session of the command line's agent."""
    TRANSCRIPT = auto()
    TEXT = auto()
    """A transcript as plain text."""
    EXPORT = auto()


def container(source: Source) -> Container | None:
    head = source.head
    if head.startswith(MAGIC):
        return _database(source)
    if is_export(head[:2000]):
        return Container.EXPORT
    is_here = TRANSCRIPTS in source.path.parts or TRANSCRIPTS in source.name
    if any(_is_line(value, is_here) for value in first_objects(head, limit=8)):
        return Container.TRANSCRIPT
    if is_here and source.path.suffix == ".txt" and MARKED.match(head):
        return Container.TEXT
    return None


def _database(source: Source) -> Container | None:
    head = source.head
    if b"cursorDiskKV" in head or _is_only_logged(source):
        return Container.STATE
    if b"ItemTable" in head:
        sql = "SELECT 1 FROM ItemTable WHERE key IN (?, ?, ?) LIMIT 1"
        return Container.STATE if peek(source.path, sql, (CHATS, COMPOSERS, HEADERS), "ItemTable") else None
    has_tables = re.search(rb"CREATE TABLE\s+\S*blobs", head) and re.search(rb"CREATE TABLE\s+\S*meta\b", head)
    return Container.STORE if has_tables and source.path.name.endswith("store.db") else None


def _is_only_logged(source: Source) -> bool:
    """A database whose tables have not come out of its log yet."""
    if source.path.suffix != ".vscdb":
        return False
    log = source.path.with_name(f"{source.path.name}-wal")
    try:
        with open_beneath(log, log.parent) as file:
            return b"cursorDiskKV" in file.read(HEAD_BYTES)
    except OSError:
        return False


def _is_line(value: dict[str, Any], is_here: bool) -> bool:
    """Other tools' lines have a type, an id or a time beside the role."""
    if value.get("role") not in ROLES or "type" in value:
        return False
    inside = mapping(value.get("message"))
    return ("content" in inside and "role" not in inside) or (is_here and ("content" in value or "content" in inside))


class Cursor:
    origin = "cursor"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        config_home = environment.get("XDG_CONFIG_HOME")
        configs = [home / config for config in CONFIGS]
        if config_home:
            configs[0] = Path(config_home)
        found = [
            Place(config / "Cursor" / "User" / folder, what)
            for config in configs
            for folder, what in (("globalStorage", "Cursor"), ("workspaceStorage", "Cursor, by workspace"))
        ]
        for name in (".cursor", ".cursor-server"):
            found.append(Place(home / name / "chats", "Cursor's command line agent"))
            found.append(Place(home / name / "projects", "Cursor's transcripts"))
        return found

    def recognises(self, source: Source) -> bool:
        return container(source) is not None

    def is_part(self, source: Source) -> bool:
        return TRANSCRIPTS in source.path.parts and is_held(source.path)

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        kind = container(source)
        if kind is Container.STORE:
            yield from read_store(source.path, report)
        elif kind is Container.STATE or source.head.startswith(MAGIC):
            yield from read_database(source.path, report)
        elif kind is Container.EXPORT:
            yield from read_export(source, report)
        elif kind is Container.TEXT:
            yield from read_text(source, report)
        else:
            yield from read_transcript(source, report)
