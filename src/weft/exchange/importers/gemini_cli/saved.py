"""What is no chat: conversations that a person saved under a name, and the log of prompts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from weft.exchange.importers.gemini_cli import layout
from weft.exchange.importers.gemini_cli.containers import SIGN
from weft.exchange.importers.gemini_cli.index import Entry, Indexer
from weft.exchange.importers.gemini_cli.kinds import classify
from weft.exchange.importers.pieces import pieces
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.transcript import NativeMessage, NativeSession, NativeTurn, Transcript
from weft.exchange.importers.values import canonical, millis, text, whole
from weft.kernel.enums import MessageRole, MessageSource
from weft.ledger.model import TextPart

LOGGED = re.compile(rb'[,\[]\s*(\{\s*"(?:sessionId|messageId|type)"\s*:)')


def saved_name(source: Source) -> str:
    return unquote(source.path.stem.removeprefix("checkpoint-"))


def saved_session(source: Source) -> str:
    """A saved conversation has no id: its project and its name stand for one."""
    return f"{source.path.parent.name}/{source.path.stem}"


def index_saved(source: Source, indexer: Indexer, report: Report) -> None:
    """The messages as the API has them, with a role each and no ids or times."""
    for piece in pieces(source.path, "history", SIGN):
        report.found += 1
        value = piece.value
        if piece.name is not None:
            report.mapped["saved"] += 1
            indexer.tell({piece.name: value})
        elif isinstance(value, dict):
            indexer.take(value, Entry(classify(value)[0], None, None, piece.offset, piece.end))
        else:
            report.damaged += 1
            report.problem(None, f"the message at byte {piece.offset} is cut or damaged")


def read_log(source: Source, report: Report) -> Iterator[Transcript]:
    """Prompts alone, of every session of a project. Those whose chats are here too are left to these."""
    sessions: dict[str, list[tuple[int, int, bytes, dict[str, Any]]]] = {}
    for piece in pieces(source.path, sign=LOGGED):
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
    folder = layout.workspace(source.path, None)
    for session, entries in sessions.items():
        if layout.has_chat(source.path, session):
            report.kept["log.prompt"] += len(entries)
            continue
        report.mapped["log.prompt"] += len(entries)
        turns = [_prompt(session, number, entry, folder) for number, entry in enumerate(entries)]
        raw = b"".join(entry[2].replace(b"\n", b" ") + b"\n" for entry in entries)
        told = NativeSession(id=session, workspace=folder, created=turns[0].started)
        yield Transcript(session=told, turns=turns, raw=raw)


def _prompt(session: str, number: int, entry: tuple[int, int, bytes, dict[str, Any]], folder: str | None) -> NativeTurn:
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
