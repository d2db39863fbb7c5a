"""The importer of Claude Code's sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import orjson

from weft.exchange.importers.claude_code.kinds import SESSION_TYPES, SILENT_TYPES, TREE_TYPES, JsonObject
from weft.exchange.importers.claude_code.layout import card_owner, is_sidecar, places
from weft.exchange.importers.claude_code.printed import first_elements
from weft.exchange.importers.claude_code.reader import ClaudeCodeReader
from weft.exchange.importers.jsonl import BOM, first_objects
from weft.exchange.importers.port import Place, Report, Source
from weft.exchange.importers.transcript import Transcript

_SPOKEN: Final = frozenset({"user", "assistant"})
_NOTES: Final = (SESSION_TYPES | SILENT_TYPES) - {"started", "result"}
_PRINTED: Final = frozenset({"user", "assistant", "system", "result", "stream_event"})
_SIGNS: Final = frozenset({"parent_tool_use_id", "uuid", "claude_code_version", "num_turns", "mcp_servers"})
_NOTED: Final = frozenset({"sessionId", "leafUuid", "messageId"})


class ClaudeCode:
    """Sessions of Claude Code, and of tools that write the same lines."""

    origin = "claude-code"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        return places(home, environment)

    def recognises(self, source: Source) -> bool:
        objects = first_objects(source.head) or first_elements(source.head) or _document(source.head)
        if not objects:  # the first record is longer than what is looked at
            return all(mark in source.head for mark in (b'"parentUuid"', b'"sessionId"', b'"type"'))
        return 2 * sum(map(_is_ours, objects)) >= len(objects)

    def is_part(self, source: Source) -> bool:
        return is_sidecar(source.path, source.head)

    def whole(self, source: Source) -> Path | None:
        """A subagent's card belongs to its file. Journals and large outputs change nothing that is read."""
        return card_owner(source.path)

    def parts(self, path: Path) -> list[Path]:
        return []

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        return self.reader().read(source, report, {})

    def reader(self) -> ClaudeCodeReader:
        return ClaudeCodeReader()


def _document(head: bytes) -> list[JsonObject]:
    """The one record of a file that spreads it over several lines."""
    try:
        value = orjson.loads(head.removeprefix(BOM))
    except orjson.JSONDecodeError:
        return []
    return [value] if isinstance(value, dict) else []


def _is_ours(value: JsonObject) -> bool:
    kind = value.get("type")
    if not isinstance(kind, str):
        return False
    if "session_id" in value and "sessionId" not in value:  # what the program prints, and not what it keeps
        return kind in _PRINTED and not _SIGNS.isdisjoint(value)
    if kind in _SPOKEN:
        return "message" in value and ("sessionId" in value or "uuid" in value)
    if kind in TREE_TYPES:
        return "sessionId" in value and "uuid" in value
    return kind in _NOTES and not _NOTED.isdisjoint(value)
