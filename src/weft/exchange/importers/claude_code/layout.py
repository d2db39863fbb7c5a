"""Where Claude Code keeps its files, and what lies beside a session's file. Only these places are ever looked at: no
path that a transcript names is followed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import orjson

from weft.exchange.importers.claude_code.kinds import JsonObject
from weft.exchange.importers.port import Place

_SIDECAR_BYTES: Final = 65536
_agent_file: Final = re.compile(r"agent-([\w.@-]{1,128})\.jsonl").fullmatch
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


def agent_of_file(path: Path) -> str | None:
    """The subagent whose lines a file holds, by the file's name."""
    match = _agent_file(path.name)
    return match[1] if match else None


def session_of_folder(path: Path) -> str | None:
    """The session below whose folder a subagent's file lies."""
    for folder in path.parents:
        if folder.name == "subagents":
            return folder.parent.name or None
    return None


def workflow_of_folder(path: Path) -> str | None:
    """The workflow run in whose folder a subagent's file lies."""
    return path.parent.name if path.parent.parent.name == "workflows" else None


def has_agent_file(path: Path, session: str | None, agent: str) -> bool:
    """Does a subagent of this session have a file of its own, in one of the known layouts?"""
    if not _is_safe_id(agent):
        return False
    name = f"agent-{agent}.jsonl"
    stems = {path.stem} | ({session} if session and _is_safe_id(session) else set())
    folders = [path.parent / stem / "subagents" for stem in sorted(stems)]
    beside = [path.parent / name, path.parent / "agents" / name, *(folder / name for folder in folders)]
    if any(found.is_file() for found in beside):
        return True
    return any(next((folder / "workflows").glob(f"*/{name}"), None) is not None for folder in folders)


def agent_card(path: Path) -> JsonObject:
    """What `agent-<id>.meta.json` says of the subagent whose file lies beside it."""
    try:
        with path.with_suffix(".meta.json").open("rb") as file:
            card = orjson.loads(file.read(_SIDECAR_BYTES))
    except (OSError, orjson.JSONDecodeError):
        return {}
    return card if isinstance(card, dict) else {}


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
