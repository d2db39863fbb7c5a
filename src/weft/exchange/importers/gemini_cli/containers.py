"""The files of Gemini CLI, and what lies around them: `tmp/<project>/chats/<file>`.

A chat is a document that is written anew each time, or JSON lines that are appended to; both become changes that the
index takes. Beside chats there are conversations that a person saved under a name, and the log of prompts. The
project's folder is told beside the chats, and subagents lie in a folder named after the session that started them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from weft.exchange.importers.documents import pieces
from weft.exchange.importers.gemini_cli.index import Indexer
from weft.exchange.importers.gemini_cli.messages import classify
from weft.exchange.importers.port import NativeMessage, NativeSession, NativeTurn, Report, Source, Transcript
from weft.exchange.importers.records.jsonl import Record, records
from weft.exchange.importers.records.planned_turns import Entry, entry_of
from weft.exchange.importers.records.values import canonical, json_value, mapping, millis, sequence, text, whole
from weft.exchange.importers.sidecars import read_beneath
from weft.kernel.enums import MessageRole, MessageSource
from weft.ledger.model import TextPart

CHATS = "chats"
STAMPED = re.compile(r"session-\d{4}-\d\d-\d\dT\d\d-\d\d-(.+)")
SMALL_BYTES = 1 << 20


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
    root = _small_file(project / ".project_root", project)
    if root is not None and root.strip():
        return root.decode(errors="replace").strip()
    register = _small_file(project.parent.parent / "projects.json", project.parent.parent)
    if register is None:
        return None
    try:
        projects = mapping(mapping(json_value(register)).get("projects"))
    except ValueError:
        return None
    names = {project.name, project_hash}
    return next((folder for folder, name in projects.items() if name in names or _folder_hash(folder) in names), None)


def _folder_hash(folder: str) -> str:
    return sha256(folder.encode("utf-8", "surrogatepass")).hexdigest()


def _small_file(path: Path, root: Path) -> bytes | None:
    try:
        return read_beneath(path, root, SMALL_BYTES)
    except OSError:
        return None


def has_chat(path: Path, session: str) -> bool:
    """Is there a chat of a session whose prompts are logged here?"""
    folder = path.parent / CHATS
    try:
        stems = [text(file.stem) or "" for file in folder.iterdir()]
    except OSError:
        return False
    return any(stem == session or (STAMPED.fullmatch(stem) and stem.endswith(f"-{session[:8]}")) for stem in stems)


MESSAGE_SIGN = re.compile(rb'[,\[]\s*(\{\s*"(?:id|type|timestamp|role)"\s*:)')


def index_lines(source: Source, indexer: Indexer, report: Report) -> None:
    for record in records(source, report):
        _take_line(record, indexer, report)


def _take_line(record: Record, indexer: Indexer, report: Report) -> None:
    value = record.value
    kind, _ = classify(value)
    entry = entry_of(record, kind)
    if (target := text(value.get("$rewindTo"))) is not None:
        report.mapped["$rewindTo"] += 1
        indexer.rewind(target, record.line)
    elif entry.id is not None and "sessionId" not in value:
        indexer.take(value, entry)
    elif isinstance(facts := value.get("$set"), dict):
        report.mapped["$set"] += 1
        indexer.add_facts(facts)
        if isinstance(messages := facts.get("messages"), list):
            indexer.replace(messages, entry)
    elif text(value.get("sessionId")) is not None:
        report.mapped["session"] += 1
        indexer.add_facts(value)
        for number, message in enumerate(sequence(value.get("messages"))):
            if isinstance(message, dict):
                inner = classify(message)[0], text(message.get("id"))
                indexer.take(message, Entry(*inner, record.line, record.offset, record.end, number))
    else:
        report.kept["untyped"] += 1
        report.unknown["untyped"] += 1


def index_document(source: Source, indexer: Indexer, report: Report) -> None:
    """One object with its messages in a list. What is said of the session is one record, each message another."""
    report.found += 1
    report.mapped["session"] += 1
    for piece in pieces(source.path, "messages", MESSAGE_SIGN):
        value = piece.value
        if piece.name is not None:
            indexer.add_facts({piece.name: value})
            continue
        report.found += 1
        if isinstance(value, dict):
            indexer.take(value, Entry(classify(value)[0], text(value.get("id")), None, piece.offset, piece.end))
        else:
            report.damaged += 1
            what = "is no object" if piece.is_whole else "is cut or damaged"
            report.problem(None, f"the message at byte {piece.offset} {what}")


LOGGED_SIGN = re.compile(rb'[,\[]\s*(\{\s*"(?:sessionId|messageId|type)"\s*:)')


LoggedEntry = tuple[int, int, bytes, dict[str, Any]]
"""Offset, end, JSON text and value of a logged prompt."""


def saved_name(source: Source) -> str:
    return unquote(source.path.stem.removeprefix("checkpoint-"))


def saved_session(source: Source) -> str:
    """A saved conversation has no id: its project and its name stand for one."""
    return f"{source.path.parent.name}/{source.path.stem}"


def index_saved(source: Source, indexer: Indexer, report: Report) -> None:
    """The messages as the API has them, with a role each and no ids or times."""
    for piece in pieces(source.path, "history", MESSAGE_SIGN):
        report.found += 1
        value = piece.value
        if piece.name is not None:
            report.mapped["saved"] += 1
            indexer.add_facts({piece.name: value})
        elif isinstance(value, dict):
            indexer.take(value, Entry(classify(value)[0], None, None, piece.offset, piece.end))
        else:
            report.damaged += 1
            report.problem(None, f"the message at byte {piece.offset} is cut or damaged")


def read_log(source: Source, report: Report) -> Iterator[Transcript]:
    """Prompts alone, of every session of a project. Those whose chats are here too are left to these."""
    sessions: dict[str, list[LoggedEntry]] = {}
    for piece in pieces(source.path, sign=LOGGED_SIGN):
        report.found += 1
        value = piece.value
        session = text(value.get("sessionId")) if isinstance(value, dict) else None
        if not isinstance(value, dict):
            report.damaged += 1
            report.problem(None, f"the prompt at byte {piece.offset} is cut or damaged")
        elif session is None or text(value.get("message")) is None or value.get("type") != "user":
            report.kept["log.other"] += 1
            report.unknown["log.other"] += 1
        else:
            sessions.setdefault(session, []).append((piece.offset, piece.end, piece.data, value))
    folder = workspace(source.path, None)
    for session, entries in sessions.items():
        if has_chat(source.path, session):
            report.kept["log.prompt"] += len(entries)
            continue
        report.mapped["log.prompt"] += len(entries)
        turns = [_logged_prompt(session, number, entry, folder) for number, entry in enumerate(entries)]
        raw = b"".join(entry[2].replace(b"\n", b" ") + b"\n" for entry in entries)
        described = NativeSession(id=session, workspace=folder, created=turns[0].started)
        yield Transcript(session=described, turns=turns, raw=raw)


def _logged_prompt(session: str, number: int, entry: LoggedEntry, folder: str | None) -> NativeTurn:
    offset, end, _, value = entry
    id, words, when = whole(value.get("messageId")), str(value["message"]), millis(value.get("timestamp"))
    message = NativeMessage(
        role=MessageRole.USER, parts=(TextPart(words),), at=when, source=MessageSource.HUMAN, metadata={"log": id}
    )
    return NativeTurn(
        key=f"{session}#log{number}",
        records=(canonical(["log", session, number, words]),),
        items=(message,),
        parent=number - 1 if number else None,
        started=when,
        ended=when,
        workspace=folder,
        offset=offset,
        end=end,
    )
