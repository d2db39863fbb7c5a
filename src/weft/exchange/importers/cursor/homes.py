"""What lies elsewhere in the same home: transcripts beside the database that has all of a session, and folders of
workspaces.

A transcript is a lesser copy: without ids, times and results. Where a database of the same home has the session, that
one is read. Newer sessions say in which folder they were opened; of others the workspace's own database does.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from weft.exchange.importers.cursor.encodings import decoded, path_of
from weft.exchange.importers.cursor.rows import COMPOSERS
from weft.exchange.importers.databases import UNREADABLE, opened, peek
from weft.exchange.importers.limits import SOURCE_LIMITS
from weft.exchange.importers.port import Report
from weft.exchange.importers.records.values import json_value, mapping, sequence, text
from weft.exchange.importers.sidecars import read_beneath
from weft.kernel.errors import LimitExceeded

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
TRANSCRIPTS = "agent-transcripts"
GLOBAL = "Cursor/User/globalStorage/state.vscdb"
CONFIGS = (".config", "Library/Application Support", "AppData/Roaming")
"""Below a home, where VS Code's descendants keep their settings."""
HELD = (
    "SELECT DISTINCT substr(key, 10, 36) FROM cursorDiskKV"
    " WHERE key >= 'bubbleId:' AND key < 'bubbleId;' AND value IS NOT NULL"
)
IN_LOG = re.compile(rb"bubbleId:([0-9a-f-]{36}):")


def transcript_id(path: Path) -> str:
    """The session of a transcript, by its file's name; copies are renamed, so what looks like an id goes first."""
    match = UUID.search(path.stem) or (UUID.search(path.parent.name) if path.parent.name != "subagents" else None)
    return match[0].lower() if match else path.stem


def is_held(path: Path) -> bool:
    """Does a database of the same home have this transcript's session?"""
    home = next((parent for parent in path.parents if parent.name == ".cursor"), None)
    if home is None or TRANSCRIPTS not in path.parts:
        return False
    id = transcript_id(path)
    if any(home.glob(f"chats/*/{id}/store.db")):
        return True
    return any(id in sessions_in(home.parent / config / GLOBAL) for config in CONFIGS)


def sessions_in(database: Path) -> frozenset[str]:
    """Ids of the sessions that a database has bubbles of."""
    log = database.with_name(f"{database.name}-wal")
    try:
        stamps = tuple((each.stat().st_mtime_ns, each.stat().st_size) for each in (database, log) if each.is_file())
        return _sessions_in(database, log, stamps) if stamps else frozenset()
    except OSError:
        return frozenset()


@lru_cache(maxsize=4)
def _sessions_in(database: Path, log: Path, stamps: tuple[tuple[int, int], ...]) -> frozenset[str]:
    """Looked up once for as long as the files are as they were."""
    found = {row[0] for row in peek(database, HELD, table="cursorDiskKV") if isinstance(row[0], str)}
    if log.is_file():
        log_bytes = read_beneath(log, log.parent, most=SOURCE_LIMITS.held_bytes)
        found |= {id.decode() for id in IN_LOG.findall(log_bytes)}
    return frozenset(found)


def transcripts_of(database: Path) -> dict[str, Path]:
    """The transcripts of the same home, by session."""
    home = _home(database)
    return {} if home is None else _transcripts_in(home)


def _home(database: Path) -> Path | None:
    """`.cursor`, seen from one of the databases that belong to it."""
    if database.name == "store.db":
        return next((parent for parent in database.parents if parent.name == ".cursor"), None)
    if not str(database).endswith(GLOBAL):
        return None
    above = database.parents[3:6]
    return next((parent / ".cursor" for parent in above if (parent / ".cursor").is_dir()), None)


def _transcripts_in(home: Path) -> dict[str, Path]:
    try:
        found = sorted(
            path for path in home.glob(f"projects/*/{TRANSCRIPTS}/**/*") if path.suffix in (".jsonl", ".txt")
        )
    except OSError:
        return {}
    return {transcript_id(path): path for path in found if not path.is_symlink()}


def folder_of(database: Path) -> str | None:
    """The folder of a workspace's database, as `workspace.json` beside it tells."""
    try:
        fields = mapping(json_value(read_beneath(database.with_name("workspace.json"), database.parent)))
    except (OSError, ValueError):
        return None
    return path_of(fields.get("folder")) or path_of(fields.get("workspace")) or path_of(fields.get("configuration"))


def own_folder(*fields: dict[str, Any]) -> str | None:
    """As a session itself, or its entry in a list, tells."""
    for each in fields:
        identifier = mapping(each.get("workspaceIdentifier"))
        found = path_of(identifier.get("uri")) or path_of(mapping(identifier.get("configPath")))
        if found:
            return found
    return None


def folders(database: Path) -> dict[str, str]:
    """Of sessions in the global database: by id, the folder of the workspace that lists them."""
    words: dict[str, str] = {}
    try:
        databases = sorted(database.parent.parent.glob("workspaceStorage/*/state.vscdb"))
    except OSError:
        return words
    for each in databases:
        folder = folder_of(each)
        try:
            ids = [] if folder is None else _listed(each)
        except (OSError, LimitExceeded):  # it is gone, or is not read: a link, a pipe, rows without end
            continue
        words |= {id: folder for id in ids if folder is not None}
    return words


def _listed(database: Path) -> list[str]:
    """Ids of the sessions of a workspace; one that cannot be read here is reported when it is imported itself."""
    with opened(database, Report(str(database)), database.parent.parent) as copy:
        if copy is None or not copy.has("ItemTable", "key", "value"):
            return []
        try:
            rows = copy.rows("SELECT CAST(value AS BLOB) FROM ItemTable WHERE key = ?", (COMPOSERS,))
            value = mapping(decoded(rows[0][0])) if rows else {}
        except (ValueError, *UNREADABLE):
            return []
    return [
        id for composer in map(mapping, sequence(value.get("allComposers"))) if (id := text(composer.get("composerId")))
    ]
