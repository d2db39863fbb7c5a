"""The importer of opencode: three containers with one mapping.

Its files are told from others by their content, and its session files from those that they bring along.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from pathlib import Path
from typing import Any

import orjson

from weft.exchange.importers.databases import MAGIC
from weft.exchange.importers.opencode.database import read_database
from weft.exchange.importers.opencode.export import announced, read_export
from weft.exchange.importers.opencode.folder import is_first_orphan, parts_of, read_folder, read_orphans, whole_of
from weft.exchange.importers.opencode.rows import HIDDEN, Session
from weft.exchange.importers.opencode.turns import Turns
from weft.exchange.importers.port import NativeSession, Place, Report, Source, Transcript
from weft.exchange.importers.records.jsonl import BOM, read_whole
from weft.exchange.importers.records.values import mapping, millis, present, text


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


SUBAGENT = " subagent)"
"""How opencode titles the session of a subagent: its task and its name."""


class Opencode:
    origin = "opencode"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        folder = environment.get("XDG_DATA_HOME")
        data = (Path(folder) if folder else home / ".local/share") / "opencode"
        found = [
            Place(data / "opencode.db", "opencode"),
            Place(data / "storage", "opencode before 1.2"),
            Place(data / "project", "opencode before 0.5"),
        ]
        try:
            others = sorted(path for path in data.glob("opencode-*.db") if path.is_file())
        except OSError:
            others = []
        found += [Place(path, "opencode, another release channel") for path in others]
        if database := environment.get("OPENCODE_DB"):
            found.append(Place(data / database, "opencode"))
        return found

    def recognises(self, source: Source) -> bool:
        return container(source) is not None

    def is_part(self, source: Source) -> bool:
        return is_part_file(source)

    def whole(self, source: Source) -> Path | None:
        return whole_of(source.path, session_named(source.head))

    def parts(self, path: Path) -> list[Path]:
        return parts_of(path) if path.suffix == ".json" else []

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        for session in _sessions(source, report):
            yield _transcript(session, source.path.stem, report)


def _sessions(source: Source, report: Report) -> Iterator[Session]:
    kind = container(source)
    if kind is Container.DATABASE or source.head.startswith(MAGIC):
        yield from read_database(source.path, report)
    elif kind is Container.FOLDER:
        session = read_folder(source, report)
        if session is not None:
            yield session
    elif kind is Container.ORPHANS:
        yield read_orphans(source.path, report)
    else:
        yield read_export(read_whole(source), report)


def _transcript(session: Session, fallback: str, report: Report) -> Transcript:
    info = session.info
    id = text(info.get("id"))
    id = fallback if id is None or id == HIDDEN else id
    mapped = {"session": int(session.has_record), "todo": len(session.todos), **session.mapped}
    report.found += sum(mapped.values()) + sum(session.kept.values())
    report.mapped.update({kind: count for kind, count in mapped.items() if count})
    report.kept.update(session.kept)
    report.unknown.update(session.unknown)
    return Transcript(session=session_of(id, session), turns=Turns(session, id, report).walk(), raw=session.raw)


def _subagent(title: str) -> tuple[str | None, str | None]:
    """The task and the name of a subagent, as the title of its session has them."""
    task, _, name = title.removesuffix(SUBAGENT).rpartition(" (@")
    return (task, name) if task and name and title.endswith(SUBAGENT) else (None, None)


def session_of(id: str, session: Session) -> NativeSession:
    info = session.info
    title, time = text(info.get("title")), mapping(info.get("time"))
    parent = text(info.get("parentID"))
    task, name = _subagent(title or "") if parent else (None, None)
    revert = {name: value for name, value in mapping(info.get("revert")).items() if name != "diff"}
    return NativeSession(
        id=id,
        title=title,
        workspace=text(info.get("directory")),
        version=text(info.get("version")),
        created=millis(time.get("created")),
        parent=parent,
        task=task,
        agent=text(info.get("agent")) or name,
        archived=millis(time.get("archived")) is not None,
        told_at=millis(time.get("updated")),
        metadata=present(
            slug=info.get("slug"),
            project=info.get("projectID"),
            share=mapping(info.get("share")).get("url"),
            summary=_without_diffs(info.get("summary")),
            model=info.get("model"),
            cost=info.get("cost"),
            tokens=info.get("tokens"),
            revert=revert,
            todos=session.todos,
            metadata=info.get("metadata"),
            fork=info.get("fork"),
        ),
    )


def _without_diffs(summary: Any) -> dict[str, Any]:
    return {name: value for name, value in mapping(summary).items() if name != "diffs"}
