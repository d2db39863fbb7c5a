"""The importer of Claude Code: where its files lie, which files are its sessions, and how one is read.

Only the known places are looked at: no path that a transcript names is followed. A reader can read on in a file that
has grown. It keeps the index of the lines read so far, so only new lines are parsed; how lines fall into turns is
worked out anew from the whole index, so that every reading sees what a first one would; and of the turns given before,
those that would be made of the same again are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import orjson

from weft.exchange.importers.claude_code.index import Index, count_entries, index_file, index_more
from weft.exchange.importers.claude_code.lines import SESSION_TYPES, SILENT_TYPES, TREE_TYPES, first_listed
from weft.exchange.importers.claude_code.sessions import PastTurns, main_session, transcripts, workflow_of_folder
from weft.exchange.importers.claude_code.tree import plan_turns
from weft.exchange.importers.port import Place, Report, Source, Transcript
from weft.exchange.importers.records.jsonl import BOM, first_objects
from weft.exchange.importers.records.values import JsonObject

_is_journal: Final = re.compile(rb'\s*\{\s*"type"\s*:\s*"(launched|started)"').match
_is_safe_id: Final = re.compile(r"[\w-][\w.@-]{0,127}").fullmatch


def places(home: Path, environment: Mapping[str, str]) -> list[Place]:
    named = environment.get("CLAUDE_CONFIG_DIR", "")
    config = environment.get("XDG_CONFIG_HOME") or home / ".config"
    folders = [
        *(Path(part.strip()) for part in named.split(",") if part.strip()),
        home / ".claude",
        Path(config) / "claude",
    ]
    return [Place(folder / "projects", "Claude Code sessions") for folder in dict.fromkeys(folders)]


def has_agent_file(path: Path, session: str | None, agent: str) -> bool:
    """Does a subagent of this session have a file of its own, in one of the known layouts?"""
    if not _is_safe_id(agent):
        return False
    name = f"agent-{agent}.jsonl"
    stems = {path.stem} | ({session} if session and _is_safe_id(session) else set())
    folders = [path.parent / stem / "subagents" for stem in sorted(stems)]
    files = [path.parent / name, path.parent / "agents" / name, *(folder / name for folder in folders)]
    if any(file.is_file() for file in files):
        return True
    return any(next((folder / "workflows").glob(f"*/{name}"), None) is not None for folder in folders)


def card_owner(path: Path) -> Path | None:
    """The file of the subagent that a card is of."""
    owner = path.with_name(f"{path.name.removesuffix('.meta.json')}.jsonl")
    return owner if path.name.endswith(".meta.json") and owner.is_file() else None


def is_sidecar(path: Path, head: bytes) -> bool:
    """Cards of subagents, journals and outcomes of workflows, titles and large outputs: they belong to a session file
    elsewhere."""
    if path.name.startswith("agent-") and path.name.endswith(".meta.json"):
        return True
    if path.parent.name == "tool-results" and path.parent.parent.with_suffix(".jsonl").is_file():
        return True
    if path.name == "custom-title.json" or path.parent.name == "workflows":
        folder = path.parent if path.name == "custom-title.json" else path.parent.parent
        return path.suffix == ".json" and folder.with_suffix(".jsonl").is_file()
    return path.name == "journal.jsonl" and workflow_of_folder(path) is not None and _is_journal(head) is not None


class ClaudeCodeReader:
    """Of one file."""

    def __init__(self) -> None:
        self._index: Index | None = None
        self._past_turns = PastTurns()

    def read(self, source: Source, report: Report, taken: Mapping[str, int]) -> Iterator[Transcript]:
        index = self._indexed(source, report)
        session = main_session(index)
        mirrored = {agent for agent in index.mirrors if has_agent_file(source.path, session, agent)}
        turns = plan_turns(index, mirrored)
        count_entries(index)
        try:
            yield from transcripts(index, turns, session, self._past_turns, taken)
        finally:
            index.let_go()

    def _indexed(self, source: Source, report: Report) -> Index:
        index, self._index = self._index, None
        if index is None or index.reached.is_torn:
            self._past_turns = PastTurns()
            index = index_file(source, report)
        else:
            index_more(index, source, report)
        self._index = index
        return index


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
        objects = first_objects(source.head) or first_listed(source.head) or _first_object(source.head)
        if not objects:  # the first record is longer than what is looked at
            return all(mark in source.head for mark in (b'"parentUuid"', b'"sessionId"', b'"type"'))
        return 2 * sum(map(_is_line, objects)) >= len(objects)

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


def _first_object(head: bytes) -> list[JsonObject]:
    """The one record of a file that spreads it over several lines."""
    try:
        value = orjson.loads(head.removeprefix(BOM))
    except orjson.JSONDecodeError:
        return []
    return [value] if isinstance(value, dict) else []


def _is_line(value: JsonObject) -> bool:
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
