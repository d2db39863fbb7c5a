"""By which id a trajectory is known, and which others it refers to: subagents, and what it goes on from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from weft.exchange.importers.documents import read_document
from weft.exchange.importers.records.values import JsonObject, fingerprint, mapping, sequence, text
from weft.exchange.importers.sidecars import read_beneath

UNIQUE = re.compile(r"(?=.*\d)[\w.:/-]{16,}")
"""Long enough, and with a digit: no name that somebody gives to every run."""
NEIGHBOURS = 64


def trajectory_id(value: JsonObject) -> str:
    """Its own id, or that of its run; one that others may have too gets a mark of how the trajectory begins."""
    words = text(value.get("trajectory_id")) or text(value.get("session_id"))
    if words is not None and UNIQUE.fullmatch(words):
        return words
    return f"{words or 'trajectory'}@{fingerprint(_beginning(value))}"


def _beginning(value: JsonObject) -> list[Any]:
    """The first steps, as they stay while it grows: up to the first response."""
    values: list[Any] = [mapping(value.get("agent")).get("name")]
    for step in map(mapping, sequence(value.get("steps"))):
        values.append([step.get(name) for name in ("source", "timestamp", "message", "tool_calls")])
        if step.get("source") == "agent":
            break
    return values


def embedded(value: JsonObject) -> dict[str, JsonObject]:
    """Trajectories of subagents inside this one, by their ids."""
    fields = (mapping(trajectory) for trajectory in sequence(value.get("subagent_trajectories")))
    return {id: trajectory for trajectory in fields if (id := text(trajectory.get("trajectory_id"))) is not None}


def embedded_id(parent: str, id: str) -> str:
    """Such an id is unique within its parent only."""
    return id if UNIQUE.fullmatch(id) else f"{parent}/{id}"


def referred(ref: JsonObject, parent: str, inside: dict[str, JsonObject], folder: Path | None) -> str | None:
    """The trajectory that a reference names."""
    id = text(ref.get("trajectory_id"))
    if id is not None and id in inside:
        return embedded_id(parent, id)
    path = text(ref.get("trajectory_path"))
    if path is not None and folder is not None and (value := _beside(folder, path)):
        return trajectory_id(value)
    return id or text(ref.get("session_id"))


def before(path: Path) -> str | None:
    """The trajectory that goes on in this file, if one lies beside it and says so."""
    try:
        files = sorted(each for each in path.parent.glob("*.json") if each != path and not each.is_symlink())
    except OSError:
        return None
    sign = f'"{path.name}"'.encode()
    for file in files[:NEIGHBOURS]:
        value = _loaded(file, path.parent, sign)
        ref = text(value.get("continued_trajectory_ref"))
        if ref is not None and Path(ref).name == path.name:
            return trajectory_id(value)
    return None


def _beside(folder: Path, path: str) -> JsonObject:
    """A file below the same folder; a reference does not lead out of it."""
    target = (folder / path).resolve()
    return _loaded(target, folder.resolve()) if target.is_relative_to(folder.resolve()) else {}


def _loaded(file: Path, root: Path, sign: bytes = b"") -> JsonObject:
    try:
        data = read_beneath(file, root)
    except OSError:
        return {}
    value = mapping(read_document(data).value) if sign in data else {}
    return value if is_trajectory(value) else {}


def is_trajectory(value: JsonObject) -> bool:
    version = text(value.get("schema_version")) or ""
    return version.startswith("ATIF-") and isinstance(value.get("steps"), list)
