"""Telling opencode's files from others, and its session files from those that they bring along."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Any

import orjson

from weft.exchange.importers.databases import MAGIC
from weft.exchange.importers.jsonl import BOM
from weft.exchange.importers.opencode.export import announced
from weft.exchange.importers.opencode.folder import is_first_orphan
from weft.exchange.importers.port import Source
from weft.exchange.importers.values import mapping, text


class Container(Enum):
    DATABASE = auto()
    EXPORT = auto()
    FOLDER = auto()
    ORPHANS = auto()
    """Messages in the folder whose session file is gone."""


DATABASE_NAME = re.compile(r"opencode([-.].+)?\.db")
TABLE = re.compile(rb'CREATE TABLE\s+[`"\']?(?:session_)?message[`"\']?\s*\(')
EXPORT = re.compile(rb'\s*\{\s*("info"\s*:\s*\{|"messages"\s*:\s*\[\s*\{\s*"(info|parts)")')
EXPORT_SIGNS = (b'"messages"', b'"projectID"', b'"directory"', b'"sessionID"', b'"slug"')
SESSION_SIGNS = (b'"projectID"', b'"directory"', b'"time"')
SESSION_FIELDS = ("projectID", "directory", "slug", "version", "title", "parentID")
MESSAGE_SIGNS = (b'"sessionID"', b'"role"')
PART_SIGNS = (b'"sessionID"', b'"messageID"', b'"type"')
BESIDE = frozenset({"todo", "session_diff", "session_share"})


def container(source: Source) -> Container | None:
    """Which of the three a file is, if any."""
    head = source.head.removeprefix(BOM)
    head = head[announced(head) :]
    if head.startswith(MAGIC):
        return Container.DATABASE if _is_database(source) else None
    if _is_message(source):
        return Container.ORPHANS if is_first_orphan(source.path) else None
    value = _whole(source, head)
    if value is not None:
        return _container_of(value)
    if EXPORT.match(head) and sum(sign in head for sign in EXPORT_SIGNS) >= 2:
        return Container.EXPORT
    is_session = source.path.name.startswith("ses_") and head.lstrip().startswith(b"{")
    return Container.FOLDER if is_session and all(sign in head for sign in SESSION_SIGNS) else None


def _is_database(source: Source) -> bool:
    has_table = TABLE.search(source.head) is not None and b"session_id" in source.head
    return has_table or DATABASE_NAME.fullmatch(source.path.name) is not None


def _whole(source: Source, head: bytes) -> dict[str, Any] | None:
    """The document, if it is short and sound."""
    if source.size > len(source.head):
        return None
    try:
        value = orjson.loads(head)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _container_of(value: dict[str, Any]) -> Container | None:
    info = mapping(value.get("info"))
    if info and isinstance(value.get("messages"), list):
        return Container.EXPORT if _is_session(info) else None
    return Container.FOLDER if _is_session(value) and "messages" not in value else None


def _is_session(info: dict[str, Any]) -> bool:
    """A session's info: its id, its times, and where it ran."""
    id = text(info.get("id"))
    if id is None or "role" in info or "type" in info:
        return False
    signs = sum(name in info for name in SESSION_FIELDS)
    return signs >= (1 if id.startswith("ses_") else 2) and "created" in mapping(info.get("time"))


def _is_message(source: Source) -> bool:
    path = source.path
    if path.suffix != ".json" or path.parent.parent.name != "message":
        return False
    return path.name.startswith("msg_") or all(sign in source.head for sign in MESSAGE_SIGNS)


def session_named(head: bytes) -> str | None:
    """The session that a message or a part says it belongs to."""
    match = re.search(rb'"sessionID"\s*:\s*"([\w-]{1,128})"', head)
    return match[1].decode() if match else None


def is_part_file(source: Source) -> bool:
    """A message, a part or what else lies in the folder of session files."""
    path, head = source.path, source.head
    if path.suffix != ".json":
        return False
    if path.parent.name in BESIDE:
        return path.name.startswith("ses_")
    if path.parent.name == "project":
        return b'"worktree"' in head and b'"time"' in head
    if _is_message(source):
        return not is_first_orphan(path)
    above = path.parent.parent
    if above.name == "part" or above.parent.name == "part":
        return path.name.startswith("prt_") or all(sign in head for sign in PART_SIGNS)
    return False
