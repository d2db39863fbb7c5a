"""What lies around a session file in Gemini CLI's folder: `tmp/<project>/chats/<file>`, with the project's folder told
beside it, and subagents in a folder named after the session that started them."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

from weft.exchange.importers.loading import loaded
from weft.exchange.importers.values import mapping, text

CHATS = "chats"
STAMPED = re.compile(r"session-\d{4}-\d\d-\d\dT\d\d-\d\d-(.+)")
SMALL = 1 << 20


def project_folder(path: Path) -> Path | None:
    """`tmp/<project>`, for a chat, a subagent's chat, a saved chat or the prompts."""
    for folder in path.parents[:3]:
        if folder.name == CHATS:
            return folder.parent
    return path.parent if path.parent.parent.name == "tmp" else None


def parent_session(path: Path) -> str | None:
    """Of a subagent's file: the session that started it."""
    return path.parent.name if path.parent.parent.name == CHATS else None


def workspace(path: Path, project_hash: str | None) -> str | None:
    """The folder that a project's chats are about, where it is written down."""
    project = project_folder(path)
    if project is None:
        return None
    root = _small(project / ".project_root")
    if root is not None and root.strip():
        return root.decode(errors="replace").strip()
    told = _small(project.parent.parent / "projects.json")
    if told is None:
        return None
    try:
        known = mapping(mapping(loaded(told)).get("projects"))
    except ValueError:
        return None
    names = {project.name, project_hash}
    return next((folder for folder, name in known.items() if name in names or _hash(folder) in names), None)


def _hash(folder: str) -> str:
    return sha256(folder.encode("utf-8", "surrogatepass")).hexdigest()


def _small(path: Path) -> bytes | None:
    try:
        if path.stat().st_size > SMALL:
            return None
        return path.read_bytes()
    except OSError:
        return None


def has_chat(path: Path, session: str) -> bool:
    """Is there a chat of a session whose prompts are logged here?"""
    folder = path.parent / CHATS
    try:
        stems = [text(found.stem) or "" for found in folder.iterdir()]
    except OSError:
        return False
    return any(stem == session or (STAMPED.fullmatch(stem) and stem.endswith(f"-{session[:8]}")) for stem in stems)
