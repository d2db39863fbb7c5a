"""Names that people gave to threads: they lie in `session_index.jsonl`, beside the folder of the sessions."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

import orjson
from msgspec import Struct

from weft.exchange.importers.codex.values import moment
from weft.exchange.importers.values import mapping, text

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


class Named(Struct, frozen=True):
    title: str
    at: int
    """When it was named; where that is not told, when the index was written."""


def id_in(name: str) -> str | None:
    """The thread that a file is called after."""
    found = _UUID.findall(name)
    return found[-1] if found else None


def name_of(path: Path, id: str | None = None) -> Named | None:
    """The last name of a thread, by default of the one that its file is called after."""
    id = id or id_in(path.name)
    for folder in path.parents[:5]:
        if id is not None and folder.name in ("sessions", "archived_sessions"):
            index = folder.parent / "session_index.jsonl"
            try:
                found = index.stat()
                return _names(index, found.st_mtime_ns, found.st_size).get(id)
            except OSError:
                return None
    return None


@lru_cache(maxsize=4)
def _names(index: Path, stamp: int, size: int) -> dict[str, Named]:
    found: dict[str, Named] = {}
    for line in index.read_bytes().splitlines():
        try:
            named = mapping(orjson.loads(line))
        except orjson.JSONDecodeError:
            continue
        id, title = text(named.get("id")), text(named.get("thread_name"))
        if id and title:
            found[id] = Named(title, moment(named.get("updated_at")) or stamp // 1_000_000)
    return found
