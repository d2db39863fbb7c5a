"""Which folder a session was opened in: newer sessions say it, of others the workspace's own database does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from weft.exchange.importers.cursor.rows import COMPOSERS
from weft.exchange.importers.cursor.values import decoded, path_of
from weft.exchange.importers.databases import UNREADABLE, opened
from weft.exchange.importers.port import Report
from weft.exchange.importers.values import mapping, sequence, text


def folder_of(database: Path) -> str | None:
    """The folder of a workspace's database, as `workspace.json` beside it tells."""
    try:
        told = mapping(orjson.loads(database.with_name("workspace.json").read_bytes()))
    except (OSError, orjson.JSONDecodeError):
        return None
    return path_of(told.get("folder")) or path_of(told.get("workspace")) or path_of(told.get("configuration"))


def own_folder(*told: dict[str, Any]) -> str | None:
    """As a session itself, or its entry in a list, tells."""
    for each in told:
        identifier = mapping(each.get("workspaceIdentifier"))
        found = path_of(identifier.get("uri")) or path_of(mapping(identifier.get("configPath")))
        if found:
            return found
    return None


def folders(database: Path) -> dict[str, str]:
    """Of sessions in the global database: by id, the folder of the workspace that lists them."""
    found: dict[str, str] = {}
    try:
        databases = sorted(database.parent.parent.glob("workspaceStorage/*/state.vscdb"))
    except OSError:
        return found
    for each in databases:
        folder = folder_of(each)
        if folder is not None:
            found |= dict.fromkeys(_listed(each), folder)
    return found


def _listed(database: Path) -> list[str]:
    """Ids of the sessions of a workspace; one that cannot be read here is reported when it is imported itself."""
    with opened(database, Report(str(database))) as copy:
        if copy is None or not copy.has("ItemTable", "key", "value"):
            return []
        try:
            rows = copy.rows("SELECT CAST(value AS BLOB) FROM ItemTable WHERE key = ?", (COMPOSERS,))
            value = mapping(decoded(rows[0][0])) if rows else {}
        except (ValueError, *UNREADABLE):
            return []
    return [id for each in map(mapping, sequence(value.get("allComposers"))) if (id := text(each.get("composerId")))]
