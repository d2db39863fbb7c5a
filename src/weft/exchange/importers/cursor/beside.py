"""What lies elsewhere in the same home: a session's transcript beside the database that has all of it.

A transcript is a lesser copy: without ids, times and results. Where a database of the same home has the session, that
brings the transcript in, verbatim, and the transcript is no session of its own.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from weft.exchange.importers.databases import peek

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
    found = UUID.search(path.stem) or (UUID.search(path.parent.name) if path.parent.name != "subagents" else None)
    return found[0].lower() if found else path.stem


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
        stamps = tuple((each.stat().st_mtime_ns, each.stat().st_size) for each in (database, log) if each.exists())
        return _sessions_in(database, log, stamps) if stamps else frozenset()
    except OSError:
        return frozenset()


@lru_cache(maxsize=4)
def _sessions_in(database: Path, log: Path, stamps: tuple[tuple[int, int], ...]) -> frozenset[str]:
    """Looked up once for as long as the files are as they were."""
    found = {row[0] for row in peek(database, HELD) if isinstance(row[0], str)}
    if log.exists():
        found |= {id.decode() for id in IN_LOG.findall(log.read_bytes())}
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
